//! Trees of files: what they use, removing them, and making one of another's blocks.
//!
//! Their content is a pod's and may be hostile while we look: every step is one component from an open folder, no link is
//! followed, depth and memory are bounded whatever the tree.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, IFlags, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chownat, fchmod, fchown, fgetxattr, flistxattr, fstat, fsync, ftruncate, futimens, ioctl_ficlone,
    ioctl_setflags, linkat, mknodat, readlinkat, seek, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};
use crate::folder::{Folder, is_folder};

/// Deepest tree that is cloned, and that is looked into for its size.
const DEPTH_MAX: usize = 512;
/// Most files with several names that a clone keeps in mind.
const LINKS_MAX: usize = 100_000;
/// Files that are made before they are synced together: one wait for all of them.
const UNSYNCED_MAX: usize = 64;
/// Longest extended attribute, and list of their names: the kernel's limit.
const XATTR_MAX: usize = 64 << 10;
/// Bytes that are copied between two looks at the clock.
const COPY_STEP: usize = 4 << 20;
/// Copying leaves the disk to others for as long as it took.
const COPY_REST: u32 = 1;

/// Bytes that a file uses.
pub(crate) fn bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// How much may still be looked at.
#[derive(Debug)]
pub(crate) struct Budget {
    entries: u64,
    until: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { entries: u64::MAX, until: None }
    }
}

impl Budget {
    /// At the start nobody is kept waiting for long.
    pub(crate) fn at_start() -> Self {
        Self { entries: 1_000_000, until: Instant::now().checked_add(Duration::from_secs(3)) }
    }

    /// Whether nothing more may be looked at.
    pub(crate) fn is_spent(&self) -> bool {
        self.entries == 0 || self.until.is_some_and(|until| Instant::now() > until)
    }

    fn spend(&mut self) -> bool {
        self.entries = self.entries.saturating_sub(1);
        // The clock is asked now and then only.
        if self.entries.is_multiple_of(1024) && self.is_spent() {
            self.entries = 0;
        }
        self.entries == 0
    }
}

/// The next entry of a folder: its name and type. Entries that vanish while one looks are skipped by the callers.
fn next(dir: &mut Dir, folder: &Folder) -> Result<Option<(OsString, FileType)>> {
    for entry in dir.by_ref() {
        let entry = entry.map_err(|error| failed("list", folder, error))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let name = OsStr::from_bytes(name).to_os_string();
        let mut kind = entry.file_type();
        if kind == FileType::Unknown {
            kind = match statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed("look into", folder, error)),
            };
        }
        return Ok(Some((name, kind)));
    }
    Ok(None)
}

fn failed(doing: &str, folder: &Folder, error: Errno) -> Error {
    Error::io(format!("{doing} {}", folder.path_of("").display()), error)
}

fn list(folder: &Folder) -> Result<Dir> {
    Dir::read_from(folder).map_err(|error| failed("list", folder, error))
}

/// Bytes that everything below `folder` uses, as far as the budget goes. A file with several names counts once.
pub(crate) fn used(folder: &Folder, budget: &mut Budget) -> Result<u64> {
    let mut sum = bytes(&folder.stat_self()?);
    let mut linked: HashMap<u64, ()> = HashMap::new();
    let mut open: Vec<(Dir, Option<Folder>)> = vec![(list(folder)?, None)];
    while let Some((dir, below)) = open.last_mut() {
        let here = below.as_ref().unwrap_or(folder);
        let Some((name, kind)) = next(dir, here)? else {
            open.pop();
            continue;
        };
        if budget.spend() {
            break;
        }
        let stat = match statat(here, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(failed("look into", here, error)),
        };
        if stat.st_nlink > 1
            && kind != FileType::Directory
            && linked.len() < LINKS_MAX
            && linked.insert(stat.st_ino, ()).is_some()
        {
            continue;
        }
        sum = sum.saturating_add(bytes(&stat));
        if kind == FileType::Directory
            && open.len() < DEPTH_MAX
            && let Some(folder) =
                open.last().and_then(|(_, below)| below.as_ref()).unwrap_or(folder).open(&name)?
        {
            open.push((list(&folder)?, Some(folder)));
        }
    }
    Ok(sum)
}

