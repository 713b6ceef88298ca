//! An image with tables, read as one stream: tables are recognised as they pass by.
//!
//! ```text
//!  chunk s..e of the stream
//!    1. tables in it that are known by now are read, and may make more tables and extents known
//!    2. extents in it go to the workers; what reaches past e is cut (plain) or carried over (packed)
//!    3. unclaimed bytes are kept while any table is still unread: small window, then spool or let go
//!    4. extents behind it that became known by its tables go to the workers if their bytes were kept
//!  end of the stream: what is still open is read in another pass (source that can be read again), or from the spool
//! ```
//!
//! A format has at most two levels of tables, so three passes are enough for any order of tables and data, unless more
//! is known than memory is for: then tables are left for another pass, or for the spool.

use std::collections::BTreeMap;
use std::ops::Range;

use crossbeam_channel::Sender;

use super::parts::read_job;
use super::pipeline::Shared;
use super::reads::{cut_at, host_of, split};
use super::spool::{SpoolSource, Unclaimed};
use super::stream::{PAGE, Piece, Stream, send, truncated};
use super::work::Chunk;
use crate::error::{Error, Kind};
use crate::extent::{Content, Extent, RangeSet};
use crate::format::{Leaf, Table, TableExtents, check_disjoint};
use crate::source::{Access, read_range};

/// Extents that may be known but not yet reached: 15 MiB.
const EXTENTS_MAX: usize = 192 << 10;
/// Leaf tables that may be known but not yet read.
const LEAVES_MAX: usize = 64 << 10;
/// Entries read at once; each may make 32 extents known.
const SLICE: u64 = 2048;
/// Times a source that can be read again is read.
const PASSES: usize = 16;
/// Packed extents end, according to a table, at such a multiple; two may share the one between them.
const SECTOR: u64 = 512;
/// Extents read from the spool in one go.
const BATCH: usize = 64 << 10;

/// Extents that are known and not yet processed.
struct Open<'a> {
    shared: &'a Shared<'a>,
    /// Root entries read so far.
    root_next: u64,
    /// Leaf tables by host offset, with the entries of each read so far.
    leaves: BTreeMap<(u64, u64), (Leaf, u64)>,
    /// Extents by host and guest offset.
    extents: BTreeMap<(u64, u64), Extent>,
    /// Extents became known since those behind the stream were looked for in what is kept.
    fresh: bool,
    /// Entries read and extents sent: two passes with the same number would be followed by another such.
    steps: u64,
}

/// Claimed parts of a chunk.
#[derive(Default)]
struct Claimed {
    /// By tables, by plain extents, and by packed ones but for their last sector.
    firm: RangeSet,
    /// Last sectors of packed extents, where another may begin, or lie.
    seams: RangeSet,
    /// Where the next chunk has to start: what begins there is cut off by this one's end.
    cut: Option<u64>,
}

impl Claimed {
    fn cut_at(&mut self, host: u64) {
        self.cut = Some(self.cut.map_or(host, |cut| cut.min(host)));
    }
}

impl<'a> Open<'a> {
    fn new(shared: &'a Shared<'a>) -> Self {
        let (leaves, extents) = (BTreeMap::new(), BTreeMap::new());
        Self { shared, root_next: 0, leaves, extents, fresh: false, steps: 0 }
    }

    fn root(&self) -> Table {
        self.shared.image.layout.root()
    }

    fn tables_left(&self) -> bool {
        self.root_next < self.root().entries || !self.leaves.is_empty()
    }

    fn done(&self) -> bool {
        !self.tables_left() && self.extents.is_empty()
    }

    /// Whether there is memory for what more root entries, or leaf entries, would make known.
    fn room(&self, root: bool) -> bool {
        self.extents.len() < EXTENTS_MAX && !(root && self.leaves.len() >= LEAVES_MAX)
    }

