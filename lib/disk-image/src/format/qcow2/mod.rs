//! qcow2 versions 2 and 3, read only: deflate and zstd clusters, zero clusters, extended L2 entries.
//!
//! ```text
//!  header ──► L1: 8-byte entries ──► L2: one cluster of 8- or 16-byte entries ──► clusters (32 subclusters)
//! ```
//!
//! After QEMU's `docs/interop/qcow2.txt`; where it is silent, what `qemu-img convert` does. Internal snapshots and
//! saved machine states are not looked at: the L1 table in the header is the disk. Refcounts are not needed to read.
//!
//! Stricter than qemu in what it reads quietly: reserved bits that are set, clusters and tables within the header or
//! the L1 table, and clusters that start past the end of the image (qemu reads zeroes there; here it is a truncated
//! download) are errors. A cluster that starts before the end and goes on past it reads as zero there, as in qemu: a
//! file may end with a cluster's written part.

mod header;

use std::ops::Range;

use self::header::{Header, Parsed};
use super::{Layout, Leaf, Prologue, Step, Table, TableExtents};
use crate::detect::Format;
use crate::error::Error;
use crate::extent::{Codec, Content, Extent};

/// Offset in an L1 or L2 entry: bits 9 to 55.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// L1: bits 0 to 8 and 56 to 62. Bit 63 is set when the refcount is one, which a reader can ignore.
const L1_RESERVED: u64 = 0x7f00_0000_0000_01ff;
/// L2, not compressed: bits 1 to 8 and 56 to 61.
const L2_RESERVED: u64 = 0x3f00_0000_0000_01fe;
/// L2: the cluster is compressed.
const L2_COMPRESSED: u64 = 1 << 62;
/// L2, version 3 without subclusters: the cluster reads as zero, whether or not it has an offset.
const L2_ZERO: u64 = 1;
/// Subclusters of a cluster with an extended L2 entry.
const SUBCLUSTERS: u32 = 32;

/// Opens an image from its front.
pub(super) fn open(prologue: &Prologue) -> Result<Step<Box<dyn Layout>>, Error> {
    let (front, ended) = front(prologue);
    Ok(match header::parse(&front, ended, prologue.size)? {
        Parsed::Header(header) => Step::Ready(Box::new(Qcow2 { header, size: prologue.size })),
        Parsed::More(end) => Step::Need(front.len() as u64..end.min(prologue.size.unwrap_or(u64::MAX))),
    })
}

/// The contiguous bytes from offset 0 on, and whether the image is known to end there.
fn front(prologue: &Prologue) -> (Vec<u8>, bool) {
    let mut front = Vec::new();
    loop {
        let len = front.len() as u64;
        let more = prologue.pieces.iter().find_map(|(at, bytes)| {
            let skip = usize::try_from(len.checked_sub(*at)?).ok()?;
            bytes.get(skip..).filter(|more| !more.is_empty())
        });
        let Some(more) = more else { break };
        front.extend_from_slice(more);
    }
    let len = front.len() as u64;
    let empty = prologue.pieces.iter().any(|(at, bytes)| *at == len && bytes.is_empty());
    let ended = empty || prologue.size.is_some_and(|size| len >= size);
    (front, ended)
}

/// An opened image.
#[derive(Debug)]
struct Qcow2 {
    header: Header,
    size: Option<u64>,
}

impl Qcow2 {
    fn overlaps_metadata(&self, range: &Range<u64>) -> bool {
        self.header.metadata().iter().any(|m| range.start < m.end && m.start < range.end)
    }

    fn past_end(&self, host: u64) -> bool {
        self.size.is_some_and(|size| host >= size)
    }

