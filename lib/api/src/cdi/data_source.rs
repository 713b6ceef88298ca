//! `DataSource`: stable name for an image.

use super::ClaimSource;
use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Stable name for a disk image that DataVolumes are cloned from.
    pub struct DataSource {
        /// `cdi.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `DataSource`.
        pub kind: String,
        /// Name and metadata.
        pub metadata: ObjectMeta,
        /// Claim, snapshot or other DataSource that the name stands for.
        pub spec: DataSourceSpec ["x-required" = true],
        /// Resolved source and readiness.
        pub status: Option<DataSourceStatus>,
    }

    /// Target of a DataSource.
    pub struct DataSourceSpec {
        /// Claim, snapshot or other DataSource that the name stands for.
        pub source: DataSourceTarget ["x-required" = true],
    }

    /// Target of a DataSource; exactly one field is set.
    pub struct DataSourceTarget {
        /// Other DataSource, resolved one level deep.
        pub data_source: Option<ClaimSource>,
        /// PersistentVolumeClaim.
        pub pvc: Option<ClaimSource>,
        /// VolumeSnapshot.
        pub snapshot: Option<ClaimSource>,
    }

    /// State of a DataSource.
    pub struct DataSourceStatus {
        /// Condition `Ready`.
        pub conditions: Vec<Condition> ["x-omit" = ["lastProbeTime"]],
        /// Source after references to other DataSources are resolved.
        pub source: Option<DataSourceTarget>,
    }
}
