//! The wire types of CSI 1.12 and of the kubelet's plugin registration, generated from `proto/`: servers for the driver
//! (hpp-csi), clients for whoever asks for volumes (virt-node), and nothing that is written by hand.
//!
//! Not here: what the messages mean to either of them.

#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]

tonic::include_proto!("csi.v1");

/// The kubelet's plugin registration.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
