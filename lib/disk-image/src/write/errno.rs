//! Errors of the kernel on the target, with the words that other programs match on.

use std::io;

use rustix::io::Errno;

use crate::error::Error;

/// The message of an error: the operation, with the words other programs match on.
pub(super) fn explain(errno: Errno, doing: &str) -> String {
    match errno {
        Errno::NOSPC => format!("no space left on device while {doing}"),
        Errno::DQUOT => format!("disk quota exceeded while {doing}"),
        Errno::FBIG => format!("file too large for the filesystem or a limit while {doing}"),
        _ => doing.to_owned(),
    }
}

/// An [`Error`] of the target.
pub(super) fn target_error(errno: Errno, what: impl Into<String>) -> Error {
    Error::target(what, io::Error::from(errno))
}
