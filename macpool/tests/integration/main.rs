//! Reviews and blocks of addresses, without a cluster.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod machines;
mod mutants;
mod pods;
mod support;
