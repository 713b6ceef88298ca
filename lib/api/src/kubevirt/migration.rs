//! `VirtualMachineInstanceMigration`: live migration of a guest.

use std::collections::BTreeMap;

use super::{MigrationState, PhaseTransition};
use crate::resource::{Condition, ObjectMeta, resource};

resource! {
    /// Live migration of a guest to another node.
    pub struct VirtualMachineInstanceMigration {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstanceMigration`.
        pub kind: String,
        /// Name and namespace.
        pub metadata: ObjectMeta,
        /// Guest and constraints on the target.
        pub spec: VirtualMachineInstanceMigrationSpec ["x-required" = true],
        /// Progress.
        pub status: Option<VirtualMachineInstanceMigrationStatus>,
    }

    /// Guest and constraints of a live migration.
    pub struct VirtualMachineInstanceMigrationSpec {
        /// Labels that the target node must have in addition to the guest's own selector.
        pub added_node_selector: BTreeMap<String, String>,
        /// Priority in the queue; set by the platform.
        pub priority: Option<String>,
        /// Settings of the receiving side of a migration between clusters.
        pub receive: Option<MigrationReceive>,
        /// Settings of the sending side of a migration between clusters.
        pub send_to: Option<MigrationSend>,
        /// Name of the VirtualMachineInstance.
        pub vmi_name: Option<String>,
    }

    /// Receiving side of a migration between clusters.
    pub struct MigrationReceive {
        /// Identifier shared by both sides.
        #[serde(rename = "migrationID")]
        pub migration_id: String ["x-required" = true],
    }

    /// Sending side of a migration between clusters.
    pub struct MigrationSend {
        /// Address of the receiving cluster.
        #[serde(rename = "connectURL")]
        pub connect_url: String ["x-required" = true],
        /// Identifier shared by both sides.
        #[serde(rename = "migrationID")]
        pub migration_id: String ["x-required" = true],
    }

    /// Progress of a live migration.
    pub struct VirtualMachineInstanceMigrationStatus {
        /// Conditions, such as the cause of a rejection.
        pub conditions: Vec<Condition> ["x-omit" = ["lastHeartbeatTime"]],
        /// Details of the migration.
        pub migration_state: Option<MigrationState>,
        /// `Pending`, `Scheduling`, `Scheduled`, `PreparingTarget`, `TargetReady`, `Running`, `Succeeded` or
        /// `Failed`.
        pub phase: Option<String>,
        /// Start time of each phase.
        pub phase_transition_timestamps: Vec<PhaseTransition>,
        /// Addresses of the synchronization controller.
        pub synchronization_addresses: Vec<String>,
    }
}
