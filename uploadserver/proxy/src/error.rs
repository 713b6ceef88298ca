//! Why the proxy or one of its commands fails, and its exit codes. The one place where errors become exit codes.

use std::process::ExitCode;

/// Kinds of errors, for exit codes and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Arguments, environment or files are malformed or missing.
    Usage,
    /// The cluster does not answer, or its answer is not usable.
    Cluster,
    /// An upload server or proxy does not answer, or is not the one that was asked for.
    Unreachable,
    /// The other side refuses.
    Refused,
    /// The process itself: files, threads, sockets.
    Process,
}

error::declare! {
    /// Why the proxy or one of its commands fails.
    pub(crate) struct Error(Kind);
}

/// Shorthand for this crate's results.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl From<serve::peer::Error> for Error {
    fn from(error: serve::peer::Error) -> Self {
        let (kind, message, source) = error.into_parts();
        let kind = match kind {
            serve::peer::Kind::Usage => Kind::Usage,
            serve::peer::Kind::Unreachable => Kind::Unreachable,
        };
        Self::from_parts(kind, message, source)
    }
}

impl Error {
    /// The exit code; the numbers are the importer's.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind() {
            Kind::Process => 1,
            Kind::Usage => 2,
            Kind::Cluster | Kind::Unreachable => 3,
            Kind::Refused => 4,
        })
    }
}
