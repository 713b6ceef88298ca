//! Makes, adopts and deletes the snapshots of the node's VolumeSnapshotContents. Every step is found done when it comes again:
//! the snapshot by its name, the rest by the content's status.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::event::{Reference, Type};
use cluster::{JsonPatch, Key, Outcome, Resource};
use csi::{DeleteSnapshotRequest, ListSnapshotsRequest};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::claims::rpc_error;
use super::content::{self, BEING_CREATED, Content, FINALIZER, ForContent};
use super::controller::Controller;
use super::objects::CONTENTS;

const CLASSES: Resource = Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses");
/// Time until a snapshot that is not ready is looked at again.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Controller {
    /// Does what is next for a content.
    pub(super) async fn content(&self, key: &Key) -> Outcome {
        let Some(content) = self.contents.get(key) else { return Outcome::Done };
        match content::for_content(&content, self.driver.name()) {
            ForContent::Nothing => Outcome::Done,
            ForContent::Create(volume) => self.create_snapshot(key, &content, &volume).await,
            ForContent::Adopt(handle) => self.adopt_snapshot(key, &content, &handle).await,
            ForContent::Delete(handle) => self.delete_snapshot(key, &content, &handle).await,
            ForContent::Release => self.release_content(key, &content).await,
        }
    }

    async fn create_snapshot(&self, key: &Key, content: &Content, volume: &str) -> Outcome {
        // Written before the call: a content with it is not let go before its snapshot is known.
        if !content.metadata.annotations.contains_key(BEING_CREATED)
            && let Err(outcome) = self.mark(key, content, Some("yes")).await
        {
            return outcome;
        }
        let parameters = match self.snapshot_class(content).await {
            Ok(parameters) => parameters,
            Err(why) => return self.snapshot_failed(key, content, &why, true).await,
        };
        let request = content::request(content, volume, &parameters);
        let answer = match self.driver.controller().create_snapshot(request).await {
            Ok(answer) => answer.into_inner().snapshot.unwrap_or_default(),
            Err(refused) => {
                let ended = is_final(&refused);
                return self.snapshot_failed(key, content, &rpc_error(&refused), ended).await;
            }
        };
        self.changed.notify_one();
        if let Err(outcome) = self.write_content(key, &content::made(&answer)).await {
            return outcome;
        }
        if let Err(outcome) = self.mark(key, content, None).await {
            return outcome;
        }
        tracing::info!(content = %key, snapshot = answer.snapshot_id, ready = answer.ready_to_use, "snapshot taken");
        if answer.ready_to_use { Outcome::Done } else { Outcome::After(POLL_INTERVAL) }
    }

    /// Writes the status of a snapshot that was not made here.
    async fn adopt_snapshot(&self, key: &Key, content: &Content, handle: &str) -> Outcome {
        let request =
            ListSnapshotsRequest { snapshot_id: handle.to_owned(), ..ListSnapshotsRequest::default() };
        let found = match self.driver.controller().list_snapshots(request).await {
            Ok(list) => list.into_inner().entries.into_iter().find_map(|entry| entry.snapshot),
            Err(refused) => return self.snapshot_failed(key, content, &rpc_error(&refused), false).await,
        };
        match found {
            None => {
                let why = format!("the CSI driver has no snapshot {handle:?}");
                self.snapshot_failed(key, content, &why, false).await
            }
            Some(snapshot) => match self.write_content(key, &content::made(&snapshot)).await {
                Err(outcome) => outcome,
                Ok(()) if snapshot.ready_to_use => Outcome::Done,
                Ok(()) => Outcome::After(POLL_INTERVAL),
            },
        }
    }

    async fn delete_snapshot(&self, key: &Key, content: &Content, handle: &str) -> Outcome {
        let request = DeleteSnapshotRequest { snapshot_id: handle.to_owned(), ..Default::default() };
        if let Err(refused) = self.driver.controller().delete_snapshot(request).await {
            let why = format!("Failed to delete snapshot: {}", rpc_error(&refused));
            self.report_content(content, "SnapshotDeleteError", &why);
            tracing::warn!(content = %key, error = why, "cannot delete the snapshot");
            return Outcome::Retry;
        }
        self.changed.notify_one();
        if content.status.is_some() {
            let gone = json!({"status": {
                "snapshotHandle": null, "readyToUse": false, "creationTime": null, "restoreSize": null,
            }});
            if let Err(outcome) = self.write_content(key, &gone).await {
                return outcome;
            }
        }
        tracing::info!(content = %key, snapshot = handle, "snapshot deleted");
        self.release_content(key, content).await
    }

    /// Takes the finalizer off a content.
    async fn release_content(&self, key: &Key, content: &Content) -> Outcome {
        let now = match self.client.find::<Content>(CONTENTS, key).await {
            Ok(Some(now)) if now.metadata.uid == content.metadata.uid => now,
            Ok(_) => return Outcome::Done,
            Err(error) => {
                tracing::warn!(content = %key, error = error.chain(), "cannot read the VolumeSnapshotContent");
                return Outcome::Retry;
            }
        };
        let mut finalizers = now.metadata.finalizers.clone();
        finalizers.retain(|name| name != FINALIZER);
        if finalizers == now.metadata.finalizers {
            return Outcome::Done;
        }
        let patch = JsonPatch::new()
            .test("/metadata/uid", &now.metadata.uid)
            .test("/metadata/resourceVersion", &now.metadata.resource_version)
            .add("/metadata/finalizers", finalizers);
        match self.client.json_patch::<IgnoredAny>(CONTENTS, key, &patch).await {
            Ok(_) => Outcome::Done,
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::warn!(content = %key, error = error.chain(), "cannot change the finalizers");
                Outcome::Retry
            }
        }
    }

    /// Parameters of a content's class.
    async fn snapshot_class(&self, content: &Content) -> Result<BTreeMap<String, String>, String> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Class {
            parameters: BTreeMap<String, String>,
        }
        let Some(name) = &content.spec.volume_snapshot_class_name else { return Ok(BTreeMap::new()) };
        let class: Result<Class, _> = self.client.get(CLASSES, &Key::cluster(name)).await;
        class
            .map(|class| class.parameters)
            .map_err(|error| format!("cannot read the VolumeSnapshotClass {name:?}: {}", error.chain()))
    }

    /// Writes that a snapshot was not made; `ended`: no call that makes it can still run.
    async fn snapshot_failed(&self, key: &Key, content: &Content, why: &str, ended: bool) -> Outcome {
        let text = format!("Failed to check and update snapshot content: {why}");
        self.report_content(content, "SnapshotContentCheckandUpdateFailed", &text);
        tracing::warn!(content = %key, error = why, "cannot take a snapshot yet; retrying");
        let status = content::failed(&text, &virt::time::text(virt::time::now()));
        if let Err(outcome) = self.write_content(key, &status).await {
            return outcome;
        }
        if ended && let Err(outcome) = self.mark(key, content, None).await {
            return outcome;
        }
        Outcome::Retry
    }

    async fn mark(&self, key: &Key, content: &Content, value: Option<&str>) -> Result<(), Outcome> {
        let patch = json!({"metadata": {"uid": content.metadata.uid, "annotations": {BEING_CREATED: value}}});
        self.written(key, self.client.merge_patch::<IgnoredAny>(CONTENTS, key, &patch).await)
    }

    async fn write_content(&self, key: &Key, status: &Value) -> Result<(), Outcome> {
        self.written(key, self.client.merge_patch::<IgnoredAny>(CONTENTS.sub("status"), key, status).await)
    }

    fn written(&self, key: &Key, result: cluster::Result<IgnoredAny>) -> Result<(), Outcome> {
        result.map(drop).map_err(|error| {
            if error.is_not_found() {
                return Outcome::Done;
            }
            tracing::warn!(content = %key, error = error.chain(), "cannot write the VolumeSnapshotContent");
            Outcome::Retry
        })
    }

    fn report_content(&self, content: &Content, reason: &str, message: &str) {
        let about = Reference {
            api_version: "snapshot.storage.k8s.io/v1".to_owned(),
            kind: "VolumeSnapshotContent".to_owned(),
            namespace: String::new(),
            name: content.metadata.name.clone(),
            uid: content.metadata.uid.clone(),
        };
        self.events.publish(&about, Type::Warning, reason, message);
    }
}

/// Whether no call can still run after this answer.
fn is_final(status: &Status) -> bool {
    !matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}
