//! VHD ("vpc", Virtual PC and Hyper-V), read only: dynamic images, and the mark of fixed ones.
//!
//! Source: Microsoft's "Virtual Hard Disk Image Format Specification" of 2006; where programs differ (the size of the
//! disk, the bitmap before each block), what qemu's `vpc` driver does. Not here: differencing images, which need
//! another file; a fixed VHD is raw bytes with a footer behind them (see [`fixed_vhd`]).
//!
//! ```text
//!  footer copy (512) ─data_offset─► header (1024) ─table_offset─► BAT: u32 BE sectors ─► bitmap, block
//! ```

use super::fields::{Fields, Room};
use super::{Layout, Prologue, Step, Table, TableExtents};
use crate::detect::Format;
use crate::error::Error;
use crate::extent::{Content, Extent};

const FOOTER: usize = 512;
const HEADER: usize = 1024;
const FIXED: u32 = 2;
const DYNAMIC: u32 = 3;
const DIFFERENCING: u32 = 4;
/// Cylinders × heads × sectors that stand for "too large for a geometry".
const GEOMETRY_MAX: u64 = 65535 * 16 * 255;
/// Largest disk in sectors: 2040 GiB.
const SECTORS_MAX: u64 = 0xff00_0000;
const UNUSED: u32 = 0xffff_ffff;

/// An opened dynamic VHD.
#[derive(Debug)]
struct Vhd {
    size: u64,
    block: u64,
    /// Length of the bitmap before each block. It is skipped, as qemu does: what it calls unset reads as stored.
    bitmap: u64,
    bat: Table,
    room: Room,
}

/// The size in bytes of the disk in a fixed VHD of `size` bytes that ends with `footer` (included); its bytes are
/// those at the image's front. `None` when `footer` is none of a fixed VHD: the image is raw then.
pub fn fixed_vhd(footer: &[u8; 512], size: u64) -> Option<u64> {
    let read = Footer::read(footer).ok()?;
    let room = size.checked_sub(FOOTER as u64)?;
    (read.kind == FIXED && read.size <= room).then_some(read.size)
}

/// Fields of a footer with a valid cookie and checksum.
struct Footer {
    kind: u32,
    header: u64,
    size: u64,
}

impl Footer {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        if !bytes.starts_with(b"conectix") {
            return Err(Error::corrupt("not a VHD: its cookie is missing"));
        }
        check("the VHD footer", bytes, 64)?;
        let footer = Fields::new("the VHD footer", bytes);
        let [c1, c0, heads, sectors] = footer.array::<4>(56)?;
        let geometry = u64::from(u16::from_be_bytes([c1, c0])) * u64::from(heads) * u64::from(sectors);
        let by_geometry = geometry != GEOMETRY_MAX && counts_by_geometry(footer.array(28)?);
        let sectors = if by_geometry { geometry } else { footer.be64(48)? / 512 };
        if sectors > SECTORS_MAX {
            return Err(Error::refused(format!("a VHD of {sectors} sectors is larger than 2040 GiB")));
        }
        Ok(Self { kind: footer.be32(60)?, header: footer.be64(16)?, size: sectors * 512 })
    }
}

/// Whether the program that made the image counts the disk by its geometry rather than by `current_size`: Virtual PC
/// and old qemu do, and qemu takes every program it does not know for one of them.
fn counts_by_geometry(creator: [u8; 4]) -> bool {
    let by_size = matches!(&creator, b"win " | b"qem2" | b"d2v " | b"CTXS" | b"tap\0");
    !by_size
}

/// Compares the checksum at offset `at` of `bytes`: the complement of the sum of all other bytes.
fn check(what: &'static str, bytes: &[u8], at: usize) -> Result<(), Error> {
    let stored = Fields::new(what, bytes).array::<4>(at)?;
    let sum = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_add(u32::from(byte)));
    if u32::from_be_bytes(stored) != !sum(bytes).wrapping_sub(sum(&stored)) {
        return Err(Error::corrupt(format!("{what} has a wrong checksum")));
    }
    Ok(())
}

pub(super) fn open(prologue: &Prologue) -> Result<Step<Box<dyn Layout>>, Error> {
    let Some(bytes) = prologue.want(0..FOOTER as u64)? else {
        return Ok(Step::Need(0..FOOTER as u64));
    };
    let footer = Footer::read(bytes)?;
    match footer.kind {
        DYNAMIC => {}
        DIFFERENCING => {
            return Err(Error::refused(
                "the VHD is a difference to another image; merge it (Merge-VHD) and import the result",
            ));
        }
        other => {
            return Err(Error::refused(format!("VHD type {other} at the front of an image is not known")));
        }
    }
    let mut room = Room::new(prologue.size);
    room.reserve("copy of the VHD footer", 0, FOOTER as u64)?;
    room.reserve("VHD header", footer.header, HEADER as u64)?;
    let place = footer.header..footer.header + HEADER as u64;
    let Some(bytes) = prologue.want(place.clone())? else {
        return Ok(Step::Need(place));
    };
    let header = Fields::new("the VHD header", bytes);
    if header.array(0)? != *b"cxsparse" {
        return Err(Error::corrupt("the VHD header's cookie is missing"));
    }
    check("the VHD header", bytes, 36)?;
    let block = header.be32(32)?;
    if !block.is_power_of_two() || block < 512 {
        return Err(Error::corrupt(format!("a VHD block of {block} bytes is impossible")));
    }
    let block = u64::from(block);
    let blocks = u64::from(header.be32(28)?);
    if blocks * block < footer.size {
        return Err(Error::corrupt(format!(
            "a VHD of {blocks} blocks of {block} bytes cannot hold {} bytes",
            footer.size
        )));
    }
    let bat = header.be64(16)?;
    room.reserve("VHD block table", bat, blocks * 4)?;
    Ok(Step::Ready(Box::new(Vhd {
        size: footer.size,
        block,
        bitmap: (block / (512 * 8)).next_multiple_of(512),
        bat: Table { host: bat, entries: footer.size.div_ceil(block), entry_len: 4 },
        room,
    })))
}

impl Layout for Vhd {
    fn format(&self) -> Format {
        Format::Vhd
    }

    fn virtual_size(&self) -> u64 {
        self.size
    }

    fn unit(&self) -> u64 {
        self.block
    }

    fn root(&self) -> Table {
        self.bat
    }

    fn root_guest(&self, index: u64) -> u64 {
        index.saturating_mul(self.block)
    }

    fn read_root(&self, first: u64, bytes: &[u8], found: &mut TableExtents) -> Result<(), Error> {
        for (index, entry) in (first..self.bat.entries).zip(bytes.as_chunks::<4>().0) {
            let guest = index * self.block;
            let len = self.block.min(self.size - guest);
            let entry = u32::from_be_bytes(*entry);
            let content = if entry == UNUSED {
                Content::Zero
            } else {
                let place = self.room.free("VHD block", u64::from(entry) * 512, self.bitmap + len)?;
                Content::Plain { host: place.start + self.bitmap }
            };
            found.push(Extent { guest, len, content });
        }
        Ok(())
    }
}
