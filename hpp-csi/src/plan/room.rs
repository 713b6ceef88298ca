//! Room in a pool: how much may still be promised.

use std::cmp::Ordering;

use crate::amount::display;
use crate::config::{Capacity, Reserve, share};
use crate::error::{Error, Kind, Result};

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

    /// Free bytes apart from the reserve.
    pub(crate) fn unreserved(&self) -> u64 {
        self.free.saturating_sub(self.reserve.of(self.size))
    }

    /// Bytes that may still be promised. Without overcommitment never more than what is free, less the reserve and what is
    /// outstanding; with it, what is promised is bounded.
    pub(crate) fn available(&self) -> u64 {
        let unreserved = self.unreserved();
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

/// Whether `new` more bytes may be promised in a pool that has at least this much room, so that its exact room is not needed.
/// False decides nothing: with overcommitment the exact use of volumes counts.
pub(crate) fn is_ample(least: &Room, new: u64) -> bool {
    match least.capacity {
        Capacity::Filesystem => true,
        Capacity::Request => {
            let kept = least.free >= least.reserve.of(least.size);
            kept && least.overcommit == 1000 && new <= least.available()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

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
    fn ample_room_is_room_without_overcommitment() {
        let least = room(1000, 900, 0, 300);
        for (room, new, ample) in [
            (least, 550, true),
            (least, 551, false),
            (Room { others: 50, ..least }, 501, false),
            // Nothing is promised where the reserve is used, not even nothing.
            (Room { free: 49, ..least }, 0, false),
            (Room { overcommit: 2000, ..least }, 1, false),
            (Room { overcommit: 999, ..least }, 1, false),
            (Room { capacity: Capacity::Filesystem, free: 0, ..least }, 1 << 40, true),
        ] {
            assert_eq!(is_ample(&room, new), ample, "{room:?} {new}");
            assert!(!ample || admit("p", &room, new).is_ok(), "{room:?} {new}");
        }
    }

    #[test]
    fn reported_capacity_respects_the_limits() {
        let full = Room { outstanding: 400, ..room(1000, 500, 100, 800) };
        assert_eq!((full.available(), full.largest()), (50, 50));
        assert_eq!(Room { others: 30, ..full }.available(), 20);
        assert_eq!(Room { others: 30, overcommit: 2000, ..full }.available(), 870);
        // Half of the room is to be promised: neither more than that nor more than is free.
        assert_eq!(Room { overcommit: 500, ..full }.available(), 0);
        assert_eq!(Room { overcommit: 950, promised: 700, ..full }.available(), 50);
        assert_eq!(Room { overcommit: 2000, ..full }.available(), 900);
        let upstream = Room { capacity: Capacity::Filesystem, ..full };
        assert_eq!((upstream.available(), upstream.largest()), (500, 1000));
        assert_eq!(room(1000, 10, 0, 0).available(), 0);
    }
}
