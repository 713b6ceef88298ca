//! Parses and validates a qcow2 header. Pure: bytes in, [`Header`] or an error out.
//!
//! After QEMU's `docs/interop/qcow2.txt`, sections "Header", "Header extensions" and "Feature name table"; where the
//! text is silent, after what `qemu-img convert` accepts. Not here: the tables (see [`super`]).

use std::ops::Range;

use crate::error::Error;

/// "QFI\xfb".
const MAGIC: u32 = 0x5146_49fb;
/// Length of a version 2 header, in bytes.
const LEN_V2: u32 = 72;
/// Shortest version 3 header, in bytes.
const LEN_V3: u32 = 104;
/// Offset of the compression type, which only a longer header has.
const COMPRESSION_TYPE: u32 = 104;
/// Bytes asked for at first; enough for every header and, as a rule, its extensions.
pub(super) const FRONT: u64 = 4096;
/// Largest L1 table, in bytes (QEMU's limit as well).
const L1_MAX: u64 = 32 << 20;
/// Longest name of a backing file, in bytes.
const BACKING_NAME_MAX: u64 = 1023;

const INCOMPAT_DIRTY: u64 = 1;
const INCOMPAT_CORRUPT: u64 = 1 << 1;
const INCOMPAT_DATA_FILE: u64 = 1 << 2;
const INCOMPAT_COMPRESSION: u64 = 1 << 3;
const INCOMPAT_EXTENDED_L2: u64 = 1 << 4;
const INCOMPAT_KNOWN: u64 = 0x1f;

const EXT_END: u32 = 0;
const EXT_FEATURE_NAMES: u32 = 0x6803_f857;
const EXT_DATA_FILE: u32 = 0x4441_5441;
/// Bytes of one feature name: kind u8, bit u8, name, padded with zeroes.
const FEATURE_NAME: usize = 48;

/// A validated header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    /// Size of the virtual disk in bytes, a multiple of 512.
    pub(super) virtual_size: u64,
    pub(super) l1_host: u64,
    /// Entries of the L1 table the virtual disk needs (the rest belongs to a saved machine state).
    pub(super) l1_entries: u64,
    pub(super) zstd: bool,
    pub(super) extended_l2: bool,
    /// It was not closed cleanly.
    pub(super) dirty: bool,
}

/// Result of parsing the bytes so far.
#[derive(Debug)]
pub(super) enum Parsed {
    Header(Header),
    /// The front of the image up to this offset is needed.
    More(u64),
}

impl Header {
    pub(super) fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes per L2 entry.
    pub(super) fn l2_entry_len(&self) -> u32 {
        if self.extended_l2 { 16 } else { 8 }
    }

    /// Entries of a whole L2 table.
    pub(super) fn l2_entries(&self) -> u64 {
        self.cluster_size() / u64::from(self.l2_entry_len())
    }

    /// Guest bytes one L2 table covers; at most 2^39.
    pub(super) fn l2_span(&self) -> u64 {
        self.cluster_size() * self.l2_entries()
    }

    /// The parts of the image no guest data and no other table may lie in: the header's cluster and the L1 table.
    pub(super) fn metadata(&self) -> [Range<u64>; 2] {
        [0..self.cluster_size(), self.l1_host..self.l1_host + self.l1_entries * 8]
    }
}

/// Reads big-endian numbers; `None` past the end.
#[derive(Clone, Copy)]
struct Be<'a>(&'a [u8]);

impl Be<'_> {
    fn bytes<const N: usize>(self, at: u32) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u32(self, at: u32) -> Result<u32, Error> {
        self.bytes(at).map(u32::from_be_bytes).ok_or_else(|| cut_short(self.0.len()))
    }

    fn u64(self, at: u32) -> Result<u64, Error> {
        self.bytes(at).map(u64::from_be_bytes).ok_or_else(|| cut_short(self.0.len()))
    }
}

