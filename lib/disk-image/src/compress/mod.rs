//! One layer of gz, xz or zstd around an image: a [`Source`] of compressed bytes becomes a [`Source`] of image bytes.
//!
//! Not here: clusters and grains packed inside a format (see [`crate::format::unpack`]).

use std::sync::Arc;

use crate::detect::Compression;
use crate::error::Error;
use crate::source::Source;

/// Bounds of what a compressed stream may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest window (xz dictionary, zstd window) one decoder may declare, in bytes.
    pub window: u64,
    /// Windows of all decoders running at once, in bytes; fewer run when several do not fit. One always may.
    pub windows: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: 128 << 20, windows: 128 << 20 }
    }
}

/// The source of what `source` unpacks to.
///
/// # Errors
/// [`crate::Kind::Compression`] when the stream's own headers are damaged or ask for more than `limits`.
pub fn open(
    compression: Compression,
    source: Arc<dyn Source>,
    limits: Limits,
) -> Result<Arc<dyn Source>, Error> {
    let _ = (source, limits);
    Err(Error::new(crate::Kind::Compression, format!("{} is not readable yet", compression.name())))
}
