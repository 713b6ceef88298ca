//! Snapshots of several volumes as of one moment: all of them are there, or none.
//!
//! ```text
//! tmp/s.<snapshot>… filled while writes are frozen ─► tmp/g.<group> lists them ─► each renamed to snapshots/
//!   ─► tmp/g.<group> renamed to groups/<group>.json: the group, and with it each snapshot, is there
//! ```
//!
//! Deletion takes the same steps in reverse. Names in tmp/g.<group> are not snapshots; the sweep at start removes them after
//! a crash.
//!
//! Writes are frozen for filesystems in files. A block device or a directory cannot be frozen: the driver compares its state
//! before and after the cut, and repeats the cut until no source has changed.

use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::locks::{Locks, Thing};
use crate::plan::snapshot as plan;
use crate::plan::volume::how;
use crate::pool::clone::How;
use crate::pool::tree::State;
use crate::pool::{Open, Snapshot, Volume, identity, record_name, trash};
use crate::pools::Pools;
use crate::publications::Publications;
use crate::record::{self, GROUP_RECORD_MAX, GroupRecord, Member};
use crate::wake::Wake;

use super::image::{self, Note};
use super::room::promise;
use super::snapshot::{self, Writers};
use super::still::{POLL_INTERVAL, is_settled};
use super::uses;

/// Prefix of notes about groups that are being created or deleted.
const NOTE: &str = "g.";
/// Attempts at a cut before the call fails because the volumes are too busy.
const TRIES: u32 = 5;

/// A group that is there.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: Id,
    pub(crate) record: GroupRecord,
    /// Its snapshots, as far as they still are there.
    pub(crate) snapshots: Vec<Snapshot>,
}

/// Takes and deletes groups of snapshots.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
    pub(crate) published: Arc<Publications>,
    pub(crate) wake: Wake,
}

impl Groups {
    /// Takes a snapshot of each of `sources` as of one moment, or finds them taken.
    pub(crate) fn create(&self, id: &Id, sources: &[Id], copy: bool) -> Result<Group> {
        let _group = self.locks.lock(Thing::Group(id.clone()))?;
        let share = |source: &Id| self.locks.share(Thing::Volume(source.clone()));
        let _volumes = sources.iter().map(share).collect::<Result<Vec<_>>>()?;
        if let Some((open, group)) = self.group(id)? {
            plan::group_is_of(id, &group.record, sources)?;
            // The try that made it may have failed in its last step.
            open.groups()?.sync()?;
            return Ok(group);
        }
        let first = sources.first().ok_or_else(|| Error::new(Kind::Invalid, "a group of no volumes"))?;
        let (open, _) = self.pools.need_source(first)?;
        open.writable()?;
        let volumes = sources.iter().map(|source| self.member(&open, source)).collect::<Result<Vec<_>>>()?;
        let how = how(&open.pool.config, open.known.sharing, true, copy)?;
        if how == How::Copy {
            volumes.iter().try_for_each(|volume| uses::copyable(&self.published, &open, volume))?;
        }
        let mut bytes: u64 = 0;
        for volume in &volumes {
            bytes = bytes.saturating_add(snapshot::estimate(&open, volume)?);
        }
        let promise = promise(&open, bytes)?;
        // An earlier try may have failed before it removed its snapshots.
        dismantle(&open, id)?;
        let group = make(&open, id, &volumes, how).map_err(|error| open.without_room(bytes, error))?;
        drop(promise);
        let pool = &open.pool.config.name;
        tracing::info!(group = %id, snapshots = volumes.len(), pool, "group snapshot is taken");
        Ok(group)
    }

    /// A volume of a group, which must be in the group's pool: only there one record can make all of them appear.
    fn member(&self, open: &Open<'_>, id: &Id) -> Result<Volume> {
        if let Some(volume) = open.volume(id)? {
            return Ok(volume);
        }
        self.pools.need_source(id)?;
        Err(open.pool.error(Kind::Precondition, format!("volume {id} of the group is in another pool")))
    }

    /// The group `id` and its pool.
    fn group(&self, id: &Id) -> Result<Option<(Open<'_>, Group)>> {
        self.pools.find(|open| read(open, id))
    }

