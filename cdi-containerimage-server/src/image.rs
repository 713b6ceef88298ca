//! The one file in the image folder: found by listing, reopened for each request. The folder comes from the user's image, so
//! nothing in it is trusted: links are not followed, and only a regular file is served.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

/// Why a folder has no image to serve.
#[derive(Debug, Error)]
pub(crate) enum ImageError {
    /// It cannot be read.
    #[error("the folder cannot be read")]
    Folder(#[source] io::Error),
    /// It is empty.
    #[error("the folder is empty; it must hold exactly one file, the disk")]
    Empty,
    /// There is more than one.
    #[error("the folder holds more than one file; it must hold exactly one, the disk")]
    Several,
    /// The entry is a directory.
    #[error("the folder holds another folder; it must hold exactly one file, the disk")]
    Folders,
}

/// Why the image is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It may not be opened, or is of a type that is never served: a link, a device, a pipe.
    Forbidden,
    /// It is gone.
    Missing,
    /// The system failed.
    Failed,
}

/// A folder and the name of the file in it.
#[derive(Debug)]
pub(crate) struct Image {
    folder: OwnedFd,
    name: OsString,
}

/// The open file, and its identity.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) file: File,
    pub(crate) len: u64,
    /// Strong: inode, length and time of change.
    pub(crate) etag: String,
    /// As HTTP writes it; absent when the time is not one HTTP can write.
    pub(crate) modified: Option<String>,
}

impl Image {
    /// Looks at `folder`, which is no link itself.
    pub(crate) fn find(folder: &Path) -> Result<Self, ImageError> {
        let failed = |e: Errno| ImageError::Folder(e.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(failed)?;
        let mut found = None;
        for entry in Dir::read_from(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if found.replace(OsStr::from_bytes(name).to_owned()).is_some() {
                return Err(ImageError::Several);
            }
        }
        let name = found.ok_or(ImageError::Empty)?;
        let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Err(ImageError::Folders);
        }
        Ok(Self { folder, name })
    }

    /// The file's name: one component of a path, any bytes but `/`.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Opens the file as it is now.
    pub(crate) fn open(&self) -> Result<Open, Refusal> {
        // A name out of a listing is one component, so without links there is no way out of the folder. A pipe must
        // not make us wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let refusal = |e: Errno| match e {
            Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::NXIO | Errno::NODEV => Refusal::Forbidden,
            Errno::NOENT => Refusal::Missing,
            _ => Refusal::Failed,
        };
        let file = rustix::fs::openat(&self.folder, &self.name, flags, Mode::empty()).map_err(refusal)?;
        let stat = rustix::fs::fstat(&file).map_err(refusal)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Refusal::Forbidden);
        }
        let len = u64::try_from(stat.st_size).map_err(|_| Refusal::Failed)?;
        let (seconds, nanoseconds) = (stat.st_mtime, stat.st_mtime_nsec);
        let etag = format!("\"{:x}-{len:x}-{seconds:x}.{nanoseconds:x}\"", stat.st_ino);
        Ok(Open { file: File::from(file), len, etag, modified: modified(seconds) })
    }
}

/// A time as HTTP writes it, if it is after the epoch (images made reproducibly may have no other) and before 10000.
fn modified(seconds: i64) -> Option<String> {
    const YEAR_10000: u64 = 253_402_300_800;
    let seconds = u64::try_from(seconds).ok().filter(|&seconds| seconds < YEAR_10000)?;
    let time: SystemTime = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    Some(httpdate::fmt_http_date(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(modified(0).as_deref(), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
        assert!(modified(253_402_300_799).is_some());
        for out in [-1, i64::MIN, 253_402_300_800, i64::MAX] {
            assert_eq!(modified(out), None);
        }
    }
}
