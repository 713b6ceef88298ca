//! VMDK, read only: sparse extents with their descriptor inside, monolithicSparse and streamOptimized.
//!
//! Source: VMware's "Virtual Disk Format 5.0"; where programs differ, what qemu's `vmdk` driver does. Not here: disks
//! whose data or parent is in another file (flat extents, split disks, snapshots, ESX's COWD), which are refused.
//!
//! ```text
//!  header (512) ─► descriptor (text)
//!               ─gdOffset─► grain directory: u32 LE sectors ─► grain tables: u32 LE sectors ─► grains
//!  streamOptimized: each grain is a marker (LBA, size) and a zlib stream; the directory may come last, with a footer
//!  (a second header) and an end-of-stream marker behind it.
//! ```

use super::fields::{Fields, Room};
use super::{Layout, Leaf, Prologue, Scan, Scanned, Step, Table, TableExtents};
use crate::detect::Format;
use crate::error::{Error, Kind};
use crate::extent::{Codec, Content, Extent};

const SECTOR: u64 = 512;
const HEADER: u64 = 512;
/// Footer marker, footer, end-of-stream marker.
const FOOTER: u64 = 3 * SECTOR;
/// `gdOffset` of a header that leaves the directory's place to the footer.
const AT_END: u64 = u64::MAX;
/// Longest descriptor that is read, in sectors.
const DESCRIPTOR_MAX: u64 = 2048;
/// Grain sizes in sectors: 4 KiB to 1 GiB, packed ones to 2 MiB.
const GRAIN_MIN: u64 = 8;
const GRAIN_MAX: u64 = 0x20_0000;
const PACKED_GRAIN_MAX: u64 = 4096;
const TABLE_ENTRIES_MAX: u32 = 512;
const DIRECTORY_ENTRIES_MAX: u64 = 32 << 20;

// Flags of the header.
const NEWLINE_TEST: u32 = 1;
const REDUNDANT_DIRECTORY: u32 = 1 << 1;
const ZEROED_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const MARKERS: u32 = 1 << 17;
const KNOWN_FLAGS: u32 = NEWLINE_TEST | REDUNDANT_DIRECTORY | ZEROED_GRAINS | COMPRESSED | MARKERS;

/// Bytes before a packed grain: LBA and size.
const GRAIN_MARKER: u64 = 12;
// Types of the markers without a size.
const END_OF_STREAM: u32 = 0;
const GRAIN_TABLE: u32 = 1;
const DIRECTORY: u32 = 2;
const FOOTER_FOLLOWS: u32 = 3;

