//! The target, the buffers, and the engine that writes them.
//!
//! ```text
//!  worker ──Write{Arc<Buf>, segments, ticket}──► bounded queue ──► engine ──► file or block device
//!                                                                  io_uring: one thread owns the ring
//!                                                                  pwrite:   a few threads
//! ```
//!
//! - `pool`: buffers of one size, 4 KiB aligned, of a fixed number. The only back-pressure.
//! - `target`: opening, sizing, growing, preallocating a file or a block device.
//! - `output`: the calls on the open target: writing a piece, zeroing, syncing; remembers the first failure.
//! - `pwrite`, `uring`: the engines, chosen by trying (set-up, probe, one operation), never by version.
//! - `errno`: the text of the kernel's errors.
//! - `writeback`: keeps what goes through the page cache from staying there.
//! - `scan`: which bytes of a buffer are worth writing.
//!
//! Direct I/O writes whole 4 KiB pages of the guest only, or whole blocks of a filesystem whose blocks are larger; what
//! does not fill one (the tail of a disk, clusters of 512 bytes) goes through the page cache by a second descriptor, so
//! none is ever written both ways.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{SendTimeoutError, Sender};

use crate::error::{Error, Kind};
use crate::stop::Stop;

mod errno;
mod output;
mod pool;
mod pwrite;
mod scan;
mod target;
mod uring;
mod writeback;

use output::Output;
pub use pool::{Buf, Pool};
pub use scan::data_runs;
pub use target::Target;
pub(crate) use target::sync_folder;

/// Alignment of direct writes, in bytes: the largest sector in use, and a page of memory.
const PAGE: usize = 4096;
/// Writes that may wait in the queue. Their buffers come from pools, which are the real bound.
const QUEUE: usize = 64;
/// How often a full queue is looked at again for a failure or a stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Largest piece handed to the kernel at once; it takes no more than 2 GiB.
const PIECE_MAX: usize = 1 << 30;

/// Bytes `at..at + len` of a buffer, to be written at guest offset `guest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte in the buffer.
    pub at: usize,
    /// Number of bytes.
    pub len: usize,
    /// Where they go, in bytes from the start of the disk.
    pub guest: u64,
}

/// Something that is held until a write is done, then dropped. It is dropped after a failure too, but only after the
/// failure is known, so that a [`Writer::sync`] that follows fails.
pub type Ticket = Arc<dyn Any + Send + Sync>;

/// A buffer and where its parts go.
pub struct Write {
    /// The buffer; it goes back to its pool when it is written.
    pub bytes: Arc<Buf>,
    /// Parts of it, of any alignment. Whole guest pages at an equally aligned place in the buffer are written
    /// directly, the rest through the page cache.
    pub segments: Vec<Segment>,
    /// Dropped when all segments are written.
    pub ticket: Ticket,
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Write").field("segments", &self.segments).finish_non_exhaustive()
    }
}

/// Whether to go past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// If the target takes it.
    #[default]
    Try,
    /// No.
    Never,
}

/// The way bytes get to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// One thread with an io_uring.
    IoUring,
    /// Threads that write.
    Pwrite,
}

impl EngineKind {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Pwrite => "pwrite",
        }
    }
}

/// How to write.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size given is only a bound: a file is not made that long, [`Writer::set_len`] gets its length.
    pub grows: bool,
    /// Reserve the blocks of the whole file before writing, or when its length becomes known; else it stays sparse.
    pub preallocate: bool,
    /// Whether to go past the page cache.
    pub direct: Direct,
    /// This engine and no other; by trying if `None`.
    pub engine: Option<EngineKind>,
    /// Register files and buffers with the ring, as far as it lets us.
    pub registered: bool,
    /// Writes in flight in the ring.
    pub depth: u32,
    /// Threads of the pwrite engine.
    pub threads: usize,
    /// Ends waiting for the queue and zeroing of large ranges.
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            grows: false,
            preallocate: false,
            direct: Direct::Try,
            engine: None,
            registered: true,
            depth: 32,
            threads: 4,
            stop: Stop::new(),
        }
    }
}

/// The engine in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    /// The engine in use.
    pub kind: EngineKind,
    /// Whether whole pages go past the page cache.
    pub direct: bool,
    /// Whether the ring has files and buffers registered.
    pub registered: bool,
    /// Why no faster way is used; empty when it is the fastest.
    pub why: String,
}

