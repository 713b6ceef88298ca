//! VolumeSnapshotContents as they are read, what is done about one, and the request and status that come of it: the work of
//! csi-snapshotter with `--node-deployment` and `--extra-create-metadata`. Pure.

use std::collections::{BTreeMap, HashMap};

use cluster::Resource;
use csi::CreateSnapshotRequest;
use serde::Deserialize;
use serde_json::{Value, json};

use super::objects::{CONTENTS, Metadata};

/// Label of the contents of a node; the snapshot controller sets it.
pub(super) const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
/// Label of contents that name a snapshot by its handle, until the node that has it is found; the operator sets it.
pub(super) const UNASSIGNED: &str = "ferrovirt.io/unassigned";
/// Annotations of a content in a group: its snapshot is made and deleted with the group.
const OF_GROUP: [&str; 2] = [
    "groupsnapshot.storage.kubernetes.io/volumeGroupSnapshotHandle",
    "groupsnapshot.storage.kubernetes.io/volume-group-snapshot-handle",
];
/// Keys of a class that are Kubernetes' and not the driver's.
const RESERVED: &str = "csi.storage.k8s.io/";

/// What contents of snapshots and of groups have in common.
pub(super) trait AnyContent: for<'a> Deserialize<'a> {
    /// The collection of its kind.
    const RESOURCE: Resource;
    /// Its kind.
    const KIND: &'static str;
    /// The kind of its class.
    const CLASSES: Resource;
    /// Finalizer of a content that has a snapshot.
    const FINALIZER: &'static str;
    /// Annotation while a call that makes the snapshot may run.
    const BEING_CREATED: &'static str;
    /// Annotation of a content while its VolumeSnapshot or VolumeGroupSnapshot is being deleted.
    const BEING_DELETED: &'static str;

    /// Its metadata.
    fn metadata(&self) -> &Metadata;
    /// The name of its class.
    fn class(&self) -> Option<&str>;
    /// Its `spec.deletionPolicy`.
    fn policy(&self) -> &str;
    /// What it refers to.
    fn of(&self) -> &Of;
    /// Whether its snapshot can be restored, as its status says.
    fn is_ready(&self) -> bool;

    /// Whether it has an annotation.
    fn says(&self, annotation: &str) -> bool {
        self.metadata().annotations.contains_key(annotation)
    }

    /// Whether it is deleted and waits for this agent. A content that was bound goes when its VolumeSnapshot goes.
    fn may_go(&self) -> bool {
        let held = self.metadata().finalizers.iter().any(|name| name == Self::FINALIZER);
        let free = self.of().uid.is_empty() || self.says(Self::BEING_DELETED);
        self.metadata().deletion_timestamp.is_some() && held && free
    }

    /// The next step for it: `source` is what its snapshot is to be made of, `handle` its snapshot.
    fn next<S>(&self, source: Option<S>, handle: Option<String>) -> ForContent<S> {
        if self.metadata().deletion_timestamp.is_none() {
            return match (source, handle) {
                _ if self.is_ready() => ForContent::Nothing,
                (Some(source), _) => ForContent::Create(source),
                (None, Some(handle)) => ForContent::Adopt(handle),
                (None, None) => ForContent::Nothing,
            };
        }
        match (self.policy(), handle, source) {
            _ if !self.may_go() => ForContent::Nothing,
            ("Delete", Some(handle), _) => ForContent::Delete(handle),
            // Finished first, so that its handle is known.
            ("Delete", None, Some(source)) if self.says(Self::BEING_CREATED) => ForContent::Create(source),
            _ => ForContent::Release,
        }
    }
}

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

/// The VolumeSnapshot or VolumeGroupSnapshot.
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

impl AnyContent for Content {
    const RESOURCE: Resource = CONTENTS;
    const KIND: &'static str = "VolumeSnapshotContent";
    const CLASSES: Resource = Resource::cluster(CONTENTS.group, CONTENTS.version, "volumesnapshotclasses");
    const FINALIZER: &'static str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
    const BEING_CREATED: &'static str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    const BEING_DELETED: &'static str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn class(&self) -> Option<&str> {
        self.spec.volume_snapshot_class_name.as_deref()
    }

    fn policy(&self) -> &str {
        &self.spec.deletion_policy
    }

    fn of(&self) -> &Of {
        &self.spec.volume_snapshot_ref
    }

    fn is_ready(&self) -> bool {
        self.status.as_ref().and_then(|status| status.ready_to_use) == Some(true)
    }
}

impl From<&Content> for Content {
    fn from(read: &Content) -> Self {
        read.clone()
    }
}

