//! `VirtualMachine` as controllers see it.

use api::kubevirt::{
    FlavorReference, FlavorStatus, Interface, MemoryDumpRequest, Network, StateChangeRequest,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use virt::instancetype::Which;
use virt::vnic;

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
#[serde(from = "WrittenTemplate")]
pub(crate) struct TemplateSpec {
    pub(crate) volumes: Vec<VolumeSource>,
    pub(crate) size: Size,
    /// Machine type.
    pub(crate) machine: Option<Box<str>>,
    /// Network interfaces that metrics name.
    pub(crate) nics: Box<[Nic]>,
}

/// A network interface, as metrics name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nic {
    pub(crate) name: Box<str>,
    /// `core` or `plugin`.
    pub(crate) kind: &'static str,
    pub(crate) binding: Box<str>,
    pub(crate) network: Box<str>,
}

/// A spec as the API server writes it, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenTemplate {
    volumes: Vec<VolumeSource>,
    networks: Value,
    domain: Value,
}

impl From<WrittenTemplate> for TemplateSpec {
    fn from(written: WrittenTemplate) -> Self {
        let WrittenTemplate { volumes, networks, domain } = written;
        let size = Size::deserialize(&domain).unwrap_or_default();
        let machine = domain["machine"]["type"].as_str().map(Into::into);
        Self { volumes, size, machine, nics: nics(&networks, &domain["devices"]["interfaces"]) }
    }
}

/// The interfaces that metrics name; none if they cannot be read.
fn nics(networks: &Value, interfaces: &Value) -> Box<[Nic]> {
    let networks = Vec::<Network>::deserialize(networks).unwrap_or_default();
    let interfaces = Vec::<Interface>::deserialize(interfaces).unwrap_or_default();
    let named = |one: &Interface| {
        let (kind, binding) = vnic::binding(one)?;
        let network = vnic::network(&networks, &one.name)?;
        Some(Nic { name: one.name.as_str().into(), kind, binding: binding.into(), network: network.into() })
    };
    interfaces.iter().filter_map(named).collect()
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

    /// Whether its spec or its status names this revision of a flavor.
    pub(crate) fn names_revision(&self, name: &str) -> bool {
        Which::BOTH.into_iter().any(|which| {
            let (reference, kept) = self.flavor(which);
            let named = reference.and_then(|one| one.revision_name.as_deref());
            let kept = kept.and_then(|one| one.controller_revision_ref.as_ref()?.name.as_deref());
            named == Some(name) || kept == Some(name)
        })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_revision_is_named_by_spec_or_status() {
        let kept = json!({"controllerRevisionRef": {"name": "r"}});
        for (object, expected) in [
            (json!({"spec": {"instancetype": {"name": "small", "revisionName": "r"}}}), true),
            (json!({"spec": {"preference": {"name": "linux", "revisionName": "r"}}}), true),
            (json!({"status": {"instancetypeRef": kept}}), true),
            (json!({"status": {"preferenceRef": kept}}), true),
            (json!({"spec": {"instancetype": {"name": "r"}}}), false),
            (json!({"spec": {"instancetype": {"name": "small", "revisionName": "r2"}}}), false),
            (json!({}), false),
        ] {
            let machine: Machine = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(machine.names_revision("r"), expected, "{object}");
        }
    }
}
