//! A directory that members of an archive are put into and nothing leaves: every name is resolved beneath it ([`dir`]);
//! links that stay in it are followed. What stands at a name is replaced, never written through. Modes and times as GNU
//! tar sets them with `--preserve-permissions --no-same-owner`.
//!
//! Not here: reading archives ([`crate::members`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dir::Dir;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::unwritten;
use crate::members::{Member, What, escaped};
use crate::volume::error::{Error, Kind};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Permission bits that the owner needs to create entries in a directory.
const OPEN: Mode = Mode::RWXU;

/// The folder, and folders in it that members may still be put into.
pub(super) struct Folder {
    root: Dir,
    /// Folders on the way to the member at hand, outermost first, with the mode and time they get in the end.
    open: Vec<(Vec<Vec<u8>>, Mode, Timestamps)>,
}

/// The system's number of an error that has one.
fn errno(error: &dir::Error) -> Errno {
    error.errno().unwrap_or(Errno::IO)
}

fn failed(errno: Errno, name: &[u8]) -> Error {
    unwritten(name, errno.into())
}

fn refused(name: &[u8], why: &str) -> Error {
    Error::new(Kind::Refused, format!("the archive is not unpacked: its member {} {why}", escaped(name)))
}

/// The parts of a name: leading slashes and dots are left out, as GNU tar does.
fn parts(name: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    if name.contains(&0) {
        return Err(refused(name, "has a NUL in its name"));
    }
    let parts = name.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    if parts.iter().any(|part| part == b"..") {
        return Err(refused(name, "has \"..\" in its name, which would lead out of the volume"));
    }
    Ok(parts)
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

fn times(modified: (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: modified.0, tv_nsec: i64::from(modified.1) };
    Timestamps { last_access: time, last_modification: time }
}

impl Folder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// When it is not there.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { root: Dir::open(path)?.links_beneath(), open: Vec::new() })
    }

    /// Puts a member at its name; gives the open file if it is one, for its data.
    ///
    /// # Errors
    /// [`Kind::Refused`] for names that lead out and for devices; else the filesystem's error.
    pub(super) fn place(&mut self, member: &Member) -> Result<Option<File>, Error> {
        let parts = parts(&member.name)?;
        self.leave(&parts)?;
        // The folder itself is its owner's: neither its mode nor its time is ours to set.
        let Some((base, above)) = parts.split_last() else { return Ok(None) };
        let failed = |errno| match errno {
            Errno::XDEV | Errno::LOOP => {
                refused(&member.name, "lies behind a link that leads out of the volume or in a circle")
            }
            errno => failed(errno, &member.name),
        };
        let parent = self.folder(above, true).map_err(failed)?;
        let (at, name) = (&parent, os(base));
        match &member.what {
            What::File => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mode = Mode::RUSR | Mode::WUSR;
                let file = replacing(&parent, name, || fs::openat(at, name, flags, mode)).map_err(failed)?;
                return Ok(Some(File::from(file)));
            }
            What::Folder => {
                make_folder(&parent, name).map_err(failed)?;
                self.open.push((parts, permissions(member.mode), times(member.modified)));
            }
            What::Symlink(target) => {
                if target.contains(&0) {
                    return Err(refused(&member.name, "is a link to a name with a NUL"));
                }
                replacing(&parent, name, || fs::symlinkat(os(target), at, name)).map_err(failed)?;
                // Links of some filesystems have no time.
                let _ = fs::utimensat(at, name, &times(member.modified), AtFlags::SYMLINK_NOFOLLOW);
            }
            What::HardLink(target_name) => {
                let target = self::parts(target_name)?;
                let Some((other, above)) = target.split_last() else {
                    return Err(refused(&member.name, "is a hard link to the volume itself"));
                };
                let failed = |errno| match errno {
                    Errno::NOENT | Errno::NOTDIR => {
                        let why =
                            format!("is a hard link to {}, which does not precede it", escaped(target_name));
                        refused(&member.name, &why)
                    }
                    errno => failed(errno),
                };
                let from = self.folder(above, false).map_err(failed)?;
                // Never through a symbolic link: that could be a file outside.
                let link = || fs::linkat(&from, os(other), at, name, AtFlags::empty());
                match link() {
                    Err(Errno::EXIST) if same(&from, os(other), &parent, name) => {}
                    Err(Errno::EXIST) => replacing(&parent, name, link).map_err(failed)?,
                    other => other.map_err(failed)?,
                }
            }
            What::Fifo => {
                let make = || fs::mknodat(at, name, FileType::Fifo, permissions(member.mode), 0);
                replacing(&parent, name, make).map_err(failed)?;
                fs::chmodat(at, name, permissions(member.mode), AtFlags::empty()).map_err(failed)?;
                fs::utimensat(at, name, &times(member.modified), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(failed)?;
            }
            What::Device => {
                return Err(refused(&member.name, "is a device, and no volume may hold one"));
            }
        }
        Ok(None)
    }

    /// Sets the mode and time of a completely written file.
    ///
    /// # Errors
    /// The filesystem's error.
    pub(super) fn complete(file: &File, member: &Member) -> Result<(), Error> {
        let failed = |errno| failed(errno, &member.name);
        fs::ftruncate(file, member.size).map_err(failed)?;
        fs::fchmod(file, permissions(member.mode)).map_err(failed)?;
        fs::futimens(file, &times(member.modified)).map_err(failed)
    }

    /// Gives folders their mode and time; call it when the last member is in place.
    ///
    /// # Errors
    /// The filesystem's error.
    pub(super) fn finish(mut self) -> Result<Dir, Error> {
        self.leave(&[])?;
        Ok(self.root)
    }

    /// Completes the folders that do not lie above `next`: members come folder by folder. Only these few are kept.
    fn leave(&mut self, next: &[Vec<u8>]) -> Result<(), Error> {
        while let Some((parts, mode, times)) = self.open.pop_if(|(parts, ..)| !next.starts_with(parts)) {
            let name = parts.join(&b'/');
            // A later member may have replaced it; then it has no mode to get.
            let folder = match self.itself(&parts) {
                Ok(folder) => folder,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => continue,
                Err(errno) => return Err(failed(errno, &name)),
            };
            fs::futimens(&folder, &times).map_err(|e| failed(e, &name))?;
            fs::fchmod(&folder, mode).map_err(|e| failed(e, &name))?;
        }
        Ok(())
    }

    /// Opens the folder of these parts beneath the root, making what is missing of it if `make`.
    fn folder(&self, parts: &[Vec<u8>], make: bool) -> Result<Dir, Errno> {
        match self.beneath(parts) {
            Err(Errno::NOENT) if make => {}
            other => return other,
        }
        for len in 1..=parts.len() {
            let parent = self.beneath(&parts[..len - 1])?;
            match fs::mkdirat(&parent, os(&parts[len - 1]), Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.beneath(parts)
    }

    /// Opens a folder that is no link to one.
    fn itself(&self, parts: &[Vec<u8>]) -> Result<OwnedFd, Errno> {
        let (above, base) = match parts.split_last() {
            Some((base, above)) => (above, os(base)),
            None => (parts, OsStr::new(".")),
        };
        fs::openat(self.beneath(above)?, base, FOLDER | OFlags::NOFOLLOW, Mode::empty())
    }

    fn beneath(&self, parts: &[Vec<u8>]) -> Result<Dir, Errno> {
        let path = parts.join(&b'/');
        let path = if path.is_empty() { OsStr::new(".") } else { os(&path) };
        self.root.need_dir(path).map_err(|error| errno(&error))
    }
}

/// Does `make`; if something stands there, removes it first. A folder goes only if it is empty.
fn replacing<T>(parent: &Dir, name: &OsStr, make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) => {}
        other => return other,
    }
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?,
        other => other?,
    }
    make()
}

