//! Defragments the disks of volumes that are not in use, in pools that ask for it. A disk is copied to a new file, which then
//! takes its place in one step:
//!
//! ```text
//! tmp/d.<id> (ranges allocated, data copied) ─► sync ─► locks ─► idle? unchanged? ─► attributes, sync ─► rename over the disk ─► sync
//! ```
//!
//! No lock is held while data is copied: calls for the volume come first, and the copy is discarded when one of them uses or
//! changes the disk. A copy that was cut short is swept at the next start.
//!
//! Not here: snapshots, which never change; directories without a disk; when it is done ([`crate::worker`]).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    Advice, FallocateFlags, IFlags, OFlags, Stat, fadvise, fallocate, fdatasync, fstat, ioctl_getflags,
    ioctl_setflags,
};
use rustix::io::Errno;

use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::id::Id;
use crate::locks::{Guard, Locks, Thing};
use crate::plan::defragment as plan;
use crate::pool::tree::{self, State};
use crate::pool::{Open, Pool, Volume, clone, scan};
use crate::pools::Pools;
use crate::publications::{self, Publications};
use crate::sys::{self, Allocated};
use dir::Dir;

use super::room::promise;
use super::still::{Before, Content, is_settled};
use super::uses;

/// Bytes that are copied between two looks at the volume.
const STEP: usize = 4 << 20;
/// How often, and how far apart, a lock that a call holds is tried.
const LOCK_TRIES: u32 = 300;
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// The same of a disk that is open: the worker looks into it now and then.
const OPEN_TRIES: u32 = 20;
const OPEN_PAUSE: Duration = Duration::from_millis(10);

/// Defragments disks, one at a time.
#[derive(Debug)]
pub(crate) struct Defragmenter {
    pools: Arc<Pools>,
    locks: Locks,
    published: Arc<Publications>,
    /// Disks that cannot be copied, or of which a copy had too many extents as well: how many they had then.
    left: HashMap<Id, u64>,
    /// Disks with too many holes for a copy, as they were then: until one is written to, its ranges are not read again.
    sparse: HashMap<Id, State>,
    /// Volumes for which the lack of room is reported already.
    reported: HashSet<Id>,
}

/// How a disk's defragmentation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It has fewer extents now.
    Done { before: u64, after: u64 },
    /// There was nothing to do, or the volume is in use.
    LeftAlone,
    /// It has as many holes as when its ranges were last read.
    Unchanged,
    /// Its copy has as many extents: there are holes, or the pool's free space is in pieces.
    NotBetter { before: u64 },
}

impl Defragmenter {
    pub(crate) fn new(pools: Arc<Pools>, locks: Locks, published: Arc<Publications>) -> Self {
        Self {
            pools,
            locks,
            published,
            left: HashMap::new(),
            sparse: HashMap::new(),
            reported: HashSet::new(),
        }
    }

    /// Defragments what needs it and is not in use.
    pub(crate) fn run(&mut self) {
        let pools = self.pools.clone();
        for pool in &pools.all {
            if let Some(limit) = pool.config.defragment {
                self.pool(pool, limit.get());
            }
        }
    }

