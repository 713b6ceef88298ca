//! Claims, PVs, classes and capacities, reduced to the fields that decide on a node.

use std::collections::{BTreeMap, BTreeSet};

use api::hostpath::{LEGACY_PROVISIONER, PROVISION_ON_NODE};
use cluster::Resource;
use serde_json::Value;

pub use crate::storage::resources::{CONTENTS, SNAPSHOTS};
pub use crate::storage::seen::snapshot::MANAGED_BY;

/// The driver of the volumes that agents make.
pub const DRIVER: &str = "kubevirt.io.hostpath-provisioner";
/// Label of claims and PVs: the node of the agent that serves them (virt-agent reads it).
pub const NODE_LABEL: &str = "ferrovirt.io/node";
/// Label of a VolumeSnapshotContent that names a snapshot by its handle: agents look for it in their pools (virt-agent reads it).
pub const UNASSIGNED: &str = "ferrovirt.io/unassigned";
/// Annotation of a claim: the node that was chosen for it.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a Node or PV, set by an administrator: `true` gives up the volumes of a node that does not come back.
pub const NODE_LOST: &str = "ferrovirt.io/node-lost";
/// Condition of a claim: the node of its volume is gone or not ready.
pub const UNAVAILABLE: &str = "ferrovirt.io/NodeUnavailable";
/// Finalizer of a PV: the agent or csi-provisioner of its node deletes the volume first.
pub const PROVISIONED: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Finalizer of a claim while clones of it are made.
pub const CLONED: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// Finalizer of a VolumeSnapshot while volumes are restored from it.
pub const RESTORED: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Key of the driver's topology.
const TOPOLOGY: &str = "topology.hostpath.csi/node";

/// Claims.
pub const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
/// PVs.
pub const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");
/// Nodes.
pub const NODES: Resource = Resource::cluster("", "v1", "nodes");
/// StorageClasses.
pub const CLASSES: Resource = Resource::cluster("storage.k8s.io", "v1", "storageclasses");
/// CSIStorageCapacities.
pub const CAPACITIES: Resource = Resource::namespaced("storage.k8s.io", "v1", "csistoragecapacities");
/// DaemonSets.
pub const DAEMON_SETS: Resource = Resource::namespaced("apps", "v1", "daemonsets");

/// Whether the driver makes the volumes of a provisioner.
fn is_ours(provisioner: &str) -> bool {
    [DRIVER, LEGACY_PROVISIONER].contains(&provisioner)
}

fn text(object: &Value, path: &str) -> Option<String> {
    object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn entry(object: &Value, path: &str, key: &str) -> Option<String> {
    let value = object.pointer(path)?.get(key)?.as_str()?;
    (!value.is_empty()).then(|| value.to_owned())
}

fn bytes(object: &Value, path: &str) -> Option<u64> {
    text(object, path).and_then(|text| api::quantity::bytes(&text).ok())
}

/// Whether an object has a finalizer.
fn is_held(object: &Value, finalizer: &str) -> bool {
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    all.is_some_and(|all| all.iter().any(|one| one == finalizer))
}

/// A claim; of a claim that is another driver's, its PV and source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Whether the driver is to make its volume, or made it.
    pub ours: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its uid.
    pub uid: String,
    /// Its StorageClass.
    pub class: Option<String>,
    /// The PV that it is bound to.
    pub volume: Option<String>,
    /// The node that was chosen.
    pub selected: Option<String>,
    /// The node that its label names.
    pub label: Option<String>,
    /// Bytes that it asks for.
    pub request: u64,
    /// The claim that it is a clone of.
    pub source: Option<String>,
    /// The VolumeSnapshot that it is restored from.
    pub snapshot: Option<String>,
    /// Whether another program fills it.
    pub other_source: bool,
    /// Whether it is kept for its clones.
    pub guarded: bool,
    /// Its condition that its node is not available: reason and message.
    pub unavailable: Option<(String, String)>,
}