    /// The group `id`, which must be here.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when it is not; [`Kind::Invalid`] when it has other snapshots than `snapshots`.
    pub(crate) fn need(&self, id: &Id, snapshots: &[String]) -> Result<Group> {
        let node = &self.pools.node;
        let absent = || Error::new(Kind::NotFound, format!("there is no group snapshot {id} on {node}"));
        let (_, group) = self.group(id)?.ok_or_else(absent)?;
        plan::consists_of(id, &group.record, snapshots)?;
        Ok(group)
    }

    /// Deletes a group and its snapshots. One that is not here is deleted.
    pub(crate) fn delete(&self, id: &Id, snapshots: &[String]) -> Result<()> {
        let _group = self.locks.lock(Thing::Group(id.clone()))?;
        let Some((open, group)) = self.group(id)? else {
            // An earlier try may have failed after it took the group out of sight.
            for open in self.pools.all.iter().filter_map(|pool| pool.open().ok()) {
                dismantle(&open, id)?;
            }
            return Ok(());
        };
        plan::consists_of(id, &group.record, snapshots)?;
        let lock = |snapshot: &Snapshot| self.locks.lock(Thing::Snapshot(snapshot.id.clone()));
        let _snapshots = group.snapshots.iter().map(lock).collect::<Result<Vec<_>>>()?;
        let groups = open.groups()?;
        groups.rename(record_name(id), &*open.tmp()?, note(id))?;
        groups.sync()?;
        dismantle(&open, id)?;
        tracing::info!(group = %id, pool = open.pool.config.name, "group snapshot is deleted");
        self.wake.worker();
        Ok(())
    }
}

fn note(id: &Id) -> String {
    format!("{NOTE}{id}")
}

/// The group `id`, if it is in this pool.
fn read(open: &Open<'_>, id: &Id) -> Result<Option<Group>> {
    let Some(bytes) = open.groups()?.read(record_name(id), GROUP_RECORD_MAX)? else { return Ok(None) };
    let record = record::read_group(&bytes)?;
    let mut snapshots = Vec::with_capacity(record.members.len());
    for member in record.members.iter().filter_map(|member| Id::read(&member.snapshot)) {
        snapshots.extend(open.snapshot(&member)?);
    }
    Ok(Some(Group { id: id.clone(), record, snapshots }))
}

/// Makes the group; on failure nothing of it is left.
fn make(open: &Open<'_>, id: &Id, volumes: &[Volume], how: How) -> Result<Group> {
    let mut members = Vec::with_capacity(volumes.len());
    for volume in volumes {
        // As the sidecar names snapshots: it may be looked for on another node.
        let name = format!("snapshot-{}", identity::new_uuid()?);
        members.push(Member { snapshot: name, source: volume.id.to_string() });
    }
    let ids: Vec<Id> = members.iter().filter_map(|member| Id::read(&member.snapshot)).collect();
    let made = cut(open, &ids, volumes, how).and_then(|used| {
        let tmp = open.tmp()?;
        let record = GroupRecord::new(members);
        tmp.write(note(id), &record::write(&record)?)?;
        tmp.sync()?;
        for ((snapshot, volume), used) in ids.iter().zip(volumes).zip(used) {
            let record = snapshot::record_of(volume, used, Some(id));
            snapshot::publish(open, &super::member_in_tmp(snapshot), snapshot, &record)?;
        }
        open.snapshots_or_make()?.sync()?;
        let groups = open.groups()?;
        if !tmp.rename_new(note(id), &groups, record_name(id))? {
            return Err(Error::new(Kind::Busy, format!("another node made the group snapshot {id}")));
        }
        groups.sync()?;
        read(open, id)?.ok_or_else(|| Error::new(Kind::Internal, format!("group snapshot {id} vanished")))
    });
    if made.is_err() {
        let mut undone = dismantle(open, id);
        let there = read(open, id).is_ok_and(|group| group.is_some());
        for snapshot in ids.iter().filter(|_| !there) {
            undone = undone.and(remove(open, snapshot));
        }
        if let Err(error) = undone {
            tracing::warn!(group = %id, error = %error.chain(), "could not remove an incomplete group snapshot; the next start of the driver removes it");
        }
    }
    made
}

