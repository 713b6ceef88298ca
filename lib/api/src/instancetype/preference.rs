//! Preferences: defaults of a VM's devices, firmware and clock, and what an operating system requires at least.

use std::collections::BTreeMap;

use crate::kubevirt::{
    Apic, BlockSize, CpuFeature, Efi, Feature, Hyperv, KvmFeature, LaunchSecurity, MasqueradeBinding, Rng,
    Timers, TpmDevice, UtcOffset, VirtualGpuOptions,
};
use crate::resource::{ObjectMeta, Quantity, resource};

resource! {
    /// Preference of a namespace.
    pub struct VirtualMachinePreference {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachinePreference`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Defaults of the VMs.
        pub spec: VirtualMachinePreferenceSpec ["x-required" = true],
    }

    /// Preference of the cluster.
    pub struct VirtualMachineClusterPreference {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachineClusterPreference`.
        pub kind: String,
        /// Name.
        pub metadata: ObjectMeta,
        /// Defaults of the VMs.
        pub spec: VirtualMachinePreferenceSpec ["x-required" = true],
    }

    /// Defaults of VMs. They apply to fields that a VM leaves open.
    pub struct VirtualMachinePreferenceSpec {
        /// Annotations of the instance.
        pub annotations: BTreeMap<String, String>,
        /// Clock and timers.
        pub clock: Option<ClockPreferences>,
        /// CPU topology and features.
        pub cpu: Option<CpuPreferences>,
        /// Devices.
        pub devices: Option<DevicePreferences>,
        /// Hardware features.
        pub features: Option<FeaturePreferences>,
        /// Firmware.
        pub firmware: Option<FirmwarePreferences>,
        /// Machine type.
        pub machine: Option<MachinePreferences>,
        /// Deprecated: use `cpu.spreadOptions.ratio`.
        pub prefer_spread_socket_to_core_ratio: Option<u32>,
        /// Architecture of the guest.
        pub preferred_architecture: Option<String>,
        /// Confidential computing.
        pub preferred_launch_security: Option<LaunchSecurity>,
        /// Subdomain of the launcher pod.
        pub preferred_subdomain: Option<String>,
        /// Seconds between a shutdown request and a forced stop.
        pub preferred_termination_grace_period_seconds: Option<i64>,
        /// Least resources of the VMs.
        pub requirements: Option<Requirements>,
        /// Volumes.
        pub volumes: Option<VolumePreferences>,
    }

    /// Preferred clock and timers.
    pub struct ClockPreferences {
        /// Offset of the clock.
        pub preferred_clock_offset: Option<ClockOffset>,
        /// Timers.
        pub preferred_timer: Option<Timers>,
    }

    /// Offset of the clock; one field is set.
    pub struct ClockOffset {
        /// Time zone, such as `Europe/Berlin`.
        pub timezone: Option<String>,
        /// UTC, or an offset from it.
        pub utc: Option<UtcOffset>,
    }

    /// Preferred CPU topology and features.
    pub struct CpuPreferences {
        /// CPU features added to or removed from the model.
        #[serde(rename = "preferredCPUFeatures")]
        pub preferred_cpu_features: Vec<CpuFeature>,
        /// Form of the vCPUs of an instance type: `sockets` (default), `cores`, `threads`, `spread` or `any`.
        #[serde(rename = "preferredCPUTopology")]
        pub preferred_cpu_topology: Option<String>,
        /// Distribution with the topology `spread`.
        pub spread_options: Option<SpreadOptions>,
    }

    /// Distribution of vCPUs over sockets, cores and threads.
    pub struct SpreadOptions {
        /// `SocketsCores` (default), `CoresThreads` or `SocketsCoresThreads`.
        pub across: Option<String>,
        /// Cores per socket; threads per core with `CoresThreads`. Default: 2.
        pub ratio: Option<u32>,
    }

    /// Preferred devices.
    pub struct DevicePreferences {
        /// Whether the guest has a graphics device.
        pub preferred_autoattach_graphics_device: Option<bool>,
        /// Whether a guest without inputs gets one.
        pub preferred_autoattach_input_device: Option<bool>,
        /// Whether the guest has a memory balloon.
        pub preferred_autoattach_mem_balloon: Option<bool>,
        /// Whether a guest without interfaces gets one on the pod network.
        pub preferred_autoattach_pod_interface: Option<bool>,
        /// Whether the guest has a serial console.
        pub preferred_autoattach_serial_console: Option<bool>,
        /// Whether virtio disks have one queue per vCPU.
        pub preferred_block_multi_queue: Option<bool>,
        /// Bus of CD drives.
        pub preferred_cdrom_bus: Option<String>,
        /// Whether hotplug of disks is disabled.
        pub preferred_disable_hotplug: Option<bool>,
        /// Block sizes of disks.
        pub preferred_disk_block_size: Option<BlockSize>,
        /// Bus of disks.
        pub preferred_disk_bus: Option<String>,
        /// Host page cache mode of disks.
        pub preferred_disk_cache: Option<String>,
        /// Whether virtio disks have an I/O thread of their own.
        pub preferred_disk_dedicated_io_thread: Option<bool>,
        /// I/O mode of disks.
        #[serde(rename = "preferredDiskIO")]
        pub preferred_disk_io: Option<String>,
        /// Bus of input devices.
        pub preferred_input_bus: Option<String>,
        /// Type of input devices.
        pub preferred_input_type: Option<String>,
        /// Masquerade binding for interfaces on the pod network (no fields).
        pub preferred_interface_masquerade: Option<MasqueradeBinding>,
        /// Model of interfaces.
        pub preferred_interface_model: Option<String>,
        /// Bus of SCSI devices that are passed through.
        pub preferred_lun_bus: Option<String>,
        /// Whether virtio interfaces have one queue pair per vCPU.
        pub preferred_network_interface_multi_queue: Option<bool>,
        /// Model of devices through which the guest reports a crash.
        pub preferred_panic_device_model: Option<String>,
        /// Random number generator (no fields).
        pub preferred_rng: Option<Rng>,
        /// Model of the sound card.
        pub preferred_sound_model: Option<String>,
        /// Trusted platform module.
        #[serde(rename = "preferredTPM")]
        pub preferred_tpm: Option<TpmDevice>,
        /// Whether virtio devices also support virtio 0.9.
        pub preferred_use_virtio_transitional: Option<bool>,
        /// Type of the graphics adapter.
        pub preferred_video_type: Option<String>,
        /// Options of virtual GPUs.
        #[serde(rename = "preferredVirtualGPUOptions")]
        pub preferred_virtual_gpu_options: Option<VirtualGpuOptions>,
    }

    /// Preferred hardware features.
    pub struct FeaturePreferences {
        /// ACPI.
        pub preferred_acpi: Option<Feature>,
        /// Local APIC.
        pub preferred_apic: Option<Apic>,
        /// Hyper-V enlightenments.
        pub preferred_hyperv: Option<Hyperv>,
        /// Visibility of KVM.
        pub preferred_kvm: Option<KvmFeature>,
        /// Paravirtual spinlocks.
        pub preferred_pvspinlock: Option<Feature>,
        /// System management mode.
        pub preferred_smm: Option<Feature>,
    }

    /// Preferred firmware.
    pub struct FirmwarePreferences {
        /// OVMF.
        pub preferred_efi: Option<Efi>,
        /// Whether SeaBIOS is used.
        pub preferred_use_bios: Option<bool>,
        /// Whether messages of SeaBIOS are also written to the serial console.
        pub preferred_use_bios_serial: Option<bool>,
        /// Deprecated: use `preferredEfi`.
        pub preferred_use_efi: Option<bool>,
        /// Deprecated: use `preferredEfi.secureBoot`.
        pub preferred_use_secure_boot: Option<bool>,
    }

    /// Preferred machine type.
    pub struct MachinePreferences {
        /// QEMU machine type.
        pub preferred_machine_type: Option<String>,
    }

    /// Preferred volumes.
    pub struct VolumePreferences {
        /// StorageClass of DataVolume templates.
        pub preferred_storage_class_name: Option<String>,
    }

    /// Least resources of a VM.
    pub struct Requirements {
        /// Architecture that the guest must have.
        pub architecture: Option<String>,
        /// vCPUs.
        pub cpu: Option<CpuRequirement>,
        /// Memory.
        pub memory: Option<MemoryRequirement>,
    }

    /// Least vCPUs.
    pub struct CpuRequirement {
        /// Number of vCPUs.
        pub guest: u32 ["x-required" = true],
    }

    /// Least memory.
    pub struct MemoryRequirement {
        /// Memory of the guest.
        pub guest: Quantity ["x-required" = true],
    }
}
