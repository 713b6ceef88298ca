//! The machine: processors, memory, firmware.

use std::collections::BTreeMap;

use super::{Clock, Devices, Features};
use crate::resource::{Quantity, resource};

resource! {
    /// The machine that a guest sees.
    pub struct Domain {
        /// Memory and processors as Kubernetes counts them.
        pub resources: Option<Resources>,
        /// Processors.
        pub cpu: Option<Cpu>,
        /// Memory.
        pub memory: Option<Memory>,
        /// Kind of board.
        pub machine: Option<Machine>,
        /// BIOS or EFI, and what they tell about the machine.
        pub firmware: Option<Firmware>,
        /// What clocks show.
        pub clock: Option<Clock>,
        /// ACPI, SMM, Hyper-V's enlightenments.
        pub features: Option<Features>,
        /// Disks, interfaces and everything else.
        pub devices: Devices,
        /// Which threads serve disks: `shared` (all one), `auto` (several, in turn) or `supplementalPool`. Default: the
        /// main thread, but for disks that ask for one of their own.
        pub io_threads_policy: Option<String>,
        /// Threads of the supplemental pool.
        pub io_threads: Option<IoThreads>,
        /// What SMBIOS says about the case.
        pub chassis: Option<Chassis>,
        /// `Reboot` (default): a reboot stays within the run. `Terminate`: it ends the run.
        pub reboot_policy: Option<String>,
    }

    /// Memory and processors as Kubernetes counts them.
    pub struct Resources {
        /// What is set aside: `memory`, and `cpu` in cores. Memory of the guest where `memory.guest` is not given.
        pub requests: BTreeMap<String, Quantity>,
        /// What is the most. Memory of the guest where nothing else says it.
        pub limits: BTreeMap<String, Quantity>,
    }

    /// Processors: sockets × cores × threads.
    pub struct Cpu {
        /// Sockets. Default: 1.
        pub sockets: Option<u32>,
        /// Sockets that can be there later without a restart. Default: 4 × `sockets`.
        pub max_sockets: Option<u32>,
        /// Cores of a socket. Default: 1.
        pub cores: Option<u32>,
        /// Threads of a core. Default: 1.
        pub threads: Option<u32>,
        /// `host-model` (default), `host-passthrough`, or a model that libvirt knows.
        pub model: Option<String>,
        /// Features on top of the model's.
        pub features: Vec<CpuFeature>,
    }

    /// A processor's feature.
    pub struct CpuFeature {
        /// As libvirt calls it.
        pub name: String,
        /// `force`, `require` (default), `optional`, `disable` or `forbid`.
        pub policy: Option<String>,
    }

    /// Memory.
    pub struct Memory {
        /// What the guest has at its start.
        pub guest: Option<Quantity>,
        /// What it can get later without a restart. Default: 4 × `guest`.
        pub max_guest: Option<Quantity>,
        /// Memory in huge pages.
        pub hugepages: Option<Hugepages>,
    }

    /// Memory in huge pages.
    pub struct Hugepages {
        /// `2Mi` or `1Gi`.
        pub page_size: Option<Quantity>,
    }

    /// A kind of board.
    pub struct Machine {
        /// QEMU's name: `q35` (default) or one with its version, such as `pc-q35-7.2`.
        #[serde(rename = "type")]
        pub kind: String,
    }

    /// BIOS or EFI, and what they tell about the machine.
    pub struct Firmware {
        /// The machine's UUID in SMBIOS. Default: derived from the object.
        pub uuid: Option<String>,
        /// The machine's serial number in SMBIOS. Default: derived from the object.
        pub serial: Option<String>,
        /// Which firmware. Default: BIOS.
        pub bootloader: Option<Bootloader>,
    }

    /// Which firmware: one of the two.
    pub struct Bootloader {
        /// SeaBIOS.
        pub bios: Option<Bios>,
        /// OVMF.
        pub efi: Option<Efi>,
    }

    /// SeaBIOS.
    pub struct Bios {
        /// Show its messages on the serial console too. Default: no.
        pub use_serial: Option<bool>,
    }

    /// OVMF.
    pub struct Efi {
        /// Start signed loaders only; needs `features.smm`. Default: yes.
        pub secure_boot: Option<bool>,
        /// Keep its variables when the guest stops. Default: no.
        pub persistent: Option<bool>,
    }

    /// Threads of the supplemental pool.
    pub struct IoThreads {
        /// How many.
        pub supplemental_pool_thread_count: Option<u32>,
    }

    /// What SMBIOS says about the case.
    pub struct Chassis {
        /// Who made it.
        pub manufacturer: Option<String>,
        /// Its version.
        pub version: Option<String>,
        /// Its serial number.
        pub serial: Option<String>,
        /// Its tag in an inventory.
        pub asset: Option<String>,
        /// Its number in a catalogue.
        pub sku: Option<String>,
    }
}