/// Fills the snapshots `ids` of `volumes`, all of one moment. Gives the bytes each uses.
///
/// # Errors
/// [`Kind::Precondition`] when some volume is written to all the time.
fn cut(open: &Open<'_>, ids: &[Id], volumes: &[Volume], how: How) -> Result<Vec<u64>> {
    let mut busy = Vec::new();
    for _ in 0..TRIES {
        let (used, changed) = cut_once(open, ids, volumes, how)?;
        if changed.is_empty() {
            return Ok(used);
        }
        busy = changed;
        std::thread::sleep(POLL_INTERVAL * 2);
    }
    Err(open.pool.error(
        Kind::Precondition,
        format!(
            "{} cannot be included in the group snapshot while they are written to; stop or freeze the writers, \
             or use a pool with \"enforce\": \"loop\"",
            busy.join(", ")
        ),
    ))
}

/// Fills all snapshots once. Returns the bytes each uses, and the volumes that changed during the cut.
fn cut_once(open: &Open<'_>, ids: &[Id], volumes: &[Volume], how: How) -> Result<(Vec<u64>, Vec<String>)> {
    let tmp = open.tmp()?;
    let notes: Vec<Note<'_>> = volumes.iter().map(|volume| Note::new(&tmp, &volume.id)).collect();
    let mut held = Vec::with_capacity(volumes.len());
    for (volume, note) in volumes.iter().zip(&notes) {
        held.push(match open.image(volume)? {
            Some(file) => image::hold(&open.pool.devices, &file, volume.shape, how, note)?,
            None => None,
        });
    }
    let looked_at: Vec<&Volume> =
        volumes.iter().zip(&held).filter(|(_, held)| held.is_none()).map(|(volume, _)| volume).collect();
    let states = || looked_at.iter().map(|volume| state(open, volume)).collect::<Result<Vec<_>>>();
    let mut before = states()?;
    if !before.iter().all(is_settled) {
        std::thread::sleep(POLL_INTERVAL * 2);
        before = states()?;
    }
    let settled: Vec<bool> = before.iter().map(is_settled).collect();
    let mut used = Vec::with_capacity(volumes.len());
    for (id, volume) in ids.iter().zip(volumes) {
        let name = super::member_in_tmp(id);
        super::clear(open, &tmp, &name)?;
        used.push(snapshot::fill(open, &name, volume, how, Writers::Held)?);
    }
    let after = states()?;
    for frozen in held.into_iter().flatten() {
        frozen.release()?;
    }
    let changed = looked_at.iter().zip(before.iter().zip(after).zip(settled));
    let changed = changed.filter(|(_, ((before, after), settled))| *before != after || !settled);
    Ok((used, changed.map(|(volume, _)| format!("volume {}", volume.id)).collect()))
}

fn state(open: &Open<'_>, volume: &Volume) -> Result<State> {
    snapshot::content(open, volume)?.of().state()
}

/// Removes a snapshot of a group that is not there, in its place or not yet.
fn remove(open: &Open<'_>, id: &Id) -> Result<()> {
    super::clear(open, &*open.tmp()?, &super::member_in_tmp(id))?;
    if let Some(snapshots) = open.snapshots()?
        && snapshots.stat(id)?.is_some()
    {
        trash::discard(open, &snapshots, id.as_str())?;
        snapshots.sync()?;
    }
    open.known.book().remove_snapshot(id);
    open.snapshot_records()?.unlink(record_name(id))?;
    Ok(())
}

/// Removes what the note about the group `id` names, and the note.
fn dismantle(open: &Open<'_>, id: &Id) -> Result<()> {
    let tmp = open.tmp()?;
    let Some(bytes) = tmp.read(note(id), GROUP_RECORD_MAX)? else { return Ok(()) };
    // A note that a crash cut short names nothing yet: it is synced before what it names appears.
    if let Ok(record) = record::read_group(&bytes) {
        for snapshot in record.members.iter().filter_map(|member| Id::read(&member.snapshot)) {
            remove(open, &snapshot)?;
        }
    }
    tmp.unlink(note(id))?;
    Ok(())
}

/// Removes groups that a process before us did not come to finish, or to remove.
pub(super) fn dismantle_left(open: &Open<'_>) -> Result<()> {
    for entry in open.tmp()?.entries()? {
        if let Some(id) = entry.name.strip_prefix(NOTE).and_then(Id::read) {
            dismantle(open, &id)?;
        }
    }
    Ok(())
}
