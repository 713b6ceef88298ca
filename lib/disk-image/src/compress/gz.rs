//! gzip (RFC 1952): members one after another, each with its CRC-32 and length checked.
//!
//! After the last member zero bytes are padding, and anything else that does not look like a member is ignored with a
//! warning, both as `gzip -d` does. A member with one damaged byte in its magic is an error, though: ignoring it would
//! drop image data silently.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

use super::{Input, damaged};

/// Magic and method (deflate, the only one) every member begins with.
const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];

/// Reads the members of one gzip stream.
pub(super) struct Reader {
    state: State,
}

enum State {
    Member(Box<GzDecoder<Input>>),
    End,
}

impl Reader {
    /// A reader of the members that begin at `input`.
    pub(super) fn new(input: Input) -> Self {
        Self { state: State::Member(Box::new(GzDecoder::new(input))) }
    }
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let State::Member(decoder) = &mut self.state else {
                return Ok(0);
            };
            match decoder.read(buf) {
                Ok(0) => {}
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if decoder.get_ref().failed() => return Err(e),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    let at = decoder.get_ref().position();
                    return Err(damaged(format!("the gzip stream is cut short at byte {at}")));
                }
                Err(e) => {
                    let at = decoder.get_ref().position();
                    return Err(damaged(format!("the gzip stream is damaged before byte {at}: {e}")));
                }
            }
            self.state = match std::mem::replace(&mut self.state, State::End) {
                State::Member(decoder) => after_member(decoder.into_inner())?,
                State::End => State::End,
            };
        }
    }
}

/// Data after a member: another member, padding, or bytes to ignore.
fn after_member(mut input: Input) -> io::Result<State> {
    let at = input.position();
    let front = input.peek(MAGIC.len())?;
    let alike = front.iter().zip(MAGIC).filter(|(a, b)| **a == *b).count();
    if front.len() == MAGIC.len() && alike == MAGIC.len() {
        return Ok(State::Member(Box::new(GzDecoder::new(input))));
    }
    if front.len() < MAGIC.len() && alike > 0 && alike == front.len() {
        return Err(damaged(format!("the gzip stream is cut short in a member's header at byte {at}")));
    }
    if alike + 1 == MAGIC.len() && front.len() == MAGIC.len() {
        return Err(damaged(format!("the gzip member at byte {at} has a damaged header")));
    }
    let mut zero = true;
    loop {
        let chunk = input.fill_buf()?;
        if chunk.is_empty() {
            break;
        }
        zero &= chunk.iter().all(|b| *b == 0);
        let n = chunk.len();
        input.consume(n);
    }
    if !zero {
        tracing::warn!("{} bytes after the end of the gzip stream are ignored", input.position() - at);
    }
    Ok(State::End)
}
