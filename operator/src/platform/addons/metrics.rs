//! Metrics of `NetworkAddonsConfig`, with upstream's names.

use std::sync::atomic::{AtomicBool, Ordering};

use serve::metrics::{Kind, Page};

/// Values of the metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    ready: AtomicBool,
    pool: AtomicBool,
}

impl Metrics {
    /// Takes over whether the object is available, and whether it deploys the MAC pool.
    pub fn observe(&self, ready: bool, pool: bool) {
        self.ready.store(ready, Ordering::Relaxed);
        self.pool.store(pool, Ordering::Relaxed);
    }

    /// Writes them.
    pub fn write(&self, page: &mut Page) {
        let value = |of: &AtomicBool| u8::from(of.load(Ordering::Relaxed));
        page.single(
            "kubevirt_cnao_cr_ready",
            Kind::Gauge,
            "Whether NetworkAddonsConfig is available.",
            value(&self.ready),
        );
        page.single(
            "kubevirt_cnao_cr_kubemacpool_deployed",
            Kind::Gauge,
            "Whether NetworkAddonsConfig deploys the MAC pool.",
            value(&self.pool),
        );
    }
}
