//! `VirtualMachinePool` (pool.kubevirt.io/v1beta1): a set of VMs of one template.

use super::VirtualMachineSpec;
use crate::core::{LabelSelector, NodeSelectorRequirement};
use crate::resource::{Condition, Empty, IntOrString, ObjectMeta, resource};

resource! {
    /// Set of VMs of one template.
    pub struct VirtualMachinePool {
        /// `pool.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachinePool`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Number and template of the VMs.
        pub spec: VirtualMachinePoolSpec ["x-required" = true],
        /// Actual number of VMs.
        pub status: Option<VirtualMachinePoolStatus>,
    }

    /// Number and template of the VMs of a pool.
    pub struct VirtualMachinePoolSpec {
        /// Replacement of VMs that do not start.
        pub autohealing: Option<Autohealing>,
        /// VMs, or percentage of them, that an update may make unavailable at once. Default: 100%.
        pub max_unavailable: Option<IntOrString>,
        /// Names that get the index of the VM.
        pub name_generation: Option<NameGeneration>,
        /// Whether the controller leaves the pool alone. Default: false.
        pub paused: Option<bool>,
        /// Number of VMs. Default: 1.
        pub replicas: Option<i32> ["minimum" = 0],
        /// Choice of the VMs that go when the pool shrinks.
        pub scale_in_strategy: Option<ScaleInStrategy>,
        /// Labels of the VMs.
        pub selector: LabelSelector ["x-required" = true],
        /// How VMs follow the template.
        pub update_strategy: Option<PoolUpdateStrategy>,
        /// Template of the VMs.
        pub virtual_machine_template: PoolTemplate ["x-required" = true],
    }

    /// Replacement of VMs that do not start.
    pub struct Autohealing {
        /// Time for which a VM fails to start before it is replaced, such as `5m`.
        pub min_failing_to_start_duration: Option<String>,
        /// Failed starts in a row before a VM is replaced.
        pub start_up_failure_threshold: Option<i32> ["minimum" = 1],
    }

    /// Names that get the index of the VM.
    pub struct NameGeneration {
        /// Whether names of ConfigMaps get it. Default: false.
        pub append_index_to_config_map_refs: Option<bool>,
        /// Whether names of Secrets get it. Default: false.
        pub append_index_to_secret_refs: Option<bool>,
    }

    /// Choice of the VMs that go; one field is set. Default: proactive.
    pub struct ScaleInStrategy {
        /// VMs that are stopped go first.
        pub opportunistic: Option<OpportunisticScaleIn>,
        /// VMs go by the policy.
        pub proactive: Option<ProactiveScaleIn>,
        /// No VM is deleted (no fields).
        pub unmanaged: Option<Empty>,
    }

    /// VMs that are stopped go first.
    pub struct OpportunisticScaleIn {
        /// State that is kept of a deleted VM.
        pub state_preservation: Option<String> ["enum" = ["Disabled", "Offline", "Online"]],
    }

    /// VMs go by the policy.
    pub struct ProactiveScaleIn {
        /// Order of the VMs.
        pub selection_policy: Option<SelectionPolicy>,
        /// State that is kept of a deleted VM.
        pub state_preservation: Option<String> ["enum" = ["Disabled", "Offline", "Online"]],
    }

    /// Order of VMs.
    pub struct SelectionPolicy {
        /// VMs that are chosen among. Default: all.
        pub selectors: Option<PoolSelectors>,
        /// Order in which they are chosen. Default: `Random`.
        pub sort_policy: Option<String> ["enum" = ["AscendingOrder", "DescendingOrder", "Newest", "Oldest", "Random"]],
    }

    /// VMs that are chosen among: those that meet both selectors.
    pub struct PoolSelectors {
        /// Labels of the template of a VM's instances.
        pub label_selector: Option<LabelSelector>,
        /// Labels that a VM's `nodeSelector` names.
        pub node_selector_requirement_matcher: Vec<NodeSelectorRequirement>,
    }

    /// How VMs follow the template; one field is set. Default: proactive.
    pub struct PoolUpdateStrategy {
        /// A VM follows at its next start (no fields).
        pub opportunistic: Option<Empty>,
        /// Running VMs are restarted.
        pub proactive: Option<ProactiveUpdate>,
        /// VMs do not follow (no fields).
        pub unmanaged: Option<Empty>,
    }

    /// Running VMs are restarted.
    pub struct ProactiveUpdate {
        /// Order of the VMs.
        pub selection_policy: Option<SelectionPolicy>,
    }

    /// Template of the VMs of a pool.
    pub struct PoolTemplate {
        /// Labels and annotations of the VMs.
        pub metadata: ObjectMeta ["x-kubernetes-preserve-unknown-fields" = true],
        /// Spec of the VMs.
        pub spec: VirtualMachineSpec,
    }

    /// Actual number of VMs of a pool.
    pub struct VirtualMachinePoolStatus {
        /// Conditions `ReplicaPaused` and `ReplicaFailure`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastHeartbeatTime"]],
        /// Selector in text form, for the scale subresource.
        pub label_selector: Option<String>,
        /// VMs that are ready.
        pub ready_replicas: Option<i32>,
        /// VMs.
        pub replicas: Option<i32>,
    }
}
