//! xz (the .xz file format 1.2.1): streams one after another, decoded by liblzma.
//!
//! [`Reader`] decodes from the start, for sources without ranges. With ranges and a size, [`Map`] is read backwards
//! from the streams' footers and indexes, and [`Blocks`] decodes any block by itself:
//!
//! ```text
//!  file     header │ block 0 │ block 1 │ … │ index │ footer │ padding │ header │ …
//!  decoder  header │ block 1 │ index of that one block │ footer        (the last two written here)
//! ```
//!
//! The decoder compares what it saw with the index it is given, so reaching that made-up footer proves that the block
//! had the packed and unpacked sizes of the file's index and that its check value was right. The last byte of a block
//! is handed out only after that.
//!
//! Memory: one dictionary per reader, no block is ever held. Not here: liblzma's threaded decoder, which holds whole
//! blocks.

use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;

use liblzma::stream::{Action, CONCATENATED, Status, Stream, TELL_UNSUPPORTED_CHECK};

use super::{Input, Limits, Part, bytes, damaged, readahead, window_refused};
use crate::error::{Error, Kind};
use crate::source::{Access, Facts, Source, read_range};

/// Length of a stream header and of a stream footer.
const EDGE: usize = 12;

/// Longest block header (section 3.1.1).
const BLOCK_HEADER_MAX: usize = 1024;

/// Largest index taken; a stream with a longer one is decoded from the start. Records take 4 to 18 bytes.
const INDEX_MAX: u64 = 4 << 20;

/// Most blocks taken, all streams together; 24 bytes of memory each. With 24 MiB per block that is 6 TiB.
const BLOCKS_MAX: usize = 256 << 10;

/// Most streams taken; each costs up to three reads.
const STREAMS_MAX: usize = 64;

/// Most stream padding looked through, in bytes, per stream.
const PADDING_MAX: u64 = 1 << 20;

/// Memory of a decoder in addition to its dictionary; liblzma counts well below it.
const OVERHEAD: u64 = 512 << 10;

/// Largest value of a variable-length integer (section 1.2).
const VLI_MAX: u64 = u64::MAX / 2;

/// Reads the streams of one .xz file from its start.
pub(super) struct Reader {
    input: Input,
    decoder: Stream,
    window_limit: u64,
    begun: bool,
    ended: bool,
}

impl Reader {
    /// A reader of the streams that begin at `input`, with no dictionary above `window_limit` bytes.
    pub(super) fn new(input: Input, window_limit: u64) -> io::Result<Self> {
        let decoder = new_decoder(window_limit)?;
        Ok(Self { input, decoder, window_limit, begun: false, ended: false })
    }

    /// Reads the dictionary size from the first block's header, for an error message; the decoder's
    /// own limit holds for all blocks.
    fn begin(&mut self) -> io::Result<()> {
        let front = self.input.peek(EDGE + BLOCK_HEADER_MAX)?;
        if let Some(asked) = front.get(EDGE..).and_then(dictionary)
            && asked > self.window_limit
        {
            return Err(window_refused("an xz dictionary", asked, self.window_limit).into());
        }
        self.begun = true;
        Ok(())
    }
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() || self.ended {
            return Ok(0);
        }
        if !self.begun {
            self.begin()?;
        }
        loop {
            let at = self.input.position();
            let chunk = self.input.fill_buf()?;
            let action = if chunk.is_empty() { Action::Finish } else { Action::Run };
            let (taken, given, status) =
                step(&mut self.decoder, chunk, buf, action).map_err(|e| explain(e, at, self.window_limit))?;
            self.input.consume(taken);
            match status {
                Status::StreamEnd => self.ended = true,
                Status::MemNeeded if matches!(action, Action::Finish) => {
                    return Err(damaged(format!("the xz stream is cut short at byte {at}")));
                }
                Status::Ok | Status::GetCheck | Status::MemNeeded => {}
            }
            if given > 0 || self.ended {
                return Ok(given);
            }
        }
    }
}

