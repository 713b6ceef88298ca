//! Which guest ranges are written, so that they can be made durable and remembered.
//!
//! A chunk's ranges travel in a [`Ticket`] with its writes; the writer drops its clones as writes end, and the last
//! drop reports the ranges. A failed write drops its ticket too, but after one every sync fails, so that nothing
//! reported late is ever committed.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::extent::RangeSet;

/// Collects what is written until it is committed.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    fresh: Mutex<RangeSet>,
    outstanding: AtomicUsize,
}

/// The guest ranges of one chunk, on their way to the target.
#[derive(Debug)]
pub(super) struct Ticket {
    tracker: Arc<Tracker>,
    ranges: Vec<Range<u64>>,
}

impl Tracker {
    /// A ticket for `ranges`.
    pub(super) fn ticket(self: &Arc<Self>, ranges: Vec<Range<u64>>) -> Ticket {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        Ticket { tracker: self.clone(), ranges }
    }

    /// `range` needs no write.
    pub(super) fn mark(&self, range: Range<u64>) {
        self.lock().insert(range);
    }

    /// What was finished since the last call.
    pub(super) fn take(&self) -> RangeSet {
        std::mem::take(&mut *self.lock())
    }

    /// Tickets whose writes have not ended.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RangeSet> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        {
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
        let tracker = Arc::new(Tracker::default());
        let ticket = Arc::new(tracker.ticket(vec![0..10, 20..30]));
        let other = ticket.clone();
        drop(ticket);
        assert!(tracker.take().is_empty());
        assert_eq!(tracker.outstanding(), 1);
        drop(other);
        assert_eq!(tracker.take().bytes(), 20);
        assert_eq!(tracker.outstanding(), 0);
        assert!(tracker.take().is_empty());
    }
}
