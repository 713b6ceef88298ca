//! This library's one error: a small kind, a sentence, the source below it.

use std::error::Error as StdError;
use std::fmt;

/// What went wrong, as far as a caller acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel refused a request; its words are in the source.
    Kernel,
    /// The kernel lacks what was asked of it.
    Unsupported,
    /// A path is of no network namespace that can be entered.
    Namespace,
    /// What the kernel has is not what was asked for.
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
    /// An error of `kind` with a sentence that says what, where and what to do.
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

    /// What went wrong, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Kind, sentence and source, for who has an error type of its own.
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
