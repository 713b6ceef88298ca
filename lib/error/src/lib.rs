//! One error type for libraries and programs: a small kind to match on, a message for people, and the source below it.
//!
//! ```text
//!  Error<Kind> ─ message: what failed, where, what to do      `Display` shows the message alone
//!     └─ source ─ what the layer below reported                `chain` shows all of them, each once
//! ```
//!
//! A crate without conversions of errors uses an alias: `type Error = error::Error<Kind>`. A crate that adds
//! constructors, or converts other errors with `?`, declares a type of its own with [`declare!`]: Rust allows neither for
//! an alias of another crate's type.
//!
//! Not here: kinds, and what a kind means in a protocol (an exit code, a gRPC status). Both belong to the crate that
//! reports the error.

mod chain;
mod declare;

use std::error::Error as StdError;
use std::fmt;
use std::io;

pub use chain::{below, chain, details, escape, text};

/// Any error, boxed: what [`Error`] keeps as its source.
pub type Source = Box<dyn StdError + Send + Sync>;

/// An error of the kind `K`.
#[derive(Debug)]
pub struct Error<K> {
    kind: K,
    message: String,
    source: Option<Source>,
}

impl<K> Error<K> {
    /// An error of `kind` with a message: the fault, its place and, if possible, an action.
    pub fn new(kind: K, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error of `kind` that was caused by `source`. The message does not repeat the source: [`chain`] shows both.
    pub fn with(kind: K, message: impl Into<String>, source: impl Into<Source>) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// The kind of failure, to match on.
    pub fn kind(&self) -> K
    where
        K: Copy,
    {
        self.kind
    }

    /// The message without its sources.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with another kind, which `convert` derives from this one.
    #[must_use]
    pub fn map_kind<J>(self, convert: impl FnOnce(K) -> J) -> Error<J> {
        Error { kind: convert(self.kind), message: self.message, source: self.source }
    }

    /// The same error with another message, which `change` derives from this one.
    #[must_use]
    pub fn map_message(mut self, change: impl FnOnce(String) -> String) -> Self {
        self.message = change(self.message);
        self
    }

    /// Kind, message and source.
    pub fn into_parts(self) -> (K, String, Option<Source>) {
        (self.kind, self.message, self.source)
    }

    /// An error of these parts.
    pub fn from_parts(kind: K, message: String, source: Option<Source>) -> Self {
        Self { kind, message, source }
    }
}

impl<K: fmt::Debug + 'static> Error<K> {
    /// The message and those of all sources on one line, as [`chain`] writes them.
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// The messages of all sources on one line, without this error's own; empty if there is none.
    pub fn details(&self) -> String {
        details(self)
    }
}

impl<K: fmt::Debug + Send + Sync + 'static> Error<K> {
    /// An error of the same kind with `message`, caused by this one.
    #[must_use]
    pub fn context(self, message: impl Into<String>) -> Self
    where
        K: Copy,
    {
        Self::with(self.kind, message, self)
    }
}

impl<K> fmt::Display for Error<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<K: fmt::Debug> StdError for Error<K> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl<K: fmt::Debug + Send + Sync + 'static> From<Error<K>> for io::Error {
    fn from(error: Error<K>) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        One,
        Two,
    }

    #[test]
    fn display_shows_the_message_alone_and_the_chain_shows_every_source() {
        let error = Error::with(Kind::One, "cannot open a", io::Error::other("gone"));
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::One, "cannot open a"));
        assert_eq!(error.chain(), "cannot open a: gone");
        assert_eq!(error.details(), "gone");
        let outer = error.context("cannot start").map_kind(|_| Kind::Two);
        assert_eq!((outer.kind(), outer.chain().as_str()), (Kind::Two, "cannot start: cannot open a: gone"));
        assert_eq!(Error::new(Kind::Two, "alone").details(), "");
    }

    #[test]
    fn an_error_inside_an_io_error_is_found_and_not_printed_twice() {
        let inner = Error::with(Kind::Two, "cannot read b", io::Error::other("broken"));
        let outer = Error::with(Kind::One, "cannot import", io::Error::from(inner));
        assert_eq!(outer.chain(), "cannot import: cannot read b: broken");
        let found = below(&outer).filter_map(|error| error.downcast_ref::<Error<Kind>>()).map(Error::kind);
        assert_eq!(found.collect::<Vec<_>>(), [Kind::One, Kind::Two]);
    }
}
