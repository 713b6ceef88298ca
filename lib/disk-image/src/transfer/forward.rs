//! One stream from the start: raw bytes as they come; packed formats with tables recognised as they pass by.
//!
//! ```text
//!  chunk s..e of the stream
//!    1. tables in it that are known by now are read, and may make more tables and extents known
//!    2. extents in it go to the workers; what reaches past e is cut (plain) or carried over (packed)
//!    3. what nobody has claimed is kept while any table is still unread: small window, then spool or let go
//!  end of the stream: what is still open is read in another pass (source that can be read again), or from the spool
//! ```
//!
//! A format has at most two levels of tables, so three passes are enough for any order of tables and data.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;

use crossbeam_channel::Sender;

use super::map::{cut_at, host_of, split};
use super::parts::read_job;
use super::run::Shared;
use super::spool::Unclaimed;
use super::work::Chunk;
use crate::detect::Format;
use crate::error::{Error, Kind};
use crate::extent::{Content, Extent, RangeSet};
use crate::format::{Found, Leaf, Scan, Scanned};
use crate::source::{Access, read_full, read_range};
use crate::write::Buf;

const PAGE: u64 = 4096;
const SECTOR: u64 = 512;
/// Tables and extents that may be known but not yet reached.
const OPEN_MAX: usize = 256 << 10;
/// Times a source that can be read again is read.
const PASSES: usize = 4;
/// Longest leaf table read whole: a qcow2 L2 table of a 2 MiB cluster.
const LEAF_MAX: usize = 2 << 20;

/// Reads the image forward; returns when its last chunk is sent.
pub(super) fn forward(shared: &Shared<'_>, chunks: &Sender<Chunk>) -> Result<(), Error> {
    if let Some(scan) = shared.image.layout.scan() {
        scanned(shared, chunks, scan)
    } else if shared.image.layout.root().entries == 0 {
        match shared.image.layout.format() {
            Format::Raw => raw(shared, chunks),
            // A disk of no length: no tables, no data.
            Format::Qcow2 | Format::Vmdk | Format::Vhd | Format::Vhdx | Format::Vdi => {
                Stream::open(shared)?.drain()
            }
        }
    } else {
        tables(shared, chunks)
    }
}

fn failed(e: std::io::Error) -> Error {
    Error::from_source("cannot read the image", e)
}

fn truncated(at: u64, what: &str) -> Error {
    Error::new(Kind::Source, format!("the image ends at byte {at}, before {what}: it is truncated"))
}

/// The stream, a chunk at a time, with the end of the previous chunk carried over where it is wanted again.
struct Stream<'a> {
    shared: &'a Shared<'a>,
    reader: Box<dyn Read + Send>,
    /// Host offset of the next byte that the reader gives.
    at: u64,
    carry: Vec<u8>,
    ended: bool,
}

/// One chunk of the stream: `buf[pad..pad + len]` is host offset `host` on.
struct Piece {
    buf: Buf,
    pad: usize,
    host: u64,
    len: usize,
}

impl Piece {
    fn range(&self) -> Range<u64> {
        self.host..self.host + self.len as u64
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        let from = self.pad + usize::try_from(range.start - self.host).unwrap_or(usize::MAX);
        let to = self.pad + usize::try_from(range.end - self.host).unwrap_or(usize::MAX);
        &self.buf[from..to]
    }
}

impl<'a> Stream<'a> {
    fn open(shared: &'a Shared<'a>) -> Result<Self, Error> {
        let reader = shared.image.source.open(0..u64::MAX).map_err(failed)?;
        Ok(Self { shared, reader, at: 0, carry: Vec::new(), ended: false })
    }

