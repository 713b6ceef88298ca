//! The kinds of failure to fill a volume, and the format of errors. Programs use it for their sources too, whose readers
//! carry it here inside of an `io::Error`. Not here: exit codes and messages, which are a program's.

use std::error::Error as StdError;
use std::fmt::Write as _;

/// Kind of failure, as far as a caller acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Invalid arguments or environment.
    Usage,
    /// The source cannot be reached, refuses us, or does not hold what was named.
    Connect,
    /// The bytes on the wire have another checksum than given.
    Checksum,
    /// A part of a container image does not match its digest. Unlike [`Kind::Checksum`], which a user gave, the next
    /// try may find it repaired.
    Digest,
    /// The image cannot be imported in one pass and there is no room to spool it.
    NeedsScratch,
    /// The content is rejected: it is damaged, not a disk, or of a source that is not supported.
    Refused,
    /// The disk does not fit the target, or the target is full.
    NoRoom,
    /// The target is in use, is not empty, or cannot be opened.
    Target,
    /// Reading, decoding or writing failed; [`crate::Kind`] below has the detail.
    Process,
    /// Asked to stop.
    Stopped,
}

/// Why a volume could not be filled.
pub type Error = crate::error::Error<Kind>;

impl Error {
    /// Shorthand for [`Kind::Usage`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Shorthand for [`Kind::Connect`] with a source.
    pub fn connect(message: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::with(Kind::Connect, message, source)
    }
}

impl From<crate::Error> for Error {
    /// The corresponding kind; the error itself is the source below.
    fn from(error: crate::Error) -> Self {
        use crate::Kind as Below;
        let (kind, what) = match error.kind() {
            Below::Refused => (Kind::Refused, "the image is refused"),
            Below::TooLarge => (Kind::NoRoom, "the image does not fit"),
            Below::NoSpace if too_large_a_file(&error) => (
                Kind::NoRoom,
                "the target cannot hold a file of this size; use another filesystem or raise the limit",
            ),
            Below::NoSpace => (Kind::NoRoom, "the target is full; free some room or use a larger one"),
            Below::NotStreamable => (Kind::NeedsScratch, "the image cannot be read in one pass"),
            Below::Stopped => (Kind::Stopped, "the import was stopped"),
            Below::Corrupt => {
                (Kind::Refused, "the image is damaged; fetch it again or check the original (qemu-img check)")
            }
            Below::Source => (Kind::Process, "the image cannot be read"),
            Below::Target => (Kind::Process, "the disk cannot be written"),
            Below::Compression => {
                (Kind::Refused, "the image cannot be decompressed; check that the download is complete")
            }
        };
        // An error of ours comes out unchanged, below its reader's message.
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

/// `error` and everything below it.
pub fn below<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn StdError + 'static)| {
        // An io::Error's source is what lies below the error it carries, not that error.
        match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &'a (dyn StdError + 'static)),
            None => error.source(),
        }
    })
}

/// The error and everything below it, once each. Control characters come from names and answers of others, and are
/// shown, not sent to a terminal.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let words = cause.to_string();
        // Some foreign errors repeat their source in their own words.
        if !text.ends_with(&words) {
            let _infallible = write!(text, ": {words}");
        }
        below = cause.source();
    }
    if !text.contains(is_raw) {
        return text;
    }
    text.chars().fold(String::new(), |mut shown, c| {
        match is_raw(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
        shown
    })
}

fn is_raw(c: char) -> bool {
    c.is_control() && c != '\n'
}

/// [`chain`] with the strings that controllers look for spelled as they expect them (Go spells errno in lower case).
pub fn contract_chain(error: &(dyn StdError + 'static)) -> String {
    chain(error)
        .replace("No space left on device", "no space left on device")
        .replace("Disk quota exceeded", "disk quota exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_chains_do_not_repeat_text() {
        let error = Error::with(Kind::Process, "a", Error::with(Kind::Process, "b", Error::usage("c")));
        assert_eq!(chain(&error), "a: b: c");
        let repeated = Error::with(Kind::Process, "a: b", Error::usage("b"));
        assert_eq!(chain(&repeated), "a: b");
        assert_eq!(chain(&Error::usage("é\u{1b}[2J\0\nb")), "é\\u{1b}[2J\\u{0}\nb");
    }
}
