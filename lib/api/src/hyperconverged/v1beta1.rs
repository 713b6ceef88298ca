//! `HyperConverged` v1beta1: settings side by side.

use std::collections::BTreeMap;

use super::device::HostDevices;
use super::migration::{LiveMigration, WorkloadUpdate};
use super::settings::{
    ApplicationAwareQuota, Certificates, Density, LogLevels, MacRange, StorageImport, TlsProfile,
    VirtualMachineSettings,
};
use super::source::SourceTemplate;
use super::status::HyperConvergedStatus;
use crate::cdi::FilesystemOverhead;
use crate::core::{LabelSelector, NodePlacement, ResourceRequirements};
use crate::kubevirt::{
    BindingPlugin, ChangedBlockTrackingSelectors, Hypervisor, InstancetypeConfiguration, KsmConfiguration,
    LiveUpdateConfiguration, MediatedDevicesConfiguration, OptionalDeployment,
};
use crate::resource::{ObjectMeta, resource};

resource! {
    /// Installation and configuration of the platform. One object per cluster, named `kubevirt-hyperconverged`, in the
    /// operator's namespace.
    pub struct HyperConverged {
        /// `hco.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `HyperConverged`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Requested configuration; every field has a default.
        pub spec: HyperConvergedSpec ["x-default" = {
            "certConfig": {"ca": {"duration": "48h0m0s", "renewBefore": "24h0m0s"}, "server": {"duration": "24h0m0s", "renewBefore": "12h0m0s"}},
            "deployVmConsoleProxy": false,
            "enableApplicationAwareQuota": false,
            "enableCommonBootImageImport": true,
            "featureGates": {"containerPathVolumes": false, "decentralizedLiveMigration": true, "declarativeHotplugVolumes": true, "deployKubeSecondaryDNS": false, "downwardMetrics": false, "incrementalBackup": false, "objectGraph": false},
            "liveMigrationConfig": {"allowAutoConverge": false, "allowPostCopy": false, "completionTimeoutPerGiB": 20, "parallelMigrationsPerCluster": 5, "parallelOutboundMigrationsPerNode": 1, "progressTimeout": 150},
            "resourceRequirements": {"vmiCPUAllocationRatio": 10},
            "uninstallStrategy": "BlockUninstallIfWorkloadsExist",
            "virtualMachineOptions": {"disableFreePageReporting": false, "disableSerialConsoleLog": false}
        }],
        /// Conditions, versions and related objects.
        pub status: Option<HyperConvergedStatus>,
    }

    /// Configuration of the platform.
    pub struct HyperConvergedSpec {
        /// Deployment of the common instance types and preferences.
        #[serde(rename = "CommonInstancetypesDeployment")]
        pub common_instancetypes_deployment: Option<OptionalDeployment>,
        /// Quota that counts guests without the overhead of their pods.
        pub application_aware_config: Option<ApplicationAwareQuota> ["x-omit" = ["enable"]],
        /// Lifetime of certificates.
        pub cert_config: Option<Certificates> ["x-default" = {"ca": {"duration": "48h0m0s", "renewBefore": "24h0m0s"}, "server": {"duration": "24h0m0s", "renewBefore": "12h0m0s"}}],
        /// Labels that enable changed block tracking.
        pub changed_block_tracking_label_selectors: Option<ChangedBlockTrackingSelectors>,
        /// Namespace of the boot images.
        pub common_boot_image_namespace: Option<String>,
        /// Namespace of the VM templates.
        pub common_templates_namespace: Option<String>,
        /// Boot image imports in addition to the common ones, or in place of those with the same name.
        pub data_import_cron_templates: Vec<SourceTemplate>,
        /// CPU model of VMs that name none.
        #[serde(rename = "defaultCPUModel")]
        pub default_cpu_model: Option<String>,
        /// RuntimeClass of launcher pods.
        pub default_runtime_class: Option<String>,
        /// Whether the proxy for VNC tokens is deployed.
        pub deploy_vm_console_proxy: Option<bool> ["x-default" = false],
        /// Whether the quota for guests is deployed.
        pub enable_application_aware_quota: Option<bool> ["x-default" = false],
        /// Whether the common boot images are imported.
        pub enable_common_boot_image_import: Option<bool> ["x-default" = true],
        /// Eviction strategy of VMs that name none. Default: `LiveMigrate` with two or more nodes, else `None`.
        pub eviction_strategy: Option<String> ["enum" = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"]],
        /// Feature gates.
        pub feature_gates: Option<FeatureGates> ["x-default" = {"containerPathVolumes": false, "decentralizedLiveMigration": true, "declarativeHotplugVolumes": true, "deployKubeSecondaryDNS": false, "downwardMetrics": false, "incrementalBackup": false, "objectGraph": false}],
        /// Share of a filesystem volume that is not available to the disk image.
        pub filesystem_overhead: Option<FilesystemOverhead>,
        /// Overcommit of memory.
        pub higher_workload_density: Option<Density> ["x-default" = {"memoryOvercommitPercentage": 100}],
        /// Hypervisor on the nodes.
        pub hypervisors: Vec<Hypervisor> ["maxItems" = 1],
        /// Placement of the control plane.
        pub infra: Option<Placement>,
        /// Handling of references to instance types.
        pub instancetype_config: Option<InstancetypeConfiguration>,
        /// Kernel same-page merging on the nodes.
        pub ksm_configuration: Option<KsmConfiguration>,
        /// Range of MAC addresses of guests. Default: a random prefix.
        pub kube_mac_pool_configuration: Option<MacRange> ["x-kubernetes-validations" = [{"rule": "(has(self.rangeStart) && has(self.rangeEnd)) || (!has(self.rangeStart) && !has(self.rangeEnd))", "message": "rangeStart and rangeEnd must be set together"}]],
        /// IPv4 address of the DNS server for secondary networks.
        #[serde(rename = "kubeSecondaryDNSNameServerIP")]
        pub kube_secondary_dns_name_server_ip: Option<String>,
        /// Live migration.
        pub live_migration_config: Option<LiveMigration> ["x-default" = {"allowAutoConverge": false, "allowPostCopy": false, "completionTimeoutPerGiB": 20, "parallelMigrationsPerCluster": 5, "parallelOutboundMigrationsPerNode": 1, "progressTimeout": 150}],
        /// Limits of CPU and memory hotplug.
        pub live_update_configuration: Option<LiveUpdateConfiguration>,
        /// Deprecated and ignored.
        pub local_storage_class_name: Option<String>,
        /// Log levels.
        pub log_verbosity_config: Option<LogLevels>,
        /// Mediated devices that are created on the nodes.
        pub mediated_devices_configuration: Option<MediatedDevicesConfiguration> ["x-omit" = ["enabled"], "x-kubernetes-validations" = [{"rule": "(has(self.mediatedDeviceTypes) && size(self.mediatedDeviceTypes)>0) || (has(self.mediatedDevicesTypes) && size(self.mediatedDevicesTypes)>0)", "message": "mediatedDeviceTypes must be set"}]],
        /// Network binding plugins, by name.
        pub network_binding: BTreeMap<String, BindingPlugin>,
        /// CPU models that are not offered on the nodes.
        #[serde(rename = "obsoleteCPUs")]
        pub obsolete_cpus: Option<ObsoleteCpus>,
        /// Host devices that may be assigned to guests.
        pub permitted_host_devices: Option<HostDevices>,
        /// Resources of guests and worker pods.
        pub resource_requirements: Option<ResourceSettings> ["x-default" = {"vmiCPUAllocationRatio": 10}, "x-kubernetes-validations" = [{"rule": "!has(self.vmiCPUAllocationRatio) || self.vmiCPUAllocationRatio > 0", "message": "vmiCPUAllocationRatio must be greater than 0"}]],
        /// Whether the user roles are aggregated to the cluster's default roles.
        pub role_aggregation_strategy: Option<String> ["enum" = ["AggregateToDefault", "Manual"]],
        /// Storage class of scratch volumes. Ignored: imports use no scratch volume.
        pub scratch_space_storage_class: Option<String>,
        /// Settings of data import.
        pub storage_import: Option<StorageImport>,
        /// Deprecated and ignored.
        pub tekton_pipelines_namespace: Option<String>,
        /// Deprecated and ignored.
        pub tekton_tasks_namespace: Option<String>,
        /// TLS versions and ciphers of the servers. Default: `Intermediate`.
        pub tls_security_profile: Option<TlsProfile>,
        /// Source of the limits of API requests; `annotation` reads `hco.kubevirt.io/tuningPolicy`.
        pub tuning_policy: Option<String> ["enum" = ["annotation", "highBurst"]],
        /// Whether deletion of this object is refused while workloads exist, or deletes them.
        pub uninstall_strategy: Option<String> ["enum" = ["RemoveWorkloads", "BlockUninstallIfWorkloadsExist"], "x-default" = "BlockUninstallIfWorkloadsExist"],
        /// Deprecated and ignored.
        pub vddk_init_image: Option<String>,
        /// Defaults of VMs.
        pub virtual_machine_options: Option<VirtualMachineSettings> ["x-default" = {"disableFreePageReporting": false, "disableSerialConsoleLog": false}],
        /// Storage class of the volumes that hold TPM and EFI state.
        pub vm_state_storage_class: Option<String>,
        /// Update of running guests to a new launcher version.
        pub workload_update_strategy: Option<WorkloadUpdate> ["x-default" = {"batchEvictionInterval": "1m0s", "batchEvictionSize": 10, "workloadUpdateMethods": ["LiveMigrate"]}],
        /// Placement of guests and node agents.
        pub workloads: Option<Placement>,
    }

    /// Placement of pods.
    pub struct Placement {
        /// Nodes of the pods.
        pub node_placement: Option<NodePlacement>,
    }

    /// CPU models that are not offered on the nodes.
    pub struct ObsoleteCpus {
        /// Models besides those that never are offered.
        pub cpu_models: Vec<String> ["x-kubernetes-list-type" = "set"],
        /// Deprecated and ignored.
        #[serde(rename = "minCPUModel")]
        pub min_cpu_model: Option<String>,
    }

    /// Resources of guests and worker pods.
    pub struct ResourceSettings {
        /// Labels of namespaces whose VMs get a CPU limit.
        #[serde(rename = "autoCPULimitNamespaceLabelSelector")]
        pub auto_cpu_limit_namespace_label_selector: Option<LabelSelector>,
        /// Resource requests and limits of worker pods.
        pub storage_workloads: Option<ResourceRequirements>,
        /// vCPUs per requested CPU.
        #[serde(rename = "vmiCPUAllocationRatio")]
        pub vmi_cpu_allocation_ratio: Option<i64> ["x-default" = 10, "minimum" = 1],
    }

    /// Feature gates.
    pub struct FeatureGates {
        /// Whether the emulator thread of pinned guests gets a whole core.
        #[serde(rename = "alignCPUs")]
        pub align_cpus: Option<bool> ["x-default" = false],
        /// Ignored: always on.
        pub auto_resource_limits: Option<bool>,
        /// Whether directories of the launcher pod may be shared with guests.
        pub container_path_volumes: Option<bool> ["x-default" = false],
        /// Whether VMs may be migrated to another cluster.
        pub decentralized_live_migration: Option<bool> ["x-default" = true],
        /// Whether volumes are plugged by changes of a VM's spec.
        pub declarative_hotplug_volumes: Option<bool> ["x-default" = true],
        /// Whether the DNS server for secondary networks is deployed.
        #[serde(rename = "deployKubeSecondaryDNS")]
        pub deploy_kube_secondary_dns: Option<bool> ["x-default" = false],
        /// Ignored: always on.
        pub deploy_kubevirt_ipam_controller: Option<bool>,
        /// Ignored.
        pub deploy_tekton_task_resources: Option<bool>,
        /// Ignored: use `spec.deployVmConsoleProxy`.
        pub deploy_vm_console_proxy: Option<bool>,
        /// Deprecated. Whether no mediated devices are created on the nodes.
        #[serde(rename = "disableMDevConfiguration")]
        pub disable_m_dev_configuration: Option<bool>,
        /// Whether guests may read metrics of their host.
        pub downward_metrics: Option<bool> ["x-default" = false],
        /// Ignored: use `spec.enableApplicationAwareQuota`.
        pub enable_application_aware_quota: Option<bool>,
        /// Ignored: use `spec.enableCommonBootImageImport`.
        pub enable_common_boot_image_import: Option<bool>,
        /// Ignored.
        pub enable_managed_tenant_quota: Option<bool>,
        /// Deprecated. Whether boot images are imported for every architecture of the cluster.
        pub enable_multi_arch_boot_image_import: Option<bool>,
        /// Whether incremental backups are possible.
        pub incremental_backup: Option<bool> ["x-default" = false],
        /// Ignored: launchers never run as root.
        pub non_root: Option<bool>,
        /// Whether the graph of objects behind a VM can be read.
        pub object_graph: Option<bool> ["x-default" = false],
        /// Deprecated. Whether guests may use SCSI persistent reservations.
        pub persistent_reservation: Option<bool>,
        /// Ignored: always on.
        pub primary_user_defined_network_binding: Option<bool>,
        /// Ignored: always on.
        pub video_config: Option<bool>,
        /// Ignored: always on.
        #[serde(rename = "withHostPassthroughCPU")]
        pub with_host_passthrough_cpu: Option<bool>,
    }
}
