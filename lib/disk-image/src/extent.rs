//! Guest ranges and where their content lies; sets of byte ranges.
//!
//! All offsets and lengths are bytes. *Guest* offsets count on the virtual disk, *host* offsets in the image (after
//! the outer gz/xz/zstd layer, if there is one).

use std::collections::BTreeMap;
use std::ops::Range;

/// How the bytes of a [`Content::Packed`] extent are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Raw deflate (qcow2 compression type 0).
    Deflate,
    /// One zstd frame, followed by padding (qcow2 compression type 1).
    Zstd,
    /// A VMDK grain marker (LBA u64, size u32, little endian), then a zlib stream of that size.
    VmdkGrain,
    /// The same for the last grain of a disk that ends inside it: some writers pack a whole grain there, some only its
    /// front, which is at least `len` bytes.
    VmdkLastGrain {
        /// Bytes of the grain that the disk has.
        len: u32,
    },
}

/// Content of a guest range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Reads as zero; nothing to fetch.
    Zero,
    /// Stored as it is at `host`; as long as the guest range.
    Plain {
        /// Where it lies in the image.
        host: u64,
    },
    /// Stored packed in at most `len` bytes at `host`; unpacks to exactly the guest range's length (the last
    /// cluster of a disk unpacks to a whole cluster, of which the guest range takes the front).
    Packed {
        /// Where it lies in the image.
        host: u64,
        /// Upper bound of the packed length; ends at a sector, so neighbours may share bytes.
        len: u32,
        /// How it is packed.
        codec: Codec,
    },
}

/// A guest range and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First guest byte.
    pub guest: u64,
    /// Length in guest bytes, never zero.
    pub len: u64,
    /// Its content.
    pub content: Content,
}

impl Extent {
    /// The guest range.
    pub fn guest_range(&self) -> Range<u64> {
        self.guest..self.guest + self.len
    }

    /// The bytes of the image it needs, `None` for zeroes.
    pub fn host_range(&self) -> Option<Range<u64>> {
        match self.content {
            Content::Zero => None,
            Content::Plain { host } => Some(host..host + self.len),
            Content::Packed { host, len, .. } => Some(host..host + u64::from(len)),
        }
    }

    /// Grows `self` by `next` when it goes on where `self` ends, in guest and host alike. Packed extents never merge.
    pub fn merge(&mut self, next: &Self) -> bool {
        let touches = self.guest + self.len == next.guest;
        let follows = match (self.content, next.content) {
            (Content::Zero, Content::Zero) => true,
            (Content::Plain { host }, Content::Plain { host: other }) => host + self.len == other,
            (Content::Zero | Content::Plain { .. } | Content::Packed { .. }, _) => false,
        };
        if touches && follows {
            self.len += next.len;
        }
        touches && follows
    }
}

/// A set of bytes, kept as disjoint, non-touching ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `range`; touching ranges become one.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.ranges.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
            self.ranges.remove(&s);
        }
        while let Some((&s, &e)) = self.ranges.range(start..=end).next() {
            end = end.max(e);
            self.ranges.remove(&s);
        }
        self.ranges.insert(start, end);
    }

    /// Takes `range` out.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((&s, &e)) = self.ranges.range(..range.start).next_back()
            && e > range.start
        {
            self.ranges.insert(s, range.start);
            if e > range.end {
                self.ranges.insert(range.end, e);
            }
        }
        while let Some((&s, &e)) = self.ranges.range(range.clone()).next() {
            self.ranges.remove(&s);
            if e > range.end {
                self.ranges.insert(range.end, e);
            }
        }
    }

    /// Whether every byte of `range` is in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self.ranges.range(..=range.start).next_back().is_some_and(|(_, &e)| e >= range.end)
    }

    /// The end of the range that holds byte `at`.
    pub fn end_of(&self, at: u64) -> Option<u64> {
        self.ranges.range(..=at).next_back().map(|(_, &end)| end).filter(|&end| end > at)
    }

    /// The parts of `within` that are not in the set, ascending.
    pub fn gaps(&self, within: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        let before = self.ranges.range(..=within.start).next_back();
        for (&s, &e) in before.into_iter().chain(self.ranges.range(within.start.saturating_add(1)..)) {
            if s >= within.end {
                break;
            }
            if s > at {
                gaps.push(at..s);
            }
            at = at.max(e);
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&s, &e)| s..e)
    }

    /// How many separate ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many bytes are in the set.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(s, e)| e - s).sum()
    }

    /// Adds every range of `other`.
    pub fn extend(&mut self, other: &Self) {
        for range in other.iter() {
            self.insert(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_agree_with_a_bit_per_byte() {
        let mut state = 7u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut set = RangeSet::new();
        let mut bits = [false; 64];
        for _ in 0..5000 {
            let a = next(64);
            let b = a + next(65 - a);
            let add = next(2) == 0;
            if add {
                set.insert(a..b)
            } else {
                set.remove(a..b)
            }
            for i in a..b {
                bits[usize::try_from(i).unwrap()] = add;
            }
            assert_eq!(set.bytes(), bits.iter().map(|&b| u64::from(b)).sum::<u64>());
            let from = next(64);
            let to = from + next(65 - from);
            let whole = (from..to).all(|i| bits[usize::try_from(i).unwrap()]);
            assert_eq!(set.contains(&(from..to)), whole);
            let end = (from..64).find(|&i| !bits[usize::try_from(i).unwrap()]).unwrap_or(64);
            assert_eq!(set.end_of(from), Some(end).filter(|&end| end > from));
            let missing: u64 = set.gaps(from..to).iter().map(|g| g.end - g.start).sum();
            let expect = (from..to).filter(|&i| !bits[usize::try_from(i).unwrap()]).count();
            assert_eq!(missing, u64::try_from(expect).unwrap());
            assert!(set.iter().zip(set.iter().skip(1)).all(|(x, y)| x.end < y.start));
        }
    }
}
