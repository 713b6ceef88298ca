//! Servers that tests of several programs import from: a container registry, an S3 store, Google Cloud Storage; and the
//! images in them. All listen on loopback and are stopped when dropped.
//!
//! Seen by tests alone, as a dev-dependency. Not here: servers that misbehave in a way that one program's tests ask for.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that has no server fails by panicking")]

pub mod gcs;
pub mod images;
pub mod registry;
pub mod s3;
pub mod tls;
