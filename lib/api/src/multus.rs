//! The group k8s.cni.cncf.io, version v1: `NetworkAttachmentDefinition` (Network Plumbing Working Group's de-facto
//! standard, version 1.2), by which guests name networks beside the pod network.

use crate::resource::{ObjectMeta, resource};

/// Group and version as objects write them.
pub const API_VERSION: &str = "k8s.cni.cncf.io/v1";

resource! {
    /// A network, as a CNI configuration.
    pub struct NetworkAttachmentDefinition {
        /// `k8s.cni.cncf.io/v1`.
        pub api_version: String,
        /// `NetworkAttachmentDefinition`.
        pub kind: String,
        /// Its name.
        pub metadata: ObjectMeta,
        /// The network.
        pub spec: NetworkSpec,
    }

    /// A network.
    pub struct NetworkSpec {
        /// A CNI configuration or list of them, JSON. Nothing: the node has one with the object's name.
        pub config: Option<String>,
    }
}
