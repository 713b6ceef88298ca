//! Readers: each takes a job, opens the source there and hands its bytes on in chunks as they arrive, never a part
//! whole. How many read at once is found by trying ([`Pace`]).

use std::io::Read;
use std::ops::Range;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::pipeline::Shared;
use super::reads::{GAP, Job, cut_at, host_of};
use super::work::Chunk;
use crate::error::{Error, Kind};
use crate::extent::{Content, Extent};
use crate::source::{Source, read_full};

const PAGE: u64 = 4096;
/// How long a reader waits for a job before it looks whether it is wanted.
const WAIT: Duration = Duration::from_millis(100);
/// How long one that rests does: what the end of a transfer may have to wait for it.
const REST: Duration = Duration::from_millis(10);

/// Reads jobs until there are none. Reader number `index` rests while fewer are wanted.
pub(super) fn feed(
    shared: &Shared<'_>,
    index: usize,
    jobs: &Receiver<Job>,
    chunks: &Sender<Chunk>,
) -> Result<(), Error> {
    loop {
        shared.halt.check()?;
        if index >= shared.readers_wanted() {
            // Resting readers leave only when no job can come any more.
            if jobs.is_empty() && shared.mapped() {
                return Ok(());
            }
            std::thread::sleep(REST);
            continue;
        }
        match jobs.recv_timeout(WAIT) {
            Ok(job) => read_job(shared, &*shared.image.source, job, chunks)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Reads one job from `source` and sends its chunks.
pub(super) fn read_job(
    shared: &Shared<'_>,
    source: &dyn Source,
    job: Job,
    chunks: &Sender<Chunk>,
) -> Result<(), Error> {
    let weight: u64 = job.extents.iter().map(|e| e.len).sum();
    let mut cursor = Cursor { source, reader: None, at: job.host.start, end: job.host.end, tail: Vec::new() };
    let mut rest = job.extents.into_iter().peekable();
    let mut left = None;
    while let Some(first) = left.take().or_else(|| rest.next()) {
        shared.throttle()?;
        let mut buf = shared.chunks.acquire(&shared.halt)?;
        let pad = match first.content {
            Content::Plain { .. } => usize::try_from(first.guest % PAGE).unwrap_or(0),
            Content::Packed { .. } | Content::Zero => 0,
        };
        let span = gather(first, &mut rest, &mut left, (buf.len() - pad) as u64);
        let len = usize::try_from(span.host.end - span.host.start).unwrap_or(usize::MAX);
        let next = left.as_ref().or_else(|| rest.peek()).map(|e| host_of(e).start);
        let got = cursor.fill(span.host.start, &mut buf[pad..pad + len], next)?;
        complete(&span.pieces, span.host.start, got)?;
        buf[pad + got..pad + len].fill(0);
        let done: u64 = span.pieces.iter().map(|e| e.len).sum();
        let credit = u128::from(job.credit) * u128::from(done) / u128::from(weight.max(1));
        let credit = u64::try_from(credit).unwrap_or(0);
        let mut pieces = span.pieces;
        if let Some(end) = shared.image.open_end()
            && pieces.last().is_some_and(|last| last.guest_range() == end)
            && shared.raw_end(&buf[..pad + len], end.end)? < end.end
        {
            pieces.pop();
        }
        let chunk = Chunk { buf, pad, host: span.host.start, len, pieces, credit };
        chunks.send(chunk).map_err(|_| Error::new(Kind::Stopped, "the workers have ended"))?;
    }
    Ok(())
}

/// Extents for one chunk.
struct Span {
    host: Range<u64>,
    pieces: Vec<Extent>,
}

/// Takes as many extents as fit `room` bytes of the image; what is cut off a plain one is put into `left`.
fn gather(
    first: Extent,
    rest: &mut std::iter::Peekable<std::vec::IntoIter<Extent>>,
    left: &mut Option<Extent>,
    room: u64,
) -> Span {
    let start = host_of(&first).start;
    let mut span = Span { host: start..start, pieces: Vec::new() };
    let mut extent = first;
    loop {
        let host = host_of(&extent);
        let used = host.start - start;
        let space = room.saturating_sub(used);
        let cut = match extent.content {
            Content::Plain { .. } if extent.len > space => {
                let end = (extent.guest + space) / PAGE * PAGE;
                end.saturating_sub(extent.guest)
            }
            Content::Plain { .. } | Content::Zero => extent.len,
            Content::Packed { .. } if host.end - start > room => 0,
            Content::Packed { .. } => extent.len,
        };
        if cut == 0 && !span.pieces.is_empty() {
            *left = Some(extent);
            break;
        }
        // The first extent always fits: a chunk holds the longest packed extent and more than a page.
        let (front, more) = cut_at(extent, cut.max(1));
        span.host.end = span.host.end.max(host_of(&front).end);
        span.pieces.push(front);
        if let Some(more) = more {
            *left = Some(more);
            break;
        }
        let near = |e: &Extent| {
            let at = host_of(e).start;
            at < start + room && at <= span.host.end.saturating_add(GAP / 4)
        };
        match rest.next_if(near) {
            Some(next) => extent = next,
            None => break,
        }
    }
    span
}

/// A chunk that came short may only miss bytes that packed extents claim beyond their real end.
fn complete(pieces: &[Extent], host: u64, got: usize) -> Result<(), Error> {
    let have = host + got as u64;
    for piece in pieces {
        let range = host_of(piece);
        let short = match piece.content {
            Content::Plain { .. } => range.end > have,
            Content::Packed { .. } => range.start >= have,
            Content::Zero => false,
        };
        if short {
            return Err(Error::new(
                Kind::Source,
                format!(
                    "the image ends at byte {have}, but data at {}..{} is needed: it is truncated",
                    range.start, range.end
                ),
            ));
        }
    }
    Ok(())
}

/// One reader, moved forward over a job's range; reopened where a gap is too long to read through.
struct Cursor<'a> {
    source: &'a dyn Source,
    reader: Option<Box<dyn Read + Send>>,
    at: u64,
    end: u64,
    /// The last bytes read, from `at - tail.len()` on, as far as the next chunk starts in them.
    tail: Vec<u8>,
}

impl Cursor<'_> {
    /// Fills `out` with the bytes from `start` on, less at the end of the source. `next` is where the next chunk starts.
    fn fill(&mut self, start: u64, out: &mut [u8], next: Option<u64>) -> Result<usize, Error> {
        let failed = |e| Error::from_source("cannot read the image", e);
        let mut have = 0;
        if start < self.at {
            let back = usize::try_from(self.at - start).unwrap_or(usize::MAX);
            if back <= self.tail.len() {
                let tail = &self.tail[self.tail.len() - back..];
                have = back.min(out.len());
                out[..have].copy_from_slice(&tail[..have]);
            } else {
                self.reader = None;
                self.at = start;
            }
        } else if start > self.at {
            if start - self.at > GAP {
                self.reader = None;
            }
            if self.reader.is_some() {
                self.skip(start - self.at, out)?;
            }
            self.at = start;
        }
        if have < out.len() {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                none => none.insert(self.source.open(self.at..self.end.max(self.at)).map_err(failed)?),
            };
            let got = read_full(&mut **reader, &mut out[have..]).map_err(failed)?;
            self.at += got as u64;
            have += got;
        }
        // Keep what the next chunk will want again.
        let stop = start + have as u64;
        self.tail.clear();
        if let Some(next) = next
            && next < self.at
            && next >= start
        {
            let from = usize::try_from(next - start).unwrap_or(usize::MAX).min(have);
            self.tail.extend_from_slice(&out[from..have]);
            // When this chunk lay wholly inside the old tail, what follows it was read already; read it again.
            if stop < self.at {
                self.reader = None;
                self.at = stop;
            }
        } else if stop < self.at {
            self.reader = None;
            self.at = stop;
        }
        Ok(have)
    }

    fn skip(&mut self, mut bytes: u64, scratch: &mut [u8]) -> Result<(), Error> {
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        while bytes > 0 {
            let want = scratch.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            let got = read_full(&mut **reader, &mut scratch[..want])
                .map_err(|e| Error::from_source("cannot read the image", e))?;
            if got == 0 {
                break;
            }
            bytes -= got as u64;
        }
        Ok(())
    }
}