    /// The L2 table an L1 entry points to; `None` when nothing is allocated.
    fn leaf(&self, index: u64, entry: u64) -> Result<Option<Leaf>, Error> {
        let host = entry & OFFSET;
        let corrupt =
            |what: &str| Error::corrupt(format!("the qcow2 image's L1 entry {index} ({entry:#018x}) {what}"));
        if entry & L1_RESERVED != 0 {
            return Err(corrupt("has reserved bits set"));
        }
        if host == 0 {
            return Ok(None);
        }
        if !host.is_multiple_of(self.header.cluster_size()) {
            return Err(corrupt("does not point to the start of a cluster"));
        }
        let guest = self.root_guest(index);
        let span = self.header.l2_span().min(self.header.virtual_size - guest);
        let table = Table {
            host,
            entries: span.div_ceil(self.header.cluster_size()),
            entry_len: self.header.l2_entry_len(),
        };
        let bytes = table.bytes_of(0..table.entries);
        if self.size.is_some_and(|size| bytes.end > size) {
            return Err(corrupt("points to an L2 table past the image's end; is the download complete?"));
        }
        if self.overlaps_metadata(&bytes) {
            return Err(corrupt("points into the header or the L1 table"));
        }
        Ok(Some(Leaf { index, table }))
    }

    /// Content of the cluster at `guest`, of which `len` bytes are on the disk.
    fn cluster(
        &self,
        guest: u64,
        len: u64,
        entry: u64,
        bitmap: u64,
        found: &mut TableExtents,
    ) -> Result<(), Error> {
        let at = Place { guest, entry, bitmap };
        if entry & L2_COMPRESSED != 0 {
            let content = self.packed(&at)?;
            found.push(Extent { guest, len, content });
            return Ok(());
        }
        let zero = entry & L2_ZERO != 0;
        if entry & L2_RESERVED != 0 || (zero && self.header.extended_l2) {
            return Err(at.corrupt("has reserved bits set"));
        }
        if zero && self.header.version == 2 {
            return Err(at.corrupt("marks a zero cluster, which version 2 does not have"));
        }
        let host = entry & OFFSET;
        if !host.is_multiple_of(self.header.cluster_size()) {
            return Err(at.corrupt("does not point to the start of a cluster"));
        }
        if self.header.extended_l2 {
            return self.subclusters(&at, len, host, found);
        }
        if zero || host == 0 {
            found.push(Extent { guest, len, content: Content::Zero });
            return Ok(());
        }
        self.check_host(&at, host)?;
        self.plain(guest, len, host, found);
        Ok(())
    }

    /// A cluster in 32 subclusters: the low half of the bitmap marks those stored, the high half those that read as zero.
    fn subclusters(&self, at: &Place, len: u64, host: u64, found: &mut TableExtents) -> Result<(), Error> {
        let (stored, zero) = (at.bitmap & 0xffff_ffff, at.bitmap >> 32);
        if stored & zero != 0 {
            return Err(at.corrupt("has subclusters that are both stored and zero"));
        }
        if host == 0 && stored != 0 {
            return Err(at.corrupt("has stored subclusters but no cluster"));
        }
        if stored != 0 {
            self.check_host(at, host)?;
        }
        let part = self.header.cluster_size() / u64::from(SUBCLUSTERS);
        let parts = (0..SUBCLUSTERS).zip((0..len).step_by(usize::try_from(part).unwrap_or(usize::MAX)));
        for (bit, from) in parts {
            let len = part.min(len - from);
            if stored >> bit & 1 == 1 {
                self.plain(at.guest + from, len, host + from, found);
            } else {
                found.push(Extent { guest: at.guest + from, len, content: Content::Zero });
            }
        }
        Ok(())
    }

    /// Stored as it is; what would lie past the image's end reads as zero.
    fn plain(&self, guest: u64, len: u64, host: u64, found: &mut TableExtents) {
        let there = self.size.map_or(len, |size| size.saturating_sub(host).min(len));
        found.push(Extent { guest, len: there, content: Content::Plain { host } });
        found.push(Extent { guest: guest + there, len: len - there, content: Content::Zero });
    }

    fn check_host(&self, at: &Place, host: u64) -> Result<(), Error> {
        if self.past_end(host) {
            return Err(at.corrupt("points past the image's end; is the download complete?"));
        }
        if self.overlaps_metadata(&(host..host + self.header.cluster_size())) {
            return Err(at.corrupt("points into the header or the L1 table"));
        }
        Ok(())
    }

