//! Decisions about volumes: CreateVolume, ControllerExpandVolume, ControllerModifyVolume, DeleteVolume.
//!
//! A new volume is one step, as it appears at once ([`Create`]). A volume that is there changes by [`Action`]s, in their order.
//!
//! Not here: staging and publishing ([`super::node`]).

use std::path::{Path, PathBuf};

use crate::config::{Enforce, PoolConfig};
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::pool::clone::How;
use crate::record::{Record, RecordSource, Shape};
use crate::request::{Access, Allocation, Attributes, Capability, Mode, Range, Source};

use super::size::{self, STEP, at_least, at_least_for_xfs};

/// Bytes of a sector under a filesystem of ours. With smaller ones there is no direct I/O on files that share blocks.
const SECTOR: u32 = 4096;

/// One step of changing a volume that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Limit the project of its folder.
    Limit { project: u32, bytes: u64 },
    /// Make its file so long, unless it is longer.
    Lengthen(u64),
    /// Allocate so many bytes of its file, if it has one.
    Allocate(u64),
    /// Write its record.
    Record(Record),
    /// Detach all devices of its file.
    Detach,
    /// Take it out of sight.
    Discard,
    /// Remove the limit of its project.
    Unlimit(u32),
    /// Remove its record.
    Forget,
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

/// Checks that the volume `id` is not to be made of itself.
///
/// # Errors
/// [`Kind::Invalid`] when it is.
pub(crate) fn not_of_itself(id: &Id, source: Option<&Source>) -> Result<()> {
    match source {
        Some(Source::Volume(of)) if of == id => {
            Err(Error::new(Kind::Invalid, "the source of a volume is the volume itself"))
        }
        Some(Source::Volume(_) | Source::Snapshot(_)) | None => Ok(()),
    }
}

/// The shape of a new volume, where capacity is enforced by `enforce`; `None`: by quota, which is not to be had.
///
/// # Errors
/// [`Kind::Exhausted`] when it cannot be enforced.
pub(crate) fn shape(
    pool: &PoolConfig,
    enforce: Option<Enforce>,
    capabilities: &[Capability],
) -> Result<Shape> {
    let block = capabilities.iter().any(|capability| capability.access == Access::Block);
    match enforce {
        _ if block => Ok(Shape::Block),
        Some(Enforce::Loop) => Ok(Shape::Loop),
        Some(Enforce::None | Enforce::Quota) => Ok(Shape::Folder),
        None => Err(Error::new(
            Kind::Exhausted,
            format!(
                "pool {}: the filesystem does not enforce project quota: mount it with prjquota, or set \"enforce\": \"loop\"",
                pool.name
            ),
        )),
    }
}

/// How content gets into a new volume or snapshot of a pool whose files can share blocks (`sharing`).
///
/// # Errors
/// [`Kind::Unsupported`] when blocks cannot be shared and neither the pool nor the request allows a copy.
pub(crate) fn how(pool: &PoolConfig, sharing: bool, same_pool: bool, copy_asked: bool) -> Result<How> {
    if sharing && same_pool {
        return Ok(How::Share);
    }
    if copy_asked && pool.copy {
        return Ok(How::Copy);
    }
    let why = if same_pool { "its filesystem cannot share blocks" } else { "the source is in another pool" };
    Err(Error::new(
        Kind::Unsupported,
        format!(
            "pool {}: {why}; a copy is made where the pool has \"copy\": true and the class copy: \"true\"",
            pool.name
        ),
    ))
}

/// Checks that a source of one shape can fill a volume of another.
///
/// # Errors
/// [`Kind::Invalid`] when it cannot.
pub(crate) fn of_same_shape(source: Shape, volume: Shape) -> Result<()> {
    let name = |shape| match shape {
        Shape::Folder => "a folder",
        Shape::Loop => "a filesystem in a file",
        Shape::Block => "a block device",
    };
    if source == volume {
        return Ok(());
    }
    Err(Error::new(
        Kind::Invalid,
        format!("the source is {}, the volume would be {}", name(source), name(volume)),
    ))
}

/// Properties of the requested volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedVolume<'a> {
    pub(crate) id: &'a Id,
    pub(crate) shape: Shape,
    pub(crate) range: Range,
    pub(crate) sector: u32,
    pub(crate) source: Option<&'a Source>,
    /// The filesystem that is asked for; empty when any is good.
    pub(crate) filesystem: &'a str,
    /// For a pod, and gone with it.
    pub(crate) inline: bool,
}

