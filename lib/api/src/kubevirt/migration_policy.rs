//! `MigrationPolicy` (migrations.kubevirt.io/v1alpha1): settings of live migration for matching guests.

use std::collections::BTreeMap;

use super::ExperimentalMigration;
use crate::resource::{Empty, ObjectMeta, Quantity, resource};

resource! {
    /// Settings of live migration for the guests that the selectors match.
    pub struct MigrationPolicy {
        /// `migrations.kubevirt.io/v1alpha1`.
        pub api_version: String,
        /// `MigrationPolicy`.
        pub kind: String,
        /// Name.
        pub metadata: ObjectMeta,
        /// Settings and selectors.
        pub spec: MigrationPolicySpec ["x-required" = true],
        /// Without fields.
        pub status: Option<Empty>,
    }

    /// Settings of a MigrationPolicy; the others are those of the KubeVirt object.
    pub struct MigrationPolicySpec {
        /// Whether the guest is slowed down so that a migration converges.
        pub allow_auto_converge: Option<bool>,
        /// Whether a migration may switch to post-copy after its timeout.
        pub allow_post_copy: Option<bool>,
        /// Whether the guest may be paused so that a migration completes.
        pub allow_workload_disruption: Option<bool>,
        /// Bandwidth limit of one migration, bytes per second.
        pub bandwidth_per_migration: Option<Quantity>,
        /// Seconds per GiB of memory after which a migration times out.
        pub completion_timeout_per_gi_b: Option<i64>,
        /// Settings that may change.
        pub experimental: Option<ExperimentalMigration>,
        /// Longest pause of the guest at the switch to the target, milliseconds.
        pub max_downtime_ms: Option<i64> ["minimum" = 1, "maximum" = 2000000],
        /// Guests that the policy applies to.
        pub selectors: MigrationSelectors ["x-required" = true],
    }

    /// Guests that a MigrationPolicy applies to; all selectors must match.
    pub struct MigrationSelectors {
        /// Labels of the namespace.
        pub namespace_selector: BTreeMap<String, String>,
        /// Labels of the instance.
        pub virtual_machine_instance_selector: BTreeMap<String, String>,
    }
}
