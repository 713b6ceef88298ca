//! The program's one error. What it means as an exit code is in [`crate::entry`].

/// Kinds of error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The command line or the environment cannot be used.
    Usage,
    /// The API server cannot be reached or used.
    Cluster,
    /// The system refused something: a port, a thread.
    System,
}

/// An error of the operator.
pub type Error = ::error::Error<Kind>;

/// Results of the operator.
pub type Result<T> = std::result::Result<T, Error>;
