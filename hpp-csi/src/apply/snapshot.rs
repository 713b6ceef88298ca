//! CreateSnapshot and DeleteSnapshot. A snapshot is made aside of shared blocks and appears in one step, complete:
//!
//! ```text
//! tmp/s.<id>/{data or image, <volume id>/} ─► sync ─► record, sync ─► rename to snapshots/<id> ─► sync
//! ```

use std::fs::File;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::latency;
use crate::locks::{Locks, Thing};
use crate::plan::snapshot as plan;
use crate::plan::volume::how;
use crate::pool::clone::{self, How};
use crate::pool::tree;
use crate::pool::{DATA, IMAGE, Open, Snapshot, Volume, record_name, scan, trash};
use crate::pools::Pools;
use crate::publications::Publications;
use crate::record::{Shape, SnapshotRecord};
use crate::wake::Wake;
use dir::Dir;

use super::image::{self, Note};
use super::room::promise;
use super::still::{Before, Content};
use super::uses;

/// Takes and deletes snapshots.
#[derive(Debug)]
pub(crate) struct Snapshots {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
    pub(crate) published: Arc<Publications>,
    pub(crate) wake: Wake,
}

impl Snapshots {
    /// Takes a snapshot of a volume, or finds it taken. `copy`: blocks may be copied where they cannot be shared.
    pub(crate) fn create(&self, id: &Id, source: &Id, copy: bool) -> Result<Snapshot> {
        let _snapshot = self.locks.lock(Thing::Snapshot(id.clone()))?;
        let _volume = self.locks.share(Thing::Volume(source.clone()))?;
        if let Some((open, found)) = self.pools.snapshot(id)? {
            plan::is_of(id, &found.record, source)?;
            // The try that made it may have failed in its last step.
            open.snapshots_or_make()?.sync()?;
            return Ok(found);
        }
        let (open, volume) = self.pools.need_source(source)?;
        open.writable()?;
        let how = how(&open.pool.config, open.known.sharing, true, copy)?;
        if how == How::Copy {
            uses::copyable(&self.published, &open, &volume)?;
        }
        let bytes = estimate(&open, &volume)?;
        let promise = promise(&open, bytes)?;
        let record =
            take_snapshot(&open, id, &volume, how).map_err(|error| open.without_room(bytes, error))?;
        drop(promise);
        tracing::info!(snapshot = %id, volume = %source, pool = open.pool.config.name, "snapshot is taken");
        Ok(Snapshot { id: id.clone(), record })
    }

    /// Deletes a snapshot. One that is not here is deleted.
    pub(crate) fn delete(&self, id: &Id) -> Result<()> {
        let _snapshot = self.locks.lock(Thing::Snapshot(id.clone()))?;
        let Some((open, snapshot)) = self.pools.snapshot(id)? else {
            super::forget_copy(&self.pools, &super::snapshot_in_tmp(id, How::Copy))?;
            self.wake.worker();
            return Ok(());
        };
        plan::deletable(id, &snapshot.record)?;
        let snapshots = open.snapshots_or_make()?;
        trash::discard(&open, &snapshots, id.as_str())?;
        snapshots.sync()?;
        open.known.book().remove_snapshot(id);
        open.snapshot_records()?.unlink(record_name(id))?;
        tracing::info!(snapshot = %id, pool = open.pool.config.name, "snapshot is deleted");
        self.wake.worker();
        Ok(())
    }
}

/// Bytes that the snapshot will hold, as far as is known before it is taken.
pub(super) fn estimate(open: &Open<'_>, volume: &Volume) -> Result<u64> {
    scan::follow_volume(open, &volume.id)?;
    match open.image(volume)? {
        Some(file) => rustix::fs::fstat(&file)
            .map(|stat| tree::bytes(&stat))
            .map_err(|error| Error::io(format!("inspect volume {}", volume.id), error)),
        None => Ok(open.known.book().volumes.get(&volume.id).map_or(0, |line| line.used)),
    }
}

/// Takes the snapshot; on failure nothing of it is left.
fn take_snapshot(open: &Open<'_>, id: &Id, volume: &Volume, how: How) -> Result<SnapshotRecord> {
    let tmp = open.tmp()?;
    let name = super::snapshot_in_tmp(id, how);
    super::ready(open, &tmp, &name, || is_resumable(open, &tmp, &name, volume))?;
    let before = match how {
        How::Copy => Some(Before::of(&content(open, volume)?.of())?),
        How::Share => None,
    };
    let taken = fill(open, &name, volume, how, Writers::Hold).and_then(|used| {
        if let Some(before) = before {
            before.unchanged(&content(open, volume)?.of(), &source_name(volume))?;
        }
        let record = record_of(volume, used, None);
        publish(open, &name, id, &record)?;
        open.snapshots_or_make()?.sync()?;
        Ok(record)
    });
    if taken.is_err() {
        let undone = super::clear(open, &tmp, &name).and_then(|()| {
            if open.snapshot(id)?.is_none() {
                open.snapshot_records()?.unlink(record_name(id))?;
            }
            Ok(())
        });
        if let Err(error) = undone {
            tracing::warn!(snapshot = %id, error = %error.chain(), "could not remove an incomplete snapshot; the next start of the driver removes it");
        }
    }
    taken
}

