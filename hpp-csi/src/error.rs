//! The driver's error. [`crate::status`] is the only place that turns it into a gRPC status.

use std::io;

use crate::amount::display;

/// Kinds of error that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is invalid.
    Invalid,
    /// No such volume, snapshot or path.
    NotFound,
    /// Another object has the requested name.
    Exists,
    /// There is no room for it here; another node may have some.
    Exhausted,
    /// The object is in use, or not in the state that the call needs.
    Precondition,
    /// Another call works on the same object.
    Busy,
    /// A size that cannot be.
    OutOfRange,
    /// Not offered.
    Unsupported,
    /// The pool's filesystem is not there, or is read-only.
    NotReady,
    /// The process or the system lacks descriptors or memory for now; the same call may succeed later.
    Overloaded,
    /// A system call failed that should succeed.
    Internal,
}

::error::declare! {
    /// An error of the driver.
    pub struct Error(Kind);
}

/// Results of the driver.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A system call that failed; `doing` is the action, and the kind follows from the error.
    pub fn io(doing: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        Self::with(kind_of(&error), format!("cannot {}", doing.into()), error)
    }

    /// The same error with the name of its pool.
    #[must_use]
    pub fn about(self, pool: &str) -> Self {
        let (kind, message, source) = self.into_parts();
        Self::from_parts(kind, format!("pool {pool}: {message}"), source)
    }

    /// The same error with the pool's numbers, when it is that there was no room for `asked` bytes.
    #[must_use]
    pub(crate) fn with_room(self, pool: &str, asked: u64, free: u64) -> Self {
        if self.kind() != Kind::Exhausted {
            return self;
        }
        self.context(format!("pool {pool}: {} are asked for, {} are free", display(asked), display(free)))
    }

    /// The same error with another kind.
    #[must_use]
    pub fn as_kind(self, kind: Kind) -> Self {
        let (_, message, source) = self.into_parts();
        Self::from_parts(kind, message, source)
    }
}

impl From<dir::Error> for Error {
    fn from(error: dir::Error) -> Self {
        // Calls that may find nothing return `None`: an error concerns a directory that must exist.
        let missing = error.kind() == io::ErrorKind::NotFound;
        let (doing, source) = error.into_parts();
        let error = Self::io(doing, source);
        if missing { error.as_kind(Kind::NotReady) } else { error }
    }
}

/// The kind that a system error maps to.
fn kind_of(error: &io::Error) -> Kind {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Kind::Exhausted,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => Kind::Overloaded,
        // EUCLEAN and ESHUTDOWN-like answers: a filesystem that has given up.
        Some(libc::EROFS | libc::EIO | libc::EUCLEAN | libc::ESTALE | libc::ENODEV | libc::ENXIO) => {
            Kind::NotReady
        }
        Some(libc::ELOOP | libc::EXDEV) => Kind::Precondition,
        _ => Kind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_no_full_pool() {
        for (errno, expected) in [
            (libc::ENOSPC, Kind::Exhausted),
            (libc::EDQUOT, Kind::Exhausted),
            (libc::EMFILE, Kind::Overloaded),
            (libc::ENFILE, Kind::Overloaded),
            (libc::ENOMEM, Kind::Overloaded),
            (libc::EIO, Kind::NotReady),
            (libc::EXDEV, Kind::Precondition),
            (libc::EPERM, Kind::Internal),
        ] {
            assert_eq!(Error::io("x", io::Error::from_raw_os_error(errno)).kind(), expected, "{errno}");
        }
        // The scheduler must not take the volume to another node for it.
        let error = Error::io("open a file", io::Error::from_raw_os_error(libc::EMFILE));
        let status = tonic::Status::from(error.with_room("fast", 1, 1));
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(!status.message().contains("are asked for"), "{status:?}");
    }
}