/// The next step for a content whose snapshot is made of `S`: a volume, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ForContent<S> {
    /// Nothing.
    Nothing,
    /// The snapshot is made, or looked at again until it is ready.
    Create(S),
    /// The snapshot of this handle exists; its status is written.
    Adopt(String),
    /// The snapshot of this handle is deleted, then the content is let go.
    Delete(String),
    /// The content is let go; its snapshot, if there is one, stays.
    Release,
}

/// Decides about a content.
pub(super) fn for_content(content: &Content, driver: &str) -> ForContent<String> {
    if content.spec.driver != driver {
        return ForContent::Nothing;
    }
    if OF_GROUP.iter().any(|name| content.says(name)) {
        return if content.may_go() { ForContent::Release } else { ForContent::Nothing };
    }
    let source = &content.spec.source;
    let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
    let handle = handle.or_else(|| source.snapshot_handle.clone()).filter(|handle| !handle.is_empty());
    content.next(source.volume_handle.clone(), handle)
}

/// The handle of the snapshot of a content without a node.
pub(super) fn unassigned<'a>(content: &'a Content, driver: &str) -> Option<&'a str> {
    let handle = content.spec.source.snapshot_handle.as_deref();
    handle.filter(|handle| content.spec.driver == driver && !handle.is_empty())
}

/// The labels of a content, which is of this version, once this node was found to have its snapshot.
pub(super) fn assigned(content: &Content, node: &str) -> Value {
    json!({"metadata": {
        "resourceVersion": content.metadata.resource_version,
        "labels": {MANAGED_BY: node, UNASSIGNED: null},
    }})
}

/// Parameters of a request: those of the class that are the driver's, and the names of the objects; `kind` is that of the
/// snapshot in keys.
pub(super) fn parameters<T: AnyContent>(
    content: &T,
    of_class: &BTreeMap<String, String>,
    kind: &str,
) -> HashMap<String, String> {
    let of = content.of();
    let own = of_class.iter().filter(|(key, _)| !key.starts_with(RESERVED));
    let mut all: HashMap<String, String> = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    for (key, value) in
        [("/name", &of.name), ("/namespace", &of.namespace), ("content/name", &content.metadata().name)]
    {
        all.insert(format!("{RESERVED}{kind}{key}"), value.clone());
    }
    all
}

/// The request that makes a content's snapshot; `parameters` are those of its class.
pub(super) fn request(
    content: &Content,
    volume: &str,
    parameters: &BTreeMap<String, String>,
) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        source_volume_id: volume.to_owned(),
        name: format!("snapshot-{}", content.spec.volume_snapshot_ref.uid),
        parameters: self::parameters(content, parameters, "volumesnapshot"),
        ..CreateSnapshotRequest::default()
    }
}

/// Nanoseconds since 1970 at which a snapshot was taken.
pub(super) fn taken_at(snapshot: &csi::Snapshot) -> Option<i64> {
    let time = snapshot.creation_time.as_ref()?;
    Some(time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos)))
}

/// The status of a content after its snapshot was made.
pub(super) fn made(snapshot: &csi::Snapshot) -> Value {
    let mut status = json!({
        "snapshotHandle": snapshot.snapshot_id,
        "readyToUse": snapshot.ready_to_use,
        "error": null,
    });
    if let Some(time) = taken_at(snapshot) {
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
            "metadata": {"name": "snapcontent-s1", "finalizers": [Content::FINALIZER], "annotations": {}},
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
        let marked = ("/metadata/annotations", json!({Content::BEING_DELETED: "yes"}));
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
            (
                vec![
                    status(true),
                    going.clone(),
                    ("/metadata/annotations", json!({OF_GROUP[0]: "g", Content::BEING_DELETED: "yes"})),
                ],
                ForContent::Release,
            ),
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
                    (
                        "/metadata/annotations",
                        json!({Content::BEING_DELETED: "yes", Content::BEING_CREATED: "yes"}),
                    ),
                ],
                create.clone(),
            ),
            (vec![status(true), going.clone(), ("/spec/volumeSnapshotRef", json!({}))], delete.clone()),
        ] {
            assert_eq!(for_content(&content(&changes), DRIVER), expected, "{changes:?}");
        }
    }

    #[test]
    fn only_snapshots_of_the_driver_are_looked_for() {
        let given = ("/spec/source", json!({"snapshotHandle": "h"}));
        for (changes, expected) in [
            (vec![given.clone()], Some("h")),
            (vec![given, ("/spec/driver", json!("other"))], None),
            (vec![("/spec/source", json!({"snapshotHandle": ""}))], None),
            (vec![], None),
        ] {
            assert_eq!(unassigned(&content(&changes), DRIVER), expected, "{changes:?}");
        }
        let found = content(&[("/metadata/resourceVersion", json!("7"))]);
        assert_eq!(
            assigned(&found, "node1"),
            json!({"metadata": {"resourceVersion": "7", "labels": {MANAGED_BY: "node1", UNASSIGNED: null}}})
        );
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
