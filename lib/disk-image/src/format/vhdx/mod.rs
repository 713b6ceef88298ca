//! VHDX (Hyper-V), read only: fixed and dynamic images. One that was not closed cleanly is read through the changes of its
//! log (`log`).
//!
//! Source: MS-VHDX, sections 2.1 to 2.6; where it leaves a choice, what qemu's `vhdx` driver does. Not here: differencing
//! images, which need another file.
//!
//! ```text
//!  0      file identifier
//!  64 K   header 1, header 2 (128 K): the valid one with the higher sequence number counts
//!                                   ──► log: changes to what follows that may not be in their place
//!  192 K  region table 1, 2 (256 K) ──► metadata region: block size, disk size, sector size
//!                                   ──► BAT: u64 LE per block, after each `ratio` blocks one for a sector bitmap
//! ```

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::fields::{Fields, Room};
use super::{Layout, Prologue, Step, Table, TableExtents};
use crate::detect::Format;
use crate::error::Error;
use crate::extent::{Content, Extent};
use crate::overlay::Overlay;

mod log;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The first MiB of every VHDX: two headers and two region tables, 64 KiB each, from 64 KiB on.
const FRONT: Range<u64> = 64 * KIB..320 * KIB;
const HEADER: usize = 4096;
const TABLE: usize = 64 << 10;
/// Most entries of a region or metadata table.
const ENTRIES_MAX: u16 = 2047;
/// Longest log that is replayed, in bytes; Hyper-V and qemu make logs of 1 MiB.
const LOG_MAX: u32 = 4 << 20;
const SIZE_MAX: u64 = 64 << 40;
/// Sectors that one sector-bitmap block describes.
const SECTORS_PER_BITMAP: u64 = 1 << 23;

// GUIDs as they are stored.
const BAT: [u8; 16] = guid(0x2dc2_7766, 0xf623, 0x4200, 0x9d64_115e_9bfd_4a08);
const METADATA: [u8; 16] = guid(0x8b7c_a206, 0x4790, 0x4b9a, 0xb8fe_575f_050f_886e);
const FILE_PARAMETERS: [u8; 16] = guid(0xcaa1_6737, 0xfa36, 0x4d43, 0xb3b6_33f0_aa44_e76b);
const DISK_SIZE: [u8; 16] = guid(0x2fa5_4224, 0xcd1b, 0x4876, 0xb211_5dbe_d83b_f4b8);
const DISK_ID: [u8; 16] = guid(0xbeca_12ab, 0xb2e6, 0x4523, 0x93ef_c309_e000_c746);
const LOGICAL_SECTOR: [u8; 16] = guid(0x8141_bf1d, 0xa96f, 0x4709, 0xba47_f233_a8fa_ab5f);
const PHYSICAL_SECTOR: [u8; 16] = guid(0xcda3_48c7, 0x445d, 0x4471, 0x9cc9_e988_5251_c556);
const PARENT_LOCATOR: [u8; 16] = guid(0xa8d3_5f2d, 0xb30b, 0x454d, 0xabf7_d3d8_4834_ab0c);

/// The stored form of the GUID `a-b-c-d`: three little-endian numbers, then bytes in order.
const fn guid(a: u32, b: u16, c: u16, d: u64) -> [u8; 16] {
    let [a0, a1, a2, a3] = a.to_le_bytes();
    let [b0, b1] = b.to_le_bytes();
    let [c0, c1] = c.to_le_bytes();
    let [d0, d1, d2, d3, d4, d5, d6, d7] = d.to_be_bytes();
    [a0, a1, a2, a3, b0, b1, c0, c1, d0, d1, d2, d3, d4, d5, d6, d7]
}

/// An opened VHDX.
#[derive(Debug)]
struct Vhdx {
    size: u64,
    block: u64,
    /// Blocks between two sector-bitmap entries of the BAT.
    ratio: u64,
    bat: Table,
    room: Room,
    /// Changes of the log.
    overlay: Option<Arc<Overlay>>,
}

