//! The guests of this node: from a launcher pod that is ready to a guest that runs, to its end.
//!
//! ```text
//! VMIs, pods (watch) ─┐                                   ┌─► apply: launch, shut down      (threads)
//! launchers (follow) ─┼─► controller ─► plan::step ─► Step┤
//! finished steps ─────┘   one task, keyed by VMI          └─► status ─► patch ─► API server, events
//! ```
//!
//! All state is rebuilt from the API server and the launchers at every start: nothing here is kept on disk, and the guests
//! go on without the agent.
//!
//! Not here: pods and their phases before Scheduled, deletion of pods (the operator).

mod checksums;
pub(crate) mod controller;
mod credentials;
mod disks;
mod follow;
mod growth;
mod host_devices;
mod hotplug;
pub(crate) mod instance;
mod interfaces;
mod launch;
mod network;
pub(crate) mod osinfo;
mod patch;
mod plan;
mod pod;
mod qcow2;
mod status;
pub(crate) mod talk;

pub(crate) use launch::Site;