/// Fields of a header, in bytes and validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    size: u64,
    grain: u64,
    table_entries: u32,
    zeroed_grains: bool,
    packed: bool,
    /// Offset of the grain directory, `None` when the footer has it.
    directory: Option<u64>,
    descriptor: u64,
    descriptor_len: u64,
    /// Everything before this offset is no grain.
    overhead: u64,
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Self, Error> {
        let fields = Fields::new("the VMDK header", bytes);
        if !bytes.starts_with(b"KDMV") {
            return Err(Error::corrupt("not a sparse VMDK extent: its magic is missing"));
        }
        let (version, flags) = (fields.le32(4)?, fields.le32(8)?);
        if !(1..=3).contains(&version) {
            return Err(Error::refused(format!("VMDK version {version} is not supported, 1 to 3 are")));
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Error::refused(format!("VMDK flags {:#x} are not known", flags & !KNOWN_FLAGS)));
        }
        if flags & NEWLINE_TEST != 0 && fields.array(73)? != *b"\n \r\n" {
            return Err(Error::corrupt("the VMDK was damaged by a transfer in text mode"));
        }
        let packed = match (fields.le16(77)?, flags & COMPRESSED != 0, flags & MARKERS != 0) {
            (0, false, false) => false,
            (1, true, true) => true,
            (algorithm, _, _) => {
                return Err(Error::refused(format!(
                    "VMDK compression {algorithm} with flags {flags:#x} is not supported"
                )));
            }
        };
        let grain = fields.le64(20)?;
        let most = if packed { PACKED_GRAIN_MAX } else { GRAIN_MAX };
        if !grain.is_power_of_two() || !(GRAIN_MIN..=most).contains(&grain) {
            return Err(Error::refused(format!("a VMDK grain of {grain} sectors is not supported")));
        }
        let table_entries = fields.le32(44)?;
        if !(1..=TABLE_ENTRIES_MAX).contains(&table_entries) {
            return Err(Error::corrupt(format!(
                "VMDK grain tables of {table_entries} entries are impossible"
            )));
        }
        let directory = fields.le64(56)?;
        let header = Self {
            size: bytes_of("capacity", fields.le64(12)?)?,
            grain: grain * SECTOR,
            table_entries,
            zeroed_grains: flags & ZEROED_GRAINS != 0,
            packed,
            directory: if directory == AT_END { None } else { Some(bytes_of("grain directory", directory)?) },
            descriptor: bytes_of("descriptor", fields.le64(28)?)?,
            descriptor_len: bytes_of("descriptor", fields.le64(36)?)?,
            overhead: bytes_of("overhead", fields.le64(64)?)?,
        };
        if header.directory_entries() > DIRECTORY_ENTRIES_MAX {
            return Err(Error::corrupt(format!(
                "a VMDK of {} bytes in grains of {} bytes is too large",
                header.size, header.grain
            )));
        }
        Ok(header)
    }

    /// Guest bytes of one grain table.
    fn table_span(&self) -> u64 {
        self.grain * u64::from(self.table_entries)
    }

    fn directory_entries(&self) -> u64 {
        self.size.div_ceil(self.table_span())
    }

    /// A packed grain of at most `stored` bytes at `host`, of which the disk takes `len`.
    fn packed_grain(&self, host: u64, stored: u32, len: u64) -> Content {
        let codec = match u32::try_from(len) {
            Ok(len) if u64::from(len) < self.grain => Codec::VmdkLastGrain { len },
            Ok(_) | Err(_) => Codec::VmdkGrain,
        };
        Content::Packed { host, len: stored, codec }
    }

    /// Upper bound of a packed grain with its marker: what does not deflate grows a little.
    fn packed_max(&self) -> u64 {
        if self.packed { (GRAIN_MARKER + self.grain + self.grain / 8).next_multiple_of(SECTOR) } else { 0 }
    }
}

/// A number of sectors as bytes.
fn bytes_of(what: &str, sectors: u64) -> Result<u64, Error> {
    let bytes = sectors.checked_mul(SECTOR).filter(|&bytes| i64::try_from(bytes).is_ok());
    bytes.ok_or_else(|| Error::corrupt(format!("the VMDK's {what} of {sectors} sectors is impossible")))
}

/// An opened sparse extent.
#[derive(Debug)]
struct Vmdk {
    header: Header,
    directory: Table,
    room: Room,
    /// The header leaves the directory's place to the footer.
    footer: bool,
}

