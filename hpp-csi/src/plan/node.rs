//! Decisions about volumes on the node: what may be staged and published, and what an unpublish lets go. Not here: mounts and
//! devices themselves.

use std::path::PathBuf;

use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::record::Shape;
use crate::request::{Access, Mode};

/// Checks that a volume is of the requested kind: a block device or a filesystem to mount.
///
/// # Errors
/// [`Kind::Invalid`] when it is the other.
pub(crate) fn fits(id: &Id, shape: Shape, access: &Access) -> Result<()> {
    match (shape, access) {
        (Shape::Block, Access::Block) | (Shape::Folder | Shape::Loop, Access::Mount(_)) => Ok(()),
        (Shape::Block, Access::Mount(_)) => {
            Err(Error::new(Kind::Invalid, format!("volume {id} is a block volume and cannot be mounted")))
        }
        (Shape::Folder | Shape::Loop, Access::Block) => {
            Err(Error::new(Kind::Invalid, format!("volume {id} is not a block volume")))
        }
    }
}

/// The state of a target path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtTarget {
    /// Nothing, or a plain folder or file to mount on.
    Free,
    /// The volume that is to be published there.
    Ours { read_only: bool },
    /// Something else is mounted there.
    Foreign,
}

/// Outcome of a NodePublishVolume request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Nothing: it is published just so.
    AlreadyThere,
    /// It is mounted.
    Mount,
}

/// The place of a NodePublishVolume request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) id: &'a Id,
    pub(crate) path: &'a str,
    /// Other paths at which the volume is published.
    pub(crate) others: &'a [PathBuf],
}

/// Decides NodePublishVolume for the access mode `mode`.
///
/// # Errors
/// [`Kind::Exists`] when it is published there in another way; [`Kind::Precondition`] when another filesystem is
/// mounted there, or a volume for one is in use.
pub(crate) fn publish(target: &Target<'_>, at: AtTarget, read_only: bool, mode: Mode) -> Result<Publish> {
    let Target { id, path, others } = target;
    match (at, others.first()) {
        (AtTarget::Foreign, _) => Err(Error::new(
            Kind::Precondition,
            format!("another filesystem is mounted at {path}; unmount it"),
        )),
        (AtTarget::Ours { read_only: is }, _) if is != read_only => {
            let how = if is { "read-only" } else { "for writing" };
            Err(Error::new(Kind::Exists, format!("volume {id} is already published at {path} {how}")))
        }
        (AtTarget::Ours { .. }, _) => Ok(Publish::AlreadyThere),
        (AtTarget::Free, Some(other)) if mode == Mode::One => Err(Error::new(
            Kind::Precondition,
            format!(
                "volume {id} may be published once (ReadWriteOncePod) and is already published at {}; delete the pod \
                 that uses it",
                other.display()
            ),
        )),
        (AtTarget::Free, _) => Ok(Publish::Mount),
    }
}

/// The parts of a volume that an unpublish lets go, after the target is unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpublish {
    /// Nothing: it is published at other paths.
    Nothing,
    /// The device of read-only targets; the volume stays staged.
    Reader,
    /// All devices, and the volume: it was a pod's own.
    Volume,
}

/// Decides what an unpublish lets go of a volume that is published at other paths, or not.
pub(crate) fn unpublish(elsewhere: bool, inline: bool) -> Unpublish {
    match (elsewhere, inline) {
        (true, _) => Unpublish::Nothing,
        (false, true) => Unpublish::Volume,
        (false, false) => Unpublish::Reader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishing() {
        let ours = |read_only| AtTarget::Ours { read_only };
        for (at, read_only, mode, others, expected) in [
            (AtTarget::Free, false, Mode::Many, 3, Ok(Publish::Mount)),
            (AtTarget::Free, false, Mode::One, 0, Ok(Publish::Mount)),
            (AtTarget::Free, false, Mode::One, 1, Err(Kind::Precondition)),
            (AtTarget::Free, true, Mode::ManyReaders, 1, Ok(Publish::Mount)),
            (ours(false), false, Mode::One, 0, Ok(Publish::AlreadyThere)),
            (ours(true), false, Mode::Many, 0, Err(Kind::Exists)),
            (ours(false), true, Mode::Many, 0, Err(Kind::Exists)),
            (AtTarget::Foreign, false, Mode::Many, 0, Err(Kind::Precondition)),
        ] {
            let id = Id::read("disk").unwrap();
            let others = vec![PathBuf::from("/other"); others];
            let target = Target { id: &id, path: "/target", others: &others };
            let planned = publish(&target, at, read_only, mode).map_err(|error| error.kind());
            assert_eq!(planned, expected, "{at:?} {read_only} {mode:?} {others:?}");
        }
    }

    #[test]
    fn a_volume_is_used_as_what_it_is() {
        let mount = || Access::Mount(crate::request::MountOptions::default());
        for (shape, access, fits_it) in [
            (Shape::Block, Access::Block, true),
            (Shape::Block, mount(), false),
            (Shape::Folder, mount(), true),
            (Shape::Loop, mount(), true),
            (Shape::Folder, Access::Block, false),
            (Shape::Loop, Access::Block, false),
        ] {
            let fits = fits(&Id::read("v").unwrap(), shape, &access);
            assert_eq!(fits.is_ok(), fits_it, "{shape:?} {access:?}");
        }
    }

    #[test]
    fn unpublishing() {
        for (elsewhere, inline, expected) in [
            (true, false, Unpublish::Nothing),
            (true, true, Unpublish::Nothing),
            (false, false, Unpublish::Reader),
            (false, true, Unpublish::Volume),
        ] {
            assert_eq!(unpublish(elsewhere, inline), expected, "{elsewhere} {inline}");
        }
    }
}
