//! Why a program between clients and upload servers fails, and its exit codes. The one place where its errors become exit
//! codes.
//!
//! Not here: what such a program does.

use std::process::ExitCode;

use crate::peer;

/// Kind of failure, for exit codes and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    /// Why the program fails.
    pub struct Error(Kind);
}

/// Results of such a program.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<peer::Error> for Error {
    fn from(error: peer::Error) -> Self {
        let (kind, message, source) = error.into_parts();
        let kind = match kind {
            peer::Kind::Usage => Kind::Usage,
            peer::Kind::Unreachable => Kind::Unreachable,
        };
        Self::from_parts(kind, message, source)
    }
}

impl Error {
    /// The exit code; the numbers are the importer's.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind() {
            Kind::Process => 1,
            Kind::Usage => 2,
            Kind::Cluster | Kind::Unreachable => 3,
            Kind::Refused => 4,
        })
    }
}
