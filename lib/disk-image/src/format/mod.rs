//! Decoders of image formats. Pure functions over bytes: no I/O, no threads, no `unsafe`.
//!
//! Every format here is a header and at most two levels of tables:
//!
//! ```text
//!  prologue ──open──► Layout ──root table──► leaf tables ──► Extents
//!  qcow2    header              L1               L2           clusters
//!  vmdk     header, descriptor  grain directory  grain tables grains
//!  vhd      footer, header      BAT              –            blocks
//!  vhdx     headers, regions    BAT              –            blocks
//!  vdi      header              block map        –            blocks
//!  raw      –                   –                –            one extent
//! ```
//!
//! A [`Layout`] reports where its root table lies; the reader (see [`crate::transfer`]) feeds it table bytes in any slices
//! and gets extents and leaf tables back. So the same decoder serves a source with ranges (tables first), a stream (tables
//! as they pass by) and a file held in memory.
//!
//! Limits that hold for every decoder: a length read from an image is compared with a bound, and with the image's
//! size where that is known, before anything is allocated or any offset computed from it; arithmetic on offsets is
//! checked; an entry that points outside the image or into the image's own metadata is an error.

#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use crate::detect::Format;
use crate::error::Error;
use crate::extent::Extent;
use crate::overlay::Overlay;

mod fields;
pub mod qcow2;
pub mod raw;
pub mod unpack;
pub mod vdi;
pub mod vhd;
pub mod vhdx;
pub mod vmdk;

/// Largest prologue any format may ask for, in bytes, all pieces together.
pub const PROLOGUE_MAX: u64 = 8 << 20;

/// Longest packed extent any format may have, in bytes (a qcow2 cluster of 2 MiB may claim 4 MiB of sectors).
pub const PACKED_MAX: u32 = 4 << 20;

/// The pieces of an image that have been read so far while it is being opened.
#[derive(Debug, Default)]
pub struct Prologue {
    pieces: Vec<(u64, Vec<u8>)>,
    /// Size of the image in bytes, when known.
    pub size: Option<u64>,
}

/// Result of opening: a decoder, or the bytes that it needs first.
#[derive(Debug)]
pub enum Step<T> {
    /// Opened.
    Ready(T),
    /// Supply this range of the image (or what of it exists before the end) and ask again.
    Need(Range<u64>),
}

impl Prologue {
    /// An empty prologue of an image of `size` bytes, if known.
    pub fn new(size: Option<u64>) -> Self {
        Self { pieces: Vec::new(), size }
    }

    /// Adds bytes read at `at`. A piece shorter than requested marks the image's end.
    pub fn supply(&mut self, at: u64, bytes: Vec<u8>) {
        self.pieces.push((at, bytes));
    }

    /// The bytes of `range`, when one piece holds them whole.
    pub fn get(&self, range: Range<u64>) -> Option<&[u8]> {
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        self.pieces.iter().find_map(|(at, bytes)| {
            let from = usize::try_from(range.start.checked_sub(*at)?).ok()?;
            bytes.get(from..from.checked_add(len)?)
        })
    }

    /// The bytes of `range`, `None` when they have to be read first.
    ///
    /// # Errors
    /// When the image is known to end before.
    fn want(&self, range: Range<u64>) -> Result<Option<&[u8]>, Error> {
        let held = self.get(range.clone());
        let short = self.size.is_some_and(|size| range.end > size)
            || self.pieces.iter().any(|(at, _)| *at == range.start);
        if held.is_none() && short {
            return Err(Error::corrupt(format!(
                "the image ends within its own header or tables at {}..{}",
                range.start, range.end
            )));
        }
        Ok(held)
    }

    /// The longest buffered piece from offset 0 of the image on.
    fn front(&self) -> Option<&[u8]> {
        self.pieces
            .iter()
            .filter(|(at, _)| *at == 0)
            .map(|(_, bytes)| bytes.as_slice())
            .max_by_key(|b| b.len())
    }

    /// How many bytes are held.
    pub fn held(&self) -> u64 {
        self.pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }
}

/// A table of fixed-size entries in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Where it starts in the image.
    pub host: u64,
    /// Number of entries.
    pub entries: u64,
    /// Bytes per entry: 4, 8 or 16.
    pub entry_len: u32,
}

impl Table {
    /// The bytes of entries `range` in the image.
    pub fn bytes_of(&self, range: Range<u64>) -> Range<u64> {
        let len = u64::from(self.entry_len);
        self.host + range.start * len..self.host + range.end * len
    }
}

/// A second-level table, found in the root table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Index of the root entry that points to it.
    pub index: u64,
    /// Where it lies.
    pub table: Table,
}

/// Extents of a piece of a table, in ascending guest order for ascending entries.
#[derive(Debug, Default)]
pub struct TableExtents {
    /// Guest ranges and their content, neighbours merged.
    pub extents: Vec<Extent>,
    /// Second-level tables to read.
    pub leaves: Vec<Leaf>,
}

