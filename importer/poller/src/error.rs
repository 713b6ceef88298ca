//! Errors of a poll, and the one place where they become exit codes.

use std::process::ExitCode;

/// Kind of failure, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Arguments, environment or kubeconfig are malformed.
    Usage,
    /// The importer failed. It has logged the reason and written it to the termination log.
    Importer,
    /// The image has no digest that can be used.
    Image,
    /// The API server does not answer, or refuses.
    Cluster,
    /// The process itself: programs, threads.
    Process,
}

error::declare! {
    /// The reason why a poll fails.
    pub(crate) struct Error(Kind);
}

/// Results of a poll.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The exit code; the numbers are the importer's.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind() {
            Kind::Importer | Kind::Image | Kind::Process => 1,
            Kind::Usage => 2,
            Kind::Cluster => 3,
        })
    }
}
