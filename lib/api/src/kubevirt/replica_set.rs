//! `VirtualMachineInstanceReplicaSet`: a set of identical guests.

use super::Template;
use crate::core::LabelSelector;
use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Set of identical guests.
    pub struct VirtualMachineInstanceReplicaSet {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstanceReplicaSet`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Number and template of the guests.
        pub spec: VirtualMachineInstanceReplicaSetSpec ["x-required" = true],
        /// Actual number of guests.
        pub status: Option<VirtualMachineInstanceReplicaSetStatus>,
    }

    /// Number and template of the guests of a set.
    pub struct VirtualMachineInstanceReplicaSetSpec {
        /// Whether the controller leaves the set alone. Default: false.
        pub paused: Option<bool>,
        /// Number of guests. Default: 1.
        pub replicas: Option<i32>,
        /// Labels of the guests.
        pub selector: LabelSelector ["x-required" = true],
        /// Template of the guests.
        pub template: Template ["x-required" = true],
    }

    /// Actual number of guests of a set.
    pub struct VirtualMachineInstanceReplicaSetStatus {
        /// Conditions `ReplicaPaused` and `ReplicaFailure`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastHeartbeatTime"]],
        /// Selector in text form, for the scale subresource.
        pub label_selector: Option<String>,
        /// Guests that are ready.
        pub ready_replicas: Option<i32>,
        /// Guests.
        pub replicas: Option<i32>,
    }
}
