//! An open folder, and what is done in it by name. Every name is one component and is resolved beneath the folder by
//! openat2(2): no symbolic link is followed, nothing outside is reached. Not here: what the names mean.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fstat, mkdirat, openat,
    openat2, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};
use crate::times;

/// How often openat2 is tried again when something was renamed under it.
const TRIES: u32 = 64;

/// An open folder, with the path it was opened by for messages.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

/// A name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) is_folder: bool,
}

/// Opens `name` beneath `folder`.
pub(crate) fn open_beneath(
    folder: BorrowedFd<'_>,
    name: &Path,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..TRIES {
        match openat2(folder, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

impl Folder {
    /// Opens the folder at `path`, a path of the configuration: links in it are followed. `None` when it is not there.
    pub(crate) fn open_path(path: &Path) -> Result<Option<Self>> {
        match openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: path.to_path_buf() })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Error::io(format!("open {}", path.display()), error)),
        }
    }

    /// A folder that is already open.
    pub(crate) fn from_fd(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    /// Where `name` is, for messages.
    pub(crate) fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    fn failed(&self, doing: &str, name: impl AsRef<Path>, error: Errno) -> Error {
        Error::io(format!("{doing} {}", self.path_of(name).display()), error)
    }

    /// Opens the folder `name`. `None` when there is none.
    pub(crate) fn open(&self, name: impl AsRef<Path>) -> Result<Option<Self>> {
        let name = name.as_ref();
        match open_beneath(self.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: self.path_of(name) })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// Opens the folder `name`, which must be there.
    pub(crate) fn need(&self, name: impl AsRef<Path>) -> Result<Self> {
        let name = name.as_ref();
        self.open(name)?
            .ok_or_else(|| Error::new(Kind::NotReady, format!("{} is missing", self.path_of(name).display())))
    }

    /// Opens the folder `name`, made with `mode` if it is not there.
    pub(crate) fn open_or_make(&self, name: impl AsRef<Path>, mode: u32) -> Result<Self> {
        let name = name.as_ref();
        if let Some(folder) = self.open(name)? {
            return Ok(folder);
        }
        self.make(name, mode)?;
        self.sync()?;
        self.need(name)
    }

    /// Makes the folder `name` with `mode` less the process's umask. False when the name is taken.
    pub(crate) fn make(&self, name: impl AsRef<Path>, mode: u32) -> Result<bool> {
        match mkdirat(&self.fd, name.as_ref(), Mode::from_raw_mode(mode)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(self.failed("make", name, error)),
        }
    }

    /// Opens the file `name` with `flags`; `mode` for a new one. `None` when there is none.
    pub(crate) fn file(
        &self,
        name: impl AsRef<Path>,
        flags: OFlags,
        mode: u32,
    ) -> Result<Option<std::fs::File>> {
        let name = name.as_ref();
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode) } else { Mode::empty() };
        match open_beneath(self.as_fd(), name, flags, mode) {
            Ok(fd) => Ok(Some(fd.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// A handle on the folder or file `name` that can be mounted but not read. `None` when there is none.
    pub(crate) fn handle(&self, name: impl AsRef<Path>) -> Result<Option<OwnedFd>> {
        let name = name.as_ref();
        match open_beneath(self.as_fd(), name, OFlags::PATH, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// What `name` is, links not followed. `None` when there is nothing.
    pub(crate) fn stat(&self, name: impl AsRef<Path>) -> Result<Option<Stat>> {
        match statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("look at", name, error)),
        }
    }

    /// What the folder itself is.
    pub(crate) fn stat_self(&self) -> Result<Stat> {
        fstat(&self.fd).map_err(|error| self.failed("look at", "", error))
    }

    /// The names in the folder, `.` and `..` and what is not UTF-8 left out.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>> {
        let failed = |error| self.failed("list", "", error);
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            let is_folder = match entry.file_type() {
                FileType::Directory => true,
                // Filesystems that do not keep the type with the name.
                FileType::Unknown => self.stat(name)?.is_some_and(|stat| is_folder(&stat)),
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice => false,
            };
            entries.push(Entry { name: name.to_owned(), is_folder });
        }
        Ok(entries)
    }

    /// The names in the folder, of any bytes, `.` and `..` left out.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        let failed = |error| self.failed("list", "", error);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_os_string());
            }
        }
        Ok(names)
    }

    /// Moves `name` to `new_name` in `to`, unless that is taken: then false.
    pub(crate) fn move_to(
        &self,
        name: impl AsRef<Path>,
        to: &Folder,
        new_name: impl AsRef<Path>,
    ) -> Result<bool> {
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        let failed = |error| self.failed(&format!("move to {}", to.path_of(new_name).display()), name, error);
        match renameat_with(&self.fd, name, &to.fd, new_name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // Network filesystems do not know the flag. The lock keeps our own calls apart.
            Err(Errno::INVAL | Errno::NOSYS) if to.stat(new_name)?.is_none() => {
                renameat(&self.fd, name, &to.fd, new_name).map(|()| true).map_err(failed)
            }
            Err(Errno::INVAL | Errno::NOSYS) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Moves `name` to `new_name` in `to`, over what is there.
    pub(crate) fn replace(
        &self,
        name: impl AsRef<Path>,
        to: &Folder,
        new_name: impl AsRef<Path>,
    ) -> Result<()> {
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        renameat(&self.fd, name, &to.fd, new_name)
            .map_err(|error| self.failed(&format!("move to {}", to.path_of(new_name).display()), name, error))
    }

    /// Removes the file `name`. False when there is none.
    pub(crate) fn unlink(&self, name: impl AsRef<Path>) -> Result<bool> {
        match unlinkat(&self.fd, name.as_ref(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.failed("remove", name, error)),
        }
    }

    /// Removes the empty folder `name`. False when there is none.
    pub(crate) fn remove_empty(&self, name: impl AsRef<Path>) -> Result<bool> {
        match unlinkat(&self.fd, name.as_ref(), AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.failed("remove", name, error)),
        }
    }

    /// Writes the new file `name`, over an older one, and waits until it is on the disk; its name is not yet.
    pub(crate) fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
        let name = name.as_ref();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file =
            self.file(name, flags, 0o600)?.ok_or_else(|| self.failed("write", name, Errno::NOENT))?;
        let failed =
            |error: std::io::Error| Error::io(format!("write {}", self.path_of(name).display()), error);
        file.write_all(bytes).map_err(failed)?;
        times::fsync(&file).map_err(|error| failed(error.into()))
    }

    /// The whole file `name`. `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be read or has more than `most` bytes.
    pub(crate) fn read(&self, name: impl AsRef<Path>, most: u64) -> Result<Option<Vec<u8>>> {
        let name = name.as_ref();
        let Some(file) = self.file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(most.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| Error::io(format!("read {}", self.path_of(name).display()), error))?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > most) {
            return Err(Error::new(Kind::Internal, format!("{} is too long", self.path_of(name).display())));
        }
        Ok(Some(bytes))
    }

    /// Waits until the names in the folder are on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        times::fsync(&self.fd).map_err(|error| self.failed("sync", "", error))
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether this is a folder.
pub(crate) fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Whether this is a plain file.
pub(crate) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Opens the folder that holds the last component of `path`, and gives that component. Links on the way are followed:
/// the path is the container orchestrator's. `None` when the folder is not there.
///
/// # Errors
/// [`Kind::Invalid`] for a path that is not absolute or ends in no name.
pub(crate) fn split(field: &str, path: &str) -> Result<Option<(Folder, PathBuf)>> {
    let invalid = |why: &str| Error::new(Kind::Invalid, format!("{field} {path:?} {why}"));
    if path.as_bytes().contains(&0) || path.len() > 4095 {
        return Err(invalid("is no path"));
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
    Ok(Folder::open_path(parent)?.map(|folder| (folder, name)))
}
