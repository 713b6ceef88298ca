//! One stream from the start: raw bytes as they come, and images whose data carries its own directory. Images with
//! tables are read by `tables`.

use crossbeam_channel::Sender;

use super::pipeline::Shared;
use super::reads::host_of;
use super::stream::{PAGE, Stream, send, truncated};
use super::streamed_metadata::tables;
use super::work::Chunk;
use crate::detect::Format;
use crate::error::{Error, Kind};
use crate::extent::{Content, Extent, RangeSet};
use crate::format::{Scan, Scanned};

const SECTOR: u64 = 512;
/// Separate guest ranges a walk may leave behind it.
const SEEN_MAX: usize = 256 << 10;

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
                // The stream's end is unknown.
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
        let what = format!("the image ends at byte {at}, before its end at byte {size}: it is truncated");
        return Err(Error::new(Kind::Source, what));
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
        if seen.len() > SEEN_MAX {
            return Err(Error::new(
                Kind::NotStreamable,
                "the image is too fragmented to be read as one stream",
            ));
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
