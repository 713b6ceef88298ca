//! How long the disk takes: syncs and clones, counted for the metrics of the process.

use std::os::fd::AsFd;
use std::time::Instant;

use serve::metrics::Times;

/// Waits for the disk.
pub(crate) static SYNCS: Times = Times::new();
/// Volumes' and snapshots' content made of another's.
pub(crate) static CLONES: Times = Times::new();

/// fsync(2), counted.
///
/// XFS says that a folder is synced when its log has nothing of it to write any more, also when that is because the log was
/// given up. Such a filesystem fails to be looked at, which comes first: what can still be looked at was written.
pub(crate) fn fsync(file: impl AsFd) -> rustix::io::Result<()> {
    count(&SYNCS, || rustix::fs::fsync(&file))?;
    rustix::fs::fstat(file).map(drop)
}

/// Does something and counts how long it took.
pub(crate) fn count<T>(times: &Times, what: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = what();
    times.add(begun.elapsed());
    done
}
