//! How far the filling of a volume is, and what it is doing. Not here: counting bytes
//! ([`crate::transfer::Progress`]), how it is shown.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::transfer::Progress;
use crate::write::{Engine, EngineNow};

/// Progress. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// The transfer's counters.
    pub transfer: Progress,
    told: Arc<SharedProgress>,
}

#[derive(Debug, Default)]
struct SharedProgress {
    phase: Mutex<&'static str>,
    engine: Mutex<Option<EngineNow>>,
    complete: AtomicBool,
    /// Bytes of the source, when reading them is all the progress there is; 0 when not known.
    expected: AtomicU64,
}

impl Meter {
    /// Progress is the share of `size` that was read: for what is no disk.
    pub(super) fn expect_bytes(&self, size: Option<u64>) {
        self.told.expected.store(size.unwrap_or(0), Ordering::Relaxed);
    }

    /// The current activity, one or two words.
    pub(super) fn phase(&self, phase: &'static str) {
        *self.told.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        tracing::debug!(phase, "now");
    }

    /// The engine that writes.
    pub(super) fn engine(&self, engine: EngineNow) {
        *self.told.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
    }

    /// All is done.
    pub fn complete(&self) {
        self.told.complete.store(true, Ordering::Relaxed);
    }

    /// 0 to 100.
    pub fn percent(&self) -> f64 {
        if self.told.complete.load(Ordering::Relaxed) {
            return 100.0;
        }
        match self.told.expected.load(Ordering::Relaxed) {
            0 => self.transfer.percent().clamp(0.0, 100.0),
            #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
            expected => (self.transfer.read() as f64 / expected as f64 * 100.0).clamp(0.0, 100.0),
        }
    }

    /// [`Meter::percent`] as controllers look for it: at most two decimals, no exponent.
    pub fn percent_text(&self) -> String {
        decimal(self.percent())
    }

    /// The current activity, one or two words.
    pub fn current_phase(&self) -> &'static str {
        *self.told.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the target is written, once it is.
    pub fn current_engine(&self) -> Option<Engine> {
        self.told.engine.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(EngineNow::get)
    }
}

fn decimal(percent: f64) -> String {
    let text = format!("{percent:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_plain_decimals() {
        for (percent, text) in
            [(0.0, "0"), (0.0001, "0"), (12.345, "12.35"), (50.0, "50"), (99.999, "100"), (7.5, "7.5")]
        {
            assert_eq!(decimal(percent), text);
        }
    }
}
