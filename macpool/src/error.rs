//! The program's error and its kinds. The text for the sender of an admitted object is in [`crate::review`].

use api::net::RangeError;
use api::net::pool::Exhausted;

/// The kind of failure, as far as a caller acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An argument, a document or an object is malformed.
    Invalid,
    /// The object exists, or another writer changed it first.
    Taken,
    /// No address is free.
    Exhausted,
    /// The API server does not allow it to this process.
    Forbidden,
    /// The API server or another replica did not answer, or refused.
    Unreachable,
    /// A failure of the system: files, threads, sockets.
    Internal,
}

error::declare! {
    /// An error of the program.
    pub struct Error(Kind);
}

/// Results of the program.
pub type Result<T> = std::result::Result<T, Error>;

impl From<cluster::Error> for Error {
    fn from(error: cluster::Error) -> Self {
        let kind = if error.is_conflict() || error.is_already_exists() {
            Kind::Taken
        } else if error.kind() == cluster::Kind::Forbidden {
            Kind::Forbidden
        } else {
            Kind::Unreachable
        };
        Self::with(kind, "a call of the API server failed", error)
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Self {
        Self::new(Kind::Invalid, error.to_string())
    }
}

impl From<Exhausted> for Error {
    fn from(error: Exhausted) -> Self {
        Self::new(Kind::Exhausted, error.to_string())
    }
}
