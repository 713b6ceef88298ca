//! Paths that the container orchestrator names. Not here: access to directories ([`dir`]).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dir::Dir;
use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Kind, Result};

/// Opens the folder that holds the last component of `path`, and gives that component. Links on the way are followed:
/// the path is the container orchestrator's. `None` when the folder is not there.
///
/// # Errors
/// [`Kind::Invalid`] for a path that is not absolute or ends in no name.
pub(crate) fn split(field: &str, path: &str) -> Result<Option<(Dir, PathBuf)>> {
    let invalid = |why: &str| Error::new(Kind::Invalid, format!("{field} {path:?} {why}"));
    if path.as_bytes().contains(&0) || path.len() > 4095 {
        return Err(invalid("is not a path"));
    }
    let path = Path::new(path);
    if !path.is_absolute() {
        return Err(invalid("is not absolute"));
    }
    let dots = path.as_os_str().as_bytes().split(|byte| *byte == b'/').any(|part| part == b"..");
    let (Some(parent), Some(name), false) = (path.parent(), path.file_name(), dots) else {
        return Err(invalid("names no place below a folder"));
    };
    let name = Path::new::<OsStr>(name).to_path_buf();
    Ok(Dir::find(parent)?.map(|folder| (folder, name)))
}

/// Opens the directory `name` of `folder`, which [`split`] found of `path`: on whichever mount it is, but not through a link.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open(folder: &Dir, name: &Path, path: &str) -> Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
        .map(|fd| Dir::from_fd(fd, path))
        .map_err(|error| Error::io(format!("open {path}"), error))
}
