//! Loop devices: a file as a block device. Which device belongs to which file is the kernel's to know; nothing is written
//! down, so nothing can be wrong after a restart: then all devices are looked at once.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat, makedev, mknodat, openat};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::sys::{self, LoopState};

/// Major number of loop devices.
const MAJOR: u32 = 7;
/// How often a free device may be snatched away before we give up.
const TRIES: u32 = 64;

/// How often, and how far apart, it is looked whether a device is detached.
const LOOKS: u32 = 200;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A loop device with a file attached. Other programs attach and detach the same numbers: an operation changes the device
/// only while it still has this file, which is verified with the device open, when it cannot be detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    number: u32,
    /// Device and inode number of the file.
    file: (u64, u64),
    /// Whether the file is read and written past the page cache.
    pub(crate) direct: bool,
    pub(crate) read_only: bool,
    /// Whether the kernel detaches it at the last close.
    leaving: bool,
}

impl Loop {
    fn of(number: u32, state: LoopState) -> Self {
        let LoopState { device, inode, read_only, direct, leaving } = state;
        Self { number, file: (device, inode), direct, read_only, leaving }
    }

    /// The device's node.
    pub(crate) fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    /// The device's number in the form of a file's `st_rdev`.
    pub(crate) fn device(self) -> u64 {
        numbered(self.number)
    }

    /// A handle on the node that can be mounted.
    pub(crate) fn handle(self) -> Result<std::os::fd::OwnedFd> {
        fault::step("open the device")?;
        openat(rustix::fs::CWD, self.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| Error::io(format!("open {}", self.path().display()), error))
    }

    /// Reloads the size of the backing file.
    pub(crate) fn grow(self) -> Result<()> {
        let device = self.held()?.ok_or_else(|| gone(self.number))?;
        sys::loop_set_capacity(device.as_fd())
            .map_err(|error| Error::io(format!("grow {}", self.path().display()), error))
    }

    /// Sends everything dirty in the device's page cache to the file, and the file's to the disk.
    pub(crate) fn sync(self) -> Result<()> {
        let device = self.held()?.ok_or_else(|| gone(self.number))?;
        rustix::fs::fsync(&device)
            .map_err(|error| Error::io(format!("sync {}", self.path().display()), error))
    }

    /// Detaches the file. Others may look at the device just now: that is waited for.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when another process keeps the device open; the kernel detaches it at the last close.
    pub(crate) fn detach(self) -> Result<()> {
        let Some(device) = self.held()? else { return Ok(()) };
        clear(self.number, &device)?;
        drop(device);
        // A device whose state cannot be read is not waited for.
        wait_until_gone(self.number, || {
            state(self.number).is_ok_and(|state| state.is_some_and(|state| state.file() == self.file))
        })
    }

    /// Cancels a detach that is pending until the last close: the device is needed again.
    pub(crate) fn keep(self) -> Result<()> {
        if !self.leaving {
            return Ok(());
        }
        let device = self.held()?.ok_or_else(|| gone(self.number))?;
        sys::loop_keep(device.as_fd()).map_err(|error| {
            Error::io(format!("cancel the pending detach of {}", self.path().display()), error)
        })
    }

    /// The device, open. `None` when it has another file by now, or none.
    fn held(self) -> Result<Option<File>> {
        let Some(device) = open(self.number)? else { return Ok(None) };
        let state = sys::loop_state(device.as_fd())
            .map_err(|error| Error::io(format!("read the state of {}", self.path().display()), error))?;
        Ok(state.filter(|state| state.file() == self.file).map(|_| device))
    }
}

/// The number of loop device `number` as in a file's `st_rdev`.
pub(crate) fn numbered(number: u32) -> u64 {
    makedev(MAJOR, number)
}

/// Detaches what is attached to an open device; it goes when that is closed.
fn clear(number: u32, device: &File) -> Result<()> {
    sys::loop_clear(device.as_fd()).map_err(|error| Error::io(format!("detach /dev/loop{number}"), error))
}

/// Waits until a file that was detached is not `there` any more.
fn wait_until_gone(number: u32, there: impl Fn() -> bool) -> Result<()> {
    for _ in 0..LOOKS {
        if !there() {
            return Ok(());
        }
        thread::sleep(POLL_INTERVAL);
    }
    Err(Error::new(Kind::Precondition, format!("/dev/loop{number} is still open somewhere")))
}

