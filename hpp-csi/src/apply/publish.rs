//! NodePublishVolume and NodeUnpublishVolume: a mount of a volume at a pod's path. A pod's own volume is made and deleted with
//! it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::fault;
use dir::Dir;

use crate::directory;
use crate::id::Id;
use crate::locks::{Locks, Thing};
use crate::mounts::{self, Left, Place};
use crate::plan::node::{self, AtTarget, Publish, Unpublish};
use crate::pool::{Open, Volume, tree};
use crate::pools::Pools;
use crate::publications::Publications;
use crate::record::Shape;
use crate::request::{Access, Attributes, Capability, Mode, MountOptions, Parameters, Range};

use super::mounted::{at_target, detach};
use super::volume::{self, Volumes};
use super::{change, stage};

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

/// Publishes volumes.
#[derive(Debug)]
pub(crate) struct Publishing {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
    pub(crate) published: Arc<Publications>,
    /// Makes and deletes pods' own volumes.
    pub(crate) volumes: Arc<Volumes>,
}

impl Publishing {
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
        let there = self.pools.volume(id)?.is_some();
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
        let Some((open, volume)) = self.pools.volume(id)? else { return Ok(()) };
        if let Some(file) = open.image(&volume)? {
            change::detach(&open, &file)?;
        }
        self.volumes.remove(&open, &volume)
    }

    /// Publishes a volume that is there at `name` in `folder`.
    fn publish_at(&self, request: &Request, folder: &Dir, name: &Path) -> Result<()> {
        let id = &request.id;
        let (open, volume) = self.pools.need_volume(id)?;
        node::fits(id, volume.shape, &request.capability.access)?;
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
            Mode::One => self.published.others(id, Some(path))?,
            Mode::ManyNodes | Mode::Many | Mode::ManyReaders => Vec::new(),
        };
        let target = node::Target { id, path: &request.target, others: &others };
        match node::publish(&target, at, read_only, request.capability.mode)? {
            Publish::AlreadyThere => {}
            Publish::Mount => {
                fault::step("make the target")?;
                let made = place_for(folder, name, found, volume.shape)?;
                let mounted =
                    mount(&open, &volume, request, &options, read_only).and_then(|(device, mount)| {
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
            parameters.pool = self.pools.all.first().map(|pool| pool.config.name.clone());
        }
        let request = volume::Request {
            id: id.clone(),
            capabilities: vec![capability.clone()],
            parameters,
            range,
            source: None,
            attributes: Attributes::default(),
            inline: true,
        };
        self.volumes.create(&request).map(drop)
    }

    /// Undoes publishing. What is not published is unpublished; a pod's own volume is deleted.
    pub(crate) fn unpublish(&self, id: &Id, target: &str) -> Result<()> {
        let _guard = self.locks.lock(Thing::Mounts(id.clone()))?;
        let found = self.pools.volume(id);
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
            Ok(None) if id.is_inline() => return stage::detach_unseen(&self.pools, id),
            Ok(None) => return Ok(()),
            // Its pool is not there, and nothing of ours holds the pod any more. An inline volume must still be deleted.
            Err(error) if error.kind() == Kind::NotReady && !id.is_inline() => return Ok(()),
            Err(error) => return Err(error),
        };
        let elsewhere = self.published.is_anywhere(id) && !self.published.others(id, None)?.is_empty();
        let inline = volume.record.as_ref().map_or(id.is_inline(), |record| record.inline);
        match node::unpublish(elsewhere, inline) {
            Unpublish::Nothing => {}
            Unpublish::Reader => {
                if let Some(file) = open.image(&volume)?
                    && let Some(found) = open.pool.devices.find(&file, true)?
                {
                    found.detach()?;
                }
            }
            Unpublish::Volume => {
                if let Some(file) = open.image(&volume)? {
                    change::detach(&open, &file)?;
                }
                let _volume = self.locks.lock(Thing::Volume(id.clone()))?;
                self.volumes.remove(&open, &volume)?;
            }
        }
        Ok(())
    }
}

/// The mount that is to appear at the target, and the device that was attached for it.
fn mount(
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
                return Err(Error::new(Kind::Precondition, format!("volume {} is not staged", volume.id)));
            }
            let device = &*attached.insert(stage::attached(open, volume, read_only)?);
            mounts::bound(device.device.handle()?.as_fd(), 0, 0)?
        }
    };
    Ok((attached, mount))
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
    Ok(directory::open(&folder, &name, path)?.one_mount())
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

/// Removes the folder or file of a mount. One with content stays: it is data of another origin.
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
