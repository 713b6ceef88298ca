//! Details of a live migration, kept at the instance and at the migration.

use std::collections::BTreeMap;

use super::MigrationConfiguration;
use crate::resource::{Quantity, resource};

resource! {
    /// Details of a live migration.
    pub struct MigrationState {
        /// Whether an abort was requested.
        pub abort_requested: Option<bool>,
        /// `Aborting`, `Succeeded` or `Failed`.
        pub abort_status: Option<String>,
        /// Whether the migration has ended.
        pub completed: Option<bool>,
        /// End time (RFC 3339).
        pub end_timestamp: Option<String> ["format" = "date-time"],
        /// Whether the migration has failed.
        pub failed: Option<bool>,
        /// Cause of the failure.
        pub failure_reason: Option<String>,
        /// Settings in effect.
        pub migration_configuration: Option<MigrationConfiguration>,
        /// `pod` or `migration`: network of the migration traffic.
        pub migration_network_type: Option<String>,
        /// MigrationPolicy in effect.
        pub migration_policy_name: Option<String>,
        /// UID of the VirtualMachineInstanceMigration.
        pub migration_uid: Option<String>,
        /// `PreCopy`, `PostCopy` or `Paused`.
        pub mode: Option<String>,
        /// Node that the guest leaves.
        pub source_node: Option<String>,
        /// Claim with TPM and EFI state at the source.
        #[serde(rename = "sourcePersistentStatePVCName")]
        pub source_persistent_state_pvc_name: Option<String>,
        /// Launcher pod at the source.
        pub source_pod: Option<String>,
        /// State of the source.
        pub source_state: Option<MigrationSource>,
        /// Start time (RFC 3339).
        pub start_timestamp: Option<String> ["format" = "date-time"],
        /// UID of the pod that attaches hotplugged volumes at the target.
        #[serde(rename = "targetAttachmentPodUID")]
        pub target_attachment_pod_uid: Option<String>,
        /// CPUs of the guest at the target.
        #[serde(rename = "targetCPUSet")]
        pub target_cpu_set: Vec<i64>,
        /// Ports at the target, by number: the port at the source.
        pub target_direct_migration_node_ports: BTreeMap<String, i32>,
        /// Memory overhead of the launcher at the target.
        pub target_memory_overhead: Option<Quantity>,
        /// Node that the guest moves to.
        pub target_node: Option<String>,
        /// Address of the target.
        pub target_node_address: Option<String>,
        /// Whether the guest was seen at the target.
        pub target_node_domain_detected: Option<bool>,
        /// Time at which the guest was ready at the target (RFC 3339).
        pub target_node_domain_ready_timestamp: Option<String> ["format" = "date-time"],
        /// CPU topology of the target node, JSON.
        pub target_node_topology: Option<String>,
        /// Claim with TPM and EFI state at the target.
        #[serde(rename = "targetPersistentStatePVCName")]
        pub target_persistent_state_pvc_name: Option<String>,
        /// Launcher pod at the target.
        pub target_pod: Option<String>,
        /// State of the target.
        pub target_state: Option<MigrationTarget>,
    }

    /// State of the source of a migration.
    pub struct MigrationSource {
        /// Name of the libvirt domain.
        pub domain_name: Option<String>,
        /// Namespace of the guest.
        pub domain_namespace: Option<String>,
        /// UID of the VirtualMachineInstanceMigration.
        #[serde(rename = "migrationUID")]
        pub migration_uid: Option<String>,
        /// Node.
        pub node: Option<String>,
        /// Labels of the node that the target must have as well.
        pub node_selectors: BTreeMap<String, String>,
        /// Claim with TPM and EFI state.
        #[serde(rename = "persistentStatePVCName")]
        pub persistent_state_pvc_name: Option<String>,
        /// Launcher pod.
        pub pod: Option<String>,
        /// SELinux context of the launcher pod.
        pub selinux_context: Option<String>,
        /// Address of the synchronization controller.
        pub sync_address: Option<String>,
        /// UID of the VirtualMachineInstance.
        #[serde(rename = "virtualMachineInstanceUID")]
        pub virtual_machine_instance_uid: Option<String>,
    }

    /// State of the target of a migration.
    pub struct MigrationTarget {
        /// UID of the pod that attaches hotplugged volumes.
        #[serde(rename = "attachmentPodUID")]
        pub attachment_pod_uid: Option<String>,
        /// CPUs of the guest.
        pub cpu_set: Vec<i64>,
        /// Ports of the target, by number: the port at the source.
        pub direct_migration_node_ports: BTreeMap<String, i32>,
        /// Whether the guest was seen.
        pub domain_detected: Option<bool>,
        /// Name of the libvirt domain.
        pub domain_name: Option<String>,
        /// Namespace of the guest.
        pub domain_namespace: Option<String>,
        /// Time at which the guest was ready (RFC 3339).
        pub domain_ready_timestamp: Option<String> ["format" = "date-time"],
        /// UID of the VirtualMachineInstanceMigration.
        #[serde(rename = "migrationUID")]
        pub migration_uid: Option<String>,
        /// Node.
        pub node: Option<String>,
        /// Address.
        pub node_address: Option<String>,
        /// CPU topology of the node, JSON.
        pub node_topology: Option<String>,
        /// Claim with TPM and EFI state.
        #[serde(rename = "persistentStatePVCName")]
        pub persistent_state_pvc_name: Option<String>,
        /// Launcher pod.
        pub pod: Option<String>,
        /// SELinux context of the launcher pod.
        pub selinux_context: Option<String>,
        /// Address of the synchronization controller.
        pub sync_address: Option<String>,
        /// UID of the VirtualMachineInstance.
        #[serde(rename = "virtualMachineInstanceUID")]
        pub virtual_machine_instance_uid: Option<String>,
    }
}
