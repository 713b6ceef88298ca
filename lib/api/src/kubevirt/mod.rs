//! The group kubevirt.io, version v1, with all of upstream's fields as of KubeVirt 1.9: `VirtualMachine`,
//! `VirtualMachineInstance`, `VirtualMachineInstanceMigration`, `VirtualMachineInstanceReplicaSet`,
//! `VirtualMachineInstancePreset`, `KubeVirt`; and `VirtualMachinePool`, `MigrationPolicy` of groups of their own.
//!
//! Not here: defaults, rules between fields, and which fields ferrovirt implements.

mod access;
mod backup;
mod boot_status;
mod clock;
mod component_configuration;
mod configuration;
mod developer_configuration;
mod device;
mod device_configuration;
mod disk;
mod domain;
mod features;
mod firmware;
mod guest_configuration;
mod host_device;
mod instance;
mod instance_status;
mod launch_security;
mod machine;
mod machine_status;
mod migration;
mod migration_configuration;
mod migration_policy;
mod migration_state;
mod network;
mod network_configuration;
mod platform;
mod pool;
mod preset;
mod replica_set;
mod volume;
mod volume_status;

pub use access::{
    AccessCredential, AgentUsers, CredentialSource, PasswordPropagation, SecretReference, SshPropagation,
    SshPublicKey, UserPassword,
};
pub use backup::{BackupStatus, BackupVolume, ChangedBlockTrackingStatus};
pub use boot_status::{BootFileStatus, KernelBootStatus};
pub use clock::{Clock, Timer, Timers, UtcOffset};
pub use component_configuration::{
    CustomSeccompProfile, InstanceSeccompProfile, RateLimiter, ReloadableComponent, RestClient,
    SeccompConfiguration, SupportContainerResources, TlsConfiguration, TokenBucket,
};
pub use configuration::{KubeVirtConfiguration, OptionalDeployment};
pub use developer_configuration::{DeveloperConfiguration, DiskVerification, LogVerbosity};
pub use device::{
    Devices, Diag288, I6300Esb, Input, PanicDevice, Rng, SoundDevice, TpmDevice, VideoDevice, Watchdog,
};
pub use device_configuration::{
    MediatedDevicesConfiguration, NodeMediatedDevices, PermittedHostDevices, PermittedMediatedDevice,
    PermittedPciDevice, PermittedUsbDevice, UsbSelector,
};
pub use disk::{BlockSize, CdRomTarget, CustomBlockSize, Disk, DiskTarget, LunTarget, MatchVolume};
pub use domain::{
    Cpu, CpuFeature, Domain, Hugepages, IoThreads, Machine, Memory, Numa, Realtime, ReservedOverhead,
    Resources,
};
pub use features::{Apic, Feature, Features, Hyperv, KvmFeature, Spinlocks, SynicTimer, TlbFlush, VendorId};
pub use firmware::{AcpiTables, Bios, Bootloader, Chassis, Efi, Firmware, KernelBoot, KernelBootContainer};
pub use guest_configuration::{
    ArchitectureConfiguration, ArchitectureDefaults, ChangedBlockTrackingSelectors, ConfidentialCompute,
    Hypervisor, InstancetypeConfiguration, KsmConfiguration, LiveUpdateConfiguration, SmbiosConfiguration,
    TdxAttestation, TdxConfiguration, VirtualMachineOptions,
};
pub use host_device::{Filesystem, Gpu, HostDevice, VirtualGpuDisplay, VirtualGpuOptions};
pub use instance::{VirtualMachineInstance, VirtualMachineInstanceSpec};
pub use instance_status::{
    CpuTopology, GuestOsInfo, InterfaceStatus, MachineStatus, MemoryStatus, PhaseTransition, TopologyHints,
    VirtualMachineInstanceStatus,
};
pub use launch_security::{LaunchSecurity, Sev, SevPolicy};
pub use machine::{
    DataVolumeTemplate, FlavorReference, StartFailure, StateChangeRequest, Template, VirtualMachine,
    VirtualMachineSpec, VirtualMachineStatus,
};
pub use machine_status::{
    AddVolumeOptions, ControllerRevisionReference, FlavorStatus, HotplugVolumeSource, MemoryDumpRequest,
    RemoveVolumeOptions, VolumeMigrationState, VolumeRequest, VolumeSnapshotStatus, VolumeUpdateState,
};
pub use migration::{
    MigrationReceive, MigrationSend, VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec,
    VirtualMachineInstanceMigrationStatus,
};
pub use migration_configuration::{
    DowntimeTuning, ExperimentalMigration, MigrationConfiguration, StallDetector,
};
pub use migration_policy::{MigrationPolicy, MigrationPolicySpec, MigrationSelectors};
pub use migration_state::{MigrationSource, MigrationState, MigrationTarget};
pub use network::{
    BridgeBinding, DhcpOptions, DhcpPrivateOption, Interface, MasqueradeBinding, MultusNetwork, Network,
    NetworkClaim, PluginBinding, PodNetwork, Port, PortRange,
};
pub use network_configuration::{BindingMigration, BindingPlugin, NetworkConfiguration};
pub use platform::{
    CertificateRotateStrategy, ComponentFlags, ComponentPlacement, CustomizeComponents, GenerationStatus,
    KubeVirt, KubeVirtSpec, KubeVirtStatus, SelfSignedCertificates, WorkloadUpdateStrategy,
};
pub use pool::{
    Autohealing, NameGeneration, OpportunisticScaleIn, PoolSelectors, PoolTemplate, PoolUpdateStrategy,
    ProactiveScaleIn, ProactiveUpdate, ScaleInStrategy, SelectionPolicy, VirtualMachinePool,
    VirtualMachinePoolSpec, VirtualMachinePoolStatus,
};
pub use preset::{VirtualMachineInstancePreset, VirtualMachineInstancePresetSpec};
pub use replica_set::{
    VirtualMachineInstanceReplicaSet, VirtualMachineInstanceReplicaSetSpec,
    VirtualMachineInstanceReplicaSetStatus,
};
pub use volume::{
    ClaimVolume, CloudInit, ConfigMapVolume, ContainerDisk, ContainerPath, DataVolumeReference, DownwardApi,
    DownwardApiField, EmptyDisk, EphemeralVolume, FieldReference, HostDisk, ResourceFieldReference,
    SecretVolume, ServiceAccountVolume, Sysprep, UtilityVolume, Volume,
};
pub use volume_status::{
    ClaimInfo, HotplugVolumeStatus, MemoryDumpStatus, MigratedVolume, Target, VolumeStatus,
};

/// Group and version as objects write them.
pub const API_VERSION: &str = "kubevirt.io/v1";
