//! GetMetadataAllocated and GetMetadataDelta: opens the snapshots to compare. No lock is held: a snapshot that is deleted
//! during a stream can still be read to its end.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::error::{Error, Kind, Result};
use crate::extents::{self, Ranges};
use crate::id::Id;
use crate::locks::{Locks, Thing};
use crate::pool::{IMAGE, Open, Snapshot};
use crate::pools::Pools;
use crate::record::Shape;

/// The ranges that a stream reports, and the volume's size.
pub(crate) struct Metadata {
    /// Bytes of the volume.
    pub(crate) capacity: u64,
    pub(crate) ranges: Ranges,
}

/// Compares the blocks of snapshots.
#[derive(Debug)]
pub(crate) struct SnapshotBlocks {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
}

impl SnapshotBlocks {
    /// The ranges of a block volume's snapshot, from `start` on, that hold data.
    pub(crate) fn allocated(&self, id: &Id, start: i64) -> Result<Metadata> {
        let (_, snapshot, file) = self.block_snapshot(id)?;
        let capacity = snapshot.record.capacity;
        let start = within(start, capacity)?;
        Ok(Metadata { capacity, ranges: extents::allocated(file, start, capacity) })
    }

    /// The ranges, from `start` on, in which a block volume's snapshot differs from an earlier one.
    pub(crate) fn changed(&self, base: &Id, id: &Id, start: i64) -> Result<Metadata> {
        let (_, base, before) = self.block_snapshot(base)?;
        let (open, snapshot, file) = self.block_snapshot(id)?;
        if base.record.source != snapshot.record.source {
            let of = [&base, &snapshot].map(|one| format!("{} is of {}", one.id, one.record.source));
            return Err(Error::new(
                Kind::Invalid,
                format!("the snapshots are of different volumes: {}", of.join(", ")),
            ));
        }
        if !open.known.sharing {
            return Err(open.pool.error(
                Kind::Precondition,
                "its filesystem cannot share blocks, so changed blocks cannot be determined",
            ));
        }
        let capacity = snapshot.record.capacity;
        let start = within(start, capacity)?;
        Ok(Metadata { capacity, ranges: extents::changed(before, file, start, capacity) })
    }

    fn block_snapshot(&self, id: &Id) -> Result<(Open<'_>, Snapshot, File)> {
        let _guard = self.locks.share(Thing::Snapshot(id.clone()))?;
        let absent =
            || Error::new(Kind::NotFound, format!("there is no snapshot {id} on {}", self.pools.node));
        let (open, snapshot) = self.pools.snapshot(id)?.ok_or_else(absent)?;
        if snapshot.record.shape != Shape::Block {
            return Err(Error::new(Kind::Precondition, format!("snapshot {id} is not of a block volume")));
        }
        let missing = || open.pool.error(Kind::Precondition, format!("snapshot {id} has no content"));
        let folder = open.snapshots()?.ok_or_else(missing)?.need_dir(id)?;
        let file = folder.open_with(IMAGE, OFlags::RDONLY | OFlags::NONBLOCK, 0)?.ok_or_else(missing)?;
        Ok((open, snapshot, file))
    }
}

/// `start` as an offset of a volume.
fn within(start: i64, capacity: u64) -> Result<u64> {
    u64::try_from(start).ok().filter(|start| *start <= capacity).ok_or_else(|| {
        Error::new(Kind::OutOfRange, format!("starting_offset {start} is not within {capacity} bytes"))
    })
}