pub(super) fn open(prologue: &Prologue) -> Result<Step<Box<dyn Layout>>, Error> {
    let Some(identifier) = prologue.want(0..8)? else {
        return Ok(Step::Need(0..8));
    };
    if identifier != b"vhdxfile" {
        return Err(Error::corrupt("not a VHDX: its signature is missing"));
    }
    let Some(front) = prologue.want(FRONT)? else {
        return Ok(Step::Need(FRONT));
    };
    let mut room = Room::new(prologue.size);
    room.reserve("VHDX file header", 0, MIB)?;

    let header = Header::current(front)?;
    let (log, log_len) = (header.log, u64::from(header.log_len));
    let mut overlay = None;
    if log_len > 0 {
        if log % MIB != 0 || log_len % MIB != 0 {
            return Err(Error::corrupt(format!("the VHDX log at {log} of {log_len} bytes is not at a MiB")));
        }
        room.reserve("VHDX log", log, log_len)?;
        if header.log_id != [0; 16] {
            if header.log_len > LOG_MAX {
                return Err(long_log(header.log_len));
            }
            let place = log..log + log_len;
            let Some(bytes) = prologue.want(place.clone())? else {
                return Ok(Step::Need(place));
            };
            overlay = log::replay(bytes, &place, header.log_id)?.map(Arc::new);
        }
    }
    if let (Some(overlay), Some(size)) = (&overlay, prologue.size) {
        room.grow(overlay.size(size)?);
    }
    let changed = Changed { prologue, overlay: overlay.as_deref() };

    let Some(front) = changed.want(FRONT)? else {
        return Ok(Step::Need(FRONT));
    };
    let regions = Regions::read(&front, &mut room)?;
    let place = regions.metadata..regions.metadata + TABLE as u64;
    let Some(bytes) = changed.want(place.clone())? else {
        return Ok(Step::Need(place));
    };
    let items = Items::read(&bytes, &regions)?;
    let mut fields = [0_u64; 3];
    for (field, (what, item, len)) in fields.iter_mut().zip([
        ("the VHDX file parameters", items.parameters, 8),
        ("the VHDX disk size", items.size, 8),
        ("the VHDX sector size", items.sector, 4),
    ]) {
        let at = item.ok_or_else(|| Error::corrupt(format!("{what} is missing")))?;
        let Some(bytes) = changed.want(at..at + len)? else {
            return Ok(Step::Need(at..at + len));
        };
        let value = Fields::new(what, &bytes);
        *field = if len == 8 { value.le64(0)? } else { u64::from(value.le32(0)?) };
    }
    let [parameters, size, sector] = fields;
    layout(parameters, size, sector, &regions, room, overlay)
}

/// The pieces of an image with the changes of its log.
struct Changed<'a> {
    prologue: &'a Prologue,
    overlay: Option<&'a Overlay>,
}

impl<'a> Changed<'a> {
    /// As [`Prologue::want`].
    fn want(&self, range: Range<u64>) -> Result<Option<Cow<'a, [u8]>>, Error> {
        let Some(bytes) = self.prologue.want(range.clone())? else {
            return Ok(None);
        };
        let mut bytes = Cow::Borrowed(bytes);
        if let Some(overlay) = self.overlay {
            overlay.apply(range.start, bytes.to_mut());
        }
        Ok(Some(bytes))
    }
}

/// Builds the geometry from the metadata.
fn layout(
    parameters: u64,
    size: u64,
    sector: u64,
    regions: &Regions,
    room: Room,
    overlay: Option<Arc<Overlay>>,
) -> Result<Step<Box<dyn Layout>>, Error> {
    let (block, flags) = (parameters & 0xffff_ffff, parameters >> 32);
    if flags & 2 != 0 {
        return Err(parent());
    }
    if flags & !1 != 0 {
        return Err(Error::refused(format!("VHDX file parameters {flags:#x} are not known")));
    }
    if !block.is_power_of_two() || !(MIB..=256 * MIB).contains(&block) {
        return Err(Error::corrupt(format!("a VHDX block of {block} bytes is impossible")));
    }
    if sector != 512 && sector != 4096 {
        return Err(Error::corrupt(format!("a VHDX sector of {sector} bytes is impossible")));
    }
    if !size.is_multiple_of(sector) || size > SIZE_MAX {
        return Err(Error::corrupt(format!("a VHDX disk of {size} bytes is impossible")));
    }
    let ratio = SECTORS_PER_BITMAP * sector / block;
    let blocks = size.div_ceil(block);
    let entries = blocks + blocks.saturating_sub(1) / ratio;
    if entries * 8 > regions.bat_len {
        return Err(Error::corrupt(format!(
            "the VHDX block table of {} bytes cannot hold the {entries} entries of {size} bytes",
            regions.bat_len
        )));
    }
    let bat = Table { host: regions.bat, entries, entry_len: 8 };
    Ok(Step::Ready(Box::new(Vhdx { size, block, ratio, bat, room, overlay })))
}

fn long_log(len: u32) -> Error {
    Error::refused(format!(
        "the VHDX was not closed cleanly and its log has {len} bytes, more than the {LOG_MAX} that are replayed; attach \
         and detach it once (Mount-VHD, or qemu-img check -r all) and import it again"
    ))
}

fn parent() -> Error {
    Error::refused("the VHDX is a difference to another image; merge it (Merge-VHD) and import the result")
}

/// Fields of a header (MS-VHDX 2.2.2).
struct Header {
    sequence: u64,
    log_id: [u8; 16],
    log_version: u16,
    log_len: u32,
    log: u64,
}

