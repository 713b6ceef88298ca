//! VolumeGroupSnapshotContents as they are read, what is done about one, and the request and status that come of it. Pure.

use std::collections::BTreeMap;

use cluster::Resource;
use csi::{CreateVolumeGroupSnapshotRequest, VolumeGroupSnapshot};
use serde::Deserialize;
use serde_json::{Value, json};

use super::content::{self, AnyContent, ForContent, Of};
use super::objects::{GROUP_CONTENTS, Metadata};

/// A VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct GroupContent {
    pub(super) metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    driver: String,
    deletion_policy: String,
    source: Source,
    volume_group_snapshot_ref: Of,
    volume_group_snapshot_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Source {
    volume_handles: Vec<String>,
    group_snapshot_handles: Option<Handles>,
}

/// A group that was taken elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Handles {
    volume_group_snapshot_handle: String,
    volume_snapshot_handles: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    volume_group_snapshot_handle: Option<String>,
    volume_snapshot_info_list: Vec<Member>,
    ready_to_use: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Member {
    snapshot_handle: String,
}

impl AnyContent for GroupContent {
    const RESOURCE: Resource = GROUP_CONTENTS;
    const KIND: &'static str = "VolumeGroupSnapshotContent";
    const CLASSES: Resource =
        Resource::cluster(GROUP_CONTENTS.group, GROUP_CONTENTS.version, "volumegroupsnapshotclasses");
    const FINALIZER: &'static str =
        "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
    const BEING_CREATED: &'static str =
        "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
    const BEING_DELETED: &'static str =
        "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn class(&self) -> Option<&str> {
        self.spec.volume_group_snapshot_class_name.as_deref()
    }

    fn policy(&self) -> &str {
        &self.spec.deletion_policy
    }

    fn of(&self) -> &Of {
        &self.spec.volume_group_snapshot_ref
    }

    fn is_ready(&self) -> bool {
        self.status.ready_to_use == Some(true)
    }
}

impl From<&GroupContent> for GroupContent {
    fn from(read: &GroupContent) -> Self {
        read.clone()
    }
}

impl GroupContent {
    /// Handles of the group's snapshots: those that the driver made, or that the content was given.
    pub(super) fn snapshots(&self) -> Vec<String> {
        if let Some(given) = &self.spec.source.group_snapshot_handles {
            return given.volume_snapshot_handles.clone();
        }
        self.status.volume_snapshot_info_list.iter().map(|one| one.snapshot_handle.clone()).collect()
    }
}

/// Decides about a content; its group is made of several volumes.
pub(super) fn for_group(content: &GroupContent, driver: &str) -> ForContent<Vec<String>> {
    if content.spec.driver != driver {
        return ForContent::Nothing;
    }
    let volumes = Some(content.spec.source.volume_handles.clone()).filter(|volumes| !volumes.is_empty());
    let given = content.spec.source.group_snapshot_handles.as_ref();
    let handle = content.status.volume_group_snapshot_handle.as_ref();
    let handle = handle.or(given.map(|given| &given.volume_group_snapshot_handle));
    content.next(volumes, handle.filter(|handle| !handle.is_empty()).cloned())
}

/// The request that makes a content's group; `parameters` are those of its class.
pub(super) fn request(
    content: &GroupContent,
    volumes: Vec<String>,
    parameters: &BTreeMap<String, String>,
) -> CreateVolumeGroupSnapshotRequest {
    CreateVolumeGroupSnapshotRequest {
        name: format!("groupsnapshot-{}", content.of().uid),
        source_volume_ids: volumes,
        parameters: content::parameters(content, parameters, "volumegroupsnapshot"),
        ..CreateVolumeGroupSnapshotRequest::default()
    }
}

/// The status of a content after its group was made.
pub(super) fn made(group: &VolumeGroupSnapshot) -> Value {
    let member = |snapshot: &csi::Snapshot| {
        json!({
            "volumeHandle": snapshot.source_volume_id,
            "snapshotHandle": snapshot.snapshot_id,
            "creationTime": content::taken_at(snapshot),
            "readyToUse": snapshot.ready_to_use,
            "restoreSize": snapshot.size_bytes,
        })
    };
    let members: Vec<Value> = group.snapshots.iter().map(member).collect();
    let mut status = json!({
        "volumeGroupSnapshotHandle": group.group_snapshot_id,
        "readyToUse": group.ready_to_use,
        "volumeSnapshotInfoList": members,
        "error": null,
    });
    if let Some(time) = group.creation_time.as_ref().and_then(|time| u64::try_from(time.seconds).ok()) {
        status["creationTime"] = json!(virt::time::text(time));
    }
    json!({"status": status})
}

/// The status of a content whose group was taken elsewhere: its snapshots have contents of their own.
pub(super) fn adopted(group: &VolumeGroupSnapshot) -> Value {
    let mut patch = made(group);
    if let Some(status) = patch["status"].as_object_mut() {
        status.remove("volumeSnapshotInfoList");
    }
    patch
}

