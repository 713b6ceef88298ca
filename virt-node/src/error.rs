//! The programs' one error: a small kind, a sentence, the source below it.

use std::error::Error as StdError;
use std::fmt;

/// Kinds of error that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The arguments are invalid.
    Usage,
    /// The content is refused.
    Content,
    /// The system refused something.
    System,
}

/// An error.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a sentence that names the operation, the place and the remedy.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same with what is below it.
    pub(crate) fn with(
        kind: Kind,
        message: impl Into<String>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(Box::new(source)) }
    }

    /// This one, and another one that came of undoing what it left.
    pub(crate) fn and(self, other: Option<Self>) -> Self {
        match other {
            None => self,
            Some(other) => Self::new(self.kind, format!("{}; and {}", self.chain(), other.chain())),
        }
    }

    /// The kind of error, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The sentence and those below it, as one text.
    ///
    /// Control characters and line breaks, which guests and servers may have put there, are escaped.
    pub fn chain(&self) -> String {
        ::error::chain(self)
    }
}

impl From<link::Error> for Error {
    fn from(error: link::Error) -> Self {
        let (_, message, source) = error.into_parts();
        Self { kind: Kind::System, message, source }
    }
}

impl From<guest::Error> for Error {
    fn from(error: guest::Error) -> Self {
        let (kind, message, source) = error.into_parts();
        let kind = match kind {
            guest::Kind::Content => Kind::Content,
            guest::Kind::System => Kind::System,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_in_an_error_cannot_forge_log_lines() {
        let below = std::io::Error::other("no\nvirt-node: all is well\x1b[2J");
        let text = Error::with(Kind::System, "the importer ended", below).chain();
        assert_eq!(text, "the importer ended: no\\nvirt-node: all is well\\u{1b}[2J");
    }
}
