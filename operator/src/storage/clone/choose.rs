//! How a claim is cloned: the way that the storage prefers, if source and target allow it, else by copying.

use crate::storage::profile::CloneStrategy;

/// Why a clone copies although the storage could clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// No VolumeSnapshotClass of the driver.
    NoVolumeSnapshotClass,
    /// One is Block, the other Filesystem.
    IncompatibleVolumeModes,
    /// The target is larger and the class cannot grow claims.
    NoVolumeExpansion,
    /// A snapshot of another driver.
    NoProvisionerMatch,
    /// Claims of different drivers.
    IncompatibleProvisioners,
}

impl Fallback {
    /// The reason in annotation and event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoVolumeSnapshotClass => "NoVolumeSnapshotClass",
            Self::IncompatibleVolumeModes => "IncompatibleVolumeModes",
            Self::NoVolumeExpansion => "NoVolumeExpansion",
            Self::NoProvisionerMatch => "NoProvisionerMatch",
            Self::IncompatibleProvisioners => "IncompatibleProvisioners",
        }
    }
}

/// The source of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneSource {
    /// Driver of the claim's class, or of the snapshot.
    pub driver: String,
    /// Whether it is Block; `None` for a snapshot without that information.
    pub block: Option<bool>,
    /// Bytes: capacity of the claim, restore size of the snapshot.
    pub size: u64,
    /// Whether it is a VolumeSnapshot.
    pub snapshot: bool,
}

/// Where it is cloned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneTarget {
    /// Driver of the class.
    pub driver: String,
    /// Whether it is Block.
    pub block: bool,
    /// Bytes that are asked for.
    pub size: u64,
    /// Whether the class can grow claims.
    pub expands: bool,
    /// The strategy of its profile.
    pub strategy: CloneStrategy,
    /// Whether its driver has a VolumeSnapshotClass.
    pub has_snapshot_class: bool,
}

/// Chooses. `forced` is CDI's `cloneStrategyOverride`. A fallback always means [`CloneStrategy::Copy`].
pub fn choose(
    from: &CloneSource,
    to: &CloneTarget,
    forced: Option<CloneStrategy>,
) -> (CloneStrategy, Option<Fallback>) {
    if from.snapshot {
        // A snapshot is restored by its own driver, whatever the class prefers.
        return match obstacle(from, to) {
            Some(fallback) => (CloneStrategy::Copy, Some(fallback)),
            None => (CloneStrategy::Snapshot, None),
        };
    }
    let strategy = forced.unwrap_or(to.strategy);
    let fallback = match strategy {
        CloneStrategy::Copy => return (strategy, None),
        CloneStrategy::Snapshot if !to.has_snapshot_class => Some(Fallback::NoVolumeSnapshotClass),
        CloneStrategy::Snapshot | CloneStrategy::CsiClone => obstacle(from, to),
    };
    match fallback {
        Some(fallback) => (CloneStrategy::Copy, Some(fallback)),
        None => (strategy, None),
    }
}

fn obstacle(from: &CloneSource, to: &CloneTarget) -> Option<Fallback> {
    if from.driver != to.driver {
        return Some(if from.snapshot {
            Fallback::NoProvisionerMatch
        } else {
            Fallback::IncompatibleProvisioners
        });
    }
    if from.block.is_some_and(|block| block != to.block) {
        return Some(Fallback::IncompatibleVolumeModes);
    }
    (to.size > from.size && !to.expands).then_some(Fallback::NoVolumeExpansion)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_storages_way_is_taken_where_it_works() {
        let from = CloneSource { driver: "d".into(), block: Some(false), size: 10, snapshot: false };
        let to = CloneTarget {
            driver: "d".into(),
            block: false,
            size: 10,
            expands: false,
            strategy: CloneStrategy::CsiClone,
            has_snapshot_class: true,
        };
        let copy = |fallback| (CloneStrategy::Copy, Some(fallback));
        let snapshot = CloneSource { snapshot: true, ..from.clone() };
        for (from, to, forced, expected) in [
            (from.clone(), to.clone(), None, (CloneStrategy::CsiClone, None)),
            (from.clone(), to.clone(), Some(CloneStrategy::Snapshot), (CloneStrategy::Snapshot, None)),
            (from.clone(), to.clone(), Some(CloneStrategy::Copy), (CloneStrategy::Copy, None)),
            (
                from.clone(),
                CloneTarget { strategy: CloneStrategy::Snapshot, has_snapshot_class: false, ..to.clone() },
                None,
                copy(Fallback::NoVolumeSnapshotClass),
            ),
            (
                from.clone(),
                CloneTarget { driver: "e".into(), ..to.clone() },
                None,
                copy(Fallback::IncompatibleProvisioners),
            ),
            (
                from.clone(),
                CloneTarget { block: true, ..to.clone() },
                None,
                copy(Fallback::IncompatibleVolumeModes),
            ),
            (from.clone(), CloneTarget { size: 11, ..to.clone() }, None, copy(Fallback::NoVolumeExpansion)),
            (
                from.clone(),
                CloneTarget { size: 11, expands: true, ..to.clone() },
                None,
                (CloneStrategy::CsiClone, None),
            ),
            (snapshot.clone(), to.clone(), None, (CloneStrategy::Snapshot, None)),
            (
                snapshot.clone(),
                CloneTarget { strategy: CloneStrategy::Copy, ..to.clone() },
                None,
                (CloneStrategy::Snapshot, None),
            ),
            (
                snapshot.clone(),
                CloneTarget { driver: "e".into(), ..to.clone() },
                None,
                copy(Fallback::NoProvisionerMatch),
            ),
            (
                CloneSource { block: None, ..snapshot },
                CloneTarget { block: true, ..to.clone() },
                None,
                (CloneStrategy::Snapshot, None),
            ),
        ] {
            assert_eq!(choose(&from, &to, forced), expected, "{from:?} {to:?} {forced:?}");
        }
    }
}
