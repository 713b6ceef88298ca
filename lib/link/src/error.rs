//! This library's one error: a small kind, a sentence, the source below it.

use std::error::Error as StdError;
use std::fmt;

/// Kind of failure, as far as a caller acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel refused a request; its words are in the source.
    Kernel,
    /// The kernel lacks what was asked of it.
    Unsupported,
    /// A path is of no network namespace that can be entered.
    Namespace,
    /// The kernel's state differs from the request.
    Mismatch,
    /// The same call may succeed later.
    TryLater,
    /// A text means nothing, or nothing that can be.
    Invalid,
    /// A bug here.
    Internal,
}

/// An error.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a sentence: the fault, its place and an action.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same with the error below it.
    pub fn with(
        kind: Kind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// The kind of failure, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Kind, sentence and source, for crates with an error type of their own.
    pub fn into_parts(self) -> (Kind, String, Option<Box<dyn StdError + Send + Sync>>) {
        (self.kind, self.message, self.source)
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
