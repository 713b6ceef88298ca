//! `VirtualMachineInstance`: a running guest.

use std::collections::BTreeMap;

use super::{AccessCredential, Domain, Network, UtilityVolume, VirtualMachineInstanceStatus, Volume};
use crate::core::{Affinity, PodDnsConfig, PodResourceClaim, Probe, Toleration, TopologySpreadConstraint};
use crate::resource::{ObjectMeta, resource};

resource! {
    /// Configuration of a guest.
    pub struct VirtualMachineInstanceSpec {
        /// Virtual hardware.
        pub domain: Domain ["x-required" = true],
        /// Networks that interfaces are attached to.
        pub networks: Vec<Network> ["maxItems" = 256],
        /// Volumes that back the disks.
        pub volumes: Vec<Volume> ["maxItems" = 256],
        /// Seconds between a shutdown request and a forced stop. Default: 30.
        pub termination_grace_period_seconds: Option<u64>,
        /// `Paused` creates the guest without starting its CPUs.
        pub start_strategy: Option<String>,
        /// Host name announced by cloud-init and DHCP. Default: name of the object.
        pub hostname: Option<String>,
        /// Architecture of the guest, such as `amd64`. Default: that of the cluster.
        pub architecture: Option<String>,
        /// SSH keys and passwords that are put into the guest.
        pub access_credentials: Vec<AccessCredential> ["maxItems" = 256],
        /// Rules for the choice of the node.
        pub affinity: Option<Affinity>,
        /// DNS settings of the launcher pod.
        pub dns_config: Option<PodDnsConfig>,
        /// DNS policy of the launcher pod.
        pub dns_policy: Option<String>,
        /// Reaction to a node drain: `LiveMigrate`, `LiveMigrateIfPossible`, `External` or `None`.
        pub eviction_strategy: Option<String>,
        /// Check after whose failure the guest is stopped.
        pub liveness_probe: Option<Probe>,
        /// Labels that the node must have.
        pub node_selector: BTreeMap<String, String>,
        /// PriorityClass of the launcher pod.
        pub priority_class_name: Option<String>,
        /// Check that decides whether the guest is ready.
        pub readiness_probe: Option<Probe>,
        /// Dynamically allocated devices for the launcher pod.
        pub resource_claims: Vec<PodResourceClaim> ["x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]],
        /// Scheduler of the launcher pod.
        pub scheduler_name: Option<String>,
        /// ServiceAccount under which DataVolumes of the VM are authorized.
        pub service_account_name: Option<String>,
        /// Subdomain of the launcher pod, for DNS names by a headless Service.
        pub subdomain: Option<String>,
        /// Taints that the launcher pod tolerates.
        pub tolerations: Vec<Toleration>,
        /// Rules for spreading launcher pods over topology domains.
        pub topology_spread_constraints: Vec<TopologySpreadConstraint> ["x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["topologyKey", "whenUnsatisfiable"]],
        /// Volumes for the launcher that the guest does not see.
        pub utility_volumes: Vec<UtilityVolume> ["maxItems" = 256, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]],
    }

    /// Running guest: its configuration and its state.
    pub struct VirtualMachineInstance {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstance`.
        pub kind: String,
        /// Name, namespace and labels.
        pub metadata: ObjectMeta,
        /// Configuration.
        pub spec: VirtualMachineInstanceSpec ["x-required" = true],
        /// State. There is no status subresource; only the platform's components may change it.
        pub status: Option<VirtualMachineInstanceStatus>,
    }
}
