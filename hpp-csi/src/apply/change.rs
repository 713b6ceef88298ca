//! Changes a volume that is there, action by action. An action that is repeated after a crash does the same.
//!
//! Nothing is undone: an action that fails leaves a volume that is whole, and the call comes again.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::Errno;

use crate::device::Loop;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::plan::volume::Action;
use crate::pool::{Open, Volume, record_name, trash, tree};
use crate::record::Record;
use crate::sys;

/// Bytes that are allocated in one call of the system.
const STEP: u64 = 256 << 20;

/// Carries out actions in their order, up to one that fails. The caller holds the volume's lock.
pub(super) fn execute(open: &Open<'_>, volume: &Volume, actions: Vec<Action>) -> Result<()> {
    actions.into_iter().try_for_each(|action| step(open, volume, action))
}

fn step(open: &Open<'_>, volume: &Volume, action: Action) -> Result<()> {
    let id = &volume.id;
    match action {
        Action::Limit { project, bytes } => {
            sys::limit_project(open.root.need_dir(id)?.as_fd(), project, bytes)
                .map_err(|error| Error::io(format!("limit volume {id} by quota"), error))
        }
        Action::Lengthen(bytes) => lengthen(&open.need_image(volume)?, id, bytes),
        Action::Allocate(bytes) => match open.image(volume)? {
            Some(file) => allocate(open, id, &file, bytes),
            None => Ok(()),
        },
        Action::Record(new) => record(open, id, new),
        Action::Detach => match open.image(volume)? {
            Some(file) => detach(open, &file),
            None => Ok(()),
        },
        Action::Discard => discard(open, volume),
        Action::Unlimit(project) => {
            if let Err(error) = sys::limit_project(open.root.as_fd(), project, 0) {
                tracing::warn!(volume = %id, project, %error, "cannot remove the quota limit of a deleted volume's project");
            }
            Ok(())
        }
        Action::Forget => Ok(open.volume_records()?.unlink(record_name(id)).map(drop)?),
    }
}

fn lengthen(file: &File, id: &Id, bytes: u64) -> Result<()> {
    let length = file.metadata().map_err(|error| Error::io("inspect a volume", error))?.len();
    if length < bytes {
        file.set_len(bytes).map_err(|error| Error::io(format!("grow volume {id}"), error))?;
        dir::fsync(file).map_err(|error| Error::io(format!("sync volume {id}"), error))?;
    }
    Ok(())
}

/// Allocates the first bytes of a file, none of them shared with another file where the filesystem can unshare them.
/// Blocks that are allocated already cost little, so that an interrupted call resumes.
fn allocate(open: &Open<'_>, id: &Id, file: &File, bytes: u64) -> Result<()> {
    let io = |error: Errno| Error::io("allocate a volume", error);
    let mut at = 0;
    while at < bytes {
        let length = (bytes - at).min(STEP);
        match fallocate(file, FallocateFlags::UNSHARE_RANGE, at, length) {
            Err(Errno::OPNOTSUPP) => fallocate(file, FallocateFlags::KEEP_SIZE, at, length).map_err(io)?,
            other => other.map_err(io)?,
        }
        at += length;
    }
    dir::fsync(file).map_err(io)?;
    let used = fstat(file).map(|stat| tree::bytes(&stat));
    let used = used.map_err(|error| Error::io("inspect a volume", error))?;
    if let Some(line) = open.known.book().volumes.get_mut(id) {
        line.allocated(used);
    }
    Ok(())
}

/// Writes a volume's record, on the disk and in the book.
pub(super) fn record(open: &Open<'_>, id: &Id, new: Record) -> Result<()> {
    super::write_volume_record(open, id, &new)?;
    let shape = new.shape;
    open.known.book().note_volume(id, Some(new), shape);
    Ok(())
}

/// Detaches every device of a volume's file.
pub(super) fn detach(open: &Open<'_>, file: &File) -> Result<()> {
    open.pool.devices.all(file)?.into_iter().try_for_each(Loop::detach)
}

/// Discards a volume's folder or file. When this returns it stays gone.
fn discard(open: &Open<'_>, volume: &Volume) -> Result<()> {
    let home = super::home(open, volume.shape)?;
    trash::discard(open, &home, volume.id.as_str())?;
    home.sync()?;
    open.known.book().remove_volume(&volume.id);
    Ok(())
}
