//! The metrics page: upstream's names, and how full the pool is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serve::http::Route;
use serve::metrics::{Kind, Page};

use crate::state::State;

/// The routes of the metrics endpoint.
pub(crate) fn routes(state: Arc<State>) -> Vec<Route> {
    vec![Route { path: "/metrics", body: Box::new(move || Ok(page(&state))) }]
}

fn page(state: &State) -> String {
    let now = state.now();
    let known = state.lock();
    let (collisions, held) = (known.collisions(), known.pool.held());
    let (free, size) = (known.pool.free(now), known.pool.range().size());
    drop(known);
    let mut page = Page::default();
    let help = "Count of running objects sharing the same MAC address (collision when > 1)";
    page.begin("kmp_mac_collisions", Kind::Gauge, help);
    for collision in collisions {
        page.sample("kmp_mac_collisions", &[("mac", &collision.mac.to_string())], collision.between.len());
    }
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let help = "[DEPRECATED] MAC addresses that several objects had at the start, and objects that came with one of another since";
    page.single("kubevirt_kmp_duplicate_macs", Kind::Counter, help, count(&state.duplicates));
    let help =
        "Given MAC addresses decided without the replica that has their block, as it did not answer in time";
    page.single("macpool_unanswered_addresses_total", Kind::Counter, help, count(&state.unanswered));
    page.single("macpool_reviews_total", Kind::Counter, "Reviews that were decided", count(&state.reviews));
    page.single("macpool_addresses_held", Kind::Gauge, "MAC addresses in use", held);
    page.single("macpool_addresses_free", Kind::Gauge, "MAC addresses this replica could give out now", free);
    page.single("macpool_range_size", Kind::Gauge, "MAC addresses in the range", size);
    page.text()
}
