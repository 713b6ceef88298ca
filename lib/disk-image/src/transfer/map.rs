//! Tables first: reads the root and leaf tables in slices and turns them into jobs, the ranges of the image that
//! readers fetch. For sources with ranges, and for raw images in independent blocks.
//!
//! A batch is at most [`BATCH`] extents, in guest order from batch to batch and in host order inside one, so that
//! neither a large nor a fragmented map is ever whole in memory.

use std::ops::Range;

use crossbeam_channel::Sender;

use super::pipeline::Shared;
use super::plan::Way;
use super::reads::{Job, PART_ALIGN, TABLE_READ, index, reads, split};
use crate::error::{Error, Kind};
use crate::extent::{Content, Extent};
use crate::format::{Leaf, TableExtents, check_disjoint};
use crate::source::{Access, Source, read_range};

/// Extents mapped before their data is fetched.
const BATCH: usize = 64 << 10;
/// Reads of leaf tables at once.
const TABLES_AT_ONCE: usize = 4;
/// Guest bytes of a raw image per query for holes.
const RAW_SLICE: u64 = 1 << 30;

/// Maps the whole disk; returns when the last job is sent or the transfer was halted.
pub(super) fn map(shared: &Shared<'_>, jobs: &Sender<Job>) -> Result<(), Error> {
    let mapper = Mapper { shared, jobs, source: &*shared.image.source };
    if shared.image.way == Way::Blocks {
        mapper.blocks()
    } else if shared.image.layout.root().entries == 0 {
        mapper.raw()
    } else {
        mapper.tables()
    }
}

struct Mapper<'a> {
    shared: &'a Shared<'a>,
    jobs: &'a Sender<Job>,
    source: &'a dyn Source,
}