/// Removes `name` and all below it. Folders in it are moved beside it first, so that no depth is too much: `fresh` gives
/// names for them, and they are removed when the caller comes to them.
pub(crate) fn remove(trash: &Folder, name: &OsStr, fresh: fn() -> String) -> Result<()> {
    let Some(stat) = trash.stat(name)? else { return Ok(()) };
    if !is_folder(&stat) {
        return unlink(trash, name);
    }
    let Some(folder) = trash.open(name)? else { return Ok(()) };
    loop {
        let mut dir = list(&folder)?;
        let mut seen = false;
        while let Some((below, kind)) = next(&mut dir, &folder)? {
            seen = true;
            if kind != FileType::Directory {
                unlink(&folder, &below)?;
            } else if unlinkat(&folder, &below, AtFlags::REMOVEDIR).is_err() {
                mutable(&folder, &below);
                folder.replace(&below, trash, fresh())?;
            }
        }
        // Removing while listing may hide entries: once more until the folder is empty.
        if !seen {
            break;
        }
    }
    mutable(trash, name);
    trash.remove_empty(name).map(drop)
}

/// Removes a file, even an immutable one.
fn unlink(folder: &Folder, name: &OsStr) -> Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => {
            mutable(folder, name);
            folder.unlink(name).map(drop)
        }
        Err(error) => Err(failed("remove from", folder, error)),
    }
}

/// Takes the immutable and append-only flags off a file or folder and off the folder that holds it; failures show later.
fn mutable(folder: &Folder, name: &OsStr) {
    for fd in [folder.file(".", OFlags::RDONLY, 0), folder.file(name, OFlags::RDONLY | OFlags::NONBLOCK, 0)] {
        if let Ok(Some(fd)) = fd
            && let Ok(flags) = rustix::fs::ioctl_getflags(&fd)
            && flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND)
        {
            let _ = ioctl_setflags(&fd, flags - (IFlags::IMMUTABLE | IFlags::APPEND));
        }
    }
}

/// How a file's content gets into another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Both share the blocks.
    Share,
    /// It is copied, slowly enough for others to work.
    Copy,
}

/// Fills the empty folder `to` with what is in `from`, and syncs it. Gives the bytes its files use.
///
/// Each file is of one moment, the files together are not: whoever needs that stops writing.
///
/// # Errors
/// [`Kind::Unsupported`] when blocks cannot be shared.
pub(crate) fn clone(from: &Folder, to: &Folder, how: How) -> Result<u64> {
    let mut clone = Clone { top: to, how, links: HashMap::new(), unsynced: Vec::new(), used: 0 };
    let mut open: Vec<Frame> = Vec::new();
    let mut at = Frame { dir: list(from)?, pair: None, path: PathBuf::new(), stat: from.stat_self()? };
    loop {
        let (source, target) = match &at.pair {
            Some((source, target)) => (source, target),
            None => (from, to),
        };
        match next(&mut at.dir, source)? {
            None => {
                clone.flush()?;
                copy_xattrs(source.as_fd(), target.as_fd())?;
                take_after(target.as_fd(), &at.stat)?;
                target.sync()?;
                match open.pop() {
                    Some(above) => at = above,
                    None => return Ok(clone.used),
                }
            }
            Some((name, FileType::Directory)) => {
                if open.len() >= DEPTH_MAX {
                    return Err(Error::new(
                        Kind::Precondition,
                        format!("the tree is deeper than {DEPTH_MAX} folders"),
                    ));
                }
                let Some(below) = source.open(&name)? else { continue };
                target.make(&name, 0o700)?;
                let made = target.need(&name)?;
                let stat = below.stat_self()?;
                let frame =
                    Frame { dir: list(&below)?, path: at.path.join(&name), pair: Some((below, made)), stat };
                open.push(std::mem::replace(&mut at, frame));
            }
            Some((name, FileType::RegularFile)) => clone.file(source, target, &name, &at.path)?,
            Some((name, kind)) => special(source, target, &name, kind)?,
        }
    }
}

/// A folder that is being cloned.
struct Frame {
    dir: Dir,
    /// Itself and its clone; `None` for the topmost.
    pair: Option<(Folder, Folder)>,
    /// Where it is below the topmost.
    path: PathBuf,
    stat: Stat,
}

