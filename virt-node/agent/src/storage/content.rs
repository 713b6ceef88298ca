//! VolumeSnapshotContents as they are read, what is done about one, and the request and status that come of it: the work of
//! csi-snapshotter with `--node-deployment` and `--extra-create-metadata`. Pure.

use std::collections::{BTreeMap, HashMap};

use csi::CreateSnapshotRequest;
use serde::Deserialize;
use serde_json::{Value, json};

use super::objects::Metadata;

/// Label of the contents of a node; the snapshot controller sets it.
pub(super) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
/// Annotation while a call that makes the snapshot may run.
pub(super) const BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
/// Annotation of a content while its VolumeSnapshot is being deleted.
const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// Annotations of a content in a group: its snapshot is not made here.
const OF_GROUP: [&str; 2] = [
    "groupsnapshot.storage.kubernetes.io/volumeGroupSnapshotHandle",
    "groupsnapshot.storage.kubernetes.io/volume-group-snapshot-handle",
];
/// Finalizer of a content that has a snapshot.
pub(super) const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Keys of a class that are Kubernetes' and not the driver's.
const RESERVED: &str = "csi.storage.k8s.io/";

/// A VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Content {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
    pub(super) status: Option<Status>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    pub(super) driver: String,
    pub(super) deletion_policy: String,
    pub(super) source: Source,
    pub(super) volume_snapshot_ref: Of,
    pub(super) volume_snapshot_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Source {
    pub(super) volume_handle: Option<String>,
    pub(super) snapshot_handle: Option<String>,
}

/// The VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Of {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    pub(super) snapshot_handle: Option<String>,
    pub(super) ready_to_use: Option<bool>,
}

impl From<&Content> for Content {
    fn from(read: &Content) -> Self {
        read.clone()
    }
}

/// The next step for a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ForContent {
    /// Nothing.
    Nothing,
    /// The snapshot of this volume is made, or looked at again until it is ready.
    Create(String),
    /// The snapshot of this handle exists; its status is written.
    Adopt(String),
    /// The snapshot of this handle is deleted, then the content is let go.
    Delete(String),
    /// The content is let go; its snapshot, if there is one, stays.
    Release,
}

/// Decides about a content.
pub(super) fn for_content(content: &Content, driver: &str) -> ForContent {
    let annotation = |name: &str| content.metadata.annotations.contains_key(name);
    if content.spec.driver != driver || OF_GROUP.iter().any(|name| annotation(name)) {
        return ForContent::Nothing;
    }
    let status = content.status.as_ref();
    let handle = status
        .and_then(|status| status.snapshot_handle.clone())
        .or_else(|| content.spec.source.snapshot_handle.clone())
        .filter(|handle| !handle.is_empty());
    if content.metadata.deletion_timestamp.is_some() {
        let held = content.metadata.finalizers.iter().any(|name| name == FINALIZER);
        // A content that was bound goes when its VolumeSnapshot goes; a snapshot that may be in the making is waited for.
        let may_go = content.spec.volume_snapshot_ref.uid.is_empty() || annotation(BEING_DELETED);
        if !held || !may_go {
            return ForContent::Nothing;
        }
        return match (content.spec.deletion_policy.as_str(), handle, &content.spec.source.volume_handle) {
            ("Delete", Some(handle), _) => ForContent::Delete(handle),
            // Finished first, so that its handle is known.
            ("Delete", None, Some(volume)) if annotation(BEING_CREATED) => ForContent::Create(volume.clone()),
            _ => ForContent::Release,
        };
    }
    if status.and_then(|status| status.ready_to_use) == Some(true) {
        return ForContent::Nothing;
    }
    let source = &content.spec.source;
    match (&source.volume_handle, &source.snapshot_handle) {
        (Some(volume), _) => ForContent::Create(volume.clone()),
        (None, Some(handle)) => ForContent::Adopt(handle.clone()),
        (None, None) => ForContent::Nothing,
    }
}

/// The request that makes a content's snapshot; `parameters` are those of its class.
pub(super) fn request(
    content: &Content,
    volume: &str,
    parameters: &BTreeMap<String, String>,
) -> CreateSnapshotRequest {
    let of = &content.spec.volume_snapshot_ref;
    let own = parameters.iter().filter(|(key, _)| !key.starts_with(RESERVED));
    let mut all: HashMap<String, String> = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    for (key, value) in [
        ("volumesnapshot/name", &of.name),
        ("volumesnapshot/namespace", &of.namespace),
        ("volumesnapshotcontent/name", &content.metadata.name),
    ] {
        all.insert(format!("{RESERVED}{key}"), value.clone());
    }
    CreateSnapshotRequest {
        source_volume_id: volume.to_owned(),
        name: format!("snapshot-{}", of.uid),
        parameters: all,
        ..CreateSnapshotRequest::default()
    }
}

