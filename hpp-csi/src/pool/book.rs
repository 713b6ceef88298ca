//! What a pool has promised: a line per volume and snapshot, in memory. Its truth is on the disk; it is loaded when a pool
//! is found and kept up by every call.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::id::Id;
use crate::record::{Record, Shape, SnapshotRecord};

use super::Known;

/// A volume's line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// `None`: made by somebody else.
    pub(crate) record: Option<Record>,
    pub(crate) shape: Shape,
    /// Bytes it used when it was last looked at.
    pub(crate) used: u64,
}

impl Line {
    /// What is promised to it. What has no record is promised what it uses.
    pub(crate) fn promised(&self) -> u64 {
        self.record.as_ref().map_or(self.used, |record| record.capacity)
    }
}

/// All lines of a pool.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) volumes: BTreeMap<Id, Line>,
    pub(crate) snapshots: BTreeMap<Id, SnapshotRecord>,
    /// Promised to what is being made.
    pending: HashMap<u64, u64>,
    next: u64,
    /// Bytes that others use, when it was last looked.
    pub(crate) foreign: u64,
}

impl Book {
    /// Everything that is promised.
    pub(crate) fn promised(&self) -> u64 {
        let volumes = self.volumes.values().map(Line::promised);
        let snapshots = self.snapshots.values().map(|record| record.used);
        volumes.chain(snapshots).chain(self.pending.values().copied()).fold(0, u64::saturating_add)
    }

    /// Notes what is known about a volume.
    pub(crate) fn note_volume(&mut self, id: &Id, record: Option<Record>, place: Shape, used: u64) {
        let shape = record.as_ref().map_or(place, |record| record.shape);
        let used = self.volumes.get(id).map_or(used, |line| line.used.max(used));
        self.volumes.insert(id.clone(), Line { record, shape, used });
    }

    /// Promises `bytes` to what is being made.
    pub(crate) fn pend(&mut self, known: &Arc<Known>, bytes: u64) -> Promise {
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.pending.insert(number, bytes);
        Promise { known: known.clone(), number }
    }
}

/// A promise to what is being made; taken back when dropped. Before that, what was made has its line.
#[derive(Debug)]
pub(crate) struct Promise {
    known: Arc<Known>,
    number: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.known.book().pending.remove(&self.number);
    }
}
