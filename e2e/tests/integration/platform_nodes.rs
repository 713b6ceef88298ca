//! Tests that need a cluster for themselves: programs of the node and the platform killed, another pod network, the pools of
//! the storage changed, many volumes, the platform removed and installed again, and a second node that shares a network of
//! VMs, has claims of its own while programs are killed and a replica of the operator, dies and comes back.
//!
//! One test; its parts follow each other.

mod claims;
mod crowd;
mod footprint;
mod helm;
mod install;
mod join;
pub(crate) mod kills;
mod leaders;
mod nodes;
mod pools;
mod ptp;
mod volumes;

use crate::platform::{hyperconverged, webhooks};

#[test]
fn machines_outlive_kills_and_their_node_and_the_platform_is_removed_without_a_trace() {
    kills::guest_outlives_every_program();
    kills::memory_is_bounded();
    webhooks::accepted_while_replaced("ferrovirt-operator", "app=ferrovirt-operator");
    if std::env::var_os("FERROVIRT_SOAK").is_some() {
        footprint::is_within_its_requests();
    }
    ptp::guest_is_on_a_point_to_point_network();
    pools::follow_their_object();
    volumes::are_served_in_little_memory();
    hyperconverged::valid_objects_become_available();
    hyperconverged::deleted_children_come_back();
    install::rounds_leave_nothing_behind();
    install::kubevirt_and_cdi_work_alone();
    nodes::outlive_their_node();
}
