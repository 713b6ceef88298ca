//! What was deleted: moved here in one step, removed later by the worker. Sweeping at the start moves what was half made
//! here too, and forgets records of what is not there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Result;
use crate::folder::Folder;
use crate::id::Id;

use super::{Open, tree};

/// Told apart within a process by this, between processes by the time.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A name that nothing in the trash has.
fn fresh_name() -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{time:x}-{:x}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Moves `name` out of `folder` into the trash. The folder is not synced.
pub(crate) fn discard(open: &Open<'_>, folder: &Folder, name: &str) -> Result<()> {
    folder.replace(name, &open.trash()?, fresh_name())
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
                    error = error.chain(),
                    "something deleted cannot be removed"
                );
            }
        }
    }
}

/// Discards what a process before us left half made, and records of what is not there.
pub(super) fn sweep(open: &Open<'_>) -> Result<()> {
    let tmp = open.tmp()?;
    for name in tmp.names()? {
        tmp.replace(&name, &open.trash()?, fresh_name())?;
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
