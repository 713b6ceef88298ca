//! Carries out plans, one file per kind of object. Every call may be repeated after an interruption at any point: it finds
//! the state that is there and continues. Not here: decisions ([`crate::plan`]).

mod change;
mod content;
pub(crate) mod defragment;
pub(crate) mod expand_node;
pub(crate) mod group;
pub(crate) mod image;
mod make;
pub(crate) mod metadata;
mod mounted;
pub(crate) mod publish;
pub(crate) mod recover;
pub(crate) mod room;
pub(crate) mod snapshot;
pub(crate) mod stage;
pub(crate) mod stats;
mod still;
pub(crate) mod upkeep;
mod uses;
pub(crate) mod volume;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, fstat};

use crate::error::{Error, Result};
use crate::fault;
use crate::id::Id;
use crate::pool::clone::{Begun, How};
use crate::pool::copy::{self, Since};
use crate::pool::tree;
use crate::pool::{Open, record_name, trash};
use crate::pools::Pools;
use crate::record::{self, Record, Shape, SnapshotRecord};
use dir::Dir;

/// The temporary name of a volume that is being created.
fn volume_in_tmp(id: &Id, how: Option<How>) -> String {
    in_tmp("v", id, how)
}

/// The temporary name of a snapshot that is being taken.
fn snapshot_in_tmp(id: &Id, how: How) -> String {
    in_tmp("s", id, Some(how))
}

/// The temporary name of a member of a group snapshot that is being taken. Its copy is never resumed: it would be of another
/// point in time.
fn member_in_tmp(id: &Id) -> String {
    in_tmp("s", id, None)
}

/// A copy has a name of its own: it outlives a crash and goes on.
fn in_tmp(kind: &str, id: &Id, how: Option<How>) -> String {
    match how {
        Some(How::Copy) => format!("{}{kind}.{id}", trash::COPY),
        Some(How::Share) | None => format!("{kind}.{id}"),
    }
}

/// Removes what an earlier try left under `name` in the folder of what is being made, unless it is a copy that `goes_on`.
fn ready(open: &Open<'_>, tmp: &Dir, name: &str, goes_on: impl FnOnce() -> Result<bool>) -> Result<()> {
    if name.starts_with(trash::COPY) && goes_on()? { Ok(()) } else { clear(open, tmp, name) }
}

/// Whether `name` in `folder` is a begun copy of the file `from`.
fn is_copy_of_file(from: &File, folder: &Dir, name: impl AsRef<Path>) -> Result<bool> {
    let Some(begun) = folder.open_with(name, OFlags::RDONLY | OFlags::NONBLOCK, 0)? else { return Ok(false) };
    let stat = fstat(from).map_err(|error| Error::io("inspect a source", error))?;
    Ok(copy::so_far(&stat, begun.as_fd()).is_some())
}

/// Whether `name` in `folder` is a begun copy of the tree `source`.
fn is_copy_of_tree(source: &str, folder: &Dir, name: impl AsRef<Path>) -> Result<bool> {
    Ok(folder.dir(name)?.is_some_and(|begun| Since::recorded(begun.as_fd(), source).is_some()))
}

/// A file to put content in: a new one, or that of a copy that goes on.
fn file_to_fill(folder: &Dir, name: impl AsRef<Path>, how: Option<How>) -> Result<File> {
    let name = name.as_ref();
    let begun = match how {
        Some(How::Copy) => folder.open_with(name, OFlags::RDWR, 0)?,
        Some(How::Share) | None => None,
    };
    begun.map_or_else(|| tree::new_file(folder, name), Ok)
}

/// How a copy of the tree `source` into `folder` goes on; `None` when it is no copy.
fn begun<'a>(folder: &Dir, source: &str, how: How, trash: &'a Dir) -> Option<Begun<'a>> {
    match how {
        How::Copy => Some(Begun { since: Since::of(folder.as_fd(), source), trash }),
        How::Share => None,
    }
}

/// Writes a volume's record, over an older one; when this returns it is on the disk.
fn write_volume_record(open: &Open<'_>, id: &Id, record: &Record) -> Result<()> {
    write_record(open, "v", &*open.volume_records()?, id, &record::write(record)?)
}

/// Writes a snapshot's record, over an older one; when this returns it is on the disk.
fn write_snapshot_record(open: &Open<'_>, id: &Id, record: &SnapshotRecord) -> Result<()> {
    write_record(open, "s", &*open.snapshot_records()?, id, &record::write(record)?)
}

/// Writes a record into `records`, over an older one; when this returns it is on the disk. A volume and a snapshot may have
/// one name and be made at once: `kind` keeps their records apart while they are written.
fn write_record(open: &Open<'_>, kind: &str, records: &Dir, id: &Id, bytes: &[u8]) -> Result<()> {
    let tmp = open.tmp()?;
    let name = format!("r{kind}.{id}");
    fault::step("write the record")?;
    tmp.write(&name, bytes)?;
    let placed =
        fault::step("place the record").and_then(|()| Ok(tmp.rename(&name, records, record_name(id))?));
    if placed.is_err() {
        // If it stays, the next start sweeps it.
        drop(tmp.unlink(&name));
    }
    placed?;
    Ok(records.sync()?)
}

/// Removes what an earlier try left under `name` in the folder of what is being made.
fn clear(open: &Open<'_>, tmp: &Dir, name: &str) -> Result<()> {
    if tmp.stat(name)?.is_some() {
        trash::discard(open, tmp, name)?;
    }
    Ok(())
}

/// Discards an interrupted copy that no call has resumed.
fn forget_copy(pools: &Pools, name: &str) -> Result<()> {
    for pool in pools.all.iter().filter(|pool| pool.config.copy) {
        // A pool that is not there now lets go of it by its age.
        if let Ok(open) = pool.open() {
            clear(&open, &*open.tmp()?, name)?;
        }
    }
    Ok(())
}

/// The folder in which volumes of this shape are, and the same for its `fsync`.
fn home(open: &Open<'_>, shape: Shape) -> Result<Arc<Dir>> {
    match shape {
        Shape::Folder | Shape::Loop => Ok(open.root.clone()),
        Shape::Block => open.blocks(),
    }
}

#[cfg(test)]
mod tests;
