//! The http source against servers that misbehave: whatever they do, the bytes are right or there is an error that
//! names the cause.
//!
//! - `server`, `reading`: what the tests share.
//! - `survived`, `failed`, `changed`, `redirects`, `over_tls`: the tests, by subject.

#![expect(clippy::cast_possible_truncation, reason = "small test data")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod changed;
#[path = "../support/errors.rs"]
mod errors;
mod failed;
mod over_tls;
mod reading;
mod redirects;
mod server;
mod survived;
