//! `CDI`: installation of the storage side of the platform.

use std::collections::BTreeMap;

use super::CdiConfigSpec;
use crate::component::{CertificateLifetime, ComponentPatch};
use crate::core::{Affinity, NodePlacement, Toleration};
use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Installation of the storage side of the platform. One object per cluster.
    pub struct Cdi {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `CDI`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Requested configuration.
        pub spec: CdiSpec ["x-required" = true],
        /// Phase, conditions and versions.
        pub status: Option<CdiStatus>,
    }

    /// Configuration of the storage side of the platform.
    pub struct CdiSpec {
        /// Lifetime of certificates.
        pub cert_config: Option<CdiCertConfig>,
        /// Clone strategy for all storage classes.
        pub clone_strategy_override: Option<String> ["enum" = ["copy", "snapshot", "csi-clone"]],
        /// Settings for data import, copied to `CDIConfig`.
        pub config: Option<CdiConfigSpec>,
        /// Patches for the installed objects.
        pub customize_components: Option<CdiCustomizeComponents>,
        /// Pull policy for all images.
        pub image_pull_policy: Option<String> ["enum" = ["Always", "IfNotPresent", "Never"]],
        /// Placement and replicas of the control plane.
        pub infra: Option<CdiInfra>,
        /// PriorityClass of the control plane pods.
        pub priority_class: Option<String>,
        /// Whether deletion of this object is refused while DataVolumes exist (`BlockUninstallIfWorkloadsExist`) or
        /// deletes them (`RemoveWorkloads`, default).
        pub uninstall_strategy: Option<String> ["enum" = ["RemoveWorkloads", "BlockUninstallIfWorkloadsExist"]],
        /// Placement of worker pods.
        pub workload: Option<NodePlacement>,
    }

    /// Lifetime of the certificates of the storage side.
    pub struct CdiCertConfig {
        /// CA certificates.
        pub ca: Option<CertificateLifetime>,
        /// Client certificates.
        pub client: Option<CertificateLifetime>,
        /// Server certificates.
        pub server: Option<CertificateLifetime>,
    }

    /// Patches for the installed objects of the storage side.
    pub struct CdiCustomizeComponents {
        /// Additional command line flags, by component.
        pub flags: Option<CdiFlags>,
        /// Patches, applied in order.
        pub patches: Vec<ComponentPatch>,
    }

    /// Additional command line flags, by component.
    pub struct CdiFlags {
        /// Flags of the API server, by name.
        pub api: BTreeMap<String, String>,
        /// Flags of the controllers, by name.
        pub controller: BTreeMap<String, String>,
        /// Flags of the upload proxy, by name.
        pub upload_proxy: BTreeMap<String, String>,
    }

    /// Placement and replicas of the control plane.
    pub struct CdiInfra {
        /// Affinity of the pods.
        pub affinity: Option<Affinity>,
        /// Replicas of the API server.
        pub api_server_replicas: Option<i32>,
        /// Replicas of the controllers.
        pub deployment_replicas: Option<i32>,
        /// Labels that a node must have.
        pub node_selector: BTreeMap<String, String>,
        /// Taints that the pods tolerate.
        pub tolerations: Vec<Toleration>,
        /// Replicas of the upload proxy.
        pub upload_proxy_replicas: Option<i32>,
    }

    /// State of the storage side of the platform.
    pub struct CdiStatus {
        /// Conditions `Available`, `Progressing` and `Degraded`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// Installed version.
        pub observed_version: Option<String>,
        /// Version of the operator.
        pub operator_version: Option<String>,
        /// `Deploying`, `Deployed`, `Upgrading`, `Deleting`, `Deleted` or `Error`.
        pub phase: Option<String>,
        /// Version that is being installed.
        pub target_version: Option<String>,
    }
}
