//! Whether an image could be read as one stream from its start: how much of its data comes before the tables that locate it.
//! Read from the tables, for users; an import finds out as it reads (`tables`).

use super::reads::{host_of, reads};
use crate::error::Error;
use crate::extent::{Content, Extent};
use crate::format::{Layout, PROLOGUE_MAX, TableExtents};
use crate::source::{Access, Source, read_range};

/// Bytes of tables that are looked through.
const TABLES_MAX: u64 = 64 << 20;
/// Bytes of the root table read at once.
const SLICE: u64 = 512 << 10;

/// Bytes of tables and data that a stream would give before their meaning is known; `None` when that cannot be determined
/// without reading all of the image, or its tables are too large to inspect.
///
/// `headers_end` is where the headers end that had to be read to open it.
pub(super) fn late(source: &dyn Source, layout: &dyn Layout, headers_end: u64) -> Result<Option<u64>, Error> {
    let root = layout.root();
    if layout.walked_as_stream() {
        return Ok(Some(0));
    }
    // Nothing of a stream is understood before its headers are; its front is held for them.
    let front = if headers_end > PROLOGUE_MAX { headers_end } else { 0 };
    if root.entries == 0 {
        return Ok(Some(front));
    }
    if source.facts().access != Access::Ranges {
        return Ok(None);
    }
    let mut look = Look { layout, source, late: front, left: TABLES_MAX };
    let per_read = SLICE / u64::from(root.entry_len);
    let mut first = 0;
    while first < root.entries && layout.root_guest(first) < layout.virtual_size() {
        let some = first..root.entries.min(first + per_read);
        let place = root.bytes_of(some.clone());
        let Some(bytes) = look.table(place.start, place.end)? else {
            return Ok(None);
        };
        let mut found = TableExtents::default();
        layout.read_root(first, &bytes, &mut found)?;
        look.data(&found.extents, place.end);
        if !look.leaves(found, place.end)? {
            return Ok(None);
        }
        first = some.end;
    }
    Ok(Some(look.late))
}

struct Look<'a> {
    layout: &'a dyn Layout,
    source: &'a dyn Source,
    late: u64,
    left: u64,
}

impl Look<'_> {
    /// A piece of a table; `None` when that would be too much.
    fn table(&mut self, start: u64, end: u64) -> Result<Option<Vec<u8>>, Error> {
        let len = end - start;
        let Some(left) = self.left.checked_sub(len) else {
            return Ok(None);
        };
        self.left = left;
        let bytes = read_range(self.source, start, usize::try_from(len).unwrap_or(usize::MAX));
        bytes.map(Some).map_err(|e| Error::from_source(format!("cannot read the table at byte {start}"), e))
    }

    /// Leaf tables that become known at byte `known`. False when they are too large.
    fn leaves(&mut self, mut found: TableExtents, known: u64) -> Result<bool, Error> {
        let mut leaves = std::mem::take(&mut found.leaves);
        leaves.sort_unstable_by_key(|leaf| leaf.table.host);
        for read in reads(&leaves) {
            let Some(bytes) = self.table(read.host.start, read.host.end)? else {
                return Ok(false);
            };
            for leaf in &leaves[read.leaves.clone()] {
                let entries = read.entries.clone().unwrap_or(0..leaf.table.entries);
                let place = leaf.table.bytes_of(entries.clone());
                self.late += known.min(place.end).saturating_sub(place.start);
                let index = |at: u64| usize::try_from(at - read.host.start).unwrap_or(usize::MAX);
                let mut found = TableExtents::default();
                self.layout.read_leaf(
                    leaf,
                    entries.start,
                    &bytes[index(place.start)..index(place.end)],
                    &mut found,
                )?;
                self.data(&found.extents, known.max(place.end));
            }
        }
        Ok(true)
    }

    /// Extents that become known at byte `known`.
    fn data(&mut self, extents: &[Extent], known: u64) {
        for extent in extents.iter().filter(|extent| extent.content != Content::Zero) {
            let host = host_of(extent);
            self.late += known.min(host.end).saturating_sub(host.start);
        }
    }
}