fn gone(number: u32) -> Error {
    Error::new(Kind::Internal, format!("/dev/loop{number} is gone"))
}

/// Opens a loop device for inspection or for its ioctls. Read-only, because on many nodes udev probes a device after every
/// close of a writable descriptor. `None` when there is no such device.
fn open(number: u32) -> Result<Option<File>> {
    open_for(number, OFlags::RDONLY)
}

/// Opens a loop device; its node is made where /dev is a container's own. `None` when there is no such device.
fn open_for(number: u32, access: OFlags) -> Result<Option<File>> {
    let path = format!("/dev/loop{number}");
    let failed = |error| Error::io(format!("open {path}"), error);
    let flags = access | OFlags::CLOEXEC;
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

/// Cache of the devices of each file, so that no call scans all devices. The kernel is asked for the file of each cached
/// device on every use: other programs attach and detach devices too.
#[derive(Debug)]
pub(crate) struct Devices {
    /// Numbers of devices by device and inode number of the file.
    numbers: Mutex<HashMap<(u64, u64), BTreeSet<u32>>>,
}

impl Devices {
    /// Looks at all devices.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub(crate) fn scan() -> Result<Self> {
        let mut numbers: HashMap<_, BTreeSet<u32>> = HashMap::new();
        for (number, _) in attached()? {
            match state(number) {
                Ok(Some(state)) => {
                    numbers.entry(state.file()).or_default().insert(number);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(error = %error.chain(), "a loop device is left out"),
            }
        }
        Ok(Self { numbers: Mutex::new(numbers) })
    }

    fn numbers(&self) -> MutexGuard<'_, HashMap<(u64, u64), BTreeSet<u32>>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All devices that the file is attached to.
    pub(crate) fn all(&self, file: &File) -> Result<Vec<Loop>> {
        let file = identity(file)?;
        let candidates = self.numbers().get(&file).cloned().unwrap_or_default();
        let mut found = Vec::new();
        for number in candidates {
            match state(number)?.filter(|state| state.file() == file) {
                Some(state) => found.push(Loop::of(number, state)),
                None => self.forget(file, number),
            }
        }
        Ok(found)
    }

    fn forget(&self, file: (u64, u64), number: u32) {
        let mut numbers = self.numbers();
        if let Some(of_file) = numbers.get_mut(&file) {
            of_file.remove(&number);
            if of_file.is_empty() {
                numbers.remove(&file);
            }
        }
    }

    /// All known devices, by device and inode number of the file. A device whose file cannot be reached is left out.
    pub(crate) fn every(&self) -> HashMap<(u64, u64), Vec<Loop>> {
        let known: Vec<_> = self.numbers().iter().map(|(file, numbers)| (*file, numbers.clone())).collect();
        let mut every: HashMap<_, Vec<Loop>> = HashMap::new();
        for (file, numbers) in known {
            for number in numbers {
                if let Ok(Some(state)) = state(number)
                    && state.file() == file
                {
                    every.entry(file).or_default().push(Loop::of(number, state));
                }
            }
        }
        every
    }

    /// The device that the file is attached to, for writing or read-only as asked.
    pub(crate) fn find(&self, file: &File, read_only: bool) -> Result<Option<Loop>> {
        Ok(self.all(file)?.into_iter().find(|found| found.read_only == read_only))
    }

    /// Attaches `file`, with sectors of `sector` bytes, past the page cache where that works.
    pub(crate) fn attach(&self, file: &File, sector: u32, read_only: bool) -> Result<Loop> {
        let failed = |error: std::io::Error| Error::io("attach a loop device", error);
        let identity = identity(file)?;
        fault::step("attach a device")?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let control = openat(rustix::fs::CWD, "/dev/loop-control", flags, Mode::empty())
            .map_err(|error| Error::io("open /dev/loop-control", error))?;
        for _ in 0..TRIES {
            let number = sys::loop_free(control.as_fd()).map_err(failed)?;
            let Some(device) = open_for(number, OFlags::RDWR)? else { continue };
            let mut result = sys::loop_configure(device.as_fd(), file.as_fd(), sector, read_only, true);
            if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
                result = sys::loop_configure(device.as_fd(), file.as_fd(), sector, read_only, false);
            }
            match result {
                Ok(()) => {
                    self.numbers().entry(identity).or_default().insert(number);
                    let state = fault::step("ask the new device")
                        .and_then(|()| sys::loop_state(device.as_fd()).map_err(failed))
                        .and_then(|state| state.ok_or_else(|| gone(number)));
                    if state.is_err() {
                        // It goes when it is closed, here below.
                        drop(clear(number, &device));
                    }
                    return state.map(|state| Loop::of(number, state));
                }
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Error::new(Kind::Busy, "no loop device could be attached: other programs took each free one"))
    }
}

/// Detaches the devices of the file that was at `path`. Scans all devices, for a file that is gone or whose filesystem no
/// longer answers.
pub(crate) fn release_at(path: &Path) -> Result<()> {
    let is_there = |number| backing_file(number).is_some_and(|file| file == path);
    for (number, _) in attached()?.into_iter().filter(|(_, file)| file == path) {
        let Some(device) = open(number)? else { continue };
        // An open device cannot be detached or attached to another file.
        if is_there(number) {
            clear(number, &device)?;
            drop(device);
            wait_until_gone(number, || is_there(number))?;
        }
    }
    Ok(())
}

/// The attached devices, each with its path as the kernel reports it.
fn attached() -> Result<Vec<(u32, PathBuf)>> {
    let failed = |error| Error::io("list /sys/block", error);
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix("loop")).and_then(|number| number.parse().ok());
        let Some(number) = number else { continue };
        if let Some(file) = backing_file(number) {
            found.push((number, file));
        }
    }
    Ok(found)
}