    /// The next chunk; `None` at the end of the stream when nothing is carried over.
    fn next(&mut self) -> Result<Option<Piece>, Error> {
        if self.ended {
            return Ok(None);
        }
        self.shared.rest()?;
        let mut buf = self.shared.chunks.take(&self.shared.halt)?;
        let host = self.at - self.carry.len() as u64;
        let pad = usize::try_from(host % PAGE).unwrap_or(0);
        let from = pad + self.carry.len();
        buf[pad..from].copy_from_slice(&self.carry);
        self.carry.clear();
        // Chunks end at page boundaries of the image, so that plain content is cut where guest pages are.
        let size = buf.len();
        let got = read_full(&mut *self.reader, &mut buf[from..size]).map_err(failed)?;
        self.ended = from + got < size;
        self.at += got as u64;
        if let Some(wire) = self.shared.image.wire_size {
            self.shared.progress.reached(self.shared.progress.read(), wire);
        }
        let len = from + got - pad;
        Ok((len > 0).then_some(Piece { buf, pad, host, len }))
    }

    /// The next chunk starts at `host` again, which lies in `piece`.
    fn carry_from(&mut self, piece: &Piece, host: u64) {
        self.carry.extend_from_slice(piece.bytes(host..piece.range().end));
    }

    /// Reads what is left of a compressed stream: only its end says whether it was whole.
    fn drain(&mut self) -> Result<(), Error> {
        if self.shared.image.compression().is_some() { self.skip_to(u64::MAX) } else { Ok(()) }
    }

    fn skip_to(&mut self, host: u64) -> Result<(), Error> {
        let mut scratch = [0; 16 << 10];
        while self.at < host && !self.ended {
            self.shared.halt.check()?;
            let want = scratch.len().min(usize::try_from(host - self.at).unwrap_or(usize::MAX));
            let got = read_full(&mut *self.reader, &mut scratch[..want]).map_err(failed)?;
            self.ended = got < want;
            self.at += got as u64;
        }
        Ok(())
    }
}

fn send(chunks: &Sender<Chunk>, piece: Piece, pieces: Vec<Extent>) -> Result<(), Error> {
    if pieces.is_empty() {
        return Ok(());
    }
    let Piece { buf, pad, host, len } = piece;
    chunks
        .send(Chunk { buf, pad, host, len, pieces, credit: 0 })
        .map_err(|_| Error::new(Kind::Stopped, "the workers have ended"))
}

fn raw(shared: &Shared<'_>, chunks: &Sender<Chunk>) -> Result<(), Error> {
    let size = shared.image.layout.virtual_size();
    let capacity = shared.image.limits.capacity;
    let mut stream = Stream::open(shared)?;
    while let Some(piece) = stream.next()? {
        let range = piece.range();
        if range.end > size {
            return Err(Error::new(
                Kind::Source,
                format!("the source gives more than the {size} bytes it announced"),
            ));
        }
        // The last sector may be a footer: it is kept back until more has come or the stream has ended. It is a whole
        // page that is kept, so that chunks go on ending where guest pages do.
        let until = if stream.ended {
            let tail = range.end.saturating_sub(SECTOR).max(range.start)..range.end;
            raw_end(shared, piece.bytes(tail), range.end)?
        } else {
            stream.carry_from(&piece, range.end - PAGE);
            range.end - PAGE
        };
        if until > capacity {
            return Err(match size {
                // Where the stream would have ended nobody knows.
                u64::MAX if !stream.ended => Error::too_large_by_now(until, capacity),
                _ => Error::too_large(until, capacity),
            });
        }
        let wanted = range.start..until.max(range.start);
        let pieces = shared
            .todo(wanted)
            .into_iter()
            .map(|r| Extent {
                guest: r.start,
                len: r.end - r.start,
                content: Content::Plain { host: r.start },
            })
            .collect();
        send(chunks, piece, pieces)?;
    }
    if stream.at == 0 {
        raw_end(shared, &[], 0)?;
    }
    Ok(())
}

/// The stream has ended at `at`, with `tail`; gives where the disk ends.
fn raw_end(shared: &Shared<'_>, tail: &[u8], at: u64) -> Result<u64, Error> {
    let size = shared.image.layout.virtual_size();
    if size != u64::MAX && at < size {
        return Err(truncated(at, &format!("its end at byte {size}")));
    }
    shared.raw_end(tail, at)
}

