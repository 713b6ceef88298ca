//! Reservations of a pool: a line per volume and snapshot, in memory. The disk is authoritative; the lines are loaded when a
//! pool is opened first and updated by every call.
//!
//! Available is free, less the reserve, less the bytes that each volume may yet take: its capacity less the bytes that it owns
//! alone. Writing a block that it shares with a snapshot or a clone takes another block. A line is
//! never ahead of the disk in what its volume owns: a snapshot takes that away at once, and it comes back when the volume is
//! looked at.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::id::Id;
use crate::record::{Record, RecordSource, Shape, SnapshotRecord};

use super::Known;
use super::tree::Usage;

/// A volume's line.
#[derive(Clone, Debug)]
pub(crate) struct VolumeAccount {
    /// `None`: not created by this driver.
    pub(crate) record: Option<Record>,
    pub(crate) shape: Shape,
    /// Bytes it used when it was last looked at.
    pub(crate) used: u64,
    /// Bytes of them that no other file shares.
    owned: u64,
    /// Bytes that its file holds and its filesystem does not use, after the filesystem last gave back freed blocks.
    pub(crate) kept: u64,
    /// Extents of its disk when it was last looked at; `None`: it has none, or the filesystem does not count them.
    pub(crate) extents: Option<u64>,
    /// Whether it was looked at.
    seen: bool,
    /// Whether it shared blocks with what may be gone by now.
    shared: bool,
}

impl VolumeAccount {
    /// Bytes that are promised to it: its size, or its use where that is more or there is no record.
    pub(crate) fn promised(&self) -> u64 {
        self.record.as_ref().map_or(self.used, |record| record.capacity.max(self.used))
    }

    /// Bytes that it may still take.
    pub(crate) fn outstanding(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.capacity.saturating_sub(self.owned))
    }

    /// Bytes that a snapshot or clone would make it share, and that it may have to take again.
    pub(crate) fn to_share(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.capacity.min(self.owned))
    }

    /// Sets the measured usage.
    pub(crate) fn set_usage(&mut self, usage: Usage) {
        (self.used, self.owned) = (usage.used, usage.owned.min(usage.used));
        self.seen = true;
    }

    /// Takes in how much it uses now, which is less than a measurement: lost bytes may have been its own. Bytes that a file
    /// gained are its own; in a folder a pod may have made them of shared blocks.
    pub(crate) fn follow(&mut self, used: u64) {
        if !self.seen {
            return;
        }
        let (gained, lost) = (used.saturating_sub(self.used), self.used.saturating_sub(used));
        self.owned = self.owned.saturating_sub(lost);
        if self.shape != Shape::Folder {
            self.owned = self.owned.saturating_add(gained).min(used);
        }
        self.used = used;
    }

    /// Takes in that all its blocks are allocated, and none is shared.
    pub(crate) fn allocated(&mut self, used: u64) {
        self.set_usage(Usage { used, owned: used });
    }
}

/// All lines of a pool.
#[derive(Debug, Default)]
pub(crate) struct Accounting {
    pub(crate) volumes: BTreeMap<Id, VolumeAccount>,
    pub(crate) snapshots: BTreeMap<Id, SnapshotRecord>,
    /// Promised to what is being made.
    pending: HashMap<u64, u64>,
    next: u64,
    /// Bytes that others use, when it was last looked.
    pub(crate) foreign: u64,
    /// Rounds that are left in which volumes that shared blocks are measured again, after a deletion.
    again: u32,
}

/// Rounds in which it is looked again: a filesystem may free what was deleted only after a while.
const AGAIN: u32 = 2;

impl Accounting {
    /// Everything that is promised.
    pub(crate) fn promised(&self) -> u64 {
        let volumes = self.volumes.values().map(VolumeAccount::promised);
        let snapshots = self.snapshots.values().map(|record| record.used);
        volumes.chain(snapshots).fold(self.pending(), u64::saturating_add)
    }

    /// Bytes that volumes, and those being made, may still take.
    pub(crate) fn outstanding(&self) -> u64 {
        self.volumes.values().map(VolumeAccount::outstanding).fold(self.pending(), u64::saturating_add)
    }

