//! Virtual hardware: CPU, memory, machine type.

use std::collections::BTreeMap;

use super::{Chassis, Clock, Devices, Features, Firmware, LaunchSecurity};
use crate::resource::{Empty, Quantity, resource};

resource! {
    /// Virtual hardware.
    pub struct Domain {
        /// Memory and CPU as accounted by Kubernetes.
        pub resources: Option<Resources>,
        /// CPU topology and model.
        pub cpu: Option<Cpu>,
        /// Memory.
        pub memory: Option<Memory>,
        /// Machine type.
        pub machine: Option<Machine>,
        /// Firmware and SMBIOS identity.
        pub firmware: Option<Firmware>,
        /// Clock and timers.
        pub clock: Option<Clock> ["x-kubernetes-preserve-unknown-fields" = true],
        /// ACPI, SMM, Hyper-V enlightenments and other features.
        pub features: Option<Features>,
        /// Disks, interfaces and other devices.
        pub devices: Devices ["x-required" = true],
        /// I/O threads of disks: `shared` (one for all), `auto` (several in turn) or `supplementalPool`. Default:
        /// the main thread, except for disks with a dedicated one.
        pub io_threads_policy: Option<String>,
        /// Size of the supplemental pool.
        pub io_threads: Option<IoThreads>,
        /// SMBIOS chassis strings.
        pub chassis: Option<Chassis>,
        /// `Reboot` (default) keeps the instance when the guest reboots, `Terminate` ends it.
        pub reboot_policy: Option<String> ["enum" = ["Reboot", "Terminate"]],
        /// Confidential computing.
        pub launch_security: Option<LaunchSecurity>,
    }

    /// CPU topology and model: sockets × cores × threads.
    pub struct Cpu {
        /// Sockets. Default: 1.
        pub sockets: Option<u32>,
        /// Sockets up to which CPUs can be hotplugged. Default: 4 × `sockets`.
        pub max_sockets: Option<u32>,
        /// Cores per socket. Default: 1.
        pub cores: Option<u32>,
        /// Threads per core. Default: 1.
        pub threads: Option<u32>,
        /// `host-model` (default), `host-passthrough`, or a model known to libvirt.
        pub model: Option<String>,
        /// CPU features added to or removed from the model.
        pub features: Vec<CpuFeature>,
        /// Whether vCPUs are pinned to CPUs of their own. Default: false.
        pub dedicated_cpu_placement: Option<bool>,
        /// Whether QEMU's own threads get a CPU of their own. Default: false.
        pub isolate_emulator_thread: Option<bool>,
        /// NUMA topology of the guest.
        pub numa: Option<Numa>,
        /// Realtime scheduling.
        pub realtime: Option<Realtime>,
    }

    /// CPU feature.
    pub struct CpuFeature {
        /// Name known to libvirt.
        pub name: String ["x-required" = true],
        /// `force`, `require` (default), `optional`, `disable` or `forbid`.
        pub policy: Option<String>,
    }

    /// NUMA topology of the guest.
    pub struct Numa {
        /// The guest has the topology of its pinned CPUs.
        pub guest_mapping_passthrough: Option<Empty>,
    }

    /// Realtime scheduling.
    pub struct Realtime {
        /// vCPUs with realtime scheduling, such as `0-3,^1`. Default: all.
        pub mask: Option<String>,
    }

    /// Size of the supplemental I/O thread pool.
    pub struct IoThreads {
        /// Number of threads.
        pub supplemental_pool_thread_count: Option<u32>,
    }

    /// Machine type.
    pub struct Machine {
        /// QEMU machine type: `q35` (default) or a versioned name such as `pc-q35-7.2`.
        #[serde(rename = "type")]
        pub kind: String,
    }

    /// Memory.
    pub struct Memory {
        /// Memory of the guest at its start.
        pub guest: Option<Quantity>,
        /// Memory up to which it can be hotplugged. Default: 4 × `guest`.
        pub max_guest: Option<Quantity>,
        /// Memory in huge pages.
        pub hugepages: Option<Hugepages>,
        /// Memory overhead of the launcher.
        pub reserved_overhead: Option<ReservedOverhead>,
    }

    /// Memory in huge pages.
    pub struct Hugepages {
        /// `2Mi` or `1Gi`.
        pub page_size: Option<String>,
    }

    /// Memory overhead of the launcher.
    pub struct ReservedOverhead {
        /// Memory added to the computed overhead.
        pub added_overhead: Option<Quantity>,
        /// Whether the guest's memory is locked.
        pub mem_lock: Option<String> ["enum" = ["NotRequired", "Required"]],
    }

    /// Memory and CPU as accounted by Kubernetes.
    pub struct Resources {
        /// Reserved `memory` and `cpu`. `memory` is the guest's memory if `memory.guest` is not set.
        pub requests: BTreeMap<String, Quantity>,
        /// Highest `memory` and `cpu`. `memory` is the guest's memory if nothing else sets it.
        pub limits: BTreeMap<String, Quantity>,
        /// Whether the launcher's memory overhead is left out of the request. Default: false.
        pub overcommit_guest_overhead: Option<bool>,
    }
}