fn new_decoder(window: u64) -> io::Result<Stream> {
    Stream::new_stream_decoder(window.saturating_add(OVERHEAD), CONCATENATED | TELL_UNSUPPORTED_CHECK)
        .map_err(|e| damaged(format!("no xz decoder could be made: {e}")))
}

/// One call of the decoder: bytes taken, bytes given, and its status.
fn step(
    decoder: &mut Stream,
    input: &[u8],
    output: &mut [u8],
    action: Action,
) -> Result<(usize, usize, Status), liblzma::stream::Error> {
    let (before_in, before_out) = (decoder.total_in(), decoder.total_out());
    let status = decoder.process(input, output, action)?;
    let taken = usize::try_from(decoder.total_in() - before_in).unwrap_or(input.len());
    let given = usize::try_from(decoder.total_out() - before_out).unwrap_or(output.len());
    Ok((taken, given, status))
}

/// Maps a decoder's error to an error of the image around byte `at`.
fn explain(error: liblzma::stream::Error, at: u64, window: u64) -> io::Error {
    use liblzma::stream::Error as E;
    damaged(match error {
        E::MemLimit => {
            let what = format!(
                "an xz block after byte {at} asks for a dictionary larger than the limit of {}; compress the image \
                 again with a smaller one, or raise the limit (importer --window-limit)",
                bytes(window)
            );
            return Error::new(Kind::Refused, what).into();
        }
        E::Format => format!("no xz stream begins at byte {at}, where one should"),
        E::Options => format!("the xz stream uses a filter or an option that is not known, after byte {at}"),
        E::UnsupportedCheck => "the xz stream uses an integrity check that is not known".into(),
        E::Mem => "there is not enough memory for the xz dictionary".into(),
        E::Data | E::Program | E::NoCheck => format!("the xz stream is damaged after byte {at}: {error}"),
    })
}

/// The dictionary size the block header at the front of `header` declares (LZMA2, section 5.3.1). `None` when no
/// valid one stands there or another filter comes last.
fn dictionary(header: &[u8]) -> Option<u64> {
    let len = usize::from(*header.first().filter(|n| **n != 0)?) * 4 + 4;
    let (body, crc) = header.get(..len)?.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let flags = *body.get(1)?;
    let mut rest = body.get(2..)?;
    for bit in [0x40, 0x80] {
        if flags & bit != 0 {
            vli(&mut rest)?;
        }
    }
    let mut size = None;
    for _ in 0..=flags & 3 {
        let id = vli(&mut rest)?;
        let len = usize::try_from(vli(&mut rest)?).ok()?;
        let properties = rest.get(..len)?;
        rest = rest.get(len..)?;
        size = match (id, properties) {
            (0x21, [40]) => Some(u64::from(u32::MAX)),
            (0x21, [bits @ 0..40]) => Some(u64::from(2 | (bits & 1)) << (bits / 2 + 11)),
            _ => None,
        };
    }
    size
}

/// A variable-length integer (section 1.2), taken off the front of `bytes`.
fn vli(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // No longer than needed: a zero byte may only stand alone.
            return (byte != 0 || shift == 0).then_some(value);
        }
    }
    None
}

fn push_vli(value: u64, to: &mut Vec<u8>) {
    let mut value = value;
    while value >= 0x80 {
        to.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    to.push(u8::try_from(value).unwrap_or(0));
}

/// Where a block lies.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Offset of its first unpacked byte.
    start: u64,
    /// Offset of its header in the file.
    host: u64,
    /// Length in the file without the padding at its end.
    unpadded: u64,
}

impl Block {
    fn padded(&self) -> u64 {
        self.unpadded.next_multiple_of(4)
    }
}

/// A stream of the file, as far as its blocks need it.
#[derive(Clone, Copy, Debug)]
struct StreamPart {
    /// Number of the first block of a later stream.
    blocks_end: usize,
    header: [u8; EDGE],
}

/// A stream as described by its index.
struct Indexed {
    header: [u8; EDGE],
    /// Offset of its first block.
    blocks_at: u64,
    /// Unpadded size and unpacked size of each block.
    records: Vec<(u64, u64)>,
}