    /// Merges what a table yielded.
    fn merge(&mut self, found: &mut TableExtents) -> Result<(), Error> {
        for extent in found.extents.drain(..) {
            if extent.content == Content::Zero {
                self.shared.zero(extent.guest_range())?;
                continue;
            }
            let todo = self.shared.todo(extent.guest_range());
            self.fresh |= !todo.is_empty();
            match extent.content {
                Content::Plain { host } => {
                    for range in todo {
                        let host = host + (range.start - extent.guest);
                        let part = Extent {
                            guest: range.start,
                            len: range.end - range.start,
                            content: Content::Plain { host },
                        };
                        self.extents.insert((host, part.guest), part);
                    }
                }
                Content::Packed { host, .. } if !todo.is_empty() => {
                    self.extents.insert((host, extent.guest), extent);
                }
                Content::Packed { .. } | Content::Zero => {}
            }
        }
        for leaf in found.leaves.drain(..) {
            let key = (leaf.table.host, leaf.index);
            let near = [self.leaves.range(..key).next_back(), self.leaves.range(key..).next()];
            for (_, (other, _)) in near.into_iter().flatten() {
                check_disjoint(self.shared.image.layout.format(), &leaf, other)?;
            }
            self.leaves.insert(key, (leaf, 0));
        }
        Ok(())
    }

    /// Reads entries of the root table, or of `leaf`, from `first` on out of `bytes`, whole entries, as far as there is
    /// memory for what they make known. Gives the number of the entry to go on at.
    fn read_entries(&mut self, leaf: Option<&Leaf>, first: u64, bytes: &[u8]) -> Result<u64, Error> {
        let layout = &*self.shared.image.layout;
        let entry_len = leaf.map_or(self.root(), |leaf| leaf.table).entry_len as usize;
        let mut found = TableExtents::default();
        let mut next = first;
        for slice in bytes.chunks(entry_len * usize::try_from(SLICE).unwrap_or(1)) {
            if !self.room(leaf.is_none()) {
                break;
            }
            match leaf {
                Some(leaf) => layout.read_leaf(leaf, next, slice, &mut found)?,
                None => layout.read_root(next, slice, &mut found)?,
            }
            self.merge(&mut found)?;
            next += (slice.len() / entry_len) as u64;
        }
        self.steps += next - first;
        Ok(next)
    }

    /// Sets how far a leaf table is read.
    fn leaf_read(&mut self, key: (u64, u64), leaf: Leaf, next: u64) {
        if next == leaf.table.entries {
            self.leaves.remove(&key);
        } else {
            self.leaves.insert(key, (leaf, next));
        }
    }

    /// Reads the tables that lie in `piece`.
    fn read_tables(&mut self, piece: &Piece, claimed: &mut Claimed) -> Result<(), Error> {
        let root = self.root();
        if self.root_next < root.entries
            && let Some(bytes) = whole(piece, &root, self.root_next, claimed)
        {
            let next = self.read_entries(None, self.root_next, piece.bytes(bytes))?;
            claimed.firm.insert(root.bytes_of(self.root_next..next));
            self.root_next = next;
        }
        let mut from = (0, 0);
        while let Some((&key, &(leaf, next))) = self.leaves.range(from..(piece.range().end, 0)).next() {
            from = (key.0, key.1 + 1);
            if let Some(bytes) = whole(piece, &leaf.table, next, claimed) {
                let read = self.read_entries(Some(&leaf), next, piece.bytes(bytes))?;
                claimed.firm.insert(leaf.table.bytes_of(next..read));
                self.leaf_read(key, leaf, read);
            }
        }
        Ok(())
    }

    /// Reads tables that passed before they were known, where their bytes are kept.
    fn read_kept_tables(&mut self, before: u64, unclaimed: &Unclaimed) -> Result<(), Error> {
        let mut from = (unclaimed.kept_from().min(before), 0);
        while let Some((&key, &(leaf, next))) = self.leaves.range(from..(before, 0)).next() {
            from = (key.0, key.1 + 1);
            let wanted = leaf.table.bytes_of(next..leaf.table.entries);
            if !self.room(false) || wanted.end > before || unclaimed.kept_until(&wanted) < wanted.end {
                continue;
            }
            let mut bytes = vec![0; usize::try_from(wanted.end - wanted.start).unwrap_or(0)];
            unclaimed.read(&wanted, &mut bytes)?;
            let read = self.read_entries(Some(&leaf), next, &bytes)?;
            self.leaf_read(key, leaf, read);
        }
        Ok(())
    }

