//! One lock per volume and snapshot. A call whose volume is locked does not wait: it fails with [`Kind::Busy`], and the
//! client retries. Reads (a clone's source) share the lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Kind, Result};
use crate::id::Id;

/// An object that can be locked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Thing {
    /// A volume's being there, its size and its content as a whole.
    Volume(Id),
    /// Where a volume is staged and published.
    Mounts(Id),
    /// A snapshot.
    Snapshot(Id),
    /// A group of snapshots.
    Group(Id),
}

#[derive(Debug)]
enum LockKey {
    Alone,
    By(usize),
}

/// All locks of the driver.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    held: Arc<Mutex<HashMap<Thing, LockKey>>>,
}

/// A lock that is held until this is dropped.
#[derive(Debug)]
pub struct Guard {
    locks: Locks,
    thing: Thing,
}

impl Locks {
    /// Locks `thing` exclusively.
    ///
    /// # Errors
    /// [`Kind::Busy`] when another call holds the lock.
    pub fn lock(&self, thing: Thing) -> Result<Guard> {
        let mut held = self.map();
        if held.contains_key(&thing) {
            return Err(busy(&thing));
        }
        held.insert(thing.clone(), LockKey::Alone);
        drop(held);
        Ok(Guard { locks: self.clone(), thing })
    }

    /// Locks `thing` for reading, shared with other readers.
    ///
    /// # Errors
    /// [`Kind::Busy`] when a call holds it exclusively.
    pub fn share(&self, thing: Thing) -> Result<Guard> {
        let mut held = self.map();
        match held.get_mut(&thing) {
            Some(LockKey::Alone) => return Err(busy(&thing)),
            Some(LockKey::By(count)) => *count += 1,
            None => {
                held.insert(thing.clone(), LockKey::By(1));
            }
        }
        drop(held);
        Ok(Guard { locks: self.clone(), thing })
    }

    fn map(&self) -> MutexGuard<'_, HashMap<Thing, LockKey>> {
        // Nothing panics while it holds the map; if it did, the map would still be whole.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn busy(thing: &Thing) -> Error {
    let name = match thing {
        Thing::Volume(id) | Thing::Mounts(id) => format!("volume {id}"),
        Thing::Snapshot(id) => format!("snapshot {id}"),
        Thing::Group(id) => format!("group snapshot {id}"),
    };
    Error::new(Kind::Busy, format!("another call works on {name}"))
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.locks.map();
        match held.get_mut(&self.thing) {
            Some(LockKey::By(count)) if *count > 1 => *count -= 1,
            Some(LockKey::By(_) | LockKey::Alone) | None => {
                held.remove(&self.thing);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_excludes_all_and_shared_excludes_alone() {
        let locks = Locks::default();
        let thing = || Thing::Volume(Id::read("a").unwrap());
        let alone = locks.lock(thing()).unwrap();
        assert_eq!(locks.lock(thing()).unwrap_err().kind(), Kind::Busy);
        assert_eq!(locks.share(thing()).unwrap_err().kind(), Kind::Busy);
        drop(locks.lock(Thing::Snapshot(Id::read("a").unwrap())).unwrap());
        drop(alone);
        let first = locks.share(thing()).unwrap();
        let second = locks.share(thing()).unwrap();
        drop(first);
        assert_eq!(locks.lock(thing()).unwrap_err().kind(), Kind::Busy);
        drop(second);
        drop(locks.lock(thing()).unwrap());
        assert!(locks.map().is_empty());
    }
}
