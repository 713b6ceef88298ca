//! The group hco.kubevirt.io: `HyperConverged`, the entry point of the platform, in its versions v1 (stored) and v1beta1,
//! and the conversion between them.
//!
//! Not here: rules between fields, and what the settings do.

mod convert;
mod device;
mod gates;
mod migration;
mod settings;
mod source;
mod status;
pub mod v1;
pub mod v1beta1;

pub use convert::{ANNOTATION, ConvertError, beta_path, convert};
pub use device::{HostDevices, MediatedDevice, PciDevice, UsbDevice};
pub use gates::{Gate, Stage};
pub use migration::{LiveMigration, WorkloadUpdate};
pub use settings::{
    AllowedMetrics, ApplicationAwareQuota, CaLifetime, Certificates, CustomTlsProfile, Density, LogLevels,
    MacRange, PersistentReservation, ServerLifetime, StorageImport, TlsProfile, VirtualMachineSettings,
};
pub use source::{ImportCron, ImportTemplate, SourceTemplate, TemplateMeta};
pub use status::{
    Condition, HyperConvergedStatus, NodeInfo, RelatedObject, SourceStatus, SourceTemplateStatus, Version,
};

/// API group.
pub const GROUP: &str = "hco.kubevirt.io";
/// Group and stored version as objects write them.
pub const API_VERSION: &str = "hco.kubevirt.io/v1";
/// Group and older version as objects write them.
pub const API_VERSION_BETA: &str = "hco.kubevirt.io/v1beta1";
/// Name of the one object in a cluster.
pub const NAME: &str = "kubevirt-hyperconverged";
