//! Decisions without effects: sizes, room, whether an existing volume is the requested one. Pure functions, tested as
//! tables. [`crate::apply`] carries them out.

use std::borrow::Borrow;
use std::cmp::Ordering;

use crate::amount::display;
use crate::config::{Capacity, Reserve, share};
use crate::error::{Error, Kind, Result};
use crate::record::{Record, RecordSource, Shape};
use crate::request::{Allocation, Attributes, Mode, Range, Source};

/// Default capacity when the request sets none.
pub(crate) const DEFAULT_SIZE: u64 = 1 << 30;
/// Sizes of files that become devices are multiples of this: the largest sector.
pub(crate) const STEP: u64 = 4096;
/// The most a size can be: CSI's numbers are signed.
const SIZE_MAX: u64 = i64::MAX as u64;

/// The size of a new volume: what is required, a default if nothing is, up to a whole step.
///
/// # Errors
/// [`Kind::OutOfRange`] when no multiple of `step` is in the range.
pub(crate) fn size(range: Range, step: u64) -> Result<u64> {
    let limit = if range.limit == 0 { SIZE_MAX } else { range.limit };
    let wanted = if range.required == 0 { DEFAULT_SIZE.min(limit) } else { range.required };
    let up = wanted.checked_next_multiple_of(step).filter(|up| *up <= limit);
    let down = (range.required == 0).then(|| wanted / step * step).filter(|down| *down > 0);
    up.or(down).ok_or_else(|| {
        Error::new(
            Kind::OutOfRange,
            format!("no multiple of {step} bytes is between {} and {limit}", range.required),
        )
    })
}

/// Properties of the requested volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestedVolume {
    pub(crate) shape: Shape,
    pub(crate) range: Range,
    pub(crate) sector: u32,
    pub(crate) source: Option<Source>,
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

/// Outcome of a CreateVolume request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Create {
    /// Nothing: it is there.
    AlreadyThere,
    /// It is there without a record: it gets one of this size.
    Adopt(u64),
    /// It is made, of this size.
    Make(u64),
}

/// Decides about `wanted` when `found` has its name.
///
/// # Errors
/// [`Kind::Exists`] when what is there is something else; [`Kind::OutOfRange`] when no size fits.
pub(crate) fn create(wanted: &RequestedVolume, found: Option<&ExistingVolume>) -> Result<Create> {
    let step = if wanted.shape == Shape::Folder { 1 } else { STEP };
    let size = size(wanted.range, step)?;
    let Some(found) = found else { return Ok(Create::Make(size)) };
    let differs =
        |what: &str| Err(Error::new(Kind::Exists, format!("a volume of this name exists already, {what}")));
    if !found.same_pool {
        return differs("in another pool");
    }
    // A folder and a filesystem in a file are both mounted: which it is was decided when it was made.
    if (found.shape == Shape::Block) != (wanted.shape == Shape::Block) {
        return differs("as another access type");
    }
    let Some(record) = &found.record else {
        return match wanted.source {
            None if wanted.shape != Shape::Block => Ok(Create::Adopt(size)),
            None | Some(_) => differs("without this driver's record"),
        };
    };
    if record.capacity < wanted.range.required
        || (wanted.range.limit != 0 && record.capacity > wanted.range.limit)
    {
        return differs(&format!("with {} bytes", record.capacity));
    }
    if record.source != wanted.source.as_ref().map(RecordSource::of) {
        return differs("with other content");
    }
    if record.shape == Shape::Block && record.sector != wanted.sector {
        return differs(&format!("with sectors of {} bytes", record.sector));
    }
    Ok(Create::AlreadyThere)
}

/// How much there is in a pool, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) capacity: Capacity,
    /// The filesystem's size.
    pub(crate) size: u64,
    /// Bytes free for unprivileged processes.
    pub(crate) free: u64,
    /// Bytes used by files other than the driver's volumes and snapshots.
    pub(crate) foreign: u64,
    /// Bytes reserved for volumes and held by snapshots.
    pub(crate) promised: u64,
    /// Its part that is not written yet, or is shared and would be written again.
    pub(crate) outstanding: u64,
    /// Bytes that volumes of other pools on the filesystem may still take.
    pub(crate) others: u64,
    pub(crate) reserve: Reserve,
    /// Thousandths.
    pub(crate) overcommit: u64,
}

