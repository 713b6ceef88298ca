//! Resource requests and limits.

use std::collections::BTreeMap;

use crate::resource::{Quantity, resource};

resource! {
    /// Resource requests and limits of a container.
    pub struct ResourceAmounts {
        /// Highest amounts, by resource name.
        pub limits: BTreeMap<String, Quantity>,
        /// Reserved amounts, by resource name.
        pub requests: BTreeMap<String, Quantity>,
    }

    /// Resource requests and limits of a pod.
    pub struct ResourceRequirements {
        /// Resource claims that the container uses.
        pub claims: Vec<ResourceClaim> ["x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]],
        /// Highest amounts, by resource name.
        pub limits: BTreeMap<String, Quantity>,
        /// Reserved amounts, by resource name.
        pub requests: BTreeMap<String, Quantity>,
    }

    /// Resource claim that a container uses.
    pub struct ResourceClaim {
        /// Name of the entry in the pod's `resourceClaims`.
        pub name: String ["x-required" = true],
        /// Request within the claim. Default: all of them.
        pub request: Option<String>,
    }
}
