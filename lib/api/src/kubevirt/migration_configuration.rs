//! Settings of live migration.

use crate::resource::{Quantity, resource};

resource! {
    /// Settings of live migration.
    pub struct MigrationConfiguration {
        /// Whether the guest is slowed down so that a migration converges. Default: false.
        pub allow_auto_converge: Option<bool>,
        /// Whether a migration may switch to post-copy after its timeout. Default: false.
        pub allow_post_copy: Option<bool>,
        /// Whether the guest may be paused so that a migration completes. Default: value of `allowPostCopy`.
        pub allow_workload_disruption: Option<bool>,
        /// Bandwidth limit of one migration, bytes per second. Default: no limit.
        pub bandwidth_per_migration: Option<Quantity>,
        /// Seconds per GiB of memory after which a migration times out. Default: 150.
        pub completion_timeout_per_gi_b: Option<i64>,
        /// Whether migration traffic is unencrypted. Default: false.
        #[serde(rename = "disableTLS")]
        pub disable_tls: Option<bool>,
        /// Settings that may change.
        pub experimental: Option<ExperimentalMigration>,
        /// Whether the target pod gets the SELinux level of the source pod. Default: true.
        #[serde(rename = "matchSELinuxLevelOnMigration")]
        pub match_se_linux_level_on_migration: Option<bool>,
        /// Longest pause of the guest at the switch to the target, milliseconds.
        pub max_downtime_ms: Option<i64> ["minimum" = 1, "maximum" = 2000000],
        /// NetworkAttachmentDefinition for migration traffic. Default: the pod network.
        pub network: Option<String>,
        /// Taint that starts the evacuation of a node.
        pub node_drain_taint_key: Option<String>,
        /// Most migrations in the cluster at once. Default: 5.
        pub parallel_migrations_per_cluster: Option<i32>,
        /// Most migrations from one node at once. Default: 2.
        pub parallel_outbound_migrations_per_node: Option<i32>,
        /// Seconds without progress after which a migration is aborted. Default: 150.
        pub progress_timeout: Option<i64>,
        /// Whether migrations that endanger data are allowed. Default: false.
        pub unsafe_migration_override: Option<bool>,
        /// Seconds to wait for the removal of utility volumes before a migration. Default: 150.
        pub utility_volumes_timeout: Option<i64>,
    }

    /// Migration settings that may change.
    pub struct ExperimentalMigration {
        /// Compression of migration traffic.
        pub compression: Option<String> ["enum" = ["none", "zstd"]],
        /// Stepwise increase of the allowed downtime.
        pub downtime_tuning: Option<DowntimeTuning>,
        /// Detection of migrations that make no progress.
        pub stall_detector: Option<StallDetector>,
    }

    /// Stepwise increase of the allowed downtime.
    pub struct DowntimeTuning {
        /// Seconds between two steps.
        pub cooldown_seconds: Option<i32> ["minimum" = 1],
        /// Downtime before the first step, milliseconds.
        pub initial_ms: Option<i64> ["minimum" = 1],
        /// Iteration after which the increase starts.
        pub start_after_iteration: Option<i64> ["minimum" = 1],
        /// Number of steps to the highest downtime.
        pub steps: Option<i32> ["minimum" = 1],
    }

    /// Detection of migrations that make no progress.
    pub struct StallDetector {
        /// Factor on the completion timeout.
        pub completion_timeout_factor: Option<Quantity>,
        /// Weight of the latest value in the moving average.
        pub ewma_alpha: Option<Quantity>,
        /// Factor by which the waiting time shrinks.
        pub patience_window_decay_factor: Option<Quantity>,
        /// Ratio of bandwidth to dirty rate above which pre-copy is expected to complete.
        pub precopy_possible_factor: Option<Quantity>,
        /// Whether the switch waits for a minimum of the remaining data.
        pub search_local_minima: Option<bool>,
        /// Percentage by which the remaining data must shrink.
        pub stall_margin: Option<i64> ["minimum" = 0, "maximum" = 100],
        /// Seconds without progress after which a migration counts as stalled.
        pub stall_progress_timeout: Option<i64> ["minimum" = 0],
        /// Seconds in which the switch to the target must complete.
        pub switchover_timeout: Option<i64> ["minimum" = 0],
    }
}
