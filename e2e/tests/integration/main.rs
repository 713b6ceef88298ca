//! Tests with a Kubernetes node of their own.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures are shown with --nocapture")]

mod cluster;
mod grants;
mod hpp_csi;
mod importer;
mod macpool;
mod network;
mod network_faults;
mod platform;
mod platform_nodes;
mod storage;
mod storage_nodes;
mod storage_rotation;
mod upload;
