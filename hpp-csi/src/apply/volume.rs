//! Volumes as the controller's calls create, expand, modify and delete them: what is observed, [`crate::plan::volume`]
//! decides, and its actions are carried out ([`super::make`], [`super::change`]) while the volume's lock is held.
//!
//! Stock csi-resizer has one leader, which asks the driver of its own node about the volumes of all. The driver that is
//! asked about another node's volume leaves everything to NodeExpandVolume, which the kubelet calls where the volume is.
//!
//! Not here: devices and mounts.

use std::sync::Arc;

use crate::config::Enforce;
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::locks::{Locks, Thing};
use crate::plan::volume::{
    self, Action, Create, ExistingVolume, Expand, Expanded, Growth, Observed, RequestedVolume,
};
use crate::pool::clone::How;
use crate::pool::{Open, Volume};
use crate::pools::Pools;
use crate::publications::Publications;
use crate::record::{self, Shape};
use crate::request::{Access, Allocation, Attributes, Capability, Parameters, Range, Source};
use crate::wake::Wake;

use super::content::Sources;
use super::make::{New, make};
use super::room::{promise, reported_capacity};
use super::{change, uses};

/// A CreateVolume, understood.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) capabilities: Vec<Capability>,
    pub(crate) parameters: Parameters,
    pub(crate) range: Range,
    pub(crate) source: Option<Source>,
    pub(crate) attributes: Attributes,
    /// For a pod, and gone with it.
    pub(crate) inline: bool,
}

impl Request {
    /// The filesystem that is asked for; empty when any is good.
    fn filesystem(&self) -> &str {
        let asked = self.capabilities.iter().find_map(|capability| match &capability.access {
            Access::Mount(options) => Some(options.filesystem.as_str()),
            Access::Block => None,
        });
        asked.unwrap_or_default()
    }
}

/// The volume as it is on the disk now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Capacity in bytes that the answer carries.
    pub(crate) capacity: u64,
    /// Whether other nodes have it too.
    pub(crate) shared: bool,
}

/// Creates, changes and deletes volumes.
#[derive(Debug)]
pub(crate) struct Volumes {
    pub(crate) pools: Arc<Pools>,
    pub(crate) locks: Locks,
    pub(crate) published: Arc<Publications>,
    pub(crate) wake: Wake,
}

impl Volumes {
    /// Makes a volume, or finds it made.
    pub(crate) fn create(&self, request: &Request) -> Result<Created> {
        let id = &request.id;
        let pool = self.pools.pool(request.parameters.pool.as_deref())?;
        volume::writers(&pool.config, &request.capabilities)?;
        volume::not_of_itself(id, request.source.as_ref())?;
        let _guard = self.locks.lock(Thing::Volume(id.clone()))?;
        // A pool that is not ready counts as lack of room: the claim may go to a node that has the pool.
        let no_room = |error: Error| {
            if error.kind() == Kind::NotReady { error.as_kind(Kind::Exhausted) } else { error }
        };
        let open = pool.open().map_err(no_room)?;
        let shape = volume::shape(&pool.config, open.enforce(), &request.capabilities)?;
        volume::can_have(shape, request.attributes)?;
        let existing = self.existing(&open, id)?;
        if existing.is_none() {
            open.writable().map_err(no_room)?;
        }
        let sources = Sources { pools: &self.pools, locks: &self.locks, published: &self.published };
        let content = match &request.source {
            Some(source) if existing.is_none() => {
                Some(sources.open(&open, source, shape, request.parameters.copy)?)
            }
            Some(_) | None => None,
        };
        let wanted = RequestedVolume {
            id,
            shape,
            range: request.range,
            sector: request.parameters.sector,
            source: request.source.as_ref(),
            filesystem: request.filesystem(),
            inline: request.inline,
        };
        let facts = content.as_ref().map(|content| content.facts);
        let observed = Observed { existing, content: facts, now: record::now().as_secs() };
        match volume::create(&wanted, &observed)? {
            Create::AlreadyThere => {
                // The try that made it may have failed in its last step.
                open.volume_records()?.sync()?;
                super::home(&open, shape)?.sync()?;
            }
            Create::Adopt(record) => {
                let promise = promise(&open, record.capacity)?;
                change::record(&open, id, record)?;
                drop(promise);
            }
            Create::Make { record, promise: bytes } => {
                let size = record.capacity;
                let promise = promise(&open, bytes)?;
                let new = New { id, filesystem: wanted.filesystem, content: content.as_ref() };
                make(&open, &new, record).map_err(|error| open.without_room(size, error))?;
                drop(promise);
                tracing::info!(volume = %id, pool = pool.config.name, bytes = size, shape = shape.word(), "volume is made");
            }
        }
        let volume = open.volume(id)?;
        if let Some(volume) = &volume {
            set(&open, volume, request.attributes)?;
        }
        let capacity = volume.and_then(|volume| volume.record).map_or(0, |record| record.capacity);
        Ok(Created { capacity: reported_capacity(&open, shape, capacity), shared: pool.config.shared })
    }

