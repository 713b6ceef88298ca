//! The `unsafe` calls of the ring: submissions to an io_uring.
//!
//! [`Ring`] is safe under any use: it owns everything the kernel may still read, until the kernel has reported that it is
//! done with it.

#![expect(unsafe_code, reason = "io_uring submissions hand raw addresses to the kernel")]

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::fd::OwnedFd;

use crate::write::output::Output;
use crate::write::pool::{Buf, Keep};
use crate::write::{Job, Piece};

/// A write the kernel has been given; its job keeps the bytes alive.
pub(super) struct Flight {
    pub(super) job: Arc<Job>,
    pub(super) piece: Piece,
}

/// User data of the poll on the wake-up descriptor and of the trial; slots count from 0.
const WAKE: u64 = u64::MAX;
const TRIAL: u64 = u64::MAX - 1;
/// How often a ring on trial may be interrupted or put off.
const TRIES: u32 = 100;

/// Most buffers a ring has registered; further ones are written unregistered.
const BUFFERS: u16 = 64;

/// The buffers the ring knows, by address. What keeps them from being freed is held as long as the ring.
#[derive(Default)]
struct Known {
    open: bool,
    slots: HashMap<usize, u16>,
    keep: Vec<Keep>,
}

/// An io_uring with the writes in flight. Lives on one thread.
pub(super) struct Ring {
    ring: IoUring,
    /// Keeps the descriptors open.
    output: Arc<Output>,
    wake: Arc<OwnedFd>,
    slots: Vec<Option<Flight>>,
    free: Vec<usize>,
    registered: bool,
    known: Known,
}

