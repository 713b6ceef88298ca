//! The group instancetype.kubevirt.io, version v1beta1, with all of upstream's fields as of KubeVirt 1.9: instance types
//! (size of a VM) and preferences (defaults of its devices), each for one namespace or for the cluster.
//!
//! Not here: how they change a VM, which is decided in lib/virt.

mod preference;
mod size;

pub use preference::{
    ClockOffset, ClockPreferences, CpuPreferences, CpuRequirement, DevicePreferences, FeaturePreferences,
    FirmwarePreferences, MachinePreferences, MemoryRequirement, Requirements, SpreadOptions,
    VirtualMachineClusterPreference, VirtualMachinePreference, VirtualMachinePreferenceSpec,
    VolumePreferences,
};
pub use size::{
    CpuInstancetype, MemoryInstancetype, VirtualMachineClusterInstancetype, VirtualMachineInstancetype,
    VirtualMachineInstancetypeSpec,
};

/// Group and version as objects write them.
pub const API_VERSION: &str = "instancetype.kubevirt.io/v1beta1";