impl From<&Value> for Claim {
    fn from(object: &Value) -> Self {
        let annotation = |key: &str| entry(object, "/metadata/annotations", key);
        let provisioner = annotation("volume.kubernetes.io/storage-provisioner")
            .or_else(|| annotation("volume.beta.kubernetes.io/storage-provisioner"));
        let kind = text(object, "/spec/dataSourceRef/kind").or_else(|| text(object, "/spec/dataSource/kind"));
        let name = text(object, "/spec/dataSourceRef/name").or_else(|| text(object, "/spec/dataSource/name"));
        let group = text(object, "/spec/dataSourceRef/apiGroup")
            .or_else(|| text(object, "/spec/dataSource/apiGroup"))
            .unwrap_or_default();
        let is_claim = kind.as_deref() == Some("PersistentVolumeClaim") && group.is_empty();
        let is_snapshot = kind.as_deref() == Some("VolumeSnapshot") && group == SNAPSHOTS.group;
        let volume = text(object, "/spec/volumeName");
        let (source, snapshot) = (name.clone().filter(|_| is_claim), name.filter(|_| is_snapshot));
        if !provisioner.as_deref().is_some_and(is_ours) {
            return Self { volume, source, snapshot, ..Self::default() };
        }
        Self {
            ours: true,
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            uid: text(object, "/metadata/uid").unwrap_or_default(),
            class: text(object, "/spec/storageClassName"),
            volume,
            selected: annotation(SELECTED_NODE).or_else(|| annotation(PROVISION_ON_NODE)),
            label: entry(object, "/metadata/labels", NODE_LABEL),
            request: bytes(object, "/spec/resources/requests/storage").unwrap_or(0),
            source,
            snapshot,
            other_source: kind.is_some() && !is_claim && !is_snapshot,
            guarded: is_held(object, CLONED),
            unavailable: unavailable(object),
        }
    }
}

/// A VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its VolumeSnapshotContent.
    pub content: Option<String>,
    /// Whether it is kept for the volumes that are restored from it.
    pub guarded: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
}

impl From<&Value> for Snapshot {
    fn from(object: &Value) -> Self {
        Self {
            content: text(object, "/status/boundVolumeSnapshotContentName"),
            guarded: is_held(object, RESTORED),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
        }
    }
}

/// A VolumeSnapshotContent or VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Its uid.
    pub uid: String,
    /// Whether it is the driver's and was not taken here, so that its node is not known.
    pub given: bool,
    /// The CSI handle of the driver's volume of which its snapshot is taken; of a group the first, as all are on one node.
    pub volume: Option<String>,
    /// The node that has its snapshot.
    pub node: Option<String>,
    /// Whether agents look for its snapshot.
    pub unassigned: bool,
}

impl From<&Value> for Content {
    fn from(object: &Value) -> Self {
        let ours = text(object, "/spec/driver").as_deref() == Some(DRIVER);
        Self {
            uid: text(object, "/metadata/uid").unwrap_or_default(),
            given: ours && text(object, "/spec/source/snapshotHandle").is_some(),
            volume: text(object, "/spec/source/volumeHandle")
                .or_else(|| text(object, "/spec/source/volumeHandles/0"))
                .filter(|_| ours),
            node: entry(object, "/metadata/labels", MANAGED_BY),
            unassigned: entry(object, "/metadata/labels", UNASSIGNED).is_some(),
        }
    }
}

fn unavailable(claim: &Value) -> Option<(String, String)> {
    let all = claim.pointer("/status/conditions").and_then(Value::as_array)?;
    let found = all.iter().find(|one| one["type"] == UNAVAILABLE)?;
    Some((text(found, "/reason")?, text(found, "/message")?))
}

/// Whether an administrator has given up a node, or a volume of it.
fn is_given_up(object: &Value) -> bool {
    entry(object, "/metadata/annotations", NODE_LOST).as_deref() == Some("true")
}

/// A PV; of one that is another driver's, nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Whether it is the driver's.
    pub ours: bool,
    /// Its uid.
    pub uid: String,
    /// Its CSI handle.
    pub handle: String,
    /// Its StorageClass.
    pub class: Option<String>,
    /// The node on which it can be used; `None` of a shared pool's.
    pub node: Option<String>,
    /// The node that its label names.
    pub label: Option<String>,
    /// The claim that it is bound to: namespace and name.
    pub claim: Option<(String, String)>,
    /// Whether its claim is gone and its reclaim policy is Delete.
    pub disposable: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// Whether an administrator has given it up.
    pub given_up: bool,
}

