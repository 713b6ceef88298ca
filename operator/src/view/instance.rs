//! `VirtualMachineInstance` as controllers see it.

use std::collections::BTreeMap;

use api::kubevirt::{Domain, MemoryDumpStatus, UtilityVolume, VolumeStatus};
use api::resource::Quantity;
use serde::{Deserialize, Deserializer, Serialize};
use virt::live::dump;

use super::{Condition, Meta, Size, VolumeSource};

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

    /// Generation of the VM that it was created from.
    pub(crate) fn generation_of_machine(&self) -> Option<u64> {
        self.metadata.annotation("kubevirt.io/vm-generation")?.parse().ok()
    }

    /// Whether its guest has ever run.
    pub(crate) fn has_run(&self) -> bool {
        self.status.phase == "Running"
            || self.status.phase_transition_timestamps.iter().any(|one| one.phase == "Running")
    }
}

/// Its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "WrittenSpec")]
pub(crate) struct InstanceSpec {
    /// Its volumes, and those that its memory is dumped to.
    pub(crate) volumes: Vec<VolumeSource>,
    pub(crate) networks: Vec<Network>,
    /// Names of its interfaces that are absent.
    pub(crate) unplugged: Vec<String>,
    pub(crate) termination_grace_period_seconds: Option<u64>,
    pub(crate) eviction_strategy: Option<String>,
    /// Whether the guest keeps state besides its disks.
    pub(crate) keeps_state: bool,
    /// Whether the guest has CPUs of the node to itself.
    pub(crate) is_dedicated: bool,
    /// Whether the guest waits at its start until it is unpaused.
    pub(crate) starts_paused: bool,
    pub(crate) size: Size,
    /// Bytes that the guest needs in addition to its memory under KVM; `None`: its memory is not known.
    pub(crate) overhead: Option<u64>,
}

/// Facts about a domain.
#[derive(Default)]
struct Read {
    size: Size,
    unplugged: Vec<String>,
    keeps_state: bool,
    is_dedicated: bool,
    overhead: Option<u64>,
}

/// Reads a domain; one that cannot be read keeps nothing.
fn domain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Read, D::Error> {
    let domain = serde_json::Value::deserialize(deserializer)?;
    let size = Size::deserialize(&domain).unwrap_or_default();
    let interfaces = domain["devices"]["interfaces"].as_array().into_iter().flatten();
    let absent = interfaces.filter(|one| one["state"] == "absent");
    let unplugged = absent.filter_map(|one| Some(one["name"].as_str()?.to_owned())).collect();
    let Ok(domain) = serde_json::from_value::<Domain>(domain) else {
        return Ok(Read { size, unplugged, ..Read::default() });
    };
    let memory = size.guest.or(size.requested).or(size.limit);
    let overhead = memory.map(|memory| virt::overhead::bytes(&domain, memory));
    let is_dedicated = domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement == Some(true));
    Ok(Read { size, unplugged, keeps_state: virt::state::is_kept(&domain), is_dedicated, overhead })
}

/// A spec as the API server writes it, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenSpec {
    volumes: Vec<VolumeSource>,
    utility_volumes: Vec<UtilityVolume>,
    networks: Vec<Network>,
    termination_grace_period_seconds: Option<u64>,
    eviction_strategy: Option<String>,
    start_strategy: Option<String>,
    #[serde(deserialize_with = "domain")]
    domain: Read,
}

impl From<WrittenSpec> for InstanceSpec {
    fn from(written: WrittenSpec) -> Self {
        let WrittenSpec {
            mut volumes,
            utility_volumes,
            networks,
            termination_grace_period_seconds,
            eviction_strategy,
            start_strategy,
            domain: Read { size, unplugged, keeps_state, is_dedicated, overhead },
        } = written;
        let starts_paused = start_strategy.as_deref() == Some("Paused");
        let dumps = utility_volumes.into_iter().filter(|one| one.kind.as_deref() == Some(dump::TYPE));
        volumes.extend(dumps.map(|one| VolumeSource::dump(one.name, one.claim_name)));
        Self {
            volumes,
            networks,
            unplugged,
            termination_grace_period_seconds,
            eviction_strategy,
            keeps_state,
            is_dedicated,
            starts_paused,
            size,
            overhead,
        }
    }
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
    #[serde(rename = "guestOSInfo")]
    pub(crate) guest_os_info: Option<Box<GuestOs>>,
    /// Image of its launcher; empty before that is known.
    #[serde(rename = "launcherContainerImageVersion")]
    pub(crate) launcher_image: String,
}

/// The operating system that a guest's agent reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct GuestOs {
    pub(crate) name: String,
    pub(crate) version_id: String,
    pub(crate) machine: String,
    pub(crate) kernel_release: String,
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
    /// Present for a volume that memory is dumped to.
    pub(crate) memory_dump_volume: Option<DumpEntry>,
    pub(crate) persistent_volume_claim_info: ClaimEntry,
}

/// A dump of memory in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DumpEntry {
    pub(crate) claim_name: Option<String>,
    /// RFC 3339.
    pub(crate) start_timestamp: Option<String>,
    /// RFC 3339.
    pub(crate) end_timestamp: Option<String>,
    pub(crate) target_file_name: Option<String>,
}

impl From<&MemoryDumpStatus> for DumpEntry {
    fn from(written: &MemoryDumpStatus) -> Self {
        Self {
            claim_name: written.claim_name.clone(),
            start_timestamp: written.start_timestamp.clone(),
            end_timestamp: written.end_timestamp.clone(),
            target_file_name: written.target_file_name.clone(),
        }
    }
}

impl From<&DumpEntry> for MemoryDumpStatus {
    fn from(entry: &DumpEntry) -> Self {
        Self {
            claim_name: entry.claim_name.clone(),
            start_timestamp: entry.start_timestamp.clone(),
            end_timestamp: entry.end_timestamp.clone(),
            target_file_name: entry.target_file_name.clone(),
        }
    }
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
    pub(crate) requests: BTreeMap<String, Quantity>,
    pub(crate) capacity: BTreeMap<String, Quantity>,
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
            memory_dump_volume: written.memory_dump_volume.as_ref().map(DumpEntry::from),
            persistent_volume_claim_info: ClaimEntry {
                claim_name: info.and_then(|info| info.claim_name.clone()).unwrap_or_default(),
                requests: info.map(|info| info.requests.clone()).unwrap_or_default(),
                capacity: info.map(|info| info.capacity.clone()).unwrap_or_default(),
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