fn scanned(shared: &Shared<'_>, chunks: &Sender<Chunk>, mut scan: Box<dyn Scan>) -> Result<(), Error> {
    let size = shared.image.layout.virtual_size();
    let mut stream = Stream::open(shared)?;
    let mut seen = RangeSet::new();
    let mut at = 0;
    let mut ended = false;
    while !ended {
        let Some(piece) = stream.next()? else {
            return Err(truncated(stream.at, "its end-of-stream marker"));
        };
        let end = piece.range().end;
        at = at.max(piece.host);
        let mut pieces = Vec::new();
        while at < end {
            match scan.next(at, piece.bytes(at..end))? {
                Scanned::Extent { extent, .. } if host_of(&extent).end > end => break,
                Scanned::Extent { extent, next } => {
                    seen.insert(extent.guest_range());
                    if !shared.todo(extent.guest_range()).is_empty() {
                        pieces.push(extent);
                    }
                    at = forwards(at, next)?;
                }
                Scanned::Skip(next) => at = forwards(at, next)?,
                Scanned::More(_) => break,
                Scanned::End => {
                    ended = true;
                    break;
                }
            }
        }
        if seen.len() > OPEN_MAX {
            return Err(too_scattered());
        }
        if at < end && !ended {
            if at == piece.host && stream.ended {
                return Err(truncated(end, "the end of its last grain"));
            }
            stream.carry_from(&piece, at);
            // A stream that has ended still owes the carried bytes a look.
            if stream.ended {
                return Err(truncated(end, "its end-of-stream marker"));
            }
        }
        send(chunks, piece, pieces)?;
        if at > end {
            stream.skip_to(at)?;
        }
    }
    for gap in seen.gaps(0..size) {
        shared.zero(gap)?;
    }
    stream.drain()
}

fn forwards(at: u64, next: u64) -> Result<u64, Error> {
    if next > at { Ok(next) } else { Err(Error::corrupt(format!("a marker at byte {at} points backwards"))) }
}

fn too_scattered() -> Error {
    Error::new(
        Kind::NotStreamable,
        "the image is too fragmented to be read as one stream; serve it with ranges, or convert it with qemu-img",
    )
}

/// What is known of the image and not yet dealt with.
struct Open<'a> {
    shared: &'a Shared<'a>,
    /// Root entries read so far.
    root_next: u64,
    /// Leaf tables by host offset, with the entries of each read so far.
    leaves: BTreeMap<(u64, u64), (Leaf, u64)>,
    /// Extents by host and guest offset.
    extents: BTreeMap<(u64, u64), Extent>,
}

impl<'a> Open<'a> {
    fn tables_left(&self) -> bool {
        self.root_next < self.shared.image.layout.root().entries || !self.leaves.is_empty()
    }

    fn done(&self) -> bool {
        !self.tables_left() && self.extents.is_empty()
    }

    /// Takes what a table yielded.
    fn take(&mut self, found: &mut Found) -> Result<(), Error> {
        for extent in found.extents.drain(..) {
            if extent.content == Content::Zero {
                self.shared.zero(extent.guest_range())?;
                continue;
            }
            let todo = self.shared.todo(extent.guest_range());
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
            self.leaves.insert((leaf.table.host, leaf.index), (leaf, 0));
        }
        if self.extents.len() > OPEN_MAX || self.leaves.len() > OPEN_MAX {
            return Err(too_scattered());
        }
        Ok(())
    }

    /// Reads the tables that lie in `piece`; gives the ranges they took, and where an entry is cut off by its end.
    fn read_tables(
        &mut self,
        piece: &Piece,
        claimed: &mut RangeSet,
        cut: &mut Option<u64>,
    ) -> Result<(), Error> {
        let layout = &*self.shared.image.layout;
        let mut found = Found::default();
        let root = layout.root();
        if self.root_next < root.entries {
            let wanted = root.bytes_of(self.root_next..root.entries);
            if let Some((entries, bytes)) = whole(piece, &wanted, root.entry_len, cut) {
                claimed.insert(bytes.clone());
                layout.read_root(self.root_next, piece.bytes(bytes), &mut found)?;
                self.root_next += entries;
                self.take(&mut found)?;
            }
        }
        let range = piece.range();
        let mut from = (0, 0);
        while let Some((&key, &(leaf, next))) = self.leaves.range(from..(range.end, 0)).next() {
            from = (key.0, key.1 + 1);
            let wanted = leaf.table.bytes_of(next..leaf.table.entries);
            let Some((entries, bytes)) = whole(piece, &wanted, leaf.table.entry_len, cut) else {
                continue;
            };
            claimed.insert(bytes.clone());
            layout.read_leaf(&leaf, next, piece.bytes(bytes), &mut found)?;
            if next + entries == leaf.table.entries {
                self.leaves.remove(&key);
            } else {
                self.leaves.insert(key, (leaf, next + entries));
            }
            self.take(&mut found)?;
        }
        Ok(())
    }