struct Clone<'a> {
    top: &'a Folder,
    how: How,
    /// Files with several names: where the first one is below the top.
    links: HashMap<(u64, u64), PathBuf>,
    unsynced: Vec<File>,
    used: u64,
}

impl Clone<'_> {
    fn file(&mut self, source: &Folder, target: &Folder, name: &OsStr, path: &Path) -> Result<()> {
        let Some(from) = source.file(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME, 0)? else {
            return Ok(());
        };
        let stat = fstat(&from).map_err(|error| failed("look into", source, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let link = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&link) {
                return linkat(self.top, first, target, name, AtFlags::empty())
                    .map_err(|error| failed("link in", target, error));
            }
            if self.links.len() >= LINKS_MAX {
                return Err(Error::new(
                    Kind::Precondition,
                    format!("more than {LINKS_MAX} files have several names"),
                ));
            }
            self.links.insert(link, path.join(name));
        }
        let to = new_file(target, name)?;
        self.used = self.used.saturating_add(content(&from, &to, self.how)?);
        copy_xattrs(from.as_fd(), to.as_fd())?;
        take_after(to.as_fd(), &stat)?;
        self.unsynced.push(to);
        if self.unsynced.len() >= UNSYNCED_MAX { self.flush() } else { Ok(()) }
    }

    /// The first sync of several writes the journal for all of them; the others find nothing left to do.
    fn flush(&mut self) -> Result<()> {
        for file in self.unsynced.drain(..) {
            fsync(&file).map_err(|error| Error::io("sync a cloned file", error))?;
        }
        Ok(())
    }
}

/// A file that is not there yet.
pub(crate) fn new_file(folder: &Folder, name: impl AsRef<Path>) -> Result<File> {
    let name = name.as_ref();
    folder
        .file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o600)?
        .ok_or_else(|| Error::new(Kind::Internal, format!("{} vanished", folder.path_of(name).display())))
}

/// Puts the content of `from` into the empty file `to`. Gives the bytes it uses.
///
/// # Errors
/// [`Kind::Unsupported`] when blocks are to be shared and cannot be.
pub(crate) fn content(from: &File, to: &File, how: How) -> Result<u64> {
    match how {
        How::Share => ioctl_ficlone(to, from).map_err(|error| match error {
            Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::INVAL => {
                Error::io("share blocks", error).as_kind(Kind::Unsupported)
            }
            other => Error::io("share blocks", other),
        })?,
        How::Copy => copy(from, to)?,
    }
    fstat(to).map(|stat| bytes(&stat)).map_err(|error| Error::io("look at a cloned file", error))
}

/// Copies what is not a hole. What an earlier try has copied of it is not known and copied again.
fn copy(from: &File, to: &File) -> Result<()> {
    let io = |error: Errno| Error::io("copy a file", error);
    let size = u64::try_from(fstat(from).map_err(io)?.st_size).unwrap_or(0);
    ftruncate(to, size).map_err(io)?;
    let mut at: u64 = 0;
    loop {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(io(error)),
        };
        let end = seek(from, SeekFrom::Hole(start)).map_err(io)?;
        let (mut read, mut written) = (start, start);
        while read < end {
            let begun = Instant::now();
            let step = usize::try_from(end - read).unwrap_or(COPY_STEP).min(COPY_STEP);
            let copied = rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), step)
                .map_err(io)?;
            if copied == 0 {
                // The file became shorter while we copied.
                return Ok(());
            }
            rustix::fs::fdatasync(to).map_err(io)?;
            std::thread::sleep(begun.elapsed().saturating_mul(COPY_REST).min(Duration::from_secs(1)));
        }
        at = end;
    }
}

