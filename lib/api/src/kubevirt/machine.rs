//! `VirtualMachine`: a guest that is wanted, running or not.

use super::VirtualMachineInstanceSpec;
use crate::cdi::DataVolumeSpec;
use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// A guest that is wanted: it outlives each of its runs, which are `VirtualMachineInstance`s of the same name.
    pub struct VirtualMachine {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachine`.
        pub kind: String,
        /// Name, namespace, labels.
        pub metadata: ObjectMeta,
        /// What is wanted.
        pub spec: VirtualMachineSpec,
        /// What there is.
        pub status: Option<VirtualMachineStatus>,
    }

    /// What is wanted of a guest.
    pub struct VirtualMachineSpec {
        /// `true` is `runStrategy: Always`, `false` is `Halted`. Exactly one of the two fields is given.
        pub running: Option<bool>,
        /// When the guest runs: `Always`, `Halted`, `Manual`, `RerunOnFailure` or `Once`.
        pub run_strategy: Option<String>,
        /// What each run is made of.
        pub template: Template,
        /// DataVolumes that are made with the guest and go away with it.
        pub data_volume_templates: Vec<DataVolumeTemplate>,
    }

    /// What a run is made of.
    pub struct Template {
        /// Labels and annotations of the run.
        pub metadata: ObjectMeta,
        /// The machine.
        pub spec: VirtualMachineInstanceSpec,
    }

    /// A DataVolume that belongs to a guest.
    pub struct DataVolumeTemplate {
        /// Its name and labels.
        pub metadata: ObjectMeta,
        /// What it holds.
        pub spec: DataVolumeSpec,
    }

    /// What there is of a guest.
    pub struct VirtualMachineStatus {
        /// The state in one word, as people and consoles read it: `Stopped`, `Provisioning`, `Starting`, `Running`,
        /// `Paused`, `Stopping`, `Terminating`, `CrashLoopBackOff`, …
        pub printable_status: Option<String>,
        /// Whether there is a run.
        pub created: Option<bool>,
        /// Whether the run is ready.
        pub ready: Option<bool>,
        /// The strategy that is followed.
        pub run_strategy: Option<String>,
        /// Ready, Failure, Paused, RestartRequired, and copies of the run's.
        pub conditions: Vec<Condition>,
        /// What was asked for by command and is not done yet.
        pub state_change_requests: Vec<StateChangeRequest>,
        /// Crashes in a row.
        pub start_failure: Option<StartFailure>,
        /// `metadata.generation` that was looked at last.
        pub observed_generation: Option<u64>,
        /// `metadata.generation` that is followed.
        pub desired_generation: Option<u64>,
    }

    /// A command to start or stop.
    pub struct StateChangeRequest {
        /// `Start` or `Stop`.
        pub action: String,
        /// The run it is about, by its uid.
        pub uid: Option<String>,
    }

    /// Crashes in a row.
    pub struct StartFailure {
        /// How many.
        pub consecutive_fail_count: Option<u32>,
        /// uid of the run that failed last.
        #[serde(rename = "lastFailedVMIUID")]
        pub last_failed_uid: Option<String>,
        /// When it is tried again, RFC 3339.
        pub retry_after_timestamp: Option<String>,
    }
}
