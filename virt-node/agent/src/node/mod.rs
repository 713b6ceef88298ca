//! What the cluster knows of this node: labels, heartbeat, whether KVM works. What guests find on it.
//!
//! Not here: devices that the kubelet counts ([`crate::devices`]).

pub(crate) mod bridges;
pub(crate) mod cpu;
pub(crate) mod host;
pub(crate) mod kvm;
pub(crate) mod plan;
pub(crate) mod report;
