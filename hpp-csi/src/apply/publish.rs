//! NodePublishVolume, NodeUnpublishVolume and NodeGetVolumeStats.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::fstatvfs;

use crate::config::{Capacity, Enforce};
use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::volume_health::{self, Condition};
use dir::Dir;

use crate::directory;
use crate::id::Id;
use crate::locks::Thing;
use crate::mounts::{self, Left, Place};
use crate::plan::{self, AtTarget, Publish};
use crate::pool::{Open, Volume, tree};
use crate::record::Shape;
use crate::request::{Access, Attributes, Capability, Mode, MountOptions, Parameters, Range};

use super::mounted::{at_target, detach};
use super::{create, stage};

/// A NodePublishVolume, understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) target: String,
    pub(crate) staging: String,
    pub(crate) capability: Capability,
    pub(crate) read_only: bool,
    /// The volume is the pod's own: it is made now, in this pool and of this size.
    pub(crate) inline: Option<(Parameters, Range)>,
}

/// Usage of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Total, used, available bytes, as far as they can be known.
    pub(crate) bytes: Option<[u64; 3]>,
    /// The same of inodes; a block device has none.
    pub(crate) inodes: Option<[u64; 3]>,
    pub(crate) condition: Condition,
}

impl Driver {
    /// Publishes a volume, or finds it published just so.
    pub(crate) fn publish(&self, request: &Request) -> Result<()> {
        let id = &request.id;
        let _guard = self.locks.lock(Thing::Mounts(id.clone()))?;
        let gone =
            || Error::new(Kind::Precondition, format!("the folder of {} is not there", request.target));
        let (folder, name) = directory::split("target_path", &request.target)?.ok_or_else(gone)?;
        let Some((parameters, range)) = &request.inline else {
            return self.publish_at(request, &folder, &name);
        };
        let there = self.volume(id)?.is_some();
        let published = self
            .make_inline(id, parameters, *range, &request.capability)
            .and_then(|()| self.publish_at(request, &folder, &name));
        // Nothing else deletes the volume of a pod that never had it.
        if published.is_err()
            && !there
            && let Err(error) = self.forget_inline(id)
        {
            tracing::warn!(volume = %id, error = %error.chain(), "cannot remove the volume of a pod that failed to start");
        }
        published
    }

    /// Deletes a pod's own volume after a failed publish.
    fn forget_inline(&self, id: &Id) -> Result<()> {
        let _volume = self.locks.lock(Thing::Volume(id.clone()))?;
        let Some((open, volume)) = self.volume(id)? else { return Ok(()) };
        if let Some(file) = open.image(&volume)? {
            stage::release(&open, &file)?;
        }
        self.remove_volume(&open, &volume)
    }

    /// Publishes a volume that is there at `name` in `folder`.
    fn publish_at(&self, request: &Request, folder: &Dir, name: &Path) -> Result<()> {
        let id = &request.id;
        let (open, volume) = self.need_volume(id)?;
        stage::fits(&volume, &request.capability)?;
        let options = match &request.capability.access {
            Access::Mount(options) => options.clone(),
            Access::Block => MountOptions::default(),
        };
        let read_only = request.read_only
            || request.capability.mode == Mode::ManyReaders
            || options.set & libc::MOUNT_ATTR_RDONLY != 0
            || open.read_only();
        let found = mounts::stat(folder, name)?;
        let path = Path::new(&request.target);
        let at = match found {
            Some(place) if place.mounted => at_target(&open, &volume, place)?,
            Some(_) | None => AtTarget::Free,
        };
        let others = match request.capability.mode {
            Mode::One => self.published.others(id, Some(path))?.len(),
            Mode::ManyNodes | Mode::Many | Mode::ManyReaders => 0,
        };
        match plan::publish(at, read_only, request.capability.mode, others)? {
            Publish::AlreadyThere => {}
            Publish::Mount => {
                fault::step("make the target")?;
                let made = place_for(folder, name, found, volume.shape)?;
                let mounted =
                    self.mount(&open, &volume, request, &options, read_only).and_then(|(device, mount)| {
                        mounts::attach(mount.as_fd(), folder, name)?;
                        if let Some(device) = device {
                            device.keep();
                        }
                        Ok(())
                    });
                if let Err(error) = mounted {
                    if made {
                        drop(vacate(folder, name));
                    }
                    return Err(error);
                }
                tracing::info!(volume = %id, path = request.target, read_only, "volume is published");
            }
        }
        self.published.add(id, path);
        Ok(())
    }