    /// A compressed cluster: the low bits are its offset in bytes, those above it the number of further 512-byte sectors
    /// it reaches into.
    fn packed(&self, at: &Place) -> Result<Content, Error> {
        if at.bitmap != 0 {
            return Err(at.corrupt("is compressed and has subclusters"));
        }
        let sector_bits = self.header.cluster_bits - 8;
        let offset_bits = 62 - sector_bits;
        let host = at.entry & ((1 << offset_bits) - 1);
        let sectors = (at.entry >> offset_bits & ((1 << sector_bits) - 1)) + 1;
        if self.past_end(host) {
            return Err(at.corrupt("points past the image's end; is the download complete?"));
        }
        let end = ((host & !511) + sectors * 512).min(self.size.unwrap_or(u64::MAX));
        if self.overlaps_metadata(&(host..host + 1)) {
            return Err(at.corrupt("points into the header or the L1 table"));
        }
        let len = u32::try_from(end - host).map_err(|_| at.corrupt("is too long"))?;
        let codec = if self.header.zstd { Codec::Zstd } else { Codec::Deflate };
        Ok(Content::Packed { host, len, codec })
    }
}

/// An L2 entry and where it stands, for errors.
struct Place {
    guest: u64,
    entry: u64,
    bitmap: u64,
}

impl Place {
    fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!(
            "the qcow2 image's L2 entry for guest offset {} ({:#018x}, subclusters {:#018x}) {what}",
            self.guest, self.entry, self.bitmap
        ))
    }
}

/// The big-endian number at the front of `bytes`; whole entries are the caller's promise.
fn be64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().copied().map_or(0, u64::from_be_bytes)
}

impl Layout for Qcow2 {
    fn format(&self) -> Format {
        Format::Qcow2
    }

    fn virtual_size(&self) -> u64 {
        self.header.virtual_size
    }

    fn note(&self) -> Option<&'static str> {
        // Only reference counts may be out of date, and nothing here reads them.
        self.header.dirty.then_some(
            "the qcow2 image was not closed cleanly (dirty bit): it is read as it is, and may lack the last writes",
        )
    }

    fn unit(&self) -> u64 {
        self.header.cluster_size()
    }

    fn root(&self) -> Table {
        Table { host: self.header.l1_host, entries: self.header.l1_entries, entry_len: 8 }
    }

    fn root_guest(&self, index: u64) -> u64 {
        index.saturating_mul(self.header.l2_span())
    }

    fn read_root(&self, first: u64, bytes: &[u8], found: &mut TableExtents) -> Result<(), Error> {
        for (index, entry) in (first..self.header.l1_entries).zip(bytes.chunks_exact(8)) {
            match self.leaf(index, be64(entry))? {
                Some(leaf) => found.leaves.push(leaf),
                None => {
                    let guest = self.root_guest(index);
                    let len = self.header.l2_span().min(self.header.virtual_size - guest);
                    found.push(Extent { guest, len, content: Content::Zero });
                }
            }
        }
        Ok(())
    }

    fn read_leaf(
        &self,
        leaf: &Leaf,
        first: u64,
        bytes: &[u8],
        found: &mut TableExtents,
    ) -> Result<(), Error> {
        let entry_len = if self.header.extended_l2 { 16 } else { 8 };
        let start = self.root_guest(leaf.index);
        for (index, entry) in (first..leaf.table.entries).zip(bytes.chunks_exact(entry_len)) {
            let guest = start + index * self.header.cluster_size();
            let len = self.header.cluster_size().min(self.header.virtual_size.saturating_sub(guest));
            let bitmap = entry.get(8..).map_or(0, be64);
            self.cluster(guest, len, be64(entry), bitmap, found)?;
        }
        Ok(())
    }

    fn cut_unit_is_zero(&self) -> bool {
        true
    }

    fn packed_max(&self) -> u32 {
        // 2^(cluster_bits - 8) sectors: twice a cluster.
        2 << self.header.cluster_bits
    }
}
