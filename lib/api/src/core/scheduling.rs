//! Scheduling of pods besides affinity: tolerations, topology spread, resource claims, placement.

use std::collections::BTreeMap;

use super::{Affinity, LabelSelector};
use crate::resource::resource;

resource! {
    /// Dynamically allocated devices of a pod; exactly one of the two sources is set.
    pub struct PodResourceClaim {
        /// Name by which devices refer to the claim.
        pub name: String ["x-required" = true],
        /// ResourceClaim in the same namespace.
        pub resource_claim_name: Option<String>,
        /// ResourceClaimTemplate from which a claim is created for the pod.
        pub resource_claim_template_name: Option<String>,
    }

    /// Taint that a pod tolerates.
    pub struct Toleration {
        /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Default: all effects.
        pub effect: Option<String>,
        /// Key of the taint. Empty with `Exists`: all taints.
        pub key: Option<String>,
        /// `Equal` (default) or `Exists`.
        pub operator: Option<String>,
        /// Seconds that a `NoExecute` taint is tolerated. Default: without limit.
        pub toleration_seconds: Option<i64>,
        /// Value of the taint, for `Equal`.
        pub value: Option<String>,
    }

    /// Rule for spreading pods over topology domains.
    pub struct TopologySpreadConstraint {
        /// Labels of the pods that are counted.
        pub label_selector: Option<LabelSelector>,
        /// Label keys whose values must equal those of the new pod.
        pub match_label_keys: Vec<String>,
        /// Largest difference of pod counts between domains.
        pub max_skew: i32 ["x-required" = true],
        /// Lowest number of domains that must match.
        pub min_domains: Option<i32>,
        /// `Honor` (default) or `Ignore`: whether nodes excluded by affinity are counted.
        pub node_affinity_policy: Option<String>,
        /// `Honor` or `Ignore` (default): whether nodes excluded by taints are counted.
        pub node_taints_policy: Option<String>,
        /// Node label that defines the domains.
        pub topology_key: String ["x-required" = true],
        /// `DoNotSchedule` or `ScheduleAnyway`.
        pub when_unsatisfiable: String ["x-required" = true],
    }

    /// Nodes on which pods are placed.
    pub struct NodePlacement {
        /// Affinity of the pods.
        pub affinity: Option<Affinity>,
        /// Labels that a node must have.
        pub node_selector: BTreeMap<String, String>,
        /// Taints that the pods tolerate.
        pub tolerations: Vec<Toleration>,
    }
}