impl Mapper<'_> {
    fn blocks(&self) -> Result<(), Error> {
        let Access::Blocks(blocks) = self.source.facts().access else {
            return Err(Error::new(Kind::Source, "the source has no independent blocks"));
        };
        let size = self.shared.image.layout.virtual_size();
        let plain = |range: Range<u64>| Extent {
            guest: range.start,
            len: range.end - range.start,
            content: Content::Plain { host: range.start },
        };
        // The last sector is an extent of its own, to be looked at. The block it starts in brings all of it.
        let last = self.shared.image.open_end().unwrap_or(size..size);
        for block in blocks.iter() {
            let body = block.start.min(last.start)..block.end.min(last.start);
            let mut credit = body.end - body.start;
            let mut extents: Vec<_> = self.shared.todo(body).into_iter().map(plain).collect();
            if block.contains(&last.start) {
                credit += last.end - last.start;
                extents.extend(self.shared.todo(last.clone()).first().map(|_| plain(last.clone())));
            }
            match (extents.first(), extents.last()) {
                (Some(first), Some(last)) => {
                    let host = first.guest..last.guest + last.len;
                    self.send(Job { host, extents, credit })?;
                }
                _ => self.shared.credit(credit),
            }
        }
        Ok(())
    }

    fn raw(&self) -> Result<(), Error> {
        let size = self.shared.image.layout.virtual_size();
        let mut at = 0;
        while at < size {
            self.shared.halt.check()?;
            let slice = at..size.min(at.saturating_add(RAW_SLICE));
            let known = self
                .source
                .data_ranges(slice.clone())
                .map_err(|e| Error::from_source("cannot ask the source for its data ranges", e))?;
            let mut extents = Vec::new();
            let mut zero = |range: Range<u64>| {
                if !range.is_empty() {
                    extents.push(Extent {
                        guest: range.start,
                        len: range.end - range.start,
                        content: Content::Zero,
                    });
                }
            };
            let mut data = Vec::new();
            let mut end = slice.start;
            for range in known.unwrap_or_else(|| vec![slice.clone()]) {
                let range = range.start.max(end)..range.end.min(slice.end);
                if range.is_empty() {
                    continue;
                }
                zero(end..range.start);
                end = range.end;
                data.push(Extent {
                    guest: range.start,
                    len: range.end - range.start,
                    content: Content::Plain { host: range.start },
                });
            }
            zero(end..slice.end);
            extents.append(&mut data);
            self.batch(extents)?;
            at = slice.end;
        }
        Ok(())
    }

    fn tables(&self) -> Result<(), Error> {
        let layout = &*self.shared.image.layout;
        let root = layout.root();
        let per_read = TABLE_READ / u64::from(root.entry_len);
        let mut found = TableExtents::default();
        let mut first = 0;
        while first < root.entries {
            let some = first..root.entries.min(first + per_read);
            if layout.root_guest(some.start) >= layout.virtual_size() {
                break;
            }
            let bytes = self.table(root.bytes_of(some.clone()))?;
            layout.read_root(first, &bytes, &mut found)?;
            drop(bytes);
            let mut leaves = std::mem::take(&mut found.leaves);
            leaves.sort_unstable_by_key(|leaf| leaf.table.host);
            for pair in leaves.windows(2) {
                if let [one, other] = pair {
                    check_disjoint(layout.format(), one, other)?;
                }
            }
            self.leaves(&leaves, &mut found)?;
            self.batch_if(&mut found, BATCH)?;
            first = some.end;
        }
        self.batch_if(&mut found, 1)
    }

    /// Reads leaf tables, a few at once as each read may be a round trip to a far server.
    fn leaves(&self, leaves: &[Leaf], found: &mut TableExtents) -> Result<(), Error> {
        let at_once = self.source.connections().clamp(1, TABLES_AT_ONCE);
        for some in reads(leaves).chunks(at_once) {
            let tables = std::thread::scope(|scope| {
                // The calling thread reads as well.
                let (mine, others) =
                    some.split_first().ok_or_else(|| Error::new(Kind::Source, "no table to read"))?;
                let others: Vec<_> =
                    others.iter().map(|read| scope.spawn(|| self.table(read.host.clone()))).collect();
                let mut tables = vec![self.table(mine.host.clone())?];
                for other in others {
                    tables.push(other.join().map_err(|_| Error::new(Kind::Source, "a reader panicked"))??);
                }
                Ok::<_, Error>(tables)
            })?;
            for (read, bytes) in some.iter().zip(tables) {
                for leaf in &leaves[read.leaves.clone()] {
                    let entries = read.entries.clone().unwrap_or(0..leaf.table.entries);
                    let range = leaf.table.bytes_of(entries.clone());
                    let cut = index(range.start - read.host.start)..index(range.end - read.host.start);
                    self.shared.image.layout.read_leaf(leaf, entries.start, &bytes[cut], found)?;
                    self.batch_if(found, BATCH)?;
                }
            }
        }
        Ok(())
    }

    fn table(&self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        self.shared.halt.check()?;
        read_range(self.source, range.start, index(range.end - range.start))
            .map_err(|e| Error::from_source(format!("cannot read the table at byte {}", range.start), e))
    }

    fn batch_if(&self, found: &mut TableExtents, enough: usize) -> Result<(), Error> {
        if found.extents.len() >= enough { self.batch(std::mem::take(&mut found.extents)) } else { Ok(()) }
    }

    /// Deals with the zeroes of a batch and sends the rest as jobs.
    fn batch(&self, extents: Vec<Extent>) -> Result<(), Error> {
        let span: u64 = extents.iter().map(|e| e.len).sum();
        let mut data = Vec::with_capacity(extents.len());
        for extent in extents {
            match extent.content {
                Content::Zero => self.shared.zero(extent.guest_range())?,
                Content::Plain { host } => {
                    for range in self.shared.todo(extent.guest_range()) {
                        data.push(Extent {
                            guest: range.start,
                            len: range.end - range.start,
                            content: Content::Plain { host: host + (range.start - extent.guest) },
                        });
                    }
                }
                Content::Packed { .. } => {
                    if !self.shared.todo(extent.guest_range()).is_empty() {
                        data.push(extent);
                    }
                }
            }
        }
        let weight: u64 = data.iter().map(|e| e.len).sum();
        if weight == 0 {
            self.shared.credit(span);
        }
        for mut job in split(data, self.source.part_size().max(PART_ALIGN)) {
            let len: u64 = job.extents.iter().map(|e| e.len).sum();
            let share = u128::from(span) * u128::from(len) / u128::from(weight.max(1));
            job.credit = u64::try_from(share).unwrap_or(0);
            self.send(job)?;
        }
        Ok(())
    }

    fn send(&self, job: Job) -> Result<(), Error> {
        self.jobs.send(job).map_err(|_| Error::new(Kind::Stopped, "the readers have ended"))
    }
}