/// The indexes of a file.
#[derive(Debug)]
pub(super) struct Map {
    /// All blocks in file order, none empty.
    blocks: Vec<Block>,
    streams: Vec<StreamPart>,
    size: u64,
    /// Largest dictionary the first blocks of the streams declare.
    dictionary: u64,
    /// Largest dictionary any block's decoder may have.
    window: u64,
    readers: usize,
}

/// Why the map could not be made.
enum Unmapped {
    /// Beyond what this module keeps or expects; the file may be fine.
    TooMuch,
    Failed(Error),
}

impl From<Error> for Unmapped {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

fn corrupt(what: impl std::fmt::Display) -> Unmapped {
    Unmapped::Failed(Error::new(Kind::Compression, format!("the xz file is damaged or cut short: {what}")))
}

impl Map {
    /// Reads the indexes of a file of `size` bytes. `None` when they are beyond the bounds of this module.
    ///
    /// # Errors
    /// [`Kind::Compression`] when they are damaged or a dictionary is above the limit, [`Kind::Source`] when reading
    /// fails.
    pub(super) fn read(source: &dyn Source, size: u64, limits: Limits) -> Result<Option<Self>, Error> {
        match Self::try_read(&mut Backwards::new(source), size, limits) {
            Ok(map) => Ok(Some(map)),
            Err(Unmapped::TooMuch) => {
                tracing::debug!("the xz indexes are too long or odd to be kept; decoding from the start");
                Ok(None)
            }
            Err(Unmapped::Failed(e)) => Err(e),
        }
    }

    fn try_read(file: &mut Backwards<'_>, size: u64, limits: Limits) -> Result<Self, Unmapped> {
        // Last stream first: records in file order per stream, streams in reverse.
        let mut parts: Vec<Indexed> = Vec::new();
        let (mut records, mut index_bytes) = (0, 0);
        let mut end = size;
        if !size.is_multiple_of(4) {
            return Err(corrupt("its length is not a multiple of four"));
        }
        while end > 0 {
            end = skip_padding(file, end)?;
            if end == 0 {
                return Err(corrupt("there is only padding at its start"));
            }
            if parts.len() == STREAMS_MAX {
                return Err(Unmapped::TooMuch);
            }
            let footer = file.edge(before(end, EDGE as u64)?)?;
            let (index_len, flags) = parse_footer(&footer)?;
            index_bytes += index_len;
            if index_bytes > INDEX_MAX {
                return Err(Unmapped::TooMuch);
            }
            let index_at = before(end, EDGE as u64 + index_len)?;
            let index = file.at(index_at, usize::try_from(index_len).map_err(|_| Unmapped::TooMuch)?)?;
            let stream = parse_index(index, BLOCKS_MAX - records)?;
            records += stream.len();
            let packed = stream
                .iter()
                .try_fold(0u64, |sum, (unpadded, _)| sum.checked_add(unpadded.checked_next_multiple_of(4)?))
                .ok_or_else(|| corrupt("its index counts more than fits"))?;
            let blocks_at = before(index_at, packed)?;
            let start = before(blocks_at, EDGE as u64)?;
            let header = file.edge(start)?;
            if header[..6] != *b"\xfd7zXZ\0"
                || header[6..8] != flags
                || header[8..] != crc32fast::hash(&header[6..8]).to_le_bytes()
            {
                return Err(corrupt(format_args!(
                    "no stream header at byte {start}, although the index names one there"
                )));
            }
            parts.push(Indexed { header, blocks_at, records: stream });
            end = start;
        }
        if parts.is_empty() {
            return Err(corrupt("it is empty"));
        }
        Self::assemble(file, parts, limits)
    }

