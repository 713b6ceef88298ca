//! Devices of a guest other than disks and network interfaces, and the list of all devices.

use super::{Disk, Filesystem, Gpu, HostDevice, Interface};
use crate::resource::{Empty, resource};

resource! {
    /// Devices of the guest.
    pub struct Devices {
        /// Disks, each backed by the volume of the same name.
        pub disks: Vec<Disk> ["maxItems" = 256],
        /// Network interfaces, each on the network of the same name. Default: one on the pod network.
        pub interfaces: Vec<Interface> ["maxItems" = 256],
        /// Whether a guest without interfaces gets one on the pod network. Default: true.
        pub autoattach_pod_interface: Option<bool>,
        /// Whether the guest has a graphics device, reachable by VNC. Default: true.
        pub autoattach_graphics_device: Option<bool>,
        /// Whether the guest has a serial console. Default: true.
        pub autoattach_serial_console: Option<bool>,
        /// Whether serial console output is logged. Default: true.
        pub log_serial_console: Option<bool>,
        /// Whether the guest has a virtio memory balloon. Default: true.
        pub autoattach_mem_balloon: Option<bool>,
        /// Whether a guest without inputs gets a tablet. Default: false.
        pub autoattach_input_device: Option<bool>,
        /// Input devices.
        pub inputs: Vec<Input>,
        /// Graphics adapter. Default: `vga` with BIOS, `bochs` with EFI.
        pub video: Option<VideoDevice>,
        /// Sound card.
        pub sound: Option<SoundDevice>,
        /// Virtio random number generator, backed by the host.
        pub rng: Option<Rng>,
        /// Watchdog.
        pub watchdog: Option<Watchdog>,
        /// Trusted platform module, version 2.0.
        pub tpm: Option<TpmDevice>,
        /// Devices through which the guest reports a crash.
        pub panic_devices: Vec<PanicDevice>,
        /// Whether virtio disks have one queue per vCPU. Default: false.
        pub block_multi_queue: Option<bool>,
        /// Whether virtio interfaces have one queue pair per vCPU. Default: false.
        pub network_interface_multiqueue: Option<bool>,
        /// Whether virtio devices also support virtio 0.9, for old guests. Default: false.
        pub use_virtio_transitional: Option<bool>,
        /// Whether hotplug of disks is disabled. Default: false.
        pub disable_hotplug: Option<bool>,
        /// Whether the guest has a VSOCK device. Default: false.
        #[serde(rename = "autoattachVSOCK")]
        pub autoattach_vsock: Option<bool>,
        /// USB devices that a client redirects to the guest.
        pub client_passthrough: Option<Empty>,
        /// Virtio device by which the guest reads metrics of the host.
        pub downward_metrics: Option<Empty>,
        /// Directories shared by virtiofs.
        pub filesystems: Vec<Filesystem>,
        /// GPUs of the host.
        pub gpus: Vec<Gpu>,
        /// Other devices of the host.
        pub host_devices: Vec<HostDevice>,
    }

    /// Input device.
    pub struct Input {
        /// Name.
        pub name: String ["x-required" = true],
        /// `tablet`.
        #[serde(rename = "type")]
        pub kind: String ["x-required" = true],
        /// `usb` (default) or `virtio`.
        pub bus: Option<String>,
    }

    /// Device through which the guest reports a crash.
    pub struct PanicDevice {
        /// `isa` (default), `hyperv` or `pvpanic`.
        pub model: Option<String>,
    }

    /// Sound card.
    pub struct SoundDevice {
        /// Name.
        pub name: String ["x-required" = true],
        /// `ich9` (default) or `ac97`.
        pub model: Option<String>,
    }

    /// Trusted platform module.
    pub struct TpmDevice {
        /// Whether the device is present. Default: true.
        pub enabled: Option<bool>,
        /// Whether its state outlives the guest. Default: false.
        pub persistent: Option<bool>,
    }

    /// Graphics adapter.
    pub struct VideoDevice {
        /// `vga`, `bochs`, `virtio` or `ramfb`.
        #[serde(rename = "type")]
        pub kind: Option<String>,
    }

    /// Watchdog.
    pub struct Watchdog {
        /// Name.
        pub name: String ["x-required" = true],
        /// Intel 6300ESB.
        pub i6300esb: Option<I6300Esb>,
        /// DIAG 288, for s390x.
        pub diag288: Option<Diag288>,
    }

    /// DIAG 288 watchdog.
    pub struct Diag288 {
        /// Action when the guest does not respond: `reset` (default), `poweroff` or `shutdown`.
        pub action: Option<String>,
    }

    /// Intel 6300ESB watchdog.
    pub struct I6300Esb {
        /// Action when the guest does not respond: `reset` (default), `poweroff` or `shutdown`.
        pub action: Option<String>,
    }

    /// Virtio random number generator, backed by the host (no fields).
    pub struct Rng {
    }
}
