//! The plugins from outside, as a runtime calls them.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures are shown with --nocapture")]

mod bandwidth;
mod binary_budget;
mod bridge;
mod command;
mod concurrent;
mod del;
mod delegated;
mod dormant_table;
mod full_node;
mod gateway;
mod gc;
mod hooked;
mod hostile;
mod interrupted;
mod ipam;
mod iptables;
mod keys;
mod layer3;
mod locked;
mod mixed;
mod mixed_layer3;
mod mutants;
mod names;
mod packet_filter;
mod pinned_frames;
mod pinning;
mod status;
mod support;
mod tap;
mod tuning;
mod vlan;
