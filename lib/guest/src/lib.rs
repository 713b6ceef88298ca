//! Shared by the single machine and the node agent, around a guest's launcher:
//!
//! - [`Client`]: calls and events on a launcher's socket; [`framing`]: frames and byte streams on Unix sockets; [`clients`]: a
//!   limit on the clients of a listener.
//! - [`network`]: CNI's runtime, and the way from the interface that a plugin made to the guest's tap device.
//! - [`agent`]: answers of the agent in a guest.
//! - [`found`]: what guests find on a machine or in a pod: QEMU, its machine type, firmware, KVM.
//! - [`memory`]: memory that a start alone needed.
//! - [`signals`]: signals taken one at a time.
//!
//! Not here: what only a single machine needs (its pod network's bridge, addresses, DNS, firewall), rules for guests
//! (`virt`), libvirt (`virt-launcher`).

pub mod agent;
mod client;
pub mod clients;
mod error;
pub mod found;
pub mod framing;
pub mod memory;
pub mod network;
pub mod signals;
mod sys;

pub use client::{CallError, Client};
pub use error::{Error, Kind};
