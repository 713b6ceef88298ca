//! The failed operation, its path, and the system's error below it.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// Results of this library.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed access: the action with its path, and the system's error as source.
#[derive(Debug)]
pub struct Error {
    doing: String,
    source: io::Error,
}

impl Error {
    /// The error `source` of an action such as `open /a/b`.
    pub fn new(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { doing: doing.into(), source: source.into() }
    }

    /// The action and its path, such as `open /a/b`.
    pub fn doing(&self) -> &str {
        &self.doing
    }

    /// The system's error.
    pub fn io(&self) -> &io::Error {
        &self.source
    }

    /// The kind of the system's error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// The number of the system's error; `None` when the check of a file's type, links or size failed.
    pub fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.source)
    }

    /// The action and the system's error, for callers with an error type of their own.
    pub fn into_parts(self) -> (String, io::Error) {
        (self.doing, self.source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.doing)?;
        match self.errno() {
            // The system's text alone ("Too many levels") describes another fault.
            Some(Errno::LOOP) => f.write_str(", because symbolic links are not followed"),
            Some(_) | None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<Error> for io::Error {
    /// Keeps the kind; the text carries the action and the system's words.
    fn from(error: Error) -> Self {
        Self::new(error.source.kind(), format!("{error}: {}", error.source))
    }
}
