//! Uses of a volume: the paths at which it is published, and the devices of its file. Not here: ending them.

use crate::device::Loop;
use crate::error::Result;
use crate::plan::volume::{self, Uses};
use crate::pool::{Open, Volume};
use crate::publications::{self, Publications};
use crate::record::Shape;

/// The uses of a volume, and its devices.
fn of(published: &Publications, open: &Open<'_>, volume: &Volume) -> Result<(Uses, Vec<Loop>)> {
    let path = published.others(&volume.id, None)?.into_iter().next();
    let file = if path.is_none() { open.image(volume)? } else { None };
    let devices = file.map_or(Ok(Vec::new()), |file| open.pool.devices.all(&file))?;
    let device = devices.first().map(|device| device.path());
    Ok((Uses { published: path, device, left: false }, devices))
}

/// The uses of a volume that is to be deleted: whether its devices are in use, too.
pub(super) fn before_delete(published: &Publications, open: &Open<'_>, volume: &Volume) -> Result<Uses> {
    let (uses, devices) = of(published, open, volume)?;
    if volume.shape != Shape::Loop || devices.is_empty() {
        return Ok(uses);
    }
    let mounted = publications::mounted_devices()?;
    let left = devices.iter().all(|device| !mounted.contains(&device.device()));
    Ok(Uses { left, ..uses })
}

/// Whether nothing uses a volume: it is neither published nor staged.
pub(super) fn is_idle(published: &Publications, open: &Open<'_>, volume: &Volume) -> Result<bool> {
    let (uses, _) = of(published, open, volume)?;
    Ok(uses.published.is_none() && uses.device.is_none())
}

/// Checks that a volume may be copied now: that it is neither published nor staged, unless its pool has
/// `copyPublished`.
///
/// # Errors
/// [`crate::error::Kind::Precondition`] when it is in use.
pub(super) fn copyable(published: &Publications, open: &Open<'_>, volume: &Volume) -> Result<()> {
    if open.pool.config.copy_published {
        return Ok(());
    }
    volume::copyable(&volume.id, &of(published, open, volume)?.0)
}
