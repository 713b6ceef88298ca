//! The group k8s.cni.cncf.io, version v1: `NetworkAttachmentDefinition` (de-facto standard of the Network Plumbing Working
//! Group, version 1.2), a network other than the pod network.

use crate::resource::{ObjectMeta, resource};

/// Group and version as objects write them.
pub const API_VERSION: &str = "k8s.cni.cncf.io/v1";

resource! {
    /// Network that pods and guests can be attached to.
    pub struct NetworkAttachmentDefinition {
        /// `k8s.cni.cncf.io/v1`.
        pub api_version: String,
        /// `NetworkAttachmentDefinition`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Configuration of the network.
        pub spec: NetworkSpec,
    }

    /// Configuration of a network.
    pub struct NetworkSpec {
        /// CNI configuration or configuration list, JSON. Empty: the node has a configuration file of the object's name.
        pub config: Option<String>,
    }
}