    /// Reads tables that passed before they were known, where their bytes are kept.
    fn read_kept_tables(&mut self, before: u64, unclaimed: &Unclaimed) -> Result<(), Error> {
        let layout = &*self.shared.image.layout;
        let mut found = Found::default();
        let mut from = (0, 0);
        while let Some((&key, &(leaf, next))) = self.leaves.range(from..(before, 0)).next() {
            from = (key.0, key.1 + 1);
            let wanted = leaf.table.bytes_of(next..leaf.table.entries);
            if wanted.end <= before
                && let Some(bytes) = unclaimed.read(&wanted)?
            {
                layout.read_leaf(&leaf, next, &bytes, &mut found)?;
                self.leaves.remove(&key);
                self.take(&mut found)?;
            }
        }
        Ok(())
    }

    /// The extents that lie in `piece`, out of the open ones. `cut` is lowered to where a packed one is cut off.
    fn data_in(
        &mut self,
        piece: &Piece,
        last: bool,
        claimed: &mut RangeSet,
        cut: &mut Option<u64>,
    ) -> Vec<Extent> {
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
                    claimed.insert(host.start..host.end.min(range.end));
                    pieces.push(front);
                    if let Some(rest) = rest {
                        self.extents.insert((range.end, rest.guest), rest);
                    }
                }
                Content::Packed { .. } if host.end <= range.end || last => {
                    claimed.insert(host.start..host.end.min(range.end));
                    pieces.push(extent);
                }
                Content::Packed { .. } | Content::Zero => {
                    *cut = Some(cut.map_or(host.start, |c| c.min(host.start)));
                    self.extents.insert(key, extent);
                }
            }
        }
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

    /// Sends the extents behind `before` whose bytes are kept.
    fn send_kept(&mut self, before: u64, unclaimed: &Unclaimed, chunks: &Sender<Chunk>) -> Result<(), Error> {
        let keys: Vec<_> = self.extents.range(..(before, 0)).map(|(&key, _)| key).collect();
        for key in keys {
            let Some(&extent) = self.extents.get(&key) else {
                continue;
            };
            let room = self.shared.chunks.size() as u64 - PAGE;
            let (front, rest) = cut_at(extent, room);
            let host = host_of(&front);
            let Some(bytes) = unclaimed.read(&(host.start..host.end.min(before)))? else {
                continue;
            };
            self.extents.remove(&key);
            if let Some(rest) = rest {
                self.extents.insert((host_of(&rest).start, rest.guest), rest);
            }
            let mut buf = self.shared.chunks.take(&self.shared.halt)?;
            let pad = usize::try_from(front.guest % PAGE).unwrap_or(0);
            buf[pad..pad + bytes.len()].copy_from_slice(&bytes);
            send(chunks, Piece { buf, pad, host: host.start, len: bytes.len() }, vec![front])?;
        }
        Ok(())
    }
}

/// The whole entries of `wanted` that lie in `piece`, from its first on: how many, and their bytes. An entry that the
/// piece's end cuts off lowers `cut`.
fn whole(
    piece: &Piece,
    wanted: &Range<u64>,
    entry_len: u32,
    cut: &mut Option<u64>,
) -> Option<(u64, Range<u64>)> {
    let range = piece.range();
    if wanted.start < range.start || wanted.start >= range.end {
        return None;
    }
    let len = u64::from(entry_len);
    let entries = (wanted.end.min(range.end) - wanted.start) / len;
    let bytes = wanted.start..wanted.start + entries * len;
    if bytes.end < wanted.end && bytes.end < range.end {
        *cut = Some(cut.map_or(bytes.end, |c| c.min(bytes.end)));
    }
    (entries > 0).then_some((entries, bytes))
}

