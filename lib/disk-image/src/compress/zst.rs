//! Zstandard (RFC 8878): frames one after another, skippable frames skipped, content checksums checked.
//!
//! Each frame's header is read here first, so that a window above the limit is refused by its size before the decoder
//! sees it. The content size a frame may declare is not passed on: only a walk over all blocks could prove that no
//! further frame follows.

use std::io::{self, BufRead, Read};

use zstd::stream::raw::{DParameter, Decoder, Operation};

use super::{Input, damaged, window_refused};

/// Longest frame header (section 3.1.1.1), magic included.
const HEADER_MAX: usize = 18;

/// Magic of a frame, little endian.
const MAGIC: u32 = 0xfd2f_b528;

/// Magic of a skippable frame; the low four bits are free.
const SKIPPABLE: u32 = 0x184d_2a50;

/// Reads the frames of one zstd stream.
pub(super) struct Reader {
    input: Input,
    decoder: Decoder<'static>,
    window_limit: u64,
    in_frame: bool,
    frames: u64,
}

impl Reader {
    /// A reader of the frames that begin at `input`, none with a window above `window_limit` bytes.
    pub(super) fn new(input: Input, window_limit: u64) -> io::Result<Self> {
        let mut decoder = Decoder::new()?;
        // The library's limit is a power of two; the exact one is checked frame by frame.
        let log = window_limit.max(1).checked_next_power_of_two().map_or(31, u64::ilog2).clamp(10, 31);
        decoder.set_parameter(DParameter::WindowLogMax(log))?;
        Ok(Self { input, decoder, window_limit, in_frame: false, frames: 0 })
    }

    /// Checks the header of the frame that begins here. False at the end.
    fn begin(&mut self) -> io::Result<bool> {
        let at = self.input.position();
        let front = self.input.peek(HEADER_MAX)?;
        if front.is_empty() && self.frames > 0 {
            return Ok(false);
        }
        match parse(front) {
            Head::Frame { window } if window > self.window_limit => {
                return Err(window_refused("a zstd window", window, self.window_limit).into());
            }
            Head::Dictionary => {
                return Err(damaged(
                    "the zstd stream was made with an external dictionary; compress the image again without one",
                ));
            }
            Head::Foreign => {
                return Err(damaged(format!("no zstd frame begins at byte {at}, where one should")));
            }
            Head::Cut => return Err(damaged(format!("the zstd stream is cut short at byte {at}"))),
            Head::Frame { .. } | Head::Skippable => {}
        }
        self.frames += 1;
        self.in_frame = true;
        Ok(true)
    }
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.begin()? {
                return Ok(0);
            }
            let chunk = self.input.fill_buf()?;
            let ended = chunk.is_empty();
            let status = match self.decoder.run_on_buffers(chunk, buf) {
                Ok(status) => status,
                Err(e) => {
                    let at = self.input.position();
                    return Err(damaged(format!("the zstd stream is damaged after byte {at}: {e}")));
                }
            };
            self.input.consume(status.bytes_read);
            self.in_frame = status.remaining != 0;
            if status.bytes_written > 0 {
                return Ok(status.bytes_written);
            }
            if self.in_frame && ended {
                let at = self.input.position();
                return Err(damaged(format!("the zstd stream is cut short at byte {at}")));
            }
        }
    }
}

/// Content at a frame boundary.
#[derive(Debug, PartialEq, Eq)]
enum Head {
    Frame { window: u64 },
    Skippable,
    Dictionary,
    Foreign,
    Cut,
}

/// Reads a frame header (RFC 8878, section 3.1.1.1) from the front of `bytes`.
fn parse(bytes: &[u8]) -> Head {
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else {
        return Head::Cut;
    };
    let magic = u32::from_le_bytes(*magic);
    if magic & !0xf == SKIPPABLE {
        return Head::Skippable;
    }
    if magic != MAGIC {
        return Head::Foreign;
    }
    let Some((&descriptor, rest)) = rest.split_first() else {
        return Head::Cut;
    };
    let single_segment = descriptor & 0x20 != 0;
    let (declared, rest) = if single_segment {
        (None, rest)
    } else {
        let Some((&w, rest)) = rest.split_first() else {
            return Head::Cut;
        };
        let base = 1u64 << (10 + (w >> 3));
        (Some(base + base / 8 * u64::from(w & 7)), rest)
    };
    let dictionary_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_len = match descriptor >> 6 {
        0 => usize::from(single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let (Some(dictionary), Some(size)) =
        (rest.get(..dictionary_len), rest.get(dictionary_len..dictionary_len + size_len))
    else {
        return Head::Cut;
    };
    if little_endian(dictionary) != 0 {
        return Head::Dictionary;
    }
    // Two-byte sizes count from 256.
    let size = little_endian(size) + if size_len == 2 { 256 } else { 0 };
    Head::Frame { window: declared.unwrap_or(size) }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