impl Header {
    /// The header in force: the valid one, of two valid ones that with the higher sequence number.
    fn current(front: &[u8]) -> Result<Self, Error> {
        let (one, two) = (&front[..HEADER], &front[TABLE..TABLE + HEADER]);
        let header = match (Self::read(one), Self::read(two)) {
            (Some(first), Some(second)) => {
                // Disk2vhd writes the same header twice.
                if first.sequence == second.sequence && one != two {
                    return Err(Error::corrupt("both VHDX headers claim to be the current one"));
                }
                if second.sequence > first.sequence { second } else { first }
            }
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return Err(Error::corrupt("neither VHDX header is valid")),
        };
        if header.log_version != 0 {
            return Err(Error::refused(format!("VHDX log version {} is not known", header.log_version)));
        }
        Ok(header)
    }

    /// `None` when it is not valid.
    fn read(bytes: &[u8]) -> Option<Self> {
        let fields = Fields::new("the VHDX header", bytes);
        let version = fields.le16(66).ok()?;
        if !bytes.starts_with(b"head") || version != 1 || !checksum_is_right(bytes) {
            return None;
        }
        Some(Self {
            sequence: fields.le64(8).ok()?,
            log_id: fields.array(48).ok()?,
            log_version: fields.le16(64).ok()?,
            log_len: fields.le32(68).ok()?,
            log: fields.le64(72).ok()?,
        })
    }
}

/// Where the two regions that count lie (MS-VHDX 2.2.3).
struct Regions {
    bat: u64,
    bat_len: u64,
    metadata: u64,
    metadata_len: u64,
}

impl Regions {
    fn read(front: &[u8], room: &mut Room) -> Result<Self, Error> {
        let tables = [&front[2 * TABLE..3 * TABLE], &front[3 * TABLE..4 * TABLE]];
        let table = tables.into_iter().find(|table| table.starts_with(b"regi") && checksum_is_right(table));
        let table = table.ok_or_else(|| Error::corrupt("neither VHDX region table is valid"))?;
        let fields = Fields::new("the VHDX region table", table);
        let count = fields.le32(8)?;
        if count > u32::from(ENTRIES_MAX) {
            return Err(Error::corrupt(format!("a VHDX region table of {count} entries is impossible")));
        }
        let (mut bat, mut metadata) = (None, None);
        for entry in table[16..].as_chunks::<32>().0.iter().take(usize::try_from(count).unwrap_or_default()) {
            let entry = Fields::new("a VHDX region", entry);
            let (id, host, len) = (entry.array::<16>(0)?, entry.le64(16)?, entry.le32(24)?);
            let (what, slot) = match id {
                BAT => ("VHDX block table", &mut bat),
                METADATA => ("VHDX metadata", &mut metadata),
                _ if entry.le32(28)? & 1 != 0 => {
                    return Err(Error::refused("the VHDX needs a region that is not known"));
                }
                _ => continue,
            };
            if host % MIB != 0 || u64::from(len) % MIB != 0 || len == 0 {
                return Err(Error::corrupt(format!("the {what} at {host} of {len} bytes is not at a MiB")));
            }
            if slot.replace((host, u64::from(len))).is_some() {
                return Err(Error::corrupt(format!("the {what} is named twice")));
            }
            room.reserve(what, host, u64::from(len))?;
        }
        let missing = |what| move || Error::corrupt(format!("the VHDX names no {what}"));
        let (bat, bat_len) = bat.ok_or_else(missing("block table"))?;
        let (metadata, metadata_len) = metadata.ok_or_else(missing("metadata"))?;
        Ok(Self { bat, bat_len, metadata, metadata_len })
    }
}

/// Host offsets of the metadata items that are read (MS-VHDX 2.6).
#[derive(Default)]
struct Items {
    parameters: Option<u64>,
    size: Option<u64>,
    sector: Option<u64>,
}

impl Items {
    fn read(table: &[u8], regions: &Regions) -> Result<Self, Error> {
        let fields = Fields::new("the VHDX metadata table", table);
        let count = fields.le16(10)?;
        if !table.starts_with(b"metadata") || count > ENTRIES_MAX {
            return Err(Error::corrupt("the VHDX metadata table is damaged"));
        }
        let mut items = Self::default();
        for entry in table[32..].as_chunks::<32>().0.iter().take(usize::from(count)) {
            let entry = Fields::new("a VHDX metadata item", entry);
            let (id, offset, len) = (entry.array::<16>(0)?, entry.le32(16)?, entry.le32(20)?);
            let (slot, wanted) = match id {
                FILE_PARAMETERS => (&mut items.parameters, 8),
                DISK_SIZE => (&mut items.size, 8),
                LOGICAL_SECTOR => (&mut items.sector, 4),
                DISK_ID | PHYSICAL_SECTOR => continue,
                PARENT_LOCATOR => return Err(parent()),
                _ if entry.le32(24)? & 4 != 0 => {
                    return Err(Error::refused("the VHDX needs metadata that is not known"));
                }
                _ => continue,
            };
            let offset = u64::from(offset);
            if offset < TABLE as u64 || offset + u64::from(len) > regions.metadata_len || len < wanted {
                return Err(Error::corrupt(format!(
                    "VHDX metadata at {offset} of {len} bytes is impossible"
                )));
            }
            if slot.replace(regions.metadata + offset).is_some() {
                return Err(Error::corrupt("VHDX metadata is given twice"));
            }
        }
        Ok(items)
    }
}

