//! Shared by the tests: a daemon, a machine for guests' networks, and what the launcher's tests have for guests.

pub(crate) mod daemon;
#[path = "../../../launcher/tests/integration/support/mod.rs"]
pub(crate) mod launcher;
pub(crate) mod linux;
pub(crate) mod machine;
pub(crate) mod sys;