    fn assemble(file: &mut Backwards<'_>, mut parts: Vec<Indexed>, limits: Limits) -> Result<Self, Unmapped> {
        let mut map = Self {
            blocks: Vec::with_capacity(parts.iter().map(|part| part.records.len()).sum()),
            streams: Vec::with_capacity(parts.len()),
            size: 0,
            dictionary: 0,
            window: 0,
            readers: 1,
        };
        while let Some(Indexed { header, blocks_at: mut host, records }) = parts.pop() {
            if let Some((unpadded, _)) = records.first() {
                let len = BLOCK_HEADER_MAX.min(usize::try_from(*unpadded).unwrap_or(BLOCK_HEADER_MAX));
                map.dictionary = map.dictionary.max(dictionary(file.at(host, len)?).unwrap_or(0));
            }
            for (unpadded, unpacked) in records {
                if unpacked == 0 {
                    // Empty blocks do not occur in practice, and no thread would decode this one.
                    return Err(Unmapped::TooMuch);
                }
                let block = Block { start: map.size, host, unpadded };
                // Neither addition can overflow: the sum of the packed sizes fits the file, as checked before.
                host += block.padded();
                map.size = map
                    .size
                    .checked_add(unpacked)
                    .filter(|n| *n <= VLI_MAX)
                    .ok_or_else(|| corrupt("its index counts more than fits"))?;
                map.blocks.push(block);
            }
            map.streams.push(StreamPart { blocks_end: map.blocks.len(), header });
        }
        if map.dictionary > limits.window {
            return Err(window_refused("an xz dictionary", map.dictionary, limits.window).into());
        }
        let fit = limits.windows / map.dictionary.max(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        map.readers = usize::try_from(fit).unwrap_or(usize::MAX).min(cores).min(map.blocks.len()).max(1);
        // Other blocks may declare more than the first ones, as long as all readers together stay within bounds.
        let share = limits.windows / map.readers as u64;
        map.window =
            if map.readers == 1 { limits.window } else { share.max(map.dictionary).min(limits.window) };
        Ok(map)
    }

    /// Offset behind the last unpacked byte of block `index`.
    fn end(&self, index: usize) -> u64 {
        self.blocks.get(index + 1).map_or(self.size, |next| next.start)
    }
}

fn before(end: u64, len: u64) -> Result<u64, Unmapped> {
    end.checked_sub(len).ok_or_else(|| corrupt("its last index counts more than there is"))
}

/// Where the stream before `end` ends: stream padding is zeroes, four at a time (section 2.2).
fn skip_padding(file: &mut Backwards<'_>, end: u64) -> Result<u64, Unmapped> {
    let mut at = end;
    while at >= 4 && file.at(at - 4, 4)? == [0; 4] {
        at -= 4;
        if end - at > PADDING_MAX {
            return Err(Unmapped::TooMuch);
        }
    }
    Ok(at)
}

/// Index length and stream flags of a stream footer (section 2.1.2).
fn parse_footer(footer: &[u8; EDGE]) -> Result<(u64, [u8; 2]), Unmapped> {
    let [c0, c1, c2, c3, b0, b1, b2, b3, f0, f1, m0, m1] = *footer;
    if [m0, m1] != *b"YZ" {
        return Err(corrupt("no stream footer at its end"));
    }
    if crc32fast::hash(&footer[4..10]) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(corrupt("a stream footer's checksum is wrong"));
    }
    Ok(((u64::from(u32::from_le_bytes([b0, b1, b2, b3])) + 1) * 4, [f0, f1]))
}

/// The records (unpadded size, unpacked size) of an index (section 4), at most `max`.
fn parse_index(index: &[u8], max: usize) -> Result<Vec<(u64, u64)>, Unmapped> {
    let bad = || corrupt("its index is invalid");
    let (body, crc) = index.split_last_chunk::<4>().ok_or_else(bad)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(corrupt("its index's checksum is wrong"));
    }
    let mut rest = body.strip_prefix(&[0]).ok_or_else(bad)?;
    let count = vli(&mut rest).ok_or_else(bad)?;
    // A record takes two bytes at least.
    let count = usize::try_from(count).ok().filter(|n| *n <= rest.len() / 2).ok_or_else(bad)?;
    if count > max {
        return Err(Unmapped::TooMuch);
    }
    let mut records = Vec::with_capacity(count);
    for _ in 0..count {
        let unpadded = vli(&mut rest).filter(|n| (5..=VLI_MAX - 3).contains(n)).ok_or_else(bad)?;
        records.push((unpadded, vli(&mut rest).ok_or_else(bad)?));
    }
    if rest.len() > 3 || rest.iter().any(|b| *b != 0) {
        return Err(bad());
    }
    Ok(records)
}

