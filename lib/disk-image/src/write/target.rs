//! A file or a block device to put a disk on: opening, sizing, its mode and owner. Not here: writing.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::errno::{explain, target_error};
use crate::error::{Error, Kind};

/// Makes the names in the folder of `path` durable.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::empty()) {
        Ok(folder) => match rustix::io::retry_on_intr(|| rustix::fs::fsync(&folder)) {
            // Some filesystems cannot sync a folder alone.
            Err(Errno::INVAL) => Ok(rustix::fs::syncfs(&folder)?),
            other => Ok(other?),
        },
        // A folder that may be written to but not read.
        Err(Errno::ACCESS) => {
            rustix::fs::sync();
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

/// An open target.
#[derive(Debug)]
pub struct Target {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) block: bool,
    /// Whether it may hold data already: that of an unfinished import, or earlier content of a device.
    pub(super) kept: bool,
}

impl Target {
    /// Opens `path` as a regular file, creating it with mode 0644 less the umask. With `keep` its content stays, to resume
    /// an unfinished import; otherwise it is emptied and its blocks are given back first, so that they never count against
    /// the space. A symbolic link is not followed.
    ///
    /// # Errors
    /// [`Kind::Target`] when it cannot be opened or is no regular file.
    pub fn file(path: &Path, keep: bool) -> Result<Self, Error> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let opened = rustix::fs::open(path, flags, mode).map_err(|e| match e {
            Errno::LOOP => {
                target_error(e, format!("{} is a symbolic link, which is not followed", path.display()))
            }
            Errno::ISDIR => target_error(e, format!("{} is a folder, not a disk image file", path.display())),
            _ => target_error(e, explain(e, &format!("opening {} for writing", path.display()))),
        })?;
        let file = File::from(opened);
        let meta = file.metadata().map_err(|e| Error::target(format!("inspecting {}", path.display()), e))?;
        if !meta.is_file() {
            return Err(Error::new(Kind::Target, format!("{} is not a regular file", path.display())));
        }
        let target = Self { file, path: path.to_owned(), block: false, kept: keep && meta.len() > 0 };
        if !keep && (meta.len() > 0 || meta.blocks() > 0) {
            target.set_len(0)?;
            // Some filesystems count freed blocks as free only once that is on the disk.
            rustix::fs::fsync(&target.file).map_err(|e| target.error(e, "emptying"))?;
        }
        Ok(target)
    }

    /// Opens the block device `path`; with `exclusive` the kernel refuses it while it is mounted or otherwise held,
    /// and others while we hold it.
    ///
    /// # Errors
    /// [`Kind::Target`] when it cannot be opened, is in use, or is no block device.
    pub fn block(path: &Path, exclusive: bool) -> Result<Self, Error> {
        // Inspected before it is opened: O_EXCL without O_CREAT has a meaning on block devices only.
        let meta = std::fs::metadata(path)
            .map_err(|e| Error::target(format!("inspecting the block device {}", path.display()), e))?;
        if !meta.file_type().is_block_device() {
            return Err(Error::new(Kind::Target, format!("{} is not a block device", path.display())));
        }
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
        flags.set(OFlags::EXCL, exclusive);
        let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            Errno::BUSY => target_error(
                e,
                format!("{} is in use: it is mounted or held by another program", path.display()),
            ),
            _ => target_error(e, format!("opening the block device {} for writing", path.display())),
        })?;
        let file = File::from(opened);
        let block = file.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        if !block {
            return Err(Error::new(Kind::Target, format!("{} is not a block device", path.display())));
        }
        Ok(Self { file, path: path.to_owned(), block, kept: true })
    }

    /// Whether it is a block device.
    pub fn is_block(&self) -> bool {
        self.block
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file or device, for questions this type does not answer (a clone, a signature).
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Bytes it can hold: a device's size in whole sectors; for a file what its filesystem could give it now, which is what is free
    /// for this user and what the file already occupies.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn capacity(&self) -> Result<u64, Error> {
        if self.block {
            let size = self.len()?;
            return Ok(size - size % self.sector());
        }
        let fs =
            rustix::fs::fstatvfs(&self.file).map_err(|e| self.error(e, "determining the free space of"))?;
        let meta = self
            .file
            .metadata()
            .map_err(|e| Error::target(format!("inspecting {}", self.path.display()), e))?;
        let unit = if fs.f_frsize == 0 { fs.f_bsize } else { fs.f_frsize };
        Ok(fs.f_bavail.saturating_mul(unit).saturating_add(meta.blocks().saturating_mul(512)))
    }

    /// Gives back the blocks of the first `len` bytes of a device, whole sectors, which then read as zero. `false`: the device
    /// could only write zeroes, and is left as it is.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn discard(&self, len: u64) -> Result<bool, Error> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, 0, len)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV | Errno::PERM) => Ok(false),
            Err(e) => Err(self.error(e, "discarding what was written to")),
        }
    }

    /// Size of a block device's sectors in bytes; 512 if unknown.
    pub(super) fn sector(&self) -> u64 {
        rustix::fs::ioctl_blksszget(&self.file).map_or(512, |sector| u64::from(sector.max(1)))
    }

    /// Length of a file in bytes; of a block device its size.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn len(&self) -> Result<u64, Error> {
        rustix::fs::seek(&self.file, SeekFrom::End(0)).map_err(|e| self.error(e, "determining the length of"))
    }

    /// Whether it has no byte at all.
    ///
    /// # Errors
    /// As [`Target::len`].
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len()? == 0)
    }

    /// Makes a file `len` bytes long, sparse where it grows. A block device is never resized: nothing happens.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when the filesystem has no files that large.
    pub fn set_len(&self, len: u64) -> Result<(), Error> {
        if self.block {
            return Ok(());
        }
        loop {
            match rustix::fs::ftruncate(&self.file, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e @ Errno::FBIG) => {
                    let path = self.path.display();
                    let what = format!(
                        "the filesystem of {path} has no files as large as {len} bytes: its largest file is too small, or a limit (ulimit -f) is"
                    );
                    return Err(target_error(e, what));
                }
                Err(e) => return Err(self.error(e, &format!("setting the length to {len} bytes of"))),
            }
        }
    }

    /// Reserves the blocks of the first `len` bytes of a file; what is there stays. Gives whether the filesystem can
    /// do that. A block device has its blocks: nothing happens.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when there are not enough.
    pub fn preallocate(&self, len: u64) -> Result<bool, Error> {
        if self.block || len == 0 {
            return Ok(true);
        }
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, len) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL | Errno::PERM) => {
                    return Ok(false);
                }
                Err(e) => return Err(self.error(e, &format!("reserving {len} bytes for"))),
            }
        }
    }

    /// Sets the mode (the lowest twelve bits) of the open file.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_mode(&self, mode: u32) -> Result<(), Error> {
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & 0o7777))
            .map_err(|e| self.error(e, "setting the mode of"))
    }

    /// Sets user and group of the open file.
    ///
    /// # Errors
    /// When the kernel refuses; only root may give files away.
    pub fn set_owner(&self, uid: u32, gid: u32) -> Result<(), Error> {
        std::os::unix::fs::fchown(&self.file, Some(uid), Some(gid)).map_err(|e| {
            Error::target(format!("setting the owner of {} to {uid}:{gid}", self.path.display()), e)
        })
    }

    fn error(&self, errno: Errno, doing: &str) -> Error {
        target_error(errno, explain(errno, &format!("{doing} {}", self.path.display())))
    }
}
