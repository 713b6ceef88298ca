//! CreateVolume. What is made is made aside and appears in one step:
//!
//! ```text
//! tmp/v.<id> (quota, content) ─► sync ─► record, sync ─► rename to its place, unless taken ─► sync
//! ```

use std::fs::File;

use crate::config::{Capacity, Enforce, PoolConfig};
use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::id::Id;
use crate::latency;
use crate::locks::{Guard, Thing};
use crate::plan::{self, Create, ExistingVolume, RequestedVolume};
use crate::pool::accounting::Promise;
use crate::pool::clone::{self, How};
use crate::pool::{DATA, IMAGE, Open, record_name, scan, trash, tree};
use crate::record::{Record, RecordSource, Shape};
use crate::request::{Access, Attributes, Capability, Mode, Parameters, Range, Source};
use crate::sys;
use dir::Dir;
use rustix::fs::fstat;

use super::image::{self, Note};
use super::modify;
use super::still::{self, Before};

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

/// The volume as it is on the disk now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Created {
    /// Capacity in bytes that the answer carries.
    pub(crate) capacity: u64,
    /// Whether other nodes have it too.
    pub(crate) shared: bool,
}

/// The source of a new volume's content.
struct Content {
    /// Held until the volume is there.
    _guard: Guard,
    /// Name of the source, under which an interrupted copy is resumed.
    name: String,
    shape: Shape,
    /// Bytes that a volume needs to hold it.
    capacity: u64,
    from: From,
    how: How,
    sector: u32,
    /// How a volume was before it is copied; a snapshot does not change.
    before: Option<Before>,
    /// Bytes that the source owns alone, and will share.
    shared: u64,
}

impl Content {
    /// Checks that what was copied is of one moment.
    fn is_whole(&self) -> Result<()> {
        self.before.map_or(Ok(()), |before| before.unchanged(&self.from.content(), &self.name))
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

enum From {
    Folder(Dir),
    /// The image of the volume or snapshot of this name.
    Image(File, Id),
}

/// Checks that a pool has volumes for writers on several nodes, if one is asked for.
///
/// # Errors
/// [`Kind::Invalid`]: the pods on other nodes would wait for ever.
pub(crate) fn writers(pool: &PoolConfig, capabilities: &[Capability]) -> Result<()> {
    let many = capabilities.iter().any(|capability| capability.mode == Mode::ManyNodes);
    if many && !pool.read_write_many {
        let name = &pool.name;
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "pool {name} has the files of one node: ask for ReadWriteOnce, or, if all pods of its ReadWriteMany volumes \
                 run on one node, set \"readWriteMany\": true for the pool (in the platform the annotation \
                 ferrovirt.io/read-write-many: {name} of the HostPathProvisioner)"
            ),
        ));
    }
    Ok(())
}

