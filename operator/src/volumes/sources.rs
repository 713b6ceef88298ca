//! Sources of volumes: claims that are cloned and VolumeSnapshots that are restored. Not here: their finalizers
//! ([`super::guards`]).

use cluster::{Key, Resource};

use super::seen::{CLAIMS, CLONED, Claim, RESTORED, SNAPSHOTS};

/// A source of volumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A claim, of clones.
    Claim(Key),
    /// A VolumeSnapshot, of restored volumes.
    Snapshot(Key),
}

impl Source {
    /// The source of a claim's volume.
    pub(super) fn of(key: &Key, claim: &Claim) -> Option<Self> {
        let at = |name: &String| Key::new(key.namespace(), name);
        let snapshot = || claim.snapshot.as_ref().map(at).map(Self::Snapshot);
        claim.source.as_ref().map(at).map(Self::Claim).or_else(snapshot)
    }

    /// The entry of an index of claims by their source.
    pub(super) fn entry(&self) -> String {
        match self {
            Self::Claim(key) => format!("claim {key}"),
            Self::Snapshot(key) => format!("snapshot {key}"),
        }
    }

    /// Its kind, its key, and the finalizer that keeps it.
    pub(super) fn parts(&self) -> (Resource, &Key, &'static str) {
        match self {
            Self::Claim(key) => (CLAIMS, key, CLONED),
            Self::Snapshot(key) => (SNAPSHOTS, key, RESTORED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_found_by_their_kind_and_name() {
        let key = Key::new("shop", "copy");
        let clone = Claim { source: Some("golden".into()), ..Claim::default() };
        let restored = Claim { snapshot: Some("golden".into()), ..Claim::default() };
        let entry = |claim: &Claim| Source::of(&key, claim).map(|source| source.entry());
        assert_eq!(entry(&clone).as_deref(), Some("claim shop/golden"));
        assert_eq!(entry(&restored).as_deref(), Some("snapshot shop/golden"));
        assert_eq!(entry(&Claim::default()), None);
    }
}
