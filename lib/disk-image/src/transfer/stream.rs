//! A stream in chunks: what is read forward goes to the workers in pieces that end where guest pages do. Not here: what
//! the bytes mean.

use std::io::Read;
use std::ops::Range;

use crossbeam_channel::Sender;

use super::pipeline::Shared;
use super::work::Chunk;
use crate::error::{Error, Kind};
use crate::extent::Extent;
use crate::source::read_full;
use crate::write::Buf;

pub(super) const PAGE: u64 = 4096;

/// The stream, a chunk at a time, with the end of the previous chunk carried over where it is wanted again.
pub(super) struct Stream<'a> {
    shared: &'a Shared<'a>,
    reader: Box<dyn Read + Send>,
    /// Host offset of the next byte that the reader gives.
    pub(super) at: u64,
    carry: Vec<u8>,
    /// The reader has given its last byte.
    pub(super) ended: bool,
}

/// One chunk of the stream: `buf[pad..pad + len]` is host offset `host` on.
pub(super) struct Piece {
    pub(super) buf: Buf,
    pub(super) pad: usize,
    pub(super) host: u64,
    pub(super) len: usize,
}

impl Piece {
    pub(super) fn range(&self) -> Range<u64> {
        self.host..self.host + self.len as u64
    }

    /// The bytes of `range`, which lies inside.
    pub(super) fn bytes(&self, range: Range<u64>) -> &[u8] {
        let from = self.pad + usize::try_from(range.start - self.host).unwrap_or(usize::MAX);
        let to = self.pad + usize::try_from(range.end - self.host).unwrap_or(usize::MAX);
        &self.buf[from..to]
    }
}

impl<'a> Stream<'a> {
    /// Opens the image's source at its start.
    pub(super) fn open(shared: &'a Shared<'a>) -> Result<Self, Error> {
        let reader = shared.image.source.open(0..u64::MAX).map_err(failed)?;
        Ok(Self { shared, reader, at: 0, carry: Vec::new(), ended: false })
    }

    /// The next chunk; `None` at the end of the stream when nothing is carried over.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, Error> {
        if self.ended {
            return Ok(None);
        }
        self.shared.throttle()?;
        let mut buf = self.shared.chunks.acquire(&self.shared.halt)?;
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
    pub(super) fn carry_from(&mut self, piece: &Piece, host: u64) {
        self.carry.extend_from_slice(piece.bytes(host..piece.range().end));
    }

    /// Reads the rest of a compressed stream, of an OVA, or of an image with changes in its log: only its end shows whether
    /// it is complete.
    pub(super) fn drain(&mut self) -> Result<(), Error> {
        let image = self.shared.image;
        if image.compression().is_some() || image.file().is_some() || image.layout.overlay().is_some() {
            self.skip_to(u64::MAX)
        } else {
            Ok(())
        }
    }

    pub(super) fn skip_to(&mut self, host: u64) -> Result<(), Error> {
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

fn failed(e: std::io::Error) -> Error {
    Error::from_source("cannot read the image", e)
}

/// The stream ended before `what`, which the image claims to have: the verdict is that of a file with the same bytes.
pub(super) fn truncated(at: u64, what: &str) -> Error {
    Error::corrupt(format!("the image ends at byte {at}, before {what}: it is truncated"))
}

/// Hands the extents `pieces` of a chunk to the workers.
pub(super) fn send(chunks: &Sender<Chunk>, piece: Piece, pieces: Vec<Extent>) -> Result<(), Error> {
    if pieces.is_empty() {
        return Ok(());
    }
    let Piece { buf, pad, host, len } = piece;
    chunks
        .send(Chunk { buf, pad, host, len, pieces, credit: 0 })
        .map_err(|_| Error::new(Kind::Stopped, "the workers have ended"))
}
