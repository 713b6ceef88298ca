//! Network namespaces as files: opened, compared, entered.
//!
//! Entering moves this thread alone, and the program has only one; a netlink socket keeps the namespace it was opened
//! in, so most work is done from outside.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Error, Kind};
use crate::protocol::Call;

/// Magic number of nsfs, `linux/magic.h`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// An open network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    path: PathBuf,
    file: File,
    /// Device and inode, equal for two files of one namespace.
    identity: (u64, u64),
}

impl Namespace {
    /// Opens the namespace at `path`; none when nothing is there, or nothing that is a namespace any more: a path that
    /// was a mount point stays behind as an empty file.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when something is there that cannot be opened.
    pub(crate) fn find(path: &Path) -> Result<Option<Self>, Error> {
        let failed = |errno: Errno| {
            let message = format!("the network namespace {} cannot be opened", path.display());
            Error::with(Kind::Namespace, message, errno)
        };
        // Non-blocking: the path may be of a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            // What /proc says of a process that has ended.
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        if rustix::fs::fstatfs(&file).map_err(failed)?.f_type != NSFS_MAGIC {
            return Ok(None);
        }
        let facts = rustix::fs::fstat(&file).map_err(failed)?;
        Ok(Some(Self { path: path.to_owned(), file, identity: (facts.st_dev, facts.st_ino) }))
    }

    /// The same for a call that cannot do without.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when there is none.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::find(path)?.ok_or_else(|| {
            Error::new(Kind::Namespace, format!("{} is not a network namespace", path.display()))
        })
    }

    /// The namespace this process is in, and the pod's, for a call that makes or checks something in it.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when CNI_NETNS is no namespace, or is ours and CNI_NETNS_OVERRIDE does not allow it.
    pub(crate) fn of_call(call: &Call) -> Result<(Self, Self), Error> {
        let home = Self::ours()?;
        let pod = Self::open(call.namespace.as_deref().unwrap_or_else(|| "".as_ref()))?;
        if pod.is(&home) && !call.namespace_may_be_ours {
            let message = format!("{} is the namespace the plugin runs in", pod.path().display());
            return Err(Error::new(Kind::Namespace, message));
        }
        Ok((home, pod))
    }

    /// The same for a DEL: none when there is nothing to do, because the pod's is gone, or is ours by now: a process's
    /// number was given to another one.
    ///
    /// # Errors
    /// As [`Namespace::find`].
    pub(crate) fn of_deletion(call: &Call) -> Result<Option<(Self, Self)>, Error> {
        let Some(path) = &call.namespace else { return Ok(None) };
        let Some(pod) = Self::find(path)? else { return Ok(None) };
        let home = Self::ours()?;
        Ok((call.namespace_may_be_ours || !pod.is(&home)).then_some((home, pod)))
    }

    /// The namespace this process is in.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when /proc does not tell.
    pub(crate) fn ours() -> Result<Self, Error> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Whether both are the same namespace.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// A number that no other namespace of this kernel has at the same time.
    pub(crate) fn number(&self) -> u64 {
        self.identity.1
    }

    /// Where it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor, for messages that name a namespace so.
    pub(crate) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Does `work` inside, and comes back to `home`.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when the kernel does not let us in or back, or what `work` says.
    pub(crate) fn inside<T>(&self, home: &Self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.enter()?;
        let result = work();
        home.enter()?;
        result
    }

    fn enter(&self) -> Result<(), Error> {
        move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|errno| {
            let message = format!("the network namespace {} cannot be entered", self.path.display());
            Error::with(Kind::Namespace, message, errno)
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
