//! The API objects as far as this module decides on them, and the names that Kubernetes and its sidecars gave to their
//! fields. Unknown fields are not kept.

use std::collections::BTreeMap;

use api::hostpath::PROVISION_ON_NODE;
use cluster::Resource;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Kind, Result};

/// Claims.
pub(super) const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
/// PVs.
pub(super) const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");
/// StorageClasses.
pub(super) const CLASSES: Resource = Resource::cluster("storage.k8s.io", "v1", "storageclasses");
/// VolumeAttributesClasses.
pub(super) const ATTRIBUTES: Resource = Resource::cluster("storage.k8s.io", "v1", "volumeattributesclasses");
/// CSIStorageCapacities.
pub(super) const CAPACITIES: Resource = Resource::namespaced("storage.k8s.io", "v1", "csistoragecapacities");
/// VolumeSnapshots.
pub(super) const SNAPSHOTS: Resource =
    Resource::namespaced("snapshot.storage.k8s.io", "v1", "volumesnapshots");
/// VolumeSnapshotContents.
pub(super) const CONTENTS: Resource =
    Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents");

/// VolumeGroupSnapshotContents.
pub(super) const GROUP_CONTENTS: Resource =
    Resource::cluster("groupsnapshot.storage.k8s.io", "v1beta2", "volumegroupsnapshotcontents");

/// Label of claims and PVs: the node of the agent that serves them. The operator sets it on claims.
pub const NODE_LABEL: &str = "ferrovirt.io/node";
/// Annotation of a claim: the driver that makes its volume; and its older name.
pub(super) const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// Annotation of a claim: the node that the scheduler, or for Immediate claims the provisioner, chose.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a PV: the driver that made it.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Finalizer of a PV with the reclaim policy Delete.
pub(super) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Metadata of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) finalizers: Vec<String>,
    pub(super) deletion_timestamp: Option<String>,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Claim {
    pub(super) metadata: Metadata,
    pub(super) spec: ClaimSpec,
    pub(super) status: ClaimStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimSpec {
    pub(super) access_modes: Vec<String>,
    pub(super) storage_class_name: Option<String>,
    pub(super) volume_name: String,
    pub(super) volume_mode: Option<String>,
    pub(super) volume_attributes_class_name: Option<String>,
    pub(super) resources: Resources,
    pub(super) selector: Option<Value>,
    pub(super) data_source: Option<DataSource>,
    pub(super) data_source_ref: Option<DataSource>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    pub(super) requests: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClaimStatus {
    pub(super) phase: String,
    pub(super) capacity: BTreeMap<String, String>,
    pub(super) conditions: Vec<Value>,
    pub(super) allocated_resources: BTreeMap<String, String>,
    pub(super) allocated_resource_statuses: BTreeMap<String, String>,
    pub(super) current_volume_attributes_class_name: Option<String>,
    pub(super) modify_volume_status: Option<Modification>,
}

/// How far the change to another VolumeAttributesClass is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Modification {
    pub(super) target_volume_attributes_class_name: String,
    pub(super) status: String,
}

/// A VolumeAttributesClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AttributesClass {
    pub(super) driver_name: String,
    pub(super) parameters: BTreeMap<String, String>,
}

/// The source of a claim's content.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DataSource {
    pub(super) api_group: Option<String>,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
}

/// A StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Class {
    pub(super) metadata: Metadata,
    pub(super) provisioner: String,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) reclaim_policy: Option<String>,
    pub(super) mount_options: Vec<String>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Volume {
    pub(super) metadata: Metadata,
    pub(super) spec: VolumeSpec,
    pub(super) status: VolumeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct VolumeSpec {
    pub(super) csi: Option<Csi>,
    pub(super) persistent_volume_reclaim_policy: String,
    pub(super) node_affinity: Value,
    pub(super) capacity: BTreeMap<String, String>,
    pub(super) volume_mode: Option<String>,
    pub(super) claim_ref: Option<ClaimRef>,
    pub(super) access_modes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Csi {
    pub(super) driver: String,
    pub(super) volume_handle: String,
    pub(super) fs_type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ClaimRef {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct VolumeStatus {
    pub(super) phase: String,
}

/// Objects are kept as they were read: they have few fields.
macro_rules! kept_as_read {
    ($($kind:ty),*) => {
        $(impl From<&$kind> for $kind {
            fn from(read: &$kind) -> Self {
                read.clone()
            }
        })*
    };
}
kept_as_read!(Claim, Class, Volume);

impl Claim {
    /// The driver that is to make the volume.
    pub(super) fn provisioner(&self) -> Option<&str> {
        PROVISIONER.iter().find_map(|name| self.metadata.annotations.get(*name)).map(String::as_str)
    }

    /// The node that was chosen: by the scheduler, or for a legacy class by its user.
    pub(super) fn selected(&self) -> Option<&str> {
        let chosen = [SELECTED_NODE, PROVISION_ON_NODE].map(|name| self.metadata.annotations.get(name));
        chosen.into_iter().flatten().find(|node| !node.is_empty()).map(String::as_str)
    }

    /// Whether its user chose the node: the scheduler and the operator then choose no other one.
    pub(super) fn is_pinned(&self) -> bool {
        let chosen = self.metadata.annotations.get(SELECTED_NODE);
        chosen.is_none_or(String::is_empty) && self.selected().is_some()
    }

    /// Bytes that the claim asks for.
    pub(super) fn requested(&self) -> Option<u64> {
        self.spec.resources.requests.get("storage").and_then(|text| api::quantity::bytes(text).ok())
    }

    /// Whether it asks for a block device.
    pub(super) fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    /// The source of the volume's content.
    pub(super) fn source(&self) -> Option<&DataSource> {
        self.spec.data_source_ref.as_ref().or(self.spec.data_source.as_ref())
    }
}

impl AttributesClass {
    /// The parameters of the class `name` for the driver's volumes.
    ///
    /// # Errors
    /// When the class is another driver's.
    pub(super) fn parameters_of(self, name: &str, driver: &str) -> Result<BTreeMap<String, String>> {
        if self.driver_name != driver {
            let text = format!("VolumeAttributesClass {name:?} is of the driver {:?}", self.driver_name);
            return Err(Error::new(Kind::Content, text));
        }
        Ok(self.parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_pinned_by_its_users_annotation_alone() {
        for (annotations, node, pinned) in [
            (&[][..], None, false),
            (&[(SELECTED_NODE, "n1")], Some("n1"), false),
            (&[(PROVISION_ON_NODE, "n1")], Some("n1"), true),
            (&[(PROVISION_ON_NODE, "n1"), (SELECTED_NODE, "")], Some("n1"), true),
            (&[(PROVISION_ON_NODE, "n1"), (SELECTED_NODE, "n2")], Some("n2"), false),
        ] {
            let mut claim = Claim::default();
            claim.metadata.annotations =
                annotations.iter().map(|(name, node)| ((*name).to_owned(), (*node).to_owned())).collect();
            assert_eq!((claim.selected(), claim.is_pinned()), (node, pinned), "{annotations:?}");
        }
    }
}
