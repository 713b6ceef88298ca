//! The fields read from a DataImportCron.

pub use api::poll::{DESIRED, LAST_POLLED};
use serde_json::Value;

use crate::storage::seen::{Meta, Source, text};

/// Annotation: when the source is polled next, RFC 3339.
pub const NEXT_POLL: &str = "cdi.kubevirt.io/storage.import.nextCronTime";
/// Annotation of imports: when the last cron used them, RFC 3339.
pub const LAST_USED: &str = "cdi.kubevirt.io/storage.import.lastUseTime";
/// Annotation of crons: storage class of the latest import.
pub const STORAGE_CLASS: &str = "cdi.kubevirt.io/storage.import.storageClass";
/// Annotation of snapshots: size that a claim should have into which it is restored.
pub const ADVISED_SIZE: &str = "cdi.kubevirt.io/storage.import.advisedRestoreSize";
/// Label of imports, snapshots and DataSources: name of their DataImportCron.
pub const CRON: &str = "cdi.kubevirt.io/dataImportCron";
/// Label of imports that may be deleted when they are old.
pub const CLEANUP: &str = "cdi.kubevirt.io/dataImportCron.cleanup";

/// The fields read.
#[derive(Clone, Debug, PartialEq)]
pub struct Cron {
    /// Metadata.
    pub meta: Meta,
    /// `spec.template`.
    pub template: Value,
    /// The template's source.
    pub source: Source,
    /// `spec.managedDataSource`.
    pub managed: String,
    /// ServiceAccount that has to be allowed to clone the source: `spec.serviceAccountName`, else that of the template;
    /// empty for `default`.
    pub account: String,
    /// `spec.schedule`; empty for no polls.
    pub schedule: String,
    /// Imports that are kept.
    pub keep: usize,
    /// Whether old imports are deleted.
    pub collects: bool,
    /// Whether imports and DataSource stay when the cron is deleted.
    pub retains: bool,
    /// `status`.
    pub status: Value,
}

impl From<&Value> for Cron {
    fn from(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            meta: Meta::from(object),
            source: Source::from(&spec["template"]["spec"]["source"]),
            template: spec["template"].clone(),
            account: [&spec["serviceAccountName"], &spec["template"]["spec"]["serviceAccountName"]]
                .into_iter()
                .map(text)
                .find(|name| !name.is_empty())
                .unwrap_or_default(),
            managed: text(&spec["managedDataSource"]),
            schedule: text(&spec["schedule"]),
            keep: spec["importsToKeep"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(3),
            collects: spec["garbageCollect"] != "Never",
            retains: spec["retentionPolicy"] != "None",
            status: object["status"].clone(),
        }
    }
}

impl Cron {
    /// Digest of the latest import in the status.
    pub fn current(&self) -> Option<(&str, &str)> {
        let import = &self.status["currentImports"][0];
        Some((import["DataVolumeName"].as_str()?, import["Digest"].as_str()?))
    }
}
