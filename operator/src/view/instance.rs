//! `VirtualMachineInstance` as controllers see it.

use std::collections::BTreeMap;

use api::kubevirt::VolumeStatus;
use serde::{Deserialize, Serialize};

use super::{Condition, Meta, VolumeSource};

/// A VirtualMachineInstance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Instance {
    pub(crate) metadata: Meta,
    pub(crate) spec: InstanceSpec,
    pub(crate) status: InstanceStatus,
}

impl Instance {
    /// Whether its guest has ended for good.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether its guest has ever run.
    pub(crate) fn has_run(&self) -> bool {
        self.status.phase == "Running"
            || self.status.phase_transition_timestamps.iter().any(|one| one.phase == "Running")
    }
}

/// Its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct InstanceSpec {
    pub(crate) volumes: Vec<VolumeSource>,
    pub(crate) networks: Vec<Network>,
    pub(crate) termination_grace_period_seconds: Option<u64>,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Network {
    pub(crate) name: String,
    /// Present for the pod network.
    pub(crate) pod: Option<Empty>,
}

/// A struct of which only the presence matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Empty {}

/// Its status, as far as the controller reads or writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct InstanceStatus {
    pub(crate) phase: String,
    pub(crate) reason: Option<String>,
    pub(crate) node_name: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) phase_transition_timestamps: Vec<PhaseTransition>,
    pub(crate) active_pods: BTreeMap<String, String>,
    pub(crate) migration_state: Option<MigrationState>,
    pub(crate) volume_status: Vec<VolumeEntry>,
}

/// A volume in its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeEntry {
    pub(crate) name: String,
    pub(crate) target: String,
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Present for a volume that came while the guest ran.
    pub(crate) hotplug_volume: Option<HotplugEntry>,
    pub(crate) persistent_volume_claim_info: ClaimEntry,
}

/// How a volume is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HotplugEntry {
    pub(crate) attach_pod_name: String,
    #[serde(rename = "attachPodUID")]
    pub(crate) attach_pod_uid: String,
}

/// The claim of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimEntry {
    pub(crate) claim_name: String,
}

/// As it is read again once it is written.
impl From<&VolumeStatus> for VolumeEntry {
    fn from(written: &VolumeStatus) -> Self {
        let info = written.persistent_volume_claim_info.as_ref();
        Self {
            name: written.name.clone(),
            target: written.target.0.clone(),
            phase: written.phase.clone().unwrap_or_default(),
            reason: written.reason.clone().unwrap_or_default(),
            message: written.message.clone().unwrap_or_default(),
            hotplug_volume: written.hotplug_volume.as_ref().map(|of| HotplugEntry {
                attach_pod_name: of.attach_pod_name.clone().unwrap_or_default(),
                attach_pod_uid: of.attach_pod_uid.clone().unwrap_or_default(),
            }),
            persistent_volume_claim_info: ClaimEntry {
                claim_name: info.and_then(|info| info.claim_name.clone()).unwrap_or_default(),
            },
        }
    }
}

/// When a phase began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PhaseTransition {
    pub(crate) phase: String,
    /// RFC 3339.
    pub(crate) phase_transition_timestamp: String,
}

/// A live migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MigrationState {
    start_timestamp: Option<String>,
    completed: bool,
    failed: bool,
}

impl MigrationState {
    /// Whether it has begun and not ended.
    pub(crate) fn active(&self) -> bool {
        self.start_timestamp.is_some() && !self.completed && !self.failed
    }
}

/// A network interface in an instance's status, as the controller first writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InterfaceStatus {
    pub(crate) name: String,
    pub(crate) ip_address: String,
    pub(crate) ip_addresses: Vec<String>,
    pub(crate) pod_interface_name: String,
}

/// A cache keeps what was read.
impl From<&Self> for Instance {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}
