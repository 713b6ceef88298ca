//! The worker's care for volumes that are files: blocks that their filesystems have freed go back to the pool, and blocks that
//! a guest discarded of a thick volume are allocated again.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate, fstat, fstatvfs};

use crate::error::{Error, Result};
use crate::id::Id;
use crate::locks::{Locks, Thing};
use crate::pool::accounting::VolumeAccount;
use crate::pool::{Open, Volume, tree};
use crate::record::Shape;
use crate::sys;

use super::image;

/// Bytes that a filesystem has freed and its file still holds, for which going through its free space is worth it.
const WORTH: u64 = 16 << 20;

/// Looks after the volumes of a pool: thick ones each time, as a guest's discard must not last, the others when it is time
/// to look at `all`. One that cannot be looked after does not keep the others from it.
pub(crate) fn of_pool(locks: &Locks, open: &Open<'_>, all: bool) {
    let ids: Vec<Id> = {
        let book = open.known.book();
        let thick = |line: &VolumeAccount| line.record.as_ref().is_some_and(|record| record.thick);
        let files =
            book.volumes.iter().filter(|(_, line)| line.shape != Shape::Folder && (all || thick(line)));
        files.map(|(id, _)| id.clone()).collect()
    };
    for id in ids {
        if let Err(error) = of_volume(locks, open, &id) {
            tracing::warn!(volume = %id, error = %error.chain(), "the maintenance of a volume failed");
        }
    }
}

fn of_volume(locks: &Locks, open: &Open<'_>, id: &Id) -> Result<()> {
    let Some(volume) = open.volume(id)? else { return Ok(()) };
    let (Some(record), Some(file)) = (&volume.record, open.image(&volume)?) else { return Ok(()) };
    let length = file.metadata().map_err(|error| Error::io("inspect a volume", error))?.len();
    match (record.thick, volume.shape) {
        // A file that lost its end does not get it back as zeroes.
        (true, _) if length < record.capacity => Ok(()),
        (true, _) => refill(locks, open, &volume, &file),
        (false, Shape::Loop) => give_back(open, &volume, &file),
        (false, Shape::Block | Shape::Folder) => Ok(()),
    }
}

/// Allocates again the discarded blocks of a thick volume.
fn refill(locks: &Locks, open: &Open<'_>, volume: &Volume, file: &File) -> Result<()> {
    let capacity = volume.record.as_ref().map_or(0, |record| record.capacity);
    if used(file)? >= capacity {
        return Ok(());
    }
    // A call that works on it comes first; the next round is soon enough.
    let Ok(_guard) = locks.lock(Thing::Volume(volume.id.clone())) else { return Ok(()) };
    fallocate(file, FallocateFlags::KEEP_SIZE, 0, capacity).map_err(|error| {
        Error::io("reallocate the discarded blocks of a thick volume; free space in the pool", error)
    })?;
    let used = used(file)?;
    if let Some(line) = open.known.book().volumes.get_mut(&volume.id) {
        line.follow(used);
    }
    tracing::info!(volume = %volume.id, "blocks that were discarded are allocated again");
    Ok(())
}

fn used(file: &File) -> Result<u64> {
    fstat(file).map(|stat| tree::bytes(&stat)).map_err(|error| Error::io("inspect a volume", error))
}

/// Lets the filesystem in a volume's file give back the blocks that it has freed.
fn give_back(open: &Open<'_>, volume: &Volume, file: &File) -> Result<()> {
    let Some(device) = open.pool.devices.find(file, false)? else { return Ok(()) };
    // A volume that is not staged does not change.
    if !crate::publications::mounted_devices()?.contains(&device.device()) {
        return Ok(());
    }
    let Some(root) = image::root_of(device, file)? else { return Ok(()) };
    let numbers = fstatvfs(&root)
        .map_err(|error| Error::io("read the size and free space of the volume's filesystem", error))?;
    let inside = numbers.f_blocks.saturating_sub(numbers.f_bfree).saturating_mul(numbers.f_frsize);
    let held = used(file)?.saturating_sub(inside);
    let kept = open.known.book().volumes.get(&volume.id).map_or(0, |line| line.kept);
    if held < kept.saturating_add(WORTH) {
        return Ok(());
    }
    let before = used(file)?;
    match sys::trim(root.as_fd()) {
        Ok(()) => {}
        // The pool's filesystem makes no holes.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        Err(error) => return Err(Error::io("trim the volume's filesystem", error)),
    }
    let after = used(file)?;
    if let Some(line) = open.known.book().volumes.get_mut(&volume.id) {
        if after >= before {
            // The filesystem keeps this for itself, its log for example.
            line.kept = after.saturating_sub(inside);
        }
        line.follow(after);
    }
    if after < before {
        tracing::info!(volume = %volume.id, bytes = before - after, "freed blocks are given back to the pool");
    }
    Ok(())
}
