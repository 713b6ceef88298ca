//! Trees of files: what they use, removing them, and handing them to a group. Not here: making one of another
//! ([`super::clone`]).
//!
//! Their content is a pod's and may be hostile while we look: every step is one component from an open folder, no link is
//! followed, depth and memory are bounded whatever the tree.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use dir::{Dir, is_dir, is_file};
use rustix::fs::{
    AtFlags, Dir as List, FileType, Gid, IFlags, Mode, OFlags, Stat, chownat, fchmod, fchown, fstat,
    ioctl_setflags, statat, unlinkat,
};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};
use crate::sys;

/// Deepest tree that is cloned, and that is looked into for its size.
pub(super) const DEPTH_MAX: usize = 512;
/// Most files with several names that a clone keeps in mind.
pub(super) const LINKS_MAX: usize = 100_000;

/// Bytes that a file uses.
pub(crate) fn bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// Usage of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes it uses.
    pub(crate) used: u64,
    /// Bytes of them that no other file shares.
    pub(crate) owned: u64,
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
    /// The budget at start, which bounds the delay before the first request.
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
pub(super) fn next(dir: &mut List, folder: &Dir) -> Result<Option<(OsString, FileType)>> {
    for entry in dir.by_ref() {
        let entry = entry.map_err(|error| failed("list", folder, "", error))?;
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
                Err(error) => return Err(failed("inspect", folder, &name, error)),
            };
        }
        return Ok(Some((name, kind)));
    }
    Ok(None)
}

/// The error of a step with the entry `name` of a folder; of the folder itself where the name is empty.
pub(super) fn failed(doing: &str, folder: &Dir, name: impl AsRef<Path>, error: Errno) -> Error {
    Error::io(format!("{doing} {}", folder.path_of(name).display()), error)
}

pub(super) fn list(folder: &Dir) -> Result<List> {
    List::read_from(folder).map_err(|error| failed("list", folder, "", error))
}

/// Files smaller than this are taken to own their bytes: asking the filesystem about each costs more than they hold.
const ASKED: u64 = 64 << 10;

/// Bytes that everything below `folder` uses, as far as the budget goes. A file with several names counts once.
pub(crate) fn used(folder: &Dir, budget: &mut Budget) -> Result<u64> {
    Ok(usage(folder, budget, false)?.used)
}

/// Bytes that everything below `folder` uses, and how many of them no other file shares, where that is `asked`: small
/// files then own nothing, as their blocks may be shared, too.
pub(crate) fn usage(folder: &Dir, budget: &mut Budget, asked: bool) -> Result<Usage> {
    let mut usage = Usage::default();
    let mut linked: HashMap<u64, ()> = HashMap::new();
    walk(folder, budget, |here, name, stat| {
        let again = stat.st_nlink > 1
            && !is_dir(stat)
            && linked.len() < LINKS_MAX
            && linked.insert(stat.st_ino, ()).is_some();
        if again {
            return Ok(());
        }
        let used = bytes(stat);
        usage.used = usage.used.saturating_add(used);
        let owned = match name {
            Some(name) if asked && is_file(stat) => match used {
                ASKED.. => owned_of(here, name)?.min(used),
                _ => 0,
            },
            Some(_) | None => used,
        };
        usage.owned = usage.owned.saturating_add(owned);
        Ok(())
    })?;
    Ok(usage)
}

/// Bytes of the file `name` that no other file shares; none when it cannot be asked about any more.
fn owned_of(folder: &Dir, name: &OsStr) -> Result<u64> {
    match folder.file(name, OFlags::RDONLY | OFlags::NOATIME) {
        Ok(Some(file)) => owned(&file),
        // It is gone, has another type by now, or is covered by a mount.
        Ok(None) | Err(_) => Ok(0),
    }
}

/// Bytes of a file that no other file shares.
pub(crate) fn owned(file: &File) -> Result<u64> {
    sys::unshared(file.as_fd()).map_err(|error| Error::io("read where a file's data is", error))
}

/// State of a file, or of all files of a tree: a change of any of them gives another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    sum: u64,
    /// Nanoseconds since 1970 of the latest change.
    pub(crate) latest: i128,
}

impl State {
    /// The state of a file.
    pub(crate) fn of_file(file: &File) -> Result<Self> {
        let mut state = Self::default();
        state.add(&fstat(file).map_err(|error| Error::io("inspect a volume", error))?);
        Ok(state)
    }

    /// The state of everything below `folder`.
    pub(crate) fn of_tree(folder: &Dir) -> Result<Self> {
        let mut state = Self::default();
        walk(folder, &mut Budget::default(), |_, _, stat| {
            state.add(stat);
            Ok(())
        })?;
        Ok(state)
    }

    /// Takes one file in; the order is no matter.
    fn add(&mut self, stat: &Stat) {
        let nanoseconds = |seconds: i64, rest: u64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        let modified = nanoseconds(stat.st_mtime, stat.st_mtime_nsec);
        let changed = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
        let mut hasher = DefaultHasher::new();
        (stat.st_ino, stat.st_size, modified, changed).hash(&mut hasher);
        self.sum = self.sum.wrapping_add(hasher.finish());
        self.latest = self.latest.max(modified).max(changed);
    }
}

