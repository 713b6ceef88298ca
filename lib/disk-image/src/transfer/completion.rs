//! Which guest ranges are written, so that they can be made durable and remembered.
//!
//! A chunk's ranges travel in a [`Ticket`] with its writes; the writer drops its clones as writes end, and the last
//! drop reports the ranges, provided that the ticket is *complete*: all its writes were queued. A failed write drops
//! its ticket too, but only after the failure is known: once the writer's health is bad nothing is reported any more,
//! and what was reported before is on the target.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::extent::RangeSet;
use crate::write::Health;

/// Collects what is written until it is committed.
#[derive(Debug)]
pub(super) struct Tracker {
    /// Of the writer; good for ever in tests without one.
    health: Option<Health>,
    fresh: Mutex<RangeSet>,
    outstanding: AtomicUsize,
}

/// The guest ranges of one chunk, on their way to the target.
#[derive(Debug)]
pub(super) struct Ticket {
    tracker: Arc<Tracker>,
    ranges: Vec<Range<u64>>,
    complete: AtomicBool,
}

impl Ticket {
    /// Every write of the ticket's ranges is queued.
    pub(super) fn complete(&self) {
        self.complete.store(true, Ordering::Release);
    }
}

impl Tracker {
    /// Of writes by the writer with this health.
    pub(super) fn new(health: Option<Health>) -> Self {
        Self { health, fresh: Mutex::default(), outstanding: AtomicUsize::new(0) }
    }

    /// A ticket for `ranges`.
    pub(super) fn ticket(self: &Arc<Self>, ranges: Vec<Range<u64>>) -> Ticket {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Ticket { tracker: self.clone(), ranges, complete: AtomicBool::new(false) }
    }

    /// `range` needs no write.
    pub(super) fn mark(&self, range: Range<u64>) {
        self.lock().insert(range);
    }

    /// Ranges finished since the last call.
    pub(super) fn take(&self) -> RangeSet {
        std::mem::take(&mut *self.lock())
    }

    /// Gives back what was taken and could not be made durable yet.
    pub(super) fn put_back(&self, ranges: &RangeSet) {
        let mut fresh = self.lock();
        for range in ranges.iter() {
            fresh.insert(range);
        }
    }

    /// Tickets of unfinished writes.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RangeSet> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let good = self.tracker.health.as_ref().is_none_or(Health::is_good);
        if good && self.complete.load(Ordering::Acquire) {
            let mut fresh = self.tracker.lock();
            for range in self.ranges.drain(..) {
                fresh.insert(range);
            }
        }
        self.tracker.outstanding.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_count_only_after_the_last_clone() {
        let tracker = Arc::new(Tracker::new(None));
        let ticket = Arc::new(tracker.ticket(vec![0..10, 20..30]));
        let other = ticket.clone();
        ticket.complete();
        drop(ticket);
        assert!(tracker.take().is_empty());
        assert_eq!(tracker.outstanding(), 1);
        drop(other);
        assert_eq!(tracker.take().bytes(), 20);
        assert_eq!(tracker.outstanding(), 0);
        assert!(tracker.take().is_empty());
        drop(tracker.ticket(vec![40..50, 60..70]));
        assert!(tracker.take().is_empty(), "a chunk that was given up is not written");
        assert_eq!(tracker.outstanding(), 0);
    }
}
