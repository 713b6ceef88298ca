//! The features of a storage class: StorageProfile.
//!
//! ```text
//!  StorageClass ─► variant ─► table ┐
//!  CSIDriver, topology ─► infer ────┼─► Profile ─► claims that are rendered, clones, `status` of the StorageProfile
//!  VolumeSnapshotClass ─────────────┤
//!  StorageProfile.spec (overrides) ─┘
//! ```
//!
//! The properties of a provisioner that the table does not know are inferred; a condition names the facts. A class
//! without a provisioner has those of its volumes ([`properties_of`]), which its StorageProfile's status keeps.

mod infer;
mod render;
mod table;
mod variant;
mod volumes;

use serde_json::Value;

use crate::storage::seen::{Class, text, texts};

pub use infer::{Driver, Reach};
pub use render::{patch, status};
pub use volumes::{NO_PROVISIONER, properties as properties_of};

/// Annotation of a StorageProfile: the smallest claim that the storage accepts.
const MINIMUM: &str = "cdi.kubevirt.io/minimumSupportedPvcSize";
/// Annotation of a StorageProfile: VolumeSnapshotClass of the snapshots that DataImportCrons keep.
const CRON_SNAPSHOT_CLASS: &str = "cdi.kubevirt.io/snapshotClassForDataImportCron";
/// Annotation of a StorageProfile: `true` when imports of DataImportCrons are ReadWriteOnce.
const CRON_ONCE: &str = "cdi.kubevirt.io/useReadWriteOnceForDataImportCron";
/// Annotation of a StorageClass: how its volumes are cloned.
const CLONE_STRATEGY: &str = "cdi.kubevirt.io/clone-strategy";

/// One combination of access modes and volume mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// `ReadWriteOnce` and so on; at least one.
    pub modes: Vec<String>,
    /// Block or Filesystem.
    pub block: bool,
}

/// How volumes are cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloneStrategy {
    /// The driver clones a volume.
    CsiClone,
    /// A snapshot is taken and restored.
    Snapshot,
    /// Worker pods copy the bytes.
    Copy,
}

impl CloneStrategy {
    /// The word in StorageProfile and in annotations.
    pub fn word(self) -> &'static str {
        match self {
            Self::CsiClone => "csi-clone",
            Self::Snapshot => "snapshot",
            Self::Copy => "copy",
        }
    }

    /// Reads [`CloneStrategy::word`].
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::CsiClone, Self::Snapshot, Self::Copy].into_iter().find(|strategy| strategy.word() == word)
    }
}

/// A driver's VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotClass {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Whether it is the driver's default.
    pub is_default: bool,
}

impl From<&Value> for SnapshotClass {
    fn from(object: &Value) -> Self {
        let meta = crate::storage::seen::Meta::from(object);
        Self {
            is_default: meta.says("snapshot.storage.kubernetes.io/is-default-class", "true"),
            name: meta.name,
            driver: text(&object["driver"]),
        }
    }
}

/// What a StorageProfile adds to what follows from its class: the user's settings, and the modes of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `spec.claimPropertySets`.
    pub properties: Vec<Property>,
    /// `status.claimPropertySets`: those of the volumes, where the class has no provisioner.
    pub volumes: Vec<Property>,
    /// `spec.cloneStrategy`.
    pub clone: Option<CloneStrategy>,
    /// `spec.dataImportCronSourceFormat` is given: whether it is `snapshot`.
    pub cron_snapshots: Option<bool>,
    /// `spec.snapshotClass`; empty for none.
    pub snapshot_class: String,
    /// VolumeSnapshotClass for DataImportCrons; empty for the usual one.
    pub cron_snapshot_class: String,
    /// Whether imports of DataImportCrons are ReadWriteOnce.
    pub cron_once: bool,
    /// Smallest claim, bytes.
    pub minimum: Option<u64>,
}

impl From<&Value> for Overrides {
    fn from(profile: &Value) -> Self {
        let spec = &profile["spec"];
        let (annotations, status) = (&profile["metadata"]["annotations"], &profile["status"]);
        let by_hand = status["provisioner"] == NO_PROVISIONER;
        let minimum = annotations[MINIMUM].as_str();
        Self {
            properties: sets(&spec["claimPropertySets"]),
            volumes: if by_hand { sets(&status["claimPropertySets"]) } else { Vec::new() },
            clone: spec["cloneStrategy"].as_str().and_then(CloneStrategy::of_word),
            cron_snapshots: spec["dataImportCronSourceFormat"].as_str().map(|format| format == "snapshot"),
            snapshot_class: text(&spec["snapshotClass"]),
            cron_snapshot_class: text(&annotations[CRON_SNAPSHOT_CLASS]),
            cron_once: annotations[CRON_ONCE] == "true",
            minimum: minimum.and_then(|size| api::quantity::bytes(size).ok()),
        }
    }
}