/// A volume that has the name already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExistingVolume {
    /// Whether it is in the pool that is asked for.
    pub(crate) same_pool: bool,
    pub(crate) shape: Shape,
    /// The driver's record; `None` for a volume that it did not create.
    pub(crate) record: Option<Record>,
}

/// The content of a new volume's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceContent {
    /// Bytes that a volume needs to hold it.
    pub(crate) capacity: u64,
    pub(crate) sector: u32,
    /// Bytes that the source owns alone, and will share.
    pub(crate) shared: u64,
}

/// Facts that decide about a CreateVolume request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) existing: Option<ExistingVolume>,
    /// Looked at only when no volume has the name.
    pub(crate) content: Option<SourceContent>,
    /// Seconds since 1970.
    pub(crate) now: u64,
}

/// Outcome of a CreateVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Create {
    /// Nothing: it is there.
    AlreadyThere,
    /// It is there without a record: it gets this one.
    Adopt(Record),
    /// It is made, and takes so many bytes at most.
    Make { record: Record, promise: u64 },
}

/// Decides about `wanted`.
///
/// # Errors
/// [`Kind::Exists`] when another object has its name; [`Kind::OutOfRange`] when no size fits.
pub(crate) fn create(wanted: &RequestedVolume<'_>, observed: &Observed) -> Result<Create> {
    let Observed { existing, content, now } = observed;
    let range = match (existing, content) {
        (_, Some(content)) => at_least(wanted.range, content.capacity)?,
        // The PV has fsType xfs, and a smaller one cannot be made.
        (None, None) if wanted.shape == Shape::Loop && wanted.filesystem == "xfs" => {
            at_least_for_xfs(wanted.range)?
        }
        (Some(_) | None, None) => wanted.range,
    };
    let step = if wanted.shape == Shape::Folder { 1 } else { STEP };
    let size = size::size(range, step)?;
    let Some(existing) = existing else {
        let record = Record {
            source: wanted.source.map(RecordSource::of),
            sector: match (content, wanted.shape) {
                (Some(content), _) => content.sector,
                (None, Shape::Loop) => SECTOR,
                (None, Shape::Folder | Shape::Block) => wanted.sector,
            },
            inline: wanted.inline,
            ..Record::new(wanted.shape, size, *now)
        };
        let shared = content.map_or(0, |content| content.shared);
        return Ok(Create::Make { record, promise: size.saturating_add(shared) });
    };
    let differs =
        |what: &str| Err(Error::new(Kind::Exists, format!("volume {} exists already, {what}", wanted.id)));
    if !existing.same_pool {
        return differs("in another pool");
    }
    // A folder and a filesystem in a file are both mounted: which it is was decided when it was made.
    if (existing.shape == Shape::Block) != (wanted.shape == Shape::Block) {
        return differs("as another access type");
    }
    let Some(record) = &existing.record else {
        return match wanted.source {
            None if wanted.shape != Shape::Block => Ok(Create::Adopt(Record::new(Shape::Folder, size, *now))),
            None | Some(_) => differs("without this driver's record"),
        };
    };
    if record.capacity < wanted.range.required
        || (wanted.range.limit != 0 && record.capacity > wanted.range.limit)
    {
        return differs(&format!("with {} bytes", record.capacity));
    }
    if record.source != wanted.source.map(RecordSource::of) {
        return differs("with other content");
    }
    if record.shape == Shape::Block && record.sector != wanted.sector {
        return differs(&format!("with sectors of {} bytes", record.sector));
    }
    Ok(Create::AlreadyThere)
}

/// Outcome of an expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expand {
    /// Nothing: it is large enough.
    AlreadyThere(u64),
    /// It grows to this size.
    Grow(u64),
}

