//! Loads a pool's reservations from the disk, and refreshes the usage of its volumes. Not here: the sums (`accounting`).

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::record::{self, Record, Shape};
use crate::sys;
use dir::{Dir, is_file};
use rustix::fs::OFlags;

use super::accounting::VolumeAccount;
use super::tree::Usage;
use super::{IMAGE, Open, tree};

/// When the records of a pool changed: seconds and nanoseconds of each of their folders.
pub(crate) type Stamp = [(i64, u64); 2];
/// The disk of a VM in a volume that is a folder: the name that CDI's importer gives it.
pub(crate) const DISK: &str = "disk.img";
/// A change this long ago bears another time than one that comes now, on whatever filesystem and machine.
const SETTLED: Duration = Duration::from_secs(3);

/// Fills the book of a pool that was just found.
pub(super) fn load(open: &Open<'_>) -> Result<()> {
    read(open)?;
    measure(open, &mut tree::Budget::at_start(), None)
}

/// Reads all volumes and snapshots into the book, and removes lines of what other nodes have deleted.
fn read(open: &Open<'_>) -> Result<()> {
    // A call of this node that makes a volume from now on notes it itself.
    let (volumes, snapshots) = {
        let book = open.known.book();
        let volumes: Vec<Id> = book.volumes.keys().cloned().collect();
        let snapshots: Vec<Id> = book.snapshots.keys().cloned().collect();
        (volumes, snapshots)
    };
    let mut there = HashSet::new();
    for id in open.volume_ids()? {
        match open.volume(&id) {
            Ok(_) => {}
            // The volume gets no line, and each call for it returns the same error.
            Err(error) if error.kind() == Kind::Internal => {
                tracing::warn!(error = %error.chain(), "a volume cannot be used");
            }
            Err(error) => return Err(error),
        }
        there.insert(id);
    }
    let mut book = open.known.book();
    volumes.iter().filter(|id| !there.contains(*id)).for_each(|id| book.remove_volume(id));
    drop(book);
    let mut there = HashSet::new();
    for id in open.snapshot_ids()? {
        if let Err(error) = open.snapshot(&id) {
            tracing::warn!(error = %error.chain(), "a snapshot cannot be used");
        }
        there.insert(id);
    }
    let mut book = open.known.book();
    snapshots.iter().filter(|id| !there.contains(*id)).for_each(|id| book.remove_snapshot(id));
    Ok(())
}

/// Takes in what other nodes have done in a shared pool since it was last looked.
fn read_others(open: &Open<'_>) -> Result<()> {
    if !open.pool.config.shared {
        return Ok(());
    }
    let time = |folder: &Dir| folder.stat_self().map(|stat| (stat.st_mtime, stat.st_mtime_nsec));
    let stamp = [time(&*open.volume_records()?)?, time(&*open.snapshot_records()?)?];
    let known = *open.known.records.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if known == Some(stamp) {
        return Ok(());
    }
    read(open)?;
    let until = i64::try_from(record::now().saturating_sub(SETTLED).as_secs()).unwrap_or(0);
    let settled = stamp.iter().all(|(seconds, _)| *seconds < until);
    *open.known.records.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = settled.then_some(stamp);
    Ok(())
}

/// Updates the account by facts that need no walk through files, before a reservation.
pub(crate) fn follow(open: &Open<'_>) -> Result<()> {
    read_others(open)?;
    let ids: Vec<Id> = open.known.book().volumes.keys().cloned().collect();
    ids.iter().try_for_each(|id| follow_volume(open, id))
}

/// The same of one volume, before a snapshot shares its blocks.
pub(crate) fn follow_volume(open: &Open<'_>, id: &Id) -> Result<()> {
    let of = |line: &VolumeAccount| (line.shape, line.record.as_ref().and_then(|record| record.project));
    let Some((shape, project)) = open.known.book().volumes.get(id).map(of) else { return Ok(()) };
    let used = match shape {
        Shape::Block => open.blocks()?.stat(id)?.filter(is_file).map(|stat| tree::bytes(&stat)),
        Shape::Loop => match open.root.dir(id)? {
            Some(folder) => folder.stat(IMAGE)?.filter(is_file).map(|stat| tree::bytes(&stat)),
            None => None,
        },
        Shape::Folder => by_quota(open, project)?,
    };
    if let Some(used) = used
        && let Some(line) = open.known.book().volumes.get_mut(id)
    {
        line.follow(used);
    }
    Ok(())
}

