//! The log of a VHDX that was not closed cleanly: the changes of its active sequence, as an [`Overlay`].
//!
//! Source: MS-VHDX, section 2.3. The image itself stays as it is. Where qemu's driver differs (it leaves out `Tail`, and starts
//! at the lowest offset), the specification decides. An entry that is torn, its checksum wrong, is no entry: the log ends
//! before it. A log with entries after a missing one is damaged, and refused. Not here: which log is in force (`vhdx`).
//!
//! ```text
//!  ring of sectors of 4 KiB:  … │ entry 8 │ entry 9 ········· │ free …
//!                               ▲ Tail of 9  └ header, descriptors │ data sectors
//!  a descriptor: zeroes at a place, or the first 8 and last 4 bytes of a sector; a data sector has the rest
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use super::{KIB, MIB, crc32c, crc32c_without_own};
use crate::error::Error;
use crate::format::fields::Fields;
use crate::overlay::Overlay;

const SECTOR: usize = 4096;
const HEADER: usize = 64;
const DESCRIPTOR: usize = 32;
/// The identifier and the headers, which a log never changes.
const HEADERS: Range<u64> = 0..192 * KIB;

/// The changes that the `log` at `place` of the image holds under `id`; `None` when there are none.
///
/// # Errors
/// [`crate::Kind::Corrupt`] when entries are missing, or one holds what no writer writes.
pub(super) fn replay(log: &[u8], place: &Range<u64>, id: [u8; 16]) -> Result<Option<Overlay>, Error> {
    let ring = Ring(log.as_chunks().0);
    let entries = entries(&ring, id)?;
    let Some(newest) = entries.values().max_by_key(|entry| entry.sequence) else {
        return Ok(None);
    };
    let mut overlay = Overlay::default();
    for entry in sequence(&ring, &entries, newest)? {
        entry.apply(&ring, place, &mut overlay)?;
    }
    Ok(Some(overlay))
}

/// The sectors of a log.
struct Ring<'a>(&'a [[u8; SECTOR]]);

impl Ring<'_> {
    /// Sector `n`, counted around the end.
    fn sector(&self, n: usize) -> &[u8; SECTOR] {
        &self.0[n % self.0.len()]
    }
}

/// A valid entry. Places and lengths are in sectors.
struct Entry {
    at: usize,
    len: usize,
    /// The first entry of its sequence; `None` when it names an impossible place.
    tail: Option<usize>,
    sequence: u64,
    descriptors: usize,
    flushed: u64,
    last: u64,
}

/// The valid entries, by their place.
fn entries(ring: &Ring<'_>, id: [u8; 16]) -> Result<BTreeMap<usize, Entry>, Error> {
    // Entries of an honest log do not overlap; torn ones may a little.
    let mut budget = 4 * ring.0.len();
    let mut entries = BTreeMap::new();
    let mut at = 0;
    while at < ring.0.len() {
        let Some(entry) = Entry::read(ring, at, id) else {
            at += 1;
            continue;
        };
        budget = budget
            .checked_sub(entry.len)
            .ok_or_else(|| Error::corrupt("the entries of the VHDX log overlap each other"))?;
        let rest = (at + 1..at + entry.len).map(|n| ring.sector(n));
        let sum = rest.fold(crc32c_without_own(ring.sector(at)), |sum, sector| crc32c(sum, sector));
        if Fields::new("a VHDX log entry", ring.sector(at)).le32(4)? == !sum {
            at += entry.len;
            entries.insert(entry.at, entry);
        } else {
            at += 1;
        }
    }
    Ok(entries)
}

/// The entries that `newest` ends, from the one that its tail names on.
fn sequence<'a>(
    ring: &Ring<'_>,
    entries: &'a BTreeMap<usize, Entry>,
    newest: &Entry,
) -> Result<Vec<&'a Entry>, Error> {
    let mut active: Vec<&Entry> = Vec::new();
    let (mut at, mut len) = (newest.tail, 0);
    loop {
        let next = at.and_then(|at| entries.get(&at)).filter(|entry| {
            active.last().is_none_or(|last| last.sequence.checked_add(1) == Some(entry.sequence))
        });
        len += next.map_or(0, |entry| entry.len);
        let Some(entry) = next.filter(|_| len <= ring.0.len()) else {
            return Err(Error::corrupt(format!(
                "the VHDX was not closed cleanly and its log is damaged: entry {} needs earlier ones, of which one is \
                 missing; attach and detach the image where it was written (Mount-VHD), or copy it again",
                newest.sequence
            )));
        };
        active.push(entry);
        if entry.at == newest.at {
            return Ok(active);
        }
        at = Some((entry.at + entry.len) % ring.0.len());
    }
}