    /// The extents that lie in `piece`, out of the open ones.
    fn data_in(&mut self, piece: &Piece, last: bool, claimed: &mut Claimed) -> Vec<Extent> {
        let range = piece.range();
        let mut pieces = Vec::new();
        // Plain extents that began earlier have been cut to start here, or lie behind for good.
        let keys: Vec<_> =
            self.extents.range((range.start, 0)..(range.end, 0)).map(|(&key, _)| key).collect();
        for key in keys {
            let Some(extent) = self.extents.remove(&key) else {
                continue;
            };
            let host = host_of(&extent);
            match extent.content {
                Content::Plain { .. } => {
                    let (front, rest) = cut_at(extent, range.end - host.start);
                    claimed.firm.insert(host.start..host.end.min(range.end));
                    pieces.push(front);
                    if let Some(rest) = rest {
                        self.extents.insert((range.end, rest.guest), rest);
                    }
                }
                Content::Packed { .. } if host.end <= range.end || last => {
                    let seam = surely_until(&extent);
                    claimed.firm.insert(host.start..seam.min(range.end));
                    claimed.seams.insert(seam..host.end.min(range.end));
                    pieces.push(extent);
                }
                Content::Packed { .. } | Content::Zero => {
                    claimed.cut_at(host.start);
                    self.extents.insert(key, extent);
                }
            }
        }
        self.steps += pieces.len() as u64;
        pieces
    }

    /// Plain extents that start before `at` and go past it are cut there, so that their rest is met in the stream.
    fn cut_behind(&mut self, at: u64) {
        let behind: Vec<_> = self
            .extents
            .range(..(at, 0))
            .filter(|(_, e)| host_of(e).end > at)
            .map(|(&key, &e)| (key, e))
            .collect();
        for (key, extent) in behind {
            if let (front, Some(rest)) = cut_at(extent, at - key.0) {
                self.extents.insert(key, front);
                self.extents.insert((at, rest.guest), rest);
            }
        }
    }

    /// The stream has ended at `end`: what the unit there has behind the end reads as zero, where the format says so.
    fn cut_at_end(&mut self, end: u64) -> Result<(), Error> {
        let layout = &self.shared.image.layout;
        if !layout.cut_unit_is_zero() {
            return Ok(());
        }
        self.cut_behind(end);
        let unit = end..end.next_multiple_of(layout.unit());
        let rests: Vec<_> =
            self.extents.range((unit.start, 0)..(unit.end, 0)).map(|(&key, &extent)| (key, extent)).collect();
        for (key, extent) in rests {
            if matches!(extent.content, Content::Plain { .. }) && host_of(&extent).end <= unit.end {
                self.extents.remove(&key);
                self.shared.zero(extent.guest_range())?;
                self.steps += 1;
            }
        }
        Ok(())
    }

    /// Sends the kept extents before `before`. An extent that continues past it is looked up again.
    fn send_kept(
        &mut self,
        before: u64,
        ended: bool,
        unclaimed: &Unclaimed,
        chunks: &Sender<Chunk>,
    ) -> Result<(), Error> {
        let from = unclaimed.kept_from().min(before);
        let keys: Vec<_> = self.extents.range((from, 0)..(before, 0)).map(|(&key, _)| key).collect();
        self.fresh = false;
        for key in keys {
            let mut left = self.extents.get(&key).copied();
            while let Some(extent) = left {
                let (front, rest) = cut_at(extent, self.shared.chunks.size() as u64 - PAGE);
                let host = host_of(&front);
                if host.end > before && !ended {
                    self.fresh = true;
                    break;
                }
                let until = unclaimed.kept_until(&(host.start..host.end.min(before)));
                if until < surely_until(&front).min(before) {
                    break;
                }
                self.extents.remove(&(host.start, front.guest));
                if let Some(rest) = rest {
                    self.extents.insert((host_of(&rest).start, rest.guest), rest);
                }
                left = rest;
                let mut buf = self.shared.chunks.acquire(&self.shared.halt)?;
                let pad = usize::try_from(front.guest % PAGE).unwrap_or(0);
                let len = usize::try_from(until - host.start).unwrap_or(usize::MAX);
                unclaimed.read(&(host.start..until), &mut buf[pad..pad + len])?;
                self.steps += 1;
                send(chunks, Piece { buf, pad, host: host.start, len }, vec![front])?;
            }
        }
        Ok(())
    }
}

