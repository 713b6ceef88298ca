//! The board: processors, memory, firmware, clocks, features.

use serde::{Deserialize, Serialize};

use super::words;

words! {
    /// The policy of a CPU feature.
    pub enum FeaturePolicy {
        /// Claimed, whether or not it is there.
        Force = "force",
        /// The guest does not start without it.
        Require = "require",
        /// If it is there.
        Optional = "optional",
        /// Not shown.
        Disable = "disable",
        /// The guest does not start with it.
        Forbid = "forbid",
    }

    /// The effect of a reboot.
    pub enum OnReboot {
        /// A reboot.
        Restart = "restart",
        /// The end of the run.
        Destroy = "destroy",
    }

    /// A timer.
    pub enum TimerName {
        /// High precision event timer.
        Hpet = "hpet",
        /// KVM's clock.
        Kvm = "kvmclock",
        /// Programmable interval timer.
        Pit = "pit",
        /// Real time clock.
        Rtc = "rtc",
        /// Hyper-V's clock.
        Hyperv = "hypervclock",
    }

    /// The policy for late ticks.
    pub enum TickPolicy {
        /// They come late.
        Delay = "delay",
        /// They come faster until the time is right.
        Catchup = "catchup",
        /// Several become one.
        Merge = "merge",
        /// They never come.
        Discard = "discard",
    }

    /// An enlightenment that is on or off, by libvirt's name.
    pub enum HypervSwitch {
        /// No watchdog timeouts.
        Relaxed = "relaxed",
        /// Virtual APIC.
        Vapic = "vapic",
        /// Index of virtual processors.
        Vpindex = "vpindex",
        /// Time accounting.
        Runtime = "runtime",
        /// Synthetic interrupts.
        Synic = "synic",
        /// Synthetic timers.
        Stimer = "stimer",
        /// Reset by the hypervisor.
        Reset = "reset",
        /// Frequency registers.
        Frequencies = "frequencies",
        /// Notice of changed frequencies.
        Reenlightenment = "reenlightenment",
        /// Flushing of address caches.
        Tlbflush = "tlbflush",
        /// Interrupts between processors.
        Ipi = "ipi",
        /// Enlightened VMCS.
        Evmcs = "evmcs",
    }

    /// How threads of a guest are pinned to the CPUs that its launcher may use, which are its own.
    pub enum Pinning {
        /// Each vCPU to one of them.
        Vcpus = "vcpus",
        /// The same, and all other threads of QEMU to one more.
        All = "all",
    }

    /// The clock that a timer follows.
    pub enum Track {
        /// The guest's time.
        Guest = "guest",
        /// The host's time.
        Wall = "wall",
    }
}

/// The SMBIOS strings of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Smbios {
    /// UUID of the machine: the same in every run.
    pub uuid: String,
    /// Serial number of the machine.
    pub serial: Option<String>,
    /// The other strings of the machine.
    #[serde(default, skip_serializing_if = "System::is_empty")]
    pub system: System,
    /// The case.
    pub chassis: Chassis,
}

/// The SMBIOS strings of the system, other than those of one guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct System {
    /// The manufacturer. Default: `KubeVirt`.
    pub manufacturer: Option<String>,
    /// The product. Default: `None`.
    pub product: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Its number in a catalogue.
    pub sku: Option<String>,
    /// The family. Default: `KubeVirt`.
    pub family: Option<String>,
}

impl System {
    /// Whether everything is left to the defaults.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The SMBIOS strings of the chassis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chassis {
    /// The manufacturer.
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

/// BIOS or EFI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Firmware {
    /// SeaBIOS, as QEMU brings it.
    Bios {
        /// Whether it shows its messages on the serial console too.
        serial: bool,
    },
    /// OVMF.
    Efi(Efi),
}

/// OVMF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Efi {
    /// The code.
    pub code: String,
    /// Variables that a new guest begins with.
    pub template: String,
    /// The guest's variables; made of the template where the file is missing.
    pub variables: String,
    /// Whether the code is the one for secure boot.
    pub secure_boot: bool,
}

/// A kernel that is started without a boot loader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kernel {
    /// The kernel's file.
    pub image: String,
    /// Its first filesystem.
    pub initrd: Option<String>,
    /// Its command line.
    pub arguments: Option<String>,
}

/// Processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cpu {
    /// Sockets at the start.
    pub sockets: u32,
    /// Sockets that can be there later; not less than `sockets`.
    pub max_sockets: u32,
    /// Cores of a socket.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
    /// The CPU model.
    pub model: CpuModel,
    /// Features on top of the model's.
    pub features: Vec<CpuFeature>,
    /// How threads are pinned; `None`: not at all. Only without room for more sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinning: Option<Pinning>,
}

/// The model of the vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum CpuModel {
    /// The nearest model to the host's.
    HostModel,
    /// The host's.
    HostPassthrough,
    /// Everything that the accelerator can do.
    Maximum,
    /// A model that libvirt knows.
    Named(String),
}

/// A processor's feature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CpuFeature {
    /// As libvirt calls it.
    pub name: String,
    /// Its policy.
    pub policy: FeaturePolicy,
}

/// The model that [`CpuModel::HostModel`] resolved to on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamedCpu {
    /// A model that libvirt knows.
    pub model: String,
    /// Features on top of the model's.
    pub features: Vec<CpuFeature>,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Memory {
    /// At the start: whole MiB.
    pub guest: u64,
    /// The maximum after hotplug, by virtio-mem in blocks of 2 MiB; not less than `guest`.
    pub max_guest: u64,
    /// Huge pages of this size; `None`: ordinary memory.
    pub huge_page: Option<u64>,
}

/// Clock and timers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Clock {
    /// UTC at each start.
    Utc(Vec<Timer>),
    /// Seconds from UTC; what the guest sets is kept.
    Offset(i64, Vec<Timer>),
    /// The time of a zone.
    Timezone(String, Vec<Timer>),
}

/// A timer that is not as the machine type has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Timer {
    /// Which.
    pub name: TimerName,
    /// Whether it is there.
    pub present: bool,
    /// The policy for late ticks.
    pub tick_policy: Option<TickPolicy>,
    /// The clock that it follows.
    pub track: Option<Track>,
}

/// Features of the machine. `None`: the machine type's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Features {
    /// ACPI.
    pub acpi: bool,
    /// Local APIC.
    pub apic: bool,
    /// Paravirtual end of interrupt.
    pub apic_eoi: Option<bool>,
    /// System management mode.
    pub smm: Option<bool>,
    /// Whether KVM hides.
    pub kvm_hidden: bool,
    /// Paravirtual spinlocks.
    pub pvspinlock: Option<bool>,
    /// Hyper-V's enlightenments.
    pub hyperv: Option<Hyperv>,
}

/// Hyper-V's enlightenments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hyperv {
    /// Those that are on or off.
    pub switches: Vec<(HypervSwitch, bool)>,
    /// Attempts at a spinlock before the hypervisor is notified.
    pub spinlocks: Option<u32>,
    /// The hypervisor's vendor id.
    pub vendor_id: Option<String>,
    /// Synthetic timers without synthetic interrupts.
    pub direct_timers: bool,
}
