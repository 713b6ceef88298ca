//! State of a `VirtualMachineInstance`.

use std::collections::BTreeMap;

use super::{ChangedBlockTrackingStatus, KernelBootStatus, MigratedVolume, MigrationState, VolumeStatus};
use crate::resource::{Condition, Quantity, resource};

resource! {
    /// State of a guest.
    pub struct VirtualMachineInstanceStatus {
        /// `Pending`, `Scheduling`, `Scheduled`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        pub phase: Option<String>,
        /// Cause of a failure, one CamelCase word.
        pub reason: Option<String>,
        /// Start time of each phase.
        pub phase_transition_timestamps: Vec<PhaseTransition>,
        /// Conditions `Ready`, `Synchronized`, `Paused`, `AgentConnected`, `LiveMigratable` and others.
        pub conditions: Vec<Condition> ["x-omit" = ["lastHeartbeatTime"]],
        /// Node on which the guest runs.
        pub node_name: Option<String>,
        /// Launcher pods of the guest: node by pod UID.
        pub active_pods: BTreeMap<String, String>,
        /// Network interfaces.
        pub interfaces: Vec<InterfaceStatus>,
        /// Volumes.
        pub volume_status: Vec<VolumeStatus>,
        /// Operating system, reported by the guest agent.
        #[serde(rename = "guestOSInfo")]
        pub guest_os_info: Option<GuestOsInfo>,
        /// Machine type at the start of the guest.
        pub machine: Option<MachineStatus>,
        /// Present CPU topology.
        #[serde(rename = "currentCPUTopology")]
        pub current_cpu_topology: Option<CpuTopology>,
        /// Present memory.
        pub memory: Option<MemoryStatus>,
        /// User ID of the launcher.
        pub runtime_user: Option<u32>,
        /// VSOCK context ID.
        #[serde(rename = "VSOCKCID")]
        pub vsock_cid: Option<u32>,
        /// State of changed block tracking.
        pub changed_block_tracking: Option<ChangedBlockTrackingStatus>,
        /// Node that the guest must leave.
        pub evacuation_node_name: Option<String>,
        /// `frozen` while the guest's filesystems are frozen.
        pub fs_freeze_status: Option<String>,
        /// Checksums of kernel and initrd.
        pub kernel_boot_status: Option<KernelBootStatus>,
        /// Image of the launcher.
        pub launcher_container_image_version: Option<String>,
        /// Volumes that are replaced during a migration.
        pub migrated_volumes: Vec<MigratedVolume>,
        /// `BlockMigration` copies local disks, `LiveMigration` does not.
        pub migration_method: Option<String>,
        /// Present or last migration.
        pub migration_state: Option<MigrationState>,
        /// `Unix` for migrations over Unix sockets.
        pub migration_transport: Option<String>,
        /// QoS class of the launcher pod.
        pub qos_class: Option<String>,
        /// SELinux context of the launcher pod.
        pub selinux_context: Option<String>,
        /// Requirements on the node that follow from the CPU model.
        pub topology_hints: Option<TopologyHints>,
        /// ControllerRevision of the VM that the guest was started from.
        pub virtual_machine_revision_name: Option<String>,
    }

    /// CPU topology.
    pub struct CpuTopology {
        /// Cores per socket.
        pub cores: Option<u32>,
        /// Sockets.
        pub sockets: Option<u32>,
        /// Threads per core.
        pub threads: Option<u32>,
    }

    /// Operating system, reported by the guest agent.
    pub struct GuestOsInfo {
        /// Name, such as `Debian GNU/Linux`.
        pub name: Option<String>,
        /// Identifier, such as `debian`.
        pub id: Option<String>,
        /// Name and version for people.
        pub pretty_name: Option<String>,
        /// Version with its code name.
        pub version: Option<String>,
        /// Version number, such as `12`.
        pub version_id: Option<String>,
        /// Architecture, such as `x86_64`.
        pub machine: Option<String>,
        /// Kernel release.
        pub kernel_release: Option<String>,
        /// Kernel build.
        pub kernel_version: Option<String>,
    }

    /// Network interface of a guest.
    pub struct InterfaceStatus {
        /// Name of the interface in the spec.
        pub name: Option<String>,
        /// First IP address.
        pub ip_address: Option<String>,
        /// All IP addresses.
        pub ip_addresses: Vec<String>,
        /// MAC address in the guest.
        pub mac: Option<String>,
        /// Name in the guest, reported by the guest agent.
        pub interface_name: Option<String>,
        /// Name in the network namespace of the launcher pod.
        pub pod_interface_name: Option<String>,
        /// Comma-separated sources of this entry: `domain`, `guest-agent`, `multus-status`.
        pub info_source: Option<String>,
        /// Queue pairs.
        pub queue_count: Option<u32>,
        /// `up` or `down`.
        pub link_state: Option<String>,
    }

    /// Machine type of a guest.
    pub struct MachineStatus {
        /// Versioned name, such as `pc-q35-7.2`.
        #[serde(rename = "type")]
        pub kind: String,
    }

    /// Memory of a guest.
    pub struct MemoryStatus {
        /// Memory at the start.
        pub guest_at_boot: Option<Quantity>,
        /// Present memory.
        pub guest_current: Option<Quantity>,
        /// Requested memory.
        pub guest_requested: Option<Quantity>,
        /// Memory overhead of the launcher.
        pub memory_overhead: Option<Quantity>,
    }

    /// Start of a phase.
    pub struct PhaseTransition {
        /// Phase.
        pub phase: String,
        /// Start time (RFC 3339).
        pub phase_transition_timestamp: String ["format" = "date-time"],
    }

    /// Requirements on the node that follow from the CPU model.
    pub struct TopologyHints {
        /// TSC frequency, Hz.
        pub tsc_frequency: Option<i64>,
    }
}