/// Decides how a volume of `current` bytes is expanded; `None` for one without a record.
///
/// # Errors
/// [`Kind::OutOfRange`] when no size fits, or it would have to shrink.
pub(crate) fn new_size(current: Option<u64>, range: Range, shape: Shape) -> Result<Expand> {
    if range.required == 0 && range.limit == 0 {
        return Err(Error::new(Kind::Invalid, "capacity_range has neither required_bytes nor limit_bytes"));
    }
    let step = if shape == Shape::Folder { 1 } else { STEP };
    let wanted = size::size(range, step)?;
    match current {
        None => Ok(Expand::Grow(wanted)),
        Some(current) if range.limit != 0 && current > range.limit => Err(Error::new(
            Kind::OutOfRange,
            format!("the volume has {current} bytes and never shrinks to {}", range.limit),
        )),
        Some(current) if current >= wanted || current >= range.required && range.required != 0 => {
            Ok(Expand::AlreadyThere(current))
        }
        Some(_) => Ok(Expand::Grow(wanted)),
    }
}

/// Facts that decide how a volume that is here is expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expanded<'a> {
    pub(crate) shape: Shape,
    pub(crate) record: Option<&'a Record>,
    /// Bytes it used when it was last looked at.
    pub(crate) used: u64,
    /// Whether its pool enforces capacity by quota.
    pub(crate) quota: bool,
    /// Seconds since 1970.
    pub(crate) now: u64,
}

/// How a volume grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) capacity: u64,
    /// Bytes that it may take more.
    pub(crate) promise: u64,
    /// None when it is large enough.
    pub(crate) actions: Vec<Action>,
}

/// Decides how a volume is expanded: the promise and the file grow, the record is last.
///
/// # Errors
/// Those of [`new_size`].
pub(crate) fn expand(volume: &Expanded<'_>, range: Range) -> Result<Growth> {
    let current = volume.record.map(|record| record.capacity);
    let capacity = match new_size(current, range, volume.shape)? {
        Expand::AlreadyThere(capacity) => return Ok(Growth { capacity, promise: 0, actions: Vec::new() }),
        Expand::Grow(capacity) => capacity,
    };
    let plain = || Record::new(volume.shape, capacity, volume.now);
    let record = Record { capacity, ..volume.record.cloned().unwrap_or_else(plain) };
    let mut actions = Vec::new();
    match volume.shape {
        Shape::Folder => {
            let project = record.project.filter(|_| volume.quota);
            actions.extend(project.map(|project| Action::Limit { project, bytes: capacity }));
        }
        Shape::Loop | Shape::Block => {
            actions.push(Action::Lengthen(capacity));
            actions.extend(record.thick.then_some(Action::Allocate(capacity)));
        }
    }
    actions.push(Action::Record(record));
    Ok(Growth { capacity, promise: capacity.saturating_sub(current.unwrap_or(volume.used)), actions })
}

/// Checks that a volume of this shape can have `attributes`.
///
/// # Errors
/// [`Kind::Invalid`] when not.
pub(crate) fn can_have(shape: Shape, attributes: Attributes) -> Result<()> {
    match (shape, attributes.allocation) {
        (Shape::Folder, Some(Allocation::Thick)) => Err(Error::new(
            Kind::Invalid,
            "a volume that is a folder has no blocks to allocate; block volumes and those with a filesystem of \
             their own have",
        )),
        (Shape::Folder, Some(Allocation::Thin) | None) | (Shape::Loop | Shape::Block, _) => Ok(()),
    }
}

/// Decides how a volume with this record gets `attributes` that it can have; an absent attribute leaves it as it is.
pub(crate) fn modify(record: Option<&Record>, attributes: Attributes) -> Vec<Action> {
    let (Some(allocation), Some(record)) = (attributes.allocation, record) else { return Vec::new() };
    let thick = allocation == Allocation::Thick;
    // An earlier try may have failed: blocks that are allocated already cost little.
    let allocated = thick.then_some(Action::Allocate(record.capacity));
    let noted = (record.thick != thick).then(|| Action::Record(Record { thick, ..record.clone() }));
    allocated.into_iter().chain(noted).collect()
}

/// Uses of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// A path at which it is published.
    pub(crate) published: Option<PathBuf>,
    /// A device of its file; looked at only when it is not published.
    pub(crate) device: Option<PathBuf>,
    /// Whether its devices are left of a stage that was killed: their filesystem is mounted nowhere.
    pub(crate) left: bool,
}

/// Checks that the volume `id` is not published, as `published` at some path.
///
/// # Errors
/// [`Kind::Precondition`] when it is.
pub(crate) fn unpublished(id: &Id, published: Option<&Path>) -> Result<()> {
    published.map_or(Ok(()), |path| {
        Err(Error::new(Kind::Precondition, format!("volume {id} is published at {}", path.display())))
    })
}

