//! The content of a new volume: a volume or a snapshot, opened and kept from being changed. Not here: sharing or copying it.

use std::fs::File;

use crate::error::{Kind, Result};
use crate::id::Id;
use crate::locks::{Guard, Locks, Thing};
use crate::plan::volume::{self, SourceContent};
use crate::pool::clone::How;
use crate::pool::{DATA, IMAGE, Open};
use crate::pools::Pools;
use crate::publications::Publications;
use crate::record::Shape;
use crate::request::Source;
use dir::Dir;

use super::still::{self, Before};
use super::uses;

/// The source of a new volume's content.
pub(super) struct Content {
    /// Held until the volume is there.
    _guard: Guard,
    /// Name of the source, under which an interrupted copy is resumed.
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) from: From,
    pub(super) how: How,
    /// Facts that decide about the new volume.
    pub(super) facts: SourceContent,
    /// The volume that it is of; `None`: a snapshot.
    volume: Option<Id>,
    /// How a volume was before it is copied; a snapshot does not change.
    before: Option<Before>,
}

impl Content {
    /// Checks that what was copied is of one moment.
    pub(super) fn is_whole(&self) -> Result<()> {
        self.before.map_or(Ok(()), |before| before.unchanged(&self.from.content(), &self.name))
    }

    /// The volume that it is of.
    pub(super) fn volume(&self) -> Option<&Id> {
        self.volume.as_ref()
    }
}

impl From {
    fn content(&self) -> still::Content<'_> {
        match self {
            Self::Folder(folder) => still::Content::Tree(folder),
            Self::Image(file, _) => still::Content::Image(file),
        }
    }
}

/// The open content.
pub(super) enum From {
    Folder(Dir),
    /// The image of the volume or snapshot of this name.
    Image(File, Id),
}

/// Where sources are looked for.
pub(super) struct Sources<'a> {
    pub(super) pools: &'a Pools,
    pub(super) locks: &'a Locks,
    pub(super) published: &'a Publications,
}

impl Sources<'_> {
    /// Opens the content for a volume of this shape in the pool `into`, and keeps it from being changed. `copy`: it may be
    /// copied where blocks cannot be shared.
    ///
    /// # Errors
    /// [`Kind::NotFound`] or [`Kind::Exhausted`] when it is not here; [`Kind::Invalid`] when it is of another shape;
    /// [`Kind::Precondition`] when it would be copied, and is in use.
    pub(super) fn open(&self, into: &Open<'_>, source: &Source, shape: Shape, copy: bool) -> Result<Content> {
        let (guard, from_pool, found, capacity, sector, of, from) = match source {
            Source::Volume(id) => {
                let guard = self.locks.share(Thing::Volume(id.clone()))?;
                let (from, volume) = self
                    .pools
                    .volume(id)?
                    .ok_or_else(|| self.pools.missing_source("volume", id, into.pool.config.shared))?;
                let capacity = volume.record.as_ref().map_or(0, |record| record.capacity);
                let sector = volume.record.as_ref().map_or(512, |record| record.sector);
                let content = match volume.shape {
                    Shape::Folder => From::Folder(from.root.need_dir(id)?),
                    Shape::Loop | Shape::Block => From::Image(from.need_image(&volume)?, id.clone()),
                };
                (guard, from.pool, volume.shape, capacity, sector, Some((from, volume)), content)
            }
            Source::Snapshot(id) => {
                let guard = self.locks.share(Thing::Snapshot(id.clone()))?;
                let (from, snapshot) = self
                    .pools
                    .snapshot(id)?
                    .ok_or_else(|| self.pools.missing_source("snapshot", id, into.pool.config.shared))?;
                let missing = || from.pool.error(Kind::Precondition, format!("snapshot {id} has no content"));
                let folder = from.snapshots()?.ok_or_else(missing)?.need_dir(id)?;
                let content = match snapshot.record.shape {
                    Shape::Folder => From::Folder(folder.dir(DATA)?.ok_or_else(missing)?),
                    Shape::Loop | Shape::Block => From::Image(
                        folder.open_with(IMAGE, rustix::fs::OFlags::RDONLY, 0)?.ok_or_else(missing)?,
                        id.clone(),
                    ),
                };
                (
                    guard,
                    from.pool,
                    snapshot.record.shape,
                    snapshot.record.capacity,
                    snapshot.record.sector,
                    None,
                    content,
                )
            }
        };
        volume::of_same_shape(found, shape)?;
        let same = from_pool.config.name == into.pool.config.name;
        let how = volume::how(&into.pool.config, into.known.sharing, same, copy)?;
        let (name, of_volume) = match source {
            Source::Volume(id) => (format!("volume {id}"), Some(id.clone())),
            Source::Snapshot(id) => (format!("snapshot {id}"), None),
        };
        let mut before = None;
        let mut shared = 0;
        if let Some((open, volume)) = of {
            match how {
                How::Copy => {
                    uses::copyable(self.published, &open, &volume)?;
                    before = Some(Before::of(&from.content())?);
                }
                How::Share => shared = open.owned(&volume.id),
            }
        }
        let facts = SourceContent { capacity, sector, shared };
        Ok(Content { _guard: guard, name, shape: found, from, how, facts, volume: of_volume, before })
    }
}