/// The open content of a volume.
pub(super) enum Source {
    Tree(Dir),
    Image(File),
}

impl Source {
    pub(super) fn of(&self) -> Content<'_> {
        match self {
            Self::Tree(folder) => Content::Tree(folder),
            Self::Image(file) => Content::Image(file),
        }
    }
}

/// Opens the content of a volume.
pub(super) fn content(open: &Open<'_>, volume: &Volume) -> Result<Source> {
    Ok(match volume.shape {
        Shape::Folder => Source::Tree(open.root.need_dir(&volume.id)?),
        Shape::Loop | Shape::Block => Source::Image(open.need_image(volume)?),
    })
}

/// The record of a snapshot taken now that uses `used` bytes.
pub(super) fn record_of(volume: &Volume, used: u64, group: Option<&Id>) -> SnapshotRecord {
    let capacity = volume.record.as_ref().map_or(used, |record| record.capacity);
    let mut record = SnapshotRecord::new(&volume.id, volume.shape, capacity, used);
    record.sector = volume.record.as_ref().map_or(record.sector, |of_volume| of_volume.sector);
    record.group = group.map(Id::to_string);
    record
}

/// Lets a snapshot that is filled, under `name`, appear in its place, which is not synced yet.
pub(super) fn publish(open: &Open<'_>, name: &str, id: &Id, record: &SnapshotRecord) -> Result<()> {
    super::write_snapshot_record(open, id, record)?;
    let snapshots = open.snapshots_or_make()?;
    if !open.tmp()?.rename_new(name, &snapshots, id)? {
        let path = snapshots.path_of(id);
        return Err(Error::new(
            Kind::Exists,
            format!("{} exists and was not created by this driver; move it away", path.display()),
        ));
    }
    open.known.book().note_snapshot(id, record, open.known.sharing);
    Ok(())
}

/// The name under which copies of the volume are resumed.
fn source_name(volume: &Volume) -> String {
    format!("volume {}", volume.id)
}

/// Whether what is there under `name` is a copy of the volume that an earlier try began.
fn is_resumable(open: &Open<'_>, tmp: &Dir, name: &str, volume: &Volume) -> Result<bool> {
    let Some(folder) = tmp.dir(name)? else { return Ok(false) };
    match volume.shape {
        Shape::Folder => super::is_copy_of_tree(&source_name(volume), &folder, DATA),
        Shape::Loop | Shape::Block => super::is_copy_of_file(&open.need_image(volume)?, &folder, IMAGE),
    }
}

/// How writers are handled while a snapshot is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writers {
    /// They are frozen for as long as it takes.
    Hold,
    /// Nothing: the caller holds them.
    Held,
}

/// Makes the snapshot's folder in the folder of what is being made, where `name` is free or a copy that goes on, and syncs
/// it. Gives the bytes it uses.
pub(super) fn fill(open: &Open<'_>, name: &str, volume: &Volume, how: How, writers: Writers) -> Result<u64> {
    let tmp = open.tmp()?;
    tmp.make_dir(name, 0o755)?;
    let folder = tmp.need_dir(name)?;
    folder.make_dir(&volume.id, 0o755)?;
    let used = match volume.shape {
        Shape::Folder => {
            folder.make_dir(DATA, 0o755)?;
            let (from, to, trash) = (open.root.need_dir(&volume.id)?, folder.need_dir(DATA)?, open.trash()?);
            let begun = super::begun(&to, &source_name(volume), how, &trash);
            latency::count(&latency::CLONES, || clone::tree(&from, &to, how, begun))?
        }
        Shape::Loop | Shape::Block => {
            let file = super::file_to_fill(&folder, IMAGE, Some(how))?;
            let from = open.need_image(volume)?;
            let used = match writers {
                Writers::Hold => {
                    let note = Note::new(&tmp, &volume.id);
                    image::cut(&open.pool.devices, &from, &file, volume.shape, how, &note)?
                }
                Writers::Held => latency::count(&latency::CLONES, || clone::content(&from, &file, how))?,
            };
            dir::fsync(&file).map_err(|error| Error::io("sync a snapshot", error))?;
            used
        }
    };
    folder.sync()?;
    Ok(used)
}