/// Bytes that a volume uses, as its quota counts.
fn by_quota(open: &Open<'_>, project: Option<u32>) -> Result<Option<u64>> {
    match project {
        Some(project) if open.known.quota => sys::project_usage(open.root.as_fd(), project)
            .map_err(|error| Error::io("ask for the use of a project", error)),
        Some(_) | None => Ok(None),
    }
}

/// Looks at what every volume uses, or those in `only`, and so at what others use.
///
/// Shared blocks count for each file: foreign usage is then too small, never too large.
pub(crate) fn measure(open: &Open<'_>, budget: &mut tree::Budget, only: Option<&HashSet<Id>>) -> Result<()> {
    let (lines, sharing) = {
        let book = open.known.book();
        let wanted = book.volumes.iter().filter(|(id, _)| only.is_none_or(|only| only.contains(*id)));
        let lines: Vec<_> = wanted.map(|(id, line)| (id.clone(), line.shape, line.record.clone())).collect();
        (lines, if open.known.sharing { book.sharing() } else { HashSet::new() })
    };
    for (id, shape, record) in lines {
        let Some(usage) = usage(open, &id, shape, record.as_ref(), sharing.contains(&id), budget)? else {
            continue;
        };
        // Volumes that the budget did not suffice for count with their reservations, and own no blocks.
        let usage = match &record {
            Some(record) if budget.is_spent() && shape == Shape::Folder => {
                Usage { used: record.capacity.max(usage.used), owned: 0 }
            }
            Some(_) | None => usage,
        };
        let extents = extents(open, &id, shape)?;
        if let Some(line) = open.known.book().volumes.get_mut(&id) {
            line.set_usage(usage);
            line.extents = extents;
        }
    }
    let used = open.used_now();
    let mut book = open.known.book();
    let volumes = book.volumes.values().map(|line| line.used);
    let snapshots = book.snapshots.values().map(|record| record.used);
    let ours = volumes.chain(snapshots).fold(0, u64::saturating_add);
    book.foreign = used.saturating_sub(ours);
    Ok(())
}

/// Usage of a volume; `None` when it is gone.
fn usage(
    open: &Open<'_>,
    id: &Id,
    shape: Shape,
    record: Option<&Record>,
    shares: bool,
    budget: &mut tree::Budget,
) -> Result<Option<Usage>> {
    let of_image = |folder: &Dir, name: &Path| -> Result<Option<Usage>> {
        let Some(file) = folder.file(name, OFlags::RDONLY | OFlags::NOATIME)? else { return Ok(None) };
        of_file(&file, shares).map(Some)
    };
    match shape {
        Shape::Block | Shape::Loop => match open.disk(id, shape)? {
            Some((folder, name)) => of_image(&folder, &name),
            None => Ok(None),
        },
        Shape::Folder => {
            // A volume that shares no blocks owns what it uses, and quota knows that.
            if !shares && let Some(used) = by_quota(open, record.and_then(|record| record.project))? {
                return Ok(Some(Usage { used, owned: used }));
            }
            match open.root.dir(id)? {
                Some(folder) => Ok(Some(tree::usage(&folder, budget, shares)?)),
                None => Ok(None),
            }
        }
    }
}

/// Extents of a volume's disk: its image, or the file [`DISK`] of a folder.
fn extents(open: &Open<'_>, id: &Id, shape: Shape) -> Result<Option<u64>> {
    let flags = OFlags::RDONLY | OFlags::NOATIME;
    let Some((folder, name)) = open.disk(id, shape)? else { return Ok(None) };
    let file = match shape {
        Shape::Block => folder.file(&name, flags)?,
        // A pod may have a file of another type there.
        Shape::Loop | Shape::Folder => folder.file(&name, flags).unwrap_or_default(),
    };
    Ok(file.and_then(|file| sys::extent_count(file.as_fd()).ok()))
}

/// Usage of a file.
fn of_file(file: &File, shares: bool) -> Result<Usage> {
    let look = || rustix::fs::fstat(file).map_err(|error| Error::io("inspect a volume", error));
    let before = tree::bytes(&look()?);
    let owned = if shares { tree::owned(file)? } else { before };
    // It may change in between: the smaller numbers are right.
    let used = tree::bytes(&look()?).min(before);
    Ok(Usage { used, owned: owned.min(used) })
}
