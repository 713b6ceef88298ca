//! The wire types of CSI 1.12, of the Kubernetes SnapshotMetadata API, of the kubelet's plugin registration and device
//! plugins, and of the state of hpp-csi's pools, generated from `proto/`: servers for the driver (hpp-csi) and for device
//! plugins (virt-agent), clients for virt-agent and virt-node, and no handwritten code.
//!
//! Not here: what the messages mean.

#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]

tonic::include_proto!("csi.v1");

/// The Kubernetes SnapshotMetadata API.
pub mod snapshotmetadata {
    include!(concat!(env!("OUT_DIR"), "/metadata/snapshotmetadata.rs"));
}

/// The kubelet's plugin registration.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The kubelet's device plugin API, v1beta1.
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// The state of hpp-csi's pools, for the agent of its node.
pub mod pools {
    tonic::include_proto!("ferrovirt.pools");
}
