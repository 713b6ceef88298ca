//! Owners of files, changed by descriptor.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Uid, chownat, fchown};

use crate::directory::{Dir, component};
use crate::error::{Error, Result};
use crate::file_type::is_dir;

/// A user and a group, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Owner {
    /// root.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };

    /// A user with the group of the same number.
    pub const fn same(id: u32) -> Self {
        Self { uid: id, gid: id }
    }

    fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }

    /// Makes this the owner of an open file.
    ///
    /// # Errors
    /// Those of fchown(2).
    pub fn give(self, file: &File) -> io::Result<()> {
        let (uid, gid) = self.ids();
        Ok(fchown(file, uid, gid)?)
    }
}

impl Dir {
    /// Changes the owner of `name` itself, whatever it is; a symbolic link is not followed. For a file that others may
    /// have linked in, use [`Dir::own_file`] and [`Owner::give`].
    ///
    /// # Errors
    /// Those of fchownat(2).
    pub fn chown(&self, name: impl AsRef<Path>, owner: Owner) -> Result<()> {
        let name = name.as_ref();
        let (uid, gid) = owner.ids();
        let changed = component(name).and_then(|it| chownat(self, it, uid, gid, AtFlags::SYMLINK_NOFOLLOW));
        changed.map_err(|error| self.failed("change the owner of", name, error))
    }

    /// Changes the owner of the directory and of everything below it on its mount, links themselves included. Files with
    /// more than one name stay as they are: one of the names may be another user's.
    ///
    /// # Errors
    /// When an entry cannot be listed or changed. The tree must not change during the call.
    pub fn chown_all(&self, owner: Owner) -> Result<()> {
        self.chown_self(owner)?;
        for name in self.names()? {
            let Some(found) = self.stat(&name)? else { continue };
            if is_dir(&found) {
                if let Some(below) = self.dir(&name)? {
                    below.chown_all(owner)?;
                }
            } else if found.st_nlink == 1 {
                self.chown(&name, owner)?;
            }
        }
        Ok(())
    }

    /// Changes the owner of the directory itself.
    ///
    /// # Errors
    /// Those of fchown(2).
    pub fn chown_self(&self, owner: Owner) -> Result<()> {
        let (uid, gid) = owner.ids();
        fchown(self, uid, gid)
            .map_err(|error| Error::new(format!("change the owner of {}", self.path().display()), error))
    }
}
