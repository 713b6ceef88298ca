//! Chunks to writes: unpack, leave zeroes out, hand on. Runs on several threads, one [`Worker`] each.

use std::ops::Range;
use std::sync::Arc;

use super::completion::Ticket;
use super::pipeline::Shared;
use crate::error::Error;
use crate::extent::{Content, Extent};
use crate::format::unpack::Unpacker;
use crate::write::{Buf, Segment, Write, data_runs};

/// Guest pages that are never written by halves.
const PAGE: usize = 4096;

/// On a block device, zeroes inside data shorter than this are written; longer ones are zeroed by the device.
const ZERO_WORTH: u64 = 64 << 10;

/// Bytes of the image that stand together, and the extents that lie in them whole.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Holds the bytes from `pad` on.
    pub(super) buf: Buf,
    /// Where the bytes start in the buffer, so that plain content is aligned as its guest pages are.
    pub(super) pad: usize,
    /// Host offset of the first byte.
    pub(super) host: u64,
    /// How many bytes there are.
    pub(super) len: usize,
    /// The range to take from them.
    pub(super) pieces: Vec<Extent>,
    /// Share of the virtual disk, in bytes, that is done with this chunk (progress only).
    pub(super) credit: u64,
}

/// One thread's decoders and its output buffer.
pub(super) struct Worker<'a> {
    shared: &'a Shared<'a>,
    unpacker: Unpacker,
    out: Option<Out>,
    runs: Vec<Range<usize>>,
}

