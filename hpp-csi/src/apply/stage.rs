//! NodeStageVolume and NodeUnstageVolume: a volume that is a file becomes a device, and a mount where it holds a
//! filesystem. A volume that is a folder needs nothing.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::device::{self, Loop};
use crate::error::{Error, Kind, Result};
use crate::fault;
use dir::Dir;

use crate::directory;
use crate::id::Id;
use crate::locks::{Locks, Thing};
use crate::mounts;
use crate::plan::{node, volume};
use crate::pool::{Open, Volume};
use crate::pools::Pools;
use crate::publications::Publications;
use crate::record::Shape;
use crate::request::Capability;

use super::image::{self, Filesystem};
use super::{change, mounted};

/// Stages volumes.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
    pub(crate) published: Arc<Publications>,
}

impl Staging {
    /// Stages a volume at `path`, or finds it staged.
    pub(crate) fn stage(&self, id: &Id, path: &str, capability: &Capability) -> Result<()> {
        let _guard = self.locks.lock(Thing::Mounts(id.clone()))?;
        let (open, volume) = self.pools.need_volume(id)?;
        node::fits(id, volume.shape, &capability.access)?;
        let place = directory::split("staging_target_path", path)?;
        match volume.shape {
            Shape::Folder => Ok(()),
            Shape::Block => attached(&open, &volume, false).map(Attached::keep),
            Shape::Loop => {
                let missing = || Error::new(Kind::Precondition, format!("the folder of {path} is not there"));
                let (folder, name) = place.ok_or_else(missing)?;
                let device = attached(&open, &volume, false)?;
                fault::step("make the staging folder")?;
                let made = folder.make_dir(&name, 0o750)?;
                let staged = mount_at(&open, &volume, device.device, &folder, &name);
                match &staged {
                    Ok(()) => device.keep(),
                    // A folder with content is not the volume's.
                    Err(_) if made => drop(folder.remove_dir(&name)),
                    Err(_) => {}
                }
                staged
            }
        }
    }

    /// Undoes staging. What is not staged is unstaged.
    pub(crate) fn unstage(&self, id: &Id, path: &str) -> Result<()> {
        let _guard = self.locks.lock(Thing::Mounts(id.clone()))?;
        let place = directory::split("staging_target_path", path)?;
        // After a restart, a staging path of another name than the kubelet's counts as one at which it is published.
        let others = self.published.others(id, Some(Path::new(path)))?;
        volume::unpublished(id, others.first().map(PathBuf::as_path))?;
        self.published.remove(id, Path::new(path));
        let detach = |place: Option<(Dir, PathBuf)>, known: Option<&(Open<'_>, Volume)>| {
            place.map_or(Ok(()), |(folder, name)| mounted::detach(id, known, &folder, &name).map(drop))
        };
        let found = match self.pools.volume(id) {
            Ok(found) => found,
            // Its pool does not answer. What holds it is let go, so that it can be unmounted and mended.
            Err(error) if error.kind() == Kind::NotReady => None,
            Err(error) => return Err(error),
        };
        let Some(found) = found else {
            // It cannot be found, or no more; a mount and a device of it may be there.
            detach(place, None)?;
            return detach_unseen(&self.pools, id);
        };
        if found.1.shape == Shape::Loop {
            detach(place, Some(&found))?;
        }
        let (open, volume) = found;
        match open.image(&volume)? {
            Some(file) => change::detach(&open, &file),
            None if volume.shape == Shape::Folder => Ok(()),
            None => detach_unseen(&self.pools, id),
        }
    }
}

/// Detaches every device of a volume with a file that cannot be inspected.
pub(super) fn detach_unseen(pools: &Pools, id: &Id) -> Result<()> {
    let mut places = pools.all.iter().flat_map(|pool| pool.places_of_image(id));
    places.try_for_each(|path| device::release_at(&path))
}

/// Mounts the filesystem of a volume at its staging path, unless it is there.
fn mount_at(open: &Open<'_>, volume: &Volume, device: Loop, folder: &Dir, name: &Path) -> Result<()> {
    match mounts::stat(folder, name)? {
        Some(place) if place.mounted && place.file.0 == device.device() => Ok(()),
        Some(place) if place.mounted => Err(Error::new(
            Kind::Precondition,
            format!("another filesystem is mounted at {}; unmount it", folder.path_of(name).display()),
        )),
        Some(_) | None => {
            let mount = mount(open, volume, device)?;
            mounts::attach(mount.as_fd(), folder, name)
        }
    }
}

/// A device for one step. If this call attached it and the step fails, it is detached: nothing else would, and a volume
/// with a device cannot be deleted.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) device: Loop,
    new: bool,
}

impl Attached {
    /// The step succeeded: the device stays.
    pub(super) fn keep(mut self) {
        self.new = false;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.new {
            return;
        }
        if let Err(error) = self.device.detach() {
            let device = self.device.path();
            tracing::warn!(device = %device.display(), error = %error.chain(), "cannot detach the device of a failed call");
        }
    }
}

/// The device of a volume's file, attached if it is not.
pub(super) fn attached(open: &Open<'_>, volume: &Volume, read_only: bool) -> Result<Attached> {
    let file = open.need_image(volume)?;
    let length = file.metadata().map_err(|error| Error::io("inspect a volume", error))?.len();
    let record = volume.record.as_ref();
    if let Some(capacity) = record.map(|record| record.capacity).filter(|capacity| length < *capacity) {
        return Err(open.pool.error(
            Kind::Precondition,
            format!("the file of volume {} has {length} of {capacity} bytes: it was truncated", volume.id),
        ));
    }
    if let Some(found) = open.pool.devices.find(&file, read_only)? {
        // An earlier unstaging may have left the device to be detached at its last close.
        found.keep()?;
        return Ok(Attached { device: found, new: false });
    }
    let sector = record.map_or(512, |record| record.sector);
    let device = open.pool.devices.attach(&file, sector, read_only)?;
    let made = Attached { device, new: true };
    fault::step("use the device")?;
    if !device.direct {
        tracing::warn!(
            volume = %volume.id,
            sector,
            "the device goes through the page cache: the filesystem has no direct I/O for sectors of this size"
        );
    }
    Ok(made)
}

/// A mount of the filesystem in a volume's file, as large as the file.
pub(super) fn mount(open: &Open<'_>, volume: &Volume, device: Loop) -> Result<std::os::fd::OwnedFd> {
    let file = open.need_image(volume)?;
    let filesystem = Filesystem::of(&file)?.ok_or_else(|| {
        open.pool.error(Kind::Precondition, format!("volume {} holds no filesystem", volume.id))
    })?;
    let mount = mounts::filesystem(filesystem.name(), &device.path(), false)?;
    let root = mounts::root_of(mount.as_fd())?;
    let size = file.metadata().map_err(|error| Error::io("inspect a volume", error))?.len();
    // A clone may be larger than its source.
    if image::is_smaller(filesystem, &file, size)? {
        image::grow(&root, filesystem, size)?;
    }
    Ok(mount)
}