impl Engine {
    fn because(&mut self, why: &str) {
        if !why.is_empty() {
            if !self.why.is_empty() {
                self.why.push_str("; ");
            }
            self.why.push_str(why);
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = if self.direct { "direct" } else { "page cache" };
        write!(f, "{}, {cache}", self.kind.name())?;
        if self.registered {
            f.write_str(", registered")?;
        }
        if !self.why.is_empty() {
            write!(f, " ({})", self.why)?;
        }
        Ok(())
    }
}

/// The engine in use, now and whenever it is asked: direct I/O may be refused at any write. Outlives its writer.
#[derive(Clone, Debug)]
pub struct EngineNow(Arc<Mutex<Engine>>);

impl EngineNow {
    /// The engine.
    pub fn get(&self) -> Engine {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether every write so far succeeded. A ticket is dropped after the failure of its own write is known here, so one
/// that is dropped while this is good was written.
#[derive(Clone, Debug)]
pub struct Health(Arc<Output>);

impl Health {
    /// Nothing has failed.
    pub fn is_good(&self) -> bool {
        !self.0.has_failed()
    }
}

/// Counters of the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes written as data.
    pub bytes: u64,
    /// Bytes made zero without being handed over as data.
    pub zeroed: u64,
    /// The engine that was in use at the end.
    pub engine: Engine,
}

/// A write on its way. The order of fields is the order of dropping: the ticket last.
struct Job {
    bytes: Arc<Buf>,
    segments: Vec<Segment>,
    _ticket: Ticket,
}

/// A part of a buffer that goes to the kernel in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: usize,
    len: usize,
    guest: u64,
    /// Whole pages from an aligned address, to go past the page cache.
    direct: bool,
}

/// Cuts a job into pieces; segments that go on where the last one ended become one.
fn pieces(job: &Job, output: &Output, out: &mut Vec<Piece>) {
    let mut open: Option<Piece> = None;
    for &Segment { at, len, guest } in job.segments.iter().filter(|segment| segment.len > 0) {
        match &mut open {
            Some(piece)
                if piece.at + piece.len == at
                    && piece.guest + piece.len as u64 == guest
                    && piece.len + len <= PIECE_MAX =>
            {
                piece.len += len;
            }
            _ => {
                if let Some(piece) = open.replace(Piece { at, len, guest, direct: false }) {
                    output.cut(piece, out);
                }
            }
        }
    }
    if let Some(piece) = open {
        output.cut(piece, out);
    }
}

/// Writes to a target; shared by reference between threads.
pub struct Writer {
    output: Arc<Output>,
    queue: Option<Sender<Job>>,
    wake: Option<uring::Wake>,
    threads: Vec<JoinHandle<()>>,
    finished: AtomicBool,
    /// The length given to [`Writer::set_len`].
    lengths: Vec<u64>,
}

impl Writer {
    /// Makes `target` ready for a disk of `size` bytes and starts the engine, the best one that works.
    ///
    /// A file shorter than `size` grows to it, sparse or, if `options` say so, with its blocks reserved; a longer one
    /// keeps its length. The file's length is fixed from here on.
    ///
    /// # Errors
    /// [`Kind::TooLarge`] for a device smaller than `size`, [`Kind::NoSpace`] when it does not fit, [`Kind::Target`]
    /// otherwise, also when the one engine that was asked for does not work.
    pub fn open(target: Target, size: u64, options: &Options) -> Result<Self, Error> {
        let shown = target.path().display().to_string();
        let output = Arc::new(Output::open(target, size, options)?);
        let (queue, jobs) = crossbeam_channel::bounded(QUEUE);
        let mut refusal = String::new();
        // A ring without direct I/O gains nothing: the kernel hands cached writes to threads of its own.
        let try_ring = match options.engine {
            Some(EngineKind::IoUring) => true,
            Some(EngineKind::Pwrite) => false,
            None => output.may_be_direct(),
        };
        let mut started = None;
        if try_ring {
            match uring::start(&output, &jobs, options.depth.clamp(1, 1024), options.registered) {
                Ok(ring) => started = Some(ring),
                Err(e) if options.engine.is_some() => {
                    output.give_up()?;
                    return Err(Error::with(
                        Kind::Target,
                        format!("io_uring cannot be used to write {shown}"),
                        e,
                    ));
                }
                Err(e) => refusal = format!("io_uring is refused: {e}"),
            }
        }
        let (threads, wake) = match started {
            Some(ring) => {
                output.set_engine(EngineKind::IoUring, ring.registered, "");
                (vec![ring.thread], Some(ring.wake))
            }
            None => {
                output.set_engine(EngineKind::Pwrite, false, &refusal);
                let threads = pwrite::start(&output, &jobs, options.threads)
                    .map_err(|e| Error::target(format!("starting the threads that write {shown}"), e))?;
                (threads, None)
            }
        };
        tracing::info!(target = %shown, engine = %output.engine(), "writing");
        Ok(Self {
            output,
            queue: Some(queue),
            wake,
            threads,
            finished: AtomicBool::new(false),
            lengths: Vec::new(),
        })
    }

