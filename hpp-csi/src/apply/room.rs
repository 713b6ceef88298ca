//! Room in a pool: bytes are promised before they are taken, and capacity is reported as upstream does where that is wanted.

use crate::config::Capacity;
use crate::error::Result;
use crate::plan::room;
use crate::pool::accounting::{Accounting, Promise};
use crate::pool::{Open, scan};
use crate::record::Shape;

/// Promises `bytes`, if they may be.
pub(super) fn promise(open: &Open<'_>, bytes: u64) -> Result<Promise> {
    if let Some(promise) = by_promises(open, bytes) {
        return Ok(promise);
    }
    scan::follow(open)?;
    // Both locks are kept until the reservation is in the account: between two callers there is no gap.
    let _admission = open.pool.neighbours.admission();
    let others = open.elsewhere(Accounting::outstanding);
    let mut book = open.known.book();
    room::admit(&open.pool.config.name, &open.room_by(&book, others), bytes)?;
    Ok(book.pend(&open.known, bytes))
}

/// The same without looking at any volume, where the pool has room whatever they have written. `None`: it depends on them.
fn by_promises(open: &Open<'_>, bytes: u64) -> Option<Promise> {
    let _admission = open.pool.neighbours.admission();
    let elsewhere = open.elsewhere(Accounting::promised);
    let mut book = open.known.book();
    let least = open.least_room(&book, elsewhere)?;
    room::is_ample(&least, bytes).then(|| book.pend(&open.known, bytes))
}

/// Capacity that answers and metrics report: upstream's number where the pool is configured for it.
pub(crate) fn reported_capacity(open: &Open<'_>, shape: Shape, capacity: u64) -> u64 {
    match open.pool.config.capacity {
        Capacity::Filesystem if shape == Shape::Folder => pretty(open.size_and_free().0),
        Capacity::Filesystem | Capacity::Request => capacity,
    }
}

/// Rounded down to whole GiB, or to MiB below ten GiB, as upstream reports the size of a filesystem.
fn pretty(bytes: u64) -> u64 {
    let unit = if bytes > 10 << 30 { 1 << 30 } else { 1 << 20 };
    bytes / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_reported_as_upstream_reports_them() {
        assert_eq!(pretty((39 << 30) + 5), 39 << 30);
        assert_eq!(pretty((2 << 30) + (3 << 20) + 5), (2 << 30) + (3 << 20));
    }
}
