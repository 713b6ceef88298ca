//! Mounts, by the kernel's newer calls: open_tree(2), mount_setattr(2), move_mount(2), fsopen(2). No program is run.
//!
//! A mount is made out of sight, gets its attributes there, and appears at its place in one step.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, StatVfsMountFlags, StatxAttributes, StatxFlags, fstatvfs, makedev, statx,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
};

use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::sys;
use dir::{Dir, open_beneath};

/// Mounts that lie on top of each other at one place, at most; more are not ours.
const STACK_MAX: usize = 16;

/// The state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Whether it is a mount point.
    pub(crate) mounted: bool,
    /// Device and inode of what is seen there.
    pub(crate) file: (u64, u64),
    /// The device it is, if it is a block device.
    pub(crate) block: Option<u64>,
    pub(crate) is_folder: bool,
    /// Whether the mount it is on is read-only.
    pub(crate) read_only: bool,
}

/// The state of `name` in `folder`; `None` when it does not exist.
pub(crate) fn stat(folder: &Dir, name: &Path) -> Result<Option<Place>> {
    let failed = |error| Error::io(format!("look at {}", folder.path_of(name).display()), error);
    let fd = match rustix::fs::openat(
        folder,
        name,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    ) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&fd, "", flags, StatxFlags::BASIC_STATS).map_err(failed)?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    let read_only = fstatvfs(&fd).map_err(failed)?.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(Some(Place {
        mounted: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        file: (makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
        block: (kind == FileType::BlockDevice).then(|| makedev(found.stx_rdev_major, found.stx_rdev_minor)),
        is_folder: kind == FileType::Directory,
        read_only,
    }))
}

/// Whether an open folder is the root of a mount.
pub(crate) fn is_root(folder: &Dir) -> Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(folder, "", flags, StatxFlags::empty())
        .map_err(|error| Error::io(format!("look at {}", folder.path_of("").display()), error))?;
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// A mount of what `handle` is, not to be seen anywhere yet.
pub(crate) fn bound(handle: BorrowedFd<'_>, set: u64, clear: u64) -> Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    fault::step("bind")?;
    let mount = open_tree(handle, "", flags).map_err(|error| Error::io("bind the volume", error))?;
    if set != 0 || clear != 0 {
        sys::mount_setattr(mount.as_fd(), set, clear)
            .map_err(|error| Error::io("set the mount's attributes", error))?;
    }
    Ok(mount)
}

/// A mount of the filesystem on `device`, not to be seen anywhere yet.
pub(crate) fn filesystem(kind: &str, device: &Path, read_only: bool) -> Result<OwnedFd> {
    let failed = |error: Errno| Error::io(format!("mount the {kind} of {}", device.display()), error);
    fault::step("mount the filesystem")?;
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    fsconfig_set_string(&context, "source", device).map_err(failed)?;
    if kind == "xfs" {
        // A clone has its source's UUID.
        fsconfig_set_flag(&context, "nouuid").map_err(failed)?;
    }
    if read_only {
        fsconfig_set_flag(&context, "ro").map_err(failed)?;
    }
    fsconfig_create(&context).map_err(failed)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).map_err(failed)
}

/// Lets a mount appear at `name` in `folder`, where a folder or file must be.
pub(crate) fn attach(mount: BorrowedFd<'_>, folder: &Dir, name: &Path) -> Result<()> {
    fault::step("place the mount")?;
    move_mount(mount, "", folder, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| Error::io(format!("mount at {}", folder.path_of(name).display()), error))
}

/// Whether nothing is mounted at a place any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing is.
    Nothing,
    /// The mount below the driver's own.
    Others,
}

/// Unmounts the top mount at `name` in `folder`, as long as `ours` confirms it. `ours` gets `None` for a mount that cannot
/// be identified because its filesystem has failed.
///
/// # Errors
/// [`Kind::Precondition`] when it is in use, or none of it is ours: then it stays.
pub(crate) fn detach(
    folder: &Dir,
    name: &Path,
    ours: impl Fn(Option<Place>) -> Result<bool>,
) -> Result<Left> {
    for round in 0..STACK_MAX {
        let place = match stat(folder, name) {
            Ok(Some(place)) if place.mounted => Some(place),
            Ok(Some(_) | None) => return Ok(Left::Nothing),
            Err(error) if error.kind() == Kind::NotReady => None,
            Err(error) => return Err(error),
        };
        if !ours(place)? {
            if round > 0 {
                return Ok(Left::Others);
            }
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "another filesystem is mounted at {}; it is left mounted, unmount it by hand if it is no longer needed",
                    folder.path_of(name).display()
                ),
            ));
        }
        // The last component is not followed, so the path is beneath the open folder.
        let path = Path::new("/proc/self/fd").join(folder.as_fd().as_raw_fd().to_string()).join(name);
        match unmount(&path, UnmountFlags::NOFOLLOW) {
            Err(Errno::INVAL) if place.is_none() => return Ok(Left::Nothing),
            // EINVAL: another process unmounted it first.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => {
                let error = Error::io(format!("unmount {}", folder.path_of(name).display()), error);
                return Err(if matches!(error.kind(), Kind::Internal) {
                    error.as_kind(Kind::Precondition)
                } else {
                    error
                });
            }
        }
    }
    Err(Error::new(
        Kind::Precondition,
        format!("more than {STACK_MAX} mounts are at {}", folder.path_of(name).display()),
    ))
}

/// The root of a mount that is not to be seen anywhere, as a folder to read.
pub(crate) fn root_of(mount: BorrowedFd<'_>) -> Result<Dir> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    fault::step("open the mount")?;
    open_beneath(mount, Path::new("."), flags, rustix::fs::Mode::empty())
        .map(|fd| Dir::from_fd(fd, "the volume").one_mount())
        .map_err(|error| Error::io("open the volume's filesystem", error))
}
