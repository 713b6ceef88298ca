//! NodeGetVolumeStats: usage and condition of a volume that is in use. Nothing is changed.

use rustix::fs::{Mode, OFlags, fstatvfs};

use crate::config::{Capacity, Enforce};
use crate::directory;
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::mounts;
use crate::plan::node::AtTarget;
use crate::pool::tree;
use crate::pools::Pools;
use crate::publications::Publications;
use crate::record::Shape;
use crate::volume_health::{self, Condition};

use super::mounted::at_target;

/// Usage of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Total, used, available bytes, as far as they can be known.
    pub(crate) bytes: Option<[u64; 3]>,
    /// The same of inodes; a block device has none.
    pub(crate) inodes: Option<[u64; 3]>,
    pub(crate) condition: Condition,
}

/// Usage of a volume that is in use at `path`.
///
/// # Errors
/// [`Kind::NotFound`] when it is not here, or not at that path.
pub(crate) fn of(pools: &Pools, published: &Publications, id: &Id, path: &str) -> Result<Stats> {
    let (open, volume) = match pools.need_volume(id) {
        Ok(found) => found,
        // A pool that is not there is the volume's condition, not the caller's mistake.
        Err(error) if error.kind() == Kind::NotReady && published.is_anywhere(id) => {
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
    let seen =
        rustix::fs::openat(&folder, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| Error::io(format!("open {path}"), error))?;
    let numbers = fstatvfs(&seen)
        .map_err(|error| Error::io(format!("read the size and free space of {path}"), error))?;
    let bytes = |blocks: u64| blocks.saturating_mul(numbers.f_frsize);
    let whole = [
        bytes(numbers.f_blocks),
        bytes(numbers.f_blocks.saturating_sub(numbers.f_bfree)),
        bytes(numbers.f_bavail),
    ];
    let inodes = Some([numbers.f_files, numbers.f_files.saturating_sub(numbers.f_ffree), numbers.f_favail]);
    let own = volume.shape == Shape::Loop
        || open.enforce() == Some(Enforce::Quota)
        || open.pool.config.capacity == Capacity::Filesystem;
    let bytes = match volume.record.as_ref().filter(|_| !own) {
        // The filesystem's numbers are the pool's. The volume's own are its reservation, and its usage as last
        // measured.
        Some(record) => {
            let used = open.known.book().volumes.get(id).map_or(0, |line| line.used);
            [record.capacity, used, record.capacity.saturating_sub(used).min(whole[2])]
        }
        None => whole,
    };
    Ok(Stats { bytes: Some(bytes), inodes, condition })
}
