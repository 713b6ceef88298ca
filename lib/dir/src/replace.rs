//! Replacement of a file as a whole: written under a temporary name in the same directory, then renamed over it.
//!
//! ```text
//! create .NAME.RANDOM.new (O_EXCL) ─► write ─► [fsync] ─► rename over NAME ─► [fsync of the directory]
//! ```
//!
//! A kill between the steps leaves a file `.NAME.RANDOM.new`; [`Dir::remove_unfinished`] removes those of earlier runs.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, fchmod, renameat};
use rustix::io::Errno;

use crate::directory::{Dir, component};
use crate::error::{Error, Result};
use crate::sync::fsync;

/// The end of names of files that are being written.
const UNFINISHED: &str = ".new";
/// Digits between the name and its end.
const RANDOM: usize = 12;
/// Longest name of the file at the head of the unfinished one's; names have at most 255 bytes.
const HEAD_MAX: usize = 200;

/// Durability in case of a crash of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The replacement as a whole: for files that are made again.
    Volatile,
    /// Nothing: content and name are on the disk when the call returns.
    Durable,
}

/// Replaces the file at `path` with `content` and `mode`, whatever the umask is. Its directory is trusted. A crash of the
/// machine may take it back.
///
/// # Errors
/// When it cannot be written or renamed; the old file is then unchanged.
pub fn replace(path: impl AsRef<Path>, content: &[u8], mode: u32) -> Result<()> {
    let (dir, name) = split(path.as_ref())?;
    dir.replace(name, content, mode, Durability::Volatile)
}

/// The same, and on the disk when it returns.
///
/// # Errors
/// As [`replace`]; after a failed sync of the directory the new file may be in place.
pub fn replace_durably(path: impl AsRef<Path>, content: &[u8], mode: u32) -> Result<()> {
    let (dir, name) = split(path.as_ref())?;
    dir.replace(name, content, mode, Durability::Durable)
}

fn split(path: &Path) -> Result<(Dir, &OsStr)> {
    let none = || Error::new(format!("replace {}", path.display()), Errno::INVAL);
    let name = path.file_name().ok_or_else(none)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((Dir::open(parent.unwrap_or(Path::new(".")))?, name))
}

fn unfinished(name: &OsStr) -> io::Result<OsString> {
    let mut random = [0; RANDOM / 2];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let head = name.as_bytes().get(..HEAD_MAX.min(name.len())).unwrap_or_default();
    let mut new = OsString::from(".");
    new.push(OsStr::from_bytes(head));
    new.push(".");
    random.iter().for_each(|byte| new.push(format!("{byte:02x}")));
    new.push(UNFINISHED);
    Ok(new)
}

fn is_unfinished(name: &OsStr) -> bool {
    let Some(rest) = name.as_bytes().strip_suffix(UNFINISHED.as_bytes()) else { return false };
    let Some((head, random)) = rest.split_last_chunk::<RANDOM>() else { return false };
    head.starts_with(b".")
        && head.ends_with(b".")
        && head.len() > 2
        && random.iter().all(u8::is_ascii_hexdigit)
}

impl Dir {
    /// Replaces the file `name` with `content` and `mode`, whatever the umask is. What stands at the name is never opened;
    /// a directory there is an error.
    ///
    /// # Errors
    /// When it cannot be written or renamed; the old file is then unchanged.
    pub fn replace(
        &self,
        name: impl AsRef<Path>,
        content: &[u8],
        mode: u32,
        durability: Durability,
    ) -> Result<()> {
        let name = name.as_ref();
        let failed =
            |error: io::Error| Error::new(format!("replace {}", self.path_of(name).display()), error);
        let target = component(name).map_err(|error| failed(error.into()))?;
        let new = unfinished(target).map_err(failed)?;
        let mut file = self.create_new(&new, 0o600)?;
        let mut write = || {
            file.write_all(content)?;
            fchmod(&file, Mode::from_raw_mode(mode))?;
            if durability == Durability::Durable {
                fsync(&file)?;
            }
            renameat(self, &*new, self, target)?;
            Ok(())
        };
        write().map_err(|error| {
            let _ = self.unlink(&new);
            failed(error)
        })?;
        match durability {
            Durability::Durable => self.sync(),
            Durability::Volatile => Ok(()),
        }
    }

    /// Removes files that a killed process left while it replaced others; call it where no other process writes.
    ///
    /// # Errors
    /// When the directory cannot be listed or changed.
    pub fn remove_unfinished(&self) -> Result<()> {
        for name in self.names()?.iter().filter(|name| is_unfinished(name)) {
            self.unlink(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_mode() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        replace(&path, b"one", 0o644).unwrap();
        replace_durably(&path, b"two", 0o600).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_replaced_and_not_followed() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(outside.path(), "theirs").unwrap();
        let path = place.path().join("file");
        std::os::unix::fs::symlink(outside.path(), &path).unwrap();
        replace(&path, b"ours", 0o600).unwrap();
        assert_eq!(std::fs::read(outside.path()).unwrap(), b"theirs");
        assert_eq!(std::fs::read(&path).unwrap(), b"ours");
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_and_no_rest() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("file/full")).unwrap();
        replace(place.path().join("file"), b"x", 0o600).unwrap_err();
        let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
        replace("/", b"x", 0o600).unwrap_err();
    }

    #[test]
    fn unfinished_files_are_known_by_their_names() {
        assert!(is_unfinished(&unfinished(OsStr::new("state.json")).unwrap()));
        assert!(is_unfinished(&unfinished(OsStr::new(&"x".repeat(255))).unwrap()));
        for other in ["state.new", ".new", "..0123456789ab.new", "a.0123456789ab.new", ".a.0123456789aX.new"]
        {
            assert!(!is_unfinished(OsStr::new(other)), "{other}");
        }
        let place = tempfile::tempdir().unwrap();
        let left = place.path().join(unfinished(OsStr::new("a")).unwrap());
        std::fs::write(&left, "").unwrap();
        std::fs::write(place.path().join("a.new"), "").unwrap();
        Dir::open(place.path()).unwrap().remove_unfinished().unwrap();
        assert!(!left.exists() && place.path().join("a.new").exists());
    }
}