impl Room {
    /// The largest sum of promises.
    pub(crate) fn limit(&self) -> u64 {
        let kept = self.reserve.of(self.size).saturating_add(self.foreign);
        share(self.size.saturating_sub(kept), self.overcommit)
    }

    /// Bytes that may still be promised. Without overcommitment never more than what is free, less the reserve and what is
    /// outstanding; with it, what is promised is bounded.
    pub(crate) fn available(&self) -> u64 {
        let unreserved = self.free.saturating_sub(self.reserve.of(self.size));
        let unwritten = unreserved.saturating_sub(self.outstanding).saturating_sub(self.others);
        let unpromised = self.limit().saturating_sub(self.promised).saturating_sub(self.others);
        match self.capacity {
            Capacity::Filesystem => self.free,
            Capacity::Request if unreserved == 0 => 0,
            Capacity::Request => match self.overcommit.cmp(&1000) {
                Ordering::Less => unwritten.min(unpromised),
                Ordering::Equal => unwritten,
                Ordering::Greater => unpromised,
            },
        }
    }

    /// The size of the largest volume that can be made: upstream's answer is the whole filesystem.
    pub(crate) fn largest(&self) -> u64 {
        match self.capacity {
            Capacity::Filesystem => self.size,
            Capacity::Request => self.available(),
        }
    }
}

/// Whether `new` more bytes may be promised in the pool `name`.
///
/// # Errors
/// [`Kind::Exhausted`] when not.
pub(crate) fn admit(name: &str, room: &Room, new: u64) -> Result<()> {
    let available = room.available();
    let refused = |why: String| Err(Error::new(Kind::Exhausted, format!("pool {name}: {why}")));
    match room.capacity {
        Capacity::Filesystem => Ok(()),
        Capacity::Request if room.free < room.reserve.of(room.size) => refused(format!(
            "{} are asked for, {} are free and {} of them are reserved",
            display(new),
            display(room.free),
            display(room.reserve.of(room.size))
        )),
        Capacity::Request if new > available => refused(format!(
            "{} are asked for, {} are available: {} are free on the filesystem, {} of them are reserved, volumes may yet \
             take {}",
            display(new),
            display(available),
            display(room.free),
            display(room.reserve.of(room.size)),
            display(room.outstanding.saturating_add(room.others))
        )),
        Capacity::Request => Ok(()),
    }
}

/// Outcome of a ControllerExpandVolume request.
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
pub(crate) fn expand(current: Option<u64>, range: Range, shape: Shape) -> Result<Expand> {
    if range.required == 0 && range.limit == 0 {
        return Err(Error::new(Kind::Invalid, "capacity_range has neither required_bytes nor limit_bytes"));
    }
    let step = if shape == Shape::Folder { 1 } else { STEP };
    let wanted = size(range, step)?;
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

/// Checks that a volume of this shape can have `attributes`.
///
/// # Errors
/// [`Kind::Invalid`] when not.
pub(crate) fn modify(shape: Shape, attributes: Attributes) -> Result<()> {
    match (shape, attributes.allocation) {
        (Shape::Folder, Some(Allocation::Thick)) => Err(Error::new(
            Kind::Invalid,
            "a volume that is a folder has no blocks to allocate; block volumes and those with a filesystem of \
             their own have",
        )),
        (Shape::Folder, Some(Allocation::Thin) | None) | (Shape::Loop | Shape::Block, _) => Ok(()),
    }
}

/// Whether both lists name the same things, in whatever order.
pub(crate) fn are_the_same(some: &[&str], others: &[impl Borrow<str>]) -> bool {
    let mut some = some.to_vec();
    let mut others: Vec<&str> = others.iter().map(Borrow::borrow).collect();
    some.sort_unstable();
    others.sort_unstable();
    some == others
}

/// The state of a target path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtTarget {
    /// Nothing, or a plain folder or file to mount on.
    Free,
    /// The volume that is to be published there.
    Ours { read_only: bool },
    /// Something else is mounted there.
    Foreign,
}

