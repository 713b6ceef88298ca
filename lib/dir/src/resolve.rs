//! Opens a name beneath a directory. The kernel resolves it (openat2(2), Linux 5.6); where that call is missing or filtered,
//! the name is resolved component by component and no symbolic link is followed at all.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::{Errno, Result};

/// Attempts while directories are renamed under the resolution, which openat2 reports as EAGAIN.
const TRIES: u32 = 100;
/// An intermediate directory.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Which names a [`crate::Dir`] resolves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Follow symbolic links with a target beneath the directory.
    pub(crate) links: bool,
    /// Stay on the directory's mount.
    pub(crate) one_mount: bool,
}

/// Opens `name` beneath `dir`. No symbolic link is followed and no name leads out; mount points are crossed.
///
/// # Errors
/// ELOOP for a symbolic link, EXDEV for a name that leads out, and those of openat2(2).
pub fn open_beneath(dir: BorrowedFd<'_>, name: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    open(dir, name, flags, mode, Rules::default())
}

pub(crate) fn open(
    dir: BorrowedFd<'_>,
    name: &Path,
    flags: OFlags,
    mode: Mode,
    rules: Rules,
) -> Result<OwnedFd> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut flags = flags | OFlags::CLOEXEC;
    if !rules.links {
        resolve |= ResolveFlags::NO_SYMLINKS;
        flags |= OFlags::NOFOLLOW;
    }
    if rules.one_mount {
        resolve |= ResolveFlags::NO_XDEV;
    }
    for _ in 0..TRIES {
        match openat2(dir, name, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // An old kernel, or a system call filter that does not know the call. A real EPERM comes back from openat.
            Err(Errno::NOSYS | Errno::PERM) => return step_by_step(dir, name, flags, mode, rules),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// The same by openat(2) alone.
fn step_by_step(
    dir: BorrowedFd<'_>,
    name: &Path,
    flags: OFlags,
    mode: Mode,
    rules: Rules,
) -> Result<OwnedFd> {
    let mut parts = Vec::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    if name.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    let device = |fd: BorrowedFd<'_>| fstat(fd).map(|stat| stat.st_dev);
    let top = device(dir)?;
    let stays = |fd: OwnedFd| {
        if rules.one_mount && device(fd.as_fd())? != top { Err(Errno::XDEV) } else { Ok(fd) }
    };
    let flags = flags | OFlags::NOFOLLOW;
    let Some((last, above)) = parts.split_last() else {
        return openat(dir, ".", flags, mode);
    };
    let mut parent = openat(dir, ".", STEP, Mode::empty())?;
    for part in above {
        parent = stays(openat(&parent, *part, STEP, Mode::empty())?)?;
    }
    stays(openat(&parent, *last, flags, mode)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Open = fn(BorrowedFd<'_>, &Path, OFlags, Mode, Rules) -> Result<OwnedFd>;

    #[test]
    fn names_never_lead_out_with_and_without_openat2() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink("a", at("inside")).unwrap();
        std::os::unix::fs::symlink("/", at("outside")).unwrap();
        std::os::unix::fs::symlink("a/b/file", at("link")).unwrap();
        let top = std::fs::File::open(place.path()).unwrap();
        for (what, open) in [("openat2", open as Open), ("openat", step_by_step as Open)] {
            let tried = |name: &str| {
                open(top.as_fd(), Path::new(name), OFlags::RDONLY, Mode::empty(), Rules::default()).map(drop)
            };
            for good in ["a", "a/b", "a/b/file", "a/./b", "."] {
                assert_eq!(tried(good), Ok(()), "{what} {good}");
            }
            for bad in ["inside/b", "outside/etc", "link", "inside", "outside"] {
                let error = tried(bad).unwrap_err();
                assert!([Errno::LOOP, Errno::NOTDIR].contains(&error), "{what} {bad}: {error}");
            }
            for bad in ["..", "a/../..", "/etc"] {
                assert_eq!(tried(bad), Err(Errno::XDEV), "{what} {bad}");
            }
            assert_eq!(tried(""), Err(Errno::NOENT), "{what}");
        }
    }

    #[test]
    fn links_that_stay_are_followed_on_request_only() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", place.path().join("inside")).unwrap();
        std::os::unix::fs::symlink("/", place.path().join("outside")).unwrap();
        let top = std::fs::File::open(place.path()).unwrap();
        let links = Rules { links: true, ..Rules::default() };
        let tried =
            |name: &str| open(top.as_fd(), Path::new(name), OFlags::RDONLY, Mode::empty(), links).map(drop);
        assert_eq!(tried("inside/b"), Ok(()));
        assert_eq!(tried("outside/etc"), Err(Errno::XDEV));
    }
}