/// Makes a folder, or takes the one that stands there; either is open for its owner until it is left.
fn make_folder(parent: &Dir, name: &OsStr) -> Result<(), Errno> {
    match fs::mkdirat(parent, name, OPEN) {
        Err(Errno::EXIST) => {}
        other => return other,
    }
    let stands = fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stands.st_mode) != FileType::Directory {
        return replacing(parent, name, || fs::mkdirat(parent, name, OPEN));
    }
    let mode = Mode::from_raw_mode(stands.st_mode);
    if !mode.contains(OPEN) {
        // An interrupted try has closed it.
        fs::chmodat(parent, name, mode | OPEN, AtFlags::empty())?;
    }
    Ok(())
}

/// Whether two names are the same file.
fn same(from: &Dir, other: &OsStr, at: &Dir, name: &OsStr) -> bool {
    let stat = |folder, name| fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    matches!((stat(from, other), stat(at, name)), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_parts() {
        let parts = |name: &str| parts(name.as_bytes()).ok().map(|p| p.join(&b'/'));
        assert_eq!(parts("/a//./b/").as_deref(), Some(&b"a/b"[..]));
        assert_eq!(parts("./").as_deref(), Some(&b""[..]));
        assert_eq!(parts("a/..b/c").as_deref(), Some(&b"a/..b/c"[..]));
        for bad in ["..", "a/../b", "/..", "a\0b"] {
            assert_eq!(parts(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn links_are_followed_as_long_as_they_stay_in_the_directory() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", place.path().join("inside")).unwrap();
        std::os::unix::fs::symlink("/", place.path().join("outside")).unwrap();
        let folder = Folder::open(place.path()).unwrap();
        let parts = |name: &str| super::parts(name.as_bytes()).unwrap();
        assert!(folder.beneath(&parts("inside/b")).is_ok());
        assert_eq!(folder.beneath(&parts("outside/etc")).unwrap_err(), Errno::XDEV);
    }
}
