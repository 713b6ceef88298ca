//! This library's error.

/// Kind of failure, as far as a caller acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The kernel refused a request; its words are in the source.
    Kernel,
    /// The kernel lacks what was asked of it.
    Unsupported,
    /// A path is of no network namespace that can be entered.
    Namespace,
    /// The kernel's state differs from the request.
    Mismatch,
    /// The same call may succeed later.
    TryLater,
    /// A text means nothing, or nothing that can be.
    Invalid,
    /// A bug here.
    Internal,
}

::error::declare! {
    /// An error of this library.
    pub struct Error(Kind);
}
