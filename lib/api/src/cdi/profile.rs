//! `StorageProfile`: capabilities of a storage class.

use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Capabilities of a storage class, used to complete DataVolumes with `storage`. Has the name of the class.
    pub struct StorageProfile {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `StorageProfile`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Values set by the administrator.
        pub spec: StorageProfileSpec ["x-required" = true],
        /// Values in effect.
        pub status: Option<StorageProfileStatus>,
    }

    /// Storage class capabilities set by the administrator.
    pub struct StorageProfileSpec {
        /// Access mode and volume mode combinations that the class supports, preferred first.
        pub claim_property_sets: Vec<ClaimPropertySet> ["maxItems" = 8],
        /// `copy`, `snapshot` or `csi-clone`.
        pub clone_strategy: Option<String>,
        /// `pvc` or `snapshot`: form in which regular imports are kept.
        pub data_import_cron_source_format: Option<String>,
        /// VolumeSnapshotClass for snapshots of the class.
        pub snapshot_class: Option<String>,
    }

    /// Access modes and volume mode of a claim.
    pub struct ClaimPropertySet {
        /// Access modes.
        pub access_modes: Vec<String> ["x-required" = true, "maxItems" = 4, "x-kubernetes-validations" = [{"rule": "self.all(am, am in ['ReadWriteOnce', 'ReadOnlyMany', 'ReadWriteMany', 'ReadWriteOncePod'])"}]],
        /// Volume mode.
        pub volume_mode: String ["x-required" = true, "enum" = ["Block", "Filesystem"]],
    }

    /// Storage class capabilities in effect.
    pub struct StorageProfileStatus {
        /// Access mode and volume mode combinations, preferred first.
        pub claim_property_sets: Vec<ClaimPropertySet> ["maxItems" = 8],
        /// `copy`, `snapshot` or `csi-clone`.
        pub clone_strategy: Option<String>,
        /// Condition `Recognized`: whether the provisioner's capabilities are known.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// `pvc` or `snapshot`: form in which regular imports are kept.
        pub data_import_cron_source_format: Option<String>,
        /// Provisioner of the storage class.
        pub provisioner: Option<String>,
        /// VolumeSnapshotClass for snapshots of the class.
        pub snapshot_class: Option<String>,
        /// Name of the storage class.
        pub storage_class: Option<String>,
    }
}
