//! Object metadata and conditions, and the readers that the other projections share.

use std::collections::BTreeMap;

use serde_json::Value;

/// kubectl's copy of the applied manifest: as large as the object, and of no use to a controller.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The fields read from `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The object's id; another object of the same name has another.
    pub uid: String,
    /// `resourceVersion`.
    pub version: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// All annotations except kubectl's last applied manifest.
    pub annotations: BTreeMap<String, String>,
    /// Every owner.
    pub owners: Vec<Owner>,
    /// Every finalizer.
    pub finalizers: Vec<String>,
    /// Whether the object has a deletion timestamp.
    pub deleting: bool,
    /// `creationTimestamp`, RFC 3339 in UTC: sorts by time.
    pub created: String,
}

/// An owner reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// `apiVersion`.
    pub api_version: String,
    /// Kind, such as `DataVolume`.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Id.
    pub uid: String,
    /// Whether it is the controller.
    pub controller: bool,
}

impl Meta {
    /// An annotation's value.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    /// Whether an annotation has this value.
    pub fn says(&self, name: &str, value: &str) -> bool {
        self.annotation(name) == Some(value)
    }

    /// The owner that is the controller.
    pub fn controller(&self) -> Option<&Owner> {
        self.owners.iter().find(|owner| owner.controller)
    }

    /// Whether the object with this id is the controller.
    pub fn is_controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|owner| owner.uid == uid)
    }
}

impl From<&Value> for Meta {
    fn from(object: &Value) -> Self {
        let meta = &object["metadata"];
        let mut annotations = map(&meta["annotations"]);
        annotations.remove(LAST_APPLIED);
        let owners = meta["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            namespace: text(&meta["namespace"]),
            name: text(&meta["name"]),
            uid: text(&meta["uid"]),
            version: text(&meta["resourceVersion"]),
            labels: map(&meta["labels"]),
            annotations,
            owners: owners
                .iter()
                .map(|owner| Owner {
                    api_version: text(&owner["apiVersion"]),
                    kind: text(&owner["kind"]),
                    name: text(&owner["name"]),
                    uid: text(&owner["uid"]),
                    controller: owner["controller"] == true,
                })
                .collect(),
            finalizers: texts(&meta["finalizers"]),
            deleting: meta["deletionTimestamp"].is_string(),
            created: text(&meta["creationTimestamp"]),
        }
    }
}

/// A condition of a status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// For programs.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Time of the last change of `status`, RFC 3339.
    pub since: String,
}

/// The conditions in a list.
pub fn conditions(list: &Value) -> Vec<Condition> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .map(|one| Condition {
            kind: text(&one["type"]),
            status: text(&one["status"]),
            reason: text(&one["reason"]),
            message: text(&one["message"]),
            since: text(&one["lastTransitionTime"]),
        })
        .collect()
}

/// A text; empty when it is absent.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The bytes of a quantity; 0 when it cannot be read.
pub(super) fn bytes(quantity: &Value) -> u64 {
    quantity.as_str().and_then(|text| api::quantity::bytes(text).ok()).unwrap_or(0)
}

/// The texts in a list.
pub fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The texts in an object, by name.
pub fn map(value: &Value) -> BTreeMap<String, String> {
    let fields = value.as_object().into_iter().flatten();
    fields.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_read_without_the_last_applied_manifest() {
        let meta = Meta::from(&json!({"metadata": {
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"l": "1"}, "annotations": {"x": "y", LAST_APPLIED: "{}"}, "finalizers": ["f"],
            "ownerReferences": [{"kind": "K", "name": "o", "uid": "1"}, {"kind": "C", "name": "c", "uid": "2", "controller": true}],
        }}));
        assert_eq!((meta.annotations.len(), meta.annotation("x"), meta.deleting), (1, Some("y"), true));
        assert!(meta.is_controlled_by("2") && !meta.is_controlled_by("1"));
        assert_eq!(Meta::from(&json!({})), Meta::default());
    }
}