/// Checks that two second-level tables share no bytes, for a format called `format`.
///
/// # Errors
/// [`crate::Kind::Corrupt`] when they overlap: one of them is wrong.
pub(crate) fn check_disjoint(format: Format, one: &Leaf, other: &Leaf) -> Result<(), Error> {
    let bytes = |leaf: &Leaf| leaf.table.bytes_of(0..leaf.table.entries);
    let (a, b) = (bytes(one), bytes(other));
    if a.start < b.end && b.start < a.end {
        return Err(Error::corrupt(format!(
            "the {} image's tables {} and {} overlap at offset {}",
            format.name(),
            one.index,
            other.index,
            a.start.max(b.start)
        )));
    }
    Ok(())
}

impl TableExtents {
    /// Adds an extent, merging it into the last one where it goes on.
    pub fn push(&mut self, extent: Extent) {
        if extent.len == 0 {
            return;
        }
        if !self.extents.last_mut().is_some_and(|last| last.merge(&extent)) {
            self.extents.push(extent);
        }
    }
}

/// An opened image: where its tables are and what their entries mean.
///
/// The extents of all root and leaf entries together cover `0..virtual_size` exactly once; entries beyond the virtual
/// size yield nothing, the last extent is cut at it.
pub trait Layout: Debug + Send + Sync {
    /// Which format this is.
    fn format(&self) -> Format;

    /// Size of the virtual disk in bytes.
    fn virtual_size(&self) -> u64;

    /// A warning about an image that is read all the same.
    fn note(&self) -> Option<&'static str> {
        None
    }

    /// Changes to the image that its own log holds: every byte of it, tables included, is to be read through them.
    fn overlay(&self) -> Option<&Arc<Overlay>> {
        None
    }

    /// Allocation unit in guest bytes (cluster, grain, block); a power of two. 512 for raw.
    fn unit(&self) -> u64;

    /// The root table. No entries: the disk is one plain extent from host offset `root().host` on.
    fn root(&self) -> Table;

    /// Guest offset at which root entry `index` starts; `index == entries` gives the virtual size or more.
    fn root_guest(&self, index: u64) -> u64;

    /// Reads root entries `first..`; `bytes` is whole entries.
    ///
    /// # Errors
    /// An entry that is impossible ([`crate::Kind::Corrupt`]) or not supported ([`crate::Kind::Refused`]).
    fn read_root(&self, first: u64, bytes: &[u8], found: &mut TableExtents) -> Result<(), Error>;

    /// Reads entries `first..` of a leaf table; `bytes` is whole entries. Only for formats with two levels of tables.
    ///
    /// # Errors
    /// As [`Layout::read_root`].
    fn read_leaf(
        &self,
        leaf: &Leaf,
        _first: u64,
        _bytes: &[u8],
        _found: &mut TableExtents,
    ) -> Result<(), Error> {
        let format = self.format().name();
        Err(Error::corrupt(format!("the {format} image has no second level (entry {})", leaf.index)))
    }

    /// Whether the rest of a unit that the image's end cuts off reads as zero. Layouts that know the image's size do so
    /// themselves; a stream's reader does it at the stream's end.
    fn cut_unit_is_zero(&self) -> bool {
        false
    }

    /// Upper bound of the packed length of any extent; 0 when the format has no packed extents.
    fn packed_max(&self) -> u32 {
        0
    }

    /// Whether the place of the tables is known. It is not when they come last (VMDK streamOptimized) and the image was
    /// opened without its size, as a stream that is read once: then only [`Layout::scan`] reads it.
    fn has_tables(&self) -> bool {
        true
    }

    /// Whether the image, read as a stream, is walked by [`Layout::scan`], whether or not that is how it was opened.
    fn walked_as_stream(&self) -> bool {
        false
    }

    /// For formats with the directory inside the data (VMDK streamOptimized): walks a stream forward without tables.
    fn scan(&self) -> Option<Box<dyn Scan>> {
        None
    }
}

/// A forward walk over a self-describing image.
pub trait Scan: Send {
    /// The item at host offset `at`, of which `bytes` is the front.
    ///
    /// # Errors
    /// When nothing sensible stands there.
    fn next(&mut self, at: u64, bytes: &[u8]) -> Result<Scanned, Error>;
}

/// Result of a [`Scan`].
#[derive(Debug, PartialEq, Eq)]
pub enum Scanned {
    /// An extent that lies at this offset; go on at `next`.
    Extent {
        /// The extent.
        extent: Extent,
        /// Host offset to go on at.
        next: u64,
    },
    /// Nothing of interest; go on at this host offset.
    Skip(u64),
    /// At least this many bytes from `at` on are needed to decide.
    More(usize),
    /// The image is complete; guest ranges not seen read as zero.
    End,
}

/// Opens an image of a known format. Call again after supplying the bytes it needs.
///
/// # Errors
/// [`crate::Kind::Refused`] or [`crate::Kind::Corrupt`], before anything is written anywhere.
pub fn open(format: Format, prologue: &Prologue) -> Result<Step<Box<dyn Layout>>, Error> {
    match format {
        Format::Raw => raw::open(prologue),
        Format::Qcow2 => qcow2::open(prologue),
        Format::Vmdk => vmdk::open(prologue),
        Format::Vhd => vhd::open(prologue),
        Format::Vhdx => vhdx::open(prologue),
        Format::Vdi => vdi::open(prologue),
    }
}
