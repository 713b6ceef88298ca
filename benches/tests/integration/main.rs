//! Rules over the whole workspace.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod layers;
mod matched;
mod prose;
mod upstream_metrics;
