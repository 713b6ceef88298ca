//! How far a transfer is, readable from any thread. Not here: how it is shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one transfer. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    read: Arc<AtomicU64>,
    written: AtomicU64,
    /// Of a million.
    parts: AtomicU64,
}

const WHOLE: u64 = 1_000_000;

impl Progress {
    /// Nothing done yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes read from the source.
    pub fn read(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }

    /// Bytes of disk content handed to the target.
    pub fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// 0 to 100, never going back.
    pub fn percent(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most a million")]
        let parts = self.0.parts.load(Ordering::Relaxed) as f64;
        parts / 10_000.0
    }

    pub(super) fn reads(&self) -> Arc<AtomicU64> {
        self.0.read.clone()
    }

    pub(super) fn add_written(&self, bytes: u64) {
        self.0.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `done` of `total`; a later call never lowers it.
    pub(super) fn reached(&self, done: u64, total: u64) {
        let parts = u128::from(done.min(total)) * u128::from(WHOLE) / u128::from(total.max(1));
        self.0.parts.fetch_max(u64::try_from(parts).unwrap_or(WHOLE), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_monotonic_and_bounded() {
        let progress = Progress::new();
        assert_eq!(progress.percent(), 0.0);
        progress.reached(1, 4);
        assert_eq!(progress.percent(), 25.0);
        progress.reached(1, 8);
        assert_eq!(progress.percent(), 25.0);
        progress.reached(u64::MAX, u64::MAX);
        assert_eq!(progress.percent(), 100.0);
        progress.reached(0, 0);
        assert_eq!(progress.percent(), 100.0);
    }
}
