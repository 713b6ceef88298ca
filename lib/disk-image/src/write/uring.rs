//! The engine of one thread that owns an io_uring.
//!
//! ```text
//!  queue ──job──► pieces ──► ring (≤ depth in flight) ──completion──► whole: done
//!    ▲                                                                short or refused: written here and now
//!  wake-up descriptor, polled by the ring
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, TryRecvError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use self::sys::{Flight, Ring};
use super::output::Output;
use super::{Job, Piece, pieces};

mod sys;

/// Signals the thread that the queue has an entry, or is closed.
#[derive(Debug)]
pub(super) struct Wake(Arc<OwnedFd>);

impl Wake {
    pub(super) fn ring(&self) {
        // A counter that is full wakes just as well.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// A running engine.
pub(super) struct Started {
    pub(super) thread: JoinHandle<()>,
    pub(super) wake: Wake,
    pub(super) registered: bool,
}

/// Sets the ring up on its own thread and tries it.
///
/// # Errors
/// Why io_uring is refused; no thread is running then.
pub(super) fn start(
    output: &Arc<Output>,
    queue: &Receiver<Job>,
    depth: u32,
    register: bool,
) -> io::Result<Started> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (answer, answered) = crossbeam_channel::bounded(1);
    let thread = {
        let (output, queue, wake) = (output.clone(), queue.clone(), wake.clone());
        std::thread::Builder::new().name("write-uring".to_owned()).spawn(move || {
            match Ring::new(output.clone(), wake, depth, register) {
                Ok(ring) => {
                    let _ = answer.send(Ok(ring.registered()));
                    run(ring, &output, &queue);
                }
                Err(e) => {
                    let _ = answer.send(Err(e));
                }
            }
        })?
    };
    let registered = answered.recv().map_err(|_| io::Error::other("the thread of the ring ended"))??;
    Ok(Started { thread, wake: Wake(wake), registered })
}

fn run(mut ring: Ring, output: &Output, queue: &Receiver<Job>) {
    let mut pending: VecDeque<(Arc<Job>, Piece)> = VecDeque::new();
    let mut parts = Vec::new();
    let mut done = Vec::new();
    let mut open = true;
    loop {
        while ring.room() > 0 {
            let Some((job, piece)) = pending.pop_front() else {
                match queue.try_recv() {
                    Ok(job) if output.check().is_ok() => {
                        parts.clear();
                        pieces(&job, output, &mut parts);
                        let job = Arc::new(job);
                        pending.extend(parts.drain(..).map(|piece| (job.clone(), piece)));
                    }
                    // After a failure nothing counts any more: what is queued is let go.
                    Ok(_) => {}
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        open = false;
                        break;
                    }
                }
                continue;
            };
            if output.check().is_err() {
                continue;
            }
            // Direct I/O may have been refused since this was cut.
            let piece = Piece { direct: piece.direct && output.may_be_direct(), ..piece };
            if let Err(flight) = ring.push(Flight { job, piece }) {
                write_here(output, &flight, 0);
            }
        }
        if !open && pending.is_empty() && ring.in_flight() == 0 {
            return;
        }
        if let Err(e) = ring.wait(&mut done) {
            output.fail_io(&e, "waiting for io_uring");
            break;
        }
        for (flight, result) in done.drain(..) {
            settle(output, &flight, result);
        }
    }
    // The ring is broken: drain and drop the queue, so that no caller waits for ever.
    drop(pending);
    drop(ring);
    for _ in queue {}
}

/// A write came back.
fn settle(output: &Output, flight: &Flight, result: i32) {
    match usize::try_from(result) {
        Ok(written) if written == flight.piece.len => {
            let piece = flight.piece;
            if piece.direct || output.wrote_cached(piece.guest..piece.guest + piece.len as u64).is_ok() {
                output.count(piece.len);
            }
        }
        Ok(written) => write_here(output, flight, written),
        Err(_) => write_here(output, flight, 0),
    }
}

/// Writes that a ring cut short, deferred or refused are finished by plain calls, and their result is final.
fn write_here(output: &Output, flight: &Flight, written: usize) {
    let Piece { at, len, guest, direct } = flight.piece;
    // Whole blocks only count, so that the rest is as aligned as the whole was.
    let from = if direct { written - written % output.grain() } else { written };
    if output.check().is_ok()
        && output.write(&flight.job.bytes[at + from..at + len], guest + from as u64, direct).is_ok()
    {
        output.count(len);
    }
}
