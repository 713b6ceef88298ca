//! Loop devices: a file as a block device. Which device belongs to which file is the kernel's to know; nothing is written
//! down, so nothing can be wrong after a restart.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, fstat, makedev, mknodat, openat};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};
use crate::sys;

/// Major number of loop devices.
const MAJOR: u32 = 7;
/// How often a free device may be snatched away before we give up.
const TRIES: u32 = 64;

/// A loop device with a file attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    number: u32,
    /// Whether the file is read and written past the page cache.
    pub(crate) direct: bool,
    pub(crate) read_only: bool,
}

impl Loop {
    /// The device's node.
    pub(crate) fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    /// The device's number as a file's `st_rdev` says it.
    pub(crate) fn device(self) -> u64 {
        makedev(MAJOR, self.number)
    }

    /// A handle on the node that can be mounted.
    pub(crate) fn handle(self) -> Result<std::os::fd::OwnedFd> {
        openat(rustix::fs::CWD, self.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| Error::io(format!("open {}", self.path().display()), error))
    }

    /// Takes the file's size anew.
    pub(crate) fn grow(self) -> Result<()> {
        let device = open(self.number)?.ok_or_else(|| gone(self.number))?;
        sys::loop_set_capacity(device.as_fd())
            .map_err(|error| Error::io(format!("grow {}", self.path().display()), error))
    }

    /// Sends everything dirty in the device's page cache to the file, and the file's to the disk.
    pub(crate) fn sync(self) -> Result<()> {
        let device = open(self.number)?.ok_or_else(|| gone(self.number))?;
        rustix::fs::fsync(&device)
            .map_err(|error| Error::io(format!("sync {}", self.path().display()), error))
    }

    /// Detaches the file; when the device is open, as soon as it is closed.
    pub(crate) fn detach(self) -> Result<()> {
        let Some(device) = open(self.number)? else { return Ok(()) };
        sys::loop_clear(device.as_fd())
            .map_err(|error| Error::io(format!("detach {}", self.path().display()), error))
    }
}

fn gone(number: u32) -> Error {
    Error::new(Kind::Internal, format!("/dev/loop{number} is gone"))
}

/// Opens a loop device; its node is made where /dev is a container's own. `None` when there is no such device.
fn open(number: u32) -> Result<Option<File>> {
    let path = format!("/dev/loop{number}");
    let failed = |error| Error::io(format!("open {path}"), error);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mut result = openat(rustix::fs::CWD, &path, flags, Mode::empty());
    if matches!(result, Err(Errno::NOENT)) && fs::exists(format!("/sys/block/loop{number}")).unwrap_or(false)
    {
        let mode = Mode::from_raw_mode(0o660);
        match mknodat(rustix::fs::CWD, &path, FileType::BlockDevice, mode, makedev(MAJOR, number)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        result = openat(rustix::fs::CWD, &path, flags, Mode::empty());
    }
    // A read-only device cannot be opened for writing.
    if matches!(result, Err(Errno::ROFS | Errno::ACCESS)) {
        result = openat(rustix::fs::CWD, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    }
    match result {
        Ok(fd) => Ok(Some(fd.into())),
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// The device that the file with this device and inode number is attached to, for writing or read-only as asked.
pub(crate) fn find(file: (u64, u64), read_only: bool) -> Result<Option<Loop>> {
    Ok(all(file)?.into_iter().find(|found| found.read_only == read_only))
}

/// All devices that the file is attached to.
pub(crate) fn all(file: (u64, u64)) -> Result<Vec<Loop>> {
    let mut found = Vec::new();
    let entries = fs::read_dir("/sys/block").map_err(|error| Error::io("list /sys/block", error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list /sys/block", error))?;
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix("loop")).and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        // Only attached ones have it: others are not opened.
        if !fs::exists(entry.path().join("loop/backing_file")).unwrap_or(false) {
            continue;
        }
        let Some(device) = open(number)? else { continue };
        let state = sys::loop_state(device.as_fd())
            .map_err(|error| Error::io(format!("ask /dev/loop{number}"), error))?;
        if let Some(state) = state.filter(|state| (state.device, state.inode) == file) {
            found.push(Loop { number, direct: state.direct, read_only: state.read_only });
        }
    }
    Ok(found)
}

/// Attaches `file`, with sectors of `sector` bytes, past the page cache where that works.
pub(crate) fn attach(file: &File, sector: u32, read_only: bool) -> Result<Loop> {
    let failed = |error: std::io::Error| Error::io("attach a loop device", error);
    let control = openat(rustix::fs::CWD, "/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::io("open /dev/loop-control", error))?;
    for _ in 0..TRIES {
        let number = sys::loop_free(control.as_fd()).map_err(failed)?;
        let Some(device) = open(number)? else { continue };
        let mut result = sys::loop_configure(device.as_fd(), file.as_fd(), sector, read_only, true);
        if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
            result = sys::loop_configure(device.as_fd(), file.as_fd(), sector, read_only, false);
        }
        match result {
            Ok(()) => {
                let state = sys::loop_state(device.as_fd()).map_err(failed)?;
                let direct = state.is_some_and(|state| state.direct);
                return Ok(Loop { number, direct, read_only });
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(Error::new(Kind::Busy, "others take every free loop device"))
}

/// Device and inode number of an open file.
pub(crate) fn identity(file: &File) -> Result<(u64, u64)> {
    fstat(file)
        .map(|stat| (stat.st_dev, stat.st_ino))
        .map_err(|error| Error::io("look at a volume's file", error))
}
