//! NodeExpandVolume: after the volume's file, the device grows and the filesystem on it, while the volume is in use. The file
//! grows first when that is asked for here ([`super::volume`]).

use std::sync::Arc;

use crate::directory;
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::locks::{Locks, Thing};
use crate::mounts;
use crate::pools::Pools;
use crate::record::Shape;
use crate::request::Range;
use dir::Dir;

use super::image;
use super::room::reported_capacity;
use super::volume::Volumes;

/// Expands volumes where they are in use.
#[derive(Debug)]
pub(crate) struct Expansion {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
    pub(crate) volumes: Arc<Volumes>,
}

impl Expansion {
    /// Expands the filesystem or device of a volume in use at `path` to the size of its file; the file grows first when
    /// `range` asks for more. Returns the capacity to report.
    pub(crate) fn expand(&self, id: &Id, path: &str, staging: Option<&str>, range: Range) -> Result<u64> {
        let _guard = self.locks.lock(Thing::Mounts(id.clone()))?;
        let (mut open, mut volume) = self.pools.need_volume(id)?;
        let (folder, name) = directory::split("volume_path", path)?
            .ok_or_else(|| Error::new(Kind::NotFound, format!("no volume is at {path}")))?;
        if mounts::stat(&folder, &name)?.is_none() {
            return Err(Error::new(Kind::NotFound, format!("no volume is at {path}")));
        }
        if range.required != 0 {
            self.volumes.expand(id, range)?;
            (open, volume) = self.pools.need_volume(id)?;
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
        Ok(reported_capacity(&open, volume.shape, capacity))
    }
}

/// The mount at `path`, which must be of the filesystem on `device`.
fn mounted(path: &str, device: u64) -> Result<Dir> {
    let gone = || Error::new(Kind::Precondition, format!("the volume is not mounted at {path}"));
    let (folder, name) = directory::split("the path", path)?.ok_or_else(gone)?;
    let mount = directory::open(&folder, &name, path)?;
    if mount.stat_self()?.st_dev == device { Ok(mount) } else { Err(gone()) }
}