    /// The mount that is to appear at the target, and the device that was attached for it.
    fn mount(
        &self,
        open: &Open<'_>,
        volume: &Volume,
        request: &Request,
        options: &MountOptions,
        read_only: bool,
    ) -> Result<(Option<stage::Attached>, OwnedFd)> {
        let ro = if read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
        let gone = || Error::new(Kind::NotFound, format!("volume {} is gone", volume.id));
        let mut attached = None;
        let mount = match volume.shape {
            Shape::Folder => {
                let handle = open.root.handle(&volume.id)?.ok_or_else(gone)?;
                if let Some(group) = options.group.filter(|_| !read_only) {
                    tree::give_to_group(&open.root.need_dir(&volume.id)?, group)?;
                }
                mounts::bound(handle.as_fd(), options.set | ro, options.clear)?
            }
            Shape::Loop if request.inline.is_some() => {
                let device = &*attached.insert(stage::attached(open, volume, false)?);
                let whole = stage::mount(open, volume, device.device)?;
                let root = mounts::root_of(whole.as_fd())?;
                if let Some(group) = options.group.filter(|_| !read_only) {
                    tree::give_to_group(&root, group)?;
                }
                crate::sys::mount_setattr(whole.as_fd(), options.set | ro, options.clear)
                    .map_err(|error| Error::io("set the mount's attributes", error))?;
                whole
            }
            Shape::Loop => {
                let root = staged(open, volume, &request.staging)?;
                if let Some(group) = options.group.filter(|_| !read_only) {
                    tree::give_to_group(&root, group)?;
                }
                mounts::bound(root.as_fd(), options.set | ro, options.clear)?
            }
            Shape::Block => {
                let file = open.need_image(volume)?;
                if open.pool.devices.find(&file, false)?.is_none() {
                    return Err(Error::new(
                        Kind::Precondition,
                        format!("volume {} is not staged", volume.id),
                    ));
                }
                let device = &*attached.insert(stage::attached(open, volume, read_only)?);
                mounts::bound(device.device.handle()?.as_fd(), 0, 0)?
            }
        };
        Ok((attached, mount))
    }

    /// Makes a pod's own volume.
    fn make_inline(
        &self,
        id: &Id,
        parameters: &Parameters,
        range: Range,
        capability: &Capability,
    ) -> Result<()> {
        let mut parameters = parameters.clone();
        if parameters.pool.is_none() {
            parameters.pool = self.pools.first().map(|pool| pool.config.name.clone());
        }
        let request = create::Request {
            id: id.clone(),
            capabilities: vec![capability.clone()],
            parameters,
            range,
            source: None,
            attributes: Attributes::default(),
            inline: true,
        };
        self.create_volume(&request).map(drop)
    }

    /// Undoes publishing. What is not published is unpublished; a pod's own volume is deleted.
    pub(crate) fn unpublish(&self, id: &Id, target: &str) -> Result<()> {
        let _guard = self.locks.lock(Thing::Mounts(id.clone()))?;
        let found = self.volume(id);
        if let Some((folder, name)) = directory::split("target_path", target)?
            && detach(id, found.as_ref().ok().and_then(Option::as_ref), &folder, &name)? == Left::Nothing
        {
            vacate(&folder, &name)?;
        }
        let path = Path::new(target);
        self.published.remove(id, path);
        let (open, volume) = match found {
            Ok(Some(found)) => found,
            // An inline volume is never unstaged.
            Ok(None) if id.is_inline() => return self.release_unseen(id),
            Ok(None) => return Ok(()),
            // Its pool is not there, and nothing of ours holds the pod any more. An inline volume must still be deleted.
            Err(error) if error.kind() == Kind::NotReady && !id.is_inline() => return Ok(()),
            Err(error) => return Err(error),
        };
        if self.published.is_anywhere(id) && !self.published.others(id, None)?.is_empty() {
            return Ok(());
        }
        let inline = volume.record.as_ref().map_or(id.is_inline(), |record| record.inline);
        if let Some(file) = open.image(&volume)? {
            if inline {
                stage::release(&open, &file)?;
            } else if let Some(found) = open.pool.devices.find(&file, true)? {
                found.detach()?;
            }
        }
        if inline {
            let _volume = self.locks.lock(Thing::Volume(id.clone()))?;
            self.remove_volume(&open, &volume)?;
        }
        Ok(())
    }

