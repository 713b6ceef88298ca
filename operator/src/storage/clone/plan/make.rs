//! The objects that help with a clone, as they are created. Pure.

use serde_json::{Value, json};

use super::step::{From, Observed, restored, snapshot, temporary};
use crate::storage::clone::sender;
use crate::storage::names;
use crate::storage::seen::{Claim, Class, Snapshot};

/// The temporary snapshot.
pub(super) fn taken(o: &Observed<'_>, source: &Claim) -> Value {
    let class = o.profile.map(|profile| profile.snapshot_class.as_str()).unwrap_or_default();
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": sender::metadata(&snapshot(&o.target.meta.uid), &o.origin.namespace, o.target),
        "spec": {"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": source.meta.name}},
    })
}

/// The temporary claim that the driver fills: of the source's size where it can grow.
pub(super) fn filled(o: &Observed<'_>, size: u64, data: &Value) -> Value {
    let expands = o.class.is_some_and(|class| class.expands);
    let size = if expands && size > 0 { size } else { o.target.size.max(size) };
    let mut claim = shape(o, &o.origin.namespace, size);
    claim["spec"]["dataSource"] = data.clone();
    claim
}

/// The claim into which a snapshot is restored for a sender, whose pod is its consumer where no node is known.
pub(super) fn put_back(o: &Observed<'_>, source: &Snapshot, class: &Class) -> Value {
    let size = if source.size > 0 { source.size } else { o.target.size };
    let mut metadata = sender::metadata(&restored(&o.target.meta.uid), &o.origin.namespace, o.target);
    if let Some(node) = source.node.as_ref().filter(|_| class.waits_for_consumer) {
        metadata["annotations"][names::SELECTED_NODE] = json!(node);
    }
    let block = source.block.unwrap_or(o.target.block);
    let mut made = claim(&metadata, &json!(["ReadWriteOnce"]), block, Some(&class.meta.name), size);
    made["spec"]["dataSource"] = of_snapshot(source);
    made
}

/// The data source of a claim into which a snapshot is restored.
pub(super) fn of_snapshot(snapshot: &Snapshot) -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot.meta.name})
}

/// The temporary claim that a sender's bytes are put into.
pub(super) fn empty(o: &Observed<'_>) -> Value {
    let mut claim = shape(o, &o.target.meta.namespace, o.target.size);
    claim["metadata"]["annotations"][names::UPLOAD_TARGET] = json!("");
    claim
}

/// The node of the source, which a driver can clone it on.
pub(super) fn node_of_source<'a>(o: &Observed<'a>) -> Option<&'a str> {
    match o.from {
        From::Claim(source, volume, _) => {
            let chosen = source.meta.annotation(names::SELECTED_NODE);
            chosen.or_else(|| volume?.node.as_deref())
        }
        From::Snapshot(source, _) => source.node.as_deref(),
        From::Missing => None,
    }
}

fn shape(o: &Observed<'_>, namespace: &str, size: u64) -> Value {
    let mut metadata = sender::metadata(&temporary(&o.target.meta.uid), namespace, o.target);
    metadata["annotations"][names::IMMEDIATE] = json!("");
    let chosen = o.target.meta.annotation(names::SELECTED_NODE);
    if let Some(node) = chosen.or_else(|| node_of_source(o).filter(|_| namespace == o.origin.namespace)) {
        metadata["annotations"][names::SELECTED_NODE] = json!(node);
    }
    let (target, modes) = (o.target, json!(o.target.modes));
    let mut made = claim(&metadata, &modes, target.block, target.class.as_deref(), size);
    // The volume becomes the target's, and Kubernetes binds no claim to a volume of another attributes class.
    if !target.attributes_class.is_empty() {
        made["spec"]["volumeAttributesClassName"] = json!(target.attributes_class);
    }
    made
}

fn claim(metadata: &Value, modes: &Value, block: bool, class: Option<&str>, size: u64) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {
            "accessModes": modes,
            "volumeMode": if block { "Block" } else { "Filesystem" },
            "storageClassName": class,
            "resources": {"requests": {"storage": size.to_string()}},
        },
    })
}
