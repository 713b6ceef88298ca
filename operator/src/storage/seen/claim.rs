//! PersistentVolumeClaim.

use std::collections::BTreeMap;

use serde_json::Value;

use super::meta::{Meta, bytes, conditions, map, text, texts};
use crate::storage::names;

/// The fields read from a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Metadata.
    pub meta: Meta,
    /// `spec.storageClassName`; `Some("")` asks for no class, `None` for the default.
    pub class: Option<String>,
    /// `spec.accessModes`.
    pub modes: Vec<String>,
    /// Whether `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.resources.requests.storage`, bytes; 0 when it cannot be read.
    pub size: u64,
    /// `spec.resources.limits`.
    pub limits: BTreeMap<String, String>,
    /// `spec.volumeAttributesClassName`; empty for none.
    pub attributes_class: String,
    /// `spec.volumeName`; empty until a volume is chosen.
    pub volume: String,
    /// `spec.dataSourceRef`, or `spec.dataSource`.
    pub source: Option<SourceRef>,
    /// `status.phase`.
    pub phase: Phase,
    /// `status.capacity.storage`, bytes; 0 while unbound.
    pub capacity: u64,
    /// Whether its volume has grown, and its filesystem will when a pod mounts it.
    pub grows_when_mounted: bool,
}

impl Claim {
    /// Whether a DataVolume controls it.
    pub fn is_of_data_volume(&self) -> bool {
        self.meta.controller().is_some_and(|owner| owner.kind == "DataVolume")
    }

    /// Whether it has still to bind to one of the volumes that are reserved for it.
    pub fn waits_for_reserved(&self) -> bool {
        self.meta.annotation(names::VOLUME_LIST).is_some()
    }
}

/// Where a claim's content comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRef {
    /// API group; empty for claims.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace, when one is given.
    pub namespace: Option<String>,
}

/// `status.phase` of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not bound; also before the first status.
    #[default]
    Pending,
    /// Bound to a volume.
    Bound,
    /// Its volume is gone or belongs to another claim.
    Lost,
}

impl From<&Value> for Claim {
    fn from(object: &Value) -> Self {
        let (spec, status) = (&object["spec"], &object["status"]);
        let source =
            [&spec["dataSourceRef"], &spec["dataSource"]].into_iter().find(|source| source.is_object());
        Self {
            meta: Meta::from(object),
            class: spec["storageClassName"].as_str().map(str::to_owned),
            modes: texts(&spec["accessModes"]),
            block: spec["volumeMode"] == "Block",
            size: bytes(&spec["resources"]["requests"]["storage"]),
            limits: map(&spec["resources"]["limits"]),
            attributes_class: text(&spec["volumeAttributesClassName"]),
            volume: text(&spec["volumeName"]),
            source: source.map(|source| SourceRef {
                group: text(&source["apiGroup"]),
                kind: text(&source["kind"]),
                name: text(&source["name"]),
                namespace: source["namespace"].as_str().map(str::to_owned),
            }),
            phase: match status["phase"].as_str() {
                Some("Bound") => Phase::Bound,
                Some("Lost") => Phase::Lost,
                _ => Phase::Pending,
            },
            capacity: bytes(&status["capacity"]["storage"]),
            grows_when_mounted: conditions(&status["conditions"])
                .iter()
                .any(|one| one.kind == "FileSystemResizePending" && one.status == "True"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_read() {
        let claim = Claim::from(&json!({
            "metadata": {"name": "c"},
            "spec": {"storageClassName": "", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "volumeName": "v",
                "resources": {"requests": {"storage": "1Gi"}, "limits": {"storage": "3Gi"}},
                "volumeAttributesClassName": "gold",
                "dataSourceRef": {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "s"}},
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
        }));
        assert_eq!((claim.class.as_deref(), claim.block, claim.size), (Some(""), true, 1 << 30));
        assert_eq!((claim.phase, claim.capacity, claim.volume.as_str()), (Phase::Bound, 2 << 30, "v"));
        assert_eq!((claim.limits["storage"].as_str(), claim.attributes_class.as_str()), ("3Gi", "gold"));
        assert_eq!(claim.source.unwrap().kind, "VolumeImportSource");
        let empty = Claim::from(&json!({}));
        assert_eq!((empty.phase, empty.class, empty.source), (Phase::Pending, None, None));
    }
}
