//! Live migration and updates of running guests in `HyperConverged`, equal in both versions.

use crate::resource::resource;

resource! {
    /// Settings of live migration.
    pub struct LiveMigration {
        /// Whether the guest is slowed down so that a migration converges.
        pub allow_auto_converge: Option<bool> ["x-default" = false],
        /// Whether a migration may switch to post-copy after its timeout.
        pub allow_post_copy: Option<bool> ["x-default" = false],
        /// Whether the guest may be paused so that a migration completes.
        pub allow_workload_disruption: Option<bool> ["x-default" = false],
        /// Bandwidth limit of one migration, bytes per second, such as `64Mi`. Default: no limit.
        pub bandwidth_per_migration: Option<String> ["pattern" = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"],
        /// Seconds per GiB of memory after which a migration times out.
        pub completion_timeout_per_gi_b: Option<i64> ["x-default" = 20],
        /// NetworkAttachmentDefinition for migration traffic. Default: the pod network.
        pub network: Option<String>,
        /// Most migrations in the cluster at once.
        pub parallel_migrations_per_cluster: Option<i32> ["x-default" = 5],
        /// Most migrations from one node at once.
        pub parallel_outbound_migrations_per_node: Option<i32> ["x-default" = 1],
        /// Seconds without progress after which a migration is aborted.
        pub progress_timeout: Option<i64> ["x-default" = 150],
    }

    /// Update of running guests to a new launcher version.
    pub struct WorkloadUpdate {
        /// Time between two batches of evictions.
        pub batch_eviction_interval: Option<String> ["x-default" = "1m0s"],
        /// Guests that are evicted at once.
        pub batch_eviction_size: Option<i64> ["x-default" = 10],
        /// `LiveMigrate`, `Evict`: allowed ways, preferred first. Empty: guests are not updated.
        pub workload_update_methods: Vec<String> ["x-required" = true, "x-default" = ["LiveMigrate"]],
    }
}
