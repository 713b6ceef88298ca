//! The library's error.

/// Kinds of error that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The input is refused.
    Content,
    /// A system call failed.
    System,
}

::error::declare! {
    /// Why an operation on a guest or its networks failed.
    pub struct Error(Kind);
}

impl From<link::Error> for Error {
    fn from(error: link::Error) -> Self {
        let (_, message, source) = error.into_parts();
        Self::from_parts(Kind::System, message, source)
    }
}