/// Reads pieces of a file from its end to its start, few reads for many pieces.
struct Backwards<'a> {
    source: &'a dyn Source,
    at: u64,
    held: Vec<u8>,
}

impl<'a> Backwards<'a> {
    /// Least bytes per read.
    const READ: u64 = 64 << 10;

    fn new(source: &'a dyn Source) -> Self {
        Self { source, at: 0, held: Vec::new() }
    }

    /// `len` bytes at `at`, which the caller has bounded.
    fn at(&mut self, at: u64, len: usize) -> Result<&[u8], Unmapped> {
        let end = at + len as u64;
        if at < self.at || end > self.at + self.held.len() as u64 {
            let from = at.min(end.saturating_sub(Self::READ));
            let whole = usize::try_from(end - from).map_err(|_| Unmapped::TooMuch)?;
            self.held = read_range(self.source, from, whole)
                .map_err(|e| Error::from_source("the xz index could not be read", e))?;
            self.at = from;
        }
        let from = usize::try_from(at - self.at).map_err(|_| Unmapped::TooMuch)?;
        self.held.get(from..from + len).ok_or_else(|| corrupt("it ends early"))
    }

    fn edge(&mut self, at: u64) -> Result<[u8; EDGE], Unmapped> {
        self.at(at, EDGE)?.try_into().map_err(|_| corrupt("it ends early"))
    }
}

/// An .xz file with ranges: every block by itself.
pub(super) struct Blocks {
    source: Arc<dyn Source>,
    map: Arc<Map>,
    access: Access,
}

impl Blocks {
    pub(super) fn new(source: Arc<dyn Source>, map: Map) -> Self {
        let access = if map.blocks.len() > 1 {
            Access::Blocks(map.blocks.iter().enumerate().map(|(i, b)| b.start..map.end(i)).collect())
        } else {
            Access::Again
        };
        Self { source, map: Arc::new(map), access }
    }
}

impl Source for Blocks {
    fn facts(&self) -> Facts {
        Facts { size: Some(self.map.size), access: self.access.clone() }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let end = range.end.min(self.map.size);
        if range.start >= end {
            return Ok(Box::new(io::empty()));
        }
        let first = self.map.blocks.partition_point(|b| b.start <= range.start) - 1;
        let reader = BlockReader {
            source: self.source.clone(),
            map: self.map.clone(),
            end,
            next: first,
            input: None,
            decoder: new_decoder(self.map.window)?,
            packed_left: 0,
            left: 0,
        };
        let skip = range.start - self.map.blocks[first].start;
        Ok(Box::new(Part::new(Box::new(reader), skip, &(range.start..end))))
    }

    fn connections(&self) -> usize {
        self.map.readers
    }
}

/// Decodes blocks in order.
struct BlockReader {
    source: Arc<dyn Source>,
    map: Arc<Map>,
    /// Offset of the last unpacked byte wanted, plus one.
    end: u64,
    /// Number of the next block.
    next: usize,
    /// The blocks of the current stream that are wanted, and the number of the first block behind them.
    input: Option<(Input, usize)>,
    decoder: Stream,
    /// Bytes of the current block that the decoder has not taken.
    packed_left: u64,
    /// Bytes of the current block that have not been handed out.
    left: u64,
}

