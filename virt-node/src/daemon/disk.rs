//! The disk in a claim's volume, next to files that an importer, an archive or a guest made: opened beneath the volume by
//! descriptor, never through a link, and only if it is a regular file with one name.
//!
//! | step | directory of the volume | disk.img |
//! |---|---|---|
//! | filling | the transfer's user | made by it |
//! | filled | root, others pass through | claim's user and group |
//! | a VM starts | root | the VM's user, the claim's group: VMs that share it are in that group |
//!
//! Not here: how volumes are made and shown ([`super::csi_client`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use dir::{Dir, Owner};
use rustix::fs::{Mode, OFlags, fchmod};

/// The name of the disk in a volume.
pub(super) const NAME: &str = "disk.img";
/// Read and written by its user and its group.
const DISK: u32 = 0o660;
/// Read by its group.
const READ: u32 = 0o440;
/// For its owner alone.
const PRIVATE: u32 = 0o700;
/// Others pass through.
const PASS: u32 = 0o711;

/// The owners allowed to use a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// Its user and group.
    pub(super) owner: Owner,
    mode: u32,
}

impl Access {
    /// Its user and its group write to it.
    pub(super) fn writers(owner: Owner) -> Self {
        Self { owner, mode: DISK }
    }

    /// The group reads it; only root writes.
    pub(super) fn readers(group: u32) -> Self {
        Self { owner: Owner { uid: 0, gid: group }, mode: READ }
    }

    /// The mode of its file.
    pub(super) fn mode(self) -> u32 {
        self.mode
    }

    /// Gives it an open file.
    ///
    /// # Errors
    /// The filesystem's error.
    pub(super) fn give(self, file: &File) -> io::Result<()> {
        // No owner has both at once: neither the old owner with the new mode, nor the new one with the old.
        file.set_permissions(std::fs::Permissions::from_mode(0o000))?;
        self.owner.give(file)?;
        file.set_permissions(std::fs::Permissions::from_mode(self.mode))
    }
}

/// The volume's directory at a path of root's; mounts below it are not entered.
fn open(volume: &Path) -> dir::Result<Dir> {
    // The volume itself is a mount; its directory is opened before the rule holds.
    Ok(Dir::open(volume)?.one_mount())
}

/// Opens the volume to a transfer, and to it alone.
///
/// # Errors
/// The volume is not there.
pub(super) fn begin(volume: &Path, transfer: Owner) -> dir::Result<()> {
    let dir = open(volume)?;
    set_mode(&dir, PRIVATE)?;
    dir.chown_self(transfer)
}

/// Closes a volume without a transfer: a new one is open to all users.
///
/// # Errors
/// The volume is not there.
pub(super) fn close_new(volume: &Path) -> dir::Result<()> {
    if open(volume)?.stat_self()?.st_uid == 0 { close(volume) } else { Ok(()) }
}

fn set_mode(dir: &Dir, mode: u32) -> dir::Result<()> {
    fchmod(dir, Mode::from_raw_mode(mode))
        .map_err(|error| dir::Error::new(format!("change the mode of {}", dir.path().display()), error))
}

/// Returns the volume's directory to root after a transfer, so that its names can no longer be changed.
///
/// # Errors
/// The volume is not there.
pub(super) fn close(volume: &Path) -> dir::Result<()> {
    let dir = open(volume)?;
    dir.chown_self(Owner::ROOT)?;
    set_mode(&dir, PASS)
}

/// Gives the disk to its user and group; `None`: there is none. `size` is the least that it gets, in bytes.
///
/// # Errors
/// Something else than a disk has its name.
pub(super) fn give(volume: &Path, access: Access, size: Option<u64>) -> dir::Result<Option<()>> {
    let dir = open(volume)?;
    let Some(file) = dir.own_file(NAME, OFlags::RDWR)? else { return Ok(None) };
    settle(&file, access, size)
        .map_err(|error| dir::Error::new(format!("prepare {}", dir.path_of(NAME).display()), error))?;
    Ok(Some(()))
}

/// Makes an empty disk, unless one is there.
///
/// # Errors
/// Another kind of file has the name, or there is no room.
pub(super) fn blank(volume: &Path, access: Access, size: u64) -> dir::Result<()> {
    if give(volume, access, None)?.is_some() {
        return Ok(());
    }
    let dir = open(volume)?;
    new(&dir, NAME, access, size)
}

