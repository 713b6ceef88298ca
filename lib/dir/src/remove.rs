//! Removal of a directory with all that is below it, of any depth, with a constant number of descriptors: nested
//! directories are moved up before they are emptied.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use rustix::fs::{AtFlags, RenameFlags, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::directory::{Dir, component};
use crate::error::Result;

impl Dir {
    /// Removes `name`, and everything below it if it is a directory; links are removed, not followed. False when there was
    /// nothing.
    ///
    /// # Errors
    /// When something cannot be removed: a mount point, an immutable file, or files that another process keeps making.
    pub fn remove_all(&self, name: impl AsRef<Path>) -> Result<bool> {
        let name = name.as_ref();
        match self.unlink(name) {
            Err(error) if matches!(error.errno(), Some(Errno::ISDIR | Errno::PERM)) => {}
            done => return done,
        }
        let Some(top) = self.dir(name)? else { return Ok(false) };
        top.empty()?;
        drop(top);
        self.remove_dir(name)
    }

    /// Removes everything in the directory.
    ///
    /// # Errors
    /// As [`Dir::remove_all`].
    pub fn empty(&self) -> Result<()> {
        let mut count = 0u64;
        let mut left = self.names()?;
        while let Some(name) = left.pop() {
            let found = component(Path::new(&name)).and_then(|it| remove(self, it));
            match found {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => return Err(self.failed("remove", &name, error)),
            }
            let Some(below) = self.dir(&name)? else { continue };
            for inner in below.names()? {
                match remove(&below, &inner) {
                    Ok(true) => {}
                    Ok(false) => left.push(self.lift(&below, &inner, &mut count)?),
                    Err(error) => return Err(below.failed("remove", &inner, error)),
                }
            }
            self.remove_dir(&name)?;
        }
        Ok(())
    }

    /// Moves a directory up into this one, under a free name.
    fn lift(&self, below: &Self, name: &OsStr, count: &mut u64) -> Result<OsString> {
        loop {
            *count += 1;
            let free = OsString::from(format!(".removed-{count}"));
            match renameat_with(below, name, self, &*free, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(free),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(below.failed("remove", name, error)),
            }
        }
    }
}

/// Removes a file or an empty directory; false for a directory that is not empty.
fn remove(dir: &Dir, name: &OsStr) -> rustix::io::Result<bool> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    match unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_deeper_than_there_are_descriptors_is_removed_and_links_are_not_followed() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("theirs"), "").unwrap();
        let top = Dir::open(place.path()).unwrap();
        let mut dir = top.dir_or_make("deep", 0o700).unwrap();
        for _ in 0..1200 {
            std::os::unix::fs::symlink(outside.path(), dir.proc_path("link")).unwrap();
            assert!(dir.make_dir("d", 0o700).unwrap());
            dir = dir.need_dir("d").unwrap();
        }
        assert!(top.remove_all("deep").unwrap());
        assert!(!top.remove_all("deep").unwrap());
        std::os::unix::fs::symlink(outside.path(), place.path().join("link")).unwrap();
        assert!(top.remove_all("link").unwrap());
        assert_eq!(top.names().unwrap(), Vec::<OsString>::new());
        assert!(outside.path().join("theirs").exists());
    }
}
