//! Failures of a connection to an NBD server, by whether another try may succeed.

use std::io;

use super::wire::Nonsense;
use crate::error::{Error, Kind};

/// Kind of a failure, as far as the decision to retry depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The connection was not made, or is gone.
    Lost,
    /// The server breaks the protocol.
    Nonsense,
    /// The server does not want us, or not this export.
    Refused,
    /// The export is another one now.
    Changed,
    /// The server reports this error for a request.
    Reported(u32),
    /// Nothing came for too long.
    Stalled,
}

/// A failure in words.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) trouble: FailureKind,
    pub(super) error: Error,
}

impl Failure {
    pub(super) fn new(trouble: FailureKind, what: impl Into<String>) -> Self {
        Self { trouble, error: Error::new(Kind::Connect, what) }
    }

    pub(super) fn with(trouble: FailureKind, what: impl Into<String>, error: io::Error) -> Self {
        Self { trouble, error: Error::connect(what, error) }
    }
}

impl From<Nonsense> for Failure {
    fn from(Nonsense(what): Nonsense) -> Self {
        Self::new(
            FailureKind::Nonsense,
            format!(
                "the server breaks the NBD protocol (serve the image with another program, such as qemu-nbd): {what}"
            ),
        )
    }
}
