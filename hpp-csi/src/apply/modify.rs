//! ControllerModifyVolume: whether the blocks of a volume that is a file are allocated ahead and its own.

use std::fs::File;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::locks::Thing;
use crate::plan;
use crate::pool::{Open, Volume, tree};
use crate::request::{Allocation, Attributes};

/// Bytes that are allocated in one call of the system.
const STEP: u64 = 256 << 20;

impl Driver {
    /// Applies `attributes` to a volume; an absent attribute leaves the volume as it is.
    pub(crate) fn modify_volume(&self, id: &Id, attributes: Attributes) -> Result<()> {
        let _guard = self.locks.lock(Thing::Volume(id.clone()))?;
        let (open, volume) = self.need_volume(id)?;
        plan::modify(volume.shape, attributes)?;
        apply(&open, &volume, attributes)
    }
}

/// The same with the volume's lock held, of attributes that fit it.
pub(super) fn apply(open: &Open<'_>, volume: &Volume, attributes: Attributes) -> Result<()> {
    let (Some(allocation), Some(record)) = (attributes.allocation, &volume.record) else { return Ok(()) };
    let thick = allocation == Allocation::Thick;
    if thick && let Some(file) = open.image(volume)? {
        allocate(&file, 0, record.capacity)?;
        allocated(open, volume, &file)?;
    }
    if record.thick != thick {
        let mut record = record.clone();
        record.thick = thick;
        super::write_volume_record(open, &volume.id, &record)?;
        open.known.book().note_volume(&volume.id, Some(record), volume.shape);
        tracing::info!(volume = %volume.id, thick, "volume is modified");
    }
    Ok(())
}

/// Notes that all blocks of a volume's file are its own.
pub(super) fn allocated(open: &Open<'_>, volume: &Volume, file: &File) -> Result<()> {
    let used = rustix::fs::fstat(file).map(|stat| tree::bytes(&stat));
    let used = used.map_err(|error| Error::io("inspect a volume", error))?;
    if let Some(line) = open.known.book().volumes.get_mut(&volume.id) {
        line.allocated(used);
    }
    Ok(())
}

/// Allocates the bytes from `start` to `end` of a file, none of them shared with another file where the filesystem can
/// unshare them. Blocks that are allocated already cost little, so that an interrupted call resumes.
pub(super) fn allocate(file: &File, start: u64, end: u64) -> Result<()> {
    let io = |error: Errno| Error::io("allocate a volume", error);
    let mut at = start;
    while at < end {
        let length = (end - at).min(STEP);
        match fallocate(file, FallocateFlags::UNSHARE_RANGE, at, length) {
            Err(Errno::OPNOTSUPP) => fallocate(file, FallocateFlags::KEEP_SIZE, at, length).map_err(io)?,
            other => other.map_err(io)?,
        }
        at += length;
    }
    dir::fsync(file).map_err(io)
}
