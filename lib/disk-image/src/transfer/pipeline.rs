//! The state that all stages of a transfer share: pending and finished ranges, counters, and the first failure. Not here: the
//! stages and their start.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::completion::Tracker;
use super::image::Image;
use super::plan::Way;
use super::{Progress, Spool};
use crate::error::{Error, Kind};
use crate::extent::RangeSet;
use crate::stop::Stop;
use crate::write::{Pool, Writer};

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
    pub(super) done: RangeSet,
    pub(super) credit: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) zeroes: AtomicU64,
    pub(super) resumed: AtomicU64,
    pub(super) size: AtomicU64,
    /// The image turned out to be a fixed VHD.
    pub(super) footer: AtomicBool,
    pub(super) readers: AtomicUsize,
    pub(super) mapped: AtomicBool,
    /// Bytes of the source up to which readers go on before more is remembered.
    pub(super) horizon: AtomicU64,
    pub(super) failure: Mutex<Option<Error>>,
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
    pub(super) fn throttle(&self) -> Result<(), Error> {
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
    pub(super) fn settle(&self, result: Result<(), Error>) {
        if let Err(error) = result {
            if error.kind() != Kind::Stopped {
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            self.halt.set();
        }
    }
}
