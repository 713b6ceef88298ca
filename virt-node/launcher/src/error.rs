//! The program's error.

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

::error::declare! {
    /// Why the launcher failed.
    pub struct Error(Kind);
}

impl From<guest::Error> for Error {
    fn from(error: guest::Error) -> Self {
        let (kind, message, source) = error.into_parts();
        let kind = match kind {
            guest::Kind::Content => Kind::Content,
            guest::Kind::System => Kind::System,
        };
        Self::from_parts(kind, message, source)
    }
}

impl From<link::Error> for Error {
    fn from(error: link::Error) -> Self {
        let (_, message, source) = error.into_parts();
        Self::from_parts(Kind::System, message, source)
    }
}