/// The path of the file attached to loop device `number`, as the kernel reports it: for a deleted file, its last path. No
/// device is opened; only attached devices have the attribute.
pub(crate) fn backing_file(number: u32) -> Option<PathBuf> {
    let file = fs::read(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    let file = file.strip_suffix(b"\n").unwrap_or(&file);
    let file = file.strip_suffix(b" (deleted)").unwrap_or(file);
    Some(PathBuf::from(OsStr::from_bytes(file)))
}

/// The state of a device; `None` when no file is attached. `None` also for a file on a filesystem that has shut down and
/// answers EIO every time: the caller has just reached its own file, so the device belongs to another one. Any other error
/// is returned: the volume is in use and must not be treated as free.
fn state(number: u32) -> Result<Option<LoopState>> {
    let Some(device) = open(number)? else { return Ok(None) };
    let stopped = |error: &std::io::Error| error.raw_os_error() == Some(libc::EIO);
    let mut asked = sys::loop_state(device.as_fd());
    if asked.as_ref().is_err_and(stopped) {
        asked = sys::loop_state(device.as_fd());
    }
    match asked {
        Err(error) if stopped(&error) => Ok(None),
        result => result.map_err(|error| Error::io(format!("read the state of /dev/loop{number}"), error)),
    }
}

/// Device and inode number of an open file.
fn identity(file: &File) -> Result<(u64, u64)> {
    fstat(file)
        .map(|stat| (stat.st_dev, stat.st_ino))
        .map_err(|error| Error::io("inspect a volume's file", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of a MiB, and its name in the folder.
    fn file(folder: &Path, name: &str) -> File {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(folder.join(name))
            .unwrap();
        file.set_len(1 << 20).unwrap();
        file
    }

    #[test]
    fn a_reused_device_number_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| file(folder.path(), name));
        let devices = Devices::scan().unwrap();
        let taken = devices.attach(&theirs, 512, false).unwrap();
        let stale = Loop { file: identity(&ours).unwrap(), ..taken };
        // The other holder is detaching, too: the file decides which detach is awaited.
        let holder = open(taken.number).unwrap().unwrap();
        clear(taken.number, &open(taken.number).unwrap().unwrap()).unwrap();
        stale.detach().unwrap();
        assert!(stale.grow().is_err() && stale.sync().is_err());
        assert_eq!(devices.all(&ours).unwrap(), []);
        let [leaving] = <[Loop; 1]>::try_from(devices.all(&theirs).unwrap()).unwrap();
        assert!(leaving.leaving);
        // Wanted again, it stays.
        leaving.keep().unwrap();
        drop(holder);
        assert_eq!(devices.all(&theirs).unwrap(), [taken]);
        taken.detach().unwrap();
        assert_eq!(devices.all(&theirs).unwrap(), []);
    }
}
