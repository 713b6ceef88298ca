//! Manifests of the platform, and the pages whose cases and requirements name tests.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod manifests;
mod requirements;