fn cut_short(len: usize) -> Error {
    Error::corrupt(format!(
        "the qcow2 image ends within its header, after {len} bytes; is the download complete?"
    ))
}

/// Reads the header from `front`, the image's first bytes; `ended` means that the image has no more than those, `size` is
/// its size if known.
///
/// # Errors
/// [`crate::Kind::Refused`] for what is never read, [`crate::Kind::Corrupt`] for what cannot be.
pub(super) fn parse(front: &[u8], ended: bool, size: Option<u64>) -> Result<Parsed, Error> {
    if !ended && (front.len() as u64) < FRONT {
        return Ok(Parsed::More(FRONT));
    }
    let be = Be(front);
    if be.u32(0)? != MAGIC {
        return Err(Error::corrupt("not a qcow2 image: the first four bytes are not \"QFI\\xfb\""));
    }
    let version = version(be.u32(4)?)?;
    let cluster_bits = be.u32(20)?;
    if !(9..=21).contains(&cluster_bits) {
        return Err(Error::corrupt(format!(
            "the qcow2 header's cluster size is 2^{cluster_bits}; 2^9 to 2^21 exist"
        )));
    }
    let cluster_size = 1u64 << cluster_bits;
    let header_len = header_len(be, version, cluster_size)?;
    let incompatible = if version == 2 { 0 } else { be.u64(72)? };
    if version > 2 && be.u32(96)? > 6 {
        return Err(Error::corrupt(format!(
            "the qcow2 header's refcount width is 2^{} bits; 64 is the most",
            be.u32(96)?
        )));
    }

    let backing = Backing { at: be.u64(8)?, len: u64::from(be.u32(16)?) };
    let extensions_end = if backing.at == 0 { cluster_size } else { backing.check(cluster_size)? };
    let extensions = match extensions(front, u64::from(header_len)..extensions_end, ended)? {
        Some(extensions) => extensions,
        None => return Ok(Parsed::More(cluster_size)),
    };
    refuse_encryption(be.u32(32)?)?;
    if backing.at != 0 && backing.len != 0 {
        let end = backing.at + backing.len;
        return match range(front, backing.at..end) {
            Some(name) => Err(refused_backing(name)),
            None if !ended => Ok(Parsed::More(end)),
            None => Err(cut_short(front.len())),
        };
    }
    refuse_features(incompatible, &extensions)?;

    let extended_l2 = incompatible & INCOMPAT_EXTENDED_L2 != 0;
    if extended_l2 && cluster_bits < 14 {
        return Err(Error::corrupt(format!(
            "the qcow2 image has extended L2 entries with clusters of {cluster_size} bytes; 16384 is the least"
        )));
    }
    let compression = if header_len > COMPRESSION_TYPE {
        be.bytes::<1>(COMPRESSION_TYPE).ok_or_else(|| cut_short(front.len()))?[0]
    } else {
        0
    };
    let header = Header {
        version,
        cluster_bits,
        virtual_size: be.u64(24)? & !511,
        l1_host: be.u64(40)?,
        l1_entries: 0,
        zstd: zstd(compression, incompatible & INCOMPAT_COMPRESSION != 0)?,
        extended_l2,
        dirty: incompatible & INCOMPAT_DIRTY != 0,
    };
    let others = [
        ("refcount table", be.u64(48)?, u64::from(be.u32(56)?) << cluster_bits),
        // A snapshot's header is at least 40 bytes.
        ("snapshot table", be.u64(64)?, u64::from(be.u32(60)?) * 40),
    ];
    l1(header, be.u32(36)?, &others, size).map(Parsed::Header)
}

fn version(version: u32) -> Result<u32, Error> {
    match version {
        2 | 3 => Ok(version),
        1 => Err(Error::refused(
            "qcow version 1 is not read; convert the image: qemu-img convert -f qcow -O qcow2 OLD NEW",
        )),
        other => {
            Err(Error::refused(format!("qcow2 version {other} is not known; versions 2 and 3 are read")))
        }
    }
}

