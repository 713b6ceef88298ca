//! A crate's own error type over [`crate::Error`]. Not here: its kinds, constructors and conversions.

/// Declares an error type over [`Error<Kind>`](crate::Error) with its methods `new`, `with`, `kind`, `message`, `context`,
/// `and`, `chain`, `details`, `into_parts` and `from_parts`. The crate can add constructors and `From` conversions to it,
/// which an alias does not allow.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// pub enum Kind { Usage, System }
///
/// error::declare! {
///     /// Why the program failed.
///     pub struct Error(Kind);
/// }
///
/// impl From<std::io::Error> for Error {
///     fn from(error: std::io::Error) -> Self {
///         Self::with(Kind::System, "the disk failed", error)
///     }
/// }
///
/// fn read() -> Result<String, Error> {
///     Ok(std::fs::read_to_string("/nonexistent")?)
/// }
/// let error = read().unwrap_err();
/// assert_eq!(error.kind(), Kind::System);
/// assert_eq!(error.chain(), "the disk failed: No such file or directory (os error 2)");
/// ```
#[macro_export]
macro_rules! declare {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident($kind:ty);) => {
        $(#[$attribute])*
        #[derive(Debug)]
        $visibility struct $name($crate::Error<$kind>);

        #[allow(dead_code, reason = "the same methods for every crate; not each uses all")]
        impl $name {
            /// An error of `kind` with a message: the fault, its place and, if possible, an action.
            $visibility fn new(kind: $kind, message: impl Into<String>) -> Self {
                Self($crate::Error::new(kind, message))
            }

            /// An error of `kind` that was caused by `source`.
            $visibility fn with(
                kind: $kind,
                message: impl Into<String>,
                source: impl Into<$crate::Source>,
            ) -> Self {
                Self($crate::Error::with(kind, message, source))
            }

            /// The kind of failure, to match on.
            $visibility fn kind(&self) -> $kind {
                self.0.kind()
            }

            /// The message without its sources.
            $visibility fn message(&self) -> &str {
                self.0.message()
            }

            /// An error of the same kind with `message`, caused by this one.
            #[must_use]
            $visibility fn context(self, message: impl Into<String>) -> Self {
                Self::with(self.kind(), message, self)
            }

            /// This error, and that of undoing its effects if there is one.
            #[must_use]
            $visibility fn and(self, other: Option<Self>) -> Self {
                match other {
                    None => self,
                    Some(other) => {
                        Self::new(self.kind(), format!("{}; and {}", self.chain(), other.chain()))
                    }
                }
            }

            /// The message and those of all sources on one line, each once, control characters escaped.
            $visibility fn chain(&self) -> String {
                $crate::chain(self)
            }

            /// The messages of all sources on one line, without this error's own; empty if there is none.
            $visibility fn details(&self) -> String {
                $crate::details(self)
            }

            /// Kind, message and source.
            $visibility fn into_parts(self) -> ($kind, String, Option<$crate::Source>) {
                self.0.into_parts()
            }

            /// An error of these parts.
            $visibility fn from_parts(kind: $kind, message: String, source: Option<$crate::Source>) -> Self {
                Self($crate::Error::from_parts(kind, message, source))
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }

        impl ::std::error::Error for $name {
            fn source(&self) -> Option<&(dyn ::std::error::Error + 'static)> {
                ::std::error::Error::source(&self.0)
            }
        }

        impl From<$name> for ::std::io::Error {
            fn from(error: $name) -> Self {
                Self::other(error)
            }
        }
    };
}
