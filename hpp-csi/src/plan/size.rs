//! Sizes of volumes: the one that a range gives, no smaller than a source or a filesystem needs.

use crate::error::{Error, Kind, Result};
use crate::request::Range;

/// Bytes of the smallest XFS: below this mkfs.xfs refuses.
pub(crate) const XFS_MIN: u64 = 300 << 20;
/// Default capacity when the request sets none.
pub(crate) const DEFAULT_SIZE: u64 = 1 << 30;
/// Sizes of files that become devices are multiples of this: the largest sector.
pub(crate) const STEP: u64 = 4096;
/// The most a size can be: CSI's numbers are signed.
const SIZE_MAX: u64 = i64::MAX as u64;

/// The size of a new volume: what is required, a default if nothing is, up to a whole step.
///
/// # Errors
/// [`Kind::OutOfRange`] when no multiple of `step` is in the range.
pub(crate) fn size(range: Range, step: u64) -> Result<u64> {
    let limit = if range.limit == 0 { SIZE_MAX } else { range.limit };
    let wanted = if range.required == 0 { DEFAULT_SIZE.min(limit) } else { range.required };
    let up = wanted.checked_next_multiple_of(step).filter(|up| *up <= limit);
    let down = (range.required == 0).then(|| wanted / step * step).filter(|down| *down > 0);
    up.or(down).ok_or_else(|| {
        Error::new(
            Kind::OutOfRange,
            format!("no multiple of {step} bytes is between {} and {limit}", range.required),
        )
    })
}

/// The range, no smaller than the smallest XFS.
pub(crate) fn at_least_for_xfs(range: Range) -> Result<Range> {
    if range.limit != 0 && range.limit < XFS_MIN {
        return Err(Error::new(
            Kind::OutOfRange,
            format!("an XFS has at least {} bytes, {} are the limit; use ext4", XFS_MIN, range.limit),
        ));
    }
    Ok(Range { required: range.required.max(XFS_MIN), ..range })
}

/// The range, no smaller than `capacity`.
pub(crate) fn at_least(range: Range, capacity: u64) -> Result<Range> {
    let too_small = |asked: u64| {
        Err(Error::new(Kind::OutOfRange, format!("the source needs {capacity} bytes, {asked} are asked for")))
    };
    if range.required != 0 && range.required < capacity {
        return too_small(range.required);
    }
    if range.limit != 0 && range.limit < capacity {
        return too_small(range.limit);
    }
    Ok(Range { required: range.required.max(capacity), ..range })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required: u64, limit: u64) -> Range {
        Range { required, limit }
    }

    #[test]
    fn sizes() {
        let kinds = |range, step| size(range, step).map_err(|error| error.kind());
        for (required, limit, step, expected) in [
            (0, 0, 1, Ok(DEFAULT_SIZE)),
            (0, 5000, STEP, Ok(4096)),
            (0, 100, 1, Ok(100)),
            (0, 100, STEP, Err(Kind::OutOfRange)),
            (1, 0, STEP, Ok(4096)),
            (4096, 4096, STEP, Ok(4096)),
            (4097, 8191, STEP, Err(Kind::OutOfRange)),
            (4097, 8192, STEP, Ok(8192)),
            (7, 0, 1, Ok(7)),
            (SIZE_MAX, 0, 1, Ok(SIZE_MAX)),
            (SIZE_MAX, 0, STEP, Err(Kind::OutOfRange)),
        ] {
            assert_eq!(kinds(range(required, limit), step), expected, "{required} {limit} {step}");
        }
    }

    #[test]
    fn a_clone_is_no_smaller_than_its_source() {
        assert_eq!(at_least(range(0, 0), 7).unwrap().required, 7);
        assert_eq!(at_least(range(9, 0), 7).unwrap().required, 9);
        assert_eq!(at_least(range(6, 0), 7).unwrap_err().kind(), Kind::OutOfRange);
        assert_eq!(at_least(range(0, 6), 7).unwrap_err().kind(), Kind::OutOfRange);
    }

    #[test]
    fn a_small_xfs_is_as_large_as_an_xfs_must_be() {
        assert_eq!(at_least_for_xfs(range(5, 0)).unwrap().required, 300 << 20);
        assert_eq!(at_least_for_xfs(range(0, 400 << 20)).unwrap().required, 300 << 20);
        assert_eq!(at_least_for_xfs(range(400 << 20, 0)).unwrap().required, 400 << 20);
        assert_eq!(at_least_for_xfs(range(5, 299 << 20)).unwrap_err().kind(), Kind::OutOfRange);
    }
}
