//! DataVolume.

use std::collections::BTreeMap;

use serde_json::Value;

use super::meta::{Condition, Meta, conditions, map, text, texts};
use super::source::Source;

/// The fields read from a DataVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataVolume {
    /// Metadata.
    pub meta: Meta,
    /// `spec.source` or `spec.sourceRef`.
    pub source: Source,
    /// `spec.pvc` or `spec.storage`.
    pub claim: Template,
    /// Whether `spec.contentType` is `archive`.
    pub archive: bool,
    /// `spec.preallocation`.
    pub preallocation: Option<bool>,
    /// `spec.priorityClassName`; empty for none.
    pub priority_class: String,
    /// `spec.serviceAccountName`; empty for none.
    pub service_account: String,
    /// Whether `spec.checkpoints` has an entry: a multi-stage import.
    pub checkpoints: bool,
    /// `status`.
    pub status: Status,
}

/// The claim as the user describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// Whether it is `spec.storage`: missing fields come from the storage profile, the size is that of the disk.
    /// `spec.pvc` is taken as it is.
    pub rendered: bool,
    /// `accessModes`.
    pub modes: Vec<String>,
    /// `resources.requests`.
    pub requests: BTreeMap<String, String>,
    /// `resources.limits`.
    pub limits: BTreeMap<String, String>,
    /// `storageClassName`.
    pub class: Option<String>,
    /// `volumeMode`.
    pub mode: Option<String>,
    /// `volumeName`; empty for none.
    pub volume: String,
    /// `selector`; null for none.
    pub selector: Value,
    /// `dataSourceRef` or `dataSource`, for external populators; null for none.
    pub source: Value,
    /// `volumeAttributesClassName`; empty for none.
    pub attributes_class: String,
}

impl Template {
    /// The requested size in bytes; `None` when none is given or it cannot be read.
    pub fn size(&self) -> Option<u64> {
        api::quantity::bytes(self.requests.get("storage")?).ok()
    }
}

/// `status` of a DataVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `phase`; empty before the first one.
    pub phase: String,
    /// `progress`; empty before the first one.
    pub progress: String,
    /// `claimName`; empty before there is a claim.
    pub claim: String,
    /// `restartCount`.
    pub restarts: u32,
    /// `conditions`.
    pub conditions: Vec<Condition>,
}

impl Status {
    /// A condition.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|one| one.kind == kind)
    }
}

impl From<&Value> for DataVolume {
    fn from(object: &Value) -> Self {
        let spec = &object["spec"];
        let reference = &spec["sourceRef"];
        Self {
            meta: Meta::from(object),
            source: if reference.is_object() {
                Source::Reference {
                    kind: text(&reference["kind"]),
                    namespace: text(&reference["namespace"]),
                    name: text(&reference["name"]),
                }
            } else {
                Source::from(&spec["source"])
            },
            claim: Template::from(spec),
            archive: spec["contentType"] == "archive",
            preallocation: spec["preallocation"].as_bool(),
            priority_class: text(&spec["priorityClassName"]),
            service_account: text(&spec["serviceAccountName"]),
            checkpoints: spec["checkpoints"].as_array().is_some_and(|list| !list.is_empty()),
            status: Status::from(&object["status"]),
        }
    }
}

impl From<&Value> for Template {
    fn from(spec: &Value) -> Self {
        let rendered = spec["storage"].is_object();
        let claim = if rendered { &spec["storage"] } else { &spec["pvc"] };
        let source = [&claim["dataSourceRef"], &claim["dataSource"]].into_iter().find(|one| one.is_object());
        Self {
            rendered,
            modes: texts(&claim["accessModes"]),
            requests: map(&claim["resources"]["requests"]),
            limits: map(&claim["resources"]["limits"]),
            class: claim["storageClassName"].as_str().map(str::to_owned),
            mode: claim["volumeMode"].as_str().map(str::to_owned),
            volume: text(&claim["volumeName"]),
            selector: claim["selector"].clone(),
            source: source.cloned().unwrap_or_default(),
            attributes_class: text(&claim["volumeAttributesClassName"]),
        }
    }
}

impl From<&Value> for Status {
    fn from(status: &Value) -> Self {
        Self {
            phase: text(&status["phase"]),
            progress: text(&status["progress"]),
            claim: text(&status["claimName"]),
            restarts: status["restartCount"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            conditions: conditions(&status["conditions"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn data_volumes_are_read() {
        let volume = DataVolume::from(&json!({
            "metadata": {"name": "d", "namespace": "n"},
            "spec": {
                "sourceRef": {"kind": "DataSource", "name": "s"},
                "storage": {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"},
                "contentType": "archive", "preallocation": true,
            },
            "status": {"phase": "Succeeded", "restartCount": 2, "conditions": [{"type": "Ready", "status": "True"}]},
        }));
        let named =
            Source::Reference { kind: "DataSource".into(), namespace: String::new(), name: "s".into() };
        assert_eq!((volume.source, volume.claim.rendered, volume.claim.size()), (named, true, Some(1 << 30)));
        assert_eq!((volume.archive, volume.preallocation, volume.status.restarts), (true, Some(true), 2));
        assert_eq!(volume.status.condition("Ready").map(|one| one.status.as_str()), Some("True"));
        let volume =
            DataVolume::from(&json!({"spec": {"pvc": {"volumeMode": "Block"}, "source": {"blank": {}}}}));
        assert_eq!(
            (volume.source, volume.claim.mode.as_deref(), volume.claim.rendered),
            (Source::Blank, Some("Block"), false)
        );
    }
}