/// Up to where an extent surely reaches. A packed one ends somewhere in its last sector, where the next may begin.
fn surely_until(extent: &Extent) -> u64 {
    let host = host_of(extent);
    match extent.content {
        Content::Packed { .. } => (host.end.saturating_sub(1) / SECTOR * SECTOR).max(host.start),
        Content::Plain { .. } | Content::Zero => host.end,
    }
}

/// The bytes of the whole entries from `next` on that lie in `piece`, if the first one begins in it. An entry that the
/// piece's end cuts off is to be carried over.
fn whole(piece: &Piece, table: &Table, next: u64, claimed: &mut Claimed) -> Option<Range<u64>> {
    let range = piece.range();
    let wanted = table.bytes_of(next..table.entries);
    if wanted.start < range.start || wanted.start >= range.end {
        return None;
    }
    let len = u64::from(table.entry_len);
    let bytes = wanted.start..wanted.start + (wanted.end.min(range.end) - wanted.start) / len * len;
    if bytes.end < wanted.end && bytes.end < range.end {
        claimed.cut_at(bytes.end);
    }
    Some(bytes).filter(|bytes| !bytes.is_empty())
}

/// Reads an image with tables.
pub(super) fn tables(shared: &Shared<'_>, chunks: &Sender<Chunk>) -> Result<(), Error> {
    let once = shared.image.source.facts().access == Access::Once;
    let mut open = Open::new(shared);
    for pass in 0..PASSES {
        let mut unclaimed = Unclaimed::new(shared.spool, once);
        let before = open.steps;
        let end = one_pass(shared, &mut open, &mut unclaimed, chunks)?;
        if !open.done() {
            open.cut_at_end(end)?;
        }
        if open.done() {
            return Ok(());
        }
        check_inside(&open, end)?;
        if once {
            return rest_from_spool(&mut open, unclaimed, end, chunks);
        }
        if open.steps == before {
            return Err(Error::corrupt(
                "the image's tables cannot be read in any order; they may overlap its data",
            ));
        }
        tracing::info!(pass = pass + 1, "the image's tables come after its data: reading it again");
    }
    Err(Error::new(
        Kind::NotStreamable,
        format!("the image is too fragmented: {PASSES} times reading it as one stream are not enough"),
    ))
}

/// Reads the stream once; gives where it ended, or where there was nothing left to look for.
fn one_pass(
    shared: &Shared<'_>,
    open: &mut Open<'_>,
    unclaimed: &mut Unclaimed,
    chunks: &Sender<Chunk>,
) -> Result<u64, Error> {
    let mut stream = Stream::open(shared)?;
    while let Some(piece) = stream.next()? {
        let range = piece.range();
        let mut claimed = Claimed::default();
        loop {
            let known = open.steps;
            open.read_tables(&piece, &mut claimed)?;
            open.read_kept_tables(range.start, unclaimed)?;
            if known == open.steps {
                break;
            }
        }
        if open.fresh {
            open.cut_behind(range.start);
        }
        let pieces = open.data_in(&piece, stream.ended, &mut claimed);
        let until = claimed.cut.filter(|_| !stream.ended).unwrap_or(range.end);
        if open.tables_left() || open.fresh {
            for gap in claimed.firm.gaps(range.start..until) {
                let bytes = piece.bytes(gap.clone());
                if claimed.seams.contains(&gap) {
                    unclaimed.keep_seam(gap.start, bytes)?;
                } else {
                    unclaimed.keep(gap.start, bytes)?;
                }
            }
        }
        if until < range.end {
            stream.carry_from(&piece, until);
        }
        send(chunks, piece, pieces)?;
        if open.fresh {
            open.send_kept(until, stream.ended, unclaimed, chunks)?;
        }
        if !open.tables_left() && !open.fresh && open.extents.range(..(until, 0)).next().is_none() {
            unclaimed.clear();
        }
        if open.done() {
            stream.drain()?;
            break;
        }
    }
    Ok(stream.at)
}

