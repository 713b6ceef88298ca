//! Own writes that the caches do not show yet. A plan that is made from a cache which is older than the last write would
//! repeat that write; the object's key waits for the cache instead, for at most [`TIMEOUT`].

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::Key;

/// After so long the cache is taken as it is: another client may have deleted the object.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Collections that are written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collection {
    /// DataVolumes.
    Volumes,
    /// Claims.
    Claims,
    /// Worker pods.
    Workers,
}

/// The state that the cache of a collection has to show.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// This version of the object, or a later one.
    Version(u64),
    /// That the object is gone, or is being deleted.
    Gone,
}

/// Writes that are still to be seen.
#[derive(Debug, Default)]
pub struct Written(Mutex<HashMap<(Collection, Key), (Expected, Instant)>>);

impl Written {
    /// An object was written and has this version now.
    pub fn object(&self, collection: Collection, key: Key, version: &str) {
        if let Ok(version) = version.parse() {
            self.put(collection, key, Expected::Version(version));
        }
    }

    /// An object was deleted.
    pub fn deleted(&self, collection: Collection, key: Key) {
        self.put(collection, key, Expected::Gone);
    }

    fn put(&self, collection: Collection, key: Key, expected: Expected) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((collection, key), (expected, Instant::now()));
    }

    /// Whether the cache shows the last write. `version` and `deleting` are what it shows now.
    pub fn is_seen(&self, collection: Collection, key: &Key, version: Option<u64>, deleting: bool) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = (collection, key.clone());
        let Some((expected, since)) = all.get(&entry) else { return true };
        let seen = match expected {
            Expected::Version(expected) => version.is_some_and(|version| version >= *expected),
            Expected::Gone => version.is_none() || deleting,
        };
        if seen || since.elapsed() > TIMEOUT {
            all.remove(&entry);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_waits_until_its_last_write_is_seen() {
        let (written, key) = (Written::default(), Key::new("n", "a"));
        let seen = |version, deleting| written.is_seen(Collection::Claims, &key, version, deleting);
        assert!(seen(None, false));
        written.object(Collection::Claims, key.clone(), "7");
        assert!(!seen(None, false) && !seen(Some(6), false));
        assert!(seen(Some(7), false) && seen(Some(6), false), "it is forgotten when it was seen");
        written.deleted(Collection::Claims, key.clone());
        assert!(!seen(Some(7), false));
        assert!(seen(Some(8), true));
        written.object(Collection::Workers, key.clone(), "7");
        assert!(seen(None, false), "collections are apart");
    }
}
