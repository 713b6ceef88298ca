//! Deleted objects: moved here in one step, removed later by the worker. The sweep at start also moves incomplete objects
//! here, except copies that can be resumed, and removes records without an object.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::Result;
use crate::id::Id;
use dir::Dir;

use super::{Open, tree};

/// Prefix of copies in the temporary directory.
pub(crate) const COPY: &str = "c";
/// How long a copy that was cut short waits for the next try.
const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);

/// Makes names unique within the process; the time makes them unique between processes.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A name that nothing in the trash has.
pub(super) fn fresh_name() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{time:x}-{:x}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Moves `name` out of `folder` into the trash. The folder is not synced.
pub(crate) fn discard(open: &Open<'_>, folder: &Dir, name: &str) -> Result<()> {
    Ok(folder.rename(name, &*open.trash()?, fresh_name())?)
}

/// Removes everything that is in the trash; gives what is still there because it could not be.
pub(crate) fn empty(open: &Open<'_>) -> Result<usize> {
    let trash = open.trash()?;
    let mut left = 0;
    // Removing flattens deep trees into the trash: it is gone through until nothing is new.
    loop {
        let names = trash.names()?;
        if names.len() == left {
            return Ok(left);
        }
        left = 0;
        for name in &names {
            if let Err(error) = tree::remove(&trash, name, fresh_name) {
                left += 1;
                tracing::warn!(
                    pool = open.pool.config.name,
                    error = %error.chain(),
                    "a deleted object cannot be removed; retrying"
                );
            }
        }
    }
}

/// Whether this is a copy that may still go on.
fn is_kept(tmp: &Dir, name: &OsStr) -> Result<bool> {
    if !name.as_bytes().starts_with(COPY.as_bytes()) {
        return Ok(false);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let oldest = i64::try_from(now.saturating_sub(KEEP).as_secs()).unwrap_or(0);
    Ok(tmp.stat(name)?.is_some_and(|stat| stat.st_mtime > oldest))
}

/// Discards what a process before us left half made, and records of what is not there.
pub(super) fn sweep(open: &Open<'_>) -> Result<()> {
    let tmp = open.tmp()?;
    for name in tmp.names()? {
        if is_kept(&tmp, &name)? {
            continue;
        }
        tmp.rename(&name, &*open.trash()?, fresh_name())?;
    }
    if open.pool.config.shared {
        // Another node may be about to make what a record is for.
        return Ok(());
    }
    let blocks = open.blocks()?;
    let records = open.volume_records()?;
    for entry in records.entries()? {
        let id = entry.name.strip_suffix(".json").and_then(Id::read);
        let there = match &id {
            Some(id) => open.root.stat(id)?.is_some() || blocks.stat(id)?.is_some(),
            None => false,
        };
        if !there {
            records.unlink(&entry.name)?;
        }
    }
    let snapshots = open.snapshots()?;
    let records = open.snapshot_records()?;
    for entry in records.entries()? {
        let id = entry.name.strip_suffix(".json").and_then(Id::read);
        let there = match (&id, &snapshots) {
            (Some(id), Some(snapshots)) => snapshots.stat(id)?.is_some(),
            _ => false,
        };
        if !there {
            records.unlink(&entry.name)?;
        }
    }
    Ok(())
}