impl Driver {
    /// Makes a volume, or finds it made.
    pub(crate) fn create_volume(&self, request: &Request) -> Result<Created> {
        let pool = self.pool(request.parameters.pool.as_deref())?;
        writers(&pool.config, &request.capabilities)?;
        if matches!(&request.source, Some(Source::Volume(id)) if *id == request.id) {
            return Err(Error::new(Kind::Invalid, "the source of a volume is the volume itself"));
        }
        let _guard = self.locks.lock(Thing::Volume(request.id.clone()))?;
        // A pool that is not ready counts as lack of room: the claim may go to a node that has the pool.
        let no_room = |error: Error| {
            if error.kind() == Kind::NotReady { error.as_kind(Kind::Exhausted) } else { error }
        };
        let open = pool.open().map_err(no_room)?;
        let shape = shape(&open, request)?;
        plan::modify(shape, request.attributes)?;
        let found = self.found(&open, &request.id)?;
        if found.is_none() {
            open.writable().map_err(no_room)?;
        }
        let content = match &request.source {
            Some(source) if found.is_none() => Some(self.content(&open, source, shape, request)?),
            Some(_) | None => None,
        };
        let mut wanted = RequestedVolume {
            shape,
            range: request.range,
            sector: request.parameters.sector,
            source: request.source.clone(),
        };
        if found.is_none() && content.is_none() && shape == Shape::Loop && filesystem(request) == "xfs" {
            // The PV has fsType xfs, and a smaller one cannot be made.
            wanted.range = at_least_for_xfs(wanted.range)?;
        }
        if let Some(content) = &content {
            wanted.range = at_least(wanted.range, content.capacity)?;
        }
        match plan::create(&wanted, found.as_ref())? {
            Create::AlreadyThere => {
                // The try that made it may have failed in its last step.
                open.volume_records()?.sync()?;
                super::home(&open, &open.blocks()?, shape).sync()?;
            }
            Create::Adopt(size) => {
                let promise = promise(&open, size)?;
                let record = Record::new(Shape::Folder, size);
                super::write_volume_record(&open, &request.id, &record)?;
                open.known.book().note_volume(&request.id, Some(record), Shape::Folder);
                drop(promise);
            }
            Create::Make(size) => {
                let shared = content.as_ref().map_or(0, |content| content.shared);
                let promise = promise(&open, size.saturating_add(shared))?;
                let record = Record {
                    source: request.source.as_ref().map(RecordSource::of),
                    sector: match (&content, shape) {
                        (Some(content), _) => content.sector,
                        (None, Shape::Loop) => image::SECTOR,
                        (None, Shape::Folder | Shape::Block) => wanted.sector,
                    },
                    inline: request.inline,
                    ..Record::new(shape, size)
                };
                make(&open, request, record, content.as_ref())
                    .map_err(|error| open.without_room(size, error))?;
                drop(promise);
                tracing::info!(volume = %request.id, pool = pool.config.name, bytes = size, shape = shape.word(), "volume is made");
            }
        }
        let volume = open.volume(&request.id)?;
        if let Some(volume) = &volume {
            modify::apply(&open, volume, request.attributes)?;
        }
        let capacity = volume.and_then(|volume| volume.record).map_or(0, |record| record.capacity);
        Ok(Created { capacity: reported_capacity(&open, shape, capacity), shared: pool.config.shared })
    }

    /// The volume that has the name already, in this pool or in another.
    fn found(&self, open: &Open<'_>, id: &Id) -> Result<Option<ExistingVolume>> {
        let found = |volume: crate::pool::Volume, same_pool| ExistingVolume {
            same_pool,
            shape: volume.shape,
            record: volume.record,
        };
        if let Some(volume) = open.volume(id)? {
            return Ok(Some(found(volume, true)));
        }
        for other in self.pools.iter().filter(|other| other.config.name != open.pool.config.name) {
            // A pool that is not there now cannot be asked; its volumes have other claims' names.
            if let Ok(other) = other.open()
                && let Some(volume) = other.volume(id)?
            {
                return Ok(Some(found(volume, false)));
            }
        }
        Ok(None)
    }

