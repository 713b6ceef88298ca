//! Types of the API against documents and schemas of others, and the address pool against a model.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "crd")]
mod hyperconverged;
mod launch;
mod launcher_frames;
mod pool;
mod pool_model;
#[cfg(feature = "crd")]
mod schema_fields;