/// The status of a content after its snapshot was made.
pub(super) fn made(snapshot: &csi::Snapshot) -> Value {
    let time = snapshot
        .creation_time
        .as_ref()
        .map(|time| time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos)));
    let mut status = json!({
        "snapshotHandle": snapshot.snapshot_id,
        "readyToUse": snapshot.ready_to_use,
        "error": null,
    });
    if let Some(time) = time {
        status["creationTime"] = json!(time);
    }
    if snapshot.size_bytes > 0 {
        status["restoreSize"] = json!(snapshot.size_bytes);
    }
    json!({"status": status})
}

/// The status of a content after its snapshot could not be made.
pub(super) fn failed(message: &str, now: &str) -> Value {
    json!({"status": {"readyToUse": false, "error": {"message": message, "time": now}}})
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "kubevirt.io.hostpath-provisioner";

    fn content(changes: &[(&str, Value)]) -> Content {
        let mut object = json!({
            "metadata": {"name": "snapcontent-s1", "finalizers": [FINALIZER], "annotations": {}},
            "spec": {
                "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": "pvc-1"},
                "volumeSnapshotRef": {"name": "snap", "namespace": "shop", "uid": "s1"},
            },
        });
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_snapshot_is_made_until_it_is_ready_and_goes_with_its_volume_snapshot() {
        let going = ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        let marked = ("/metadata/annotations", json!({BEING_DELETED: "yes"}));
        let status = |ready: bool| ("/status", json!({"snapshotHandle": "h", "readyToUse": ready}));
        let create = ForContent::Create("pvc-1".to_owned());
        let delete = ForContent::Delete("h".to_owned());
        for (changes, expected) in [
            (vec![], create.clone()),
            (vec![status(false)], create.clone()),
            (vec![status(true)], ForContent::Nothing),
            (vec![("/status", json!({"readyToUse": false, "error": {}}))], create.clone()),
            (vec![("/spec/driver", json!("other"))], ForContent::Nothing),
            (vec![("/metadata/annotations", json!({OF_GROUP[0]: "g"}))], ForContent::Nothing),
            (vec![("/spec/source", json!({"snapshotHandle": "h"}))], ForContent::Adopt("h".to_owned())),
            (vec![status(true), going.clone()], ForContent::Nothing),
            (vec![status(true), going.clone(), marked.clone()], delete.clone()),
            (
                vec![status(true), going.clone(), marked.clone(), ("/metadata/finalizers", json!([]))],
                ForContent::Nothing,
            ),
            (
                vec![status(true), going.clone(), marked.clone(), ("/spec/deletionPolicy", json!("Retain"))],
                ForContent::Release,
            ),
            (vec![going.clone(), marked.clone()], ForContent::Release),
            (
                vec![
                    going.clone(),
                    ("/metadata/annotations", json!({BEING_DELETED: "yes", BEING_CREATED: "yes"})),
                ],
                create.clone(),
            ),
            (vec![status(true), going.clone(), ("/spec/volumeSnapshotRef", json!({}))], delete.clone()),
        ] {
            assert_eq!(for_content(&content(&changes), DRIVER), expected, "{changes:?}");
        }
    }

    #[test]
    fn request_and_status_are_the_sidecars() {
        let parameters = BTreeMap::from([
            ("copy".to_owned(), "true".to_owned()),
            ("csi.storage.k8s.io/snapshotter-secret-name".to_owned(), "x".to_owned()),
        ]);
        let request = request(&content(&[]), "pvc-1", &parameters);
        assert_eq!((request.name.as_str(), request.source_volume_id.as_str()), ("snapshot-s1", "pvc-1"));
        assert_eq!(request.parameters.len(), 4, "{:?}", request.parameters);
        assert_eq!(request.parameters["csi.storage.k8s.io/volumesnapshotcontent/name"], "snapcontent-s1");
        let snapshot = csi::Snapshot {
            size_bytes: 7,
            snapshot_id: "h".to_owned(),
            ready_to_use: true,
            ..csi::Snapshot::default()
        };
        assert_eq!(
            made(&snapshot),
            json!({"status": {"snapshotHandle": "h", "readyToUse": true, "restoreSize": 7, "error": null}})
        );
    }
}
