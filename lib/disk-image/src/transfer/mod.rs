//! Moves an image from a [`Source`] onto a [`Writer`]'s target: the one pipeline of every program.
//!
//! ```text
//!  tables (source with ranges)                        forward (streams)
//!  map: root and leaf tables in slices ─► jobs        one reader: tables and data as they pass by
//!        feeders: one reader each, a part at a time        │
//!                     └────────────► chunks ◄──────────────┘
//!                                      ▼
//!                       workers: unpack, find zeroes ─► Writer ─► tickets ─► ledger (after a sync)
//! ```
//!
//! - [`open`](fn@open): peeks, takes one compression layer off, looks for the disk of an OVA (`ova`), opens the layout.
//!   Writes nothing.
//! - `plan`: which of the two ways an image takes. Pure.
//! - `map`, `reads`, `parts`: the way of sources with ranges. `forward`, `stream`, `streamed_metadata`, `spool`: the way
//!   of streams.
//! - `work`: chunks to writes. `completion`: what is written and what of it is durable.
//! - `pipeline`: the state that the stages share. `run`: starts them.
//!
//! # Progress that survives
//! Finished *guest* ranges are handed to a [`Ledger`] only after the target was synced. Packed neighbours share host
//! sectors, so host ranges would be ambiguous.
//!
//! Not here: the place of a journal, stop signals, messages to the user.
//!
//! [`Writer`]: crate::write::Writer

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::compress;
use crate::detect::Format;
use crate::extent::RangeSet;
use crate::source::Source;

mod completion;
mod forward;
mod image;
mod map;
mod ova;
mod parts;
mod pipeline;
mod plan;
mod progress;
mod reads;
mod run;
mod spool;
mod stream;
mod streamability;
mod streamed_metadata;
mod work;

pub use image::{Image, Request, open, unwrap};
pub use plan::Way;
pub use progress::Progress;
pub use run::run;
pub use spool::WINDOW;

/// Bounds of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Windows of the outer compression.
    pub windows: compress::Limits,
    /// Buffers that carry image data, in bytes, all together.
    pub memory: usize,
    /// Readers of the source at once, at most; the source may want fewer.
    pub connections: usize,
    /// Threads that unpack; 0 means one per CPU.
    pub workers: usize,
    /// Bytes the target may take; a stream of unknown size that turns out longer is an error.
    pub capacity: u64,
    /// Bytes of the source that may be read and not remembered yet: with `memory`, which may be in flight, what a run
    /// that follows a crash may have to fetch again. What is finished is synced and remembered when half of them are
    /// read, or after a second; when all are, as on a disk that is slow to sync, readers wait.
    pub reread: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            windows: compress::Limits::default(),
            memory: 24 << 20,
            connections: 8,
            workers: 0,
            capacity: u64::MAX,
            reread: 64 << 20,
        }
    }
}

/// Where finished guest ranges are remembered across runs.
pub trait Ledger: Send {
    /// Guest ranges that an earlier run finished on this very target from this very source.
    fn done(&self) -> RangeSet;

    /// Remembers `ranges`, which are on stable storage. Called from one thread.
    ///
    /// # Errors
    /// When they cannot be remembered; ends the transfer.
    fn commit(&mut self, ranges: &RangeSet) -> io::Result<()>;

    /// Whether commits are worth the syncs they cost.
    fn remembers(&self) -> bool {
        true
    }
}

/// A ledger that remembers nothing.
#[derive(Clone, Copy, Debug)]
pub struct Forgetful;

impl Ledger for Forgetful {
    fn done(&self) -> RangeSet {
        RangeSet::new()
    }

    fn commit(&mut self, _ranges: &RangeSet) -> io::Result<()> {
        Ok(())
    }

    fn remembers(&self) -> bool {
        false
    }
}

/// Where early bytes of a stream that is read once may be kept when its tables come later: folders, in order of
/// preference, each with the bytes that may be used there. None: such an image is refused.
#[derive(Clone, Debug, Default)]
pub struct Spool {
    /// Folders and their room in bytes.
    pub folders: Vec<(PathBuf, u64)>,
}

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The image's format: a fixed VHD differs from a raw disk at a stream's end only.
    pub format: Format,
    /// Size of the virtual disk in bytes. May be less than [`Image::virtual_size`] reported: then the caller truncates the
    /// target's file to it, as bytes behind it may have been written.
    pub virtual_size: u64,
    /// Bytes read from the source, as it gave them (compressed, if it is).
    pub bytes_read: u64,
    /// Bytes written to the target.
    pub bytes_written: u64,
    /// Bytes of the disk that read as zero and were not written.
    pub bytes_zero: u64,
    /// Bytes of the disk that an earlier run had finished.
    pub bytes_resumed: u64,
}

/// A source that counts what its readers give.
struct Counted {
    inner: Arc<dyn Source>,
    read: Arc<std::sync::atomic::AtomicU64>,
}
