//! An open directory, and what is done in it by name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir as List, FileType, Mode, OFlags, RenameFlags, Stat, fstat, mkdirat, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::file_type::{is_dir, regular};
use crate::read::read_file;
use crate::resolve::{self, Rules};
use crate::sync::fsync;

/// How directories are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// An open directory, with the path it was opened by for messages.
///
/// Opening calls take a name or a relative path, and nothing outside of the directory is reached. Calls that make, move or
/// remove take one name without a slash, others are refused with EINVAL.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    rules: Rules,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The one component that `name` is.
pub(crate) fn component(name: &Path) -> rustix::io::Result<&OsStr> {
    let mut parts = name.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) => Ok(part),
        _ => Err(Errno::INVAL),
    }
}

impl Dir {
    /// Opens the directory at a trusted path: symbolic links in it are followed.
    ///
    /// # Errors
    /// When it is not there, or not a directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::find(path)?.ok_or_else(|| Error::new(format!("open {}", path.display()), Errno::NOENT))
    }

    /// The same; `None` when it is not there or not a directory.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn find(path: impl AsRef<Path>) -> Result<Option<Self>> {
        let path = path.as_ref();
        match openat(CWD, path, DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(Self::from_fd(fd, path))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Error::new(format!("open {}", path.display()), error)),
        }
    }

    /// A directory that is already open; `path` is for messages.
    pub fn from_fd(fd: OwnedFd, path: impl Into<PathBuf>) -> Self {
        Self { fd, path: path.into(), rules: Rules::default() }
    }

    /// Follows symbolic links to targets inside the directory, in this and all directories opened from it: for the content
    /// of archives.
    #[must_use]
    pub fn links_beneath(mut self) -> Self {
        self.rules.links = true;
        self
    }

    /// Refuses with EXDEV what lies on another mount, in this and all directories opened from it.
    #[must_use]
    pub fn one_mount(mut self) -> Self {
        self.rules.one_mount = true;
        self
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where `name` is, for messages.
    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// A path of `name` that leads through this open directory, for calls of this process that take nothing else. The last
    /// component is not protected against links.
    pub fn proc_path(&self, name: impl AsRef<Path>) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.fd.as_raw_fd())).join(name)
    }

    pub(crate) fn failed(&self, doing: &str, name: impl AsRef<Path>, error: impl Into<io::Error>) -> Error {
        Error::new(format!("{doing} {}", self.path_of(name).display()), error)
    }

    pub(crate) fn open_raw(&self, name: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        resolve::open(self.as_fd(), name, flags, mode, self.rules)
    }

    fn child(&self, fd: OwnedFd, name: &Path) -> Self {
        Self { fd, path: self.path_of(name), rules: self.rules }
    }

    /// Opens the directory `name`. `None` when there is none.
    ///
    /// # Errors
    /// When something else has the name, or it cannot be opened.
    pub fn dir(&self, name: impl AsRef<Path>) -> Result<Option<Self>> {
        let name = name.as_ref();
        match self.open_raw(name, DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(self.child(fd, name))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// Opens the directory `name`, which must be there.
    ///
    /// # Errors
    /// When it is not, or cannot be opened.
    pub fn need_dir(&self, name: impl AsRef<Path>) -> Result<Self> {
        let name = name.as_ref();
        self.dir(name)?.ok_or_else(|| self.failed("open", name, Errno::NOENT))
    }

    /// Opens the directory `name`, made durably with `mode` less the umask if it is not there.
    ///
    /// # Errors
    /// When it can be neither opened nor made.
    pub fn dir_or_make(&self, name: impl AsRef<Path>, mode: u32) -> Result<Self> {
        let name = name.as_ref();
        if let Some(dir) = self.dir(name)? {
            return Ok(dir);
        }
        if self.make_dir(name, mode)? {
            self.sync()?;
        }
        self.need_dir(name)
    }

    /// Makes the directory `name` with `mode` less the umask. False when the name is taken.
    ///
    /// # Errors
    /// Those of mkdirat(2).
    pub fn make_dir(&self, name: impl AsRef<Path>, mode: u32) -> Result<bool> {
        let name = name.as_ref();
        match component(name).and_then(|it| mkdirat(self, it, Mode::from_raw_mode(mode))) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(self.failed("make", name, error)),
        }
    }

    /// Opens `name` with `flags`; `mode` is a new file's. Nothing is checked: the open of a FIFO may wait. `None` when there
    /// is nothing.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn open_with(&self, name: impl AsRef<Path>, flags: OFlags, mode: u32) -> Result<Option<File>> {
        let name = name.as_ref();
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode) } else { Mode::empty() };
        match self.open_raw(name, flags, mode) {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// Opens the regular file `name` with `flags`, without ever waiting. `None` when there is nothing.
    ///
    /// # Errors
    /// When it is something else, or cannot be opened.
    pub fn file(&self, name: impl AsRef<Path>, flags: OFlags) -> Result<Option<File>> {
        let name = name.as_ref();
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(file) = self.open_with(name, flags, 0)? else { return Ok(None) };
        regular(&file).map_err(|error| self.failed("open", name, error))?;
        Ok(Some(file))
    }

    /// As [`Dir::file`], for a file with content or owner to change: it must have no other name, which could be another
    /// user's file.
    ///
    /// # Errors
    /// As [`Dir::file`], and when it has more than one hard link.
    pub fn own_file(&self, name: impl AsRef<Path>, flags: OFlags) -> Result<Option<File>> {
        let name = name.as_ref();
        let Some(file) = self.file(name, flags)? else { return Ok(None) };
        let links = fstat(&file).map_err(|error| self.failed("open", name, error))?.st_nlink;
        if links == 1 {
            return Ok(Some(file));
        }
        let why = format!("it has {links} hard links and would change under its other names; remove those");
        Err(self.failed("open", name, io::Error::new(io::ErrorKind::InvalidInput, why)))
    }

    /// Makes the new file `name`, open for writing, with `mode` less the umask.
    ///
    /// # Errors
    /// When the name is taken ([`io::ErrorKind::AlreadyExists`]), whatever stands there, or it cannot be made.
    pub fn create_new(&self, name: impl AsRef<Path>, mode: u32) -> Result<File> {
        let name = name.as_ref();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let created =
            component(name).and_then(|it| self.open_raw(Path::new(it), flags, Mode::from_raw_mode(mode)));
        created.map(File::from).map_err(|error| self.failed("make", name, error))
    }

    /// A handle on `name` that can be mounted or asked about, but not read. `None` when there is nothing.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn handle(&self, name: impl AsRef<Path>) -> Result<Option<OwnedFd>> {
        let name = name.as_ref();
        match self.open_raw(name, OFlags::PATH, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// Type of the entry `name`, links not followed. `None` when there is nothing.
    ///
    /// # Errors
    /// Those of fstatat(2).
    pub fn stat(&self, name: impl AsRef<Path>) -> Result<Option<Stat>> {
        let name = name.as_ref();
        match component(name).and_then(|it| statat(self, it, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("inspect", name, error)),
        }
    }

    /// Metadata of the directory itself.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn stat_self(&self) -> Result<Stat> {
        fstat(self).map_err(|error| self.failed("inspect", "", error))
    }

    /// The names in the directory with their kinds; those that are not UTF-8 are left out.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let failed = |error| self.failed("list", "", error);
        let mut entries = Vec::new();
        for entry in List::read_from(self).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            let is_dir = match entry.file_type() {
                FileType::Directory => true,
                // Filesystems that do not keep the type with the name.
                FileType::Unknown => self.stat(name)?.is_some_and(|stat| is_dir(&stat)),
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice => false,
            };
            entries.push(Entry { name: name.to_owned(), is_dir });
        }
        Ok(entries)
    }

    /// The names in the directory, of any bytes.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn names(&self) -> Result<Vec<OsString>> {
        let failed = |error| self.failed("list", "", error);
        let mut names = Vec::new();
        for entry in List::read_from(self).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_os_string());
            }
        }
        Ok(names)
    }

    /// Moves `name` to `new_name` in `to`, unless that is taken: then false.
    ///
    /// # Errors
    /// Those of renameat2(2).
    pub fn rename_new(&self, name: impl AsRef<Path>, to: &Self, new_name: impl AsRef<Path>) -> Result<bool> {
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        let failed = |error| self.failed(&format!("move to {}", to.path_of(new_name).display()), name, error);
        let (from, target) = (component(name).map_err(failed)?, component(new_name).map_err(failed)?);
        match renameat_with(self, from, to, target, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // Network filesystems do not know the flag; callers keep their own calls apart by locks.
            Err(Errno::INVAL | Errno::NOSYS) if to.stat(new_name)?.is_none() => {
                renameat(self, from, to, target).map(|()| true).map_err(failed)
            }
            Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Moves `name` to `new_name` in `to`, over what is there.
    ///
    /// # Errors
    /// Those of renameat(2).
    pub fn rename(&self, name: impl AsRef<Path>, to: &Self, new_name: impl AsRef<Path>) -> Result<()> {
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        let renamed = component(name)
            .and_then(|from| component(new_name).and_then(|target| renameat(self, from, to, target)));
        renamed
            .map_err(|error| self.failed(&format!("move to {}", to.path_of(new_name).display()), name, error))
    }

    /// Removes the file or link `name`. False when there is none.
    ///
    /// # Errors
    /// Those of unlinkat(2).
    pub fn unlink(&self, name: impl AsRef<Path>) -> Result<bool> {
        self.remove(name.as_ref(), AtFlags::empty())
    }

    /// Removes the empty directory `name`. False when there is none.
    ///
    /// # Errors
    /// Those of unlinkat(2).
    pub fn remove_dir(&self, name: impl AsRef<Path>) -> Result<bool> {
        self.remove(name.as_ref(), AtFlags::REMOVEDIR)
    }

    fn remove(&self, name: &Path, flags: AtFlags) -> Result<bool> {
        match component(name).and_then(|it| unlinkat(self, it, flags)) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.failed("remove", name, error)),
        }
    }

    /// Writes the file `name` in place, over an older one, and waits until it is on the disk; its name is not yet. For
    /// directories that no other user writes to; elsewhere use [`Dir::replace`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        let name = name.as_ref();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK;
        let opened = self.open_with(name, flags, 0o600)?;
        let mut file = opened.ok_or_else(|| self.failed("write", name, Errno::NOENT))?;
        file.write_all(bytes).map_err(|error| self.failed("write", name, error))?;
        fsync(&file).map_err(|error| self.failed("write", name, error))
    }

    /// The whole regular file `name`, at most `max` bytes, without ever waiting. `None` when there is nothing.
    ///
    /// # Errors
    /// When it is something else or longer, or cannot be read.
    pub fn read(&self, name: impl AsRef<Path>, max: u64) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        let Some(file) = self.file(name, OFlags::RDONLY)? else { return Ok(None) };
        read_file(&file, max).map(Some).map_err(|error| self.failed("read", name, error))
    }

    /// Waits until the names in the directory are on the disk.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn sync(&self) -> Result<()> {
        fsync(self).map_err(|error| self.failed("sync", "", error))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::fs::mknodat;

    use super::*;
    use crate::Owner;

    /// Everything that can stand in a file's place: none is opened, waited for or changed.
    #[test]
    fn planted_names_are_refused_at_once() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let theirs = outside.path().join("theirs");
        std::fs::write(&theirs, "theirs").unwrap();
        let at = |name: &str| place.path().join(name);
        let dir = Dir::open(place.path()).unwrap();
        std::os::unix::fs::symlink(&theirs, at("link")).unwrap();
        std::os::unix::fs::symlink(outside.path(), at("links")).unwrap();
        mknodat(&dir, "fifo", FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        let begun = Instant::now();
        for name in ["link", "links/theirs", "fifo", "dir", "socket", "zero"] {
            assert!(dir.file(name, OFlags::RDONLY).is_err(), "{name}");
            assert!(dir.file(name, OFlags::WRONLY).is_err(), "{name}");
            assert!(dir.read(name, 1 << 20).is_err(), "{name}");
            assert!(dir.create_new(name, 0o600).is_err(), "{name}");
            assert!(dir.dir(name).is_err() || name == "dir", "{name}");
        }
        std::fs::hard_link(&theirs, at("hard")).unwrap();
        assert!(dir.own_file("hard", OFlags::WRONLY).is_err());
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(std::fs::read(&theirs).unwrap(), b"theirs");
    }

    #[test]
    fn files_longer_than_the_limit_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        std::fs::write(place.path().join("file"), "12345").unwrap();
        assert_eq!(dir.read("file", 5).unwrap().unwrap(), b"12345");
        assert_eq!(dir.read("file", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(dir.read("absent", 4).unwrap().is_none());
        assert_eq!(crate::read(place.path().join("file"), 5).unwrap().unwrap(), b"12345");
        assert!(crate::read("/dev/zero", 5).is_err());
    }

    #[test]
    fn a_name_is_one_component_where_the_kernel_does_not_check_the_path() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        for name in ["", ".", "..", "a/b", "/a", "../a"] {
            for errno in [
                dir.make_dir(name, 0o700).unwrap_err().errno(),
                dir.unlink(name).unwrap_err().errno(),
                dir.rename("a", &dir, name).unwrap_err().errno(),
                dir.stat(name).map(drop).unwrap_err().errno(),
                dir.create_new(name, 0o600).unwrap_err().errno(),
            ] {
                assert_eq!(errno, Some(Errno::INVAL), "{name}");
            }
        }
    }

    #[test]
    fn the_owner_of_a_link_changes_and_not_that_of_its_target() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        std::fs::write(place.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("file", place.path().join("link")).unwrap();
        dir.chown("link", Owner::same(7)).unwrap();
        assert_eq!(dir.stat("link").unwrap().unwrap().st_uid, 7);
        assert_eq!(dir.stat("file").unwrap().unwrap().st_uid, 0);
    }

    #[test]
    fn mounts_are_crossed_unless_forbidden() {
        let proc = Dir::open("/").unwrap();
        assert!(proc.dir("proc").is_ok_and(|dir| dir.is_some()));
        let alone = Dir::open("/").unwrap().one_mount();
        assert_eq!(alone.dir("proc").unwrap_err().errno(), Some(Errno::XDEV));
    }
}