/// Compares the CRC-32C at offset 4 with that of all bytes, its own place taken as zero.
fn checksum_is_right(bytes: &[u8]) -> bool {
    let stored = Fields::new("a checksum", bytes).le32(4);
    stored.is_ok_and(|stored| crc32c_without_own(bytes) == !stored)
}

/// The running CRC-32C of bytes with a checksum at offset 4, which counts as zero.
fn crc32c_without_own(bytes: &[u8]) -> u32 {
    let (before, after) = (bytes.get(..4).unwrap_or_default(), bytes.get(8..).unwrap_or_default());
    crc32c(crc32c(crc32c(u32::MAX, before), &[0; 4]), after)
}

/// Continues a running CRC-32C (Castagnoli): starts at all ones, and the sum is its complement. Eight bytes at a
/// time by eight tables, so that a log of MiB costs milliseconds.
fn crc32c(mut sum: u32, bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let word = (u64::from_le_bytes(*eight) ^ u64::from(sum)).to_le_bytes();
        sum = CRC.iter().zip(word).fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)]);
    }
    let [.., last] = &CRC;
    rest.iter().fold(sum, |sum, &byte| {
        let [low, ..] = sum.to_le_bytes();
        last[usize::from(low ^ byte)] ^ (sum >> 8)
    })
}

/// Effect of a byte on the sum when `7 - row` more bytes follow it.
const CRC: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut row = 8;
    while row > 0 {
        row -= 1;
        let mut byte = 0;
        let mut start = 0_u32;
        while byte < 256 {
            // A row goes on where the next one ended, with one zero byte more.
            let mut sum = if row == 7 { start } else { tables[row + 1][byte] };
            let mut bit = 0;
            while bit < 8 {
                sum = if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
                bit += 1;
            }
            tables[row][byte] = sum;
            byte += 1;
            start += 1;
        }
    }
    tables
};

impl Vhdx {
    /// Blocks that stand before BAT entry `index`, sector-bitmap entries left out.
    fn block_of(&self, index: u64) -> u64 {
        index - index / (self.ratio + 1)
    }

    /// Whether BAT entry `index` is for a sector bitmap, which only differencing images use.
    fn is_bitmap(&self, index: u64) -> bool {
        index % (self.ratio + 1) == self.ratio
    }
}

impl Layout for Vhdx {
    fn format(&self) -> Format {
        Format::Vhdx
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
        self.block_of(index).saturating_mul(self.block)
    }

    fn overlay(&self) -> Option<&Arc<Overlay>> {
        self.overlay.as_ref()
    }

    fn note(&self) -> Option<&'static str> {
        self.overlay.as_ref().map(
            |_| "the VHDX was not closed cleanly: it is read with the changes of its log, and stays as it is",
        )
    }

    fn read_root(&self, first: u64, bytes: &[u8], found: &mut TableExtents) -> Result<(), Error> {
        for (index, entry) in (first..self.bat.entries).zip(bytes.as_chunks::<8>().0) {
            if self.is_bitmap(index) {
                continue;
            }
            let guest = self.block_of(index) * self.block;
            let len = self.block.min(self.size - guest);
            let entry = u64::from_le_bytes(*entry);
            let content = match entry & 7 {
                // Not present, undefined, zero, unmapped, and unmapped as drafts of the format had it.
                0..=3 | 5 => Content::Zero,
                6 => {
                    // Bits 3 to 19 are reserved, the offset above them counts MiB.
                    let host = (entry >> 20) * MIB;
                    self.room.free("VHDX block", host, len)?;
                    Content::Plain { host }
                }
                7 => return Err(parent()),
                state => {
                    return Err(Error::corrupt(format!(
                        "VHDX block state {state} at guest offset {guest} is unknown"
                    )));
                }
            };
            found.push(Extent { guest, len, content });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_usual_test_string() {
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
        for cut in 0..9 {
            let (front, back) = b"123456789".split_at(cut);
            assert_eq!(!crc32c(crc32c(u32::MAX, front), back), 0xe306_9283, "in two pieces, cut at {cut}");
        }
    }
}
