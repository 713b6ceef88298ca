//! `DataVolume`: a claim and the data that it is filled with.

use super::DataVolumeSource;
use crate::core::{ClaimResources, LabelSelector, TypedLocalReference, TypedReference};
use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Claim of a DataVolume and source of its data.
    pub struct DataVolumeSpec {
        /// Location of the data. Exactly one of `source` and `sourceRef` is set.
        pub source: Option<DataVolumeSource>,
        /// Claim, created as it is. Exactly one of `pvc` and `storage` is set.
        pub pvc: Option<StorageSpec>,
        /// Claim; omitted fields are completed from the storage profile of the class.
        pub storage: Option<StorageSpec> ["x-omit" = ["volumeAttributesClassName"]],
        /// `kubevirt` (default): a disk image. `archive`: the files of a tar archive.
        pub content_type: Option<String> ["enum" = ["kubevirt", "archive"]],
        /// Whether the volume is fully allocated. Default: as configured for the cluster.
        pub preallocation: Option<bool>,
        /// Stages of a multi-stage import, oldest first.
        pub checkpoints: Vec<Checkpoint>,
        /// Whether the last entry of `checkpoints` completes the import.
        pub final_checkpoint: Option<bool>,
        /// PriorityClass of the worker pods.
        pub priority_class_name: Option<String>,
        /// Object that holds the location of the data.
        pub source_ref: Option<DataSourceReference>,
        /// ServiceAccount of the worker pods.
        pub service_account_name: Option<String>,
    }

    /// Stage of a multi-stage import.
    pub struct Checkpoint {
        /// ID of the snapshot that is imported.
        pub current: String ["x-required" = true],
        /// ID of the snapshot before it; empty for the first.
        pub previous: String ["x-required" = true],
    }

    /// Claim of a DataVolume.
    pub struct StorageSpec {
        /// `ReadWriteOnce`, `ReadWriteMany`, `ReadOnlyMany` or `ReadWriteOncePod`.
        pub access_modes: Vec<String>,
        /// Capacity, in `requests.storage`. Clones with `storage` default to the source's.
        pub resources: Option<ClaimResources>,
        /// Storage class; on a standalone machine the name of a pool. Default: the default class.
        pub storage_class_name: Option<String>,
        /// `Filesystem` (default) or `Block`.
        pub volume_mode: Option<String>,
        /// Object in the same namespace that the volume is filled from.
        pub data_source: Option<TypedLocalReference>,
        /// Object that the volume is filled from, by a volume populator.
        pub data_source_ref: Option<TypedReference>,
        /// Labels that the PersistentVolume must have.
        pub selector: Option<LabelSelector>,
        /// VolumeAttributesClass of the volume.
        pub volume_attributes_class_name: Option<String>,
        /// PersistentVolume that the claim is bound to.
        pub volume_name: Option<String>,
    }

    /// Reference to the object that holds the location of the data.
    pub struct DataSourceReference {
        /// `DataSource`.
        pub kind: String ["x-required" = true],
        /// Name.
        pub name: String ["x-required" = true],
        /// Namespace. Default: that of the DataVolume.
        pub namespace: Option<String>,
    }

    /// Claim together with the data that it is filled with once.
    pub struct DataVolume {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `DataVolume`.
        pub kind: String,
        /// Name and namespace; the claim has the same name.
        pub metadata: ObjectMeta,
        /// Claim and source of the data.
        pub spec: DataVolumeSpec ["x-required" = true],
        /// Progress.
        pub status: Option<DataVolumeStatus>,
    }

    /// Progress of a DataVolume.
    pub struct DataVolumeStatus {
        /// `Pending`, `ImportScheduled`, `ImportInProgress`, `CloneInProgress`, `UploadReady`, `Succeeded`,
        /// `Failed` and others.
        pub phase: Option<String>,
        /// Percentage such as `42.0%`, or `N/A`.
        pub progress: Option<String>,
        /// Failed attempts of the worker.
        pub restart_count: Option<u32>,
        /// Name of the claim.
        pub claim_name: Option<String>,
        /// Conditions `Bound`, `Running` and `Ready`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
    }
}
