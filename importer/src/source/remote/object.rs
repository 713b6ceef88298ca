//! An object that was opened: what is known of it, and the lanes its readers leave for one another. Not here: how it is
//! read (`reader`).

use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use disk_image::{Access, Facts, Source};

use super::reader::Reader;
use super::shared::{Shared, lock};
use super::{Lane, Mark, Part, Reach, Remote, first};
use crate::error::Error;
use crate::source::blocking::Net;

/// An open object on a server, whatever the protocol.
pub struct RemoteSource {
    source: Box<dyn Source>,
    identity: Option<String>,
}

impl RemoteSource {
    /// Opens by asking for the first byte.
    pub(crate) fn open<R: Remote>(net: &Net, remote: R, reach: Reach) -> Result<Self, Error> {
        let lane = Lane::new(net, &remote)?;
        let part = first(&lane, &remote, &reach)?;
        remote.remember(&part.mark);
        let size = part.total;
        Ok(Self::new(remote, net, reach, size, lane, part))
    }

    /// Takes what opening found out. `part` is the first answer, on `lane`.
    pub(crate) fn new<R: Remote>(
        remote: R,
        net: &Net,
        reach: Reach,
        size: Option<u64>,
        lane: Lane<R::Client>,
        part: Part,
    ) -> Self {
        let object = Object::new(remote, net, reach, size, lane, part);
        Self { identity: object.identity(), source: Box::new(object) }
    }

    /// Stable text of the address (nothing secret in it), the marks and the length, for a journal: equal only if it is the
    /// same object. `None` when the server gives no mark, as then a new object of the same length cannot be distinguished
    /// from the old one.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }
}

impl fmt::Debug for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSource").field("facts", &self.facts()).finish_non_exhaustive()
    }
}

impl Source for RemoteSource {
    fn facts(&self) -> Facts {
        self.source.facts()
    }
    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        self.source.open(range)
    }
    fn connections(&self) -> usize {
        self.source.connections()
    }
    fn part_size(&self) -> u64 {
        self.source.part_size()
    }
}

/// An object that was opened.
struct Object<R: Remote>(Arc<Shared<R>>);

impl<R: Remote> Object<R> {
    fn new(remote: R, net: &Net, reach: Reach, size: Option<u64>, lane: Lane<R::Client>, part: Part) -> Self {
        let ranges = !part.whole && size.is_some();
        let mark = part.mark.clone();
        let (lanes, whole) = if part.whole {
            (Vec::new(), Some((lane, part)))
        } else {
            drop(part);
            (vec![lane], None)
        };
        Self(Arc::new(Shared {
            remote,
            net: net.clone(),
            reach,
            size,
            mark,
            ranges: AtomicBool::new(ranges),
            lanes: Mutex::new(lanes),
            whole: Mutex::new(whole),
        }))
    }

    fn identity(&self) -> Option<String> {
        use std::fmt::Write;
        let shared = &self.0;
        if shared.mark == Mark::default() {
            return None;
        }
        let mut text = shared.remote.name().to_owned();
        // Writing to a String cannot fail.
        let _ = write!(text, " length={:?}", shared.size);
        let _ = write!(text, " etag={:?} modified={:?}", shared.mark.etag, shared.mark.modified);
        // A query that only grants access may be another one next time; without a strong mark it may be the only difference
        // between files of one length and time.
        if let Some(query) = shared.remote.query().filter(|_| shared.mark.strong().is_none()) {
            let _ = write!(text, " query={:08x}", crc32fast::hash(query.as_bytes()));
        }
        Some(text)
    }
}

impl<R: Remote> Source for Object<R> {
    fn facts(&self) -> Facts {
        let ranges = self.0.ranges.load(Ordering::Relaxed);
        Facts { size: self.0.size, access: if ranges { Access::Ranges } else { Access::Again } }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let shared = self.0.clone();
        let end = shared.size.map_or(range.end, |size| range.end.min(size));
        let ranges = shared.ranges.load(Ordering::Relaxed);
        let first = range.start == 0 && !ranges;
        let mut reader = Reader::new(shared, range.start..end, first);
        let whole = if first { lock(&self.0.whole).take() } else { None };
        if let Some((lane, part)) = whole {
            reader.take_over(lane, part);
        }
        Ok(Box::new(reader))
    }

    fn connections(&self) -> usize {
        if !self.0.ranges.load(Ordering::Relaxed) {
            return 1;
        }
        let parts = self.0.size.unwrap_or(0).div_ceil(self.part_size());
        self.0.reach.connections.min(usize::try_from(parts).unwrap_or(usize::MAX)).max(1)
    }

    fn part_size(&self) -> u64 {
        // Long enough that asking costs nothing, short enough that all connections have work to the end.
        let share = self.0.size.unwrap_or(0) / (4 * self.0.reach.connections.max(1) as u64);
        (share & !((1 << 20) - 1)).clamp(8 << 20, 16 << 20)
    }
}
