//! Starts the stages, watches them, commits what is durable, and collects the first failure.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::completion::Tracker;
use super::image::Image;
use super::map;
use super::parts::{self, Pace};
use super::plan::Way;
use super::work::{Chunk, Worker};
use super::{Ledger, Progress, Report, Spool, forward};
use crate::detect::Format;
use crate::error::{Error, Kind};
use crate::extent::RangeSet;
use crate::stop::Stop;
use crate::write::{Pool, Writer};

/// Smallest chunk buffer; larger ones are used when the format's packed extents need them.
const CHUNK: usize = 1 << 20;
/// Most threads that unpack.
const WORKERS_MAX: usize = 16;
/// How long finished ranges may wait to be remembered.
const COMMIT_AFTER: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(20);

/// State shared by all stages.
pub(super) struct Shared<'a> {
    pub(super) image: &'a Image,
    pub(super) writer: &'a Writer,
    pub(super) spool: &'a Spool,
    /// Ends every stage: a failure somewhere, or the user's wish.
    pub(super) halt: Stop,
    pub(super) chunks: Pool,
    pub(super) out: Pool,
    pub(super) tracker: Arc<Tracker>,
    /// Allocation unit of packed extents.
    pub(super) unit: u64,
    /// The target may hold something else than zeroes.
    pub(super) dirty: bool,
    pub(super) progress: &'a Progress,
    done: RangeSet,
    credit: AtomicU64,
    kept: AtomicU64,
    zeroes: AtomicU64,
    resumed: AtomicU64,
    size: AtomicU64,
    /// The image turned out to be a fixed VHD.
    footer: AtomicBool,
    readers: AtomicUsize,
    mapped: AtomicBool,
    /// Bytes of the source up to which readers go on before more is remembered.
    horizon: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl Shared<'_> {
    /// The parts of a guest range that no earlier run has finished.
    pub(super) fn todo(&self, guest: Range<u64>) -> Vec<Range<u64>> {
        let gaps = self.done.gaps(guest.clone());
        let todo: u64 = gaps.iter().map(|g| g.end - g.start).sum();
        self.resumed.fetch_add(guest.end - guest.start - todo, Ordering::Relaxed);
        gaps
    }

    /// A guest range reads as zero: nothing to do on a fresh file.
    pub(super) fn zero(&self, guest: Range<u64>) -> Result<(), Error> {
        self.count(0, guest.end - guest.start);
        if !self.dirty {
            self.tracker.mark(guest);
            return Ok(());
        }
        for gap in self.done.gaps(guest) {
            let ticket = Arc::new(self.tracker.ticket(vec![gap.clone()]));
            self.writer.zero(gap, ticket.clone())?;
            ticket.complete();
        }
        Ok(())
    }

    /// Counts bytes of the disk as written and as zero.
    pub(super) fn count(&self, kept: u64, zeroes: u64) {
        self.kept.fetch_add(kept, Ordering::Relaxed);
        self.zeroes.fetch_add(zeroes, Ordering::Relaxed);
        self.progress.add_written(kept);
    }

    /// `bytes` more of the virtual disk are dealt with (progress only).
    pub(super) fn credit(&self, bytes: u64) {
        let all = self.credit.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.image.way != Way::Forward {
            self.progress.reached(all, self.image.layout.virtual_size());
        }
    }

    /// A raw image ends at `size` with `tail`. Gives where the disk ends: before the footer, if it is a fixed VHD.
    pub(super) fn raw_end(&self, tail: &[u8], size: u64) -> Result<u64, Error> {
        let before = self.image.disk_before_footer(tail, size)?;
        self.footer.store(before.is_some(), Ordering::Relaxed);
        let disk = before.unwrap_or(size);
        self.size.store(disk, Ordering::Relaxed);
        if disk > self.writer.size() {
            return Err(Error::too_large(disk, self.writer.size()));
        }
        Ok(disk)
    }

    pub(super) fn readers_wanted(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    /// Waits while more is read and not remembered than [`super::Limits::reread`].
    pub(super) fn rest(&self) -> Result<(), Error> {
        while self.progress.read() > self.horizon.load(Ordering::Acquire) {
            self.halt.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn mapped(&self) -> bool {
        self.mapped.load(Ordering::Acquire)
    }

    /// Records the first failure and ends every stage. A stop because of another stage is not a failure.
    fn settle(&self, result: Result<(), Error>) {
        if let Err(error) = result {
            if error.kind() != Kind::Stopped {
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            self.halt.set();
        }
    }
}

/// Moves `image` to `writer`, whose size is the image's virtual size (or unknown and growing; or less by the footer that
/// the image may end in, see [`Image::least_size`]). The caller finishes the writer after `Ok`.
///
/// # Errors
/// The first failure of any stage. What is durable by then is in the ledger.
pub fn run(
    image: &Image,
    writer: &Writer,
    ledger: &mut dyn Ledger,
    spool: &Spool,
    progress: &Progress,
    stop: &Stop,
) -> Result<Report, Error> {
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    let workers = if image.limits.workers == 0 { cpus } else { image.limits.workers }.clamp(1, WORKERS_MAX);
    let readers = match image.way {
        Way::Forward => 1,
        Way::Tables | Way::Blocks => image.source.connections().clamp(1, image.limits.connections.max(1)),
    };
    let (packed, unit) = match image.layout.packed_max() as usize {
        0 => (0, 0),
        packed => (packed, usize::try_from(image.layout.unit()).unwrap_or(usize::MAX)),
    };
    let chunk = CHUNK.max((packed + 8192).next_multiple_of(4096));
    let out = CHUNK.max(unit.saturating_add(4096).next_multiple_of(4096));
    let half = image.limits.memory / 2;
    let shared = Shared {
        image,
        writer,
        spool,
        halt: Stop::new(),
        chunks: Pool::new((half / chunk).max(3), chunk),
        out: Pool::new((half / out).max(2), out),
        tracker: Arc::new(Tracker::new(Some(writer.health()))),
        unit: unit as u64,
        dirty: writer.is_block(),
        progress,
        done: ledger.done(),
        credit: AtomicU64::new(0),
        kept: AtomicU64::new(0),
        zeroes: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
        size: AtomicU64::new(image.layout.virtual_size()),
        footer: AtomicBool::new(false),
        readers: AtomicUsize::new(readers.min(2)),
        mapped: AtomicBool::new(false),
        horizon: AtomicU64::new(match ledger.remembers() {
            true => progress.read().saturating_add(image.limits.reread),
            false => u64::MAX,
        }),
        failure: Mutex::new(None),
    };
    // More workers than output buffers would wait for each other.
    let workers = workers.min(half / out).max(1);
    std::thread::scope(|scope| {
        let (alive, ended) = bounded::<()>(0);
        let (chunk_tx, chunk_rx) = bounded(half.div_ceil(chunk));
        for _ in 0..workers {
            let (shared, alive, chunks) = (&shared, alive.clone(), chunk_rx.clone());
            scope.spawn(move || {
                let _alive = alive;
                shared.settle(work(shared, &chunks));
            });
        }
        start_readers(scope, &shared, readers, &chunk_tx, &alive);
        drop((alive, chunk_tx, chunk_rx));
        watch(&shared, ledger, &ended, stop, readers);
    });
    conclude(&shared, ledger, stop)
}

fn start_readers<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    shared: &'scope Shared<'scope>,
    readers: usize,
    chunks: &Sender<Chunk>,
    alive: &Sender<()>,
) {
    if shared.image.way == Way::Forward {
        let (chunks, alive) = (chunks.clone(), alive.clone());
        scope.spawn(move || {
            let _alive = alive;
            shared.settle(forward::forward(shared, &chunks));
        });
        return;
    }
    let (job_tx, job_rx) = bounded(readers * 2);
    for index in 0..readers {
        let (jobs, chunks, alive) = (job_rx.clone(), chunks.clone(), alive.clone());
        scope.spawn(move || {
            let _alive = alive;
            shared.settle(parts::feed(shared, index, &jobs, &chunks));
        });
    }
    let alive = alive.clone();
    scope.spawn(move || {
        let _alive = alive;
        let result = map::map(shared, &job_tx);
        shared.settle(result);
        drop(job_tx);
        shared.mapped.store(true, Ordering::Release);
    });
}

fn work(shared: &Shared<'_>, chunks: &Receiver<Chunk>) -> Result<(), Error> {
    let mut worker = Worker::new(shared)?;
    for chunk in chunks {
        shared.halt.check()?;
        worker.process(chunk)?;
    }
    Ok(())
}

/// Commits now and then, sets the number of readers, passes the wish to stop on; ends when every stage has.
fn watch(shared: &Shared<'_>, ledger: &mut dyn Ledger, ended: &Receiver<()>, stop: &Stop, readers: usize) {
    let mut pace = Pace::new(readers);
    let mut committed = (Instant::now(), shared.progress.read());
    let mut measured = (Instant::now(), shared.progress.read());
    loop {
        match ended.recv_timeout(TICK) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if stop.is_set() {
            shared.halt.set();
        }
        let read = shared.progress.read();
        let reread = shared.image.limits.reread;
        let due = committed.0.elapsed() >= COMMIT_AFTER || read - committed.1 >= reread / 2;
        if due && ledger.remembers() && !shared.halt.is_set() {
            let fresh = shared.tracker.take();
            if !fresh.is_empty() {
                shared.settle(commit(shared, ledger, &fresh));
            }
            committed = (Instant::now(), read);
            shared.horizon.store(read.saturating_add(reread), Ordering::Release);
        }
        let past = measured.0.elapsed();
        if past >= Duration::from_millis(500) {
            #[expect(clippy::cast_precision_loss, reason = "a rate for comparison")]
            pace.observe((read - measured.1) as f64 / past.as_secs_f64());
            measured = (Instant::now(), read);
            shared.readers.store(pace.wanted(), Ordering::Relaxed);
        }
    }
}

fn commit(shared: &Shared<'_>, ledger: &mut dyn Ledger, fresh: &RangeSet) -> Result<(), Error> {
    if let Err(error) = shared.writer.sync() {
        // Perhaps another write failed and these are fine: `conclude` tries once more.
        shared.tracker.put_back(fresh);
        return Err(error);
    }
    ledger.commit(fresh).map_err(|e| Error::target("cannot remember what is finished", e))
}

/// Data written before a failure is kept, as far as it is certain.
fn salvage(shared: &Shared<'_>, ledger: &mut dyn Ledger, fresh: &RangeSet) -> Result<(), Error> {
    shared.writer.salvage()?;
    ledger.commit(fresh).map_err(|e| Error::target("cannot remember what is finished", e))
}

/// The outcome; an unfinished transfer commits what was written first.
fn conclude(shared: &Shared<'_>, ledger: &mut dyn Ledger, stop: &Stop) -> Result<Report, Error> {
    let failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    if failure.is_none() && !shared.halt.is_set() {
        let footer = shared.footer.load(Ordering::Relaxed);
        // The caller cuts the target where the disk ends; nothing that is queued may make it longer again.
        while footer && shared.tracker.outstanding() > 0 {
            stop.check()?;
            std::thread::sleep(TICK);
        }
        let kept = shared.kept.load(Ordering::Relaxed);
        shared.progress.reached(1, 1);
        return Ok(Report {
            format: if footer { Format::Vhd } else { shared.image.format() },
            virtual_size: shared.size.load(Ordering::Relaxed),
            bytes_read: shared.progress.read(),
            bytes_written: kept,
            bytes_zero: shared.zeroes.load(Ordering::Relaxed),
            bytes_resumed: shared.resumed.load(Ordering::Relaxed),
        });
    }
    let patience = Instant::now();
    while shared.tracker.outstanding() > 0 && patience.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let fresh = shared.tracker.take();
    let nothing = fresh.is_empty() || !ledger.remembers();
    match failure {
        Some(failure) => {
            let kept = if nothing { Ok(()) } else { salvage(shared, ledger, &fresh) };
            if let Err(error) = kept {
                tracing::debug!(%error, "the last writes are not in the journal; a retry repeats them");
            }
            Err(failure)
        }
        None => {
            let last = if nothing { Ok(()) } else { commit(shared, ledger, &fresh) };
            stop.check()?;
            last?;
            Err(Error::new(Kind::Stopped, "the transfer was halted"))
        }
    }
}
