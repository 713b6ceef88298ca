//! `VirtualMachine` as controllers see it.

use api::kubevirt::{FlavorReference, FlavorStatus, MemoryDumpRequest, StateChangeRequest};
use serde::{Deserialize, Serialize};
use virt::instancetype::Which;

use super::{Condition, Meta, Requested, Size, VolumeSource};

/// A VirtualMachine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Machine {
    pub(crate) metadata: Meta,
    pub(crate) spec: MachineSpec,
    pub(crate) status: MachineStatus,
}

/// Its spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MachineSpec {
    pub(crate) running: Option<bool>,
    pub(crate) run_strategy: Option<String>,
    pub(crate) template: Template,
    pub(crate) data_volume_templates: Vec<DataVolumeTemplate>,
    pub(crate) instancetype: Option<FlavorReference>,
    pub(crate) preference: Option<FlavorReference>,
}

/// The template of its instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Template {
    pub(crate) metadata: Option<GuestMeta>,
    pub(crate) spec: TemplateSpec,
}

/// Metadata of the template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct GuestMeta {
    annotations: Option<Box<Description>>,
}

/// Annotations by which metrics describe a guest. No other annotation of the template is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Description {
    #[serde(rename = "vm.kubevirt.io/os")]
    pub(crate) os: Option<Box<str>>,
    #[serde(rename = "vm.kubevirt.io/workload")]
    pub(crate) workload: Option<Box<str>>,
    #[serde(rename = "vm.kubevirt.io/flavor")]
    pub(crate) flavor: Option<Box<str>>,
}

/// The spec of its instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateSpec {
    pub(crate) volumes: Vec<VolumeSource>,
    #[serde(rename = "domain")]
    pub(crate) size: Size,
}

/// A DataVolume that is created with the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct DataVolumeTemplate {
    pub(crate) metadata: TemplateMeta,
    #[serde(rename = "spec")]
    pub(crate) requested: Requested,
}

/// Metadata of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateMeta {
    pub(crate) name: String,
}

/// The part of its status that the VM controller writes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MachineStatus {
    pub(crate) printable_status: String,
    pub(crate) created: bool,
    pub(crate) ready: bool,
    pub(crate) run_strategy: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) state_change_requests: Vec<StateChangeRequest>,
    pub(crate) start_failure: Option<StartFailure>,
    pub(crate) observed_generation: u64,
    pub(crate) desired_generation: u64,
    pub(crate) instancetype_ref: Option<FlavorStatus>,
    pub(crate) preference_ref: Option<FlavorStatus>,
    pub(crate) volume_snapshot_statuses: Vec<VolumeSnapshotStatus>,
    pub(crate) memory_dump_request: Option<MemoryDumpRequest>,
}

/// Whether snapshots of a volume can be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct VolumeSnapshotStatus {
    pub(crate) name: String,
    pub(crate) enabled: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Machine {
    /// How its template describes the guest.
    pub(crate) fn description(&self) -> Option<&Description> {
        self.spec.template.metadata.as_ref()?.annotations.as_deref()
    }

    /// The flavor that the VM refers to, and its entry in the status.
    pub(crate) fn flavor(&self, which: Which) -> (Option<&FlavorReference>, Option<&FlavorStatus>) {
        let (spec, status) = (&self.spec, &self.status);
        match which {
            Which::Instancetype => (spec.instancetype.as_ref(), status.instancetype_ref.as_ref()),
            Which::Preference => (spec.preference.as_ref(), status.preference_ref.as_ref()),
        }
    }
}

/// Starts in a row that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StartFailure {
    pub(crate) consecutive_fail_count: u32,
    #[serde(rename = "lastFailedVMIUID")]
    pub(crate) last_failed_uid: String,
    /// RFC 3339.
    pub(crate) retry_after_timestamp: String,
}

/// A cache keeps what was read.
impl From<&Self> for Machine {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}