/// Opens a sparse extent. When the directory comes last it is asked for if the image's size is known; without a size
/// the layout's tables have no place and only its scan reads it ([`Layout::has_tables`]).
pub(super) fn open(prologue: &Prologue) -> Result<Step<Box<dyn Layout>>, Error> {
    let Some(front) = prologue.front() else {
        return Ok(Step::Need(0..HEADER));
    };
    refuse_other_kinds(front)?;
    let Some(bytes) = prologue.want(0..HEADER)? else {
        return Ok(Step::Need(0..HEADER));
    };
    let first = Header::read(bytes)?;
    let mut room = Room::new(prologue.size);
    room.reserve("VMDK header", 0, HEADER)?;

    let len = first.descriptor_len;
    if len == 0 || first.descriptor == 0 {
        return Err(one_of_several());
    }
    if len > DESCRIPTOR_MAX * SECTOR {
        return Err(Error::corrupt(format!("a VMDK descriptor of {len} bytes is impossible")));
    }
    room.reserve("VMDK descriptor", first.descriptor, len)?;
    let place = first.descriptor..first.descriptor + len;
    let Some(bytes) = prologue.want(place.clone())? else {
        return Ok(Step::Need(place));
    };
    // The parts of a split disk have room for a descriptor, and none in it.
    if bytes.iter().all(|&byte| byte == 0) {
        return Err(one_of_several());
    }
    check_descriptor(&String::from_utf8_lossy(bytes))?;

    let header = match (first.directory, prologue.size) {
        (Some(_), _) => first,
        (None, Some(size)) => {
            let end = size / SECTOR * SECTOR;
            let place = end.saturating_sub(FOOTER)..end;
            let Some(bytes) = prologue.want(place.clone())? else {
                return Ok(Step::Need(place));
            };
            // As the format and qemu have it: where the two differ, the footer is right.
            read_footer(bytes)?
        }
        (None, None) => {
            // Past any image, so that reading it by mistake fails.
            let directory = Table { host: 1 << 62, entries: first.directory_entries(), entry_len: 4 };
            return Ok(Step::Ready(Box::new(Vmdk { header: first, directory, room, footer: true })));
        }
    };
    let host =
        header.directory.ok_or_else(|| Error::corrupt("the VMDK's footer does not name its directory"))?;
    let directory = Table { host, entries: header.directory_entries(), entry_len: 4 };
    room.reserve("VMDK grain directory", host, directory.entries * 4)?;
    let footer = first.directory.is_none();
    Ok(Step::Ready(Box::new(Vmdk { header, directory, room, footer })))
}

/// The three sectors that end a stream: footer marker, footer, end-of-stream marker.
fn read_footer(bytes: &[u8]) -> Result<Header, Error> {
    let fields = Fields::new("the VMDK footer", bytes);
    let (before, after) = ((fields.le32(8)?, fields.le32(12)?), (fields.le32(1032)?, fields.le32(1036)?));
    if before != (0, FOOTER_FOLLOWS) || after != (0, END_OF_STREAM) || fields.le64(1024)? != 0 {
        return Err(Error::corrupt("the VMDK's footer is missing: the image is incomplete"));
    }
    Header::read(bytes.get(512..1024).unwrap_or_default())
}

/// For a walk, which has gone by the header: the footer must repeat it, but for where things lie.
fn agree(header: &Header, footer: &Header) -> Result<(), Error> {
    let shape = |h: &Header| (h.size, h.grain, h.table_entries, h.packed);
    if shape(header) != shape(footer) {
        return Err(Error::corrupt("the VMDK's header and footer contradict each other"));
    }
    Ok(())
}

fn one_of_several() -> Error {
    elsewhere(
        "the VMDK is one part of a disk that is split into several files, and its descriptor is in another file",
    )
}

fn elsewhere(what: &str) -> Error {
    Error::refused(format!(
        "{what}; make one file of it (qemu-img convert, or vmware-vdiskmanager -r … -t 0) and import that"
    ))
}

/// Refuses what is a VMDK but no sparse extent.
fn refuse_other_kinds(front: &[u8]) -> Result<(), Error> {
    if front.starts_with(b"COWD") {
        return Err(elsewhere("the VMDK is an ESX sparse extent (COWD)"));
    }
    let text = b"# disk descriptorfile";
    if front.get(..text.len()).is_some_and(|front| front.eq_ignore_ascii_case(text)) {
        return Err(refuse_descriptor(&String::from_utf8_lossy(front)));
    }
    Ok(())
}

/// A descriptor in a file of its own: what to import instead depends on how many files it names.
fn refuse_descriptor(text: &str) -> Error {
    let mut extents = text.lines().map(str::trim).filter(|line| is_extent(line));
    let flat = |line: &str| matches!(line.split_whitespace().nth(2), Some("FLAT" | "VMFS"));
    if extents.next().is_none_or(flat) && extents.next().is_none() {
        return Error::refused(
            "the VMDK is a descriptor only, the data is in another file; import that (the -flat.vmdk or -f001.vmdk)",
        );
    }
    elsewhere("the VMDK is a descriptor only, the data is in other files")
}

