//! The group hostpathprovisioner.kubevirt.io: `HostPathProvisioner`, the node-local storage of a cluster.
//!
//! Not here: what the settings do.

use std::collections::BTreeMap;

use crate::cdi::StorageSpec;
use crate::core::NodePlacement;
use crate::resource::{Condition, ObjectMeta, Quantity, resource};

/// Group and version as objects write them.
pub const API_VERSION: &str = "hostpathprovisioner.kubevirt.io/v1beta1";
/// Group.
pub const GROUP: &str = "hostpathprovisioner.kubevirt.io";
/// Name of the object that an installation makes; any name has an effect, and the oldest object counts.
pub const NAME: &str = "hostpath-provisioner";

/// Name of upstream's provisioner without CSI. Claims of its StorageClasses get volumes of the CSI driver.
pub const LEGACY_PROVISIONER: &str = "kubevirt.io/hostpath-provisioner";
/// Annotation of a claim of a legacy StorageClass: the node that makes its volume.
pub const PROVISION_ON_NODE: &str = "kubevirt.io/provisionOnNode";

/// Service of the Kubernetes SnapshotMetadata API on the nodes.
pub const METADATA_SERVICE: &str = "hpp-snapshot-metadata";
/// Its port.
pub const METADATA_PORT: u16 = 8188;
/// Audience of tokens.
pub const METADATA_AUDIENCE: &str = "kubevirt.io.hostpath-provisioner";

resource! {
    /// Node-local storage: the CSI driver on every node, and its pools.
    pub struct HostPathProvisioner {
        /// `hostpathprovisioner.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `HostPathProvisioner`.
        pub kind: String,
        /// Name.
        pub metadata: ObjectMeta,
        /// Pools and placement.
        pub spec: HostPathSpec,
        /// Conditions, versions and pools. It is written with the object: the kind has no status subresource.
        pub status: Option<HostPathStatus>,
    }

    /// Pools and placement; exactly one of `pathConfig` and `storagePools` is set.
    pub struct HostPathSpec {
        /// Features that are switched on: `Snapshotting`.
        pub feature_gates: Vec<String> ["x-kubernetes-list-type" = "set"],
        /// `Always`, `IfNotPresent` or `Never`; `IfNotPresent` by default.
        pub image_pull_policy: Option<String>,
        /// One directory of each node, as the pool `legacy`.
        pub path_config: Option<PathConfig>,
        /// Pools of each node.
        pub storage_pools: Vec<StoragePool>,
        /// Nodes with storage.
        pub workload: Option<NodePlacement>,
    }

    /// One directory of each node.
    pub struct PathConfig {
        /// Directory on the node; volumes are in its subdirectory `csi`.
        pub path: Option<String>,
        /// Whether directories of the legacy provisioner are named after their claims, too. It has no effect on those
        /// of the CSI driver.
        pub use_naming_prefix: Option<bool>,
    }

    /// Pool of each node.
    pub struct StoragePool {
        /// Name, at most 50 characters; StorageClasses refer to it by their parameter `storagePool`.
        pub name: String ["x-required" = true],
        /// StorageClass of a pool with one volume for all nodes; `hpp-overlay` by default.
        pub overlay_class_name: Option<String>,
        /// Directory on the node, at most 255 characters; volumes are in its subdirectory `csi`.
        pub path: String ["x-required" = true],
        /// Claim that is made for each node; its volume is mounted at the path.
        pub pvc_template: Option<StorageSpec>,
        /// How snapshots are made: `reflink`.
        pub snapshot_provider: Option<String>,
    }

    /// State of the storage.
    pub struct HostPathStatus {
        /// Conditions `Available`, `Progressing` and `Degraded`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// Installed version.
        pub observed_version: Option<String>,
        /// Version of the operator.
        pub operator_version: Option<String>,
        /// Pools of claims.
        pub storage_pool_statuses: Vec<StoragePoolStatus>,
        /// Version that is being installed.
        pub target_version: Option<String>,
    }

    /// State of a pool.
    pub struct StoragePoolStatus {
        /// Claims of the pool.
        pub claim_statuses: Vec<PoolClaim>,
        /// Nodes on which the pool is mounted.
        pub current_ready: i64,
        /// Nodes on which it should be.
        pub desired_ready: i64,
        /// Name of the pool.
        pub name: String ["x-required" = true],
        /// `Preparing`, `Mounting` or `Ready`.
        pub phase: String ["x-required" = true],
    }

    /// Claim of a pool.
    pub struct PoolClaim {
        /// Name.
        pub name: String ["x-required" = true],
        /// Status of the claim, as Kubernetes reports it.
        pub status: ClaimStatus ["x-required" = true],
    }

    /// Status of a claim.
    pub struct ClaimStatus {
        /// Access modes of its volume.
        pub access_modes: Vec<String>,
        /// State of each resource that is being resized.
        pub allocated_resource_statuses: BTreeMap<String, String>,
        /// Sizes that are allocated.
        pub allocated_resources: BTreeMap<String, Quantity>,
        /// Sizes of its volume.
        pub capacity: BTreeMap<String, Quantity>,
        /// Conditions of the claim.
        pub conditions: Vec<Condition> ["x-omit" = ["lastHeartbeatTime"], "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]],
        /// VolumeAttributesClass in effect.
        pub current_volume_attributes_class_name: Option<String>,
        /// Change of the VolumeAttributesClass.
        pub modify_volume_status: Option<ModifyVolumeStatus>,
        /// `Pending`, `Bound` or `Lost`.
        pub phase: Option<String>,
    }

    /// Change of a VolumeAttributesClass.
    pub struct ModifyVolumeStatus {
        /// `Pending`, `InProgress` or `Infeasible`.
        pub status: String ["x-required" = true],
        /// VolumeAttributesClass that is wanted.
        pub target_volume_attributes_class_name: Option<String>,
    }
}