    fn pool(&mut self, pool: &Pool, limit: u64) {
        // The worker reports a pool that is not there.
        let Ok(open) = pool.open() else { return };
        if open.read_only() || !open.known.sharing {
            return;
        }
        let fragmented: Vec<(Id, u64)> = {
            let book = open.known.book();
            let lines = book.volumes.iter().filter_map(|(id, line)| Some((id.clone(), line.extents?)));
            lines.filter(|(_, extents)| *extents > limit).collect()
        };
        drop(open);
        for (id, extents) in fragmented {
            if self.left.get(&id).is_some_and(|then| extents < then.saturating_mul(2)) {
                continue;
            }
            // None is kept open longer than for one volume.
            let result = pool.open().and_then(|open| self.volume(&open, &id, limit));
            match result {
                Ok(Outcome::Done { before, after }) => {
                    self.left.remove(&id);
                    self.reported.remove(&id);
                    pool.defragmented.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(
                        volume = %id, extents_before = before, extents = after, "the volume's disk is defragmented"
                    );
                }
                Ok(Outcome::LeftAlone | Outcome::Unchanged) => {}
                Ok(Outcome::NotBetter { before }) => {
                    self.left.insert(id.clone(), before);
                    tracing::warn!(
                        volume = %id, extents = before,
                        "the volume's disk stays fragmented: a copy would have as many extents, as the file is sparse or the pool's free space is fragmented"
                    );
                }
                // A call came first.
                Err(error) if matches!(error.kind(), Kind::Busy | Kind::Precondition) => {
                    tracing::info!(volume = %id, error = %error.chain(), "the volume's disk is defragmented later");
                }
                Err(error) if error.kind() == Kind::Exhausted => {
                    if self.reported.insert(id.clone()) {
                        tracing::warn!(
                            volume = %id, extents, error = %error.chain(),
                            "the volume's disk stays fragmented until there is room for a copy"
                        );
                    }
                }
                Err(error) => {
                    self.left.insert(id.clone(), extents);
                    tracing::warn!(volume = %id, error = %error.chain(), "the volume's disk stays fragmented");
                }
            }
        }
    }

    fn volume(&mut self, open: &Open<'_>, id: &Id, limit: u64) -> Result<Outcome> {
        let Some(volume) = open.volume(id)? else { return Ok(Outcome::LeftAlone) };
        if !uses::is_idle(&self.published, open, &volume)? {
            return Ok(Outcome::LeftAlone);
        }
        let Some(disk) = Disk::open(open, &volume)? else { return Ok(Outcome::LeftAlone) };
        let state = State::of_file(&disk.file)?;
        if self.sparse.get(id) == Some(&state) {
            return Ok(Outcome::Unchanged);
        }
        let (extents, ranges) = (count_of(&disk.file)?, disk.ranges()?);
        let least = u64::try_from(ranges.len()).unwrap_or(u64::MAX);
        if !plan::is_worth(extents, least, limit) {
            if is_settled(&state) {
                self.sparse.insert(id.clone(), state);
            }
            return Ok(Outcome::LeftAlone);
        }
        self.sparse.remove(id);
        // A pool may have come back with volumes that are published since it was last asked.
        publications::recover(std::slice::from_ref(open.pool), &self.published)?;
        if !uses::is_idle(&self.published, open, &volume)? {
            return Ok(Outcome::LeftAlone);
        }
        if disk.is_open_elsewhere()? {
            return Ok(Outcome::LeftAlone);
        }
        let bytes = ranges.iter().map(|range| range.length).fold(0, u64::saturating_add);
        let promise = promise(open, bytes)?;
        plan::holds(&open.pool.config.name, &open.room_by_accounts(), bytes)?;
        let before = Before::of(&Content::Image(&disk.file))?;
        let ranges = disk.ranges()?;
        let tmp = open.tmp()?;
        let name = format!("d.{id}");
        super::clear(open, &tmp, &name)?;
        let work = Work { of: self, open, volume: &volume, disk: &disk, before };
        let done = work.copy(&tmp, &name, &ranges).and_then(|copy| {
            let after = count_of(&copy)?;
            if after > extents / 2 {
                return Ok(Outcome::NotBetter { before: extents });
            }
            work.place(&tmp, &name, &copy)?;
            Ok(Outcome::Done { before: extents, after })
        });
        if !matches!(done, Ok(Outcome::Done { .. })) {
            // If it stays, the next start sweeps it.
            drop(tmp.unlink(&name));
        }
        drop((promise, disk));
        if matches!(done, Ok(Outcome::Done { .. })) {
            scan::measure(open, &mut tree::Budget::default(), Some(&[id.clone()].into()))?;
        }
        done
    }