impl Entry {
    /// The header at sector `at`; `None` when it is none. Its checksum is not compared.
    fn read(ring: &Ring<'_>, at: usize, id: [u8; 16]) -> Option<Self> {
        let first = ring.sector(at);
        let fields = Fields::new("a VHDX log entry", first);
        if !first.starts_with(b"loge") || fields.array(32).ok()? != id {
            return None;
        }
        let bytes = |at| fields.le32(at).ok().and_then(|bytes| usize::try_from(bytes).ok());
        let sectors = |at| bytes(at).filter(|bytes| bytes % SECTOR == 0).map(|bytes| bytes / SECTOR);
        let entry = Self {
            at,
            len: sectors(8).filter(|len| (1..=ring.0.len()).contains(len))?,
            tail: sectors(12),
            sequence: fields.le64(16).ok().filter(|number| *number > 0)?,
            descriptors: bytes(24)?,
            flushed: fields.le64(48).ok()?,
            last: fields.le64(56).ok()?,
        };
        (entry.descriptor_sectors()? <= entry.len).then_some(entry)
    }

    /// Sectors that the header and the descriptors take.
    fn descriptor_sectors(&self) -> Option<usize> {
        let bytes = self.descriptors.checked_mul(DESCRIPTOR)?.checked_add(HEADER)?;
        Some(bytes.div_ceil(SECTOR))
    }

    /// Adds the entry's changes. The log itself is at `log` of the image.
    fn apply(&self, ring: &Ring<'_>, log: &Range<u64>, overlay: &mut Overlay) -> Result<(), Error> {
        overlay.needs(self.flushed);
        let mut data = self.descriptor_sectors().unwrap_or(self.len);
        for index in 0..self.descriptors {
            let at = HEADER + index * DESCRIPTOR;
            let sector = ring.sector(self.at + at / SECTOR);
            let bytes = &sector[at % SECTOR..][..DESCRIPTOR];
            let fields = Fields::new("a VHDX log descriptor", bytes);
            let invalid = |what: &str| {
                Error::corrupt(format!("VHDX log entry {}, descriptor {index}: {what}", self.sequence))
            };
            let host = fields.le64(16)?;
            if fields.le64(24)? != self.sequence {
                return Err(invalid("its sequence number is another one"));
            }
            let zeroes = match bytes.first_chunk() {
                Some(b"zero") => Some(fields.le64(8)?),
                Some(b"desc") => None,
                _ => return Err(invalid("its kind is unknown")),
            };
            let len = zeroes.unwrap_or(SECTOR as u64);
            let end = host.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
            let whole = host % SECTOR as u64 == 0 && len % SECTOR as u64 == 0;
            let Some(place) = end.filter(|_| whole).map(|end| host..end) else {
                return Err(invalid(&format!("{len} bytes at offset {host} are impossible")));
            };
            let hits = |taken: &Range<u64>| place.start < taken.end && taken.start < place.end;
            if hits(&HEADERS) || hits(log) {
                return Err(invalid(&format!("{len} bytes at offset {host} are in the headers or the log")));
            }
            if zeroes.is_some() {
                overlay.zero(place);
                continue;
            }
            if data >= self.len {
                return Err(invalid("its data is missing"));
            }
            let sector = ring.sector(self.at + data);
            data += 1;
            let stored = Fields::new("a VHDX log sector", sector);
            let sequence = u64::from(stored.le32(4)?) << 32 | u64::from(stored.le32(SECTOR - 4)?);
            if !sector.starts_with(b"data") || sequence != self.sequence {
                return Err(invalid("its data is of another entry"));
            }
            let mut content = *sector;
            content[..8].copy_from_slice(&bytes[8..16]);
            content[SECTOR - 4..].copy_from_slice(&bytes[4..8]);
            overlay.write(host, &content);
        }
        let end = self.last.checked_next_multiple_of(MIB).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(|| {
            Error::corrupt(format!(
                "VHDX log entry {}: an image of {} bytes is impossible",
                self.sequence, self.last
            ))
        })?;
        overlay.grow(end);
        Ok(())
    }
}