/// The status of a content whose group is deleted.
pub(super) fn gone() -> Value {
    json!({"status": {
        "volumeGroupSnapshotHandle": null, "readyToUse": null, "creationTime": null, "error": null,
        "volumeSnapshotInfoList": null,
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "kubevirt.io.hostpath-provisioner";

    fn content(changes: &[(&str, Value)]) -> GroupContent {
        let mut object = json!({
            "metadata": {"name": "groupsnapcontent-g1", "finalizers": [GroupContent::FINALIZER], "annotations": {}},
            "spec": {
                "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandles": ["pvc-1", "pvc-2"]},
                "volumeGroupSnapshotRef": {"name": "group", "namespace": "shop", "uid": "g1"},
            },
        });
        for (pointer, value) in changes {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_group_is_made_until_it_is_ready_and_goes_with_its_volume_group_snapshot() {
        let going = ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        let marked = ("/metadata/annotations", json!({GroupContent::BEING_DELETED: "yes"}));
        let retained = ("/spec/deletionPolicy", json!("Retain"));
        let status = |ready: bool| {
            let members = json!([{"snapshotHandle": "s1"}, {"snapshotHandle": "s2"}]);
            (
                "/status",
                json!({"volumeGroupSnapshotHandle": "h", "readyToUse": ready, "volumeSnapshotInfoList": members}),
            )
        };
        let handles = json!({"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": ["g1", "g2"]});
        let given = ("/spec/source", json!({"groupSnapshotHandles": handles}));
        let both = json!({GroupContent::BEING_DELETED: "yes", GroupContent::BEING_CREATED: "yes"});
        let create = ForContent::Create(vec!["pvc-1".to_owned(), "pvc-2".to_owned()]);
        let delete = ForContent::Delete("h".to_owned());
        for (changes, expected) in [
            (vec![], create.clone()),
            (vec![status(false)], create.clone()),
            (vec![("/status", json!({"readyToUse": false, "error": {"message": "no"}}))], create.clone()),
            (vec![status(true)], ForContent::Nothing),
            (vec![("/spec/driver", json!("other"))], ForContent::Nothing),
            (vec![("/spec/source", json!({}))], ForContent::Nothing),
            (vec![given.clone()], ForContent::Adopt("gh".to_owned())),
            (vec![given.clone(), status(true)], ForContent::Nothing),
            (vec![given.clone(), going.clone(), marked.clone()], ForContent::Delete("gh".to_owned())),
            (vec![given.clone(), going.clone(), marked.clone(), retained.clone()], ForContent::Release),
            (vec![status(true), going.clone()], ForContent::Nothing),
            (vec![status(true), going.clone(), marked.clone()], delete),
            (vec![status(true), going.clone(), marked.clone(), retained], ForContent::Release),
            (vec![going.clone(), marked], ForContent::Release),
            (vec![going, ("/metadata/annotations", both)], create),
        ] {
            assert_eq!(for_group(&content(&changes), DRIVER), expected, "{changes:?}");
        }
        assert_eq!(content(&[status(true)]).snapshots(), ["s1", "s2"]);
        assert_eq!(content(&[given]).snapshots(), ["g1", "g2"]);
    }

    #[test]
    fn request_and_status_are_the_sidecars() {
        let parameters = BTreeMap::from([
            ("copy".to_owned(), "true".to_owned()),
            ("csi.storage.k8s.io/group-snapshotter-secret-name".to_owned(), "x".to_owned()),
        ]);
        let request = request(&content(&[]), vec!["pvc-1".to_owned()], &parameters);
        assert_eq!((request.name.as_str(), request.source_volume_ids.len()), ("groupsnapshot-g1", 1));
        assert_eq!(request.parameters.len(), 4, "{:?}", request.parameters);
        let name = &request.parameters["csi.storage.k8s.io/volumegroupsnapshotcontent/name"];
        assert_eq!(name, "groupsnapcontent-g1");
        let snapshot = csi::Snapshot {
            size_bytes: 7,
            snapshot_id: "s1".to_owned(),
            source_volume_id: "pvc-1".to_owned(),
            ready_to_use: true,
            ..csi::Snapshot::default()
        };
        let group = VolumeGroupSnapshot {
            group_snapshot_id: "h".to_owned(),
            snapshots: vec![snapshot],
            creation_time: None,
            ready_to_use: true,
        };
        let member = json!({
            "volumeHandle": "pvc-1", "snapshotHandle": "s1", "creationTime": null, "readyToUse": true,
            "restoreSize": 7,
        });
        assert_eq!(
            made(&group),
            json!({"status": {"volumeGroupSnapshotHandle": "h", "readyToUse": true, "error": null,
                "volumeSnapshotInfoList": [member]}})
        );
    }
}
