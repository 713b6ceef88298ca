//! Changes to an image that are applied while it is read; its source stays as it is.
//!
//! [`Overlay`] is pure: ranges of new bytes and of zeroes, later ones over earlier ones. [`Overlaid`] is the [`Source`] that is
//! read through one, by ranges or as a stream. Not here: where changes come from (the log of a VHDX, `format::vhdx`).

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::source::{Access, Facts, Source};

/// Most bytes by which changes lengthen an image: what they do not fill there are zeroes.
const GROWTH_MAX: u64 = 1 << 30;

/// New content of some ranges of an image.
#[derive(Debug, Default)]
pub struct Overlay {
    /// Disjoint ranges, by their start.
    changes: BTreeMap<u64, Change>,
    bytes: Vec<u8>,
    /// Shortest image that the changes fit.
    least: u64,
    /// Shortest length of the image with its changes.
    end: u64,
}

/// One changed range: its end, and where in [`Overlay::bytes`] its content is; zeroes if nowhere.
#[derive(Clone, Copy, Debug)]
struct Change {
    end: u64,
    bytes: Option<usize>,
}

impl Overlay {
    /// `content` at `host`; the caller has bounded the end and the sum of all content.
    pub(crate) fn write(&mut self, host: u64, content: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(content);
        self.put(host..host + content.len() as u64, Some(from));
    }

    /// Zeroes in `range`.
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        self.put(range, None);
    }

    /// The next changes were made to an image of at least `size` bytes.
    pub(crate) fn needs(&mut self, size: u64) {
        if size > self.end {
            self.least = self.least.max(size);
        }
    }

    /// The image has at least `size` bytes from here on.
    pub(crate) fn grow(&mut self, size: u64) {
        self.end = self.end.max(size);
    }

    fn put(&mut self, range: Range<u64>, bytes: Option<usize>) {
        if range.is_empty() {
            return;
        }
        let before = self.changes.range(..range.end).rev();
        let hit: Vec<u64> =
            before.take_while(|(_, change)| change.end > range.start).map(|(&start, _)| start).collect();
        for start in hit {
            let Some(old) = self.changes.remove(&start) else { continue };
            if start < range.start {
                self.changes.insert(start, Change { end: range.start, ..old });
            }
            if old.end > range.end {
                let bytes = old.bytes.map(|from| from + index(range.end - start));
                self.changes.insert(range.end, Change { end: old.end, bytes });
            }
        }
        self.changes.insert(range.start, Change { end: range.end, bytes });
        self.grow(range.end);
    }

    /// Puts the changes into `buf`, the bytes of the image from `at` on.
    pub fn apply(&self, at: u64, buf: &mut [u8]) {
        let end = at.saturating_add(buf.len() as u64);
        let first = self.changes.range(..=at).next_back().map_or(at, |(&start, _)| start);
        for (&start, change) in self.changes.range(first..end) {
            let both = start.max(at)..change.end.min(end);
            if both.is_empty() {
                continue;
            }
            let out = &mut buf[index(both.start - at)..index(both.end - at)];
            match change.bytes {
                None => out.fill(0),
                Some(from) => {
                    let from = from + index(both.start - start);
                    out.copy_from_slice(&self.bytes[from..from + out.len()]);
                }
            }
        }
    }

    /// Length of an image of `size` bytes with its changes.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] when the image is shorter than the one that was changed, or would grow without measure.
    pub fn size(&self, size: u64) -> Result<u64, Error> {
        if size < self.least {
            return Err(Error::corrupt(format!(
                "the image ends at byte {size}, but its log was written when it had {}: it is truncated",
                self.least
            )));
        }
        if self.end.saturating_sub(size) > GROWTH_MAX {
            return Err(Error::corrupt(format!(
                "the image ends at byte {size}, and its log lengthens it to {}, by more than {GROWTH_MAX}",
                self.end
            )));
        }
        Ok(size.max(self.end))
    }
}

/// Of a distance within a buffer.
fn index(distance: u64) -> usize {
    usize::try_from(distance).unwrap_or(usize::MAX)
}

/// A source that is read through an overlay.
pub(crate) struct Overlaid {
    inner: Arc<dyn Source>,
    overlay: Arc<Overlay>,
}

impl Overlaid {
    /// `inner` with the changes of `overlay`.
    ///
    /// # Errors
    /// See [`Overlay::size`], if the source's size is known. A stream's end is judged when it is reached.
    pub(crate) fn new(inner: Arc<dyn Source>, overlay: Arc<Overlay>) -> Result<Self, Error> {
        inner.facts().size.map(|size| overlay.size(size)).transpose()?;
        Ok(Self { inner, overlay })
    }
}