    /// Locks a volume and its mounts, as soon as no call works on them.
    fn lock(&self, id: &Id) -> Result<[Guard; 2]> {
        let both = || {
            let volume = self.locks.lock(Thing::Volume(id.clone()))?;
            Ok([volume, self.locks.lock(Thing::Mounts(id.clone()))?])
        };
        let busy = |result: &Result<_>| result.as_ref().is_err_and(|error| error.kind() == Kind::Busy);
        retried(LOCK_TRIES, LOCK_PAUSE, both, busy)
    }
}

/// Result of `attempt`, which is repeated for a while as long as it is `busy`.
fn retried<T>(
    tries: u32,
    pause: Duration,
    attempt: impl Fn() -> Result<T>,
    busy: impl Fn(&Result<T>) -> bool,
) -> Result<T> {
    for _ in 1..tries {
        let result = attempt();
        if !busy(&result) {
            return result;
        }
        thread::sleep(pause);
    }
    attempt()
}

/// The disk of a volume.
struct Disk {
    file: File,
    folder: Arc<Dir>,
    name: PathBuf,
}

impl Disk {
    /// `None` when there is none, or it has other names: they would lead to the old file.
    fn open(open: &Open<'_>, volume: &Volume) -> Result<Option<Self>> {
        let Some((folder, name)) = open.disk(&volume.id, volume.shape)? else { return Ok(None) };
        // A pod may have a file of another type there.
        let file = folder.own_file(&name, OFlags::RDONLY | OFlags::NOATIME).unwrap_or_default();
        Ok(file.map(|file| Self { file, folder, name }))
    }

    /// Whether a process has it open for longer than the worker, which looks into it now and then.
    fn is_open_elsewhere(&self) -> Result<bool> {
        let is_open = || {
            let asked = sys::is_open_elsewhere(self.file.as_fd());
            asked.map_err(|error| Error::io("check whether a process has a disk open", error))
        };
        retried(OPEN_TRIES, OPEN_PAUSE, is_open, |result| matches!(result, Ok(true)))
    }

    fn stat(&self) -> Result<Stat> {
        fstat(&self.file).map_err(|error| Error::io("inspect a disk", error))
    }

    /// Its allocated ranges up to its end, in order, those that touch and are alike made one.
    fn ranges(&self) -> Result<Vec<Allocated>> {
        let size = u64::try_from(self.stat()?.st_size).unwrap_or(0);
        let (mut ranges, mut start) = (Vec::new(), Some(0));
        while let Some(from) = start {
            let (found, next) = sys::allocated(self.file.as_fd(), from)
                .map_err(|error| Error::io("read where a disk's data is", error))?;
            found.into_iter().for_each(|range| add(&mut ranges, range, size));
            start = next;
        }
        Ok(ranges)
    }
}

/// Adds a range to those before it, up to `size`.
fn add(ranges: &mut Vec<Allocated>, range: Allocated, size: u64) {
    let length = range.length.min(size.saturating_sub(range.offset));
    match ranges.last_mut() {
        _ if length == 0 => {}
        Some(last) if last.offset + last.length == range.offset && last.written == range.written => {
            last.length += length;
        }
        Some(_) | None => ranges.push(Allocated { length, ..range }),
    }
}

fn count_of(file: &File) -> Result<u64> {
    sys::extent_count(file.as_fd()).map_err(|error| Error::io("count the extents of a disk", error))
}

/// A disk in the making.
struct Work<'a> {
    of: &'a Defragmenter,
    open: &'a Open<'a>,
    volume: &'a Volume,
    disk: &'a Disk,
    before: Before,
}

