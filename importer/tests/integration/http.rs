//! The http source against servers that misbehave: whatever they do, the bytes are right or there is an error that
//! names the cause.
//!
//! - `server`, `reading`: what the tests share.
//! - `survived`, `failed`, `changed`, `redirects`, `over_tls`: the tests, by subject.

mod changed;
mod failed;
mod over_tls;
mod reading;
mod redirects;
pub(crate) mod server;
mod survived;