impl From<&Value> for Volume {
    fn from(object: &Value) -> Self {
        if text(object, "/spec/csi/driver").as_deref() != Some(DRIVER) {
            return Self::default();
        }
        let terms = object.pointer("/spec/nodeAffinity/required/nodeSelectorTerms").and_then(Value::as_array);
        let node = terms.into_iter().flatten().find_map(|term| {
            let all = term.get("matchExpressions").and_then(Value::as_array)?;
            let ours = all.iter().find(|one| text(one, "/key").as_deref() == Some(TOPOLOGY))?;
            text(ours, "/values/0")
        });
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        let deletes = text(object, "/spec/persistentVolumeReclaimPolicy").as_deref() == Some("Delete");
        Self {
            ours: true,
            uid: text(object, "/metadata/uid").unwrap_or_default(),
            handle: text(object, "/spec/csi/volumeHandle").unwrap_or_default(),
            class: text(object, "/spec/storageClassName"),
            node,
            label: entry(object, "/metadata/labels", NODE_LABEL),
            claim: text(object, "/spec/claimRef/namespace").zip(text(object, "/spec/claimRef/name")),
            disposable: deletes && text(object, "/status/phase").as_deref() == Some("Released"),
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            finalizers: finalizers
                .into_iter()
                .flatten()
                .filter_map(|one| one.as_str().map(str::to_owned))
                .collect(),
            given_up: is_given_up(object),
        }
    }
}

impl Volume {
    /// The node of the agent that serves it: one of a shared pool has it by its label only.
    pub fn served_by(&self) -> Option<&String> {
        self.node.as_ref().or(self.label.as_ref())
    }
}

/// A node: whether its agent can be expected to work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Whether it is ready.
    pub ready: bool,
    /// Since when it is, or is not.
    pub since: String,
    /// Whether no new pods are placed on it.
    pub cordoned: bool,
    /// Whether an administrator has given it up.
    pub given_up: bool,
}

impl From<&Value> for Node {
    fn from(object: &Value) -> Self {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions.into_iter().flatten().find(|one| one["type"] == "Ready");
        Self {
            ready: ready.is_some_and(|one| one["status"] == "True"),
            since: ready.and_then(|one| text(one, "/lastTransitionTime")).unwrap_or_default(),
            cordoned: object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
            given_up: is_given_up(object),
        }
    }
}

/// A StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Whether it is the driver's.
    pub ours: bool,
    /// Whether claims are bound before a pod uses them.
    pub immediate: bool,
    /// The nodes of its allowedTopologies; `None`: all nodes.
    pub allowed: Option<BTreeSet<String>>,
}

impl From<&Value> for Class {
    fn from(object: &Value) -> Self {
        Self {
            ours: text(object, "/provisioner").as_deref().is_some_and(is_ours),
            immediate: text(object, "/volumeBindingMode").as_deref() != Some("WaitForFirstConsumer"),
            allowed: allowed(object),
        }
    }
}

impl Class {
    /// Whether its volumes may be on a node.
    pub fn allows(&self, node: &str) -> bool {
        self.allowed.as_ref().is_none_or(|all| all.contains(node))
    }
}

/// The nodes of one of the terms of a class. The driver's topology has one key: a term with another key has no node, as for
/// csi-provisioner.
fn allowed(class: &Value) -> Option<BTreeSet<String>> {
    let terms = class.pointer("/allowedTopologies")?.as_array().filter(|terms| !terms.is_empty())?;
    let nodes = |one: &Value| {
        let values = one["values"].as_array().filter(|_| one["key"] == TOPOLOGY);
        values.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let of_term = |term: &Value| {
        let all = term["matchLabelExpressions"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().map(nodes).reduce(|a, b| &a & &b).unwrap_or_default()
    };
    Some(terms.iter().flat_map(of_term).collect())
}

/// The room that a node has left for a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// The StorageClass.
    pub class: String,
    /// The node; `None` of another driver's.
    pub node: Option<String>,
    /// Bytes of all volumes together.
    pub available: u64,
    /// Bytes of the largest volume.
    pub largest: Option<u64>,
}

impl From<&Value> for Capacity {
    fn from(object: &Value) -> Self {
        Self {
            class: text(object, "/storageClassName").unwrap_or_default(),
            node: entry(object, "/nodeTopology/matchLabels", TOPOLOGY),
            available: bytes(object, "/capacity").unwrap_or(0),
            largest: bytes(object, "/maximumVolumeSize"),
        }
    }
}

/// A DaemonSet: whether it has stock csi-provisioner for the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSet {
    /// Whether stock csi-provisioner serves the claims.
    pub provisions: bool,
}

