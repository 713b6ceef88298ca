//! Frames over a netlink socket of any family: sent in one go, answered in order.

use std::fmt;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR};
use netlink_sys::Socket as Raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::error::{Error, Kind};

/// Room for one datagram: the kernel fills at most 32 KiB per read of a dump.
const DATAGRAM: usize = 64 << 10;
const HEADER: usize = 16;
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// One netlink message: type, flags, sequence number, body.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its type.
    pub kind: u16,
    /// Number of the request it answers.
    pub sequence: u32,
    /// The dumped state changed during the dump, which may lack an entry.
    pub interrupted: bool,
    /// The payload after the header.
    pub body: Vec<u8>,
}

/// The kernel's answer to one request.
#[derive(Debug)]
pub enum Reply {
    /// A message of the family.
    Data(Frame),
    /// Done.
    Done {
        /// Number of the request.
        sequence: u32,
    },
    /// Refused.
    Refused {
        /// Number of the request.
        sequence: u32,
        /// Why.
        refusal: Refusal,
    },
}

/// Why the kernel refused: its error number, and its words if it has any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error's number.
    pub errno: rustix::io::Errno,
    said: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = std::io::Error::from(self.errno);
        if self.said.is_empty() { write!(f, "{number}") } else { write!(f, "{}: {number}", self.said) }
    }
}

impl std::error::Error for Refusal {}

