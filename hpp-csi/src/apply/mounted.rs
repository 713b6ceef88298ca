//! Mounts at target and staging paths: comparison with a volume, and unmounting.

use std::path::Path;

use crate::error::Result;
use crate::id::Id;
use crate::mounts::{self, Left, Place};
use crate::plan::node::AtTarget;
use crate::pool::{Open, Volume};
use crate::publications;
use crate::record::Shape;
use dir::Dir;

/// Unmounts the volume `id` at a target path. The mount is compared with the volume if it is known, and otherwise with the
/// kernel's mount information.
pub(super) fn detach(id: &Id, known: Option<&(Open<'_>, Volume)>, folder: &Dir, name: &Path) -> Result<Left> {
    mounts::detach(folder, name, |place| {
        if let (Some((open, volume)), Some(place)) = (known, place)
            && at_target(open, volume, place)? != AtTarget::Foreign
        {
            return Ok(true);
        }
        publications::is_of(id, folder, name)
    })
}

/// Compares the mount at a path with the volume.
pub(super) fn at_target(open: &Open<'_>, volume: &Volume, place: Place) -> Result<AtTarget> {
    let ours = match volume.shape {
        Shape::Folder => (place.file == volume.file).then_some(place.read_only),
        Shape::Loop | Shape::Block => match open.image(volume)? {
            None => None,
            Some(file) => open
                .pool
                .devices
                .all(&file)?
                .into_iter()
                .find(|found| place.block.unwrap_or(place.file.0) == found.device())
                .map(|found| found.read_only || volume.shape == Shape::Loop && place.read_only),
        },
    };
    Ok(ours.map_or(AtTarget::Foreign, |read_only| AtTarget::Ours { read_only }))
}
