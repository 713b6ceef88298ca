//! Why the proxy or one of its commands cannot do what it should: a small kind, a sentence, the source below it.

use std::error::Error as StdError;
use std::fmt;
use std::process::ExitCode;

/// What a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What was asked makes no sense.
    Usage,
    /// The cluster does not answer, or not what it should.
    Cluster,
    /// Who is to be talked to is not there, or is somebody else.
    Unreachable,
    /// The other side says no.
    Refused,
    /// The process itself: files, threads, sockets.
    Process,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Error {
    kind: Kind,
    what: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What this module's neighbours give.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into(), source: None }
    }

    pub(crate) fn with(
        kind: Kind,
        what: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, what: what.into(), source: Some(source.into()) }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The sentence and those of its sources.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(error) = next {
            text.push_str(": ");
            text.push_str(&error.to_string());
            next = error.source();
        }
        text
    }

    /// The command line's exit code; the numbers are the importer's.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self.kind {
            Kind::Process => 1,
            Kind::Usage => 2,
            Kind::Cluster | Kind::Unreachable => 3,
            Kind::Refused => 4,
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
