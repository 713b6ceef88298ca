//! Where images come from: one file per protocol, each giving a [`disk_image::Source`].
//!
//! A source opens (and reports its size and whether it has ranges), then gives readers. It retries inside: back-off with
//! jitter, from the failed reader's own offset, until its patience ends. Credentials stay inside and never reach an error's
//! text.

pub mod blocking;
pub mod gcs;
pub mod http;
pub mod layer;
mod manifest;
pub mod nbd;
pub(crate) mod node_pull;
pub mod oci_archive;
pub(crate) mod open;
pub mod registry;
pub mod remote;
pub mod retry;
pub mod s3;
pub(crate) mod stdin;
mod tar_stream;
pub mod tls;
pub(crate) mod version;
