//! The group ssp.kubevirt.io: `SSP`, the boot sources and templates of the platform, in its version v1beta3, and the schema
//! of v1beta2.
//!
//! Not here: what the settings do.

use serde_json::{Value, json};

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

/// The schema of v1beta2, made of that of v1beta3. Fields that only v1beta2 has are accepted and not stored: all of them are
/// about components that v1beta3 no longer has. A write through v1beta2 drops the fields that only v1beta3 has.
pub fn v1beta2(mut schema: Value) -> Value {
    let gate = |of: &str| json!({"type": "boolean", "description": format!("Whether {of} deployed.")});
    let namespace = |of: &str| {
        json!({"type": "object", "description": format!("Tekton {of}."), "properties": {
            "namespace": {"type": "string", "description": format!("Namespace of the {of}.")}}})
    };
    schema["properties"]["apiVersion"]["description"] = json!("`ssp.kubevirt.io/v1beta2`.");
    let spec = &mut schema["properties"]["spec"]["properties"];
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("cluster");
        fields.remove("enableMultipleArchitectures");
    }
    spec["commonInstancetypes"] = json!({"type": "object", "description": "Source of instance types.", "properties": {
        "url": {"type": "string", "description": "URL of a kustomization."}}});
    spec["featureGates"] = json!({"type": "object", "description": "Components that are deployed.", "properties": {
        "deployCommonInstancetypes": gate("instance types are"),
        "deployTektonTaskResources": gate("Tekton tasks are"),
        "deployVmConsoleProxy": gate("the proxy of VNC tokens is"),
    }});
    spec["tektonPipelines"] = namespace("pipelines");
    spec["tektonTasks"] = namespace("tasks");
    schema
}
