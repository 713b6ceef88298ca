//! Reads with a limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};
use crate::file_type::regular;

/// All of `file` from where it stands, at most `max` bytes.
///
/// # Errors
/// When it is longer ([`io::ErrorKind::FileTooLarge`]), or cannot be read.
pub fn read_file(file: &File, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > max) {
        return Err(too_long(max));
    }
    Ok(bytes)
}

/// The first `max` bytes of a file that a person named, or of standard input for `-`.
///
/// # Errors
/// When it cannot be read.
pub fn read_input(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        io::stdin().lock().take(max).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(max).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

pub(crate) fn too_long(max: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than the limit of {max} bytes"))
}

/// The regular file at `path` in trusted directories, at most `max` bytes. Symbolic links are followed: an
/// administrator may have put them there. A FIFO or a device is refused at once. `None` when there is no file.
///
/// # Errors
/// When it is not a regular file, too long, or cannot be read.
pub fn read(path: impl AsRef<Path>, max: u64) -> Result<Option<Vec<u8>>> {
    let path = path.as_ref();
    let failed = |error: io::Error| Error::new(format!("read {}", path.display()), error);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file: File = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => fd.into(),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(failed(error.into())),
    };
    regular(&file).map_err(failed)?;
    read_file(&file, max).map(Some).map_err(failed)
}
