//! `KubeVirt` configuration: feature gates, emulation, overcommit, log levels.

use std::collections::BTreeMap;

use crate::resource::{Quantity, resource};

resource! {
    /// Feature gates, emulation and overcommit.
    pub struct DeveloperConfiguration {
        /// Whether the profiler endpoints are served.
        pub cluster_profiler: Option<bool>,
        /// vCPUs per requested CPU. Default: 10.
        pub cpu_allocation_ratio: Option<i64>,
        /// Names of feature gates that are switched off.
        pub disabled_feature_gates: Vec<String>,
        /// Limits of the check of container disks.
        pub disk_verification: Option<DiskVerification>,
        /// Names of feature gates that are switched on.
        pub feature_gates: Vec<String>,
        /// Log levels.
        pub log_verbosity: Option<LogVerbosity>,
        /// Guest memory as a percentage of the requested memory. Default: 100.
        pub memory_overcommit: Option<i64> ["minimum" = 10],
        /// Lowest TSC frequency in the cluster, Hz.
        #[serde(rename = "minimumClusterTSCFrequency")]
        pub minimum_cluster_tsc_frequency: Option<i64>,
        /// Bytes that are kept free on a filesystem volume.
        #[serde(rename = "minimumReservePVCBytes")]
        pub minimum_reserve_pvc_bytes: Option<i64>,
        /// Labels that the nodes of launcher pods must have.
        pub node_selectors: BTreeMap<String, String>,
        /// Percentage by which a volume may be smaller than its claim requests.
        pub pvc_tolerate_less_space_up_to_percent: Option<i64>,
        /// Whether guests run without KVM on nodes that lack it.
        pub use_emulation: Option<bool>,
    }

    /// Limits of the check of container disks.
    pub struct DiskVerification {
        /// Memory limit of the check.
        pub memory_limit: Quantity ["x-required" = true],
    }

    /// Log levels by component.
    pub struct LogVerbosity {
        /// Level of the node agent, by node.
        pub node_verbosity: BTreeMap<String, u32>,
        /// Level of the API server.
        #[serde(rename = "virtAPI")]
        pub virt_api: Option<i64>,
        /// Level of the controllers.
        pub virt_controller: Option<i64>,
        /// Level of the node agent.
        pub virt_handler: Option<i64>,
        /// Level of launchers.
        pub virt_launcher: Option<i64>,
        /// Level of the operator.
        pub virt_operator: Option<i64>,
        /// Level of the synchronization controller.
        pub virt_synchronization_controller: Option<i64>,
    }
}

impl LogVerbosity {
    /// Level of the agent of a node: the node's own, else that of all nodes. 0 is no level, as upstream.
    pub fn of_node(&self, node: &str) -> Option<u8> {
        let own = self.node_verbosity.get(node).map(|level| i64::from(*level));
        level(own.filter(|level| *level != 0).or(self.virt_handler))
    }

    /// Level of the API server.
    pub fn of_api(&self) -> Option<u8> {
        level(self.virt_api)
    }

    /// Level of the controllers.
    pub fn of_controllers(&self) -> Option<u8> {
        level(self.virt_controller)
    }

    /// Level of the operator.
    pub fn of_operator(&self) -> Option<u8> {
        level(self.virt_operator)
    }
}

/// A level as klog counts it, if one is set; those above 255 are the highest.
fn level(set: Option<i64>) -> Option<u8> {
    set.filter(|level| *level > 0).map(|level| u8::try_from(level).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_that_of_the_component_or_the_node() {
        let verbosity = r#"{"virtAPI": 3, "virtController": 0, "virtOperator": 9000, "virtHandler": 4,
            "nodeVerbosity": {"one": 6, "two": 0}}"#;
        let verbosity: LogVerbosity = serde_json::from_str(verbosity).unwrap();
        let nodes = ["one", "two", "three"].map(|node| verbosity.of_node(node));
        assert_eq!(nodes, [Some(6), Some(4), Some(4)]);
        let parts = [verbosity.of_api(), verbosity.of_controllers(), verbosity.of_operator()];
        assert_eq!(parts, [Some(3), None, Some(255)]);
        assert_eq!(LogVerbosity::default().of_node("one"), None);
    }
}
