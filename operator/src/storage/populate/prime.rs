//! The prime claim: the target's twin without a data source, which the worker writes to.

use serde_json::{Map, Value, json};

use super::task::Task;
use crate::storage::names;
use crate::storage::seen::{Claim, Source};

/// The prime claim of a target, as it is created.
pub fn claim(target: &Claim, task: &Task) -> Value {
    let name = names::prime(&target.meta.uid);
    let mut annotations: Map<String, Value> = Map::new();
    let mut set = |name: &str, value: &str| annotations.insert(name.to_owned(), json!(value));
    set(names::IMMEDIATE, "");
    for copied in [names::SELECTED_NODE, names::RETAIN] {
        if let Some(value) = target.meta.annotation(copied) {
            set(copied, value);
        }
    }
    if let Some(source) = &target.source {
        set(names::POPULATOR_KIND, &source.kind);
    }
    set(names::CONTENT_TYPE, if task.archive { "archive" } else { "kubevirt" });
    set(names::PREALLOCATION_REQUESTED, &task.preallocation.to_string());
    match task.source {
        Source::Upload => set(names::UPLOAD_TARGET, ""),
        Source::Remote(_)
        | Source::Registry(_)
        | Source::Blank
        | Source::Claim { .. }
        | Source::Snapshot { .. }
        | Source::Reference { .. }
        | Source::Unsupported(_)
        | Source::Missing => set(names::IMPORT_POD, &names::importer_pod(&name)),
    };
    let mut spec = json!({
        "accessModes": target.modes,
        "volumeMode": if target.block { "Block" } else { "Filesystem" },
        "resources": {"requests": {"storage": target.size.to_string()}},
    });
    if !target.limits.is_empty() {
        spec["resources"]["limits"] = json!(target.limits);
    }
    if let Some(class) = &target.class {
        spec["storageClassName"] = json!(class);
    }
    // The volume becomes the target's, and Kubernetes binds no claim to a volume of another attributes class.
    if !target.attributes_class.is_empty() {
        spec["volumeAttributesClassName"] = json!(target.attributes_class);
    }
    let mut labels = json!({"app": names::APP, names::EXCLUDED_FROM_BACKUP: "true"});
    if !target.block {
        labels[names::FILLING_UP] = json!("disabled");
    }
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": target.meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner(target)],
        },
        "spec": spec,
    })
}

/// The owner reference to a claim.
pub fn owner(claim: &Claim) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.meta.name, "uid": claim.meta.uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prime_claim_has_the_targets_shape_and_no_data_source() {
        let target = Claim::from(&json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u", "annotations": {names::SELECTED_NODE: "node1"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "fast",
                "resources": {"requests": {"storage": "1Gi"}, "limits": {"storage": "2Gi"}},
                "volumeAttributesClassName": "gold",
                "dataSourceRef": {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "s"}},
        }));
        let task = Task {
            source: Source::Blank,
            archive: false,
            preallocation: false,
            owner_uid: "u".into(),
            priority: String::new(),
        };
        let prime = claim(&target, &task);
        assert_eq!(
            prime["spec"],
            json!({
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "fast",
                "resources": {"requests": {"storage": "1073741824"}, "limits": {"storage": "2Gi"}},
                "volumeAttributesClassName": "gold",
            })
        );
        let annotations = &prime["metadata"]["annotations"];
        assert_eq!(annotations[names::SELECTED_NODE], "node1");
        assert_eq!(annotations[names::IMPORT_POD], "importer-prime-u");
        assert_eq!(prime["metadata"]["labels"][names::EXCLUDED_FROM_BACKUP], "true");
        assert_eq!(prime["metadata"]["name"], "prime-u");
    }
}
