//! Ranges of a snapshot's file that hold data, and ranges in which two snapshots differ. Two files that share a block at the
//! same offset have the same bytes there: snapshots never change, so the place on the disk identifies the content. Not here:
//! reading data.

use std::fs::File;
use std::iter::Peekable;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::{self, Extent};

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    /// Never 0.
    pub(crate) length: u64,
}

/// Ranges in order, none touching the next.
pub(crate) type Ranges = Box<dyn Iterator<Item = Result<Range>> + Send>;

/// The ranges from `start` to `end` of `file` that hold data.
pub(crate) fn allocated(file: File, start: u64, end: u64) -> Ranges {
    let mut at = start;
    let mut next = move || -> Result<Option<Range>> {
        let io = |error: Errno| Error::io("look for a snapshot's data", error);
        if at >= end {
            return Ok(None);
        }
        let begin = match seek(&file, SeekFrom::Data(at)) {
            Ok(begin) if begin < end => begin,
            Ok(_) | Err(Errno::NXIO) => {
                at = end;
                return Ok(None);
            }
            Err(error) => return Err(io(error)),
        };
        at = seek(&file, SeekFrom::Hole(begin)).map_err(io)?.min(end);
        Ok((at > begin).then_some(Range { offset: begin, length: at - begin }))
    };
    Box::new(std::iter::from_fn(move || next().transpose()))
}

/// The ranges from `start` to `end` in which `file` may differ from `base`.
pub(crate) fn changed(base: File, file: File, start: u64, end: u64) -> Ranges {
    Box::new(joined(Differing::new(Extents::new(base, start), Extents::new(file, start), start, end)))
}

/// All extents of a file, asked for some at a time.
struct Extents {
    file: File,
    found: std::vec::IntoIter<Extent>,
    next: Option<u64>,
}

impl Extents {
    fn new(file: File, start: u64) -> Self {
        Self { file, found: Vec::new().into_iter(), next: Some(start) }
    }
}

impl Iterator for Extents {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(extent) = self.found.next() {
                return Some(Ok(extent));
            }
            let start = self.next.take()?;
            match sys::extents(self.file.as_fd(), start) {
                Ok((found, next)) => {
                    self.found = found.into_iter();
                    self.next = next;
                }
                Err(error) => return Some(Err(Error::io("read where a snapshot's data is", error))),
            }
        }
    }
}

/// The ranges in which two files' extents are not the same.
struct Differing<A: Iterator, B: Iterator> {
    base: Peekable<A>,
    file: Peekable<B>,
    at: u64,
    end: u64,
}

impl<A, B> Differing<A, B>
where
    A: Iterator<Item = Result<Extent>>,
    B: Iterator<Item = Result<Extent>>,
{
    fn new(base: A, file: B, start: u64, end: u64) -> Self {
        Self { base: base.peekable(), file: file.peekable(), at: start, end }
    }

    /// The next range, which may touch the one before.
    fn step(&mut self) -> Result<Option<Range>> {
        while self.at < self.end {
            let (base, file) = (first(&mut self.base, self.at)?, first(&mut self.file, self.at)?);
            let begins = [base, file].into_iter().flatten().map(|extent| extent.offset).min();
            let Some(begin) = begins.filter(|begin| *begin < self.end) else { return Ok(None) };
            // Up to where either file's extent begins or ends.
            let edges = [base, file]
                .into_iter()
                .flatten()
                .flat_map(|extent| [extent.offset, extent.offset.saturating_add(extent.length)]);
            let Some(edge) = edges.filter(|edge| *edge > begin).min() else { return Ok(None) };
            let edge = edge.min(self.end);
            self.at = edge;
            let here = |extent: Option<Extent>| extent.filter(|extent| extent.offset == begin);
            let same = match (here(base), here(file)) {
                (Some(base), Some(file)) => base.place.is_some() && base.place == file.place,
                _ => false,
            };
            if !same {
                return Ok(Some(Range { offset: begin, length: edge - begin }));
            }
        }
        Ok(None)
    }
}