struct Out {
    buf: Buf,
    used: usize,
    segments: Vec<Segment>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared<'a>) -> Result<Self, Error> {
        Ok(Self { shared, unpacker: Unpacker::new()?, out: None, runs: Vec::new() })
    }

    /// Unpacks a chunk and queues its writes.
    pub(super) fn process(&mut self, chunk: Chunk) -> Result<(), Error> {
        let Chunk { buf, pad, host, len, mut pieces, credit } = chunk;
        // Images written by several threads have neighbours of the guest near each other, but seldom in order; in order
        // they make few long writes.
        pieces.sort_unstable_by_key(|piece| piece.guest);
        let ranges = pieces.iter().map(Extent::guest_range).collect();
        let ticket = Arc::new(self.shared.tracker.ticket(ranges));
        let mut in_place = Vec::new();
        for piece in &pieces {
            let Some(bytes) = piece.host_range() else { continue };
            let at = pad + offset(bytes.start, host)?;
            let end = (pad + offset(bytes.end, host)?).min(pad + len);
            match piece.content {
                Content::Zero => {}
                Content::Plain { .. } if at % PAGE == in_page(piece.guest) => {
                    self.keep_data(&buf, at..end, piece.guest, &mut in_place, &ticket)?;
                }
                Content::Plain { .. } => self.copy(&buf[at..end], piece.guest, &ticket)?,
                Content::Packed { codec, .. } => {
                    let full = usize::try_from(self.shared.unit).unwrap_or(usize::MAX);
                    let take = usize::try_from(piece.len).unwrap_or(full).min(full);
                    let start = self.room(piece.guest, full, &ticket)?;
                    let Some(out) = self.out.as_mut() else { continue };
                    let space = &mut out.buf[start..start + full];
                    self.unpacker.unpack(codec, piece.guest, &buf[at..end], space)?;
                    out.used = start + take;
                    self.found(start..start + take, piece.guest, &ticket)?;
                }
            }
        }
        self.flush(&ticket)?;
        self.submit(Arc::new(buf), in_place, &ticket)?;
        ticket.complete();
        self.shared.credit(credit);
        Ok(())
    }

    /// Plain bytes that are not aligned as their guest pages: copied to where they are.
    fn copy(&mut self, mut bytes: &[u8], mut guest: u64, ticket: &Arc<Ticket>) -> Result<(), Error> {
        while !bytes.is_empty() {
            let start = self.room(guest, PAGE, ticket)?;
            let Some(out) = self.out.as_mut() else { break };
            let take = bytes.len().min(out.buf.len() - start);
            out.buf[start..start + take].copy_from_slice(&bytes[..take]);
            out.used = start + take;
            self.found(start..start + take, guest, ticket)?;
            guest += take as u64;
            bytes = &bytes[take..];
        }
        Ok(())
    }

    /// Makes room for `len` bytes of guest offset `guest` in the output buffer, aligned as the guest is.
    fn room(&mut self, guest: u64, len: usize, ticket: &Arc<Ticket>) -> Result<usize, Error> {
        let want = in_page(guest);
        if let Some(out) = &self.out {
            let start = out.used + (want + PAGE - out.used % PAGE) % PAGE;
            if start + len <= out.buf.len() {
                return Ok(start);
            }
            self.flush(ticket)?;
        }
        let buf = self.shared.out.acquire(&self.shared.halt)?;
        self.out = Some(Out { buf, used: 0, segments: Vec::new() });
        Ok(want)
    }

    /// Adds the data of freshly filled `range` of the output buffer to its segments.
    fn found(&mut self, range: Range<usize>, guest: u64, ticket: &Arc<Ticket>) -> Result<(), Error> {
        let Some(mut out) = self.out.take() else {
            return Ok(());
        };
        let result = self.keep_data(&out.buf, range, guest, &mut out.segments, ticket);
        self.out = Some(out);
        result
    }

    /// Adds what of `buf[range]`, which is guest offset `guest`, is not zero to `segments`; zeroes the rest where the
    /// target may hold something else.
    fn keep_data(
        &mut self,
        buf: &Buf,
        range: Range<usize>,
        guest: u64,
        segments: &mut Vec<Segment>,
        ticket: &Arc<Ticket>,
    ) -> Result<(), Error> {
        self.runs.clear();
        data_runs(&buf[range.clone()], guest, &mut self.runs);
        let total = range.len() as u64;
        let mut kept = 0u64;
        let mut at = 0usize;
        for run in self.runs.drain(..) {
            let mut from = run.start;
            if self.shared.dirty && run.start > at {
                let zeroes = guest + at as u64..guest + run.start as u64;
                if zeroes.end - zeroes.start < ZERO_WORTH {
                    from = at;
                } else {
                    self.shared.writer.zero(zeroes, ticket.clone())?;
                }
            }
            at = run.end;
            kept += (run.end - from) as u64;
            let next = Segment { at: range.start + from, len: run.end - from, guest: guest + from as u64 };
            match segments.last_mut() {
                Some(last) if last.at + last.len == next.at && last.guest + last.len as u64 == next.guest => {
                    last.len += next.len;
                }
                _ => segments.push(next),
            }
        }
        if self.shared.dirty && at < range.len() {
            self.shared.writer.zero(guest + at as u64..guest + total, ticket.clone())?;
        }
        self.shared.count(kept, total - kept);
        Ok(())
    }

    fn flush(&mut self, ticket: &Arc<Ticket>) -> Result<(), Error> {
        match self.out.take() {
            Some(out) => self.submit(Arc::new(out.buf), out.segments, ticket),
            None => Ok(()),
        }
    }

    fn submit(&self, bytes: Arc<Buf>, segments: Vec<Segment>, ticket: &Arc<Ticket>) -> Result<(), Error> {
        if segments.is_empty() {
            return Ok(());
        }
        self.shared.writer.write(Write { bytes, segments, ticket: ticket.clone() })
    }
}

/// Where in its page a guest offset is.
fn in_page(guest: u64) -> usize {
    usize::try_from(guest % PAGE as u64).unwrap_or(0)
}

fn offset(at: u64, base: u64) -> Result<usize, Error> {
    at.checked_sub(base)
        .and_then(|d| usize::try_from(d).ok())
        .ok_or_else(|| Error::corrupt(format!("extent at {at} lies outside its chunk at {base}")))
}
