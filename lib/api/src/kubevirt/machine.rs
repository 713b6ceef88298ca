//! `VirtualMachine`: a virtual machine, running or not.

use std::collections::BTreeMap;

use super::{
    ChangedBlockTrackingStatus, FlavorStatus, MemoryDumpRequest, VirtualMachineInstanceSpec, VolumeRequest,
    VolumeSnapshotStatus, VolumeUpdateState,
};
use crate::cdi::DataVolumeSpec;
use crate::resource::{Condition, Empty, ObjectMeta, resource};

resource! {
    /// Virtual machine, running or not. Each run is a VirtualMachineInstance of the same name.
    pub struct VirtualMachine {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachine`.
        pub kind: String,
        /// Name, namespace and labels.
        pub metadata: ObjectMeta,
        /// Requested state.
        pub spec: VirtualMachineSpec ["x-required" = true],
        /// Actual state.
        pub status: Option<VirtualMachineStatus>,
    }

    /// Requested state of a VM.
    pub struct VirtualMachineSpec {
        /// Deprecated: `true` is `runStrategy: Always`, `false` is `Halted`. Exactly one of the two fields is set.
        pub running: Option<bool>,
        /// `Always`, `Halted`, `Manual`, `RerunOnFailure`, `Once` or `WaitAsReceiver`.
        pub run_strategy: Option<String>,
        /// Configuration of each run.
        pub template: Template ["x-required" = true],
        /// DataVolumes that are created and deleted with the VM.
        pub data_volume_templates: Vec<DataVolumeTemplate>,
        /// Instance type that sets CPU, memory and related fields.
        pub instancetype: Option<FlavorReference>,
        /// Preference that sets defaults for devices and firmware.
        pub preference: Option<FlavorReference>,
        /// Handling of replaced volumes: `Replacement` (at the next start) or `Migration` (live).
        pub update_volumes_strategy: Option<String>,
    }

    /// DataVolume that is created and deleted with the VM.
    pub struct DataVolumeTemplate {
        /// Name, labels and annotations.
        pub metadata: ObjectMeta ["x-kubernetes-preserve-unknown-fields" = true],
        /// Claim and source of the data.
        pub spec: DataVolumeSpec ["x-required" = true],
        /// `cdi.kubevirt.io/v1beta1`; may be omitted.
        pub api_version: Option<String>,
        /// `DataVolume`; may be omitted.
        pub kind: Option<String>,
        /// Ignored.
        pub status: Option<Empty>,
    }

    /// Reference to an instance type or a preference.
    pub struct FlavorReference {
        /// Kind. Default: the cluster-wide one.
        pub kind: Option<String>,
        /// Volume whose labels name the instance type or preference.
        pub infer_from_volume: Option<String>,
        /// `Reject` (default) or `Ignore`: reaction to a volume without the labels.
        pub infer_from_volume_failure_policy: Option<String>,
        /// Name.
        pub name: Option<String>,
        /// ControllerRevision that holds a copy of the object.
        pub revision_name: Option<String>,
    }

    /// Configuration of each run.
    pub struct Template {
        /// Labels and annotations of the instance.
        pub metadata: ObjectMeta ["x-kubernetes-preserve-unknown-fields" = true],
        /// Configuration of the guest.
        pub spec: VirtualMachineInstanceSpec,
    }

    /// Actual state of a VM.
    pub struct VirtualMachineStatus {
        /// Summary: `Stopped`, `Provisioning`, `Starting`, `Running`, `Paused`, `Stopping`, `Terminating`,
        /// `CrashLoopBackOff` and others.
        pub printable_status: Option<String> ["x-default" = "Stopped"],
        /// Whether an instance exists.
        pub created: Option<bool>,
        /// Whether the instance is ready.
        pub ready: Option<bool>,
        /// Effective run strategy.
        pub run_strategy: Option<String>,
        /// Conditions `Ready`, `Failure`, `RestartRequired`, and copies of the instance's.
        pub conditions: Vec<Condition> ["x-omit" = ["lastHeartbeatTime"]],
        /// Requests to start or stop that are not yet fulfilled.
        pub state_change_requests: Vec<StateChangeRequest>,
        /// Consecutive failed starts.
        pub start_failure: Option<StartFailure>,
        /// `metadata.generation` of the spec that the instance was started from.
        pub observed_generation: Option<u64>,
        /// Latest `metadata.generation`.
        pub desired_generation: Option<u64>,
        /// State of changed block tracking.
        pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
        /// Instance type in use.
        pub instancetype_ref: Option<FlavorStatus>,
        /// Requested memory dump.
        pub memory_dump_request: Option<MemoryDumpRequest>,
        /// Preference in use.
        pub preference_ref: Option<FlavorStatus>,
        /// Name of the VirtualMachineRestore in progress.
        pub restore_in_progress: Option<String>,
        /// Name of the VirtualMachineSnapshot in progress.
        pub snapshot_in_progress: Option<String>,
        /// Requested hotplugs of volumes.
        pub volume_requests: Vec<VolumeRequest>,
        /// Volumes and whether they can be snapshotted.
        pub volume_snapshot_statuses: Vec<VolumeSnapshotStatus>,
        /// State of replaced volumes.
        pub volume_update_state: Option<VolumeUpdateState>,
    }

    /// Consecutive failed starts.
    pub struct StartFailure {
        /// Number of failures.
        pub consecutive_fail_count: Option<u32>,
        /// UID of the instance that failed last.
        #[serde(rename = "lastFailedVMIUID")]
        pub last_failed_uid: Option<String>,
        /// Time of the next attempt (RFC 3339).
        pub retry_after_timestamp: Option<String> ["format" = "date-time"],
    }

    /// Request to start or stop a VM.
    pub struct StateChangeRequest {
        /// `Start` or `Stop`.
        pub action: String ["x-required" = true],
        /// UID of the instance that is stopped.
        pub uid: Option<String>,
        /// Parameters of the request.
        pub data: BTreeMap<String, String>,
    }
}
