//! The server against hostile clients, and its streams.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
#[cfg(feature = "websocket")]
mod streams;
