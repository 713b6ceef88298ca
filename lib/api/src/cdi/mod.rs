//! The group cdi.kubevirt.io, version v1beta1, with all of upstream's fields as of CDI 1.66: `DataVolume`, `DataSource`,
//! `DataImportCron`, `StorageProfile`, `CDI`, `CDIConfig`, `ObjectTransfer` and the sources of claims.
//!
//! Not here: conversion of a source to an importer's job, and rules between fields.

mod config;
mod cron;
mod data_source;
mod platform;
mod populator;
mod profile;
mod source;
mod transfer;
mod volume;

pub use config::{
    CdiConfig, CdiConfigSpec, CdiConfigStatus, FilesystemOverhead, ImportProxy, TlsProfileSpec,
    TlsSecurityProfile, thousandths,
};
pub use cron::{
    CurrentImport, DataImportCron, DataImportCronSpec, DataImportCronStatus, DataImportCronTemplate,
};
pub use data_source::{DataSource, DataSourceSpec, DataSourceStatus, DataSourceTarget};
pub use platform::{Cdi, CdiCertConfig, CdiCustomizeComponents, CdiFlags, CdiInfra, CdiSpec, CdiStatus};
pub use populator::{
    VolumeCloneSource, VolumeCloneSourceSpec, VolumeImportSource, VolumeImportSourceSpec, VolumeUploadSource,
    VolumeUploadSourceSpec,
};
pub use profile::{ClaimPropertySet, StorageProfile, StorageProfileSpec, StorageProfileStatus};
pub use source::{
    BlankSource, ClaimSource, DataVolumeSource, GlanceSource, HttpSource, ImageioSource, ObjectSource,
    Platform, RegistrySource, UploadSource, VddkSource,
};
pub use transfer::{
    ObjectTransfer, ObjectTransferSpec, ObjectTransferStatus, TransferSource, TransferTarget,
};
pub use volume::{
    Checkpoint, DataSourceReference, DataVolume, DataVolumeSpec, DataVolumeStatus, StorageSpec,
};

/// Group and version as objects write them.
pub const API_VERSION: &str = "cdi.kubevirt.io/v1beta1";
/// Annotation of a DataVolume: `true` when another program fills its claim.
pub const EXTERNAL_POPULATION: &str = "cdi.kubevirt.io/externalPopulation";
