//! When a node's agent counts as silent, and what follows for the node. Pure.

use crate::view::Node;

/// Seconds after which an agent without a heartbeat counts as silent.
pub(in crate::compute) const SILENT: u64 = 300;

/// The step for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::compute) enum Step {
    /// Label the node unschedulable and record the event NodeUnresponsive.
    MarkUnresponsive,
    /// It is marked already: record an event if its instances have no agent.
    FindOrphans,
    /// Look again at this time, in seconds since 1970.
    Wait(u64),
}

/// The event of a node with instances and no agent.
pub(super) const ORPHANS: &str = "virt-handler is not present, there are orphaned vmis on this node. Run virt-handler on this \
                                  node to migrate or remove them.";

/// The step for a node at `now`, in seconds since 1970; none for a node that never had an agent.
pub(in crate::compute) fn plan(node: &Node, now: u64) -> Option<Step> {
    let heartbeat = node.heartbeat()?;
    match (is_unresponsive(node, now), node.schedulable()) {
        (true, true) => Some(Step::MarkUnresponsive),
        (true, false) => Some(Step::FindOrphans),
        (false, _) => Some(Step::Wait(heartbeat.saturating_add(SILENT).saturating_add(1))),
    }
}

/// Whether the agent of a node reported before, and not in the last five minutes.
pub(in crate::compute) fn is_unresponsive(node: &Node, now: u64) -> bool {
    node.heartbeat().is_some_and(|heartbeat| heartbeat.saturating_add(SILENT) < now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(schedulable: &str, heartbeat: Option<&str>) -> Node {
        let annotations = heartbeat.map_or(json!({}), |text| json!({"kubevirt.io/heartbeat": text}));
        serde_json::from_value(json!({"metadata": {
            "name": "n", "labels": {"kubevirt.io/schedulable": schedulable}, "annotations": annotations,
        }}))
        .unwrap()
    }

    #[test]
    fn silent_agent_makes_its_node_unschedulable_once() {
        let beat = Some("1970-01-01T00:01:40Z");
        for (node, now, wanted) in [
            (node("true", beat), 101, Some(Step::Wait(401))),
            (node("true", beat), 400, Some(Step::Wait(401))),
            (node("true", beat), 401, Some(Step::MarkUnresponsive)),
            (node("false", beat), 401, Some(Step::FindOrphans)),
            (node("false", beat), 200, Some(Step::Wait(401))),
            (node("true", None), 1000, None),
        ] {
            assert_eq!(plan(&node, now), wanted, "{node:?} at {now}");
        }
    }
}
