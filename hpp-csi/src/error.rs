//! The driver's one error: a small kind, a sentence, the source below it. [`crate::status`] is the only place that turns
//! it into a gRPC status.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::plan::shown;

/// Kinds of error that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is invalid.
    Invalid,
    /// No such volume, snapshot or path.
    NotFound,
    /// The name is taken by something else than what is asked for.
    Exists,
    /// There is no room for it here; another node may have some.
    Exhausted,
    /// The thing is in use, or not in the state the call needs.
    Precondition,
    /// Another call works on the same thing.
    Busy,
    /// A size that cannot be.
    OutOfRange,
    /// Not offered.
    Unsupported,
    /// The pool's filesystem is not there, or is read-only.
    NotReady,
    /// The process or the system lacks descriptors or memory for now; the same call may succeed later.
    Overloaded,
    /// The system refused something it should not refuse.
    Internal,
}

/// An error of the driver.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Results of the driver.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` with a sentence that names the operation, the place and the remedy.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// A call of the system that failed while `doing` something; the kind follows from the error.
    pub fn io(doing: impl Into<String>, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        let kind = kind_of(&error);
        Self { kind, message: format!("cannot {}", doing.into()), source: Some(Box::new(error)) }
    }

    /// The same error with the pool named that it is about.
    #[must_use]
    pub fn about(mut self, pool: &str) -> Self {
        self.message = format!("pool {pool}: {}", self.message);
        self
    }

    /// The same error with the pool's numbers, when it is that there was no room for `asked` bytes.
    #[must_use]
    pub(crate) fn with_room(self, pool: &str, asked: u64, free: u64) -> Self {
        if self.kind != Kind::Exhausted {
            return self;
        }
        let message = format!("pool {pool}: {} are asked for, {} are free", shown(asked), shown(free));
        Self { kind: self.kind, message, source: Some(Box::new(self)) }
    }

    /// The same error with another kind.
    #[must_use]
    pub fn as_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// The kind of error, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The sentence and those below it, as one text.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut below = self.source();
        while let Some(error) = below {
            text.push_str(": ");
            text.push_str(&error.to_string());
            below = error.source();
        }
        text
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
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
