//! The program's error.

/// Kinds of error that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The arguments are invalid.
    Usage,
    /// The content is refused.
    Content,
    /// A system call, or a program that was started, failed.
    System,
}

::error::declare! {
    /// An error of the program.
    pub struct Error(Kind);
}

impl From<link::Error> for Error {
    fn from(error: link::Error) -> Self {
        let (_, message, source) = error.into_parts();
        Self::from_parts(Kind::System, message, source)
    }
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
