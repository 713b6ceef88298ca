//! Status of `HyperConverged`, equal in both versions.

use super::source::{ImportCron, TemplateMeta};
use crate::resource::resource;

resource! {
    /// State of the platform.
    pub struct HyperConvergedStatus {
        /// Conditions `ReconcileComplete`, `Available`, `Progressing`, `Degraded`, `Upgradeable`, and
        /// `TaintedConfiguration` while an annotation patches a child object.
        pub conditions: Vec<Condition>,
        /// Boot image imports in effect.
        pub data_import_cron_templates: Vec<SourceTemplateStatus>,
        /// Schedule of the boot image imports, in cron format; chosen once at random.
        pub data_import_schedule: Option<String>,
        /// Whether the control plane has at least two nodes to run on.
        pub infrastructure_highly_available: Option<bool>,
        /// Architectures of the nodes.
        pub node_info: Option<NodeInfo>,
        /// `metadata.generation` that the status describes.
        pub observed_generation: Option<i64>,
        /// Objects that were created for this one.
        pub related_objects: Vec<RelatedObject>,
        /// `healthy`, `warning` or `error`.
        pub system_health_status: Option<String>,
        /// Installed versions, by component.
        pub versions: Vec<Version>,
    }

    /// Boot image import in effect.
    pub struct SourceTemplateStatus {
        /// Metadata of the DataImportCron.
        pub metadata: Option<TemplateMeta>,
        /// Source, schedule and retention.
        pub spec: Option<ImportCron>,
        /// Origin and problems of the import.
        pub status: Option<SourceStatus>,
    }

    /// Origin and problems of a boot image import.
    pub struct SourceStatus {
        /// Whether the import is one of the common ones.
        pub common_template: Option<bool>,
        /// Problems of the import.
        pub conditions: Vec<Condition>,
        /// Whether a common import was changed.
        pub modified: Option<bool>,
        /// Architectures that the import names and no node has.
        pub original_supported_architectures: Option<String>,
    }

    /// State of one aspect, with the fields of Kubernetes' own conditions.
    pub struct Condition {
        /// Time of the last change of `status` (RFC 3339).
        pub last_transition_time: String ["x-required" = true, "format" = "date-time"],
        /// Explanation for people.
        pub message: String ["x-required" = true, "maxLength" = 32768],
        /// `metadata.generation` that the condition describes.
        pub observed_generation: Option<i64> ["minimum" = 0],
        /// Machine-readable reason, one CamelCase word.
        pub reason: String ["x-required" = true, "minLength" = 1, "maxLength" = 1024, "pattern" = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"],
        /// `True`, `False` or `Unknown`.
        pub status: String ["x-required" = true, "enum" = ["True", "False", "Unknown"]],
        /// Aspect that the condition describes.
        #[serde(rename = "type")]
        pub kind: String ["x-required" = true, "maxLength" = 316, "pattern" = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"],
    }

    /// Architectures of the nodes.
    pub struct NodeInfo {
        /// Architectures of the control plane nodes.
        pub control_plane_architectures: Vec<String>,
        /// Architecture of VMs that name none.
        pub default_workload_architecture: Option<String>,
        /// Architectures of the nodes that run VMs.
        pub workloads_architectures: Vec<String>,
    }

    /// Reference to a created object.
    pub struct RelatedObject {
        /// Group and version.
        pub api_version: Option<String>,
        /// Unused.
        pub field_path: Option<String>,
        /// Kind.
        pub kind: Option<String>,
        /// Name.
        pub name: Option<String>,
        /// Namespace.
        pub namespace: Option<String>,
        /// Version of the object when it was last seen.
        pub resource_version: Option<String>,
        /// UUID.
        pub uid: Option<String>,
    }

    /// Version of a component.
    pub struct Version {
        /// Component, such as `operator`.
        pub name: Option<String>,
        /// Version.
        pub version: Option<String>,
    }
}