/// Makes the file `name` of this size for its owner: it appears when it is whole, and only where nothing is.
///
/// # Errors
/// The name is taken, or there is no room.
pub(super) fn new(dir: &Dir, name: &str, access: Access, size: u64) -> dir::Result<()> {
    let unfinished = format!(".{name}.{}.unfinished", std::process::id());
    // Of a daemon that was killed; the directory is root's.
    dir.unlink(&unfinished)?;
    let file = dir.create_new(&unfinished, 0o600)?;
    let made = settle(&file, access, Some(size))
        .map_err(|error| dir::Error::new(format!("make {}", dir.path_of(name).display()), error))
        .and_then(|()| dir.rename_new(&unfinished, dir, name));
    match made {
        Ok(true) => Ok(()),
        Ok(false) => {
            dir.unlink(&unfinished)?;
            let taken = io::Error::from(io::ErrorKind::AlreadyExists);
            Err(dir::Error::new(format!("make {}", dir.path_of(name).display()), taken))
        }
        Err(error) => {
            let _ = dir.unlink(&unfinished);
            Err(error)
        }
    }
}

/// Makes the disk at least this large; `false`: there is none.
///
/// # Errors
/// Something else than a disk has its name.
pub(super) fn grow(volume: &Path, size: u64) -> dir::Result<bool> {
    let dir = open(volume)?;
    let Some(file) = dir.own_file(NAME, OFlags::WRONLY)? else { return Ok(false) };
    enlarge(&file, size)
        .map_err(|error| dir::Error::new(format!("enlarge {}", dir.path_of(NAME).display()), error))?;
    Ok(true)
}

fn settle(file: &File, access: Access, size: Option<u64>) -> io::Result<()> {
    if let Some(size) = size {
        enlarge(file, size)?;
    }
    access.give(file)
}

fn enlarge(file: &File, size: u64) -> io::Result<()> {
    if file.metadata()?.len() < size { file.set_len(size) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    fn me() -> Access {
        Access::writers(Owner {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        })
    }

    /// A file that an archive or a guest put in the disk's place must not lead root to a file outside, nor block it.
    #[test]
    fn a_planted_disk_is_refused_and_no_file_outside_changes() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let theirs = outside.path().join("theirs");
        let disk = place.path().join(NAME);
        let begun = Instant::now();
        for plant in ["link", "dangling", "hard link", "fifo", "directory"] {
            fs::write(&theirs, "theirs").unwrap();
            let before = fs::metadata(&theirs).unwrap();
            match plant {
                "link" => std::os::unix::fs::symlink(&theirs, &disk).unwrap(),
                "dangling" => std::os::unix::fs::symlink(outside.path().join("new"), &disk).unwrap(),
                "hard link" => fs::hard_link(&theirs, &disk).unwrap(),
                "fifo" => mknodat(CWD, &disk, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap(),
                _ => fs::create_dir(&disk).unwrap(),
            }
            give(place.path(), me(), Some(1 << 20)).unwrap_err();
            blank(place.path(), me(), 1 << 20).unwrap_err();
            grow(place.path(), 1 << 20).unwrap_err();
            let after = fs::metadata(&theirs).unwrap();
            assert_eq!(fs::read(&theirs).unwrap(), b"theirs", "{plant}");
            assert_eq!((before.uid(), before.mode()), (after.uid(), after.mode()), "{plant}");
            assert!(!outside.path().join("new").exists(), "{plant}");
            fs::remove_file(&disk).or_else(|_| fs::remove_dir(&disk)).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(1));
    }

    /// The first of the attacks: `disk.new` was opened, truncated and given away.
    #[test]
    fn names_next_to_the_disk_are_left_alone() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let theirs = outside.path().join("theirs");
        fs::write(&theirs, "theirs").unwrap();
        std::os::unix::fs::symlink(&theirs, place.path().join("disk.new")).unwrap();
        blank(place.path(), me(), 1 << 20).unwrap();
        assert_eq!(fs::metadata(place.path().join(NAME)).unwrap().len(), 1 << 20);
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        assert!(place.path().join("disk.new").is_symlink());
        fs::write(place.path().join(NAME), "written").unwrap();
        blank(place.path(), me(), 1 << 20).unwrap();
        assert_eq!(fs::read(place.path().join(NAME)).unwrap(), b"written", "a disk that is there stays");
        assert!(grow(place.path(), 10).unwrap());
        assert_eq!(fs::metadata(place.path().join(NAME)).unwrap().len(), 10);
    }
}
