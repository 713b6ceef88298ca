//! `VirtualMachineInstance`: one run of a guest.

use std::collections::BTreeMap;

use super::{Domain, Network, Volume};
use crate::resource::{Condition, ObjectMeta, Quantity, resource};

resource! {
    /// One run of a guest: what it is made of, and how it is.
    pub struct VirtualMachineInstance {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstance`.
        pub kind: String,
        /// Name, namespace, labels.
        pub metadata: ObjectMeta,
        /// What it is made of.
        pub spec: VirtualMachineInstanceSpec,
        /// How it is. There is no status subresource: it is written with the object.
        pub status: Option<VirtualMachineInstanceStatus>,
    }

    /// What a run is made of.
    pub struct VirtualMachineInstanceSpec {
        /// The machine: processors, memory, devices.
        pub domain: Domain,
        /// Networks that interfaces are attached to, by name.
        pub networks: Vec<Network>,
        /// Volumes that disks show, by name.
        pub volumes: Vec<Volume>,
        /// Seconds from a request to stop until the guest is killed. Default: 30.
        pub termination_grace_period_seconds: Option<u64>,
        /// `Paused`: the guest is made and not started.
        pub start_strategy: Option<String>,
        /// Host name that cloud-init and DHCP tell the guest. Default: the object's name.
        pub hostname: Option<String>,
        /// Architecture of the guest: `amd64`. Default: this program's.
        pub architecture: Option<String>,
    }

    /// How a run is.
    pub struct VirtualMachineInstanceStatus {
        /// `Pending`, `Scheduling`, `Scheduled`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        pub phase: Option<String>,
        /// Why, in one CamelCase word.
        pub reason: Option<String>,
        /// When each phase began.
        pub phase_transition_timestamps: Vec<PhaseTransition>,
        /// Ready, Synchronized, Paused, AgentConnected, LiveMigratable, SoftwareEmulation, …
        pub conditions: Vec<Condition>,
        /// Where it runs.
        pub node_name: Option<String>,
        /// Processes that run it: uid of a pod to name of a node.
        pub active_pods: BTreeMap<String, String>,
        /// Its network interfaces.
        pub interfaces: Vec<InterfaceStatus>,
        /// Its volumes.
        pub volume_status: Vec<VolumeStatus>,
        /// What it is, by its agent.
        #[serde(rename = "guestOSInfo")]
        pub guest_os_info: Option<GuestOsInfo>,
        /// The machine type it was started with.
        pub machine: Option<MachineStatus>,
        /// Processors it has now.
        #[serde(rename = "currentCPUTopology")]
        pub current_cpu_topology: Option<CpuTopology>,
        /// Memory it has now.
        pub memory: Option<MemoryStatus>,
        /// User that it runs as.
        pub runtime_user: Option<u32>,
    }

    /// When a phase began.
    pub struct PhaseTransition {
        /// The phase.
        pub phase: String,
        /// RFC 3339.
        pub phase_transition_timestamp: String,
    }

    /// A network interface of a run.
    pub struct InterfaceStatus {
        /// Name of the interface in the spec.
        pub name: Option<String>,
        /// First address.
        pub ip_address: Option<String>,
        /// All addresses.
        pub ip_addresses: Vec<String>,
        /// Ethernet address in the guest.
        pub mac: Option<String>,
        /// Name in the guest, by its agent.
        pub interface_name: Option<String>,
        /// Name in the network namespace that the guest is attached to.
        pub pod_interface_name: Option<String>,
        /// Who told it: comma-separated words of `domain`, `guest-agent`, `multus-status`.
        pub info_source: Option<String>,
        /// Pairs of queues.
        pub queue_count: Option<u32>,
        /// `up` or `down`.
        pub link_state: Option<String>,
    }

    /// A volume of a run.
    pub struct VolumeStatus {
        /// Name of the volume in the spec.
        pub name: String,
        /// The device's name, such as `vda`.
        pub target: String,
        /// `Pending`, `Bound`, `AttachedToNode`, `MountedToPod`, `Ready`, `Detaching` or `UnMountedFromPod`.
        pub phase: Option<String>,
        /// Why, in one word.
        pub reason: Option<String>,
        /// Why, for people.
        pub message: Option<String>,
        /// Bytes.
        pub size: Option<u64>,
        /// The claim, where it is one.
        pub persistent_volume_claim_info: Option<ClaimInfo>,
        /// It came while the guest ran, or may go.
        pub hotplug_volume: Option<HotplugVolumeStatus>,
    }

    /// What a guest's agent says that the guest is (`guest-get-osinfo`).
    pub struct GuestOsInfo {
        /// Name of the operating system, such as `Debian GNU/Linux`.
        pub name: Option<String>,
        /// The same in one word, such as `debian`.
        pub id: Option<String>,
        /// Name and version for people.
        pub pretty_name: Option<String>,
        /// Version, its name included.
        pub version: Option<String>,
        /// Version, such as `12`.
        pub version_id: Option<String>,
        /// Architecture, such as `x86_64`.
        pub machine: Option<String>,
        /// Release of the kernel.
        pub kernel_release: Option<String>,
        /// Build of the kernel.
        pub kernel_version: Option<String>,
    }

    /// A claim of a run's volume.
    pub struct ClaimInfo {
        /// Its name.
        pub claim_name: Option<String>,
    }

    /// What is known of a volume that comes and goes; standalone: nothing more.
    pub struct HotplugVolumeStatus {
    }

    /// A machine type.
    pub struct MachineStatus {
        /// With its version, such as `pc-q35-7.2`.
        #[serde(rename = "type")]
        pub kind: String,
    }

    /// Processors.
    pub struct CpuTopology {
        /// Per socket.
        pub cores: Option<u32>,
        /// Sockets.
        pub sockets: Option<u32>,
        /// Per core.
        pub threads: Option<u32>,
    }

    /// Memory.
    pub struct MemoryStatus {
        /// At its start.
        pub guest_at_boot: Option<Quantity>,
        /// Now.
        pub guest_current: Option<Quantity>,
        /// What is asked for.
        pub guest_requested: Option<Quantity>,
    }
}
