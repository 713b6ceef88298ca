//! Kinds of Kubernetes itself, as much of them as guests use: `PersistentVolumeClaim`, `Secret`, `ConfigMap`.

use std::collections::BTreeMap;

use crate::resource::{Confidential, ObjectMeta, Quantity, resource};

/// Version as objects write it.
pub const API_VERSION: &str = "v1";

resource! {
    /// Storage that is wanted.
    pub struct PersistentVolumeClaim {
        /// `v1`.
        pub api_version: String,
        /// `PersistentVolumeClaim`.
        pub kind: String,
        /// Its name.
        pub metadata: ObjectMeta,
        /// What is wanted.
        pub spec: ClaimSpec,
    }

    /// What is wanted of a claim.
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

    /// Sizes of a claim.
    pub struct ClaimResources {
        /// `storage`: the least.
        pub requests: BTreeMap<String, Quantity>,
        /// `storage`: the most.
        pub limits: BTreeMap<String, Quantity>,
    }

    /// Data that not everyone may see.
    pub struct Secret {
        /// `v1`.
        pub api_version: String,
        /// `Secret`.
        pub kind: String,
        /// Its name.
        pub metadata: ObjectMeta,
        /// What it is for, such as `Opaque`.
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
