//! The plugins' one error: a small kind, a sentence, the source below it. `protocol::answer` is the only place that
//! turns it into CNI's error document.

use std::error::Error as StdError;
use std::fmt;

/// Kinds of error that callers handle differently. [`Kind::code`] is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The configuration's version is not one of ours, or too old for the verb.
    Version,
    /// A key asks for what the configuration's version, or this node, cannot give.
    Unsupported,
    /// A container or interface that should be there is not.
    UnknownContainer,
    /// The CNI_ variables are missing or invalid.
    Environment,
    /// Standard input, a file or a folder cannot be read or written.
    Io,
    /// The configuration is not JSON.
    Decode,
    /// The configuration is JSON and invalid.
    Config,
    /// CNI_NETNS is not a network namespace we may work in.
    Namespace,
    /// The same call may succeed later.
    TryLater,
    /// STATUS: no ADD can succeed now.
    Unavailable,
    /// STATUS: no ADD can succeed now, and what is attached suffers too.
    Impaired,
    /// The kernel refused a request; its words are in the source.
    Kernel,
    /// The kernel's state differs from the request: a link of another kind has the bridge's name, an attachment has changed.
    Mismatch,
    /// A delegated plugin failed; its own code.
    Delegate(u32),
    /// A bug here, or a system out of order.
    Internal,
}

impl Kind {
    /// The code of the error document: CNI specification 1.1.0, section "Error"; 100 and above are ours.
    pub fn code(self) -> u32 {
        match self {
            Self::Version => 1,
            Self::Unsupported => 2,
            Self::UnknownContainer => 3,
            Self::Environment => 4,
            Self::Io => 5,
            Self::Decode => 6,
            Self::Config => 7,
            Self::Namespace => 8,
            Self::TryLater => 11,
            Self::Unavailable => 50,
            Self::Impaired => 51,
            Self::Kernel => 100,
            Self::Mismatch => 101,
            Self::Delegate(code) => code,
            Self::Internal => 999,
        }
    }
}

/// An error of a plugin.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a sentence that names the operation, the place and the remedy.
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

    /// Shorthand for [`Kind::Config`].
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Kind::Config, message)
    }

    /// Shorthand for [`Kind::Mismatch`].
    pub fn mismatch(message: impl Into<String>) -> Self {
        Self::new(Kind::Mismatch, message)
    }

    /// Shorthand for [`Kind::Io`] with a source.
    pub fn io(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::with(Kind::Io, message, source)
    }

    /// The kind of error, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The errors below this one, outermost first, in one line; empty when there are none.
    pub fn details(&self) -> String {
        let mut next = self.source();
        let mut details = String::new();
        while let Some(error) = next {
            if !details.is_empty() {
                details.push_str(": ");
            }
            details.push_str(&error.to_string());
            next = error.source();
        }
        details
    }

    /// Several failures as one: the first one's kind, all their words.
    pub fn all(errors: Vec<Error>) -> Result<(), Error> {
        let mut errors = errors.into_iter();
        let Some(first) = errors.next() else { return Ok(()) };
        let rest: Vec<String> = errors
            .map(|error| match error.details() {
                details if details.is_empty() => error.message,
                details => format!("{}: {details}", error.message),
            })
            .collect();
        if rest.is_empty() {
            return Err(first);
        }
        let mut details = first.details();
        for more in rest {
            if !details.is_empty() {
                details.push_str("; ");
            }
            details.push_str(&more);
        }
        Err(Self::with(first.kind, first.message, details))
    }
}

impl From<link::Error> for Error {
    fn from(error: link::Error) -> Self {
        let (kind, message, source) = error.into_parts();
        let kind = match kind {
            link::Kind::Kernel => Kind::Kernel,
            link::Kind::Unsupported => Kind::Unsupported,
            link::Kind::Namespace => Kind::Namespace,
            link::Kind::Mismatch => Kind::Mismatch,
            link::Kind::TryLater => Kind::TryLater,
            link::Kind::Invalid => Kind::Config,
            link::Kind::Internal => Kind::Internal,
        };
        Self { kind, message, source }
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