    /// Queues a write; waits while the queue is full.
    ///
    /// # Errors
    /// The first failure of any write so far; [`Kind::Stopped`]; a segment outside the buffer or the disk.
    pub fn write(&self, write: Write) -> Result<(), Error> {
        let Write { bytes, segments, ticket } = write;
        for segment in &segments {
            let inside = segment.at.checked_add(segment.len).is_some_and(|end| end <= bytes.len());
            if !inside {
                let what = format!(
                    "bytes {} and {} more are not in a buffer of {}",
                    segment.at,
                    segment.len,
                    bytes.len()
                );
                return Err(Error::new(Kind::Target, what));
            }
            self.check_range(segment.guest, segment.len as u64)?;
        }
        let Some(queue) = &self.queue else {
            return Err(Error::new(Kind::Target, "the writer is closed"));
        };
        let mut job = Job { bytes, segments, _ticket: ticket };
        loop {
            self.output.check()?;
            match queue.send_timeout(job, POLL_INTERVAL) {
                Ok(()) => break,
                Err(SendTimeoutError::Timeout(back)) => {
                    self.output.stop().check()?;
                    job = back;
                }
                Err(SendTimeoutError::Disconnected(_)) => {
                    return Err(Error::new(Kind::Target, "the threads that write have ended"));
                }
            }
        }
        if let Some(wake) = &self.wake {
            wake.ring();
        }
        Ok(())
    }

    /// Makes `guest` read as zero, before it returns. On a fresh file there is nothing to do; a kept file or a block
    /// device is punched, zeroed in place or written, whichever works.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub fn zero(&self, guest: Range<u64>, ticket: Ticket) -> Result<(), Error> {
        if guest.start < guest.end {
            self.check_range(guest.start, guest.end - guest.start)?;
            self.output.zero(guest)?;
        }
        drop(ticket);
        Ok(())
    }

    fn check_range(&self, guest: u64, len: u64) -> Result<(), Error> {
        let size = self.output.size();
        if guest.checked_add(len).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(Error::new(Kind::Target, format!("{len} bytes at {guest} are not on a disk of {size} bytes")))
    }

    /// Makes durable what is written. Queued writes are not waited for: callers sync the bytes that tickets reported.
    ///
    /// # Errors
    /// When any write failed so far, or the sync does; for ever after.
    pub fn sync(&self) -> Result<(), Error> {
        self.output.sync()
    }

    /// Makes durable what was written before the first failure, after one as well: a full disk is no reason to lose its
    /// content. The bytes that tickets reported while [`Writer::health`] was good count as written.
    ///
    /// # Errors
    /// When the failure was a sync or a write-back, which may have lost anything.
    pub fn salvage(&self) -> Result<(), Error> {
        self.output.salvage()
    }

    /// Whether a write has failed, for holders of tickets.
    pub fn health(&self) -> Health {
        Health(self.output.clone())
    }

    /// The size it was opened with.
    pub fn size(&self) -> u64 {
        self.output.size()
    }

    /// Gives a file its length, where that was not known when it was opened ([`Options::grows`]): when it is finished, and
    /// one length after the other. What was written behind one of them is gone. Not before: where writes behind the old
    /// end are on their way in an io_uring, XFS zeroes what they have written (seen with Linux 6.18).
    pub fn set_len(&mut self, len: u64) {
        self.lengths.push(len);
    }

    /// Writes what is queued, gives the file its length, makes the disk and its name durable, and closes it.
    ///
    /// # Errors
    /// The first failure there was; a filesystem that has no files that large.
    pub fn finish(mut self) -> Result<Written, Error> {
        self.finished.store(true, Ordering::Release);
        self.drain();
        self.output.check()?;
        self.output.set_lengths(&self.lengths)?;
        self.output.close()?;
        let (bytes, zeroed) = self.output.written();
        Ok(Written { bytes, zeroed, engine: self.output.engine() })
    }

    /// Closes the queue and waits for the engine to end.
    fn drain(&mut self) {
        drop(self.queue.take());
        if let Some(wake) = &self.wake {
            wake.ring();
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.output.fail_io(&std::io::Error::other("a thread panicked"), "writing");
            }
        }
    }

    /// The engine in use. Changes when direct I/O is refused at a write.
    pub fn engine(&self) -> Engine {
        self.output.engine()
    }

    /// The engine in use, for later inspection.
    pub fn engine_now(&self) -> EngineNow {
        EngineNow(self.output.engine_cell())
    }

    /// Whether the target is a block device.
    pub fn is_block(&self) -> bool {
        self.output.is_block()
    }
}

impl Drop for Writer {
    /// Without [`Writer::finish`] what is queued is let go; what the kernel has is waited for.
    fn drop(&mut self) {
        if !self.finished.load(Ordering::Acquire) {
            self.output.fail_io(&std::io::Error::other("it was given up"), "writing");
        }
        self.drain();
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("output", &self.output).finish_non_exhaustive()
    }
}