impl Source for Overlaid {
    fn facts(&self) -> Facts {
        let Facts { size, access } = self.inner.facts();
        // `new` has judged it.
        Facts { size: size.map(|size| size.max(self.overlay.end)), access }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let Facts { size, access } = self.inner.facts();
        let inner: Box<dyn Read + Send> = match size.filter(|_| access == Access::Ranges) {
            Some(size) if range.start >= size => Box::new(io::empty()),
            Some(size) => self.inner.open(range.start..range.end.min(size))?,
            None => self.inner.open(range.clone())?,
        };
        let overlay = self.overlay.clone();
        Ok(Box::new(Reader { inner, overlay, size, at: range.start, end: range.end, ended: false }))
    }

    fn connections(&self) -> usize {
        self.inner.connections()
    }

    fn part_size(&self) -> u64 {
        self.inner.part_size()
    }
}

struct Reader {
    inner: Box<dyn Read + Send>,
    overlay: Arc<Overlay>,
    /// Length of the source, if known.
    size: Option<u64>,
    at: u64,
    end: u64,
    /// The source has given its last byte.
    ended: bool,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(index(self.end.saturating_sub(self.at)));
        let buf = &mut buf[..want];
        if buf.is_empty() {
            return Ok(0);
        }
        let mut got = if self.ended { 0 } else { self.inner.read(buf)? };
        if got == 0 {
            // A source that is shorter than it announced is reported by the caller.
            if self.size.is_some_and(|size| self.at < size) {
                return Ok(0);
            }
            if !self.ended && self.size.is_none() {
                self.overlay.size(self.at)?;
            }
            self.ended = true;
            got = buf.len().min(index(self.overlay.end.saturating_sub(self.at)));
            buf[..got].fill(0);
        }
        self.overlay.apply(self.at, &mut buf[..got]);
        self.at += got as u64;
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Once;

    /// `image` with the changes of an overlay, whole and in pieces of every length.
    fn applied(overlay: &Overlay, image: &[u8]) -> Vec<u8> {
        let mut whole = image.to_vec();
        overlay.apply(0, &mut whole);
        for step in 1..image.len() {
            let mut pieces = image.to_vec();
            for (n, piece) in pieces.chunks_mut(step).enumerate() {
                overlay.apply((n * step) as u64, piece);
            }
            assert_eq!(pieces, whole, "in pieces of {step}");
        }
        whole
    }

    #[test]
    fn later_changes_cover_earlier_ones_in_any_arrangement() {
        // Against a plain array, over all pairs of ranges.
        let image = [9_u8; 12];
        for first in (0..8_u64).flat_map(|start| (start..9).map(move |end| start..end)) {
            for second in (0..8_u64).flat_map(|start| (start..9).map(move |end| start..end)) {
                for kinds in 0..4 {
                    let (mut overlay, mut plain) = (Overlay::default(), image);
                    for (n, (range, value)) in [(&first, 20_u8), (&second, 40)].into_iter().enumerate() {
                        let place = &mut plain[index(range.start)..index(range.end)];
                        if kinds >> n & 1 == 0 {
                            overlay.zero(range.clone());
                            place.fill(0);
                        } else {
                            for (byte, value) in place.iter_mut().zip(value..) {
                                *byte = value;
                            }
                            let content = place.to_vec();
                            overlay.write(range.start, &content);
                        }
                    }
                    assert_eq!(applied(&overlay, &image), plain, "{first:?} {second:?} {kinds}");
                }
            }
        }
    }

    #[test]
    fn a_stream_is_lengthened_and_its_end_is_judged() {
        let read = |overlay: Overlay, size: Option<u64>| {
            let source = Once::new("a stream", size, Box::new(&[7_u8; 5][..]));
            let mut out = Vec::new();
            let source = Overlaid::new(Arc::new(source), Arc::new(overlay))?;
            let read = source.open(0..u64::MAX).and_then(|mut reader| reader.read_to_end(&mut out));
            read.map_err(|e| Error::from_source("cannot read", e)).map(|_| out)
        };
        for size in [None, Some(5)] {
            let mut overlay = Overlay::default();
            overlay.needs(5);
            overlay.write(6, &[1]);
            overlay.grow(9);
            assert_eq!(read(overlay, size).unwrap(), [7, 7, 7, 7, 7, 0, 1, 0, 0]);
            let mut short = Overlay::default();
            short.needs(6);
            assert!(read(short, size).unwrap_err().to_string().contains("truncated"));
            let mut long = Overlay::default();
            long.grow(6 + GROWTH_MAX);
            assert!(read(long, size).unwrap_err().to_string().contains("lengthens"));
        }
    }
}
