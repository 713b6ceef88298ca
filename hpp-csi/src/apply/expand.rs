//! ControllerExpandVolume and NodeExpandVolume: the promise and the file grow first, then the device, then the filesystem
//! on it. All of it while the volume is in use.
//!
//! Stock csi-resizer has one leader, which asks the driver of its own node about the volumes of all. The driver that is
//! asked about another node's volume leaves everything to NodeExpandVolume, which the kubelet calls where the volume is.

use std::os::fd::AsFd;

use crate::config::Enforce;
use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use dir::Dir;

use crate::directory;
use crate::id::Id;
use crate::locks::Thing;
use crate::mounts;
use crate::plan::{self, Expand};
use crate::pool::{Open, Volume};
use crate::record::{Record, Shape};
use crate::request::Range;
use crate::sys;

use super::{create, image, modify};

impl Driver {
    /// Expands a volume. Returns the capacity to report, and whether node expansion is required.
    pub(crate) fn expand_volume(&self, id: &Id, range: Range) -> Result<(u64, bool)> {
        let _guard = self.locks.lock(Thing::Volume(id.clone()))?;
        let Some((open, volume)) = self.volume(id)? else { return self.expand_elsewhere(id, range) };
        let current = volume.record.as_ref().map(|record| record.capacity);
        let capacity = match plan::expand(current, range, volume.shape)? {
            Expand::AlreadyThere(capacity) => capacity,
            Expand::Grow(capacity) => {
                open.writable()?;
                let promised =
                    current.unwrap_or_else(|| open.known.book().volumes.get(id).map_or(0, |line| line.used));
                // The claim can be reduced again after OUT_OF_RANGE only: no other node could grow this volume.
                let no_room = |error: Error| match error.kind() {
                    Kind::Exhausted => error.as_kind(Kind::OutOfRange),
                    Kind::Invalid
                    | Kind::NotFound
                    | Kind::Exists
                    | Kind::Precondition
                    | Kind::Busy
                    | Kind::OutOfRange
                    | Kind::Unsupported
                    | Kind::NotReady
                    | Kind::Overloaded
                    | Kind::Internal => error,
                };
                let promise = create::promise(&open, capacity.saturating_sub(promised)).map_err(no_room)?;
                grow(&open, &volume, capacity)
                    .map_err(|error| no_room(open.without_room(capacity, error)))?;
                drop(promise);
                tracing::info!(volume = %id, bytes = capacity, "volume is expanded");
                capacity
            }
        };
        Ok((create::reported_capacity(&open, volume.shape, capacity), volume.shape != Shape::Folder))
    }

    /// Leaves a volume that another node has to that node.
    fn expand_elsewhere(&self, id: &Id, range: Range) -> Result<(u64, bool)> {
        if !self.may_be_elsewhere(id) || self.pools.iter().all(|pool| pool.config.shared) {
            return Err(self.absent(id));
        }
        let (Expand::AlreadyThere(capacity) | Expand::Grow(capacity)) =
            plan::expand(None, range, Shape::Block)?;
        tracing::info!(volume = %id, bytes = capacity, "the volume is on another node, which expands it");
        Ok((capacity, true))
    }

    /// Expands the filesystem or device of a volume in use at `path` to the size of its file; the file grows first when
    /// `range` asks for more. Returns the capacity to report.
    pub(crate) fn expand_on_node(
        &self,
        id: &Id,
        path: &str,
        staging: Option<&str>,
        range: Range,
    ) -> Result<u64> {
        let _guard = self.locks.lock(Thing::Mounts(id.clone()))?;
        let (mut open, mut volume) = self.need_volume(id)?;
        let (folder, name) = directory::split("volume_path", path)?
            .ok_or_else(|| Error::new(Kind::NotFound, format!("no volume is at {path}")))?;
        if mounts::stat(&folder, &name)?.is_none() {
            return Err(Error::new(Kind::NotFound, format!("no volume is at {path}")));
        }
        if range.required != 0 {
            self.expand_volume(id, range)?;
            (open, volume) = self.need_volume(id)?;
        }
        let capacity = volume.record.as_ref().map_or(0, |record| record.capacity);
        if volume.shape != Shape::Folder {
            let file = open.need_image(&volume)?;
            for found in open.pool.devices.all(&file)? {
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
        Ok(create::reported_capacity(&open, volume.shape, capacity))
    }
}

/// The mount at `path`, which must be of the filesystem on `device`.
fn mounted(path: &str, device: u64) -> Result<Dir> {
    let gone = || Error::new(Kind::Precondition, format!("the volume is not mounted at {path}"));
    let (folder, name) = directory::split("the path", path)?.ok_or_else(gone)?;
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
    let mount = Dir::from_fd(mount, path);
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
                sys::limit_project(open.root.need_dir(id)?.as_fd(), project, capacity)
                    .map_err(|error| Error::io(format!("limit volume {id} by quota"), error))?;
            }
        }
        Shape::Loop | Shape::Block => {
            let file = open.need_image(volume)?;
            let length = file.metadata().map_err(|error| Error::io("inspect a volume", error))?.len();
            if length < capacity {
                file.set_len(capacity).map_err(|error| Error::io(format!("grow volume {id}"), error))?;
                dir::fsync(&file).map_err(|error| Error::io(format!("sync volume {id}"), error))?;
            }
            if record.thick {
                modify::allocate(&file, 0, capacity)?;
                modify::allocated(open, volume, &file)?;
            }
        }
    }
    super::write_volume_record(open, id, &record)?;
    open.known.book().note_volume(id, Some(record), volume.shape);
    Ok(())
}