/// A netlink socket, in the namespace it was opened in.
pub struct Socket {
    raw: Raw,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// A socket of a netlink family in the current namespace.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when the kernel has no such family, [`Kind::Kernel`] when it gives no socket.
    pub fn open(family: isize) -> Result<Self, Error> {
        let raw = Raw::new(family).and_then(|raw| {
            raw.set_ext_ack(true)?;
            Ok(raw)
        });
        let raw = raw.map_err(|error| {
            let missing = error.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error());
            let kind = if missing { Kind::Unsupported } else { Kind::Kernel };
            Error::with(kind, "cannot open a netlink socket", error)
        })?;
        Ok(Self { raw, sequence: 1, buffer: Vec::new() })
    }

    /// The number of the next frame.
    pub fn next_sequence(&mut self) -> u32 {
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        sequence
    }

    /// Sends frames in one system call and reads until frame `last`, which must ask for an acknowledgement or be a
    /// dump, is answered.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the socket fails; a refusal of a frame is an answer, no error.
    pub fn transact(&mut self, frames: &[u8], last: u32) -> Result<Vec<Reply>, Error> {
        self.transact_until(frames, |reply| match reply {
            Reply::Data(_) => false,
            Reply::Done { sequence } | Reply::Refused { sequence, .. } => *sequence == last,
        })
    }

    /// The same until a reply for which `ends` is true, which must come.
    ///
    /// # Errors
    /// See [`Socket::transact`].
    pub fn transact_until(
        &mut self,
        frames: &[u8],
        ends: impl Fn(&Reply) -> bool,
    ) -> Result<Vec<Reply>, Error> {
        let failed = |error: std::io::Error| Error::with(Kind::Kernel, "a netlink request failed", error);
        let sent = self.raw.send(frames, 0).map_err(failed)?;
        if sent != frames.len() {
            return Err(Error::new(Kind::Kernel, format!("netlink took {sent} of {} bytes", frames.len())));
        }
        let mut replies = Vec::new();
        loop {
            // Answers are there when the request has been sent: never wait for one.
            self.receive().map_err(failed)?;
            for reply in replies_in(&self.buffer)? {
                let end = ends(&reply);
                replies.push(reply);
                if end {
                    return Ok(replies);
                }
            }
        }
    }

    /// Joins a group of events.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the kernel does not let us.
    pub fn join(&mut self, group: u32) -> Result<(), Error> {
        let failed = |error| Error::with(Kind::Kernel, "cannot subscribe to netlink events", error);
        // The kernel does not send its own events to a socket that has its own number, zero, and a socket gets another
        // with its first request only.
        self.raw.bind_auto().map_err(failed)?;
        self.raw.add_membership(group).map_err(failed)
    }

    /// Has conditions in requests for lists heeded.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the kernel cannot.
    pub fn strict(&mut self) -> Result<(), Error> {
        self.raw
            .set_netlink_get_strict_chk(true)
            .map_err(|error| Error::with(Kind::Kernel, "cannot switch netlink to strict checking", error))
    }

    /// Waits until something arrives and throws it away; false when `patience` was over first.
    ///
    /// # Errors
    /// [`Kind::Kernel`] when the socket fails.
    pub fn wait(&mut self, patience: Duration) -> Result<bool, Error> {
        let failed =
            |error: std::io::Error| Error::with(Kind::Kernel, "cannot receive netlink events", error);
        let timeout =
            Timespec::try_from(patience).map_err(|_| Error::new(Kind::Internal, "too long a wait"))?;
        let mut waiting = [PollFd::new(&self.raw, PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        match self.receive() {
            Ok(()) => Ok(true),
            // Nothing after all, or more than there was room for: both mean to look again.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(true),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => Ok(true),
            Err(error) => Err(failed(error)),
        }
    }

    fn receive(&mut self) -> std::io::Result<()> {
        self.buffer.clear();
        self.buffer.reserve_exact(DATAGRAM);
        let flags = i32::try_from(RecvFlags::DONTWAIT.bits()).map_err(std::io::Error::other)?;
        loop {
            match self.raw.recv(&mut self.buffer, flags) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn replies_in(datagram: &[u8]) -> Result<Vec<Reply>, Error> {
    let odd = || Error::new(Kind::Kernel, "a netlink answer of the kernel is malformed");
    let mut replies = Vec::new();
    let mut rest = datagram;
    while rest.len() >= HEADER {
        let length = word(rest, 0).and_then(|length| usize::try_from(length).ok()).ok_or_else(odd)?;
        let frame = rest.get(..length).filter(|frame| frame.len() >= HEADER).ok_or_else(odd)?;
        let kind = half(frame, 4).ok_or_else(odd)?;
        let flags = half(frame, 6).ok_or_else(odd)?;
        let sequence = word(frame, 8).ok_or_else(odd)?;
        let body = frame.get(HEADER..).ok_or_else(odd)?;
        match kind {
            NLMSG_NOOP => {}
            NLMSG_DONE => replies.push(done(body, sequence)),
            NLMSG_ERROR => replies.push(acknowledgement(body, flags, sequence).ok_or_else(odd)?),
            _ => {
                let interrupted = flags & NLM_F_DUMP_INTR != 0;
                replies.push(Reply::Data(Frame { kind, sequence, interrupted, body: body.to_vec() }));
            }
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(replies)
}

/// The end of a dump; it may carry an error too.
fn done(body: &[u8], sequence: u32) -> Reply {
    match word(body, 0).map(u32::cast_signed) {
        Some(number) if number < 0 => {
            let refusal =
                Refusal { errno: rustix::io::Errno::from_raw_os_error(-number), said: String::new() };
            Reply::Refused { sequence, refusal }
        }
        Some(_) | None => Reply::Done { sequence },
    }
}

fn acknowledgement(body: &[u8], flags: u16, sequence: u32) -> Option<Reply> {
    let number = word(body, 0)?.cast_signed();
    if number == 0 {
        return Some(Reply::Done { sequence });
    }
    let mut said = String::new();
    if flags & NLM_F_ACK_TLVS != 0 {
        // The refused request comes first, whole or only its header.
        let request = usize::try_from(word(body, 4)?).ok()?;
        let skipped = if flags & NLM_F_CAPPED != 0 { HEADER } else { request.next_multiple_of(4) };
        let mut rest = body.get(4usize.checked_add(skipped)?..).unwrap_or_default();
        while let (Some(length), Some(kind)) = (half(rest, 0), half(rest, 2)) {
            let length = usize::from(length);
            let Some(value) = rest.get(4..length) else { break };
            if kind == NLMSGERR_ATTR_MSG {
                said = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
    let errno = rustix::io::Errno::from_raw_os_error(number.checked_neg()?);
    Some(Reply::Refused { sequence, refusal: Refusal { errno, said } })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
