//! Starts the stages, watches them, commits what is durable, and collects the first failure.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::completion::Tracker;
use super::image::Image;
use super::map;
use super::parts::{self, Pace};
use super::pipeline::Shared;
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
const POLL_INTERVAL: Duration = Duration::from_millis(20);

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
        match ended.recv_timeout(POLL_INTERVAL) {
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
    ledger.commit(fresh).map_err(|e| Error::target("cannot write the journal of the import", e))
}

/// Data written before a failure is kept, as far as it is certain.
fn salvage(shared: &Shared<'_>, ledger: &mut dyn Ledger, fresh: &RangeSet) -> Result<(), Error> {
    shared.writer.salvage()?;
    ledger.commit(fresh).map_err(|e| Error::target("cannot write the journal of the import", e))
}

/// The outcome; an unfinished transfer commits what was written first.
fn conclude(shared: &Shared<'_>, ledger: &mut dyn Ledger, stop: &Stop) -> Result<Report, Error> {
    let failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    if failure.is_none() && !shared.halt.is_set() {
        let footer = shared.footer.load(Ordering::Relaxed);
        // The caller cuts the target where the disk ends; nothing that is queued may make it longer again.
        while footer && shared.tracker.outstanding() > 0 {
            stop.check()?;
            std::thread::sleep(POLL_INTERVAL);
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
