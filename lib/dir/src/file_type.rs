//! The types of files.

use std::fs::File;
use std::io;

use rustix::fs::{FileType, Stat, fstat};

/// Refuses everything but a regular file.
pub(crate) fn regular(file: &File) -> io::Result<Stat> {
    let stat = fstat(file)?;
    if is_file(&stat) {
        return Ok(stat);
    }
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::RegularFile | FileType::Symlink | FileType::Unknown => "something else",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {found}, not a regular file")))
}

/// Whether this is a directory.
pub fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Whether this is a regular file.
pub fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}