impl Ring {
    /// Sets a ring up for `depth` writes, and tries it: the kernel must know the operations and finish one.
    ///
    /// # Errors
    /// The error of any of the three io_uring calls, or `Unsupported`.
    pub(super) fn new(
        output: Arc<Output>,
        wake: Arc<OwnedFd>,
        depth: u32,
        register: bool,
    ) -> io::Result<Self> {
        let entries = depth.saturating_add(2).next_power_of_two();
        // One thread submits and reaps: completions then need no interrupt of it (kernel 6.1).
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let known = [opcode::Write::CODE, opcode::PollAdd::CODE, opcode::Nop::CODE];
        if !known.iter().all(|&code| probe.is_supported(code)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring lacks plain writes",
            ));
        }
        let depth = depth as usize;
        let mut ring = Self {
            ring,
            output,
            wake,
            slots: std::iter::repeat_with(|| None).take(depth).collect(),
            free: (0..depth).rev().collect(),
            registered: false,
            known: Known::default(),
        };
        ring.push_entry(&opcode::Nop::new().build().user_data(TRIAL))?;
        let mut tried = None;
        for _ in 0..TRIES {
            ring.enter(1)?;
            tried =
                ring.ring.completion().find(|entry| entry.user_data() == TRIAL).map(|entry| entry.result());
            if tried.is_some() {
                break;
            }
        }
        let result =
            tried.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the ring finishes nothing"))?;
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        if register {
            ring.registered = ring.ring.submitter().register_files(&ring.descriptors()).is_ok();
            ring.known.open = ring.ring.submitter().register_buffers_sparse(u32::from(BUFFERS)).is_ok();
        }
        ring.arm()?;
        Ok(ring)
    }

    /// Whether the files are registered and buffers may be.
    pub(super) fn registered(&self) -> bool {
        self.registered && self.known.open
    }

    /// The number under which the ring knows `buf`; makes it known if it can be.
    fn number(&mut self, buf: &Buf) -> Option<u16> {
        let address = buf.as_ptr() as usize;
        if let Some(&number) = self.known.slots.get(&address) {
            return Some(number);
        }
        let number = u16::try_from(self.known.slots.len()).ok().filter(|&number| number < BUFFERS)?;
        if !self.known.open {
            return None;
        }
        let bytes = libc::iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() };
        // SAFETY: the kernel reads the vector now; the memory it names stays where it is until `keep` goes, which is
        // after the registration has been taken back.
        match unsafe { self.ring.submitter().register_buffers_update(u32::from(number), &[bytes], None) } {
            Ok(()) => {
                self.known.keep.push(buf.keep());
                self.known.slots.insert(address, number);
                Some(number)
            }
            Err(e) => {
                self.known.open = false;
                self.output.unregistered(&e);
                None
            }
        }
    }

    /// How many more writes fit.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// How many writes the kernel has.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn descriptors(&self) -> [RawFd; 2] {
        let plain = self.output.plain().as_raw_fd();
        [plain, self.output.direct().map_or(plain, AsRawFd::as_raw_fd)]
    }

    /// Queues a write; gives it back when there is no room.
    pub(super) fn push(&mut self, flight: Flight) -> Result<(), Flight> {
        let Some(slot) = self.free.pop() else {
            return Err(flight);
        };
        let Piece { at, len, guest, direct } = flight.piece;
        let (Some(bytes), Ok(short)) = (flight.job.bytes.get(at..at + len), u32::try_from(len)) else {
            self.free.push(slot);
            return Err(flight);
        };
        let from = bytes.as_ptr();
        let number = if self.registered { self.number(&flight.job.bytes) } else { None };
        let descriptor = types::Fd(self.descriptors()[usize::from(direct)]);
        let fixed = types::Fixed(u32::from(direct));
        let entry = match number {
            Some(number) => opcode::WriteFixed::new(fixed, from, short, number).offset(guest).build(),
            None if self.registered => opcode::Write::new(fixed, from, short).offset(guest).build(),
            None => opcode::Write::new(descriptor, from, short).offset(guest).build(),
        };
        self.slots[slot] = Some(flight);
        match self.push_entry(&entry.user_data(slot as u64)) {
            Ok(()) => Ok(()),
            Err(_) => {
                self.free.push(slot);
                match self.slots[slot].take() {
                    Some(flight) => Err(flight),
                    None => Ok(()),
                }
            }
        }
    }

    fn push_entry(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: entries are a no-op, a poll of a descriptor this ring keeps open, or a write of bytes whose owner stands
        // in `slots` and is dropped only when its completion has been seen (or never, see `drop`). The bytes are behind an
        // `Arc`, so they cannot change during the write.
        unsafe { self.ring.submission().push(entry) }
            .map_err(|_| io::Error::other("the submission queue is full"))
    }

    fn arm(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), libc::POLLIN as u32);
        self.push_entry(&poll.build().user_data(WAKE))
    }

    fn enter(&self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // Interrupted, or completions must be reaped first: the caller does and comes again.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(e),
            },
        }
    }

    /// Submits the queue, waits until an entry completes or the ring is woken, and hands over completed entries with the
    /// kernel's result.
    ///
    /// # Errors
    /// When the kernel refuses the call; nothing in flight is let go then.
    pub(super) fn wait(&mut self, done: &mut Vec<(Flight, i32)>) -> io::Result<()> {
        self.enter(1)?;
        self.reap(done)
    }

    fn reap(&mut self, done: &mut Vec<(Flight, i32)>) -> io::Result<()> {
        let mut woken = false;
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE => woken = true,
                slot => {
                    let Ok(slot) = usize::try_from(slot) else { continue };
                    if let Some(flight) = self.slots.get_mut(slot).and_then(Option::take) {
                        self.free.push(slot);
                        done.push((flight, entry.result()));
                    }
                }
            }
        }
        if woken {
            // There is no other reader; an interrupted read only wakes once more.
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
            self.arm()?;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight() > 0 {
            if self.wait(&mut done).is_err() {
                // The kernel may still read these bytes: they are never given back.
                std::mem::forget(std::mem::take(&mut self.slots));
                break;
            }
            done.clear();
        }
        if self.registered {
            // A ring is torn down some time after it is closed; until then the device would stay held.
            let _ = self.ring.submitter().unregister_files();
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}
