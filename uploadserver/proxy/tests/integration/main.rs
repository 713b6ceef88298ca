//! `uploadproxy` from outside, before upload servers of its own build.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "small test data")]

mod ended;
mod hostile;
mod proxy;
mod pushed;
mod rotation;
mod support;
