//! Parts of a VirtualMachine's status: requests, dumps, instance types, replaced volumes.

use super::{ClaimVolume, DataVolumeReference, Disk, MigratedVolume};
use crate::resource::resource;

resource! {
    /// Instance type or preference in use.
    pub struct FlavorStatus {
        /// Kind.
        pub kind: Option<String>,
        /// ControllerRevision that holds a copy of the object.
        pub controller_revision_ref: Option<ControllerRevisionReference>,
        /// Volume that the reference was inferred from.
        pub infer_from_volume: Option<String>,
        /// Reaction to a volume without the labels.
        pub infer_from_volume_failure_policy: Option<String>,
        /// Name.
        pub name: Option<String>,
    }

    /// ControllerRevision in the same namespace.
    pub struct ControllerRevisionReference {
        /// Name.
        pub name: Option<String>,
    }

    /// Requested memory dump.
    pub struct MemoryDumpRequest {
        /// Claim that holds the dump.
        pub claim_name: String ["x-required" = true],
        /// End time (RFC 3339).
        pub end_timestamp: Option<String> ["format" = "date-time"],
        /// Name of the dump file.
        pub file_name: Option<String>,
        /// Explanation of a failure.
        pub message: Option<String>,
        /// `Associating`, `InProgress`, `Unmounting`, `Completed`, `Dissociating` or `Failed`.
        pub phase: String ["x-required" = true],
        /// Whether the volume is to be removed.
        pub remove: Option<bool>,
        /// Start time (RFC 3339).
        pub start_timestamp: Option<String> ["format" = "date-time"],
    }

    /// Requested hotplug of a volume; one field is set.
    pub struct VolumeRequest {
        /// Volume to add.
        pub add_volume_options: Option<AddVolumeOptions>,
        /// Volume to remove.
        pub remove_volume_options: Option<RemoveVolumeOptions>,
    }

    /// Volume to add.
    pub struct AddVolumeOptions {
        /// Disk that the guest sees.
        pub disk: Disk ["x-required" = true],
        /// `All`: the request is only checked.
        pub dry_run: Vec<String>,
        /// Name of the volume and disk.
        pub name: String ["x-required" = true],
        /// Source of the volume.
        pub volume_source: HotplugVolumeSource ["x-required" = true],
    }

    /// Source of a hotplugged volume; one field is set.
    pub struct HotplugVolumeSource {
        /// DataVolume.
        pub data_volume: Option<DataVolumeReference>,
        /// PersistentVolumeClaim.
        pub persistent_volume_claim: Option<ClaimVolume>,
    }

    /// Volume to remove.
    pub struct RemoveVolumeOptions {
        /// `All`: the request is only checked.
        pub dry_run: Vec<String>,
        /// Name of the volume.
        pub name: String ["x-required" = true],
    }

    /// Whether a volume can be snapshotted.
    pub struct VolumeSnapshotStatus {
        /// Whether a snapshot is possible.
        pub enabled: bool ["x-required" = true],
        /// Name of the volume.
        pub name: String ["x-required" = true],
        /// Cause, if no snapshot is possible.
        pub reason: Option<String>,
    }

    /// State of replaced volumes.
    pub struct VolumeUpdateState {
        /// Volumes that are being migrated.
        pub volume_migration_state: Option<VolumeMigrationState>,
    }

    /// Volumes that are being migrated.
    pub struct VolumeMigrationState {
        /// Volumes with their old and new claims.
        pub migrated_volumes: Vec<MigratedVolume>,
    }
}
