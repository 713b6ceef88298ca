//! CSIDriver and CSINode.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::meta::{text, texts};

/// The fields read from a CSIDriver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsiDriver {
    /// Whether its volumes are attached to a node before a pod uses them.
    pub attaches: bool,
}

impl From<&Value> for CsiDriver {
    fn from(object: &Value) -> Self {
        // The API server's default is to attach.
        Self { attaches: object["spec"]["attachRequired"] != false }
    }
}

/// The fields read from a CSINode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiNode {
    /// The drivers that are registered on the node: the keys of their topology, by their names.
    pub drivers: BTreeMap<String, Vec<String>>,
}

impl From<&Value> for CsiNode {
    fn from(object: &Value) -> Self {
        let drivers = object["spec"]["drivers"].as_array().into_iter().flatten();
        Self { drivers: drivers.map(|one| (text(&one["name"]), texts(&one["topologyKeys"]))).collect() }
    }
}

impl CsiNode {
    /// The drivers whose entries differ between two states of a node.
    pub fn changed<'a>(before: Option<&'a Self>, after: Option<&'a Self>) -> BTreeSet<&'a String> {
        let names = [before, after].into_iter().flatten().flat_map(|node| node.drivers.keys());
        let differs = |name: &&'a String| {
            let [old, new] = [before, after].map(|node| node.and_then(|node| node.drivers.get(*name)));
            old != new
        };
        names.filter(differs).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_driver_attaches_unless_it_does_not() {
        for (spec, expected) in [
            (json!({}), true),
            (json!({"attachRequired": true}), true),
            (json!({"attachRequired": false}), false),
        ] {
            assert_eq!(CsiDriver::from(&json!({"spec": spec})).attaches, expected, "{spec}");
        }
    }

    #[test]
    fn the_drivers_of_a_node_have_their_topology() {
        let node = CsiNode::from(&json!({"spec": {"drivers": [
            {"name": "a", "nodeID": "1", "topologyKeys": ["zone", "a/node"]}, {"name": "b", "topologyKeys": null},
        ]}}));
        assert_eq!((node.drivers["a"].len(), node.drivers["b"].len()), (2, 0));
        assert_eq!(CsiNode::from(&json!({"spec": {"drivers": null}})), CsiNode::default());
    }

    #[test]
    fn drivers_change_with_their_entries() {
        let node = |drivers: Value| CsiNode::from(&json!({"spec": {"drivers": drivers}}));
        let one = node(json!([{"name": "a", "topologyKeys": ["zone"]}, {"name": "b"}]));
        let other = node(json!([{"name": "a", "topologyKeys": ["zone", "rack"]}, {"name": "b"}]));
        let more = node(json!([{"name": "a", "topologyKeys": ["zone"]}, {"name": "b"}, {"name": "c"}]));
        for (before, after, expected) in [
            (None, Some(&one), &["a", "b"][..]),
            (Some(&one), None, &["a", "b"]),
            (Some(&one), Some(&one), &[]),
            (Some(&one), Some(&other), &["a"]),
            (Some(&one), Some(&more), &["c"]),
            (Some(&more), Some(&one), &["c"]),
        ] {
            let changed: Vec<&String> = CsiNode::changed(before, after).into_iter().collect();
            assert_eq!(changed, expected, "{before:?} {after:?}");
        }
    }
}
