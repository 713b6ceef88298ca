//! Makes, adopts and deletes the group snapshots of the node's VolumeGroupSnapshotContents. Every step is found done when it comes
//! again, as those of single snapshots.

use cluster::{Key, Outcome};
use csi::{DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest};

use super::claims::rpc_error;
use super::content::ForContent;
use super::controller::Controller;
use super::group::{self, GroupContent};
use super::snapshots::{Answer, POLL_INTERVAL};

/// Reason and text of the event when a group cannot be read.
const UNREAD: (&str, &str) =
    ("GroupSnapshotContentCheckandUpdateFailed", "Failed to check and update group snapshot content");

impl Controller {
    /// Does what is next for a group's content.
    pub(super) async fn group(&self, key: &Key) -> Outcome {
        let Some(content) = self.groups.get(key) else { return Outcome::Done };
        match group::for_group(&content, self.driver.name()) {
            ForContent::Nothing => Outcome::Done,
            ForContent::Adopt(handle) => self.adopt_group(key, &content, handle).await,
            ForContent::Create(volumes) => self.create_group(key, &content, volumes).await,
            ForContent::Delete(handle) => {
                let request = DeleteVolumeGroupSnapshotRequest {
                    group_snapshot_id: handle.clone(),
                    snapshot_ids: content.snapshots(),
                    ..DeleteVolumeGroupSnapshotRequest::default()
                };
                let call = self.driver.groups().delete_volume_group_snapshot(request).await;
                self.deleted(key, &*content, &handle, call.map(drop), Some(&group::gone())).await
            }
            ForContent::Release => self.release_content(key, &*content).await,
        }
    }

    /// Reads a group that was taken elsewhere.
    async fn adopt_group(&self, key: &Key, content: &GroupContent, handle: String) -> Outcome {
        let request = GetVolumeGroupSnapshotRequest {
            group_snapshot_id: handle,
            snapshot_ids: content.snapshots(),
            ..GetVolumeGroupSnapshotRequest::default()
        };
        let group = match self.driver.groups().get_volume_group_snapshot(request).await {
            Ok(answer) => answer.into_inner().group_snapshot.unwrap_or_default(),
            Err(refused) => {
                return self.snapshot_failed(key, content, UNREAD, &rpc_error(&refused), false).await;
            }
        };
        match self.write_content::<GroupContent>(key, &group::adopted(&group)).await {
            Err(outcome) => outcome,
            Ok(()) if group.ready_to_use => Outcome::Done,
            Ok(()) => Outcome::After(POLL_INTERVAL),
        }
    }

    async fn create_group(&self, key: &Key, content: &GroupContent, volumes: Vec<String>) -> Outcome {
        let failed = ("GroupSnapshotCreationFailed", "Failed to create group snapshot");
        self.create_content(key, content, failed, async |parameters| {
            let request = group::request(content, volumes, &parameters);
            let answer = self.driver.groups().create_volume_group_snapshot(request).await?;
            let made = answer.into_inner().group_snapshot.unwrap_or_default();
            Ok(Answer {
                status: group::made(&made),
                ready: made.ready_to_use,
                handle: made.group_snapshot_id,
            })
        })
        .await
    }
}
