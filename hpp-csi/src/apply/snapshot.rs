//! CreateSnapshot and DeleteSnapshot. A snapshot is made aside of shared blocks and appears in one step, complete:
//!
//! ```text
//! tmp/s.<id>/{data or image, <volume id>/} ─► sync ─► record, sync ─► rename to snapshots/<id> ─► sync
//! ```

use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::folder::Folder;
use crate::id::Id;
use crate::locks::Thing;
use crate::pool::tree::{self, How};
use crate::pool::{DATA, IMAGE, Open, Snapshot, Volume, record_name, trash};
use crate::record::{self, Shape, SnapshotRecord};

use super::create;
use super::image::{self, Note};

impl Driver {
    /// Takes a snapshot of a volume, or finds it taken. `copy`: blocks may be copied where they cannot be shared.
    pub(crate) fn create_snapshot(
        &self,
        id: &Id,
        source: &Id,
        copy: bool,
        group: Option<&Id>,
    ) -> Result<Snapshot> {
        let _snapshot = self.locks.take(Thing::Snapshot(id.clone()))?;
        let _volume = self.locks.share(Thing::Volume(source.clone()))?;
        if let Some((open, found)) = self.snapshot(id)? {
            if found.record.source != source.as_str() {
                return Err(Error::new(
                    Kind::Exists,
                    format!("snapshot {id} is there, of volume {}", found.record.source),
                ));
            }
            // The try that made it may have failed in its last step.
            open.snapshots_or_make()?.sync()?;
            return Ok(found);
        }
        let (open, volume) = self.need_volume(source)?;
        let how = create::how(&open, true, copy)?;
        let promise = create::promise(&open, estimate(&open, &volume)?)?;
        let record = take(&open, id, &volume, how, group)?;
        drop(promise);
        tracing::info!(snapshot = %id, volume = %source, pool = open.pool.config.name, "snapshot is taken");
        Ok(Snapshot { id: id.clone(), record })
    }

    /// Deletes a snapshot. One that is not here is deleted.
    pub(crate) fn delete_snapshot(&self, id: &Id) -> Result<()> {
        let _snapshot = self.locks.take(Thing::Snapshot(id.clone()))?;
        let Some((open, snapshot)) = self.snapshot(id)? else { return Ok(()) };
        if let Some(group) = &snapshot.record.group {
            return Err(Error::new(
                Kind::Invalid,
                format!("snapshot {id} is part of the group snapshot {group}"),
            ));
        }
        self.remove_snapshot(&open, id)
    }

    /// Deletes a snapshot whose lock is held.
    pub(super) fn remove_snapshot(&self, open: &Open<'_>, id: &Id) -> Result<()> {
        let snapshots = open.snapshots_or_make()?;
        trash::discard(open, &snapshots, id.as_str())?;
        snapshots.sync()?;
        open.known.book().snapshots.remove(id);
        open.snapshot_records()?.unlink(record_name(id))?;
        tracing::info!(snapshot = %id, pool = open.pool.config.name, "snapshot is deleted");
        self.wake_worker();
        Ok(())
    }
}

/// Bytes that the snapshot will hold, as far as is known before it is taken.
fn estimate(open: &Open<'_>, volume: &Volume) -> Result<u64> {
    match open.image(volume)? {
        Some(file) => rustix::fs::fstat(&file)
            .map(|stat| tree::bytes(&stat))
            .map_err(|error| Error::io(format!("look at volume {}", volume.id), error)),
        None => Ok(open.known.book().volumes.get(&volume.id).map_or(0, |line| line.used)),
    }
}

/// Takes the snapshot; on failure nothing of it is left.
fn take(open: &Open<'_>, id: &Id, volume: &Volume, how: How, group: Option<&Id>) -> Result<SnapshotRecord> {
    let tmp = open.tmp()?;
    let name = format!("s.{id}");
    super::clear(open, &tmp, &name)?;
    let taken = fill(open, &tmp, &name, volume, how).and_then(|used| {
        let capacity = volume.record.as_ref().map_or(used, |record| record.capacity);
        let mut record = SnapshotRecord::new(&volume.id, volume.shape, capacity, used);
        record.sector = volume.record.as_ref().map_or(record.sector, |of_volume| of_volume.sector);
        record.group = group.map(Id::to_string);
        super::write_record(open, &open.snapshot_records()?, id, &record::write(&record)?)?;
        let snapshots = open.snapshots_or_make()?;
        if !tmp.move_to(&name, &snapshots, id)? {
            let path = snapshots.path_of(id);
            return Err(Error::new(
                Kind::Exists,
                format!("{} is there and no snapshot of ours", path.display()),
            ));
        }
        open.known.book().snapshots.insert(id.clone(), record.clone());
        snapshots.sync()?;
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
            tracing::warn!(snapshot = %id, error = error.chain(), "what was begun is still there");
        }
    }
    taken
}

/// Makes the snapshot's folder in the folder of what is being made. Gives the bytes it uses.
fn fill(open: &Open<'_>, tmp: &Folder, name: &str, volume: &Volume, how: How) -> Result<u64> {
    tmp.make(name, 0o755)?;
    let folder = tmp.need(name)?;
    folder.make(&volume.id, 0o755)?;
    let used = match volume.shape {
        Shape::Folder => {
            folder.make(DATA, 0o755)?;
            tree::clone(&open.root.need(&volume.id)?, &folder.need(DATA)?, how)?
        }
        Shape::Loop | Shape::Block => {
            let file = tree::new_file(&folder, IMAGE)?;
            let used =
                image::cut(&open.need_image(volume)?, &file, volume.shape, how, &Note::new(tmp, &volume.id))?;
            file.sync_all().map_err(|error| Error::io("sync a snapshot", error))?;
            used
        }
    };
    folder.sync()?;
    Ok(used)
}
