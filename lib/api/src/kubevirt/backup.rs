//! State of changed block tracking and backups.

use crate::resource::resource;

resource! {
    /// State of changed block tracking.
    pub struct ChangedBlockTrackingStatus {
        /// Backup in progress, or the last one.
        pub backup_status: Option<BackupStatus>,
        /// `Undefined`, `PendingRestart`, `Initializing`, `Enabled` or `Disabled`.
        pub state: String ["x-required" = true],
    }

    /// State of a backup.
    pub struct BackupStatus {
        /// Message of the backup, such as the cause of a failure.
        pub backup_msg: Option<String>,
        /// Name of the VirtualMachineBackup.
        pub backup_name: Option<String>,
        /// Name of the checkpoint that the backup creates.
        pub checkpoint_name: Option<String>,
        /// Whether the backup has ended.
        pub completed: Option<bool>,
        /// End time (RFC 3339).
        pub end_timestamp: Option<String> ["format" = "date-time"],
        /// Whether the backup has failed.
        pub failed: Option<bool>,
        /// Whether the guest's filesystems were frozen.
        pub quiesce_status: Option<String>,
        /// Start time (RFC 3339).
        pub start_timestamp: Option<String> ["format" = "date-time"],
        /// Volumes in the backup.
        pub volumes: Vec<BackupVolume>,
    }

    /// Volume in a backup.
    pub struct BackupVolume {
        /// Name of the volume.
        pub volume_name: String ["x-required" = true],
    }
}
