//! Instance types: CPU, memory and related fields of a VM.

use std::collections::BTreeMap;

use crate::kubevirt::{Gpu, HostDevice, Hugepages, IoThreads, LaunchSecurity, Numa, Realtime};
use crate::resource::{ObjectMeta, Quantity, resource};

resource! {
    /// Instance type of a namespace.
    pub struct VirtualMachineInstancetype {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachineInstancetype`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Size of the VMs.
        pub spec: VirtualMachineInstancetypeSpec ["x-required" = true],
    }

    /// Instance type of the cluster.
    pub struct VirtualMachineClusterInstancetype {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachineClusterInstancetype`.
        pub kind: String,
        /// Name.
        pub metadata: ObjectMeta,
        /// Size of the VMs.
        pub spec: VirtualMachineInstancetypeSpec ["x-required" = true],
    }

    /// Size of VMs. A VM that sets one of these fields itself conflicts with the instance type.
    pub struct VirtualMachineInstancetypeSpec {
        /// Annotations of the instance.
        pub annotations: BTreeMap<String, String>,
        /// vCPUs.
        pub cpu: CpuInstancetype ["x-required" = true],
        /// GPUs of the host.
        pub gpus: Vec<Gpu>,
        /// Other devices of the host.
        pub host_devices: Vec<HostDevice>,
        /// Size of the supplemental I/O thread pool.
        pub io_threads: Option<IoThreads>,
        /// I/O threads of disks: `shared`, `auto` or `supplementalPool`.
        pub io_threads_policy: Option<String>,
        /// Confidential computing.
        pub launch_security: Option<LaunchSecurity>,
        /// Memory.
        pub memory: MemoryInstancetype ["x-required" = true],
        /// Labels that the node must have.
        pub node_selector: BTreeMap<String, String>,
        /// Scheduler of the launcher pod.
        pub scheduler_name: Option<String>,
    }

    /// vCPUs of an instance type.
    pub struct CpuInstancetype {
        /// Whether vCPUs are pinned to CPUs of their own.
        #[serde(rename = "dedicatedCPUPlacement")]
        pub dedicated_cpu_placement: Option<bool>,
        /// Number of vCPUs. The preference decides about sockets, cores and threads.
        pub guest: u32 ["x-required" = true],
        /// Whether QEMU's own threads get a CPU of their own.
        pub isolate_emulator_thread: Option<bool>,
        /// Sockets up to which CPUs can be hotplugged.
        pub max_sockets: Option<u32>,
        /// CPU model.
        pub model: Option<String>,
        /// NUMA topology of the guest.
        pub numa: Option<Numa>,
        /// Realtime scheduling.
        pub realtime: Option<Realtime>,
    }

    /// Memory of an instance type.
    pub struct MemoryInstancetype {
        /// Memory of the guest.
        pub guest: Quantity ["x-required" = true],
        /// Memory in huge pages.
        pub hugepages: Option<Hugepages>,
        /// Memory up to which it can be hotplugged.
        pub max_guest: Option<Quantity>,
        /// Percentage of the memory that the launcher pod does not request.
        pub overcommit_percent: Option<u32> ["minimum" = 0, "maximum" = 100],
    }
}
