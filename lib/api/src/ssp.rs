//! The group ssp.kubevirt.io: `SSP`, the boot sources and templates of the platform, in its version v1beta3.
//!
//! Not here: v1beta2, and what the settings do.

use crate::core::NodePlacement;
use crate::hyperconverged::{ImportCron, TemplateMeta, TlsProfile};
use crate::resource::{Condition, ObjectMeta, resource};

/// Group and version as objects write them.
pub const API_VERSION: &str = "ssp.kubevirt.io/v1beta3";

resource! {
    /// Boot sources, templates and their validation.
    pub struct Ssp {
        /// `ssp.kubevirt.io/v1beta3`.
        pub api_version: String,
        /// `SSP`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Requested configuration.
        pub spec: SspSpec,
        /// Phase, conditions and versions.
        pub status: Option<SspStatus>,
    }

    /// Configuration of boot sources and templates.
    pub struct SspSpec {
        /// Architectures of the cluster.
        pub cluster: Option<ClusterArchitectures>,
        /// Templates and boot image imports.
        pub common_templates: CommonTemplates ["x-required" = true],
        /// Whether boot images are imported for every architecture of the cluster.
        pub enable_multiple_architectures: Option<bool>,
        /// Validation of VMs against their template.
        pub template_validator: Option<TemplateValidator>,
        /// TLS versions and ciphers of the servers.
        pub tls_security_profile: Option<TlsProfile>,
        /// Service that issues VNC tokens.
        pub token_generation_service: Option<TokenGenerationService>,
    }

    /// Architectures of the cluster.
    pub struct ClusterArchitectures {
        /// Architectures of the control plane nodes.
        pub control_plane_architectures: Vec<String>,
        /// Architectures of the nodes that run VMs.
        pub workload_architectures: Vec<String>,
    }

    /// Templates and boot image imports.
    pub struct CommonTemplates {
        /// Boot image imports.
        pub data_import_cron_templates: Vec<BootSource>,
        /// Namespace of the templates.
        pub namespace: String ["x-required" = true, "maxLength" = 63, "pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"],
    }

    /// Regular import of a boot image.
    pub struct BootSource {
        /// Metadata of the DataImportCron.
        pub metadata: Option<TemplateMeta>,
        /// Source, schedule and retention.
        pub spec: ImportCron ["x-required" = true],
    }

    /// Validation of VMs against their template.
    pub struct TemplateValidator {
        /// Nodes of the pods.
        pub placement: Option<NodePlacement>,
        /// Number of replicas.
        pub replicas: Option<i32> ["x-default" = 2, "minimum" = 0],
    }

    /// Service that issues VNC tokens.
    pub struct TokenGenerationService {
        /// Whether it is deployed.
        pub enabled: Option<bool>,
    }

    /// State of boot sources and templates.
    pub struct SspStatus {
        /// Conditions `Available`, `Progressing` and `Degraded`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// `metadata.generation` that the status describes.
        pub observed_generation: Option<i64>,
        /// Installed version.
        pub observed_version: Option<String>,
        /// Version of the operator.
        pub operator_version: Option<String>,
        /// Whether reconciliation is paused by an annotation.
        pub paused: Option<bool>,
        /// `Deploying`, `Deployed`, `Deleting`, `Deleted` or `Error`.
        pub phase: Option<String>,
        /// Version that is being installed.
        pub target_version: Option<String>,
    }
}
