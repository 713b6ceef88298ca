//! Sources for claims that name them in `dataSourceRef`: `VolumeImportSource`, `VolumeUploadSource`,
//! `VolumeCloneSource`.

use super::{Checkpoint, DataVolumeSource};
use crate::core::TypedLocalReference;
use crate::resource::{Empty, ObjectMeta, resource};

resource! {
    /// Source for a claim whose `dataSourceRef` names this object: the claim is filled by an import.
    pub struct VolumeImportSource {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VolumeImportSource`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Source of the import.
        pub spec: VolumeImportSourceSpec ["x-required" = true],
        /// Unused.
        pub status: Option<Empty>,
    }

    /// Source of an import into a claim.
    pub struct VolumeImportSourceSpec {
        /// Stages of a multi-stage import, oldest first.
        pub checkpoints: Vec<Checkpoint>,
        /// `kubevirt` (default): a disk image. `archive`: the files of a tar archive.
        pub content_type: Option<String>,
        /// Whether the last entry of `checkpoints` completes the import.
        pub final_checkpoint: Option<bool>,
        /// Whether the volume is fully allocated. Default: as configured for the cluster.
        pub preallocation: Option<bool>,
        /// Location of the data.
        pub source: Option<DataVolumeSource> ["x-omit" = ["pvc", "snapshot", "upload"]],
        /// Claim that is filled, for multi-stage imports.
        pub target_claim: Option<String>,
    }

    /// Source for a claim whose `dataSourceRef` names this object: the claim is filled by an upload.
    pub struct VolumeUploadSource {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VolumeUploadSource`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Upload parameters.
        pub spec: VolumeUploadSourceSpec ["x-required" = true],
        /// Unused.
        pub status: Option<Empty>,
    }

    /// Parameters of an upload into a claim.
    pub struct VolumeUploadSourceSpec {
        /// `kubevirt` (default): a disk image. `archive`: the files of a tar archive.
        pub content_type: Option<String>,
        /// Whether the volume is fully allocated. Default: as configured for the cluster.
        pub preallocation: Option<bool>,
    }

    /// Source for a claim whose `dataSourceRef` names this object: the claim becomes a clone.
    pub struct VolumeCloneSource {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VolumeCloneSource`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Source of the clone.
        pub spec: VolumeCloneSourceSpec ["x-required" = true],
    }

    /// Source of a clone.
    pub struct VolumeCloneSourceSpec {
        /// Whether the volume is fully allocated. Default: as configured for the cluster.
        pub preallocation: Option<bool>,
        /// PriorityClass of the clone pods.
        pub priority_class_name: Option<String>,
        /// PersistentVolumeClaim or VolumeSnapshot in the same namespace.
        pub source: TypedLocalReference ["x-required" = true],
    }
}