/// The properties in `claimPropertySets`.
fn sets(list: &Value) -> Vec<Property> {
    let sets = list.as_array().into_iter().flatten();
    let property =
        |set: &Value| Property { modes: texts(&set["accessModes"]), block: set["volumeMode"] == "Block" };
    sets.map(property).filter(|property| !property.modes.is_empty()).collect()
}

/// Where the claim properties of a profile come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Knowledge {
    /// The table, the volumes of a class without a provisioner, or the user.
    Recognized,
    /// The provisioner is known, and the class's parameters name no variant of it.
    UnknownParameters,
    /// The provisioner is not in the table.
    Unknown,
}

/// The features of a storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The class.
    pub class: String,
    /// Its provisioner.
    pub provisioner: String,
    /// In order of preference; empty when nothing is known.
    pub properties: Vec<Property>,
    /// How volumes are cloned.
    pub clone: CloneStrategy,
    /// Whether DataImportCrons keep snapshots.
    pub cron_snapshots: bool,
    /// VolumeSnapshotClass of these; empty for none.
    pub cron_snapshot_class: String,
    /// Whether imports of DataImportCrons are ReadWriteOnce.
    pub cron_once: bool,
    /// VolumeSnapshotClass; empty for none.
    pub snapshot_class: String,
    /// Smallest claim, bytes; 0 for any.
    pub minimum: u64,
    /// Where the properties come from.
    pub knowledge: Knowledge,
    /// The driver that they are inferred from, where they are.
    pub inferred: Option<Driver>,
}

/// Whether the table has the properties of a class.
pub fn is_known(class: &Class) -> bool {
    table::properties(&variant::key(class)).is_some()
}

impl Profile {
    /// The profile of a class. `driver`: its provisioner, if that has a CSIDriver object.
    pub fn of(
        class: &Class,
        overrides: &Overrides,
        driver: Option<Driver>,
        snapshots: &[SnapshotClass],
    ) -> Self {
        let key = variant::key(class);
        let known = match class.provisioner == NO_PROVISIONER {
            true => Some(overrides.volumes.clone()).filter(|volumes| !volumes.is_empty()),
            false => table::properties(&key),
        };
        let variants_only = known.is_none() && table::has_variants(&class.provisioner);
        let knowledge = match (&known, variants_only) {
            _ if !overrides.properties.is_empty() => Knowledge::Recognized,
            (Some(_), _) => Knowledge::Recognized,
            (None, true) => Knowledge::UnknownParameters,
            (None, false) => Knowledge::Unknown,
        };
        let inferred = driver.filter(|_| overrides.properties.is_empty() && known.is_none());
        let properties = match overrides.properties.as_slice() {
            [] => known.or_else(|| inferred.map(Driver::properties)).unwrap_or_default(),
            properties => properties.to_vec(),
        };
        let fitting = || snapshots.iter().filter(|snapshot| snapshot.driver == class.provisioner);
        let named = fitting().find(|snapshot| snapshot.name == overrides.snapshot_class);
        let chosen = named.or_else(|| fitting().find(|one| one.is_default)).or_else(|| fitting().next());
        let snapshot_class = chosen.map(|one| one.name.clone()).unwrap_or_default();
        let of_crons = fitting().find(|snapshot| snapshot.name == overrides.cron_snapshot_class);
        let cron_snapshot_class = of_crons.map_or_else(|| snapshot_class.clone(), |one| one.name.clone());
        let annotated = class.meta.annotation(CLONE_STRATEGY).and_then(CloneStrategy::of_word);
        let usual = match (table::clone_strategy(&key), snapshot_class.is_empty()) {
            (Some(strategy), _) => strategy,
            (None, false) => CloneStrategy::Snapshot,
            (None, true) => CloneStrategy::Copy,
        };
        Self {
            class: class.meta.name.clone(),
            provisioner: class.provisioner.clone(),
            properties,
            clone: overrides.clone.or(annotated).unwrap_or(usual),
            cron_snapshots: overrides.cron_snapshots.unwrap_or_else(|| table::keeps_snapshots(&key)),
            cron_snapshot_class,
            cron_once: overrides.cron_once,
            snapshot_class,
            minimum: overrides.minimum.or_else(|| table::minimum(&key)).unwrap_or(0),
            knowledge,
            inferred,
        }
    }

