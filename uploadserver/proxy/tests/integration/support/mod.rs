//! Shared by the tests: a stand-in for a cluster, the built proxy, and upload servers as their own tests have them.

pub(crate) mod cluster;
pub(crate) mod proxy;
#[path = "../../../../tests/integration/support/mod.rs"]
pub(crate) mod server;
