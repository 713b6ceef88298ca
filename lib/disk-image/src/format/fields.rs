//! Numbers at fixed places of a header, and the room an image has: what is metadata, where the image ends.
//!
//! Not here: what the numbers mean.

use std::ops::Range;

use crate::error::Error;

/// A piece of a header; reading past its end is an error, never a panic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    what: &'static str,
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads `bytes`; errors call them `what`.
    pub(super) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes }
    }

    /// `N` bytes from offset `at` on.
    pub(super) fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Error> {
        let field = self.bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
        field.copied().ok_or_else(|| Error::corrupt(format!("{} is cut short", self.what)))
    }

    pub(super) fn le16(&self, at: usize) -> Result<u16, Error> {
        self.array(at).map(u16::from_le_bytes)
    }

    pub(super) fn le32(&self, at: usize) -> Result<u32, Error> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn le64(&self, at: usize) -> Result<u64, Error> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub(super) fn be32(&self, at: usize) -> Result<u32, Error> {
        self.array(at).map(u32::from_be_bytes)
    }

    pub(super) fn be64(&self, at: usize) -> Result<u64, Error> {
        self.array(at).map(u64::from_be_bytes)
    }
}

/// Where an image may have what: nothing past its end, no data in its own metadata.
#[derive(Debug)]
pub(super) struct Room {
    size: Option<u64>,
    metadata: Vec<(&'static str, Range<u64>)>,
}

impl Room {
    /// The room of an image of `size` bytes, if known.
    pub(super) fn new(size: Option<u64>) -> Self {
        Self { size, metadata: Vec::new() }
    }

    /// Size of the image in bytes, if known.
    pub(super) fn size(&self) -> Option<u64> {
        self.size
    }

    /// The image has at least `size` bytes, once changes of its log are applied.
    pub(super) fn grow(&mut self, size: u64) {
        self.size = self.size.map(|now| now.max(size));
    }

    /// The range of `len` bytes at `host`, inside the image.
    fn range(&self, what: &str, host: u64, len: u64) -> Result<Range<u64>, Error> {
        let end = host.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
        let Some(end) = end else {
            return Err(Error::corrupt(format!(
                "the {what} at offset {host} of {len} bytes is at an impossible place"
            )));
        };
        match self.size {
            Some(size) if end > size => Err(Error::corrupt(format!(
                "the {what} at offset {host} of {len} bytes goes past the image's end at {size}"
            ))),
            Some(_) | None => Ok(host..end),
        }
    }

    /// Sets `len` bytes at `host` aside as metadata; no two pieces may overlap.
    pub(super) fn reserve(&mut self, what: &'static str, host: u64, len: u64) -> Result<(), Error> {
        let range = self.free(what, host, len)?;
        self.metadata.push((what, range));
        Ok(())
    }

    /// Compares a place for data, or for a table that is not set aside, with the image's end and its metadata.
    pub(super) fn free(&self, what: &str, host: u64, len: u64) -> Result<Range<u64>, Error> {
        let range = self.range(what, host, len)?;
        let hit = self.metadata.iter().find(|(_, taken)| range.start < taken.end && taken.start < range.end);
        match hit {
            Some((taken, _)) => Err(Error::corrupt(format!(
                "the {what} at offset {host} of {len} bytes overlaps the {taken}"
            ))),
            None => Ok(range),
        }
    }
}
