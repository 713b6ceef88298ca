//! The VolumeGroupSnapshotContent that a VolumeGroupSnapshot gets, and the objects of its members. Pure.

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::make::{Secrets, driver};
use super::super::seen::IN_GROUP;
use super::seen::{CONTENT, GROUPS, Group, GroupContent, Taken};
use crate::volumes::seen::{DRIVER, MANAGED_BY, Volume};

const SECRETS: Secrets = Secrets {
    parameters: [
        "csi.storage.k8s.io/group-snapshotter-secret-name",
        "csi.storage.k8s.io/group-snapshotter-secret-namespace",
    ],
    annotations: [
        "groupsnapshot.storage.kubernetes.io/deletion-secret-name",
        "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace",
    ],
    kind: "volumegroupsnapshot",
};
/// Annotation of a member's content: the handle of its group. Such a snapshot is made and deleted with the group only.
const OF_GROUP: &str = "groupsnapshot.storage.kubernetes.io/volumeGroupSnapshotHandle";

/// The content of a group of these claims and their PVs.
///
/// # Errors
/// When a claim is not bound to its PV, when the volumes are of different drivers or nodes, and when the class's Secret is not
/// named properly.
pub(super) fn content(g: &Group, class: &Value, members: &[(Value, Value)]) -> Result<Value, String> {
    let mut handles = Vec::with_capacity(members.len());
    let mut place: Option<(String, String)> = None;
    // Of a volume of a shared pool, which every node has.
    let mut shared = None;
    for (claim, volume) in members {
        let (name, driver) = (claim["metadata"]["name"].as_str().unwrap_or_default(), driver(claim, volume)?);
        if class["driver"] != driver {
            let (class, other) = (&class["metadata"]["name"], &class["driver"]);
            return Err(format!(
                "VolumeGroupSnapshotClass {class} is of driver {other}, and the volume of PVC {name} of {driver:?}"
            ));
        }
        handles.push(volume["spec"]["csi"]["volumeHandle"].clone());
        // Other drivers' sidecars take contents without the label of a node.
        let volume = Volume::from(volume);
        let Some(node) = volume.node.filter(|_| driver == DRIVER) else {
            shared = shared.or(volume.label.filter(|_| driver == DRIVER));
            continue;
        };
        match &place {
            Some((first, other)) if *other != node => {
                return Err(format!(
                    "the volume of PVC {first} is on node {other}, and that of PVC {name} on node {node}: the volumes \
                     of a group must be on one node"
                ));
            }
            Some(_) => {}
            None => place = Some((name.to_owned(), node)),
        }
    }
    let name = format!("groupsnapcontent-{}", g.meta.uid);
    let mut content = json!({
        "apiVersion": GROUPS.api_version(),
        "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": name, "finalizers": [CONTENT]},
        "spec": {
            "volumeGroupSnapshotRef": {
                "apiVersion": GROUPS.api_version(), "kind": "VolumeGroupSnapshot", "namespace": g.meta.namespace,
                "name": g.meta.name, "uid": g.meta.uid, "resourceVersion": g.meta.version,
            },
            "source": {"volumeHandles": handles},
            "volumeGroupSnapshotClassName": class["metadata"]["name"],
            "deletionPolicy": class["deletionPolicy"],
            "driver": class["driver"],
        },
    });
    if let Some(node) = place.map(|(_, node)| node).or(shared) {
        content["metadata"]["labels"] = json!({MANAGED_BY: node});
    }
    if let Some(annotations) = SECRETS.annotations(&g.meta, &name, class)? {
        content["metadata"]["annotations"] = annotations;
    }
    Ok(content)
}

/// The fields that are read of the PV of a member.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Source {
    spec: SourceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SourceSpec {
    csi: Handle,
    claim_ref: ClaimName,
    volume_mode: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Handle {
    driver: String,
    volume_handle: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ClaimName {
    name: String,
}

impl Source {
    /// Whether it has the volume of a content's snapshot.
    pub(super) fn is_of(&self, content: &GroupContent, taken: &Taken) -> bool {
        self.spec.csi.driver == content.driver && self.spec.csi.volume_handle == taken.volume
    }
}

/// Names of the VolumeSnapshot and VolumeSnapshotContent of a group's member.
pub(super) fn names(group: &str, taken: &Taken) -> [String; 2] {
    let digest = Sha256::new().chain_update(group).chain_update(&taken.volume).finalize();
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    ["snapshot", "snapcontent"].map(|kind| format!("{kind}-{digest}"))
}

/// The objects of a member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Its VolumeSnapshot.
    pub snapshot: Value,
    /// Its VolumeSnapshotContent.
    pub content: Value,
    /// The status of its content.
    pub status: Value,
    /// The status that binds the VolumeSnapshot.
    pub bound: Value,
}

/// The objects of a member; `source` is its PV, if it is still there.
pub(super) fn member(g: &Group, group: &GroupContent, taken: &Taken, source: Option<&Source>) -> Member {
    let [snapshot_name, content_name] = names(&g.meta.uid, taken);
    let claim = source.map(|source| source.spec.claim_ref.name.as_str()).unwrap_or_default();
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {
            "name": snapshot_name,
            "namespace": g.meta.namespace,
            "finalizers": [IN_GROUP],
            "ownerReferences": [{
                "apiVersion": GROUPS.api_version(), "kind": "VolumeGroupSnapshot", "name": g.meta.name,
                "uid": g.meta.uid,
            }],
        },
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    });
    let mut content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": content_name, "annotations": {OF_GROUP: group.handle}},
        "spec": {
            "volumeSnapshotRef": {
                "kind": "VolumeSnapshot", "namespace": g.meta.namespace, "name": snapshot_name,
            },
            "source": {"volumeHandle": taken.volume},
            "deletionPolicy": group.policy,
            "driver": group.driver,
        },
    });
    if let Some(mode) = source.and_then(|source| source.spec.volume_mode.as_ref()) {
        content["spec"]["sourceVolumeMode"] = json!(mode);
    }
    if let Some(node) = group.meta.labels.get(MANAGED_BY) {
        content["metadata"]["labels"] = json!({MANAGED_BY: node});
    }
    for key in SECRETS.annotations {
        if let Some(value) = group.meta.annotation(key) {
            let key = key.trim_start_matches("group");
            content["metadata"]["annotations"][key] = json!(value);
        }
    }
    let status = json!({
        "snapshotHandle": taken.snapshot, "volumeGroupSnapshotHandle": group.handle, "creationTime": taken.time,
        "restoreSize": taken.size, "readyToUse": taken.ready,
    });
    let bound =
        json!({"boundVolumeSnapshotContentName": content_name, "volumeGroupSnapshotName": g.meta.name});
    Member { snapshot, content, status, bound }
}
