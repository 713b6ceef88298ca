//! The upload server from outside, over TLS.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "small test data")]

mod clone_target;
mod hostile;
mod matrix;
mod memory;
mod protocol;
mod resumed;
mod support;
mod warnings;
