//! One tree of files, or one file, made of another's: of its blocks, or of copies of them.
//!
//! The source is a pod's and may be hostile while we look: see [`super::tree`].

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dir::{Dir, is_dir, is_file};
use rustix::fs::{
    AtFlags, Dir as List, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    fchmod, fchown, fgetxattr, flistxattr, fstat, futimens, ioctl_ficlone, linkat, mknodat, readlinkat,
    statat, symlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};

use super::copy::{self, Since};
use super::trash;
use super::tree::{DEPTH_MAX, LINKS_MAX, bytes, failed, list, new_file, next};

/// Files that are made before they are synced together: one wait for all of them.
const UNSYNCED_MAX: usize = 64;
/// Longest extended attribute, and list of their names: the kernel's limit.
const XATTR_MAX: usize = 64 << 10;

/// How a file's content gets into another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Both share the blocks.
    Share,
    /// It is copied, slowly enough for others to work.
    Copy,
}

/// A copy of a tree that an earlier try began.
pub(crate) struct Begun<'a> {
    pub(crate) since: Since,
    /// Where what is not of the source any more goes.
    pub(crate) trash: &'a Dir,
}

/// Fills the folder `to`, which is empty or holds what was begun, with what is in `from`, and syncs it. Gives the bytes its
/// files use.
///
/// Each file is of one point in time, the files together are not: a consistent copy requires that writers stop.
///
/// # Errors
/// [`Kind::Unsupported`] when blocks cannot be shared.
pub(crate) fn tree(from: &Dir, to: &Dir, how: How, begun: Option<Begun<'_>>) -> Result<u64> {
    let mut clone = Clone { top: to, how, begun, links: HashMap::new(), unsynced: Vec::new(), used: 0 };
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
                clone.keep_only(source, target)?;
                take_after(target.as_fd(), source.as_fd(), &at.stat)?;
                let above = open.pop();
                if above.is_none() {
                    copy::done(target.as_fd());
                }
                target.sync()?;
                match above {
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
                let Some(below) = source.dir(&name)? else { continue };
                if clone.there(target, &name)?.is_some_and(|there| !is_dir(&there)) {
                    clone.set_aside(target, &name)?;
                }
                target.make_dir(&name, 0o700)?;
                let made = target.need_dir(&name)?;
                let stat = below.stat_self()?;
                let frame =
                    Frame { dir: list(&below)?, path: at.path.join(&name), pair: Some((below, made)), stat };
                open.push(std::mem::replace(&mut at, frame));
            }
            Some((name, FileType::RegularFile)) => clone.file(source, target, &name, &at.path)?,
            Some((name, kind)) => {
                clone.set_aside(target, &name)?;
                special(source, target, &name, kind)?;
            }
        }
    }
}

/// A folder that is being cloned.
struct Frame {
    dir: List,
    /// Itself and its clone; `None` for the topmost.
    pair: Option<(Dir, Dir)>,
    /// Where it is below the topmost.
    path: PathBuf,
    stat: Stat,
}

struct Clone<'a> {
    top: &'a Dir,
    how: How,
    begun: Option<Begun<'a>>,
    /// Files with several names: where the first one is below the top.
    links: HashMap<(u64, u64), PathBuf>,
    unsynced: Vec<File>,
    used: u64,
}

impl Clone<'_> {
    fn file(&mut self, source: &Dir, target: &Dir, name: &OsStr, path: &Path) -> Result<()> {
        let Some(from) = source.open_with(name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOATIME, 0)?
        else {
            return Ok(());
        };
        let stat = fstat(&from).map_err(|error| failed("inspect", source, name, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let link = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&link) {
                self.set_aside(target, name)?;
                return linkat(self.top, first, target, name, AtFlags::empty())
                    .map_err(|error| failed("link", target, name, error));
            }
            if self.links.len() >= LINKS_MAX {
                return Err(Error::new(
                    Kind::Precondition,
                    format!("more than {LINKS_MAX} files have several names"),
                ));
            }
            self.links.insert(link, path.join(name));
        }
        let Some(to) = self.file_to_fill(target, name, &stat)? else { return Ok(()) };
        self.used = self.used.saturating_add(content(&from, &to, self.how)?);
        take_after(to.as_fd(), from.as_fd(), &stat)?;
        self.unsynced.push(to);
        if self.unsynced.len() >= UNSYNCED_MAX { self.flush() } else { Ok(()) }
    }

    /// The file that is to become the copy of one with `source`'s numbers; `None` when it is one already.
    fn file_to_fill(&mut self, target: &Dir, name: &OsStr, source: &Stat) -> Result<Option<File>> {
        let Some(there) = self.there(target, name)? else { return new_file(target, name).map(Some) };
        if is_file(&there) {
            if self.begun.as_ref().is_some_and(|begun| begun.since.is_done(source, &there)) {
                self.used = self.used.saturating_add(bytes(&there));
                return Ok(None);
            }
            if let Some(file) = target.open_with(name, OFlags::RDWR, 0)?
                && copy::so_far(source, file.as_fd()).is_some()
            {
                return Ok(Some(file));
            }
        }
        self.set_aside(target, name)?;
        new_file(target, name).map(Some)
    }

    /// The remains of an earlier attempt under a name.
    fn there(&self, target: &Dir, name: &OsStr) -> Result<Option<Stat>> {
        if self.begun.is_some() { Ok(target.stat(name)?) } else { Ok(None) }
    }

    /// Puts away what an earlier try left under a name.
    fn set_aside(&self, target: &Dir, name: &OsStr) -> Result<()> {
        match &self.begun {
            Some(begun) if target.stat(name)?.is_some() => {
                Ok(target.rename(name, begun.trash, trash::fresh_name())?)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Puts away what an earlier try took of the source and is not there any more.
    fn keep_only(&self, source: &Dir, target: &Dir) -> Result<()> {
        if self.begun.is_some() {
            for name in target.names()? {
                if source.stat(&name)?.is_none() {
                    self.set_aside(target, &name)?;
                }
            }
        }
        Ok(())
    }

    /// The first sync of several writes the journal for all of them; the others find nothing left to do.
    fn flush(&mut self) -> Result<()> {
        for file in self.unsynced.drain(..) {
            dir::fsync(&file).map_err(|error| Error::io("sync a cloned file", error))?;
        }
        Ok(())
    }
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
        How::Copy => copy::content(from, to)?,
    }
    fstat(to).map(|stat| bytes(&stat)).map_err(|error| Error::io("inspect a cloned file", error))
}

/// Everything that is neither folder nor plain file.
fn special(source: &Dir, target: &Dir, name: &OsStr, kind: FileType) -> Result<()> {
    let stat = match statat(source, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed("inspect", source, name, error)),
    };
    if FileType::from_raw_mode(stat.st_mode) != kind {
        return Ok(());
    }
    let made = |error| failed("create", target, name, error);
    if kind == FileType::Symlink {
        let to = readlinkat(source, name, Vec::new()).map_err(|error| failed("read", source, name, error))?;
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

/// Copies owner, mode and times from `stat` and extended attributes from the source. The owner comes first: changing it
/// clears mode bits and file capabilities.
pub(crate) fn take_after(file: BorrowedFd<'_>, source: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
    let io = |error: Errno| Error::io("set a clone's owner and mode", error);
    fchown(file, Some(owner(stat)), Some(group(stat))).map_err(io)?;
    copy_xattrs(source, file)?;
    fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(io)?;
    futimens(file, &times(stat)).map_err(io)
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
        if name == copy::MARK {
            continue;
        }
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
