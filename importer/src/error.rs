//! The importer's one error: a small kind, a sentence, the source below it. `report` is the only place that turns it
//! into exit codes and messages.

use std::error::Error as StdError;
use std::fmt;

use crate::source::remote::below;

/// What went wrong, as far as somebody acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Arguments or environment make no sense.
    Usage,
    /// The source cannot be reached, refuses us, or does not hold what was named.
    Connect,
    /// The bytes on the wire have another checksum than given.
    Checksum,
    /// A part of a container image is not what its digest says. Unlike [`Kind::Checksum`], which a user gave, the next
    /// try may find it repaired.
    Digest,
    /// The image cannot be imported in one pass and there is no room to spool it.
    NeedsScratch,
    /// The content is something we never import: not a disk, or a source we do not have.
    Refused,
    /// The disk does not fit the target, or the target is full.
    NoRoom,
    /// The target is in use, holds something, or cannot be opened.
    Target,
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

impl From<disk_image::Error> for Error {
    /// The kind that says the same; the error itself is the source below.
    fn from(error: disk_image::Error) -> Self {
        use disk_image::Kind as Below;
        let (kind, what) = match error.kind() {
            Below::Refused => (Kind::Refused, "the image is refused"),
            Below::TooLarge => (Kind::NoRoom, "the image does not fit"),
            Below::NoSpace if too_large_a_file(&error) => {
                (Kind::NoRoom, "the target cannot hold a file of this size")
            }
            Below::NoSpace => (Kind::NoRoom, "the target is full"),
            Below::NotStreamable => (Kind::NeedsScratch, "the image cannot be read in one pass"),
            Below::Stopped => (Kind::Stopped, "the import was stopped"),
            Below::Corrupt => (Kind::Process, "the image is damaged"),
            Below::Source => (Kind::Process, "the image cannot be read"),
            Below::Target => (Kind::Process, "the disk cannot be written"),
            Below::Compression => (Kind::Process, "the image cannot be unpacked"),
            _ => (Kind::Process, "the image cannot be imported"),
        };
        // What a source of ours said comes out as itself, below its reader's words.
        let kind = carried(&error).unwrap_or(kind);
        Self::with(kind, what, error)
    }
}

/// Whether the filesystem, or a limit of the process, has no files that large: room is not what is missing.
fn too_large_a_file(error: &(dyn StdError + 'static)) -> bool {
    let mut io = below(error).filter_map(|error| error.downcast_ref::<std::io::Error>());
    io.any(|error| error.kind() == std::io::ErrorKind::FileTooLarge)
}

/// The kind of an [`Error`] of this crate somewhere below `error`.
fn carried(error: &(dyn StdError + 'static)) -> Option<Kind> {
    below(error).find_map(|error| error.downcast_ref::<Error>()).map(Error::kind)
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
