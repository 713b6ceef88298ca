//! `ObjectTransfer`: deprecated move of a claim to another namespace.

use std::collections::BTreeMap;

use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Move of a claim or DataVolume to another namespace. Deprecated; new objects end in phase `Error`.
    pub struct ObjectTransfer {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `ObjectTransfer`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Source and target.
        pub spec: ObjectTransferSpec ["x-required" = true],
        /// Progress.
        pub status: Option<ObjectTransferStatus>,
    }

    /// Source and target of a move.
    pub struct ObjectTransferSpec {
        /// ObjectTransfer that created this one.
        pub parent_name: Option<String>,
        /// Object that is moved.
        pub source: TransferSource ["x-required" = true],
        /// Destination of the object.
        pub target: TransferTarget ["x-required" = true],
    }

    /// Object that is moved.
    pub struct TransferSource {
        /// Group and version.
        pub api_version: Option<String>,
        /// `DataVolume` or `PersistentVolumeClaim`.
        pub kind: String ["x-required" = true],
        /// Name.
        pub name: String ["x-required" = true],
        /// Namespace.
        pub namespace: String ["x-required" = true],
        /// Annotations that the object must have before it is moved.
        pub required_annotations: BTreeMap<String, String>,
    }

    /// Destination of a move; at least one field is set.
    pub struct TransferTarget {
        /// New name.
        pub name: Option<String>,
        /// New namespace.
        pub namespace: Option<String>,
    }

    /// Progress of a move.
    pub struct ObjectTransferStatus {
        /// Condition `Complete`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// Data kept between steps.
        pub data: BTreeMap<String, String>,
        /// Phase of the move.
        pub phase: Option<String>,
    }
}
