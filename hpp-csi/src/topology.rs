//! The topology of CSI: a volume is where its node is.

use std::collections::HashMap;

use csi::Topology;

use crate::id::Id;

/// Key of the topology.
const TOPOLOGY_KEY: &str = "topology.hostpath.csi/node";

/// A node as a topology.
pub(crate) fn of_node(node: &Id) -> Topology {
    Topology { segments: HashMap::from([(TOPOLOGY_KEY.to_owned(), node.to_string())]) }
}

/// Where a volume of `node` can be used: there, or on all nodes.
pub(crate) fn of_volume(node: &Id, shared: bool) -> Vec<Topology> {
    if shared { Vec::new() } else { vec![of_node(node)] }
}

/// Whether a topology is of another node.
pub(crate) fn is_elsewhere(node: &Id, topology: &Topology) -> bool {
    topology.segments.get(TOPOLOGY_KEY).is_some_and(|of| of != node.as_str())
}
