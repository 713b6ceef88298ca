//! Bounds the files that a guest can make longer without end: the log of its first serial port, and QEMU's log. Their
//! writers append at the end, wherever that is (`O_APPEND`): a truncated file is continued from its start.
//!
//! Not here: which files, and when.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Longest log in bytes; one that is longer is cut when it is next looked at.
const MOST: u64 = 4 << 20;
/// Length of the end of a truncated log that is kept next to it.
const KEPT: u64 = 1 << 20;

/// Where the end of a log is kept that was cut.
fn rotated(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".before");
    PathBuf::from(name)
}

/// Truncates a log that is too long. Data written during the call may be lost. A missing log is short.
pub(super) fn shorten(path: &Path) -> io::Result<()> {
    let mut file = match File::options().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    if length <= MOST {
        return Ok(());
    }
    file.seek(SeekFrom::Start(length - KEPT))?;
    let mut end = Vec::new();
    file.by_ref().take(KEPT).read_to_end(&mut end)?;
    dir::replace(rotated(path), &end, 0o600)?;
    file.set_len(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    #[test]
    fn a_long_log_is_cut_and_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        shorten(&path).unwrap();
        let mut writer = File::options().create(true).append(true).open(&path).unwrap();
        let most = usize::try_from(MOST).unwrap();
        writer.write_all(&vec![b'a'; most]).unwrap();
        shorten(&path).unwrap();
        assert_eq!((fs::metadata(&path).unwrap().len(), rotated(&path).exists()), (MOST, false));
        writer.write_all(b"z").unwrap();
        shorten(&path).unwrap();
        writer.write_all(b"next").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"next");
        let kept = fs::read(rotated(&path)).unwrap();
        assert_eq!((kept.len(), kept.last()), (usize::try_from(KEPT).unwrap(), Some(&b'z')));
    }
}
