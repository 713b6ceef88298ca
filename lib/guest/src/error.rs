//! The library's error.

/// Kinds of error that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The input is refused.
    Content,
    /// The system refused something.
    System,
}

::error::declare! {
    /// Why something around a guest failed.
    pub struct Error(Kind);
}

impl Error {
    /// This error, and another one that came of undoing what it left.
    #[must_use]
    pub fn and(self, other: Option<Self>) -> Self {
        match other {
            None => self,
            Some(other) => Self::new(self.kind(), format!("{}; and {}", self.chain(), other.chain())),
        }
    }
}

impl From<link::Error> for Error {
    fn from(error: link::Error) -> Self {
        let (_, message, source) = error.into_parts();
        Self::from_parts(Kind::System, message, source)
    }
}
