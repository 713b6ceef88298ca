//! `DataImportCron`: regular import of an image.

use super::{ClaimSource, DataVolumeSpec, DataVolumeStatus};
use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Regular import of a disk image, kept up to date behind a DataSource.
    pub struct DataImportCron {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `DataImportCron`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Source, schedule and retention.
        pub spec: DataImportCronSpec ["x-required" = true],
        /// State of the latest imports.
        pub status: Option<DataImportCronStatus>,
    }

    /// Source, schedule and retention of a DataImportCron.
    pub struct DataImportCronSpec {
        /// `Outdated` (default) deletes old imports, `Never` keeps them.
        pub garbage_collect: Option<String>,
        /// Number of imports that are kept. Default: 3.
        pub imports_to_keep: Option<i32>,
        /// Name of the DataSource that points to the latest import.
        pub managed_data_source: String ["x-required" = true],
        /// `RetainAll` (default) keeps imports when the DataImportCron is deleted, `None` deletes them.
        pub retention_policy: Option<String>,
        /// Poll schedule in cron format. Empty: no polling.
        pub schedule: String ["x-required" = true],
        /// ServiceAccount of the polling and import pods.
        pub service_account_name: Option<String> ["minLength" = 1],
        /// DataVolume that each import is created from.
        pub template: DataImportCronTemplate ["x-required" = true],
    }

    /// Template of the DataVolumes that a DataImportCron creates.
    pub struct DataImportCronTemplate {
        /// `cdi.kubevirt.io/v1beta1`; may be omitted.
        pub api_version: Option<String>,
        /// `DataVolume`; may be omitted.
        pub kind: Option<String>,
        /// Metadata of the DataVolumes.
        pub metadata: ObjectMeta,
        /// Spec of the DataVolumes. The source must be `registry`.
        pub spec: DataVolumeSpec ["x-required" = true],
        /// Ignored.
        pub status: Option<DataVolumeStatus>,
    }

    /// State of a DataImportCron.
    pub struct DataImportCronStatus {
        /// Conditions `Progressing` and `UpToDate`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// Imports in progress.
        pub current_imports: Vec<CurrentImport>,
        /// Time of the last poll (RFC 3339).
        pub last_execution_timestamp: Option<String> ["format" = "date-time"],
        /// Time of the last successful import (RFC 3339).
        pub last_import_timestamp: Option<String> ["format" = "date-time"],
        /// Claim or snapshot of the last successful import.
        #[serde(rename = "lastImportedPVC")]
        pub last_imported_pvc: Option<ClaimSource>,
        /// `pvc` or `snapshot`: form in which imports are kept.
        pub source_format: Option<String>,
    }

    /// Import in progress.
    pub struct CurrentImport {
        /// Name of the DataVolume.
        #[serde(rename = "DataVolumeName")]
        pub data_volume_name: String ["x-required" = true],
        /// Digest of the image that is imported.
        #[serde(rename = "Digest")]
        pub digest: String ["x-required" = true],
    }
}
