//! Events of the compute controllers: texts that users and scripts match on, as upstream has them. Pure.

/// An event on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Whether it is of type Warning; else it is Normal.
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Event {
    pub(super) fn normal(reason: &'static str, message: String) -> Self {
        Self { warning: false, reason, message }
    }

    pub(super) fn warning(reason: &'static str, message: String) -> Self {
        Self { warning: true, reason, message }
    }
}
