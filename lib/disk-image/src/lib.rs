//! Disk images of any format, decoded straight onto a file or a block device.
//!
//! The one place that knows image formats, compressions and how to put a disk on storage quickly.
//! It has no network code, no Kubernetes, no async runtime and no command line; bytes come in
//! through [`Source`], which the programs implement.
//!
//! ```text
//!  Source ──► compress ──► format (sans-IO tables → Extents) ──► transfer ──► write
//!  bytes      gz xz zst    qcow2 vmdk vhd vhdx vdi raw           plan+apply   io_uring | pwrite
//! ```
//!
//! - [`source`]: where bytes come from: a size, if known, and how they may be read (ranges, again, once).
//! - [`detect`](mod@detect): what the bytes are, by magic alone.
//! - [`compress`]: one layer of gz, xz or zstd around an image, itself a [`Source`].
//! - [`format`](mod@format): decoders. Pure: they name the host range they want next and turn table bytes into extents.
//! - [`overlay`]: changes of an image's own log, applied while it is read.
//! - `members`: tar archives, member by member.
//! - [`extent`]: guest ranges and where their content lies; sets of ranges.
//! - [`write`](mod@write): the target, its buffers and the engine that writes them (io_uring, pwrite pool).
//! - [`transfer`]: `plan` decides the way an image is read: its tables first, or one stream from the start.
//! - [`volume`]: what turns a stream of image bytes into a volume: sizes, targets and their locks, journals, archives.
//!
//! # How memory stays bounded
//! Every buffer that carries image data comes from one of two [`write::Pool`]s of fixed size; a stage that finds
//! the pool empty waits, and that is the only back-pressure. Tables are read in slices of the guest range, so an
//! extent map is never whole in memory. Only a compressor's declared window comes on top.

pub mod compress;
pub mod detect;
pub mod error;
pub mod extent;
pub mod format;
mod members;
pub mod overlay;
pub mod source;
pub mod stop;
pub mod transfer;
pub mod volume;
pub mod write;

pub use detect::{Compression, Detected, Format, detect};
pub use error::{Error, Kind};
pub use extent::{Content, Extent, RangeSet};
pub use source::{Access, Facts, FileSource, Once, Source};
pub use stop::Stop;