    /// Opens what a volume is to be filled with, and keeps it from being changed.
    fn content(&self, open: &Open<'_>, source: &Source, shape: Shape, request: &Request) -> Result<Content> {
        let (guard, from_pool, found, capacity, sector, of, from) = match source {
            Source::Volume(id) => {
                let guard = self.locks.share(Thing::Volume(id.clone()))?;
                let (from, volume) = self
                    .volume(id)?
                    .ok_or_else(|| self.missing_source("volume", id, open.pool.config.shared))?;
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
                    .snapshot(id)?
                    .ok_or_else(|| self.missing_source("snapshot", id, open.pool.config.shared))?;
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
        if found != shape {
            let name = |shape| match shape {
                Shape::Folder => "a folder",
                Shape::Loop => "a filesystem in a file",
                Shape::Block => "a block device",
            };
            return Err(Error::new(
                Kind::Invalid,
                format!("the source is {}, the volume would be {}", name(found), name(shape)),
            ));
        }
        let same = from_pool.config.name == open.pool.config.name;
        let how = how(open, same, request.parameters.copy)?;
        let name = match source {
            Source::Volume(id) => format!("volume {id}"),
            Source::Snapshot(id) => format!("snapshot {id}"),
        };
        let mut before = None;
        let mut shared = 0;
        if let Some((open, volume)) = of {
            match how {
                How::Copy => {
                    self.copyable(&open, &volume)?;
                    before = Some(Before::of(&from.content())?);
                }
                How::Share => shared = open.owned(&volume.id),
            }
        }
        Ok(Content { _guard: guard, name, shape: found, capacity, from, how, sector, before, shared })
    }

    /// The volume that a snapshot is to be taken of.
    pub(crate) fn need_source(&self, id: &Id) -> Result<(Open<'_>, crate::pool::Volume)> {
        let shared = || self.pools.iter().all(|pool| pool.config.shared);
        self.volume(id)?.ok_or_else(|| self.missing_source("volume", id, shared()))
    }

    /// The error about a source that is not here; `shared`: nor would another node have it.
    pub(crate) fn missing_source(&self, what: &str, id: &Id, shared: bool) -> Error {
        let node = &self.config.node;
        if !shared && self.may_be_elsewhere(id) {
            return Error::new(
                Kind::Exhausted,
                format!("{what} {id} is not on {node}; it may be on another node"),
            );
        }
        Error::new(Kind::NotFound, format!("there is no {what} {id} on {node}"))
    }

    /// Whether another node may have what is not here, if its pool is not shared.
    pub(crate) fn may_be_elsewhere(&self, id: &Id) -> bool {
        id.is_of_a_sidecar() && !self.config.single_node
    }
}

/// How content gets into a new volume of the pool.
///
/// # Errors
/// [`Kind::Unsupported`] when blocks cannot be shared and neither the pool nor the request allows a copy.
pub(crate) fn how(open: &Open<'_>, same_pool: bool, copy_asked: bool) -> Result<How> {
    if open.known.sharing && same_pool {
        return Ok(How::Share);
    }
    if copy_asked && open.pool.config.copy {
        return Ok(How::Copy);
    }
    let why = if same_pool { "its filesystem cannot share blocks" } else { "the source is in another pool" };
    Err(open.pool.error(
        Kind::Unsupported,
        format!("{why}; a copy is made where the pool has \"copy\": true and the class copy: \"true\""),
    ))
}

/// The shape of a new volume.
fn shape(open: &Open<'_>, request: &Request) -> Result<Shape> {
    let block = request.capabilities.iter().any(|capability| capability.access == Access::Block);
    match open.enforce() {
        _ if block => Ok(Shape::Block),
        Some(Enforce::Loop) => Ok(Shape::Loop),
        Some(Enforce::None | Enforce::Quota) => Ok(Shape::Folder),
        None => Err(open.pool.error(
            Kind::Exhausted,
            "capacity is to be enforced by quota, and the filesystem does not enforce project quota",
        )),
    }
}

/// The filesystem that is asked for; empty when any is good.
fn filesystem(request: &Request) -> &str {
    let asked = request.capabilities.iter().find_map(|capability| match &capability.access {
        Access::Mount(options) => Some(options.filesystem.as_str()),
        Access::Block => None,
    });
    asked.unwrap_or_default()
}

/// The range, no smaller than the smallest XFS.
fn at_least_for_xfs(range: Range) -> Result<Range> {
    if range.limit != 0 && range.limit < image::XFS_MIN {
        return Err(Error::new(
            Kind::OutOfRange,
            format!("an XFS has at least {} bytes, {} are the limit; use ext4", image::XFS_MIN, range.limit),
        ));
    }
    Ok(Range { required: range.required.max(image::XFS_MIN), ..range })
}

/// The range, no smaller than `capacity`.
fn at_least(range: Range, capacity: u64) -> Result<Range> {
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

/// Promises `bytes`, if they may be.
pub(crate) fn promise(open: &Open<'_>, bytes: u64) -> Result<Promise> {
    scan::follow(open)?;
    // Both locks are kept until the reservation is in the account: between two callers there is no gap.
    let _admission = open.pool.neighbours.admission();
    let others = open.others();
    let mut book = open.known.book();
    plan::admit(&open.pool.config.name, &open.room_by(&book, others), bytes)?;
    Ok(book.pend(&open.known, bytes))
}

/// Makes the volume; on failure nothing of it is left.
fn make(open: &Open<'_>, request: &Request, mut record: Record, content: Option<&Content>) -> Result<()> {
    let id = &request.id;
    let tmp = open.tmp()?;
    let name = super::volume_in_tmp(id, content.map(|content| content.how));
    super::ready(open, &tmp, &name, || is_resumable(&tmp, &name, content))?;
    let made = build(open, &tmp, &name, request, &mut record, content).and_then(|used| {
        content.map_or(Ok(()), Content::is_whole)?;
        super::write_volume_record(open, id, &record)?;
        let blocks = open.blocks()?;
        let home = super::home(open, &blocks, record.shape);
        if !tmp.rename_new(&name, home, id)? {
            let path = home.path_of(id);
            return Err(Error::new(
                Kind::Exists,
                format!("{} exists and was not created by this driver; move it away", path.display()),
            ));
        }
        let shares = content.is_some_and(|content| content.how == How::Share);
        let mut book = open.known.book();
        book.note_made(id, &record, used, if shares { 0 } else { used });
        if let (true, Some(Source::Volume(source))) = (shares, &request.source) {
            book.note_shared(source);
        }
        drop(book);
        fault::step("sync the new volume's name")?;
        Ok(home.sync()?)
    });
    if made.is_err() {
        undo(open, &tmp, &name, id);
    }
    made
}

/// Whether what is there under `name` is a copy of the content that an earlier try began.
fn is_resumable(tmp: &Dir, name: &str, content: Option<&Content>) -> Result<bool> {
    let Some(content) = content else { return Ok(false) };
    match (&content.from, content.shape) {
        (From::Folder(_), _) => super::is_copy_of_tree(&content.name, tmp, name),
        (From::Image(from, _), Shape::Block) => super::is_copy_of_file(from, tmp, name),
        (From::Image(from, _), Shape::Folder | Shape::Loop) => match tmp.dir(name)? {
            Some(folder) => super::is_copy_of_file(from, &folder, IMAGE),
            None => Ok(false),
        },
    }
}

/// Removes what was begun. What cannot be removed now is swept at the next start.
fn undo(open: &Open<'_>, tmp: &Dir, name: &str, id: &Id) {
    let undone = (|| {
        super::clear(open, tmp, name)?;
        if open.volume(id)?.is_none() {
            open.volume_records()?.unlink(record_name(id))?;
        }
        Ok::<(), Error>(())
    })();
    if let Err(error) = undone {
        tracing::warn!(volume = %id, error = %error.chain(), "cannot remove the remains of a failed call");
    }
}

/// Makes the volume's folder or file in the folder of what is being made. Gives the bytes it uses.
fn build(
    open: &Open<'_>,
    tmp: &Dir,
    name: &str,
    request: &Request,
    record: &mut Record,
    content: Option<&Content>,
) -> Result<u64> {
    let used = |file: &File| {
        fstat(file).map(|stat| tree::bytes(&stat)).map_err(|error| Error::io("inspect a new volume", error))
    };
    fault::step("prepare the volume")?;
    match record.shape {
        Shape::Folder => {
            // Upstream's mode: all that the umask leaves.
            tmp.make_dir(name, 0o777)?;
            let folder = tmp.need_dir(name)?;
            if open.enforce() == Some(Enforce::Quota) {
                record.project = Some(limit(open, &folder, &request.id, record.capacity)?);
            }
            let mut used = 0;
            if let Some(Content { from: From::Folder(from), how, name, .. }) = content {
                let trash = open.trash()?;
                let begun = super::begun(&folder, name, *how, &trash);
                used = latency::count(&latency::CLONES, || clone::tree(from, &folder, *how, begun))?;
            }
            fault::step("sync the new folder")?;
            folder.sync()?;
            Ok(used)
        }
        Shape::Block => {
            let file = super::file_to_fill(tmp, name, content.map(|content| content.how))?;
            fill(open, tmp, &file, record.capacity, content)?;
            used(&file)
        }
        Shape::Loop => {
            tmp.make_dir(name, 0o700)?;
            let folder = tmp.need_dir(name)?;
            let file = super::file_to_fill(&folder, IMAGE, content.map(|content| content.how))?;
            fill(open, tmp, &file, record.capacity, content)?;
            if content.is_none() {
                fault::step("make a filesystem")?;
                image::format(&file, filesystem(request), record.capacity)?;
            }
            folder.sync()?;
            used(&file)
        }
    }
}

/// Gives a new file its content and size, and syncs it.
fn fill(open: &Open<'_>, tmp: &Dir, file: &File, capacity: u64, content: Option<&Content>) -> Result<()> {
    if let Some(Content { from: From::Image(from, id), how, shape, .. }) = content {
        image::cut(&open.pool.devices, from, file, *shape, *how, &Note::new(tmp, id))?;
    }
    fault::step("size the file")?;
    file.set_len(capacity).map_err(|error| Error::io("set the size of a volume", error))?;
    dir::fsync(file).map_err(|error| Error::io("sync a volume", error))
}

/// Puts a folder under a project of its own that is limited to `bytes`. Gives the project.
fn limit(open: &Open<'_>, folder: &Dir, id: &Id, bytes: u64) -> Result<u32> {
    use std::os::fd::AsFd;
    let io = |error| Error::io(format!("limit volume {id} by quota"), error);
    let taken: std::collections::HashSet<u32> =
        open.known.book().volumes.values().filter_map(|line| line.record.as_ref()?.project).collect();
    // A copy that goes on has its project.
    let has = sys::project_of(folder.as_fd()).map_err(io)?;
    if has >= FIRST_PROJECT && !taken.contains(&has) {
        sys::limit_project(folder.as_fd(), has, bytes).map_err(io)?;
        return Ok(has);
    }
    let mut project = first_project(id);
    // Others may use projects too: one that holds anything is not ours.
    while taken.contains(&project)
        || sys::project_usage(folder.as_fd(), project).map_err(io)?.is_some_and(|used| used > 0)
    {
        project = project.checked_add(1).unwrap_or(FIRST_PROJECT);
    }
    sys::set_project(folder.as_fd(), project).map_err(io)?;
    sys::limit_project(folder.as_fd(), project, bytes).map_err(io)?;
    Ok(project)
}

/// Smaller numbers are given by hand.
const FIRST_PROJECT: u32 = 1 << 20;

/// Where to look for a free project: a hash of the id (FNV-1a), so that volumes rarely meet.
fn first_project(id: &Id) -> u32 {
    let hash = id
        .as_str()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash | FIRST_PROJECT
}

/// Discards a volume's folder or file. When this returns it stays gone.
pub(super) fn discard(open: &Open<'_>, id: &Id, shape: Shape) -> Result<()> {
    let blocks = open.blocks()?;
    let home = super::home(open, &blocks, shape);
    trash::discard(open, home, id.as_str())?;
    Ok(home.sync()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_reported_as_upstream_reports_them() {
        assert_eq!(pretty((39 << 30) + 5), 39 << 30);
        assert_eq!(pretty((2 << 30) + (3 << 20) + 5), (2 << 30) + (3 << 20));
    }

    #[test]
    fn a_clone_is_no_smaller_than_its_source() {
        let range = |required, limit| Range { required, limit };
        assert_eq!(at_least(range(0, 0), 7).unwrap().required, 7);
        assert_eq!(at_least(range(9, 0), 7).unwrap().required, 9);
        assert_eq!(at_least(range(6, 0), 7).unwrap_err().kind(), Kind::OutOfRange);
        assert_eq!(at_least(range(0, 6), 7).unwrap_err().kind(), Kind::OutOfRange);
    }

    #[test]
    fn a_small_xfs_is_as_large_as_an_xfs_must_be() {
        let range = |required, limit| Range { required, limit };
        assert_eq!(at_least_for_xfs(range(5, 0)).unwrap().required, 300 << 20);
        assert_eq!(at_least_for_xfs(range(0, 400 << 20)).unwrap().required, 300 << 20);
        assert_eq!(at_least_for_xfs(range(400 << 20, 0)).unwrap().required, 400 << 20);
        assert_eq!(at_least_for_xfs(range(5, 299 << 20)).unwrap_err().kind(), Kind::OutOfRange);
    }

    #[test]
    fn projects_are_out_of_the_way_of_hand_made_ones() {
        assert!(first_project(&Id::read("pvc-1").unwrap()) >= FIRST_PROJECT);
    }
}
