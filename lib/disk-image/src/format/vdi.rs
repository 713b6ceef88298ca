//! VDI 1.1 (VirtualBox), read only: dynamic and static images.
//!
//! Source: the header as VirtualBox declares it (`VDICore.h`); where that leaves a choice, what qemu's `vdi` driver
//! takes. Not here: undo and differencing images, which need another file.
//!
//! ```text
//!  header (512) ─offset_bmap─► map: u32 LE per block ─offset_data─► blocks
//! ```

use super::fields::{Fields, Room};
use super::{Layout, Prologue, Step, Table, TableExtents};
use crate::detect::Format;
use crate::error::Error;
use crate::extent::{Content, Extent};

/// Bytes of the header that are read; version 1.1's own is 400 and more, by its `header_size`.
const HEADER: u64 = 512;
const SIGNATURE: u32 = 0xbeda_107f;
const VERSION: u32 = 0x0001_0001;
/// The one block size that VirtualBox writes and qemu reads, in bytes.
const BLOCK: u64 = 1 << 20;
/// Most blocks qemu takes: 1 PiB.
const BLOCKS_MAX: u32 = 0x3fff_ffff;
/// Entries from this one on are not stored: discarded (zero) and free.
const NOT_STORED: u32 = 0xffff_fffe;

/// An opened VDI. The map is never held, only its place: that of 64 TiB is 256 MiB.
#[derive(Debug)]
struct Vdi {
    size: u64,
    map: Table,
    data: u64,
    room: Room,
}

pub(super) fn open(prologue: &Prologue) -> Result<Step<Box<dyn Layout>>, Error> {
    let Some(bytes) = prologue.want(0..HEADER)? else {
        return Ok(Step::Need(0..HEADER));
    };
    let header = Fields::new("the VDI header", bytes);
    if header.le32(64)? != SIGNATURE {
        return Err(Error::corrupt("not a VDI: its signature is missing"));
    }
    let version = header.le32(68)?;
    if version != VERSION {
        let (major, minor) = (version >> 16, version & 0xffff);
        return Err(Error::refused(format!("VDI version {major}.{minor} is not supported, only 1.1 is")));
    }
    match header.le32(76)? {
        1 | 2 => {}
        3 | 4 => {
            return Err(Error::refused(
                "the VDI is a difference to another image; merge it (VBoxManage clonemedium) and import the result",
            ));
        }
        other => return Err(Error::refused(format!("VDI image type {other} is not known"))),
    }
    if header.array::<16>(424)? != [0; 16] || header.array::<16>(440)? != [0; 16] {
        return Err(Error::refused(
            "the VDI names a parent image; merge it (VBoxManage clonemedium) and import the result",
        ));
    }
    let (sector, block, extra) = (header.le32(360)?, header.le32(376)?, header.le32(380)?);
    if sector != 512 || u64::from(block) != BLOCK || extra != 0 {
        return Err(Error::refused(format!(
            "VDI with sectors of {sector} bytes and blocks of {block}+{extra} bytes: only 512 and 1048576 are supported"
        )));
    }
    let (map, data) = (u64::from(header.le32(340)?), u64::from(header.le32(344)?));
    if map % 512 != 0 || data % 512 != 0 {
        return Err(Error::corrupt("the VDI's map or data is not at a sector"));
    }
    let blocks = header.le32(384)?;
    // VirtualBox makes disks of odd sizes; they end at a sector.
    let size = header.le64(368)?.checked_next_multiple_of(512).unwrap_or(u64::MAX);
    if blocks > BLOCKS_MAX || size > u64::from(blocks) * BLOCK {
        return Err(Error::corrupt(format!("a VDI of {blocks} blocks cannot hold {size} bytes")));
    }
    let mut room = Room::new(prologue.size);
    room.reserve("VDI header", 0, HEADER)?;
    room.reserve("VDI map", map, u64::from(blocks) * 4)?;
    let map = Table { host: map, entries: size.div_ceil(BLOCK), entry_len: 4 };
    Ok(Step::Ready(Box::new(Vdi { size, map, data, room })))
}

impl Layout for Vdi {
    fn format(&self) -> Format {
        Format::Vdi
    }

    fn virtual_size(&self) -> u64 {
        self.size
    }

    fn unit(&self) -> u64 {
        BLOCK
    }

    fn root(&self) -> Table {
        self.map
    }

    fn root_guest(&self, index: u64) -> u64 {
        index.saturating_mul(BLOCK)
    }

    fn read_root(&self, first: u64, bytes: &[u8], found: &mut TableExtents) -> Result<(), Error> {
        for (index, entry) in (first..self.map.entries).zip(bytes.as_chunks::<4>().0) {
            let guest = index * BLOCK;
            let len = BLOCK.min(self.size - guest);
            let entry = u32::from_le_bytes(*entry);
            let content = if entry >= NOT_STORED {
                Content::Zero
            } else {
                let host = self.data + u64::from(entry) * BLOCK;
                self.room.free("VDI block", host, len)?;
                Content::Plain { host }
            };
            found.push(Extent { guest, len, content });
        }
        Ok(())
    }
}
