//! The crate's one error: a small kind to match on, a sentence for people, and the source below it.
//!
//! `Display` never repeats the source; the caller that prints walks the chain once. The kinds differ: here, the defect in
//! the bytes; in `volume`, the reaction of a caller that wanted a volume.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// The kind of failure, as far as a caller acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The image asks for something that is never done: encryption, a backing or data file, an unknown feature,
    /// an unclean image. Nothing has been written.
    Refused,
    /// The image contradicts itself or its format.
    Corrupt,
    /// The virtual size does not fit the target.
    TooLarge,
    /// The source ended early, changed, or could not be read.
    Source,
    /// The target could not be opened, written or synced.
    Target,
    /// The target, or the filesystem under it, is full.
    NoSpace,
    /// The image's tables come after its data and the source can be read only once.
    NotStreamable,
    /// A compressed stream is damaged or needs a larger window than allowed.
    Compression,
    /// Asked to stop; what is durable is journaled.
    Stopped,
}

/// An error of this crate.
#[derive(Debug)]
pub struct Error<K = Kind> {
    kind: K,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl<K: Copy> Error<K> {
    /// An error of `kind` with a sentence: the fault, its place and, if possible, an action.
    pub fn new(kind: K, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same with the error below it.
    pub fn with(
        kind: K,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    /// The kind of failure, to match on.
    pub fn kind(&self) -> K {
        self.kind
    }
}

impl Error {
    /// A refusal: nothing was written and nothing will be.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Kind::Refused, message)
    }

    /// The image is damaged.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    /// The disk does not fit. Upstream's controllers match on these words.
    pub fn too_large(size: u64, available: u64) -> Self {
        Self::new(
            Kind::TooLarge,
            format!("virtual image size {size} is larger than the reported available storage {available}"),
        )
    }

    /// The same for a stream of unknown size, of which `reached` bytes came so far.
    pub fn too_large_by_now(reached: u64, available: u64) -> Self {
        Self::new(
            Kind::TooLarge,
            format!(
                "virtual image size, {reached} bytes or more, is larger than the reported available storage {available}"
            ),
        )
    }

    /// An I/O error of the target; ENOSPC and EDQUOT become [`Kind::NoSpace`].
    pub fn target(what: impl Into<String>, source: io::Error) -> Self {
        let full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        let kind = if full { Kind::NoSpace } else { Kind::Target };
        Self::with(kind, what, source)
    }

    /// An I/O error of the source. An [`Error`] carried inside `source` comes out as itself.
    pub fn from_source(what: impl Into<String>, source: io::Error) -> Self {
        if source.get_ref().is_some_and(|inner| inner.is::<Self>()) {
            match source.into_inner().map(|inner| inner.downcast::<Self>()) {
                Some(Ok(inner)) => return *inner,
                Some(Err(other)) => return Self::with(Kind::Source, what, other),
                None => return Self::new(Kind::Source, what),
            }
        }
        Self::with(Kind::Source, what, source)
    }
}

impl<K> fmt::Display for Error<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<K: fmt::Debug> StdError for Error<K> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}

impl<K: fmt::Debug + Send + Sync + 'static> From<Error<K>> for io::Error {
    fn from(error: Error<K>) -> Self {
        io::Error::other(error)
    }
}
