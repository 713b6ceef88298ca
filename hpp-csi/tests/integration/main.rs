//! The driver from outside, as a kubelet and sidecars call it.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures are shown with --nocapture")]

mod clones;
mod copies;
mod defragment;
mod faults;
mod groups;
mod hostile;
mod interrupted;
mod logs;
mod manifests;
mod metadata;
mod node;
mod pools;
mod quota;
mod random_kills;
mod sanity;
mod sidecar_endpoints;
mod support;
mod volumes;
