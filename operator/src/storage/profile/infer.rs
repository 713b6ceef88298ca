//! Inference about a provisioner that the table does not know, from its CSIDriver and its topology: that of the nodes
//! where it is registered, and that of a class. Pure.
//!
//! Not here: VolumeSnapshotClasses, from which the clone strategy of any provisioner follows.

use super::Property;
use crate::storage::seen::{Class, CsiDriver, CsiNode};

/// Last parts of topology keys of which each node has a value of its own, without dashes and dots.
const NODE_KEYS: [&str; 5] = ["host", "hostname", "node", "nodeid", "nodename"];

/// Where a volume can be used, as far as objects of the cluster show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// No object shows it.
    #[default]
    Unknown,
    /// On the node that it was made on.
    OneNode,
    /// On every node that has the driver.
    EveryNode,
}

/// A CSI driver, as objects of the cluster describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Whether its volumes are attached to a node before a pod uses them.
    pub attaches: bool,
    /// Where they can be used.
    pub reach: Reach,
}

impl Default for Driver {
    fn default() -> Self {
        Self { attaches: true, reach: Reach::default() }
    }
}

impl Driver {
    /// The driver of a class; `nodes` are the CSINodes of the cluster.
    pub fn of<'a>(class: &'a Class, driver: CsiDriver, nodes: impl IntoIterator<Item = &'a CsiNode>) -> Self {
        Self { attaches: driver.attaches, reach: reach(class, nodes) }
    }

    /// Whether several nodes may use one volume at once: no node has it to itself, and each can reach it.
    pub(super) fn shares(self) -> bool {
        !self.attaches && self.reach == Reach::EveryNode
    }

    /// Claim properties, the preferred one first: every CSI driver mounts a ReadWriteOnce Filesystem volume.
    pub(super) fn properties(self) -> Vec<Property> {
        let modes: &[&str] =
            if self.shares() { &["ReadWriteOnce", "ReadWriteMany"] } else { &["ReadWriteOnce"] };
        modes.iter().map(|mode| Property { modes: vec![(*mode).to_owned()], block: false }).collect()
    }
}

fn reach<'a>(class: &'a Class, nodes: impl IntoIterator<Item = &'a CsiNode>) -> Reach {
    let mut keys = nodes.into_iter().filter_map(|node| node.drivers.get(&class.provisioner)).peekable();
    let is_registered = keys.peek().is_some();
    let keys: Vec<&String> = class.topology_keys.iter().chain(keys.flatten()).collect();
    match keys.iter().any(|key| is_of_node(key)) {
        true => Reach::OneNode,
        false if is_registered && keys.is_empty() => Reach::EveryNode,
        false => Reach::Unknown,
    }
}

/// Whether each node has a value of its own for a topology key, by the key's name.
fn is_of_node(key: &str) -> bool {
    let last = key.rsplit('/').next().unwrap_or(key).to_ascii_lowercase();
    let last: String = last.chars().filter(char::is_ascii_alphanumeric).collect();
    NODE_KEYS.contains(&last.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_node_are_recognized_by_their_names() {
        for (key, expected) in [
            ("kubernetes.io/hostname", true),
            ("topology.hostpath.csi/node", true),
            ("topology.topolvm.io/node", true),
            ("openebs.io/nodename", true),
            ("org.democratic-csi.topology/node", true),
            ("example.com/node-name", true),
            ("hostname", true),
            ("topology.kubernetes.io/zone", false),
            ("topology.ebs.csi.aws.com/zone", false),
            ("node.example.com/rack", false),
            ("instance.hetzner.cloud/is-root-server", false),
        ] {
            assert_eq!(is_of_node(key), expected, "{key}");
        }
    }

    #[test]
    fn access_modes_follow_from_attachment_and_topology() {
        const ZONE: &str = "topology.kubernetes.io/zone";
        const NODE: &str = "example.com/node";
        let (once, both) = (&["ReadWriteOnce"][..], &["ReadWriteOnce", "ReadWriteMany"][..]);
        let nodes = |keys: Option<&[&str]>| {
            let other = CsiNode { drivers: [("other".to_owned(), vec![NODE.to_owned()])].into() };
            let own: Option<Vec<String>> =
                keys.map(|keys| keys.iter().map(|key| (*key).to_owned()).collect());
            let own = own.map(|keys| CsiNode { drivers: [("x".to_owned(), keys)].into() });
            [Some(other), own].into_iter().flatten().collect::<Vec<_>>()
        };
        // Whether it attaches, the keys of its nodes, if it has any, and of the class: the reach, the access modes.
        type Case<'a> = (bool, Option<&'a [&'a str]>, &'a [&'a str], Reach, &'a [&'a str]);
        let cases: [Case<'_>; 9] = [
            (true, None, &[], Reach::Unknown, once),
            (false, None, &[], Reach::Unknown, once),
            (true, Some(&[]), &[], Reach::EveryNode, once),
            (false, Some(&[]), &[], Reach::EveryNode, both),
            (false, Some(&[ZONE]), &[], Reach::Unknown, once),
            (false, Some(&[ZONE, NODE]), &[], Reach::OneNode, once),
            (false, Some(&[]), &[NODE], Reach::OneNode, once),
            (false, Some(&[]), &[ZONE], Reach::Unknown, once),
            (false, None, &[NODE], Reach::OneNode, once),
        ];
        for (attaches, of_nodes, of_class, reach, modes) in cases {
            let topology_keys = of_class.iter().map(|key| (*key).to_owned()).collect();
            let class = Class { provisioner: "x".into(), topology_keys, ..Class::default() };
            let driver = Driver::of(&class, CsiDriver { attaches }, &nodes(of_nodes));
            let case = format!("{attaches} {of_nodes:?} {of_class:?}");
            assert_eq!(driver.reach, reach, "{case}");
            let found: Vec<String> = driver.properties().into_iter().flat_map(|one| one.modes).collect();
            assert_eq!(found, modes, "{case}");
            assert!(driver.properties().iter().all(|one| !one.block), "{case}");
        }
    }
}
