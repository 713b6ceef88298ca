//! Manifests of the platform, and the pages whose cases and requirements name tests.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod conformance;
mod instance_types;
mod lost_pods;
mod manifests;
mod policies;
mod quotas;
mod removal;
mod requirements;
mod rights;
#[expect(dead_code, reason = "the client's own tests use the rest")]
#[path = "../../../lib/cluster/tests/api_server/server.rs"]
mod server;
mod site;