impl Work<'_> {
    /// Checks that the volume is not in use, and that its disk is as it was.
    fn still(&self) -> Result<()> {
        let Self { of, open, volume, disk, before } = self;
        let what = format!("volume {}", volume.id);
        let changed = |how| Error::new(Kind::Precondition, format!("{what} {how} while its disk was copied"));
        let now = open.volume(&volume.id)?.map_or(Ok(None), |now| open.disk(&now.id, now.shape))?;
        let there = now.map_or(Ok(None), |(folder, name)| folder.stat(name))?;
        let own = disk.stat()?;
        if there.is_none_or(|there| (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino)) {
            return Err(changed("was deleted"));
        }
        if !uses::is_idle(&of.published, open, volume)? {
            return Err(changed("was staged or published"));
        }
        before.unchanged(&Content::Image(&disk.file), &what)
    }

    /// Makes the copy: the same ranges allocated, the same data, and on the disk.
    fn copy(&self, tmp: &Dir, name: &str, ranges: &[Allocated]) -> Result<File> {
        let io = |error: Errno| Error::io("copy a disk", error);
        let copy = tree::new_file(tmp, name)?;
        // btrfs takes it from an empty file only.
        if let Ok(flags) = ioctl_getflags(&self.disk.file)
            && flags.contains(IFlags::NOCOW)
        {
            ioctl_setflags(&copy, flags & IFlags::NOCOW).map_err(io)?;
        }
        let size = u64::try_from(self.disk.stat()?.st_size).unwrap_or(0);
        copy.set_len(size).map_err(|error| Error::io("copy a disk", error))?;
        for range in ranges {
            fallocate(&copy, FallocateFlags::KEEP_SIZE, range.offset, range.length).map_err(io)?;
        }
        let mut buffer = vec![0; STEP];
        let (mut begun, mut unsynced) = (Instant::now(), 0);
        for range in ranges.iter().filter(|range| range.written) {
            let (mut at, end) = (range.offset, range.offset + range.length);
            while at < end {
                let length = usize::try_from(end - at).unwrap_or(STEP).min(STEP);
                let piece = buffer.get_mut(..length).unwrap_or_default();
                let copied =
                    self.disk.file.read_exact_at(piece, at).and_then(|()| copy.write_all_at(piece, at));
                copied.map_err(|error| Error::io("copy a disk", error))?;
                at += u64::try_from(length).unwrap_or(0);
                unsynced += length;
                if unsynced >= STEP {
                    self.pause(&copy, begun)?;
                    (begun, unsynced) = (Instant::now(), 0);
                }
            }
        }
        fault::step("sync the copy of the disk")?;
        dir::fsync(&copy).map_err(|error| Error::io("sync the copy of a disk", error))?;
        Ok(copy)
    }

    /// Writes the data copied since `begun` to the disk, and waits as long as copying and writing took.
    fn pause(&self, copy: &File, begun: Instant) -> Result<()> {
        fdatasync(copy).map_err(|error| Error::io("copy a disk", error))?;
        for file in [&self.disk.file, copy] {
            // Nothing reads it soon; without it more memory is used.
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
        self.still()?;
        thread::sleep(begun.elapsed().min(Duration::from_secs(1)));
        Ok(())
    }

    /// Puts the copy in the disk's place.
    fn place(&self, tmp: &Dir, name: &str, copy: &File) -> Result<()> {
        let Self { of, volume, disk, .. } = self;
        let io = |error| Error::io("give a copy the attributes of its disk", error);
        let _guards = of.lock(&volume.id)?;
        if disk.is_open_elsewhere()? {
            let path = disk.folder.path_of(&disk.name);
            return Err(Error::new(Kind::Precondition, format!("a process has {} open", path.display())));
        }
        self.still()?;
        fault::step("give the copy its attributes")?;
        clone::take_after(copy.as_fd(), disk.file.as_fd(), &disk.stat()?)?;
        let project = sys::project_of(disk.file.as_fd()).unwrap_or(0);
        if project != 0 {
            // Its blocks count twice until the old disk is gone: the kernel lets a privileged process.
            sys::set_project_of_file(copy.as_fd(), project).map_err(io)?;
        }
        dir::fsync(copy).map_err(|error| Error::io("sync the copy of a disk", error))?;
        fault::step("place the copy")?;
        tmp.rename(name, &disk.folder, &disk.name)?;
        Ok(disk.folder.sync()?)
    }
}

#[cfg(test)]
mod tests;
