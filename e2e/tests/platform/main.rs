//! The platform on a real cluster, as it is installed: operator, node agent, MAC pool and CSI driver as pods, guests in
//! launcher pods, by software emulation. All of it runs in the cluster.
//!
//! One cluster for all tests; each has its own namespace, which enforces the restricted Pod Security.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod clones;
mod compute;
mod console;
mod crowds;
mod disks;
mod ends;
mod guest;
mod hollow;
mod hostpath;
mod hyperconverged;
mod images;
mod imports;
mod life;
mod loss;
mod machines;
mod manifests;
mod networks;
mod place;
mod pools;
mod rotation;
mod scale;
mod shell;
mod speed;
mod streams;
mod untrusted;
mod webhooks;