    /// The preferred property with these wishes; `None` when the class has none.
    pub fn choose(&self, modes: &[String], block: Option<bool>) -> Option<&Property> {
        self.properties.iter().find(|property| {
            block.is_none_or(|block| property.block == block)
                && (modes.is_empty() || property.modes.iter().any(|mode| modes.contains(mode)))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(provisioner: &str) -> Class {
        Class { provisioner: provisioner.into(), ..Class::default() }
    }

    fn snapshot(name: &str, driver: &str, is_default: bool) -> SnapshotClass {
        SnapshotClass { name: name.into(), driver: driver.into(), is_default }
    }

    #[test]
    fn known_provisioners_have_the_tables_properties() {
        let profile =
            Profile::of(&class("rbd.csi.ceph.com"), &Overrides::default(), Some(Driver::default()), &[]);
        assert_eq!(
            (profile.properties.len(), profile.properties[0].block, profile.clone),
            (3, true, CloneStrategy::CsiClone)
        );
        assert_eq!(profile.properties[0].modes, ["ReadWriteMany"]);
        assert_eq!(profile.knowledge, Knowledge::Recognized);
        let file = profile.choose(&[], Some(false)).unwrap();
        assert_eq!(file.modes, ["ReadWriteOnce"]);
        assert_eq!(profile.choose(&["ReadWriteMany".into()], Some(false)), None);
    }

    #[test]
    fn unknown_provisioners_are_inferred_from_driver_and_snapshot_classes() {
        let none = Profile::of(&class("x.example"), &Overrides::default(), None, &[]);
        assert_eq!(
            (none.properties.len(), none.clone, none.knowledge),
            (0, CloneStrategy::Copy, Knowledge::Unknown)
        );
        let snapshots = [
            snapshot("other", "y", true),
            snapshot("a", "x.example", false),
            snapshot("b", "x.example", true),
        ];
        let csi =
            Profile::of(&class("x.example"), &Overrides::default(), Some(Driver::default()), &snapshots);
        assert_eq!(
            (csi.clone, csi.snapshot_class.as_str(), csi.properties.len()),
            (CloneStrategy::Snapshot, "b", 1)
        );
        assert!(!csi.properties[0].block);
    }

    #[test]
    fn a_class_without_a_provisioner_has_the_properties_of_its_volumes() {
        let class = class(NO_PROVISIONER);
        let sets = |mode: &str| json!([{"accessModes": ["ReadWriteOnce"], "volumeMode": mode}]);
        let written = json!({"provisioner": NO_PROVISIONER, "claimPropertySets": sets("Block")});
        for (profile, expected) in [
            (json!({}), (None, Knowledge::Unknown)),
            (json!({"status": written}), (Some(true), Knowledge::Recognized)),
            (
                json!({"spec": {"claimPropertySets": sets("Filesystem")}, "status": written}),
                (Some(false), Knowledge::Recognized),
            ),
        ] {
            let found = Profile::of(&class, &Overrides::from(&profile), None, &[]);
            let block = found.properties.first().map(|property| property.block);
            assert_eq!((block, found.knowledge), expected, "{profile}");
        }
        // A status of another provisioner is no source of its properties.
        let inferred = json!({"status": {"provisioner": "x.example", "claimPropertySets": sets("Block")}});
        assert!(Overrides::from(&inferred).volumes.is_empty());
    }

    #[test]
    fn overrides_stand_over_annotation_and_table() {
        let overrides = Overrides::from(&json!({
            "metadata": {"annotations": {MINIMUM: "2Gi", CRON_SNAPSHOT_CLASS: "b", CRON_ONCE: "true"}},
            "spec": {"claimPropertySets": [{"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}], "cloneStrategy": "copy",
                "dataImportCronSourceFormat": "snapshot", "snapshotClass": "a"},
        }));
        let mut class = class("rbd.csi.ceph.com");
        class.meta.annotations.insert(CLONE_STRATEGY.into(), "snapshot".into());
        let snapshots = [snapshot("b", "rbd.csi.ceph.com", true), snapshot("a", "rbd.csi.ceph.com", false)];
        let driver = Some(Driver::default());
        let profile = Profile::of(&class, &overrides, driver, &snapshots);
        assert_eq!(
            (profile.properties.len(), profile.clone, profile.minimum),
            (1, CloneStrategy::Copy, 2 << 30)
        );
        assert_eq!((profile.snapshot_class.as_str(), profile.cron_snapshots), ("a", true));
        assert_eq!((profile.cron_snapshot_class.as_str(), profile.cron_once), ("b", true));
        let unknown = Overrides { cron_snapshot_class: "none".into(), ..overrides };
        assert_eq!(Profile::of(&class, &unknown, driver, &snapshots).cron_snapshot_class, "a");
        let annotated = Profile::of(&class, &Overrides::default(), driver, &snapshots);
        assert_eq!((annotated.clone, annotated.snapshot_class.as_str()), (CloneStrategy::Snapshot, "b"));
    }
}
