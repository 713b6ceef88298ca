//! The importer's one error: a small kind, a sentence, the source below it. `report` is the only place that turns it
//! into exit codes and messages.

use std::error::Error as StdError;
use std::fmt;

/// What went wrong, as far as somebody acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Arguments or environment make no sense.
    Usage,
    /// The source cannot be reached, refuses us, or does not hold what was named.
    Connect,
    /// The bytes on the wire have another checksum than given.
    Checksum,
    /// The image cannot be imported in one pass and there is no room to spool it.
    NeedsScratch,
    /// Reading, decoding or writing failed; [`disk_image::Kind`] below tells more.
    Process,
    /// Asked to stop.
    Stopped,
}

/// An error of the importer.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a sentence that says what, where and what to do.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The same with the error below it.
    pub fn with(
        kind: Kind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// Shorthand for [`Kind::Usage`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Shorthand for [`Kind::Connect`] with a source.
    pub fn connect(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::with(Kind::Connect, message, source)
    }

    /// What went wrong, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        std::io::Error::other(error)
    }
}
