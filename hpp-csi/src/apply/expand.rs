//! ControllerExpandVolume and NodeExpandVolume: the promise and the file grow first, then the device, then the filesystem
//! on it. All of it while the volume is in use.

use std::os::fd::AsFd;

use crate::config::Enforce;
use crate::device;
use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::folder::{self, Folder};
use crate::id::Id;
use crate::locks::Thing;
use crate::mounts;
use crate::plan::{self, Expand};
use crate::pool::{Open, Volume};
use crate::record::{Record, Shape};
use crate::request::Range;
use crate::sys;

use super::{create, image};

impl Driver {
    /// Makes a volume larger. Gives the bytes to tell, and whether the node has something to do.
    pub(crate) fn expand_volume(&self, id: &Id, range: Range) -> Result<(u64, bool)> {
        let _guard = self.locks.take(Thing::Volume(id.clone()))?;
        let (open, volume) = self.need_volume(id)?;
        let current = volume.record.as_ref().map(|record| record.capacity);
        let capacity = match plan::expand(current, range, volume.shape)? {
            Expand::AlreadyThere(capacity) => capacity,
            Expand::Grow(capacity) => {
                let promised =
                    current.unwrap_or_else(|| open.known.book().volumes.get(id).map_or(0, |line| line.used));
                let promise = create::promise(&open, capacity.saturating_sub(promised))?;
                grow(&open, &volume, capacity)?;
                drop(promise);
                tracing::info!(volume = %id, bytes = capacity, "volume is larger");
                capacity
            }
        };
        Ok((create::told(&open, volume.shape, capacity), volume.shape != Shape::Folder))
    }

    /// Lets a volume that is in use at `path` become as large as its file. Gives the bytes to tell.
    pub(crate) fn expand_on_node(&self, id: &Id, path: &str, staging: Option<&str>) -> Result<u64> {
        let _guard = self.locks.take(Thing::Mounts(id.clone()))?;
        let (open, volume) = self.need_volume(id)?;
        let (folder, name) = folder::split("volume_path", path)?
            .ok_or_else(|| Error::new(Kind::NotFound, format!("nothing is at {path}")))?;
        if mounts::look(&folder, &name)?.is_none() {
            return Err(Error::new(Kind::NotFound, format!("nothing is at {path}")));
        }
        let capacity = volume.record.as_ref().map_or(0, |record| record.capacity);
        if volume.shape != Shape::Folder {
            let file = open.need_image(&volume)?;
            for found in device::all(device::identity(&file)?)? {
                found.grow()?;
                if volume.shape == Shape::Loop && !found.read_only {
                    let filesystem = image::Filesystem::of(&file)?.ok_or_else(|| {
                        open.pool.error(Kind::Precondition, format!("volume {id} holds no filesystem"))
                    })?;
                    let mount = mounted(staging.unwrap_or(path), found.device())?;
                    image::grow(&mount, filesystem, capacity)?;
                }
            }
        }
        Ok(create::told(&open, volume.shape, capacity))
    }
}

/// The mount at `path`, which must be of the filesystem on `device`.
fn mounted(path: &str, device: u64) -> Result<Folder> {
    let gone = || Error::new(Kind::Precondition, format!("the volume is not mounted at {path}"));
    let (folder, name) = folder::split("the path", path)?.ok_or_else(gone)?;
    let mount = rustix::fs::openat(
        &folder,
        &name,
        rustix::fs::OFlags::RDONLY
            | rustix::fs::OFlags::DIRECTORY
            | rustix::fs::OFlags::NOFOLLOW
            | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(|error| Error::io(format!("open {path}"), error))?;
    let mount = Folder::from_fd(mount, path.into());
    if mount.stat_self()?.st_dev == device { Ok(mount) } else { Err(gone()) }
}

/// Grows the promise, the quota, the file.
fn grow(open: &Open<'_>, volume: &Volume, capacity: u64) -> Result<()> {
    let id = &volume.id;
    let mut record = volume.record.clone().unwrap_or_else(|| Record::new(volume.shape, capacity));
    record.capacity = capacity;
    match volume.shape {
        Shape::Folder => {
            if let Some(project) = record.project.filter(|_| open.enforce() == Some(Enforce::Quota)) {
                sys::limit_project(open.root.need(id)?.as_fd(), project, capacity)
                    .map_err(|error| Error::io(format!("limit volume {id} by quota"), error))?;
            }
        }
        Shape::Loop | Shape::Block => {
            let file = open.need_image(volume)?;
            let length = file.metadata().map_err(|error| Error::io("look at a volume", error))?.len();
            if length < capacity {
                file.set_len(capacity).map_err(|error| Error::io(format!("grow volume {id}"), error))?;
                file.sync_all().map_err(|error| Error::io(format!("sync volume {id}"), error))?;
            }
        }
    }
    super::write_volume_record(open, id, &record)?;
    open.known.book().note_volume(id, Some(record), volume.shape, 0);
    Ok(())
}
