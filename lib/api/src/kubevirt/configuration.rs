//! `KubeVirt` configuration: settings of guests and components.

use std::collections::BTreeMap;

use super::{
    ArchitectureConfiguration, ChangedBlockTrackingSelectors, ConfidentialCompute, DeveloperConfiguration,
    Hypervisor, InstancetypeConfiguration, KsmConfiguration, LiveUpdateConfiguration,
    MediatedDevicesConfiguration, MigrationConfiguration, NetworkConfiguration, PermittedHostDevices,
    ReloadableComponent, SeccompConfiguration, SmbiosConfiguration, SupportContainerResources,
    TlsConfiguration, VirtualMachineOptions,
};
use crate::core::LabelSelector;
use crate::resource::{Quantity, resource};

resource! {
    /// Settings of the compute side of the platform.
    pub struct KubeVirtConfiguration {
        /// Factor for the memory overhead of launcher pods, such as `1.5`.
        pub additional_guest_memory_overhead_ratio: Option<String>,
        /// Settings of the API server.
        pub api_configuration: Option<ReloadableComponent>,
        /// Settings by guest architecture.
        pub architecture_configuration: Option<ArchitectureConfiguration>,
        /// Labels of namespaces whose VMs get a CPU limit.
        #[serde(rename = "autoCPULimitNamespaceLabelSelector")]
        pub auto_cpu_limit_namespace_label_selector: Option<LabelSelector>,
        /// Labels that enable changed block tracking.
        pub changed_block_tracking_label_selectors: Option<ChangedBlockTrackingSelectors>,
        /// Deployment of the common instance types and preferences.
        pub common_instancetypes_deployment: Option<OptionalDeployment>,
        /// Settings of confidential VMs.
        pub confidential_compute: Option<ConfidentialCompute>,
        /// Settings of the controllers.
        pub controller_configuration: Option<ReloadableComponent>,
        /// CPU model of VMs that name none.
        pub cpu_model: Option<String>,
        /// CPU request per vCPU of VMs that name none.
        pub cpu_request: Option<Quantity>,
        /// RuntimeClass of launcher pods.
        pub default_runtime_class: Option<String>,
        /// Feature gates, emulation and overcommit.
        pub developer_configuration: Option<DeveloperConfiguration>,
        /// Patterns of supported machine types.
        pub emulated_machines: Vec<String>,
        /// Eviction strategy of VMs that name none.
        pub eviction_strategy: Option<String>,
        /// Settings of the node agent.
        pub handler_configuration: Option<ReloadableComponent>,
        /// Hypervisor on the nodes.
        pub hypervisors: Vec<Hypervisor> ["maxItems" = 1],
        /// Pull policy for launcher images.
        pub image_pull_policy: Option<String>,
        /// Handling of references to instance types.
        pub instancetype: Option<InstancetypeConfiguration>,
        /// Kernel same-page merging on the nodes.
        pub ksm_configuration: Option<KsmConfiguration>,
        /// Limits of CPU and memory hotplug.
        pub live_update_configuration: Option<LiveUpdateConfiguration>,
        /// Machine type of VMs that name none.
        pub machine_type: Option<String>,
        /// Mediated devices that are created on the nodes.
        pub mediated_devices_configuration: Option<MediatedDevicesConfiguration>,
        /// Seconds between memory statistics of the guest. 0: none.
        pub mem_balloon_stats_period: Option<i32>,
        /// Live migration.
        pub migrations: Option<MigrationConfiguration> ["x-omit" = ["experimental"]],
        /// Oldest CPU model that counts as supported on a node.
        #[serde(rename = "minCPUModel")]
        pub min_cpu_model: Option<String>,
        /// Networks and bindings.
        pub network: Option<NetworkConfiguration>,
        /// CPU models that are not offered on the nodes.
        #[serde(rename = "obsoleteCPUModels")]
        pub obsolete_cpu_models: BTreeMap<String, bool>,
        /// Directory of the EFI firmware.
        pub ovmf_path: Option<String>,
        /// Host devices that may be assigned to guests.
        pub permitted_host_devices: Option<PermittedHostDevices>,
        /// SCSI persistent reservations.
        pub persistent_reservation_configuration: Option<OptionalDeployment>,
        /// Whether the user roles are aggregated to the cluster's default roles.
        pub role_aggregation_strategy: Option<String> ["enum" = ["AggregateToDefault", "Manual"]],
        /// Seccomp profiles.
        pub seccomp_configuration: Option<SeccompConfiguration>,
        /// SELinux type of launcher pods.
        pub selinux_launcher_type: Option<String>,
        /// SMBIOS strings of the guests.
        pub smbios: Option<SmbiosConfiguration>,
        /// Resources of supporting containers, by type.
        pub support_container_resources: Vec<SupportContainerResources> ["x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]],
        /// Ignored.
        pub supported_guest_agent_versions: Vec<String>,
        /// TLS settings of the servers.
        pub tls_configuration: Option<TlsConfiguration>,
        /// Deployment of the VM template controllers.
        pub virt_template_deployment: Option<OptionalDeployment>,
        /// Most VMs on one node. Default: 110.
        pub virtual_machine_instances_per_node: Option<i64>,
        /// Defaults of VMs.
        pub virtual_machine_options: Option<VirtualMachineOptions>,
        /// Whether changes of a VM apply at the next start (`Stage`) or to the running guest where possible
        /// (`LiveUpdate`).
        pub vm_rollout_strategy: Option<String> ["enum" = ["Stage", "LiveUpdate"]],
        /// Storage class of the volumes that hold TPM and EFI state.
        pub vm_state_storage_class: Option<String>,
        /// Settings of the admission webhooks.
        pub webhook_configuration: Option<ReloadableComponent>,
    }

    /// Component that can be switched on and off.
    pub struct OptionalDeployment {
        /// Whether the component is deployed.
        pub enabled: Option<bool>,
    }
}
