//! The agent's error. Not here: its form in a status, an event or an HTTP answer.

/// Kinds of error that callers handle differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Invalid arguments or environment: the process ends with code 2.
    Usage,
    /// The guest's own objects or files are wrong; trying again changes nothing until they change.
    Content,
    /// A file of a pod is not of the expected type: a symbolic link, a FIFO, another process.
    Untrusted,
    /// The kubelet does not answer or refuses.
    Kubelet,
    /// The API server does not answer or refuses.
    Cluster,
    /// The facts of a decision have changed: decide again.
    Stale,
    /// The launcher does not answer or refuses.
    Launcher,
    /// The operating system refuses.
    System,
}

impl Kind {
    /// Whether waiting helps, and nothing else: such an error is no news for a user.
    pub(crate) fn is_awaited(self) -> bool {
        match self {
            Self::Launcher | Self::Cluster | Self::Kubelet | Self::Stale => true,
            Self::Content | Self::Untrusted | Self::System | Self::Usage => false,
        }
    }
}

::error::declare! {
    /// Why the agent could not do something.
    pub struct Error(Kind);
}

/// The result of the agent's functions.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A system call about `what` that failed.
    pub(crate) fn system(what: impl Into<String>, error: impl Into<::error::Source>) -> Self {
        Self::with(Kind::System, what, error)
    }
}

impl From<dir::Error> for Error {
    /// A name that is not what it has to be, or leads elsewhere, was planted.
    fn from(error: dir::Error) -> Self {
        use rustix::io::Errno;
        let kind = match error.errno() {
            None | Some(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => Kind::Untrusted,
            Some(_) => Kind::System,
        };
        let (doing, source) = error.into_parts();
        Self::with(kind, format!("cannot {doing}"), source)
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

impl From<link::Error> for Error {
    fn from(error: link::Error) -> Self {
        let (_, message, source) = error.into_parts();
        Self::from_parts(Kind::System, message, source)
    }
}
