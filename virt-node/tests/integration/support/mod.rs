//! Shared by the tests: a daemon, a machine for guests' networks, web servers, and the support of the launcher's tests.

pub(crate) mod daemon;
#[path = "../../../launcher/tests/integration/support/mod.rs"]
pub(crate) mod launcher;
pub(crate) mod linux;
pub(crate) mod machine;
pub(crate) mod sys;
pub(crate) mod web;
