//! Types of Kubernetes itself: the kinds that guests use (`PersistentVolumeClaim`, `Secret`, `ConfigMap`, each with the
//! fields that ferrovirt reads; other fields are kept), and the parts of a pod's spec that other kinds embed.
//!
//! Not here: pods and other workloads.

mod affinity;
mod dns;
mod probe;
mod reference;
mod resources;
mod scheduling;
mod selector;

use std::collections::BTreeMap;

use crate::resource::{Confidential, ObjectMeta, Quantity, partial, resource};

pub use affinity::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinity,
    PodAffinityTerm, PreferredNode, WeightedPodAffinityTerm,
};
pub use dns::{PodDnsConfig, PodDnsOption};
pub use probe::{ExecAction, HttpGetAction, HttpHeader, Probe, TcpSocketAction};
pub use reference::{TypedLocalReference, TypedReference};
pub use resources::{ResourceAmounts, ResourceClaim, ResourceRequirements};
pub use scheduling::{NodePlacement, PodResourceClaim, Toleration, TopologySpreadConstraint};
pub use selector::{LabelSelector, LabelSelectorRequirement};

/// Version as objects write it.
pub const API_VERSION: &str = "v1";

resource! {
    /// Capacity of a claim.
    pub struct ClaimResources {
        /// `storage`: lowest capacity.
        pub requests: BTreeMap<String, Quantity>,
        /// `storage`: highest capacity.
        pub limits: BTreeMap<String, Quantity>,
    }
}

partial! {
    /// Storage that is wanted.
    pub struct PersistentVolumeClaim {
        /// `v1`.
        pub api_version: String,
        /// `PersistentVolumeClaim`.
        pub kind: String,
        /// Its name.
        pub metadata: ObjectMeta,
        /// The requested properties.
        pub spec: ClaimSpec,
    }

    /// The requested properties of a claim.
    pub struct ClaimSpec {
        /// `ReadWriteOnce`, `ReadWriteMany`, `ReadOnlyMany`, `ReadWriteOncePod`.
        pub access_modes: Vec<String>,
        /// Its size, in `requests.storage`.
        pub resources: ClaimResources,
        /// Kind of storage; standalone, the name of a pool. Default: the default one.
        pub storage_class_name: Option<String>,
        /// `Filesystem` (default) or `Block`.
        pub volume_mode: Option<String>,
    }

    /// Data that not everyone may see.
    pub struct Secret {
        /// `v1`.
        pub api_version: String,
        /// `Secret`.
        pub kind: String,
        /// Its name.
        pub metadata: ObjectMeta,
        /// The type of its content, such as `Opaque`.
        #[serde(rename = "type")]
        pub purpose: Option<String>,
        /// Entries in base64.
        pub data: BTreeMap<String, Confidential>,
        /// Entries as text; they stand before those of `data`.
        pub string_data: BTreeMap<String, Confidential>,
        /// Whether it stays as it is. Default: no.
        pub immutable: Option<bool>,
    }

    /// Data.
    pub struct ConfigMap {
        /// `v1`.
        pub api_version: String,
        /// `ConfigMap`.
        pub kind: String,
        /// Its name.
        pub metadata: ObjectMeta,
        /// Entries as text.
        pub data: BTreeMap<String, String>,
        /// Entries in base64.
        pub binary_data: BTreeMap<String, String>,
        /// Whether it stays as it is. Default: no.
        pub immutable: Option<bool>,
    }
}
