//! The group kubevirt.io, version v1: `VirtualMachine` and `VirtualMachineInstance`, upstream's fields as of KubeVirt 1.9.
//!
//! What is named here has a meaning for ferrovirt; the rest of upstream's fields is kept (see [`crate::resource`]) and
//! told by the programs that cannot follow it.
//!
//! Not here: defaults that depend on the machine, and the rules between fields.

mod clock;
mod device;
mod disk;
mod domain;
mod features;
mod instance;
mod machine;
mod network;
mod volume;

pub use clock::{Clock, Timer, Timers, UtcOffset};
pub use device::{Devices, I6300Esb, Input, PanicDevice, Rng, SoundDevice, TpmDevice, VideoDevice, Watchdog};
pub use disk::{BlockSize, CdRomTarget, CustomBlockSize, Disk, DiskTarget, LunTarget, MatchVolume};
pub use domain::{
    Bios, Bootloader, Chassis, Cpu, CpuFeature, Domain, Efi, Firmware, Hugepages, IoThreads, Machine, Memory,
    Resources,
};
pub use features::{Apic, Feature, Features, Hyperv, KvmFeature, Spinlocks, SynicTimer, TlbFlush, VendorId};
pub use instance::{
    ClaimInfo, CpuTopology, GuestOsInfo, HotplugVolumeStatus, InterfaceStatus, MachineStatus, MemoryStatus,
    PhaseTransition, VirtualMachineInstance, VirtualMachineInstanceSpec, VirtualMachineInstanceStatus,
    VolumeStatus,
};
pub use machine::{
    DataVolumeTemplate, StartFailure, StateChangeRequest, Template, VirtualMachine, VirtualMachineSpec,
    VirtualMachineStatus,
};
pub use network::{BridgeBinding, Interface, MasqueradeBinding, MultusNetwork, Network, PodNetwork, Port};
pub use volume::{
    ClaimVolume, CloudInit, ConfigMapVolume, ContainerDisk, DataVolumeReference, DownwardApi,
    DownwardApiField, EmptyDisk, EphemeralVolume, FieldReference, HostDisk, SecretVolume, Sysprep, Volume,
};

/// Group and version as objects write them.
pub const API_VERSION: &str = "kubevirt.io/v1";