/// Everything that is neither folder nor plain file.
fn special(source: &Folder, target: &Folder, name: &OsStr, kind: FileType) -> Result<()> {
    let stat = match statat(source, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed("look into", source, error)),
    };
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Ok(());
    }
    let made = |error| failed("make in", target, error);
    if kind == FileType::Symlink {
        let to = readlinkat(source, name, Vec::new()).map_err(|error| failed("read in", source, error))?;
        symlinkat(to, target, name).map_err(made)?;
    } else {
        mknodat(target, name, kind, Mode::from_raw_mode(stat.st_mode & 0o7777), stat.st_rdev)
            .map_err(made)?;
    }
    chownat(target, name, Some(owner(&stat)), Some(group(&stat)), AtFlags::SYMLINK_NOFOLLOW).map_err(made)?;
    if kind != FileType::Symlink {
        rustix::fs::chmodat(target, name, Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())
            .map_err(made)?;
    }
    rustix::fs::utimensat(target, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW).map_err(made)
}

fn owner(stat: &Stat) -> Uid {
    Uid::from_raw(stat.st_uid)
}

fn group(stat: &Stat) -> Gid {
    Gid::from_raw(stat.st_gid)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Owner, mode and times as `stat` says. The owner first: changing it takes mode bits away.
pub(crate) fn take_after(file: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
    let io = |error: Errno| Error::io("set a clone's owner and mode", error);
    fchown(file, Some(owner(stat)), Some(group(stat))).map_err(io)?;
    fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(io)?;
    futimens(file, &times(stat)).map_err(io)
}

/// Lets a group read and write everything in a folder. The folder itself comes last: a folder that is the group's is done,
/// which is all that most calls look at.
pub(crate) fn give_to_group(folder: &Folder, group: u32) -> Result<()> {
    const WANTED: u32 = 0o2070;
    let top = folder.stat_self()?;
    if top.st_gid == group && top.st_mode & WANTED == WANTED {
        return Ok(());
    }
    let mut open: Vec<(Dir, Option<Folder>)> = vec![(list(folder)?, None)];
    loop {
        let depth = open.len();
        let Some((dir, below)) = open.last_mut() else { break };
        let here = below.as_ref().unwrap_or(folder);
        let Some((name, kind)) = next(dir, here)? else {
            if let Some((_, Some(done))) = open.pop() {
                hand_over(done.as_fd(), group, WANTED)?;
            }
            continue;
        };
        if kind == FileType::Directory {
            if depth >= DEPTH_MAX {
                return Err(Error::new(
                    Kind::Precondition,
                    format!("the tree is deeper than {DEPTH_MAX} folders"),
                ));
            }
            if let Some(folder) = here.open(&name)? {
                open.push((list(&folder)?, Some(folder)));
            }
        } else if kind == FileType::RegularFile {
            if let Some(file) = here.file(&name, OFlags::RDONLY | OFlags::NONBLOCK, 0)? {
                hand_over(file.as_fd(), group, 0o060)?;
            }
        } else {
            match chownat(here, &name, None, Some(Gid::from_raw(group)), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("hand over in", here, error)),
            }
        }
    }
    hand_over(folder.as_fd(), group, WANTED)
}

fn hand_over(file: BorrowedFd<'_>, group: u32, bits: u32) -> Result<()> {
    let io = |error: Errno| Error::io("hand a file over to a group", error);
    let mode = fstat(file).map_err(io)?.st_mode & 0o7777;
    fchown(file, None, Some(Gid::from_raw(group))).map_err(io)?;
    fchmod(file, Mode::from_raw_mode(mode | bits)).map_err(io)
}

/// Copies extended attributes, access lists among them.
fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
    let io = |error: Errno| Error::io("copy extended attributes", error);
    let mut names = vec![0; 1024];
    let mut length = flistxattr(from, &mut names);
    if length == Err(Errno::RANGE) {
        names.resize(XATTR_MAX, 0);
        length = flistxattr(from, &mut names);
    }
    let length = match length {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(()),
        Ok(length) => length,
        Err(error) => return Err(io(error)),
    };
    let mut value = vec![0; XATTR_MAX];
    for name in
        names.get(..length).unwrap_or_default().split(|byte| *byte == 0).filter(|name| !name.is_empty())
    {
        let name = OsStr::from_bytes(name);
        let length = match fgetxattr(from, name, &mut value) {
            Ok(length) => length,
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(io(error)),
        };
        let value = value.get(..length).unwrap_or_default();
        rustix::fs::fsetxattr(to, name, value, XattrFlags::empty()).map_err(io)?;
    }
    Ok(())
}
