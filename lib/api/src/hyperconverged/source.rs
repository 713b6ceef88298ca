//! Boot image imports of `HyperConverged`.

use std::collections::BTreeMap;

use crate::cdi::{DataVolumeSpec, DataVolumeStatus};
use crate::resource::resource;

resource! {
    /// Regular import of a boot image.
    pub struct SourceTemplate {
        /// Metadata of the DataImportCron.
        pub metadata: Option<TemplateMeta>,
        /// Source, schedule and retention. May be omitted to switch off a common import of the same name.
        pub spec: Option<ImportCron>,
    }

    /// Metadata of objects that are created from a template.
    pub struct TemplateMeta {
        /// Annotations.
        pub annotations: BTreeMap<String, String>,
        /// Finalizers.
        pub finalizers: Vec<String>,
        /// Labels.
        pub labels: BTreeMap<String, String>,
        /// Name.
        pub name: Option<String>,
        /// Namespace. Default: that of the boot images.
        pub namespace: Option<String>,
    }

    /// Source, schedule and retention of a boot image import.
    pub struct ImportCron {
        /// `Outdated` (default) deletes old imports, `Never` keeps them.
        pub garbage_collect: Option<String>,
        /// Number of imports that are kept. Default: 1.
        pub imports_to_keep: Option<i32>,
        /// Name of the DataSource that points to the latest import.
        pub managed_data_source: String ["x-required" = true],
        /// `None` (default) deletes imports with the DataImportCron, `RetainAll` keeps them.
        pub retention_policy: Option<String>,
        /// Poll schedule in cron format. Empty: no polling.
        pub schedule: String ["x-required" = true],
        /// ServiceAccount of the polling and import pods.
        pub service_account_name: Option<String> ["minLength" = 1],
        /// DataVolume that each import is created from.
        pub template: ImportTemplate ["x-required" = true],
    }

    /// Template of the DataVolumes of a boot image import.
    pub struct ImportTemplate {
        /// `cdi.kubevirt.io/v1beta1`; may be omitted.
        pub api_version: Option<String>,
        /// `DataVolume`; may be omitted.
        pub kind: Option<String>,
        /// Metadata of the DataVolumes.
        pub metadata: Option<TemplateMeta>,
        /// Spec of the DataVolumes. The source must be `registry`.
        pub spec: DataVolumeSpec ["x-required" = true],
        /// Ignored.
        pub status: Option<DataVolumeStatus>,
    }
}