fn header_len(be: Be<'_>, version: u32, cluster_size: u64) -> Result<u32, Error> {
    if version == 2 {
        return Ok(LEN_V2);
    }
    let len = be.u32(100)?;
    if len < LEN_V3 || u64::from(len) > cluster_size {
        return Err(Error::corrupt(format!(
            "the qcow2 header claims a length of {len} bytes; {LEN_V3} to {cluster_size} are possible"
        )));
    }
    Ok(len)
}

struct Backing {
    at: u64,
    len: u64,
}

impl Backing {
    /// The name's offset, which ends the extensions, once it is known to lie within the header's cluster.
    fn check(&self, cluster_size: u64) -> Result<u64, Error> {
        let room = cluster_size.checked_sub(self.at);
        if room.is_none_or(|room| self.len > room.min(BACKING_NAME_MAX)) {
            return Err(Error::corrupt(format!(
                "the qcow2 header puts a backing file's name of {} bytes at offset {}, outside its cluster",
                self.len, self.at
            )));
        }
        Ok(self.at)
    }
}

fn refused_backing(name: &[u8]) -> Error {
    Error::refused(format!(
        "the qcow2 image needs the backing file {:?}, and no other file is ever opened; make the image whole: \
         qemu-img convert -O qcow2 OLD NEW, where the backing file is",
        String::from_utf8_lossy(name)
    ))
}

fn refuse_encryption(method: u32) -> Result<(), Error> {
    let name = match method {
        0 => return Ok(()),
        1 => "AES".to_owned(),
        2 => "LUKS".to_owned(),
        other => format!("method {other}"),
    };
    Err(Error::refused(format!("the qcow2 image is encrypted ({name}); import a decrypted copy")))
}

/// The extensions that matter, as ranges of the front.
#[derive(Debug, Default)]
struct Extensions<'a> {
    feature_names: &'a [u8],
    data_file: &'a [u8],
}

fn range(front: &[u8], range: Range<u64>) -> Option<&[u8]> {
    front.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// Walks the header extensions; `None` when the front is too short to see them all.
fn extensions(front: &[u8], within: Range<u64>, ended: bool) -> Result<Option<Extensions<'_>>, Error> {
    let mut seen = Extensions::default();
    let mut at = within.start;
    // An image that ends within its first cluster has nothing left to describe; its tables are missed elsewhere.
    while at + 8 <= within.end && !(ended && at >= front.len() as u64) {
        let Some(head) = range(front, at..at + 8) else {
            return if ended { Err(cut_short(front.len())) } else { Ok(None) };
        };
        let (kind, len) = (Be(head).u32(0)?, u64::from(Be(head).u32(4)?));
        if kind == EXT_END {
            break;
        }
        let end = at + 8 + len;
        if end > within.end {
            return Err(Error::corrupt(format!(
                "the qcow2 header extension {kind:#010x} at offset {at} claims {len} bytes and leaves the header"
            )));
        }
        let Some(data) = range(front, at + 8..end) else {
            return if ended { Err(cut_short(front.len())) } else { Ok(None) };
        };
        match kind {
            EXT_FEATURE_NAMES => seen.feature_names = data,
            EXT_DATA_FILE => seen.data_file = data,
            _ => {}
        }
        at = end.next_multiple_of(8);
    }
    Ok(Some(seen))
}

fn refuse_features(incompatible: u64, extensions: &Extensions<'_>) -> Result<(), Error> {
    let unknown = incompatible & !INCOMPAT_KNOWN;
    if unknown != 0 {
        let names: Vec<String> = (0u8..64)
            .filter(|bit| unknown >> bit & 1 == 1)
            .map(|bit| feature_name(extensions.feature_names, bit).unwrap_or_else(|| format!("bit {bit}")))
            .collect();
        return Err(Error::refused(format!(
            "the qcow2 image uses incompatible features that are not known here: {}",
            names.join(", ")
        )));
    }
    if incompatible & INCOMPAT_CORRUPT != 0 {
        return Err(Error::refused(
            "the qcow2 image is marked corrupt; repair it first: qemu-img check -r all IMAGE",
        ));
    }
    if incompatible & INCOMPAT_DATA_FILE != 0 {
        return Err(Error::refused(format!(
            "the qcow2 image keeps its data in the external file {:?}, and no other file is ever opened; make the \
             image whole: qemu-img convert -O qcow2 OLD NEW",
            String::from_utf8_lossy(extensions.data_file)
        )));
    }
    Ok(())
}

