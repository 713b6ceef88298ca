//! Network namespaces as files: opened, compared, entered, made and removed.
//!
//! Entering moves this thread alone. A program of one thread goes in and comes back ([`Namespace::inside`]); one of many has
//! a thread go in that ends there ([`Namespace::on_a_thread`]). A netlink socket keeps the namespace it was opened in.

mod sys;

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Error, Kind};

/// Magic number of nsfs, `linux/magic.h`.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// An open network namespace.
#[derive(Debug)]
pub struct Namespace {
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
    pub fn find(path: &Path) -> Result<Option<Self>, Error> {
        let failed = |errno: Errno| {
            let message = format!("the network namespace {} cannot be opened", path.display());
            Error::with(Kind::Namespace, message, errno)
        };
        // Non-blocking: the path may be of a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            // Link target in /proc of a process that has ended.
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
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::find(path)?.ok_or_else(|| {
            Error::new(Kind::Namespace, format!("{} is not a network namespace", path.display()))
        })
    }

    /// The namespace this process is in.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when /proc has no such entry.
    pub fn ours() -> Result<Self, Error> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Moves this thread into a new namespace, which ends with its last member.
    ///
    /// # Errors
    /// [`Kind::Namespace`].
    pub fn leave() -> Result<(), Error> {
        sys::leave().map_err(|errno| {
            Error::with(Kind::Namespace, "cannot make a network namespace; run as root", errno)
        })
    }

    /// A namespace that stays, mounted at `path`, whose folder must exist; returns whether it was made now. After a reboot
    /// the file of a former namespace is empty, and becomes a namespace again.
    ///
    /// # Errors
    /// [`Kind::Namespace`].
    pub fn create(path: &Path) -> Result<(Self, bool), Error> {
        if let Some(found) = Self::find(path)? {
            return Ok((found, false));
        }
        let failed = |error: std::io::Error| {
            let message = format!("the network namespace {} cannot be made", path.display());
            Error::with(Kind::Namespace, message, error)
        };
        match File::create_new(path) {
            Ok(file) => file.set_permissions(Permissions::from_mode(0o444)).map_err(failed)?,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        let made = std::thread::scope(|scope| {
            let make = || {
                Self::leave()?;
                mount_bind("/proc/thread-self/ns/net", path).map_err(|errno| failed(errno.into()))
            };
            scope.spawn(make).join()
        });
        made.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the thread that makes namespaces ended")))?;
        Ok((Self::open(path)?, true))
    }

    /// Removes the mount made by [`Namespace::create`]; members of the namespace may stay.
    ///
    /// # Errors
    /// [`Kind::Namespace`].
    pub fn remove(path: &Path) -> Result<(), Error> {
        let failed = |error: std::io::Error| {
            let message = format!("the network namespace {} cannot be removed", path.display());
            Error::with(Kind::Namespace, message, error)
        };
        // Several may lie upon each other; of each its own.
        while Self::find(path)?.is_some() {
            unmount(path, UnmountFlags::DETACH).map_err(|errno| failed(errno.into()))?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Whether both are the same namespace.
    pub fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// A number that no other namespace of this kernel has at the same time.
    pub fn number(&self) -> u64 {
        self.identity.1
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor, for messages that name a namespace so.
    pub fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Does `work` inside, and comes back to `home`.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when the kernel does not let us in or back, or the error of `work`.
    pub fn inside<T, E: From<Error>>(
        &self,
        home: &Self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.enter()?;
        let result = work();
        home.enter()?;
        result
    }

    /// Does `work` inside, on a thread of its own: whatever goes wrong, no other one is in the wrong namespace.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when the kernel does not let us in, or the error of `work`.
    pub fn on_a_thread<T: Send, E: From<Error> + Send>(
        &self,
        work: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, E> {
        let done = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.enter()?;
                    work()
                })
                .join()
        });
        done.unwrap_or_else(|_| {
            Err(Error::new(Kind::Internal, "the thread in the namespace ended before its work").into())
        })
    }

    /// Moves this thread into it.
    ///
    /// # Errors
    /// [`Kind::Namespace`] when the kernel does not let us in.
    pub fn enter(&self) -> Result<(), Error> {
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
