//! Devices that are neither disks nor network interfaces, and the list of all.

use super::{Disk, Interface};
use crate::resource::resource;

resource! {
    /// All devices.
    pub struct Devices {
        /// Disks, each showing the volume of the same name. At most 256.
        pub disks: Vec<Disk>,
        /// Network interfaces, each on the network of the same name. At most 256. None and no network: one on the pod
        /// network.
        pub interfaces: Vec<Interface>,
        /// Whether a guest without interfaces gets one on the pod network. Default: yes.
        pub autoattach_pod_interface: Option<bool>,
        /// Whether there is a screen, seen by VNC. Default: yes.
        pub autoattach_graphics_device: Option<bool>,
        /// Whether there is a serial console. Default: yes.
        pub autoattach_serial_console: Option<bool>,
        /// Whether the serial console is kept in a file too. Default: yes.
        pub log_serial_console: Option<bool>,
        /// Whether memory can be taken back from the guest (virtio balloon). Default: yes.
        pub autoattach_mem_balloon: Option<bool>,
        /// Whether there is a tablet where `inputs` names none. Default: no.
        pub autoattach_input_device: Option<bool>,
        /// Input devices.
        pub inputs: Vec<Input>,
        /// The screen's adapter. Default: vga with BIOS, bochs with EFI.
        pub video: Option<VideoDevice>,
        /// A sound card.
        pub sound: Option<SoundDevice>,
        /// A source of random numbers.
        pub rng: Option<Rng>,
        /// A watchdog.
        pub watchdog: Option<Watchdog>,
        /// A trusted platform module, version 2.0.
        pub tpm: Option<TpmDevice>,
        /// Devices by which a guest says that it crashed.
        pub panic_devices: Vec<PanicDevice>,
        /// One queue for each processor in virtio disks. Default: no.
        pub block_multi_queue: Option<bool>,
        /// One pair of queues for each processor in virtio interfaces. Default: no.
        pub network_interface_multiqueue: Option<bool>,
        /// virtio 0.9 as well, for guests that are old. Default: no.
        pub use_virtio_transitional: Option<bool>,
        /// No room for disks that are added while the guest runs. Default: no.
        pub disable_hotplug: Option<bool>,
    }

    /// An input device.
    pub struct Input {
        /// Its name.
        pub name: String,
        /// `tablet`.
        #[serde(rename = "type")]
        pub kind: String,
        /// `usb` (default) or `virtio`.
        pub bus: Option<String>,
    }

    /// The screen's adapter.
    pub struct VideoDevice {
        /// `vga`, `bochs`, `virtio` or `ramfb`.
        #[serde(rename = "type")]
        pub kind: Option<String>,
    }

    /// A sound card.
    pub struct SoundDevice {
        /// Its name.
        pub name: String,
        /// `ich9` (default) or `ac97`.
        pub model: Option<String>,
    }

    /// A source of random numbers: virtio, from the host's.
    pub struct Rng {
    }

    /// A watchdog.
    pub struct Watchdog {
        /// Its name.
        pub name: String,
        /// Intel's 6300ESB.
        pub i6300esb: Option<I6300Esb>,
    }

    /// Intel's 6300ESB.
    pub struct I6300Esb {
        /// What happens when the guest is silent: `reset` (default), `poweroff` or `shutdown`.
        pub action: Option<String>,
    }

    /// A trusted platform module.
    pub struct TpmDevice {
        /// Default: yes.
        pub enabled: Option<bool>,
        /// Keep what it holds when the guest stops. Default: no.
        pub persistent: Option<bool>,
    }

    /// A device by which a guest says that it crashed.
    pub struct PanicDevice {
        /// `isa` (default) or `hyperv`.
        pub model: Option<String>,
    }
}
