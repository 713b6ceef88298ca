//! `KubeVirt`: installation of the compute side of the platform.

use std::collections::BTreeMap;

use super::KubeVirtConfiguration;
use crate::component::{CertificateLifetime, ComponentPatch};
use crate::core::NodePlacement;
use crate::resource::{Condition, LocalReference, ObjectMeta, resource};

resource! {
    /// Installation of the compute side of the platform. One object per cluster.
    pub struct KubeVirt {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `KubeVirt`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Requested configuration.
        pub spec: KubeVirtSpec ["x-required" = true],
        /// Phase, conditions and versions.
        pub status: Option<KubeVirtStatus>,
    }

    /// Configuration of the compute side of the platform.
    pub struct KubeVirtSpec {
        /// Lifetime and rotation of certificates.
        pub certificate_rotate_strategy: Option<CertificateRotateStrategy>,
        /// Settings of guests and components.
        pub configuration: Option<KubeVirtConfiguration>,
        /// Patches for the installed objects.
        pub customize_components: Option<CustomizeComponents>,
        /// `Always`, `IfNotPresent` or `Never`: pull policy for all images.
        pub image_pull_policy: Option<String>,
        /// Secrets in the namespaces of guests that their pods' images are pulled with.
        pub image_pull_secrets: Vec<LocalReference>,
        /// Registry of the images. Default: that of the operator's image.
        pub image_registry: Option<String>,
        /// Tag of the images. Default: that of the operator's image.
        pub image_tag: Option<String>,
        /// Placement of the control plane.
        pub infra: Option<ComponentPlacement>,
        /// ServiceAccount of Prometheus.
        pub monitor_account: Option<String>,
        /// Namespace of Prometheus.
        pub monitor_namespace: Option<String>,
        /// Value of the label `app.kubernetes.io/component` on installed objects.
        pub product_component: Option<String>,
        /// Value of the label `app.kubernetes.io/part-of` on installed objects.
        pub product_name: Option<String>,
        /// Value of the label `app.kubernetes.io/version` on installed objects.
        pub product_version: Option<String>,
        /// Namespace in which the ServiceMonitor is created.
        pub service_monitor_namespace: Option<String>,
        /// Port of the synchronization controller.
        pub synchronization_port: Option<String>,
        /// `BlockUninstallIfWorkloadsExist` refuses deletion of this object while VMs exist, `RemoveWorkloads`
        /// (default) deletes them.
        pub uninstall_strategy: Option<String>,
        /// Update of running guests to a new launcher version.
        pub workload_update_strategy: Option<WorkloadUpdateStrategy>,
        /// Placement of guests.
        pub workloads: Option<ComponentPlacement>,
    }

    /// Lifetime and rotation of certificates.
    pub struct CertificateRotateStrategy {
        /// Certificates signed by the operator's own CA.
        pub self_signed: Option<SelfSignedCertificates>,
    }

    /// Lifetime of certificates signed by the operator's own CA.
    pub struct SelfSignedCertificates {
        /// Lifetime of the CA certificate.
        pub ca: Option<CertificateLifetime>,
        /// Deprecated and ignored.
        pub ca_overlap_interval: Option<String>,
        /// Deprecated: use `ca.duration`.
        pub ca_rotate_interval: Option<String>,
        /// Deprecated: use `server.duration`.
        pub cert_rotate_interval: Option<String>,
        /// Lifetime of server and client certificates.
        pub server: Option<CertificateLifetime>,
    }

    /// Patches for the installed objects of the compute side.
    pub struct CustomizeComponents {
        /// Additional command line flags, by component.
        pub flags: Option<ComponentFlags>,
        /// Patches, applied in order.
        pub patches: Vec<ComponentPatch>,
    }

    /// Additional command line flags, by component.
    pub struct ComponentFlags {
        /// Flags of the API server, by name.
        pub api: BTreeMap<String, String>,
        /// Flags of the controllers, by name.
        pub controller: BTreeMap<String, String>,
        /// Flags of the node agent, by name.
        pub handler: BTreeMap<String, String>,
    }

    /// Placement and replicas of components.
    pub struct ComponentPlacement {
        /// Nodes on which the pods are placed.
        pub node_placement: Option<NodePlacement>,
        /// Number of replicas. Default: 2, or 1 on a single node.
        pub replicas: Option<i64>,
    }

    /// Update of running guests to a new launcher version.
    pub struct WorkloadUpdateStrategy {
        /// Time between two batches of evictions, such as `1m0s`.
        pub batch_eviction_interval: Option<String>,
        /// Guests that are evicted at once. Default: 10.
        pub batch_eviction_size: Option<i64>,
        /// `LiveMigrate`, `Evict`: allowed ways, preferred first. Empty: guests are not updated.
        pub workload_update_methods: Vec<String>,
    }

    /// State of the compute side of the platform.
    pub struct KubeVirtStatus {
        /// Conditions `Available`, `Progressing`, `Degraded`, `Created` and `Synchronized`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastHeartbeatTime"]],
        /// Architecture of VMs that name none.
        pub default_architecture: Option<String>,
        /// Generations of the installed objects.
        pub generations: Vec<GenerationStatus>,
        /// Deployed configuration, JSON.
        pub observed_deployment_config: Option<String>,
        /// Checksum of the deployed configuration.
        #[serde(rename = "observedDeploymentID")]
        pub observed_deployment_id: Option<String>,
        /// `metadata.generation` that the status describes.
        pub observed_generation: Option<i64>,
        /// Registry of the deployed images.
        pub observed_kube_virt_registry: Option<String>,
        /// Installed version.
        pub observed_kube_virt_version: Option<String>,
        /// Version of the operator.
        pub operator_version: Option<String>,
        /// Guests that run under an older launcher version.
        pub outdated_virtual_machine_instance_workloads: Option<i64>,
        /// `Deploying`, `Deployed`, `Deleting` or `Deleted`.
        pub phase: Option<String>,
        /// Addresses of the synchronization controller.
        pub synchronization_addresses: Vec<String>,
        /// Configuration that is being deployed, JSON.
        pub target_deployment_config: Option<String>,
        /// Checksum of the configuration that is being deployed.
        #[serde(rename = "targetDeploymentID")]
        pub target_deployment_id: Option<String>,
        /// Registry of the images that are being deployed.
        pub target_kube_virt_registry: Option<String>,
        /// Version that is being installed.
        pub target_kube_virt_version: Option<String>,
    }

    /// Generation of an installed object.
    pub struct GenerationStatus {
        /// API group.
        pub group: String ["x-required" = true],
        /// Checksum of objects without a generation.
        pub hash: Option<String>,
        /// `metadata.generation` after the last update by the operator.
        pub last_generation: i64 ["x-required" = true],
        /// Name.
        pub name: String ["x-required" = true],
        /// Namespace.
        pub namespace: Option<String>,
        /// Resource, in plural.
        pub resource: String ["x-required" = true],
    }
}
