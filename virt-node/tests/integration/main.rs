//! `virt-node` from outside: its commands, its daemon, the networks of its guests.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod check;
mod daemon;
mod daemon_debian;
mod daemon_faults;
mod daemon_hostile;
mod daemon_hotplug;
mod daemon_machines;
mod daemon_misuse;
mod daemon_network;
mod daemon_planted;
mod daemon_releases;
mod daemon_sources;
mod daemon_ssh;
mod daemon_terminal;
mod daemon_upload;
mod network;
mod network_guest;
mod support;
mod validate;