/// The first extent that ends behind `at`, what is before `at` cut off.
fn first<T: Iterator<Item = Result<Extent>>>(extents: &mut Peekable<T>, at: u64) -> Result<Option<Extent>> {
    loop {
        match extents.peek() {
            None => return Ok(None),
            Some(Ok(extent)) if extent.offset.saturating_add(extent.length) > at => {
                let cut = at.saturating_sub(extent.offset);
                return Ok(Some(Extent {
                    offset: extent.offset + cut,
                    length: extent.length - cut,
                    place: extent.place.map(|place| place.saturating_add(cut)),
                }));
            }
            // One that is behind us, or an error to hand on.
            Some(_) => {
                extents.next().transpose()?;
            }
        }
    }
}

impl<A, B> Iterator for Differing<A, B>
where
    A: Iterator<Item = Result<Extent>>,
    B: Iterator<Item = Result<Extent>>,
{
    type Item = Result<Range>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// Ranges that touch made one.
fn joined(ranges: impl Iterator<Item = Result<Range>>) -> impl Iterator<Item = Result<Range>> {
    let mut ranges = ranges.peekable();
    std::iter::from_fn(move || {
        let mut range = match ranges.next()? {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        let touches = |next: &Result<Range>, end| next.as_ref().is_ok_and(|next| next.offset == end);
        while let Some(Ok(next)) = ranges.next_if(|next| touches(next, range.offset + range.length)) {
            range.length += next.length;
        }
        Some(Ok(range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extents written as (offset, length, place); a place of 0 is unknown.
    fn extents(of: &[(u64, u64, u64)]) -> Vec<Result<Extent>> {
        let place = |place| (place > 0).then_some(place);
        of.iter()
            .map(|(offset, length, at)| Ok(Extent { offset: *offset, length: *length, place: place(*at) }))
            .collect()
    }

    #[test]
    fn extents_at_other_places_differ() {
        type Case<'a> = (&'a [(u64, u64, u64)], &'a [(u64, u64, u64)], u64, &'a [(u64, u64)]);
        let cases: &[Case<'_>] = &[
            (&[], &[], 0, &[]),
            (&[(0, 10, 100)], &[(0, 10, 100)], 0, &[]),
            // Written, zeroed, and written elsewhere.
            (&[], &[(4, 4, 50)], 0, &[(4, 4)]),
            (&[(4, 4, 50)], &[], 0, &[(4, 4)]),
            (&[(0, 10, 100)], &[(0, 10, 200)], 0, &[(0, 10)]),
            // The middle of an extent was rewritten.
            (&[(0, 12, 100)], &[(0, 4, 100), (4, 4, 300), (8, 4, 108)], 0, &[(4, 4)]),
            // One was split in the middle of the other's: nothing changed.
            (&[(0, 6, 100), (6, 6, 106)], &[(0, 12, 100)], 0, &[]),
            // The same blocks at another offset are other bytes.
            (&[(0, 4, 100)], &[(4, 4, 100)], 0, &[(0, 8)]),
            // Unknown places are never the same.
            (&[(0, 4, 0)], &[(0, 4, 0)], 0, &[(0, 4)]),
            // Adjacent ranges are merged, also next to a hole of the other file.
            (&[(0, 4, 1), (4, 4, 9)], &[(0, 4, 2), (4, 8, 20)], 0, &[(0, 12)]),
            // From the middle on, and no further than the end.
            (&[(0, 12, 100)], &[(0, 12, 300)], 7, &[(7, 5)]),
            (&[], &[(90, 50, 3)], 0, &[(90, 10)]),
            (&[], &[(100, 50, 3)], 0, &[]),
        ];
        for (base, file, start, expected) in cases {
            let found = Differing::new(extents(base).into_iter(), extents(file).into_iter(), *start, 100);
            let found: Vec<(u64, u64)> =
                joined(found).map(|range| range.unwrap()).map(|range| (range.offset, range.length)).collect();
            assert_eq!(found, *expected, "{base:?} {file:?} {start}");
        }
    }

    #[test]
    fn a_failure_ends_it() {
        let failing = [Err(Error::io("x", Errno::IO))];
        let mut found =
            joined(Differing::new(failing.into_iter(), extents(&[(0, 4, 5)]).into_iter(), 0, 100));
        assert!(found.next().unwrap().is_err());
    }
}