    /// The volume that has the name already, in this pool or in another.
    fn existing(&self, open: &Open<'_>, id: &Id) -> Result<Option<ExistingVolume>> {
        let existing = |volume: Volume, same_pool| ExistingVolume {
            same_pool,
            shape: volume.shape,
            record: volume.record,
        };
        if let Some(volume) = open.volume(id)? {
            return Ok(Some(existing(volume, true)));
        }
        for other in self.pools.all.iter().filter(|other| other.config.name != open.pool.config.name) {
            // A pool that is not there now cannot be asked; its volumes have other claims' names.
            if let Ok(other) = other.open()
                && let Some(volume) = other.volume(id)?
            {
                return Ok(Some(existing(volume, false)));
            }
        }
        Ok(None)
    }

    /// Expands a volume. Returns the capacity to report, and whether node expansion is required.
    pub(crate) fn expand(&self, id: &Id, range: Range) -> Result<(u64, bool)> {
        let _guard = self.locks.lock(Thing::Volume(id.clone()))?;
        let Some((open, volume)) = self.pools.volume(id)? else { return self.expand_elsewhere(id, range) };
        let observed = Expanded {
            shape: volume.shape,
            record: volume.record.as_ref(),
            used: open.known.book().volumes.get(id).map_or(0, |line| line.used),
            quota: open.enforce() == Some(Enforce::Quota),
            now: record::now().as_secs(),
        };
        let Growth { capacity, promise: bytes, actions } = volume::expand(&observed, range)?;
        if !actions.is_empty() {
            open.writable()?;
            // The claim can be reduced again after OUT_OF_RANGE only: no other node could grow this volume.
            let no_room = |error: Error| {
                if error.kind() == Kind::Exhausted { error.as_kind(Kind::OutOfRange) } else { error }
            };
            let promise = promise(&open, bytes).map_err(no_room)?;
            change::execute(&open, &volume, actions)
                .map_err(|error| no_room(open.without_room(capacity, error)))?;
            drop(promise);
            tracing::info!(volume = %id, bytes = capacity, "volume is expanded");
        }
        Ok((reported_capacity(&open, volume.shape, capacity), volume.shape != Shape::Folder))
    }

    /// Leaves a volume that another node has to that node.
    fn expand_elsewhere(&self, id: &Id, range: Range) -> Result<(u64, bool)> {
        if !self.pools.may_be_elsewhere(id) || self.pools.are_shared() {
            return Err(self.pools.absent(id));
        }
        let (Expand::AlreadyThere(capacity) | Expand::Grow(capacity)) =
            volume::new_size(None, range, Shape::Block)?;
        tracing::info!(volume = %id, bytes = capacity, "the volume is on another node, which expands it");
        Ok((capacity, true))
    }

    /// Applies `attributes` to a volume; an absent attribute leaves the volume as it is.
    pub(crate) fn modify(&self, id: &Id, attributes: Attributes) -> Result<()> {
        let _guard = self.locks.lock(Thing::Volume(id.clone()))?;
        let (open, volume) = self.pools.need_volume(id)?;
        volume::can_have(volume.shape, attributes)?;
        set(&open, &volume, attributes)
    }

    /// Deletes a volume. One that is not here is deleted.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is staged or published.
    pub(crate) fn delete(&self, id: &Id) -> Result<()> {
        let _volume = self.locks.lock(Thing::Volume(id.clone()))?;
        let _mounts = self.locks.lock(Thing::Mounts(id.clone()))?;
        match self.pools.volume(id)? {
            None => {
                super::forget_copy(&self.pools, &super::volume_in_tmp(id, Some(How::Copy)))?;
                self.wake.worker();
                Ok(())
            }
            Some((open, volume)) => self.remove(&open, &volume),
        }
    }

    /// Deletes a volume. The caller holds its locks.
    pub(super) fn remove(&self, open: &Open<'_>, volume: &Volume) -> Result<()> {
        let uses = uses::before_delete(&self.published, open, volume)?;
        change::execute(open, volume, volume::delete(&volume.id, volume.record.as_ref(), &uses)?)?;
        tracing::info!(volume = %volume.id, pool = open.pool.config.name, "volume is deleted");
        self.wake.worker();
        Ok(())
    }
}

/// Applies attributes that fit the volume. The caller holds its lock.
fn set(open: &Open<'_>, volume: &Volume, attributes: Attributes) -> Result<()> {
    let actions = volume::modify(volume.record.as_ref(), attributes);
    let is_recorded = actions.iter().any(|action| matches!(action, Action::Record(_)));
    change::execute(open, volume, actions)?;
    if is_recorded {
        let thick = attributes.allocation == Some(Allocation::Thick);
        tracing::info!(volume = %volume.id, thick, "volume is modified");
    }
    Ok(())
}
