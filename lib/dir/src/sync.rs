//! fsync(2) of files and directories, and a hook for programs that measure how long it takes.

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

static OBSERVER: OnceLock<fn(Duration)> = OnceLock::new();

/// Calls `observer` with the duration of every [`fsync`] of this process. The first observer stays.
pub fn observe_syncs(observer: fn(Duration)) {
    let _ = OBSERVER.set(observer);
}

/// Waits until `file`, or the names in a directory, are on the disk.
///
/// XFS reports a directory as synced when its log holds nothing of it any more, also after the log was shut down. fstat(2)
/// fails on such a filesystem, so it is asked afterwards.
///
/// # Errors
/// Those of fsync(2) and fstat(2).
pub fn fsync(file: impl AsFd) -> rustix::io::Result<()> {
    let begun = Instant::now();
    let synced = rustix::fs::fsync(&file);
    if let Some(observer) = OBSERVER.get() {
        observer(begun.elapsed());
    }
    synced?;
    rustix::fs::fstat(file).map(drop)
}