fn tables(shared: &Shared<'_>, chunks: &Sender<Chunk>) -> Result<(), Error> {
    let once = shared.image.source.facts().access == Access::Once;
    let mut open = Open { shared, root_next: 0, leaves: BTreeMap::new(), extents: BTreeMap::new() };
    for pass in 0..PASSES {
        let mut unclaimed = Unclaimed::new(shared.spool, once);
        let before = (open.root_next, open.leaves.len(), open.extents.len());
        let end = one_pass(shared, &mut open, &mut unclaimed, chunks)?;
        if open.done() {
            return Ok(());
        }
        if open.root_next < shared.image.layout.root().entries && end <= shared.image.layout.root().host {
            return Err(truncated(end, "its root table"));
        }
        check_inside(&open, end)?;
        if once {
            return rest_from_spool(shared, open, unclaimed, end, chunks);
        }
        if pass > 0 && before == (open.root_next, open.leaves.len(), open.extents.len()) {
            break;
        }
        tracing::info!(pass = pass + 1, "the image's tables come after its data: reading it again");
    }
    Err(Error::corrupt("the image's tables cannot be read in any order; they may overlap its data"))
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
        let mut claimed = RangeSet::new();
        let mut cut = None;
        open.read_tables(&piece, &mut claimed, &mut cut)?;
        loop {
            let known = (open.leaves.len(), open.extents.len());
            open.read_kept_tables(range.start, unclaimed)?;
            open.read_tables(&piece, &mut claimed, &mut cut)?;
            if known == (open.leaves.len(), open.extents.len()) {
                break;
            }
        }
        open.cut_behind(range.start);
        open.send_kept(range.start, unclaimed, chunks)?;
        let pieces = open.data_in(&piece, stream.ended, &mut claimed, &mut cut);
        let until = cut.filter(|_| !stream.ended).unwrap_or(range.end);
        if open.tables_left() {
            for gap in claimed.gaps(range.start..until) {
                unclaimed.keep(gap.start, piece.bytes(gap.clone()))?;
            }
        } else {
            unclaimed.clear();
        }
        if until < range.end {
            stream.carry_from(&piece, until);
        }
        send(chunks, piece, pieces)?;
        if open.done() {
            stream.drain()?;
            break;
        }
    }
    Ok(stream.at)
}

/// Nothing that is still open may lie beyond the stream's end.
fn check_inside(open: &Open<'_>, end: u64) -> Result<(), Error> {
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
    shared: &Shared<'_>,
    mut open: Open<'_>,
    unclaimed: Unclaimed,
    end: u64,
    chunks: &Sender<Chunk>,
) -> Result<(), Error> {
    let gone = || {
        Error::new(
            Kind::NotStreamable,
            "the image's tables come after its data, and the source can be read only once; give room to spool it, or \
             convert it first: qemu-img convert -O qcow2 -c IMAGE NEW",
        )
    };
    if unclaimed.lost() {
        return Err(gone());
    }
    let Some(source) = unclaimed.into_source(end)? else {
        return Err(gone());
    };
    let layout = &*shared.image.layout;
    let mut found = Found::default();
    while let Some((_, (leaf, next))) = open.leaves.pop_first() {
        let range = leaf.table.bytes_of(next..leaf.table.entries);
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        if len > LEAF_MAX || !source.holds(&range) {
            return Err(gone());
        }
        let table = read_range(&source, range.start, len)
            .map_err(|e| Error::from_source("cannot read the spool", e))?;
        layout.read_leaf(&leaf, next, &table, &mut found)?;
        open.take(&mut found)?;
    }
    let data: Vec<_> = std::mem::take(&mut open.extents).into_values().collect();
    if data.iter().any(|e| !source.holds(&(host_of(e).start..host_of(e).end.min(end)))) {
        return Err(gone());
    }
    for job in split(data, 8 << 20) {
        read_job(shared, &source, job, chunks)?;
    }
    Ok(())
}
