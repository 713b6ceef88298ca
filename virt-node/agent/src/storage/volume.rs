//! The PV that is written for a claim: field by field what csi-provisioner writes, and the node's label. Pure.

use serde_json::{Map, Value, json};

use super::objects::{Claim, Class, FINALIZER, NODE_LABEL, PROVISIONED_BY};
use super::request;

/// Attribute that names the provisioner's process.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// The PV of a claim, of the volume that the driver made.
pub(super) fn object(
    claim: &Claim,
    class: &Class,
    made: &csi::Volume,
    driver: &str,
    identity: &str,
    node: &str,
) -> Value {
    let asked = claim.requested().unwrap_or(0);
    let capacity = u64::try_from(made.capacity_bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(asked);
    let mut attributes: Map<String, Value> =
        made.volume_context.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    attributes.insert(IDENTITY.to_owned(), json!(identity));
    let mut source = json!({
        "driver": driver,
        "volumeHandle": made.volume_id,
        "volumeAttributes": attributes,
    });
    if let Some(filesystem) = request::filesystem(claim, class) {
        put(&mut source, "fsType", json!(filesystem));
    }
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let mut metadata = json!({
        "name": request::name(claim),
        "labels": {NODE_LABEL: node},
        "annotations": {
            PROVISIONED_BY: driver,
            "volume.kubernetes.io/provisioner-deletion-secret-name": "",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
        },
    });
    if policy == "Delete" {
        put(&mut metadata, "finalizers", json!([FINALIZER]));
    }
    let mut spec = json!({
        "accessModes": claim.spec.access_modes,
        "capacity": {"storage": api::quantity::text(capacity)},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": claim.metadata.name,
            "namespace": claim.metadata.namespace,
            "resourceVersion": claim.metadata.resource_version,
            "uid": claim.metadata.uid,
        },
        "csi": source,
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": claim.spec.storage_class_name,
        "volumeMode": claim.spec.volume_mode.as_deref().unwrap_or("Filesystem"),
    });
    if !class.mount_options.is_empty() {
        put(&mut spec, "mountOptions", json!(class.mount_options));
    }
    if let Some(name) = &claim.spec.volume_attributes_class_name {
        put(&mut spec, "volumeAttributesClassName", json!(name));
    }
    if let Some(affinity) = affinity(&made.accessible_topology) {
        put(&mut spec, "nodeAffinity", affinity);
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec})
}

fn put(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// Where the volume can be used: one term for each topology, its keys in order.
fn affinity(topologies: &[csi::Topology]) -> Option<Value> {
    let terms: Vec<Value> = topologies
        .iter()
        .filter(|topology| !topology.segments.is_empty())
        .map(|topology| {
            let mut segments: Vec<_> = topology.segments.iter().collect();
            segments.sort();
            let all: Vec<Value> = segments
                .into_iter()
                .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
                .collect();
            json!({"matchExpressions": all})
        })
        .collect();
    (!terms.is_empty()).then(|| json!({"required": {"nodeSelectorTerms": terms}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn the_object_is_csi_provisioners() {
        let claim: Claim = serde_json::from_value(json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u1", "resourceVersion": "7"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "hostpath-csi", "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "200Mi"}},
            },
        }))
        .unwrap();
        let class = Class { reclaim_policy: Some("Delete".to_owned()), ..Class::default() };
        let made = csi::Volume {
            volume_id: "pvc-u1".to_owned(),
            capacity_bytes: 200 << 20,
            volume_context: HashMap::from([("storagePool".to_owned(), "legacy".to_owned())]),
            accessible_topology: vec![csi::Topology {
                segments: HashMap::from([("topology.hostpath.csi/node".to_owned(), "node1".to_owned())]),
            }],
            content_source: None,
        };
        let object = object(&claim, &class, &made, "driver", "1-2-driver-node1", "node1");
        let expected = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-u1",
                "labels": {"ferrovirt.io/node": "node1"},
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": "driver",
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "200Mi"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "namespace": "shop",
                    "resourceVersion": "7", "uid": "u1",
                },
                "csi": {
                    "driver": "driver", "volumeHandle": "pvc-u1", "fsType": "xfs",
                    "volumeAttributes": {
                        "storagePool": "legacy",
                        "storage.kubernetes.io/csiProvisionerIdentity": "1-2-driver-node1",
                    },
                },
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.hostpath.csi/node", "operator": "In", "values": ["node1"]},
                ]}]}},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "hostpath-csi",
                "volumeMode": "Filesystem",
            },
        });
        assert_eq!(object, expected);
    }
}
