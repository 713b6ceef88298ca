//! State of a guest's volumes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BootFileStatus;
use crate::resource::{Absent, Quantity, resource};

/// Device name in the domain. The API server requires the field, also while the volume has no device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Target(pub String);

impl Absent for Target {}

#[cfg(feature = "crd")]
impl schemars::JsonSchema for Target {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Target".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string"})
    }
}

resource! {
    /// Volume that is replaced during a migration.
    pub struct MigratedVolume {
        /// New claim.
        #[serde(rename = "destinationPVCInfo")]
        pub destination_pvc_info: Option<ClaimInfo>,
        /// Old claim.
        #[serde(rename = "sourcePVCInfo")]
        pub source_pvc_info: Option<ClaimInfo>,
        /// Name of the volume.
        pub volume_name: String ["x-required" = true],
    }

    /// PersistentVolumeClaim of a volume.
    pub struct ClaimInfo {
        /// Name.
        pub claim_name: Option<String>,
        /// Access modes.
        pub access_modes: Vec<String>,
        /// Actual capacity, by resource name.
        pub capacity: BTreeMap<String, Quantity>,
        /// Share of the filesystem that is reserved.
        pub filesystem_overhead: Option<String> ["pattern" = r"^(0(?:\.\d{1,3})?|1)$"],
        /// Whether the disk image is fully allocated.
        pub preallocated: Option<bool>,
        /// Requested capacity, by resource name.
        pub requests: BTreeMap<String, Quantity>,
        /// `Filesystem` or `Block`.
        pub volume_mode: Option<String>,
    }

    /// Volume of a guest.
    pub struct VolumeStatus {
        /// Name of the volume in the spec.
        pub name: String ["x-required" = true],
        /// Device name in the domain, such as `vda`.
        pub target: Target ["x-required" = true],
        /// `Pending`, `Bound`, `AttachedToNode`, `MountedToPod`, `Ready`, `Detaching` or `UnMountedFromPod`.
        pub phase: Option<String>,
        /// Cause of the phase, one CamelCase word.
        pub reason: Option<String>,
        /// Explanation of the phase.
        pub message: Option<String>,
        /// Size in bytes.
        pub size: Option<u64>,
        /// Claim of the volume.
        pub persistent_volume_claim_info: Option<ClaimInfo>,
        /// Set for hotplugged volumes.
        pub hotplug_volume: Option<HotplugVolumeStatus>,
        /// Checksum of a container disk.
        pub container_disk_volume: Option<BootFileStatus>,
        /// State of a memory dump.
        pub memory_dump_volume: Option<MemoryDumpStatus>,
    }

    /// Attachment of a hotplugged volume.
    pub struct HotplugVolumeStatus {
        /// Pod that attaches the volume to the node.
        pub attach_pod_name: Option<String>,
        /// UID of that pod.
        #[serde(rename = "attachPodUID")]
        pub attach_pod_uid: Option<String>,
    }

    /// State of a memory dump.
    pub struct MemoryDumpStatus {
        /// Claim that holds the dump.
        pub claim_name: Option<String>,
        /// End time (RFC 3339).
        pub end_timestamp: Option<String> ["format" = "date-time"],
        /// Start time (RFC 3339).
        pub start_timestamp: Option<String> ["format" = "date-time"],
        /// Name of the dump file.
        pub target_file_name: Option<String>,
    }
}