/// Checks that the volume `id` may be copied: nothing uses it.
///
/// # Errors
/// [`Kind::Precondition`] when it is in use.
pub(crate) fn copyable(id: &Id, uses: &Uses) -> Result<()> {
    let how = match uses {
        Uses { published: Some(path), .. } => format!("published at {}", path.display()),
        Uses { device: Some(device), .. } => format!("staged: {} is attached to it", device.display()),
        Uses { published: None, device: None, .. } => return Ok(()),
    };
    Err(Error::new(
        Kind::Precondition,
        format!(
            "volume {id} is {how}: a copy would mix old and new blocks. Delete the pods that use it first, or \
             use a filesystem with reflinks (XFS, btrfs)"
        ),
    ))
}

/// Decides how the volume `id` is deleted.
///
/// # Errors
/// [`Kind::Precondition`] when it is in use.
pub(crate) fn delete(id: &Id, record: Option<&Record>, uses: &Uses) -> Result<Vec<Action>> {
    unpublished(id, uses.published.as_deref())?;
    if let Some(device) = uses.device.as_ref().filter(|_| !uses.left) {
        return Err(Error::new(
            Kind::Precondition,
            format!("volume {id} is staged: {} is attached to it", device.display()),
        ));
    }
    let project = record.and_then(|record| record.project);
    let mut actions = Vec::new();
    actions.extend(uses.left.then_some(Action::Detach));
    actions.push(Action::Discard);
    actions.extend(project.map(Action::Unlimit));
    // A record without its volume is nothing: a crash before this leaves no trace that matters.
    actions.push(Action::Forget);
    Ok(actions)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn range(required: u64, limit: u64) -> Range {
        Range { required, limit }
    }

    fn id(text: &str) -> Id {
        Id::read(text).unwrap()
    }

    fn record(shape: Shape, capacity: u64, source: Option<&Source>) -> Record {
        Record { source: source.map(RecordSource::of), ..Record::new(shape, capacity, 0) }
    }

    static DISK: LazyLock<Id> = LazyLock::new(|| id("disk"));

    fn wanted(shape: Shape, range: Range, source: Option<&Source>) -> RequestedVolume<'_> {
        RequestedVolume { id: &DISK, shape, range, sector: 512, source, filesystem: "", inline: false }
    }

    #[test]
    fn creating() {
        let golden = Source::Volume(id("golden"));
        let source = Some(&golden);
        let found = |shape, record| Some(ExistingVolume { same_pool: true, shape, record });
        let folder = Shape::Folder;
        let plain = record(folder, GIB, None);
        let make = |shape, size| Ok(Create::Make { record: record(shape, size, None), promise: size });
        let cases: Vec<(RequestedVolume<'_>, Option<ExistingVolume>, std::result::Result<Create, Kind>)> = vec![
            (wanted(folder, range(5, 0), None), None, make(folder, 5)),
            (wanted(Shape::Block, range(5, 0), None), None, make(Shape::Block, 4096)),
            (
                wanted(folder, range(GIB, 0), None),
                found(folder, Some(plain.clone())),
                Ok(Create::AlreadyThere),
            ),
            (
                wanted(folder, range(1, 2 * GIB), None),
                found(folder, Some(plain.clone())),
                Ok(Create::AlreadyThere),
            ),
            (wanted(folder, range(GIB + 1, 0), None), found(folder, Some(plain.clone())), Err(Kind::Exists)),
            (wanted(folder, range(1, GIB - 1), None), found(folder, Some(plain.clone())), Err(Kind::Exists)),
            (wanted(folder, range(GIB, 0), source), found(folder, Some(plain.clone())), Err(Kind::Exists)),
            (
                wanted(folder, range(GIB, 0), source),
                found(folder, Some(record(folder, GIB, source))),
                Ok(Create::AlreadyThere),
            ),
            (
                wanted(Shape::Block, range(GIB, 0), None),
                found(folder, Some(plain.clone())),
                Err(Kind::Exists),
            ),
            (
                wanted(folder, range(GIB, 0), None),
                found(Shape::Loop, Some(record(Shape::Loop, GIB, None))),
                Ok(Create::AlreadyThere),
            ),
            (
                wanted(folder, range(7, 0), None),
                found(folder, None),
                Ok(Create::Adopt(record(folder, 7, None))),
            ),
            (wanted(folder, range(7, 0), source), found(folder, None), Err(Kind::Exists)),
            (
                wanted(folder, range(GIB, 0), None),
                Some(ExistingVolume { same_pool: false, shape: folder, record: Some(plain.clone()) }),
                Err(Kind::Exists),
            ),
            (
                RequestedVolume { sector: 4096, ..wanted(Shape::Block, range(GIB, 0), None) },
                found(Shape::Block, Some(record(Shape::Block, GIB, None))),
                Err(Kind::Exists),
            ),
        ];
        for (wanted, existing, expected) in cases {
            let observed = Observed { existing, ..Observed::default() };
            let planned = create(&wanted, &observed).map_err(|error| error.kind());
            assert_eq!(planned, expected, "{wanted:?} {observed:?}");
        }
    }

    #[test]
    fn a_new_volume_is_as_large_as_its_content_and_its_filesystem_need() {
        let golden = Source::Snapshot(id("golden"));
        let content = SourceContent { capacity: GIB, sector: 4096, shared: 7 };
        let clone = Observed { content: Some(content), ..Observed::default() };
        let of = |range| wanted(Shape::Block, range, Some(&golden));
        let record = Record { sector: 4096, ..record(Shape::Block, GIB, Some(&golden)) };
        assert_eq!(create(&of(range(0, 0)), &clone).unwrap(), Create::Make { record, promise: GIB + 7 });
        assert_eq!(create(&of(range(5, 0)), &clone).unwrap_err().kind(), Kind::OutOfRange);
        let xfs = RequestedVolume { filesystem: "xfs", ..wanted(Shape::Loop, range(5, 0), None) };
        let Create::Make { record, promise } = create(&xfs, &Observed::default()).unwrap() else { panic!() };
        assert_eq!((record.capacity, record.sector, promise), (300 << 20, SECTOR, 300 << 20));
    }

    #[test]
    fn content_is_shared_or_copied_where_both_sides_allow_it() {
        let pool = |copy: bool| {
            let json = format!(r#"[{{"name":"fast","path":"/fast","copy":{copy}}}]"#);
            crate::config::pools(&json).unwrap().remove(0)
        };
        for (copy, sharing, same_pool, asked, expected) in [
            (false, true, true, false, Ok(How::Share)),
            (true, true, false, true, Ok(How::Copy)),
            (true, false, true, true, Ok(How::Copy)),
            (true, false, true, false, Err(Kind::Unsupported)),
            (false, false, true, true, Err(Kind::Unsupported)),
            (false, true, false, true, Err(Kind::Unsupported)),
        ] {
            let planned = how(&pool(copy), sharing, same_pool, asked).map_err(|error| error.kind());
            assert_eq!(planned, expected, "{copy} {sharing} {same_pool} {asked}");
        }
    }

    #[test]
    fn expanding() {
        let kinds = |current, range, shape| new_size(current, range, shape).map_err(|error| error.kind());
        for (current, required, limit, shape, expected) in [
            (Some(GIB), 2 * GIB, 0, Shape::Folder, Ok(Expand::Grow(2 * GIB))),
            (Some(GIB), GIB, 0, Shape::Folder, Ok(Expand::AlreadyThere(GIB))),
            (Some(2 * GIB), GIB, 0, Shape::Block, Ok(Expand::AlreadyThere(2 * GIB))),
            (Some(2 * GIB), GIB, GIB, Shape::Block, Err(Kind::OutOfRange)),
            (Some(4096), 4097, 0, Shape::Block, Ok(Expand::Grow(8192))),
            (None, 5, 0, Shape::Folder, Ok(Expand::Grow(5))),
            (Some(GIB), 0, 0, Shape::Folder, Err(Kind::Invalid)),
        ] {
            assert_eq!(
                kinds(current, range(required, limit), shape),
                expected,
                "{current:?} {required} {limit}"
            );
        }
    }

    #[test]
    fn a_volume_grows_before_its_record() {
        let grow = |record: &Record, quota| {
            let volume = Expanded { shape: record.shape, record: Some(record), used: 9, quota, now: 0 };
            expand(&volume, range(2 * GIB, 0)).unwrap()
        };
        let limited = Record { project: Some(3), ..record(Shape::Folder, GIB, None) };
        let thick = Record { thick: true, ..record(Shape::Loop, GIB, None) };
        for (before, quota, first) in [
            (record(Shape::Folder, GIB, None), true, vec![]),
            (limited.clone(), true, vec![Action::Limit { project: 3, bytes: 2 * GIB }]),
            (limited, false, vec![]),
            (record(Shape::Block, GIB, None), false, vec![Action::Lengthen(2 * GIB)]),
            (thick, false, vec![Action::Lengthen(2 * GIB), Action::Allocate(2 * GIB)]),
        ] {
            let growth = grow(&before, quota);
            let record = Action::Record(Record { capacity: 2 * GIB, ..before.clone() });
            assert_eq!(growth.actions, [first, vec![record]].concat(), "{before:?}");
            assert_eq!((growth.capacity, growth.promise), (2 * GIB, GIB));
        }
        // One without a record has what it uses.
        let adopted = Expanded { shape: Shape::Folder, record: None, used: GIB, quota: false, now: 4 };
        let growth = expand(&adopted, range(2 * GIB, 0)).unwrap();
        assert_eq!(growth.actions, [Action::Record(Record::new(Shape::Folder, 2 * GIB, 4))]);
        assert_eq!(growth.promise, GIB);
        let large = record(Shape::Folder, 3 * GIB, None);
        let large = Expanded { shape: Shape::Folder, record: Some(&large), used: 0, quota: false, now: 0 };
        let growth = expand(&large, range(2 * GIB, 0)).unwrap();
        assert_eq!((growth.capacity, growth.actions), (3 * GIB, vec![]));
    }

    #[test]
    fn modifying() {
        let all = [None, Some(Allocation::Thin), Some(Allocation::Thick)];
        for (shape, allocation) in [Shape::Folder, Shape::Loop, Shape::Block]
            .into_iter()
            .flat_map(|shape| all.map(|allocation| (shape, allocation)))
        {
            let refused = shape == Shape::Folder && allocation == Some(Allocation::Thick);
            assert_eq!(
                can_have(shape, Attributes { allocation }).is_err(),
                refused,
                "{shape:?} {allocation:?}"
            );
        }
    }

    #[test]
    fn blocks_are_allocated_before_a_volume_is_recorded_as_thick() {
        let thin = record(Shape::Block, GIB, None);
        let thick = Record { thick: true, ..thin.clone() };
        let actions = |record, allocation| modify(record, Attributes { allocation });
        let to_thick = Some(Allocation::Thick);
        assert_eq!(actions(Some(&thin), to_thick), [Action::Allocate(GIB), Action::Record(thick.clone())]);
        assert_eq!(actions(Some(&thick), to_thick), [Action::Allocate(GIB)], "an earlier try is completed");
        assert_eq!(actions(Some(&thick), Some(Allocation::Thin)), [Action::Record(thin.clone())]);
        assert_eq!(actions(Some(&thin), Some(Allocation::Thin)), []);
        assert_eq!(actions(Some(&thick), None), []);
        assert_eq!(actions(None, to_thick), []);
    }

    #[test]
    fn a_volume_in_use_is_neither_deleted_nor_copied() {
        let published = Uses { published: Some("/pods/v".into()), ..Uses::default() };
        let staged = Uses { device: Some("/dev/loop7".into()), ..Uses::default() };
        let left = Uses { left: true, ..staged.clone() };
        for (uses, word) in [(&published, "published at /pods/v"), (&staged, "/dev/loop7 is attached")] {
            for refused in [copyable(&id("v"), uses), delete(&id("v"), None, uses).map(drop)] {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), Kind::Precondition);
                assert!(error.to_string().contains(word), "{error}");
            }
        }
        copyable(&id("v"), &Uses::default()).unwrap();
        let limited = Record { project: Some(3), ..record(Shape::Folder, GIB, None) };
        for (record, uses, expected) in [
            (None, Uses::default(), vec![Action::Discard, Action::Forget]),
            (Some(&limited), Uses::default(), vec![Action::Discard, Action::Unlimit(3), Action::Forget]),
            (None, left, vec![Action::Detach, Action::Discard, Action::Forget]),
        ] {
            assert_eq!(delete(&id("v"), record, &uses).unwrap(), expected, "{uses:?}");
        }
    }
}
