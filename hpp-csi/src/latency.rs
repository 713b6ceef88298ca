//! How long the disk takes: syncs and clones, counted for the metrics of the process.

use std::time::Instant;

use serve::metrics::Times;

/// Waits for the disk.
pub(crate) static SYNCS: Times = Times::new();
/// Volumes' and snapshots' content made of another's.
pub(crate) static CLONES: Times = Times::new();

/// Counts every sync of the process.
pub(crate) fn observe_syncs() {
    dir::observe_syncs(|duration| SYNCS.add(duration));
}

/// Calls `what` and counts its duration.
pub(crate) fn count<T>(times: &Times, what: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = what();
    times.add(begun.elapsed());
    done
}