impl BlockReader {
    /// Begins the next block. False when none is wanted any more.
    fn begin(&mut self) -> io::Result<bool> {
        let Some(block) = self.map.blocks.get(self.next).filter(|b| b.start < self.end) else {
            return Ok(false);
        };
        let stream = self.map.streams.partition_point(|s| s.blocks_end <= self.next);
        let Some(stream) = self.map.streams.get(stream) else {
            return Ok(false);
        };
        if self.input.as_ref().is_none_or(|(_, end)| *end <= self.next) {
            let wanted = self.map.blocks.partition_point(|b| b.start < self.end).min(stream.blocks_end);
            let last = self.map.blocks[self.next.max(wanted - 1)];
            let reader = self.source.open(block.host..last.host + last.padded())?;
            self.input = Some((Input::new(readahead::read(reader)?), wanted));
        }
        self.packed_left = block.padded();
        self.left = self.map.end(self.next) - block.start;
        feed(&mut self.decoder, &stream.header, block.host, self.map.window).map(|()| true)
    }

    /// Lets the decoder see the rest of the block and check it.
    fn finish(&mut self) -> io::Result<()> {
        let Some(block) = self.map.blocks.get(self.next).copied() else {
            return Ok(());
        };
        let unpacked = self.map.end(self.next) - block.start;
        while self.packed_left > 0 {
            let at = block.host + block.padded() - self.packed_left;
            let (taken, _) = self.advance(&mut [], at)?;
            if taken == 0 {
                return Err(mismatch(at));
            }
        }
        let stream = self.map.streams.partition_point(|s| s.blocks_end <= self.next);
        let flags = self.map.streams.get(stream).map_or([0; 2], |s| [s.header[6], s.header[7]]);
        let tail = tail(block.unpadded, unpacked, flags);
        feed(&mut self.decoder, &tail, block.host, self.map.window)?;
        self.next += 1;
        Ok(())
    }

    /// One step inside the block: bytes taken and given.
    fn advance(&mut self, buf: &mut [u8], at: u64) -> io::Result<(usize, usize)> {
        let Some((input, _)) = &mut self.input else {
            return Ok((0, 0));
        };
        let chunk = input.fill_buf()?;
        if chunk.is_empty() && self.packed_left > 0 {
            return Err(damaged(format!("the xz file is cut short at byte {at}")));
        }
        let len = chunk.len().min(usize::try_from(self.packed_left).unwrap_or(usize::MAX));
        let (taken, given, _) = step(&mut self.decoder, &chunk[..len], buf, Action::Run)
            .map_err(|e| explain(e, at, self.map.window))?;
        input.consume(taken);
        self.packed_left -= taken as u64;
        Ok((taken, given))
    }
}

impl Read for BlockReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() || (self.left == 0 && !self.begin()?) {
            return Ok(0);
        }
        let len = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        loop {
            let at = self.map.blocks.get(self.next).map_or(0, |b| b.host + b.padded()) - self.packed_left;
            let (taken, given) = self.advance(&mut buf[..len], at)?;
            self.left -= given as u64;
            if self.left == 0 {
                self.finish()?;
            }
            if given > 0 {
                return Ok(given);
            }
            if taken == 0 {
                return Err(mismatch(at));
            }
        }
    }
}

/// Gives the decoder `bytes`, from which nothing may come out.
fn feed(decoder: &mut Stream, bytes: &[u8], at: u64, window: u64) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (taken, ..) = step(decoder, rest, &mut [], Action::Run).map_err(|e| explain(e, at, window))?;
        if taken == 0 {
            return Err(mismatch(at));
        }
        rest = &rest[taken..];
    }
    Ok(())
}

fn mismatch(at: u64) -> io::Error {
    damaged(format!("the xz block around byte {at} does not match the index"))
}

/// Index and footer of a stream of one block (sections 4 and 2.1.2).
fn tail(unpadded: u64, unpacked: u64, flags: [u8; 2]) -> Vec<u8> {
    let mut tail = vec![0, 1];
    push_vli(unpadded, &mut tail);
    push_vli(unpacked, &mut tail);
    tail.resize(tail.len().next_multiple_of(4), 0);
    tail.extend(crc32fast::hash(&tail).to_le_bytes());
    let mut words = u32::try_from(tail.len() / 4 - 1).unwrap_or(0).to_le_bytes().to_vec();
    words.extend(flags);
    tail.extend(crc32fast::hash(&words).to_le_bytes());
    tail.extend(words);
    tail.extend(b"YZ");
    tail
}