/// How many readers are worth it: one more is kept while it brings at least a tenth more.
#[derive(Debug)]
pub(super) struct Pace {
    wanted: usize,
    max: usize,
    best: f64,
    settled: bool,
}

impl Pace {
    /// Starts with two, at most `max`.
    pub(super) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { wanted: max.min(2), max, best: 0.0, settled: max <= 2 }
    }

    /// How many readers should be at work.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Bytes per second of the last while.
    pub(super) fn observe(&mut self, rate: f64) {
        if self.settled || rate <= 0.0 {
            return;
        }
        if rate > self.best * 1.1 {
            self.best = rate;
            self.wanted = (self.wanted * 2).min(self.max);
            self.settled = self.wanted == self.max;
        } else {
            self.wanted = (self.wanted / 2).max(2);
            self.settled = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_grows_while_it_pays_and_then_rests() {
        let mut pace = Pace::new(8);
        assert_eq!(pace.wanted(), 2);
        pace.observe(0.0);
        assert_eq!(pace.wanted(), 2);
        pace.observe(100.0);
        assert_eq!(pace.wanted(), 4);
        pace.observe(190.0);
        assert_eq!(pace.wanted(), 8);
        pace.observe(1000.0);
        assert_eq!(pace.wanted(), 8);
        let mut flat = Pace::new(8);
        flat.observe(100.0);
        flat.observe(101.0);
        assert_eq!(flat.wanted(), 2);
        flat.observe(1000.0);
        assert_eq!(flat.wanted(), 2);
        assert_eq!(Pace::new(1).wanted(), 1);
    }
}
