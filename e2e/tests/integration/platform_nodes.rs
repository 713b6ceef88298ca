//! Tests that need a cluster for themselves: programs of the node and the platform killed, a MAC pool without a free address,
//! another pod network, the pools of the storage changed, many volumes, the platform removed and installed again, and a second
//! node that shares a network of VMs, has claims of its own while programs are killed and a replica of the operator, dies and
//! comes back.
//!
//! One test; its parts follow each other. `FERROVIRT_PARTS=kills,install` runs some of them.

mod addresses;
mod claims;
mod crowd;
mod footprint;
mod helm;
mod install;
mod join;
pub(crate) mod kills;
mod leaders;
pub(crate) mod nodes;
mod pools;
mod ptp;
mod volumes;
mod workloads;

use crate::platform::{hyperconverged, webhooks};

/// A part and its name, by which `FERROVIRT_PARTS` selects it: names with commas between them.
type Part = (&'static str, fn());

/// In the order in which they run: the last ones remove the platform and add a node.
const PARTS: [Part; 12] = [
    ("kills", kills::guest_outlives_every_program),
    ("memory", kills::memory_is_bounded),
    ("addresses", addresses::follow_their_policy_and_run_out),
    ("webhooks", || webhooks::accepted_while_replaced("ferrovirt-operator", "app=ferrovirt-operator")),
    ("ptp", ptp::guest_is_on_a_point_to_point_network),
    ("pools", pools::follow_their_object),
    ("volumes", volumes::are_served_in_little_memory),
    ("hyperconverged", hyperconverged::valid_objects_become_available),
    ("children", hyperconverged::deleted_children_come_back),
    ("install", install::rounds_leave_nothing_behind),
    ("alone", install::kubevirt_and_cdi_work_alone),
    ("nodes", nodes::outlive_their_node),
];
/// Half an hour of work: only with the full counts, where it comes before the other pod network.
const FOOTPRINT: Part = ("footprint", footprint::is_within_its_requests);
/// The upload proxy is replaced twice: only with the full counts too, where it comes before the first removal.
const DOWNLOADS: Part = ("downloads", hyperconverged::supplied_clients_are_downloaded);
/// Another installation: likewise, after the others.
const NAMESPACE: Part = ("namespace", install::works_in_another_namespace);

#[test]
fn machines_outlive_kills_and_their_node_and_the_platform_is_removed_without_a_trace() {
    let mut parts = PARTS.to_vec();
    if std::env::var_os("FERROVIRT_SOAK").is_some() {
        let removal = parts.iter().position(|(name, _)| *name == "install").unwrap();
        parts.insert(parts.len() - 1, NAMESPACE);
        parts.insert(removal, DOWNLOADS);
        parts.insert(4, FOOTPRINT);
    }
    if let Ok(selected) = std::env::var("FERROVIRT_PARTS") {
        let names: Vec<&str> = selected.split(',').collect();
        let unknown = names.iter().find(|name| !parts.iter().any(|(part, _)| part == *name));
        assert!(unknown.is_none(), "FERROVIRT_PARTS: no part {unknown:?}");
        parts.retain(|(part, _)| names.contains(part));
    }
    for (name, part) in parts {
        println!("part {name}");
        part();
    }
}
