//! Metadata and conditions: what all kinds share.

use std::collections::BTreeMap;

use api::resource::ObjectMeta;
use serde::{Deserialize, Deserializer, Serialize};

/// Metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: u64,
    /// RFC 3339.
    pub(crate) creation_timestamp: Option<String>,
    /// RFC 3339; set while finalizers hold a deleted object.
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) finalizers: Vec<String>,
    /// Only labels of KubeVirt, CDI and ferrovirt.
    #[serde(deserialize_with = "decided_on")]
    pub(crate) labels: BTreeMap<String, String>,
    /// Only annotations that decisions are made on.
    #[serde(deserialize_with = "decided_on")]
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<Owner>,
}

impl Meta {
    /// Whether the object is being deleted.
    pub(crate) fn deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(crate) fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// The owner that controls the object.
    pub(crate) fn controller(&self) -> Option<&Owner> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

/// Place of an object in the order of creation. Of several objects of a kind that is meant to have one, the first is in
/// effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Age {
    /// RFC 3339, in UTC and whole seconds: in the order of time.
    creation_timestamp: Option<String>,
    uid: Option<String>,
}

impl From<&ObjectMeta> for Age {
    fn from(meta: &ObjectMeta) -> Self {
        Self { creation_timestamp: meta.creation_timestamp.clone(), uid: meta.uid.clone() }
    }
}

/// The uninstall strategy of `KubeVirt` and `CDI` with which their deletion waits for workloads; with others these are
/// removed.
pub(crate) const WAITS: &str = "BlockUninstallIfWorkloadsExist";

/// The object in effect among all of its kind: the oldest.
pub(crate) fn oldest<T>(all: impl IntoIterator<Item = T>, age: impl Fn(&T) -> &Age) -> Option<T> {
    all.into_iter().min_by(|one, other| age(one).cmp(age(other)))
}

/// An owner of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Owner {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) controller: bool,
}

/// One fact about an object's state, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_probe_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_transition_time: Option<String>,
}

/// The condition of a type.
pub(crate) fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// The condition of a type if its status is `True`.
pub(crate) fn is_true<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    condition(conditions, kind).filter(|condition| condition.status == "True")
}

/// The reason of a condition with the status `False`; empty if it gives none.
pub(crate) fn is_false<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a str> {
    let found = condition(conditions, kind).filter(|condition| condition.status == "False")?;
    Some(found.reason.as_deref().unwrap_or_default())
}

/// Reads labels or annotations and keeps those of the platform.
fn decided_on<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let mut all = Option::<BTreeMap<String, String>>::deserialize(deserializer)?.unwrap_or_default();
    all.retain(|name, _| {
        let prefix = name.split_once('/').map_or("", |(prefix, _)| prefix);
        prefix.ends_with("kubevirt.io")
            || prefix == "ferrovirt.io"
            || prefix == "volume.kubernetes.io"
            || name == "k8s.v1.cni.cncf.io/network-status"
            || name == "k8s.v1.cni.cncf.io/networks"
            || name == virt::state::LABEL
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn oldest_object_counts_by_time_and_then_by_uid() {
        let age = |created: &str, uid: &str| -> Age {
            serde_json::from_value(json!({"name": "n", "creationTimestamp": created, "uid": uid})).unwrap()
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        for (all, wanted) in [
            (vec![], None),
            (vec![age(late, "a"), age(early, "b")], Some(age(early, "b"))),
            (vec![age(early, "b"), age(late, "a")], Some(age(early, "b"))),
            (vec![age(early, "d"), age(early, "c")], Some(age(early, "c"))),
        ] {
            assert_eq!(oldest(all, |one| one), wanted);
        }
    }

    #[test]
    fn foreign_annotations_are_not_kept() {
        let meta: Meta = serde_json::from_value(json!({
            "name": "a",
            "labels": null,
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "cdi.kubevirt.io/storage.populatedFor": "a",
                "kubevirt.io/vm-generation": "1",
                "volume.kubernetes.io/selected-node": "n",
            },
            "managedFields": [{"manager": "x"}],
        }))
        .unwrap();
        assert_eq!(meta.annotations.len(), 3);
        assert_eq!(meta.annotation("kubevirt.io/vm-generation"), Some("1"));
        assert!(meta.labels.is_empty());
    }
}