/// The image's own name of an incompatible feature.
fn feature_name(table: &[u8], bit: u8) -> Option<String> {
    let entry = table.chunks_exact(FEATURE_NAME).find(|entry| entry.starts_with(&[0, bit]))?;
    let name = entry.get(2..)?;
    let name = name.split(|&b| b == 0).next().unwrap_or(name);
    (!name.is_empty()).then(|| format!("{:?} (bit {bit})", String::from_utf8_lossy(name)))
}

/// Whether compressed clusters are zstd; field and feature bit must agree.
fn zstd(compression: u8, bit: bool) -> Result<bool, Error> {
    match (compression, bit) {
        (0, false) => Ok(false),
        (1, true) => Ok(true),
        (0, true) => Err(Error::corrupt(
            "the qcow2 header's compression type bit is set, yet its compression type is zlib or missing",
        )),
        (1, false) => Err(Error::corrupt(
            "the qcow2 header's compression type is zstd, yet its compression type bit is not set",
        )),
        (other, _) => Err(Error::refused(format!(
            "the qcow2 image's compression type {other} is not known; 0 (zlib) and 1 (zstd) are read"
        ))),
    }
}

/// Checks place and length of the L1 table of `entries` entries and completes `header`.
fn l1(header: Header, entries: u32, others: &[(&str, u64, u64)], size: Option<u64>) -> Result<Header, Error> {
    let bytes = u64::from(entries) * 8;
    if bytes > L1_MAX {
        return Err(Error::refused(format!(
            "the qcow2 image's L1 table has {bytes} bytes; {L1_MAX} are the most that are read"
        )));
    }
    // Bounds the virtual size as well: 2^22 entries of at most 2^39 bytes.
    let needed = header.virtual_size.div_ceil(header.l2_span());
    if needed > u64::from(entries) {
        return Err(Error::corrupt(format!(
            "the qcow2 image's L1 table has {entries} entries; its virtual size of {} bytes needs {needed}",
            header.virtual_size
        )));
    }
    if entries == 0 {
        return Ok(Header { l1_host: 0, ..header });
    }
    let (start, cluster_size) = (header.l1_host, header.cluster_size());
    let corrupt = |what: &str| Error::corrupt(format!("the qcow2 image's L1 table at offset {start} {what}"));
    if !start.is_multiple_of(cluster_size) {
        return Err(corrupt("does not start at a cluster"));
    }
    if start == 0 {
        return Err(corrupt("overlaps the header"));
    }
    let end = start.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok());
    let Some(end) = end.filter(|&end| size.is_none_or(|size| end <= size)) else {
        return Err(corrupt(&format!(
            "with its {bytes} bytes goes past the image's end; is the download complete?"
        )));
    };
    for &(name, at, len) in others {
        if len == 0 {
            continue;
        }
        if !at.is_multiple_of(cluster_size) {
            return Err(Error::corrupt(format!(
                "the qcow2 image's {name} at offset {at} does not start at a cluster"
            )));
        }
        if at < end && at.saturating_add(len) > start {
            return Err(corrupt(&format!("overlaps the {name} at offset {at}")));
        }
        // As with clusters: one that starts inside may end with the part of it that was written.
        if size.is_some_and(|size| at >= size) {
            return Err(Error::corrupt(format!(
                "the qcow2 image's {name} at offset {at} is past the image's end; is the download complete?"
            )));
        }
    }
    Ok(Header { l1_entries: needed, ..header })
}
