//! `HyperConverged` v1: settings in groups.

use std::collections::BTreeMap;

use super::device::HostDevices;
use super::migration::{LiveMigration, WorkloadUpdate};
use super::settings::{
    AllowedMetrics, ApplicationAwareQuota, Certificates, Density, LogLevels, MacRange, PersistentReservation,
    StorageImport, TlsProfile,
};
use super::source::SourceTemplate;
use super::status::HyperConvergedStatus;
use crate::cdi::FilesystemOverhead;
use crate::core::{LabelSelector, NodePlacement, ResourceRequirements};
use crate::kubevirt::{
    BindingPlugin, ChangedBlockTrackingSelectors, Hypervisor, InstancetypeConfiguration, KsmConfiguration,
    LiveUpdateConfiguration, OptionalDeployment,
};
use crate::resource::{ObjectMeta, resource};

resource! {
    /// Installation and configuration of the platform. One object per cluster, named `kubevirt-hyperconverged`, in the
    /// operator's namespace.
    pub struct HyperConverged {
        /// `hco.kubevirt.io/v1`.
        pub api_version: String,
        /// `HyperConverged`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Requested configuration; every field has a default.
        pub spec: HyperConvergedSpec ["x-default" = {
            "deployment": {"applicationAwareConfig": {"enable": false}, "deployNetworkResourcesInjector": true, "deployVmConsoleProxy": false, "uninstallStrategy": "BlockUninstallIfWorkloadsExist"},
            "security": {"certConfig": {"ca": {"duration": "48h0m0s", "renewBefore": "24h0m0s"}, "server": {"duration": "24h0m0s", "renewBefore": "12h0m0s"}}},
            "virtualization": {"liveMigrationConfig": {"allowAutoConverge": false, "allowPostCopy": false, "completionTimeoutPerGiB": 20, "parallelMigrationsPerCluster": 5, "parallelOutboundMigrationsPerNode": 1, "progressTimeout": 150}, "virtualMachineOptions": {"disableFreePageReporting": false, "disableSerialConsoleLog": false}, "vmiCPUAllocationRatio": 10},
            "workloadSources": {"enableCommonBootImageImport": true}
        }],
        /// Conditions, versions and related objects.
        pub status: Option<HyperConvergedStatus>,
    }

    /// Configuration of the platform.
    pub struct HyperConvergedSpec {
        /// Placement, removal, log levels and optional components.
        pub deployment: Option<Deployment> ["x-default" = {"applicationAwareConfig": {"enable": false}, "deployNetworkResourcesInjector": true, "deployVmConsoleProxy": false, "uninstallStrategy": "BlockUninstallIfWorkloadsExist"}],
        /// Feature gates.
        pub feature_gates: Vec<FeatureGate> ["maxItems" = 64, "x-kubernetes-validations" = [{"rule": "self.all(x, self.exists_one(y, x.name.lowerAscii() == y.name.lowerAscii()))", "message": "names of feature gates must be unique, ignoring case"}]],
        /// Networks of guests.
        pub networking: Option<Networking>,
        /// Metrics, alerts and recording rules.
        pub observability: Option<Observability>,
        /// Certificates and TLS.
        pub security: Option<Security> ["x-default" = {"certConfig": {"ca": {"duration": "48h0m0s", "renewBefore": "24h0m0s"}, "server": {"duration": "24h0m0s", "renewBefore": "12h0m0s"}}}],
        /// Storage of guests and data import.
        pub storage: Option<Storage>,
        /// Guests.
        pub virtualization: Option<Virtualization> ["x-default" = {"liveMigrationConfig": {"allowAutoConverge": false, "allowPostCopy": false, "allowWorkloadDisruption": false, "completionTimeoutPerGiB": 20, "parallelMigrationsPerCluster": 5, "parallelOutboundMigrationsPerNode": 1, "progressTimeout": 150}, "virtualMachineOptions": {"disableFreePageReporting": false, "disableSerialConsoleLog": false}, "vmiCPUAllocationRatio": 10}, "x-kubernetes-validations" = [{"rule": "!has(self.vmiCPUAllocationRatio) || self.vmiCPUAllocationRatio > 0", "message": "vmiCPUAllocationRatio must be greater than 0"}]],
        /// Boot images, templates and instance types.
        pub workload_sources: Option<WorkloadSources>,
    }

    /// Placement, removal, log levels and optional components.
    pub struct Deployment {
        /// Quota that counts guests without the overhead of their pods.
        pub application_aware_config: Option<ApplicationAwareQuota>,
        /// Whether pods get the resources of their networks.
        pub deploy_network_resources_injector: Option<bool> ["x-default" = true],
        /// Whether the proxy for VNC tokens is deployed.
        pub deploy_vm_console_proxy: Option<bool> ["x-default" = false],
        /// Log levels.
        pub log_verbosity_config: Option<LogLevels>,
        /// Nodes of the components.
        pub node_placements: Option<NodePlacements>,
        /// Whether deletion of this object is refused while workloads exist, or deletes them.
        pub uninstall_strategy: Option<String> ["enum" = ["RemoveWorkloads", "BlockUninstallIfWorkloadsExist"], "x-default" = "BlockUninstallIfWorkloadsExist"],
    }

    /// Nodes of the components.
    pub struct NodePlacements {
        /// Control plane.
        pub infra: Option<NodePlacement>,
        /// Guests and node agents.
        pub workload: Option<NodePlacement>,
    }

    /// Switch for a feature.
    pub struct FeatureGate {
        /// Name; case is ignored.
        pub name: String ["x-required" = true, "maxLength" = 256],
        /// Whether the feature is on. Default: `Enabled`.
        pub state: Option<String> ["enum" = ["Enabled", "Disabled"]],
    }

    /// Networks of guests.
    pub struct Networking {
        /// Range of MAC addresses of guests. Default: a random prefix.
        pub kube_mac_pool_configuration: Option<MacRange> ["x-kubernetes-validations" = [{"rule": "(has(self.rangeStart) && has(self.rangeEnd)) || (!has(self.rangeStart) && !has(self.rangeEnd))", "message": "rangeStart and rangeEnd must be set together"}]],
        /// IPv4 address of the DNS server for secondary networks.
        #[serde(rename = "kubeSecondaryDNSNameServerIP")]
        pub kube_secondary_dns_name_server_ip: Option<String>,
        /// Network binding plugins, by name.
        pub network_binding: BTreeMap<String, BindingPlugin>,
    }

    /// Metrics, alerts and recording rules.
    pub struct Observability {
        /// Names of alerts that are installed. `none`: no alert. Default: all.
        pub allowed_alerts: Vec<String> ["x-kubernetes-validations" = [{"rule": "(self.size() <= 1) || !self.exists(r, (r == 'none'))", "message": "'none' must be the only entry"}]],
        /// Names of recording rules that are installed. `none`: no rule. Default: all.
        pub allowed_recording_rules: Vec<String> ["x-kubernetes-validations" = [{"rule": "(self.size() <= 1) || !self.exists(r, (r == 'none'))", "message": "'none' must be the only entry"}]],
        /// Metrics of guests.
        pub workloads: Option<AllowedMetrics>,
    }

    /// Certificates and TLS.
    pub struct Security {
        /// Lifetime of certificates.
        pub cert_config: Option<Certificates> ["x-default" = {"ca": {"duration": "48h0m0s", "renewBefore": "24h0m0s"}, "server": {"duration": "24h0m0s", "renewBefore": "12h0m0s"}}],
        /// TLS versions and ciphers of the servers. Default: `Intermediate`.
        pub tls_security_profile: Option<TlsProfile>,
    }

    /// Storage of guests and data import.
    pub struct Storage {
        /// Share of a filesystem volume that is not available to the disk image.
        pub filesystem_overhead: Option<FilesystemOverhead>,
        /// SCSI persistent reservations.
        pub persistent_reservation_configuration: Option<PersistentReservation>,
        /// Storage class of scratch volumes. Ignored: imports use no scratch volume.
        pub scratch_space_storage_class: Option<String>,
        /// Settings of data import.
        pub storage_import: Option<StorageImport>,
        /// Storage class of the volumes that hold TPM and EFI state.
        pub vm_state_storage_class: Option<String>,
        /// Resource requests and limits of worker pods.
        pub workload_resource_requirements: Option<ResourceRequirements>,
    }

    /// Guests.
    pub struct Virtualization {
        /// Labels of namespaces whose VMs get a CPU limit.
        #[serde(rename = "autoCPULimitNamespaceLabelSelector")]
        pub auto_cpu_limit_namespace_label_selector: Option<LabelSelector>,
        /// Labels that enable changed block tracking.
        pub changed_block_tracking_label_selectors: Option<ChangedBlockTrackingSelectors>,
        /// Eviction strategy of VMs that name none. Default: `LiveMigrate` with two or more nodes, else `None`.
        pub eviction_strategy: Option<String> ["enum" = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"]],
        /// Overcommit of memory.
        pub higher_workload_density: Option<Density> ["x-default" = {"memoryOvercommitPercentage": 100}],
        /// Hypervisor on the nodes.
        pub hypervisors: Vec<Hypervisor> ["maxItems" = 1],
        /// Kernel same-page merging on the nodes.
        pub ksm_configuration: Option<KsmConfiguration>,
        /// Live migration.
        pub live_migration_config: Option<LiveMigration> ["x-default" = {"allowAutoConverge": false, "allowPostCopy": false, "allowWorkloadDisruption": false, "completionTimeoutPerGiB": 20, "parallelMigrationsPerCluster": 5, "parallelOutboundMigrationsPerNode": 1, "progressTimeout": 150}],
        /// Limits of CPU and memory hotplug.
        pub live_update_configuration: Option<LiveUpdateConfiguration>,
        /// Mediated devices that are created on the nodes.
        pub mediated_devices_configuration: Option<MediatedDevices>,
        /// CPU models that are not offered on the nodes, besides those that never are.
        #[serde(rename = "obsoleteCPUModels")]
        pub obsolete_cpu_models: Vec<String> ["x-kubernetes-list-type" = "set"],
        /// Host devices that may be assigned to guests.
        pub permitted_host_devices: Option<HostDevices>,
        /// Whether the user roles are aggregated to the cluster's default roles.
        pub role_aggregation_strategy: Option<String> ["enum" = ["AggregateToDefault", "Manual"]],
        /// Source of the limits of API requests; `annotation` reads `hco.kubevirt.io/tuningPolicy`.
        pub tuning_policy: Option<String> ["enum" = ["annotation", "highBurst"]],
        /// Defaults of VMs.
        pub virtual_machine_options: Option<VirtualMachineOptions> ["x-default" = {"disableFreePageReporting": false, "disableSerialConsoleLog": false}],
        /// vCPUs per requested CPU.
        #[serde(rename = "vmiCPUAllocationRatio")]
        pub vmi_cpu_allocation_ratio: Option<i64> ["x-default" = 10, "minimum" = 1],
        /// Update of running guests to a new launcher version.
        pub workload_update_strategy: Option<WorkloadUpdate> ["x-default" = {"batchEvictionInterval": "1m0s", "batchEvictionSize": 10, "workloadUpdateMethods": ["LiveMigrate"]}],
    }

    /// Mediated devices that are created on the nodes.
    pub struct MediatedDevices {
        /// Whether mediated devices are created. Default: true.
        pub enabled: Option<bool>,
        /// Types of mediated devices.
        pub mediated_device_types: Vec<String>,
        /// Types for single nodes.
        pub node_mediated_device_types: Vec<NodeMediatedTypes>,
    }

    /// Types of mediated devices for some nodes.
    pub struct NodeMediatedTypes {
        /// Types of mediated devices.
        pub mediated_device_types: Vec<String>,
        /// Labels of the nodes.
        pub node_selector: BTreeMap<String, String> ["x-required" = true],
    }

    /// Defaults of VMs.
    pub struct VirtualMachineOptions {
        /// CPU model of VMs that name none.
        #[serde(rename = "defaultCPUModel")]
        pub default_cpu_model: Option<String>,
        /// RuntimeClass of launcher pods.
        pub default_runtime_class: Option<String>,
        /// Whether guests do not report free memory pages.
        pub disable_free_page_reporting: Option<bool> ["x-default" = false],
        /// Whether serial consoles are not logged.
        pub disable_serial_console_log: Option<bool> ["x-default" = false],
    }

    /// Boot images, templates and instance types.
    pub struct WorkloadSources {
        /// Namespace of the boot images.
        pub common_boot_image_namespace: Option<String>,
        /// Deployment of the common instance types and preferences.
        pub common_instancetypes_deployment: Option<OptionalDeployment>,
        /// Namespace of the VM templates.
        pub common_templates_namespace: Option<String>,
        /// Boot image imports in addition to the common ones, or in place of those with the same name.
        pub data_import_cron_templates: Vec<SourceTemplate>,
        /// Whether the common boot images are imported.
        pub enable_common_boot_image_import: Option<bool> ["x-default" = true],
        /// Whether boot images are imported for every architecture of the cluster.
        pub enable_multi_arch_boot_image_import: Option<bool>,
        /// Handling of references to instance types.
        pub instancetype_config: Option<InstancetypeConfiguration>,
    }
}
