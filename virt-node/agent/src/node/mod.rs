//! The node's state in the cluster: labels, heartbeat, whether KVM works. The features that guests find on it. The level of
//! the agent's log, which a node may have for itself. Its network, for support bundles.
//!
//! Not here: devices that the kubelet counts ([`crate::devices`]).

pub(crate) mod bridges;
pub(crate) mod cpu;
pub(crate) mod host;
pub(crate) mod kvm;
pub(crate) mod logs;
pub(crate) mod network;
pub(crate) mod plan;
pub(crate) mod report;