/// Whether a line of a descriptor names a file.
fn is_extent(line: &str) -> bool {
    ["RW ", "RDONLY ", "NOACCESS "].iter().any(|access| line.starts_with(access))
}

/// Reads the embedded descriptor for signs that the disk is not in this file alone.
fn check_descriptor(text: &str) -> Result<(), Error> {
    let mut kind = None;
    let mut extents = 0;
    for line in text.split(['\n', '\0']).map(str::trim) {
        if is_extent(line) {
            extents += 1;
            if line.split_whitespace().nth(2) != Some("SPARSE") {
                return Err(elsewhere("the VMDK's data is in another file"));
            }
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let value = value.trim().trim_matches('"');
        match key.trim().to_ascii_lowercase().as_str() {
            "createtype" => kind = Some(value),
            "parentcid" if !value.eq_ignore_ascii_case("ffffffff") => {
                return Err(elsewhere("the VMDK is a difference to another image"));
            }
            "parentfilenamehint" if !value.is_empty() => {
                return Err(elsewhere("the VMDK is a difference to another image"));
            }
            "encryption.keysafe" | "datafilekey" => {
                return Err(Error::refused("the VMDK is encrypted; decrypt it and import the result"));
            }
            _ => {}
        }
    }
    match kind {
        Some(kind)
            if ["monolithicSparse", "streamOptimized"].iter().any(|k| k.eq_ignore_ascii_case(kind)) => {}
        Some(kind) => {
            return Err(elsewhere(&format!("a VMDK of type {} is not one file", kind.escape_default())));
        }
        None => {
            return Err(Error::refused("the VMDK's descriptor has no createType"));
        }
    }
    if extents != 1 {
        return Err(elsewhere(&format!("the VMDK consists of {extents} extents")));
    }
    Ok(())
}

impl Layout for Vmdk {
    fn format(&self) -> Format {
        Format::Vmdk
    }

    fn virtual_size(&self) -> u64 {
        self.header.size
    }

    fn unit(&self) -> u64 {
        self.header.grain
    }

    fn root(&self) -> Table {
        self.directory
    }

    fn root_guest(&self, index: u64) -> u64 {
        index.saturating_mul(self.header.table_span())
    }

    fn has_tables(&self) -> bool {
        self.header.directory.is_some()
    }

    fn read_root(&self, first: u64, bytes: &[u8], found: &mut TableExtents) -> Result<(), Error> {
        let span = self.header.table_span();
        for (index, entry) in (first..self.directory.entries).zip(bytes.as_chunks::<4>().0) {
            let guest = index * span;
            let len = span.min(self.header.size - guest);
            let host = u64::from(u32::from_le_bytes(*entry)) * SECTOR;
            if host == 0 {
                found.push(Extent { guest, len, content: Content::Zero });
                continue;
            }
            let entries = len.div_ceil(self.header.grain);
            self.room.free("VMDK grain table", host, entries * 4)?;
            found.leaves.push(Leaf { index, table: Table { host, entries, entry_len: 4 } });
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
        let start = self.root_guest(leaf.index);
        for (index, entry) in (first..leaf.table.entries).zip(bytes.as_chunks::<4>().0) {
            let guest = index.saturating_mul(self.header.grain).saturating_add(start);
            let len = self.header.grain.min(self.header.size.saturating_sub(guest));
            let entry = u32::from_le_bytes(*entry);
            let content = if entry == 0 || (entry == 1 && self.header.zeroed_grains) {
                Content::Zero
            } else {
                self.grain(u64::from(entry) * SECTOR, len)?
            };
            found.push(Extent { guest, len, content });
        }
        Ok(())
    }

    fn packed_max(&self) -> u32 {
        u32::try_from(self.header.packed_max()).unwrap_or(u32::MAX)
    }

    fn walked_as_stream(&self) -> bool {
        self.header.packed && self.footer
    }

    fn scan(&self) -> Option<Box<dyn Scan>> {
        let walk = self.header.packed && !self.has_tables();
        walk.then(|| -> Box<dyn Scan> { Box::new(Walk { header: self.header, guest: 0, footer: false }) })
    }
}

impl Vmdk {
    /// The grain at `host`, of which the disk takes `len` bytes.
    fn grain(&self, host: u64, len: u64) -> Result<Content, Error> {
        if !self.header.packed {
            self.room.free("VMDK grain", host, len)?;
            return Ok(Content::Plain { host });
        }
        // How long it is stands in its marker only: up to the longest, or the image's end.
        self.room.free("VMDK grain", host, GRAIN_MARKER)?;
        let most = self.room.size().map_or(u64::MAX, |size| size - host).min(self.header.packed_max());
        let stored = u32::try_from(most).unwrap_or(u32::MAX);
        Ok(self.header.packed_grain(host, stored, len))
    }
}

/// A forward walk over the markers of a stream.
#[derive(Debug)]
struct Walk {
    header: Header,
    /// End of the last grain: they come in ascending order, each once.
    guest: u64,
    footer: bool,
}

impl Scan for Walk {
    fn next(&mut self, at: u64, bytes: &[u8]) -> Result<Scanned, Error> {
        if at < self.header.overhead.max(HEADER) {
            return Ok(Scanned::Skip(self.header.overhead.max(HEADER).next_multiple_of(SECTOR)));
        }
        if bytes.len() < 16 {
            return Ok(Scanned::More(16));
        }
        let marker = Fields::new("a VMDK marker", bytes);
        let (value, size, kind) = (marker.le64(0)?, marker.le32(8)?, marker.le32(12)?);
        if size > 0 {
            return self.grain(at, value, u64::from(size));
        }
        match kind {
            // Zeroes before the footer are padding.
            END_OF_STREAM if self.footer => Ok(Scanned::End),
            END_OF_STREAM if value == 0 => Ok(Scanned::Skip(at + SECTOR)),
            GRAIN_TABLE | DIRECTORY => {
                let most =
                    (self.header.directory_entries() * 4).max(u64::from(self.header.table_entries) * 4);
                if value > most.div_ceil(SECTOR) {
                    return Err(Error::corrupt(format!(
                        "the VMDK table at offset {at} of {value} sectors is impossible"
                    )));
                }
                Ok(Scanned::Skip(at + SECTOR + value * SECTOR))
            }
            FOOTER_FOLLOWS => {
                let Some(footer) = bytes.get(512..1024) else {
                    return Ok(Scanned::More(1024));
                };
                agree(&self.header, &Header::read(footer)?)?;
                self.footer = true;
                Ok(Scanned::Skip(at + 2 * SECTOR))
            }
            _ => Err(Error::corrupt(format!("the VMDK marker {kind} at offset {at} is unknown"))),
        }
    }
}

impl Walk {
    fn grain(&mut self, at: u64, lba: u64, size: u64) -> Result<Scanned, Error> {
        let guest = lba.checked_mul(SECTOR).filter(|g| g % self.header.grain == 0 && *g < self.header.size);
        let Some(guest) = guest else {
            return Err(Error::corrupt(format!(
                "the VMDK grain at offset {at} for sector {lba} is impossible"
            )));
        };
        if guest < self.guest {
            return Err(Error::new(
                Kind::NotStreamable,
                format!("the VMDK grain at offset {at} for sector {lba} is out of order"),
            ));
        }
        let stored = (GRAIN_MARKER + size).next_multiple_of(SECTOR);
        let len = u32::try_from(stored).ok().filter(|_| stored <= self.header.packed_max());
        let Some(stored_len) = len else {
            return Err(Error::corrupt(format!("the VMDK grain at offset {at} of {size} bytes is too long")));
        };
        self.guest = guest + self.header.grain;
        let len = self.header.grain.min(self.header.size - guest);
        let content = self.header.packed_grain(at, stored_len, len);
        Ok(Scanned::Extent { extent: Extent { guest, len, content }, next: at + stored })
    }
}