/// Outcome of a NodePublishVolume request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Nothing: it is published just so.
    AlreadyThere,
    /// It is mounted.
    Mount,
}

/// Decides NodePublishVolume for the access mode `mode` and a volume published at `others` other paths.
///
/// # Errors
/// [`Kind::Exists`] when it is published there in another way; [`Kind::Precondition`] when something else is mounted
/// there, or a volume for one is in use.
pub(crate) fn publish(at: AtTarget, read_only: bool, mode: Mode, others: usize) -> Result<Publish> {
    match at {
        AtTarget::Foreign => {
            Err(Error::new(Kind::Precondition, "something else is mounted at the target path"))
        }
        AtTarget::Ours { read_only: is } if is != read_only => Err(Error::new(
            Kind::Exists,
            format!("the volume is published there {}", if is { "read-only" } else { "for writing" }),
        )),
        AtTarget::Ours { .. } => Ok(Publish::AlreadyThere),
        AtTarget::Free if mode == Mode::One && others > 0 => {
            Err(Error::new(Kind::Precondition, "the volume is for one writer and published at another path"))
        }
        AtTarget::Free => Ok(Publish::Mount),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Id;

    const GIB: u64 = 1 << 30;

    fn range(required: u64, limit: u64) -> Range {
        Range { required, limit }
    }

    #[test]
    fn sizes() {
        let kinds = |range, step| size(range, step).map_err(|error| error.kind());
        for (required, limit, step, expected) in [
            (0, 0, 1, Ok(DEFAULT_SIZE)),
            (0, 5000, STEP, Ok(4096)),
            (0, 100, 1, Ok(100)),
            (0, 100, STEP, Err(Kind::OutOfRange)),
            (1, 0, STEP, Ok(4096)),
            (4096, 4096, STEP, Ok(4096)),
            (4097, 8191, STEP, Err(Kind::OutOfRange)),
            (4097, 8192, STEP, Ok(8192)),
            (7, 0, 1, Ok(7)),
            (SIZE_MAX, 0, 1, Ok(SIZE_MAX)),
            (SIZE_MAX, 0, STEP, Err(Kind::OutOfRange)),
        ] {
            assert_eq!(kinds(range(required, limit), step), expected, "{required} {limit} {step}");
        }
    }

    fn record(shape: Shape, capacity: u64, source: Option<Source>) -> Record {
        Record { source: source.map(|source| RecordSource::of(&source)), ..Record::new(shape, capacity) }
    }

    #[test]
    fn creating() {
        let source = || Some(Source::Volume(Id::read("golden").unwrap()));
        let wanted = |shape, range, source| RequestedVolume { shape, range, sector: 512, source };
        let found = |shape, record| Some(ExistingVolume { same_pool: true, shape, record });
        let folder = Shape::Folder;
        let plain = record(folder, GIB, None);
        let cases: Vec<(RequestedVolume, Option<ExistingVolume>, std::result::Result<Create, Kind>)> = vec![
            (wanted(folder, range(5, 0), None), None, Ok(Create::Make(5))),
            (wanted(Shape::Block, range(5, 0), None), None, Ok(Create::Make(4096))),
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
            (wanted(folder, range(GIB, 0), source()), found(folder, Some(plain.clone())), Err(Kind::Exists)),
            (
                wanted(folder, range(GIB, 0), source()),
                found(folder, Some(record(folder, GIB, source()))),
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
            (wanted(folder, range(7, 0), None), found(folder, None), Ok(Create::Adopt(7))),
            (wanted(folder, range(7, 0), source()), found(folder, None), Err(Kind::Exists)),
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
        for (wanted, found, expected) in cases {
            let planned = create(&wanted, found.as_ref()).map_err(|error| error.kind());
            assert_eq!(planned, expected, "{wanted:?} {found:?}");
        }
    }

    fn room(size: u64, free: u64, foreign: u64, promised: u64) -> Room {
        Room {
            capacity: Capacity::Request,
            size,
            free,
            foreign,
            promised,
            // Nothing is written yet.
            outstanding: promised,
            others: 0,
            reserve: Reserve::Thousandths(50),
            overcommit: 1000,
        }
    }

    #[test]
    fn promises_are_bounded() {
        let kinds = |room: &Room, new| admit("p", room, new).map_err(|error| error.kind());
        let empty = room(1000, 1000, 0, 0);
        assert_eq!(kinds(&empty, 950), Ok(()));
        assert_eq!(kinds(&empty, 951), Err(Kind::Exhausted));
        assert_eq!(kinds(&room(1000, 900, 100, 0), 851), Err(Kind::Exhausted));
        assert_eq!(kinds(&room(1000, 900, 100, 50), 800), Ok(()));
        // A written byte is neither free nor outstanding.
        assert_eq!(kinds(&Room { outstanding: 20, ..room(1000, 870, 100, 50) }, 800), Ok(()));
        assert_eq!(kinds(&Room { outstanding: 20, ..room(1000, 870, 100, 50) }, 801), Err(Kind::Exhausted));
        assert_eq!(kinds(&room(1000, 1000, 0, 2000), 1), Err(Kind::Exhausted));
        // The disk is fuller than promised: nothing more, not even nothing.
        assert_eq!(kinds(&room(1000, 49, 0, 0), 0), Err(Kind::Exhausted));
        assert_eq!(kinds(&Room { overcommit: 2000, ..empty }, 1900), Ok(()));
        assert_eq!(
            kinds(&Room { capacity: Capacity::Filesystem, ..room(1000, 1, 0, 5000) }, 1 << 40),
            Ok(())
        );
        let message = admit("fast", &room(10 * GIB, 9 * GIB, 0, 9 * GIB), GIB).unwrap_err().to_string();
        for word in ["fast", "1.0 GiB are asked for", "0 bytes are available", "9.0 GiB are free"] {
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn reported_capacity_respects_the_limits() {
        let full = Room { outstanding: 400, ..room(1000, 500, 100, 800) };
        assert_eq!((full.available(), full.largest()), (50, 50));
        // Half of the room is to be promised: neither more than that nor more than is free.
        assert_eq!(Room { others: 30, ..full }.available(), 20);
        assert_eq!(Room { others: 30, overcommit: 2000, ..full }.available(), 870);
        assert_eq!(Room { overcommit: 500, ..full }.available(), 0);
        assert_eq!(Room { overcommit: 950, promised: 700, ..full }.available(), 50);
        assert_eq!(Room { overcommit: 2000, ..full }.available(), 900);
        let upstream = Room { capacity: Capacity::Filesystem, ..full };
        assert_eq!((upstream.available(), upstream.largest()), (500, 1000));
        assert_eq!(room(1000, 10, 0, 0).available(), 0);
    }

    #[test]
    fn expanding() {
        let kinds = |current, range, shape| expand(current, range, shape).map_err(|error| error.kind());
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
    fn publishing() {
        let ours = |read_only| AtTarget::Ours { read_only };
        for (at, read_only, mode, others, expected) in [
            (AtTarget::Free, false, Mode::Many, 3, Ok(Publish::Mount)),
            (AtTarget::Free, false, Mode::One, 0, Ok(Publish::Mount)),
            (AtTarget::Free, false, Mode::One, 1, Err(Kind::Precondition)),
            (AtTarget::Free, true, Mode::ManyReaders, 1, Ok(Publish::Mount)),
            (ours(false), false, Mode::One, 0, Ok(Publish::AlreadyThere)),
            (ours(true), false, Mode::Many, 0, Err(Kind::Exists)),
            (ours(false), true, Mode::Many, 0, Err(Kind::Exists)),
            (AtTarget::Foreign, false, Mode::Many, 0, Err(Kind::Precondition)),
        ] {
            let planned = publish(at, read_only, mode, others).map_err(|error| error.kind());
            assert_eq!(planned, expected, "{at:?} {read_only} {mode:?} {others}");
        }
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
                modify(shape, Attributes { allocation }).is_err(),
                refused,
                "{shape:?} {allocation:?}"
            );
        }
    }

    #[test]
    fn lists_are_compared_without_their_order() {
        assert!(are_the_same(&["a", "b"], &["b", "a"]));
        assert!(!are_the_same(&["a", "b"], &["a"]));
        assert!(!are_the_same(&["a", "a"], &["a", "b"]));
        assert!(!are_the_same(&["a"], &[] as &[&str]));
    }
}