/// Nothing that is still open may lie beyond the stream's end.
fn check_inside(open: &Open<'_>, end: u64) -> Result<(), Error> {
    let root = open.root();
    if open.root_next < root.entries && root.bytes_of(0..root.entries).end > end {
        return Err(truncated(end, "the end of its root table"));
    }
    for extent in open.extents.values() {
        let host = host_of(extent);
        let outside = match extent.content {
            Content::Plain { .. } => host.end > end,
            Content::Packed { .. } | Content::Zero => host.start >= end,
        };
        if outside {
            return Err(truncated(end, &format!("the data at byte {}", host.start)));
        }
    }
    for (leaf, _) in open.leaves.values() {
        let range = leaf.table.bytes_of(0..leaf.table.entries);
        if range.end > end {
            return Err(truncated(end, &format!("the end of the table at byte {}", range.start)));
        }
    }
    Ok(())
}

/// A stream that is gone: what is still open must be in the spool.
fn rest_from_spool(
    open: &mut Open<'_>,
    unclaimed: Unclaimed,
    end: u64,
    chunks: &Sender<Chunk>,
) -> Result<(), Error> {
    let gone = unclaimed.gone();
    let source = unclaimed.into_source(end);
    let spooled = Spooled { source: &source, gone: &gone, end };
    spooled.data(open, chunks)?;
    loop {
        if let Some((&key, &(leaf, next))) = open.leaves.first_key_value() {
            let bytes = spooled.entries(&leaf.table, next)?;
            let read = open.read_entries(Some(&leaf), next, &bytes)?;
            open.leaf_read(key, leaf, read);
        } else if open.root_next < open.root().entries {
            let bytes = spooled.entries(&open.root(), open.root_next)?;
            open.root_next = open.read_entries(None, open.root_next, &bytes)?;
        } else {
            return spooled.data(open, chunks);
        }
        if open.extents.len() >= BATCH {
            spooled.data(open, chunks)?;
        }
    }
}

/// The spool of a stream that has ended at byte `end`.
struct Spooled<'a> {
    source: &'a SpoolSource,
    gone: &'a Error,
    end: u64,
}

impl Spooled<'_> {
    fn gone(&self) -> Error {
        Error::new(self.gone.kind(), self.gone.to_string())
    }

    /// Some entries of a table, from `next` on.
    fn entries(&self, table: &Table, next: u64) -> Result<Vec<u8>, Error> {
        let range = table.bytes_of(next..table.entries.min(next + SLICE));
        if self.source.kept_until(&range) < range.end {
            return Err(self.gone());
        }
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        read_range(self.source, range.start, len).map_err(|e| Error::from_source("cannot read the spool", e))
    }

    /// Sends all extents that are known.
    fn data(&self, open: &mut Open<'_>, chunks: &Sender<Chunk>) -> Result<(), Error> {
        open.cut_at_end(self.end)?;
        let data: Vec<_> = std::mem::take(&mut open.extents).into_values().collect();
        for extent in &data {
            let host = host_of(extent);
            let surely = surely_until(extent).min(self.end);
            if self.source.kept_until(&(host.start..surely)) < surely {
                return Err(self.gone());
            }
        }
        for job in split(data, 8 << 20) {
            read_job(open.shared, self.source, job, chunks)?;
        }
        Ok(())
    }
}
