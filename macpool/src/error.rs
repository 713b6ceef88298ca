//! The program's one error: a small kind, a sentence, the source below it. What an admitted object's sender is told of it
//! is in [`crate::review`].

use std::error::Error as StdError;
use std::fmt;

use api::net::RangeError;
use api::net::pool::Exhausted;

/// What went wrong, as far as a caller acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked for makes no sense.
    Invalid,
    /// Somebody else has it.
    Taken,
    /// Nothing is free.
    Exhausted,
    /// The API server or another replica did not answer, or refused.
    Unreachable,
    /// The system refused something it should not refuse.
    Internal,
}

/// An error of the program.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Results of the program.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` with a sentence that says what, where and what to do.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same with what is below it.
    pub fn caused(
        kind: Kind,
        message: impl Into<String>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(Box::new(source)) }
    }

    /// What went wrong, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The sentence and those below it, as one text.
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut below = self.source();
        while let Some(error) = below {
            text.push_str(": ");
            text.push_str(&error.to_string());
            below = error.source();
        }
        text
    }
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Self {
        Self::new(Kind::Invalid, error.to_string())
    }
}

impl From<Exhausted> for Error {
    fn from(error: Exhausted) -> Self {
        Self::new(Kind::Exhausted, error.to_string())
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