impl From<&Value> for DaemonSet {
    fn from(object: &Value) -> Self {
        let containers = object.pointer("/spec/template/spec/containers").and_then(Value::as_array);
        let names: BTreeMap<String, ()> =
            containers.into_iter().flatten().filter_map(|one| Some((text(one, "/name")?, ()))).collect();
        Self {
            provisions: names.contains_key("hostpath-provisioner") && names.contains_key("csi-provisioner"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_allows_the_nodes_of_each_of_its_terms() {
        let one = |key: &str, values: &[&str]| json!({"key": key, "values": values});
        let term = |all: &[&Value]| json!({"matchLabelExpressions": all});
        let (n1, both) = (one(TOPOLOGY, &["n1"]), one(TOPOLOGY, &["n1", "n2"]));
        let n3 = one(TOPOLOGY, &["n3"]);
        let zone = one("topology.kubernetes.io/zone", &["n1"]);
        for (terms, expected) in [
            (json!(null), Some(["n1", "n2", "n3"].as_slice())),
            (json!([]), Some(&["n1", "n2", "n3"])),
            (json!([term(&[&n1])]), Some(&["n1"])),
            (json!([term(&[&n1, &both])]), Some(&["n1"])),
            (json!([term(&[&n1]), term(&[&n3])]), Some(&["n1", "n3"])),
            (json!([term(&[&zone])]), None),
            (json!([term(&[&both, &zone])]), None),
        ] {
            let class = Class::from(&json!({"provisioner": DRIVER, "allowedTopologies": terms}));
            let nodes: Vec<&str> = ["n1", "n2", "n3"].into_iter().filter(|node| class.allows(node)).collect();
            assert_eq!(nodes, expected.unwrap_or_default(), "{terms}");
        }
    }

    #[test]
    fn of_claims_of_other_drivers_only_the_source_is_kept() {
        let claim = |provisioner: &str| {
            Claim::from(&json!({
                "metadata": {
                    "uid": "u", "finalizers": [CLONED],
                    "annotations": {"volume.kubernetes.io/storage-provisioner": provisioner},
                },
                "spec": {
                    "storageClassName": "c",
                    "dataSource": {"apiGroup": SNAPSHOTS.group, "kind": "VolumeSnapshot", "name": "golden"},
                },
            }))
        };
        let snapshot = Some("golden".to_owned());
        let ours = claim(DRIVER);
        assert_eq!((ours.ours, ours.guarded, &ours.snapshot), (true, true, &snapshot));
        assert_eq!(claim("other"), Claim { snapshot, ..Claim::default() });
    }
    #[test]
    fn a_content_names_the_volume_of_which_its_snapshot_is_taken() {
        let content = |driver: &str, source: &Value| {
            Content::from(&json!({"spec": {"driver": driver, "source": source}}))
        };
        let taken = json!({"volumeHandle": "pvc-1"});
        assert_eq!(content(DRIVER, &taken).volume.as_deref(), Some("pvc-1"));
        assert_eq!(content("other", &taken), Content::default());
        assert_eq!(content(DRIVER, &json!({"snapshotHandle": "s"})).volume, None);
        let group = json!({"volumeHandles": ["pvc-1", "pvc-2"]});
        assert_eq!(content(DRIVER, &group).volume.as_deref(), Some("pvc-1"));
        assert_eq!(content("other", &group), Content::default());
        let elsewhere = content(DRIVER, &json!({"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "g"}}));
        assert_eq!(elsewhere, Content::default(), "its node is given with it");
        let volume = json!({"spec": {"csi": {"driver": DRIVER, "volumeHandle": "pvc-1"}}});
        assert_eq!(Volume::from(&volume).handle, "pvc-1");
    }
}
