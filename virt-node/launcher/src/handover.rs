//! Files that outlive a worker and belong to the next one: the listening socket, and open block devices. They wait in a
//! pair of sockets of the supervisor (SCM_RIGHTS, unix(7)): files in a message stay open until the message is read.
//!
//! ```text
//! supervisor: sender, receiver
//!   │ before each worker: listener, sender ──► queue ──► worker's standard input (the receiver)
//!   worker: devices ──────────────────────────► queue     read by the next worker, or by this one when they change
//! ```
//!
//! Not here: which devices are claimed (worker/claims.rs).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Most files of one message (SCM_MAX_FD of the kernel).
pub(crate) const FILES_MAX: usize = 253;
/// The first byte of a message: sockets of a worker.
const SOCKETS: u8 = b's';
/// The same: block devices.
const DEVICES: u8 = b'd';

/// The supervisor's ends.
pub(crate) struct Handover {
    sender: OwnedFd,
    receiver: OwnedFd,
}

impl Handover {
    pub(crate) fn new() -> io::Result<Self> {
        let (sender, receiver) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok(Self { sender, receiver })
    }

    /// Offers the listening socket to the next worker; the answer is its standard input.
    pub(crate) fn offer(&self, listener: &UnixListener) -> io::Result<OwnedFd> {
        send(self.sender.as_fd(), SOCKETS, &[listener.as_fd(), self.sender.as_fd()])?;
        self.receiver.try_clone()
    }
}

/// A worker's: what it found on its standard input.
pub(crate) struct Found {
    pub(crate) listener: UnixListener,
    pub(crate) kept: Kept,
    /// Block devices of the worker before.
    pub(crate) devices: Vec<OwnedFd>,
}

impl Found {
    /// Reads everything that waits, and puts the devices back at once: they stay open if this worker ends, too.
    pub(crate) fn take() -> io::Result<Self> {
        let receiver = io::stdin().as_fd().try_clone_to_owned()?;
        let (mut sockets, mut devices) = (None, Vec::new());
        while let Some((tag, files)) = receive(receiver.as_fd())? {
            match tag {
                SOCKETS => sockets = <[OwnedFd; 2]>::try_from(files).ok(),
                _ => devices.extend(files),
            }
        }
        let Some([listener, sender]) = sockets else {
            return Err(io::Error::other("standard input has no socket of the launcher"));
        };
        let mut kept = Kept { sender, receiver, stored: false };
        kept.set(&devices)?;
        Ok(Self { listener: listener.into(), kept, devices })
    }
}

/// The devices that wait for the next worker.
pub(crate) struct Kept {
    sender: OwnedFd,
    receiver: OwnedFd,
    stored: bool,
}

impl Kept {
    /// Has exactly these devices wait. Those before are let go only when these are there.
    pub(crate) fn set(&mut self, devices: &[OwnedFd]) -> io::Result<()> {
        let before = self.stored;
        if !devices.is_empty() {
            let files: Vec<BorrowedFd<'_>> = devices.iter().map(AsFd::as_fd).collect();
            send(self.sender.as_fd(), DEVICES, &files)?;
        }
        self.stored = !devices.is_empty();
        if before {
            receive(self.receiver.as_fd())?;
        }
        Ok(())
    }
}

fn send(to: BorrowedFd<'_>, tag: u8, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if files.len() > FILES_MAX || !control.push(SendAncillaryMessage::ScmRights(files)) {
        let text = format!("{} open files for the next worker; {FILES_MAX} is the limit", files.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    sendmsg(to, &[IoSlice::new(&[tag])], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message; `None`: no message waits.
fn receive(from: BorrowedFd<'_>) -> io::Result<Option<(u8, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut tag = [0];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    match recvmsg(from, &mut [IoSliceMut::new(&mut tag)], &mut control, flags) {
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
        Ok(message) if message.bytes == 0 => return Ok(None),
        Ok(_) => {}
    }
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            files.extend(some);
        }
    }
    Ok(Some((tag[0], files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worker's side of a handover without a process.
    fn kept(handover: &Handover) -> Kept {
        let (sender, receiver) =
            (handover.sender.try_clone().unwrap(), handover.receiver.try_clone().unwrap());
        Kept { sender, receiver, stored: false }
    }

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    #[test]
    fn the_last_set_of_devices_waits_alone() {
        let handover = Handover::new().unwrap();
        let mut worker = kept(&handover);
        for count in [3, 1, 0, 253, 2] {
            let files: Vec<OwnedFd> = (0..count).map(|_| file()).collect();
            worker.set(&files).unwrap();
        }
        let (tag, files) = receive(handover.receiver.as_fd()).unwrap().unwrap();
        assert_eq!((tag, files.len()), (DEVICES, 2));
        assert!(receive(handover.receiver.as_fd()).unwrap().is_none());
    }

    #[test]
    fn too_many_devices_are_refused_and_those_before_stay() {
        let handover = Handover::new().unwrap();
        let mut worker = kept(&handover);
        worker.set(&[file()]).unwrap();
        let many: Vec<OwnedFd> = (0..=FILES_MAX).map(|_| file()).collect();
        let error = worker.set(&many).unwrap_err();
        assert!(error.to_string().contains("253 is the limit"), "{error}");
        assert_eq!(receive(handover.receiver.as_fd()).unwrap().unwrap().1.len(), 1);
    }

    #[test]
    fn a_file_in_the_queue_stays_open_without_its_worker() {
        let handover = Handover::new().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        kept(&handover).set(&[write]).unwrap();
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        let end = || rustix::io::read(&read, &mut [0_u8; 1]);
        assert_eq!(end(), Err(rustix::io::Errno::AGAIN), "the writer is open");
        drop(handover);
        assert_eq!(end(), Ok(0), "it ends with the supervisor");
    }
}
