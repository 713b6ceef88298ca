//! One layer of gz, xz or zstd around an image: a [`Source`] of compressed bytes becomes a [`Source`] of image bytes.
//!
//! ```text
//!  Source ─open─► readahead (thread, 3 × 256 KiB) ─► Input (peek, position) ─► gz | xz | zst ─► Part (skip, limit) ─► caller
//! ```
//!
//! - [`gz`]: members one after another, as `gzip -d` reads them.
//! - [`zst`]: frames one after another, skippable ones included.
//! - [`xz`]: streams one after another; where the source has ranges, their indexes give the size and one
//!   independent piece per block.
//! - [`readahead`]: the read-ahead below each of them.
//!
//! The decompressed data is not interpreted. Not here: clusters and grains packed inside a format (see
//! [`crate::format::unpack`]), and the order in which pieces are read, which is [`crate::transfer`]'s.
//!
//! # Guarantees
//! - A stream's own checksums are checked before its last byte is handed out when the size is known, and before
//!   `Ok(0)` when it is not. So a reader of unknown size is to be read until `Ok(0)`.
//! - A damaged or cut stream gives [`crate::Kind::Compression`] (inside the `io::Error`), never an early `Ok(0)`; a
//!   failing source gives the source's own error. After an error a reader gives errors only.
//! - No decoder declares more than [`Limits::window`], checked before it is allocated; what asks for more gives
//!   [`crate::Kind::Refused`].

use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::detect::Compression;
use crate::error::{Error, Kind};
use crate::source::{Access, Facts, Source, read_full};

mod gz;
pub mod readahead;
mod xz;
mod zst;

/// Bounds of what a compressed stream may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest window (xz dictionary, zstd window) one decoder may declare, in bytes.
    pub window: u64,
    /// Windows of all decoders running at once, in bytes; fewer run when several do not fit. One always may.
    pub windows: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: 128 << 20, windows: 128 << 20 }
    }
}

/// The source of what `source` unpacks to.
///
/// Reads nothing here, except the indexes of an xz source with ranges and a known size.
///
/// # Errors
/// [`Kind::Compression`] when the stream's own headers are damaged, [`Kind::Refused`] when they ask for more than
/// `limits`, [`Kind::Source`] when they cannot be read.
pub fn open(
    compression: Compression,
    source: Arc<dyn Source>,
    limits: Limits,
) -> Result<Arc<dyn Source>, Error> {
    if compression == Compression::Xz
        && let Facts { size: Some(size), access: Access::Ranges } = source.facts()
        && let Some(map) = xz::Map::read(&*source, size, limits)?
    {
        return Ok(Arc::new(xz::Blocks::new(source, map)));
    }
    Ok(Arc::new(Stream { compression, source, limits }))
}

/// A compressed source that is decoded from its start.
struct Stream {
    compression: Compression,
    source: Arc<dyn Source>,
    limits: Limits,
}

impl Source for Stream {
    fn facts(&self) -> Facts {
        let access = match self.source.facts().access {
            Access::Ranges | Access::Blocks(_) | Access::Again => Access::Again,
            Access::Once => Access::Once,
        };
        Facts { size: None, access }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let input = Input::new(readahead::read(self.source.open(0..u64::MAX)?)?);
        let decoder: Box<dyn Read + Send> = match self.compression {
            Compression::Gz => Box::new(gz::Reader::new(input)),
            Compression::Xz => Box::new(xz::Reader::new(input, self.limits.window)?),
            Compression::Zst => Box::new(zst::Reader::new(input, self.limits.window)?),
        };
        Ok(Box::new(Part::new(decoder, range.start, &range)))
    }
}

/// An error of a compressed stream, carried in an [`io::Error`].
fn damaged(message: impl Into<String>) -> io::Error {
    Error::new(Kind::Compression, message).into()
}

/// A window larger than allowed.
fn window_refused(what: &str, asked: u64, limit: u64) -> Error {
    Error::new(
        Kind::Refused,
        format!(
            "{what} of {} is needed to unpack this and the limit is {}; compress the image again with a smaller \
             one, or, if that much memory may be used, raise the limit (importer --window-limit)",
            bytes(asked),
            bytes(limit)
        ),
    )
}

fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KiB", n >> 10),
        n => format!("{n} bytes"),
    }
}

/// Compressed bytes with a place to look ahead and a count of what was taken.
struct Input {
    inner: Box<dyn BufRead + Send>,
    /// Bytes looked at and not taken yet; in front of what `inner` gives.
    peeked: Vec<u8>,
    taken: usize,
    position: u64,
    /// The last error came from below, not from a decoder.
    failed: bool,
}

impl Input {
    fn new(inner: Box<dyn BufRead + Send>) -> Self {
        Self { inner, peeked: Vec::new(), taken: 0, position: 0, failed: false }
    }

    /// The next `len` bytes, fewer only at the end, without taking them.
    fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        let have = self.peeked.len() - self.taken;
        if have < len {
            self.peeked.drain(..self.taken);
            self.taken = 0;
            self.peeked.resize(len, 0);
            let got = match read_full(&mut *self.inner, &mut self.peeked[have..]) {
                Ok(got) => got,
                Err(e) => {
                    self.peeked.truncate(have);
                    self.failed = true;
                    return Err(e);
                }
            };
            self.peeked.truncate(have + got);
        }
        let front = &self.peeked[self.taken..];
        Ok(&front[..front.len().min(len)])
    }

    /// How many bytes were taken.
    fn position(&self) -> u64 {
        self.position
    }

    /// Whether the last error was the source's.
    fn failed(&self) -> bool {
        self.failed
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buf)?;
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken < self.peeked.len() {
            return Ok(&self.peeked[self.taken..]);
        }
        loop {
            // Asked twice because a borrow cannot be returned out of a loop that goes on.
            match self.inner.fill_buf() {
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.failed = true;
                    return Err(e);
                }
            }
        }
        self.inner.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.position += n as u64;
        let from_peeked = n.min(self.peeked.len() - self.taken);
        self.taken += from_peeked;
        if n > from_peeked {
            self.inner.consume(n - from_peeked);
        }
    }
}

/// The part of a decoder's output that was asked for. Once the decoder fails, so does every later read.
struct Part {
    decoder: Box<dyn Read + Send>,
    skip: u64,
    left: u64,
    failed: bool,
}

impl Part {
    /// `range` of the image, of which `decoder` starts `skip` bytes before `range.start`.
    fn new(decoder: Box<dyn Read + Send>, skip: u64, range: &Range<u64>) -> Self {
        Self { decoder, skip, left: range.end.saturating_sub(range.start), failed: false }
    }

    fn read_inner(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.skip > 0 {
            let mut discard = vec![0; 128 << 10];
            while self.skip > 0 {
                let want = discard.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                let n = self.decoder.read(&mut discard[..want])?;
                if n == 0 {
                    (self.skip, self.left) = (0, 0);
                }
                self.skip = self.skip.saturating_sub(n as u64);
            }
        }
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let n = self.decoder.read(&mut buf[..want])?;
        self.left -= n as u64;
        Ok(n)
    }
}

impl Read for Part {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(damaged("unpacking already failed"));
        }
        let result = self.read_inner(buf);
        self.failed = result.is_err();
        result
    }
}
