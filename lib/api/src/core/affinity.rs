//! Rules for the choice of a pod's node: node affinity and affinity to other pods.

use super::LabelSelector;
use crate::resource::resource;

resource! {
    /// Rules for the choice of the node.
    pub struct Affinity {
        /// Rules about labels of nodes.
        pub node_affinity: Option<NodeAffinity>,
        /// Rules for pods to run close to.
        pub pod_affinity: Option<PodAffinity>,
        /// Rules for pods to keep away from.
        pub pod_anti_affinity: Option<PodAffinity>,
    }

    /// Rules about labels of nodes.
    pub struct NodeAffinity {
        /// Preferences; the node with the largest sum of weights wins.
        pub preferred_during_scheduling_ignored_during_execution: Vec<PreferredNode>,
        /// Terms of which the node must match at least one.
        pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
    }

    /// Weighted preference for nodes.
    pub struct PreferredNode {
        /// Term that preferred nodes match.
        pub preference: NodeSelectorTerm ["x-required" = true],
        /// Weight from 1 to 100.
        pub weight: i32 ["x-required" = true],
    }

    /// Requirements that a node must all meet.
    pub struct NodeSelectorTerm {
        /// Requirements on labels.
        pub match_expressions: Vec<NodeSelectorRequirement>,
        /// Requirements on fields, such as `metadata.name`.
        pub match_fields: Vec<NodeSelectorRequirement>,
    }

    /// Requirement on one label or field of a node.
    pub struct NodeSelectorRequirement {
        /// Name of the label or field.
        pub key: String ["x-required" = true],
        /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
        pub operator: String ["x-required" = true],
        /// Values that the operator compares with.
        pub values: Vec<String>,
    }

    /// Alternatives of which a node must match at least one.
    pub struct NodeSelector {
        /// Alternatives.
        pub node_selector_terms: Vec<NodeSelectorTerm> ["x-required" = true],
    }

    /// Rules about other pods in the same topology domain.
    pub struct PodAffinity {
        /// Preferences; the node with the largest sum of weights wins.
        pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedPodAffinityTerm>,
        /// Terms that must all be met.
        pub required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
    }

    /// Weighted preference about other pods.
    pub struct WeightedPodAffinityTerm {
        /// Pods and topology domain.
        pub pod_affinity_term: PodAffinityTerm ["x-required" = true],
        /// Weight from 1 to 100.
        pub weight: i32 ["x-required" = true],
    }

    /// Pods and the topology domain in which they are searched.
    pub struct PodAffinityTerm {
        /// Labels of the pods.
        pub label_selector: Option<LabelSelector>,
        /// Label keys whose values must equal those of the new pod.
        pub match_label_keys: Vec<String>,
        /// Label keys whose values must differ from those of the new pod.
        pub mismatch_label_keys: Vec<String>,
        /// Labels of the namespaces that are searched.
        pub namespace_selector: Option<LabelSelector>,
        /// Names of the namespaces that are searched. Default: the pod's own.
        pub namespaces: Vec<String>,
        /// Node label that defines the topology domain, such as `kubernetes.io/hostname`.
        pub topology_key: String ["x-required" = true],
    }
}
