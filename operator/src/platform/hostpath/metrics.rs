//! Metrics of `HostPathProvisioner`, with upstream's names.

use std::sync::atomic::{AtomicI8, Ordering};

use serve::metrics::{Kind, Page};

/// Values of the metrics.
#[derive(Debug)]
pub struct Metrics {
    ready: AtomicI8,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { ready: AtomicI8::new(-1) }
    }
}

impl Metrics {
    /// Takes over whether the object is available; `None`: there is none.
    pub fn observe(&self, ready: Option<bool>) {
        self.ready.store(ready.map_or(-1, i8::from), Ordering::Relaxed);
    }

    /// Writes them.
    pub fn write(&self, page: &mut Page) {
        page.single(
            "kubevirt_hpp_cr_ready",
            Kind::Gauge,
            "Whether HostPathProvisioner is available; -1 without one.",
            self.ready.load(Ordering::Relaxed),
        );
    }
}