    fn pending(&self) -> u64 {
        self.pending.values().copied().fold(0, u64::saturating_add)
    }

    /// Notes a volume's record.
    pub(crate) fn note_volume(&mut self, id: &Id, record: Option<Record>, place: Shape) {
        let shape = record.as_ref().map_or(place, |record| record.shape);
        let line = VolumeAccount {
            record,
            shape,
            used: 0,
            owned: 0,
            kept: 0,
            extents: None,
            seen: false,
            shared: false,
        };
        match self.volumes.get_mut(id) {
            Some(known) => (known.record, known.shape) = (line.record, line.shape),
            None => drop(self.volumes.insert(id.clone(), line)),
        }
    }

    /// Notes a volume that was made just now, with what it uses and owns.
    pub(crate) fn note_made(&mut self, id: &Id, record: &Record, used: u64, owned: u64) {
        let line = VolumeAccount {
            shape: record.shape,
            record: Some(record.clone()),
            used,
            owned,
            kept: 0,
            extents: None,
            seen: true,
            shared: owned < used,
        };
        self.volumes.insert(id.clone(), line);
    }

    /// Notes that a volume shares all its blocks from now on: its file used at least `used` bytes by then. They are not gained
    /// when the volume is looked at next, however long ago the last look was.
    pub(crate) fn note_shared(&mut self, id: &str, used: u64) {
        if let Some(line) = self.volumes.get_mut(id) {
            (line.owned, line.shared) = (0, true);
            if line.shape != Shape::Folder {
                line.used = line.used.max(used);
            }
        }
    }

    /// Notes a snapshot, which `shares` the blocks of its volume or has copies of them.
    pub(crate) fn note_snapshot(&mut self, id: &Id, record: &SnapshotRecord, shares: bool) {
        if shares {
            self.note_shared(&record.source, record.used);
        }
        self.snapshots.insert(id.clone(), record.clone());
    }

    /// Forgets a volume that was deleted.
    pub(crate) fn remove_volume(&mut self, id: &Id) {
        if self.volumes.remove(id).is_some() {
            self.again = AGAIN;
        }
    }

    /// Forgets a snapshot that was deleted.
    pub(crate) fn remove_snapshot(&mut self, id: &Id) {
        if self.snapshots.remove(id).is_some() {
            self.again = AGAIN;
        }
    }

    /// Whether to measure volumes that shared blocks now. True in a few rounds after a deletion.
    pub(crate) fn look_again(&mut self) -> bool {
        let again = self.again > 0;
        self.again = self.again.saturating_sub(1);
        again
    }

    /// The volumes that may share blocks. All others own what they use.
    pub(crate) fn sharing(&self) -> HashSet<Id> {
        let mut sources: HashSet<&str> =
            self.snapshots.values().map(|record| record.source.as_str()).collect();
        for line in self.volumes.values() {
            if let Some(RecordSource::Volume(source)) =
                line.record.as_ref().and_then(|record| record.source.as_ref())
            {
                sources.insert(source);
            }
        }
        let shares = |id: &Id, line: &VolumeAccount| {
            line.shared
                || line.record.as_ref().is_some_and(|record| record.source.is_some())
                || sources.contains(id.as_str())
        };
        self.volumes.iter().filter(|(id, line)| shares(id, line)).map(|(id, _)| id.clone()).collect()
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

/// When volumes are looked at. A look may walk through all files: the longer it takes, the rarer it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LookSchedule {
    next: Duration,
}

impl LookSchedule {
    /// Least time between two looks.
    pub(crate) const PAUSE: Duration = Duration::from_secs(60);
    /// A look takes this part of the time at most.
    const SHARE: u32 = 50;

    /// Looks of which the first was at `now`.
    pub(crate) fn since(now: Duration) -> Self {
        Self { next: now.saturating_add(Self::PAUSE) }
    }

    /// Whether it is time, at `now`.
    pub(crate) fn is_due(self, now: Duration) -> bool {
        now >= self.next
    }

    /// A look that `took` so long has ended at `now`.
    pub(crate) fn done(&mut self, now: Duration, took: Duration) {
        self.next = now.saturating_add(took.saturating_mul(Self::SHARE).max(Self::PAUSE));
    }
}

#[cfg(test)]
mod tests;
