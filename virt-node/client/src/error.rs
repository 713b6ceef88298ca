//! The error of a command and what becomes of the API server's refusals.

/// Kinds of failure, one for each exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The arguments or the kubeconfig cannot be used: 2.
    Usage,
    /// The cluster refuses it, or the object does not exist: 1.
    Refused,
    /// The cluster cannot be reached, or this machine refuses something: 3.
    System,
}

error::declare! {
    /// Why a command failed.
    pub(crate) struct Error(Kind);
}

/// The result of a command.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl From<cluster::Error> for Error {
    fn from(error: cluster::Error) -> Self {
        let kind = match (error.kind(), error.code()) {
            (_, Some(code)) if code < 500 => Kind::Refused,
            (cluster::Kind::Config | cluster::Kind::Input, _) => Kind::Usage,
            _ => Kind::System,
        };
        Self::new(kind, message_of(&error))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::with(Kind::System, "the terminal or a local connection failed", error)
    }
}

/// The API server's own message where there is one: it names the object.
pub(crate) fn message_of(error: &cluster::Error) -> String {
    match error.status() {
        Some(status) if !status.message.is_empty() => status.message.clone(),
        Some(_) | None => error.chain(),
    }
}

/// A refusal in virtctl's words: the attempt, then the API server's message.
pub(crate) fn failed(what: impl Into<String>) -> impl FnOnce(cluster::Error) -> Error {
    let what = what.into();
    move |error| {
        let text = message_of(&error);
        let kind = Error::from(error).kind();
        Error::new(kind, format!("{what}: {text}"))
    }
}

/// A wrong argument.
pub(crate) fn usage<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::new(Kind::Usage, text))
}
