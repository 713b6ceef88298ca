//! Tables first: reads the root and leaf tables in slices and turns them into jobs, the ranges of the image that
//! readers fetch. For sources with ranges, and for raw images in independent blocks.
//!
//! A batch is at most [`BATCH`] extents, in guest order from batch to batch and in host order inside one, so that
//! neither a large nor a fragmented map is ever whole in memory.

use std::ops::Range;

use crossbeam_channel::Sender;

use super::plan::Way;
use super::run::Shared;
use crate::error::{Error, Kind};
use crate::extent::{Codec, Content, Extent};
use crate::format::{Found, Leaf, apart};
use crate::source::{Access, Source, read_range};

/// Extents mapped before their data is fetched.
const BATCH: usize = 64 << 10;
/// Bytes of tables read at once.
const TABLE_READ: u64 = 512 << 10;
/// Reads of leaf tables at once.
const TABLES_AT_ONCE: usize = 4;
/// Unwanted bytes that are cheaper to read than to skip.
pub(super) const GAP: u64 = 128 << 10;
/// Guest bytes of a raw image per query for holes.
const RAW_SLICE: u64 = 1 << 30;
/// Parts of plain extents end at multiples of this guest size.
const PART_ALIGN: u64 = 1 << 20;

/// A range of the image for one reader, and the extents in it, by host offset.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) host: Range<u64>,
    pub(super) extents: Vec<Extent>,
    /// Share of the virtual disk that is done with this job.
    pub(super) credit: u64,
}

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
        let mut found = Found::default();
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
                    apart(layout.format(), one, other)?;
                }
            }
            self.leaves(&leaves, &mut found)?;
            self.batch_if(&mut found, BATCH)?;
            first = some.end;
        }
        self.batch_if(&mut found, 1)
    }

    /// Reads leaf tables, a few at once as each read may be a round trip to a far server.
    fn leaves(&self, leaves: &[Leaf], found: &mut Found) -> Result<(), Error> {
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

    fn batch_if(&self, found: &mut Found, enough: usize) -> Result<(), Error> {
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

/// One read of leaf tables.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableRead {
    /// Where in the image; at most [`TABLE_READ`] long.
    pub(super) host: Range<u64>,
    /// Which of the leaves are in it.
    pub(super) leaves: Range<usize>,
    /// The entries, when it is a slice of a single long leaf.
    pub(super) entries: Option<Range<u64>>,
}

/// The reads that fetch `leaves`, which are sorted by host offset: neighbours together, long ones in slices.
pub(super) fn reads(leaves: &[Leaf]) -> Vec<TableRead> {
    let mut reads: Vec<TableRead> = Vec::new();
    for (i, leaf) in leaves.iter().enumerate() {
        let all = leaf.table.bytes_of(0..leaf.table.entries);
        if all.end - all.start > TABLE_READ {
            let per_read = TABLE_READ / u64::from(leaf.table.entry_len);
            let mut first = 0;
            while first < leaf.table.entries {
                let some = first..leaf.table.entries.min(first + per_read);
                first = some.end;
                let host = leaf.table.bytes_of(some.clone());
                reads.push(TableRead { host, leaves: i..i + 1, entries: Some(some) });
            }
            continue;
        }
        match reads.last_mut() {
            Some(TableRead { host, leaves, entries: None })
                if all.start <= host.end.saturating_add(GAP / 2)
                    && all.end.max(host.end) - host.start <= TABLE_READ =>
            {
                host.end = host.end.max(all.end);
                leaves.end = i + 1;
            }
            _ => reads.push(TableRead { host: all, leaves: i..i + 1, entries: None }),
        }
    }
    reads
}

/// `usize` of a length that is bounded by [`TABLE_READ`].
fn index(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Sorts extents by host offset and cuts them into parts of about `part` bytes.
pub(super) fn split(mut data: Vec<Extent>, part: u64) -> Vec<Job> {
    data.sort_unstable_by_key(|e| (host_of(e).start, e.guest));
    trim_grains(&mut data);
    let mut jobs: Vec<Job> = Vec::new();
    for mut extent in data {
        loop {
            let host = host_of(&extent);
            let fits = jobs.last().is_some_and(|job| {
                // Before the part's start lies what overlaps an extent that was cut.
                let at = host.start.checked_sub(job.host.start);
                host.start <= job.host.end.saturating_add(GAP) && at.is_some_and(|at| at < part)
            });
            if !fits {
                jobs.push(Job { host: host.start..host.start, extents: Vec::new(), credit: 0 });
            }
            let Some(job) = jobs.last_mut() else { break };
            let room = part - (host.start - job.host.start);
            let cut = match extent.content {
                Content::Plain { .. } if extent.len > room => {
                    // At least one aligned piece, so that every turn goes on.
                    let end = (extent.guest + room) / PART_ALIGN * PART_ALIGN;
                    end.checked_sub(extent.guest).filter(|&len| len > 0).unwrap_or(room.max(PART_ALIGN))
                }
                Content::Plain { .. } | Content::Packed { .. } | Content::Zero => extent.len,
            };
            let (front, rest) = cut_at(extent, cut);
            job.host.end = job.host.end.max(host_of(&front).end);
            job.extents.push(front);
            match rest {
                Some(rest) => extent = rest,
                None => break,
            }
        }
    }
    jobs
}

/// A grain's packed length is known only as an upper bound; no grain reaches into the next one.
fn trim_grains(data: &mut [Extent]) {
    let mut next = u64::MAX;
    let mut same = u64::MAX;
    for extent in data.iter_mut().rev() {
        if let Content::Packed { host, len, codec: Codec::VmdkGrain } = &mut extent.content {
            let until = if *host < same { same } else { next };
            *len = (*len).min(u32::try_from(until.saturating_sub(*host)).unwrap_or(u32::MAX));
        }
        let start = host_of(extent).start;
        if start < same {
            next = same;
            same = start;
        }
    }
}

/// The host range of an extent that has one; empty for zeroes.
pub(super) fn host_of(extent: &Extent) -> Range<u64> {
    extent.host_range().unwrap_or(0..0)
}

/// Cuts a plain extent after `len` bytes.
pub(super) fn cut_at(extent: Extent, len: u64) -> (Extent, Option<Extent>) {
    match extent.content {
        Content::Plain { host } if len < extent.len => {
            let rest = Extent {
                guest: extent.guest + len,
                len: extent.len - len,
                content: Content::Plain { host: host + len },
            };
            (Extent { len, ..extent }, Some(rest))
        }
        Content::Plain { .. } | Content::Packed { .. } | Content::Zero => (extent, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(guest: u64, len: u64, host: u64) -> Extent {
        Extent { guest, len, content: Content::Plain { host } }
    }

    #[test]
    fn parts_cover_every_byte_once_and_stay_near_their_size() {
        let data =
            vec![plain(64 << 20, 100 << 20, 1 << 20), plain(0, 3 << 20, 200 << 20), plain(5 << 20, 512, 7)];
        let total: u64 = data.iter().map(|e| e.len).sum();
        let jobs = split(data, 8 << 20);
        assert_eq!(jobs.iter().flat_map(|j| &j.extents).map(|e| e.len).sum::<u64>(), total);
        for job in &jobs {
            assert!(job.host.end - job.host.start <= 9 << 20, "{:?}", job.host);
            for e in &job.extents {
                let host = host_of(e);
                assert!(job.host.start <= host.start && host.end <= job.host.end);
            }
        }
        assert!(jobs.len() >= 14);
    }

    #[test]
    fn extents_that_overlap_are_cut_too() {
        let data = vec![plain(0, 20 << 20, 0), plain(32 << 20, 4 << 20, 1 << 20)];
        let jobs = split(data, 8 << 20);
        let lengths = jobs.iter().flat_map(|job| &job.extents).map(|extent| extent.len);
        assert_eq!(lengths.sum::<u64>(), 24 << 20);
        for job in &jobs {
            assert!(
                job.host.start <= job.host.end && job.host.end - job.host.start <= 9 << 20,
                "{:?}",
                job.host
            );
        }
    }

    #[test]
    fn every_entry_of_every_leaf_is_read_once_and_neighbours_together() {
        let leaf = |index, host, entries| Leaf {
            index,
            table: crate::format::Table { host, entries, entry_len: 8 },
        };
        // Two neighbours, a far one, a long one, and one right behind it.
        let long = 3 * TABLE_READ / 8 + 5;
        let leaves = [
            leaf(0, 65_536, 8192),
            leaf(1, 131_072, 8192),
            leaf(2, 64 << 20, 8192),
            leaf(3, 65 << 20, long),
            leaf(4, (65 << 20) + long * 8, 10),
        ];
        let reads = reads(&leaves);
        assert_eq!(reads[0], TableRead { host: 65_536..196_608, leaves: 0..2, entries: None });
        assert_eq!(reads.len(), 7);
        for (i, leaf) in leaves.iter().enumerate() {
            let mut at = 0;
            for read in reads.iter().filter(|read| read.leaves.contains(&i)) {
                let entries = read.entries.clone().unwrap_or(0..leaf.table.entries);
                let host = leaf.table.bytes_of(entries.clone());
                assert!(read.host.start <= host.start && host.end <= read.host.end, "{read:?}");
                assert!(read.host.end - read.host.start <= TABLE_READ);
                assert_eq!(entries.start, at);
                at = entries.end;
            }
            assert_eq!(at, leaf.table.entries, "leaf {i}");
        }
    }

    #[test]
    fn grains_end_where_the_next_one_starts() {
        let grain = |guest, host| Extent {
            guest,
            len: 65536,
            content: Content::Packed { host, len: 70000, codec: Codec::VmdkGrain },
        };
        let jobs = split(
            vec![grain(0, 512), grain(65536, 1024), grain(131_072, 1024), grain(196_608, 90_000)],
            1 << 20,
        );
        let lens: Vec<_> = jobs[0].extents.iter().map(|e| host_of(e).end - host_of(e).start).collect();
        assert_eq!(lens, [512, 70000, 70000, 70000]);
    }
}