    /// Usage of a volume that is in use at `path`.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when it is not here, or not at that path.
    pub(crate) fn stats(&self, id: &Id, path: &str) -> Result<Stats> {
        let (open, volume) = match self.need_volume(id) {
            Ok(found) => found,
            // A pool that is not there is the volume's condition, not the caller's mistake.
            Err(error) if error.kind() == Kind::NotReady && self.published.is_anywhere(id) => {
                let condition = Condition { abnormal: true, message: error.chain() };
                return Ok(Stats { bytes: None, inodes: None, condition });
            }
            Err(error) => return Err(error),
        };
        let absent = || Error::new(Kind::NotFound, format!("volume {id} is not at {path}"));
        // A path that cannot be one is a path at which the volume is not.
        let (folder, name) = directory::split("volume_path", path).unwrap_or(None).ok_or_else(absent)?;
        let place = mounts::stat(&folder, &name)?.ok_or_else(absent)?;
        if !place.mounted || at_target(&open, &volume, place)? == AtTarget::Foreign {
            return Err(absent());
        }
        let condition = volume_health::of(&open, &volume)?;
        if volume.shape == Shape::Block {
            let file = open.need_image(&volume)?;
            let stat = rustix::fs::fstat(&file).map_err(|error| Error::io("inspect a volume", error))?;
            let total = u64::try_from(stat.st_size).unwrap_or(0);
            let used = tree::bytes(&stat).min(total);
            return Ok(Stats { bytes: Some([total, used, total - used]), inodes: None, condition });
        }
        let seen = rustix::fs::openat(
            &folder,
            &name,
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(|error| Error::io(format!("open {path}"), error))?;
        let numbers = fstatvfs(&seen).map_err(|error| Error::io(format!("ask {path}"), error))?;
        let bytes = |blocks: u64| blocks.saturating_mul(numbers.f_frsize);
        let whole = [
            bytes(numbers.f_blocks),
            bytes(numbers.f_blocks.saturating_sub(numbers.f_bfree)),
            bytes(numbers.f_bavail),
        ];
        let inodes =
            Some([numbers.f_files, numbers.f_files.saturating_sub(numbers.f_ffree), numbers.f_favail]);
        let own = volume.shape == Shape::Loop
            || open.enforce() == Some(Enforce::Quota)
            || open.pool.config.capacity == Capacity::Filesystem;
        let bytes = match volume.record.as_ref().filter(|_| !own) {
            // The filesystem's numbers are the pool's. The volume's own are what it was promised, and what it used
            // when it was last looked at.
            Some(record) => {
                let used = open.known.book().volumes.get(id).map_or(0, |line| line.used);
                [record.capacity, used, record.capacity.saturating_sub(used).min(whole[2])]
            }
            None => whole,
        };
        Ok(Stats { bytes: Some(bytes), inodes, condition })
    }
}

/// The root of the filesystem that is staged at `path`.
fn staged(open: &Open<'_>, volume: &Volume, path: &str) -> Result<Dir> {
    let missing =
        || Error::new(Kind::Precondition, format!("volume {} is not staged at {path:?}", volume.id));
    if path.is_empty() {
        return Err(missing());
    }
    let (folder, name) = directory::split("staging_target_path", path)?.ok_or_else(missing)?;
    let place = mounts::stat(&folder, &name)?.ok_or_else(missing)?;
    if !place.mounted || at_target(open, volume, place)? == AtTarget::Foreign {
        return Err(missing());
    }
    rustix::fs::openat(
        &folder,
        &name,
        rustix::fs::OFlags::RDONLY
            | rustix::fs::OFlags::DIRECTORY
            | rustix::fs::OFlags::NOFOLLOW
            | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map(|fd| Dir::from_fd(fd, PathBuf::from(path)).one_mount())
    .map_err(|error| Error::io(format!("open {path}"), error))
}

/// Makes the folder or file to mount on, as upstream makes it. True when it was not there.
fn place_for(folder: &Dir, name: &Path, found: Option<Place>, shape: Shape) -> Result<bool> {
    match (found, shape) {
        (None, Shape::Block) => tree::new_file(folder, name).map(|_| true),
        (None, Shape::Folder | Shape::Loop) => Ok(folder.make_dir(name, 0o750)?),
        (Some(place), Shape::Block) if place.is_folder => {
            let path = folder.path_of(name);
            let text =
                format!("{} is a directory; a block device needs a file or nothing there", path.display());
            Err(Error::new(Kind::Precondition, text))
        }
        (Some(place), Shape::Folder | Shape::Loop) if !place.is_folder => {
            let path = folder.path_of(name);
            let text = format!("{} exists and is not a directory: remove it", path.display());
            Err(Error::new(Kind::Precondition, text))
        }
        (Some(_), _) => Ok(false),
    }
}

/// Removes the folder or file that was mounted on. What holds anything stays: it is somebody's data.
fn vacate(folder: &Dir, name: &Path) -> Result<()> {
    match folder.stat(name)? {
        None => Ok(()),
        Some(stat) if dir::is_dir(&stat) => {
            folder.remove_dir(name).map(drop).map_err(|error| Error::from(error).as_kind(Kind::Precondition))
        }
        Some(stat) if !dir::is_file(&stat) || stat.st_size > 0 => Err(Error::new(
            Kind::Precondition,
            format!("{} is no empty file of a mount, and stays: remove it", folder.path_of(name).display()),
        )),
        Some(_) => {
            folder.unlink(name)?;
            Ok(())
        }
    }
}
