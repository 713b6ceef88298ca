//! The parts of other objects that the controller of `HyperConverged` reads.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

/// An object that is kept whole: there is one of each kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WholeObject(pub Value);

impl From<&Value> for WholeObject {
    fn from(object: &Value) -> Self {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        Self(object)
    }
}

/// A node, as far as settings depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSeen {
    /// Whether it takes pods. One that is cordoned or not ready counts: a drain or a restart changes no setting.
    pub schedulable: bool,
    /// Whether it belongs to the control plane.
    pub control_plane: bool,
    /// Its architecture, as Kubernetes names it.
    pub architecture: String,
}

/// A node, as it is read.
#[derive(Deserialize)]
pub struct NodeRead {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: std::collections::BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Vec<Taint>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
    #[serde(default)]
    effect: String,
}

/// How keys of taints begin that Kubernetes sets and takes away by a node's state, such as `node.kubernetes.io/unschedulable`.
const PASSING: &str = "node.kubernetes.io/";

impl From<&NodeRead> for NodeSeen {
    fn from(node: &NodeRead) -> Self {
        let labels = &node.metadata.labels;
        let blocks = |taint: &Taint| {
            !taint.key.starts_with(PASSING) && ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str())
        };
        Self {
            schedulable: !node.spec.taints.iter().any(blocks),
            control_plane: labels.contains_key("node-role.kubernetes.io/control-plane"),
            architecture: labels.get("kubernetes.io/arch").cloned().unwrap_or_default(),
        }
    }
}

/// The cluster, as far as settings depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Namespace of the platform.
    pub namespace: String,
    /// Version of the operator.
    pub version: String,
    /// Nodes that take pods.
    pub workers: usize,
    /// Control plane nodes.
    pub control_planes: usize,
    /// Architectures of the nodes that take pods.
    pub worker_architectures: BTreeSet<String>,
    /// Architectures of the control plane nodes.
    pub control_plane_architectures: BTreeSet<String>,
    /// Whether guests run without KVM on nodes that lack it.
    pub emulation: bool,
    /// URL of the pages about alerts with `%s` for the name, if the administrator chose one.
    pub runbooks: Option<String>,
}

impl Facts {
    /// Counts nodes.
    pub fn of<'a>(namespace: &str, version: &str, nodes: impl IntoIterator<Item = &'a NodeSeen>) -> Self {
        let mut facts =
            Self { namespace: namespace.to_owned(), version: version.to_owned(), ..Self::default() };
        for node in nodes {
            if node.schedulable {
                facts.workers += 1;
                facts.worker_architectures.insert(node.architecture.clone());
            }
            if node.control_plane {
                facts.control_planes += 1;
                facts.control_plane_architectures.insert(node.architecture.clone());
            }
        }
        facts
    }

    /// Whether the control plane can run on more than one node. Roles of nodes do not count: many clusters set none.
    pub fn highly_available(&self) -> bool {
        self.workers >= 2
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_that_pass_do_not_change_what_a_node_counts_for() {
        let taint = |key: &str, effect: &str| json!({"taints": [{"key": key, "effect": effect}]});
        for (spec, schedulable) in [
            (json!({}), true),
            (json!({"unschedulable": true}), true),
            (taint("node.kubernetes.io/unschedulable", "NoSchedule"), true),
            (taint("node.kubernetes.io/unreachable", "NoExecute"), true),
            (taint("node-role.kubernetes.io/control-plane", "NoSchedule"), false),
            (taint("gpu", "PreferNoSchedule"), true),
        ] {
            let node: NodeRead = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert_eq!(NodeSeen::from(&node).schedulable, schedulable, "{spec}");
        }
    }
}