/// Opens a folder with a pod's content. `None` when it is gone or a mount point.
fn same_mount(folder: &Dir, name: &OsStr) -> Result<Option<Dir>> {
    match folder.dir(name) {
        Err(error) if error.errno() == Some(Errno::XDEV) => Ok(None),
        other => Ok(other?),
    }
}

/// Looks at `folder` and everything below it, as far as the budget goes.
fn walk(
    folder: &Dir,
    budget: &mut Budget,
    mut look: impl FnMut(&Dir, Option<&OsStr>, &Stat) -> Result<()>,
) -> Result<()> {
    look(folder, None, &folder.stat_self()?)?;
    let mut open: Vec<(List, Option<Dir>)> = vec![(list(folder)?, None)];
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
            Err(error) => return Err(failed("inspect", here, &name, error)),
        };
        look(here, Some(&name), &stat)?;
        if kind == FileType::Directory
            && open.len() < DEPTH_MAX
            && let Some(folder) =
                same_mount(open.last().and_then(|(_, below)| below.as_ref()).unwrap_or(folder), &name)?
        {
            open.push((list(&folder)?, Some(folder)));
        }
    }
    Ok(())
}

/// Removes `name` and all below it. Subdirectories are moved next to it first, so that the depth is unlimited: `fresh` gives
/// their names, and the caller removes them when it reaches them.
pub(crate) fn remove(trash: &Dir, name: &OsStr, fresh: fn() -> String) -> Result<()> {
    let Some(stat) = trash.stat(name)? else { return Ok(()) };
    if !is_dir(&stat) {
        return unlink(trash, name);
    }
    // An empty folder needs no look into it.
    if unlinkat(trash, name, AtFlags::REMOVEDIR).is_ok() {
        return Ok(());
    }
    let Some(folder) = trash.dir(name)? else { return Ok(()) };
    loop {
        let mut dir = list(&folder)?;
        let mut seen = false;
        while let Some((below, kind)) = next(&mut dir, &folder)? {
            seen = true;
            if kind != FileType::Directory {
                unlink(&folder, &below)?;
            } else if unlinkat(&folder, &below, AtFlags::REMOVEDIR).is_err() {
                mutable(&folder, &below);
                folder.rename(&below, trash, fresh())?;
            }
        }
        // Removing while listing may hide entries: once more until the folder is empty.
        if !seen {
            break;
        }
    }
    if unlinkat(trash, name, AtFlags::REMOVEDIR).is_err() {
        mutable(trash, name);
        trash.remove_dir(name)?;
    }
    Ok(())
}

/// Removes a file, even an immutable one.
fn unlink(folder: &Dir, name: &OsStr) -> Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => {
            mutable(folder, name);
            folder.unlink(name)?;
            Ok(())
        }
        Err(error) => Err(failed("remove", folder, name, error)),
    }
}

/// Takes the immutable and append-only flags off a file or folder and off the folder that holds it; failures show later.
fn mutable(folder: &Dir, name: &OsStr) {
    for fd in [
        folder.open_with(".", OFlags::RDONLY, 0),
        folder.open_with(name, OFlags::RDONLY | OFlags::NONBLOCK, 0),
    ] {
        if let Ok(Some(fd)) = fd
            && let Ok(flags) = rustix::fs::ioctl_getflags(&fd)
            && flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND)
        {
            let _ = ioctl_setflags(&fd, flags - (IFlags::IMMUTABLE | IFlags::APPEND));
        }
    }
}

/// A file that is not there yet.
pub(crate) fn new_file(folder: &Dir, name: impl AsRef<Path>) -> Result<File> {
    let name = name.as_ref();
    folder
        .open_with(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, 0o600)?
        .ok_or_else(|| Error::new(Kind::Internal, format!("{} vanished", folder.path_of(name).display())))
}

/// Lets a group read and write everything in a folder. The folder itself comes last: a folder that is the group's is done,
/// which is all that most calls look at.
pub(crate) fn give_to_group(folder: &Dir, group: u32) -> Result<()> {
    const WANTED: u32 = 0o2070;
    let top = folder.stat_self()?;
    if top.st_gid == group && top.st_mode & WANTED == WANTED {
        return Ok(());
    }
    let mut open: Vec<(List, Option<Dir>)> = vec![(list(folder)?, None)];
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
            if let Some(folder) = same_mount(here, &name)? {
                open.push((list(&folder)?, Some(folder)));
            }
        } else if kind == FileType::RegularFile {
            match here.open_with(&name, OFlags::RDONLY | OFlags::NONBLOCK, 0) {
                Ok(Some(file)) => hand_over(file.as_fd(), group, 0o060)?,
                Ok(None) => {}
                // Mounted over.
                Err(error) if error.errno() == Some(Errno::XDEV) => {}
                Err(error) => return Err(error.into()),
            }
        } else {
            match chownat(here, &name, None, Some(Gid::from_raw(group)), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("change the group of", here, &name, error)),
            }
        }
    }
    hand_over(folder.as_fd(), group, WANTED)
}

fn hand_over(file: BorrowedFd<'_>, group: u32, bits: u32) -> Result<()> {
    let io = |error: Errno| Error::io("change the group of a volume's file", error);
    let mode = fstat(file).map_err(io)?.st_mode & 0o7777;
    fchown(file, None, Some(Gid::from_raw(group))).map_err(io)?;
    fchmod(file, Mode::from_raw_mode(mode | bits)).map_err(io)
}
