//! Makes, adopts and deletes the snapshots of the node's VolumeSnapshotContents; the same writes serve groups. Every step is found done when it comes again:
//! the snapshot by its name, the rest by the content's status.

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::event::{Reference, Type};
use cluster::{JsonPatch, Key, Outcome};
use csi::{DeleteSnapshotRequest, ListSnapshotsRequest};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tonic::Status;

use super::claims::{is_final, rpc_error};
use super::content::{self, AnyContent, Content, ForContent};
use super::controller::Controller;
use super::objects::CONTENTS;

/// Time until a snapshot that is not ready is looked at again.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time until a snapshot that no node had is looked for again.
const SEARCH_INTERVAL: Duration = Duration::from_secs(60);

/// Reason and text of the event when the first attempt to make a snapshot fails, and of later ones.
const NOT_CREATED: (&str, &str) = ("SnapshotCreationFailed", "Failed to create snapshot");
const FAILED: (&str, &str) =
    ("SnapshotContentCheckandUpdateFailed", "Failed to check and update snapshot content");

/// A snapshot or group that the driver made.
pub(super) struct Answer {
    /// The status of its content.
    pub(super) status: Value,
    /// Whether it can be restored.
    pub(super) ready: bool,
    /// Its handle.
    pub(super) handle: String,
}

impl Controller {
    /// Does what is next for a content.
    pub(super) async fn content(&self, key: &Key) -> Outcome {
        let Some(content) = self.contents.get(key) else { return Outcome::Done };
        match content::for_content(&content, self.driver.name()) {
            ForContent::Nothing => Outcome::Done,
            ForContent::Create(volume) => self.create_snapshot(key, &content, &volume).await,
            ForContent::Adopt(handle) => self.adopt_snapshot(key, &content, &handle).await,
            ForContent::Delete(handle) => self.delete_snapshot(key, &content, &handle).await,
            ForContent::Release => self.release_content(key, &*content).await,
        }
    }

    async fn create_snapshot(&self, key: &Key, content: &Content, volume: &str) -> Outcome {
        let failed = if content.status.is_none() { NOT_CREATED } else { FAILED };
        self.create_content(key, content, failed, async |parameters| {
            let request = content::request(content, volume, &parameters);
            let made = self.driver.controller().create_snapshot(request).await?;
            let made = made.into_inner().snapshot.unwrap_or_default();
            Ok(Answer { status: content::made(&made), ready: made.ready_to_use, handle: made.snapshot_id })
        })
        .await
    }

    /// Makes the snapshot or group of a content by `call`, which gets the parameters of its class; `failed`: reason and text
    /// of the event when it cannot.
    pub(super) async fn create_content<T: AnyContent>(
        &self,
        key: &Key,
        content: &T,
        failed: (&str, &str),
        call: impl AsyncFnOnce(BTreeMap<String, String>) -> Result<Answer, Status>,
    ) -> Outcome {
        // Written before the call: a content with it is not let go before its snapshot is known.
        if !content.says(T::BEING_CREATED)
            && let Err(outcome) = self.mark(key, content, Some("yes")).await
        {
            return outcome;
        }
        let parameters = match self.snapshot_class(content).await {
            Ok(parameters) => parameters,
            Err(why) => return self.snapshot_failed(key, content, failed, &why, true).await,
        };
        let answer = match call(parameters).await {
            Ok(answer) => answer,
            Err(refused) => {
                let ended = is_final(&refused);
                return self.snapshot_failed(key, content, failed, &rpc_error(&refused), ended).await;
            }
        };
        self.changed.notify_one();
        if let Err(outcome) = self.write_content::<T>(key, &answer.status).await {
            return outcome;
        }
        if let Err(outcome) = self.mark(key, content, None).await {
            return outcome;
        }
        tracing::info!(content = %key, snapshot = answer.handle, ready = answer.ready, "snapshot taken");
        if answer.ready { Outcome::Done } else { Outcome::After(POLL_INTERVAL) }
    }

    /// Looks for the snapshot of a content without a node, and takes the content if it is in this node's pools.
    pub(super) async fn look_for(&self, key: &Key) -> Outcome {
        let Some(content) = self.unassigned.get(key) else { return Outcome::Done };
        let Some(handle) = content::unassigned(&content, self.driver.name()) else { return Outcome::Done };
        match self.find_snapshot(handle).await {
            Ok(Some(_)) => {}
            Ok(None) => return Outcome::After(SEARCH_INTERVAL),
            Err(refused) => {
                tracing::warn!(content = %key, error = rpc_error(&refused), "cannot look for the snapshot; retrying");
                return Outcome::Retry;
            }
        }
        let patch = content::assigned(&content, &self.node);
        match self.client.merge_patch::<IgnoredAny>(CONTENTS, key, &patch).await {
            Ok(_) => {
                tracing::info!(content = %key, snapshot = handle, "the snapshot is on this node");
                Outcome::Done
            }
            // Of a shared pool another node may have taken it.
            Err(error) if error.is_conflict() => Outcome::After(POLL_INTERVAL),
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::warn!(content = %key, error = error.chain(), "cannot label the content with this node");
                Outcome::Retry
            }
        }
    }

    /// A snapshot in the node's pools.
    async fn find_snapshot(&self, handle: &str) -> Result<Option<csi::Snapshot>, Status> {
        let request =
            ListSnapshotsRequest { snapshot_id: handle.to_owned(), ..ListSnapshotsRequest::default() };
        let list = self.driver.controller().list_snapshots(request).await?;
        Ok(list.into_inner().entries.into_iter().find_map(|entry| entry.snapshot))
    }

    /// Writes the status of a snapshot that was not made here.
    async fn adopt_snapshot(&self, key: &Key, content: &Content, handle: &str) -> Outcome {
        let found = match self.find_snapshot(handle).await {
            Ok(found) => found,
            Err(refused) => {
                return self.snapshot_failed(key, content, FAILED, &rpc_error(&refused), false).await;
            }
        };
        match found {
            None => {
                let why = format!("the CSI driver has no snapshot {handle:?}");
                self.snapshot_failed(key, content, FAILED, &why, false).await
            }
            Some(snapshot) => match self.write_content::<Content>(key, &content::made(&snapshot)).await {
                Err(outcome) => outcome,
                Ok(()) if snapshot.ready_to_use => Outcome::Done,
                Ok(()) => Outcome::After(POLL_INTERVAL),
            },
        }
    }

    async fn delete_snapshot(&self, key: &Key, content: &Content, handle: &str) -> Outcome {
        let request = DeleteSnapshotRequest { snapshot_id: handle.to_owned(), ..Default::default() };
        let call = self.driver.controller().delete_snapshot(request).await;
        let gone = json!({"status": {
            "snapshotHandle": null, "readyToUse": false, "creationTime": null, "restoreSize": null,
        }});
        let gone = content.status.is_some().then_some(&gone);
        self.deleted(key, content, handle, call.map(drop), gone).await
    }

    /// Lets a content go whose snapshot or group was deleted by a call; `gone` is its status then.
    pub(super) async fn deleted<T: AnyContent>(
        &self,
        key: &Key,
        content: &T,
        handle: &str,
        call: Result<(), Status>,
        gone: Option<&Value>,
    ) -> Outcome {
        if let Err(refused) = call {
            let why = format!("Failed to delete snapshot: {}", rpc_error(&refused));
            self.report_content(content, "SnapshotDeleteError", &why);
            tracing::warn!(content = %key, error = why, "cannot delete the snapshot");
            return Outcome::Retry;
        }
        self.changed.notify_one();
        if let Some(gone) = gone
            && let Err(outcome) = self.write_content::<T>(key, gone).await
        {
            return outcome;
        }
        tracing::info!(content = %key, snapshot = handle, "snapshot deleted");
        self.release_content(key, content).await
    }

    /// Takes the finalizer off a content.
    pub(super) async fn release_content<T: AnyContent>(&self, key: &Key, content: &T) -> Outcome {
        let now = match self.client.find::<T>(T::RESOURCE, key).await {
            Ok(Some(now)) if now.metadata().uid == content.metadata().uid => now,
            Ok(_) => return Outcome::Done,
            Err(error) => {
                tracing::warn!(content = %key, error = error.chain(), "cannot read the content");
                return Outcome::Retry;
            }
        };
        let now = now.metadata();
        let mut finalizers = now.finalizers.clone();
        finalizers.retain(|name| name != T::FINALIZER);
        if finalizers == now.finalizers {
            return Outcome::Done;
        }
        let patch = JsonPatch::new()
            .test("/metadata/uid", &now.uid)
            .test("/metadata/resourceVersion", &now.resource_version)
            .add("/metadata/finalizers", finalizers);
        match self.client.json_patch::<IgnoredAny>(T::RESOURCE, key, &patch).await {
            Ok(_) => Outcome::Done,
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::warn!(content = %key, error = error.chain(), "cannot change the finalizers");
                Outcome::Retry
            }
        }
    }

    /// Parameters of a content's class.
    async fn snapshot_class<T: AnyContent>(&self, content: &T) -> Result<BTreeMap<String, String>, String> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Class {
            parameters: BTreeMap<String, String>,
        }
        let Some(name) = content.class() else { return Ok(BTreeMap::new()) };
        let class: Result<Class, _> = self.client.get(T::CLASSES, &Key::cluster(name)).await;
        class
            .map(|class| class.parameters)
            .map_err(|error| format!("cannot read the class {name:?}: {}", error.chain()))
    }

    /// Writes that a snapshot was not made; `ended`: no call that makes it can still run.
    pub(super) async fn snapshot_failed<T: AnyContent>(
        &self,
        key: &Key,
        content: &T,
        (reason, what): (&str, &str),
        why: &str,
        ended: bool,
    ) -> Outcome {
        let text = format!("{what}: {why}");
        self.report_content(content, reason, &text);
        tracing::warn!(content = %key, error = why, "cannot take a snapshot yet; retrying");
        let status = content::failed(&text, &virt::time::text(virt::time::now()));
        if let Err(outcome) = self.write_content::<T>(key, &status).await {
            return outcome;
        }
        if ended && let Err(outcome) = self.mark(key, content, None).await {
            return outcome;
        }
        Outcome::Retry
    }

    async fn mark<T: AnyContent>(&self, key: &Key, content: &T, value: Option<&str>) -> Result<(), Outcome> {
        let uid = &content.metadata().uid;
        let patch = json!({"metadata": {"uid": uid, "annotations": {T::BEING_CREATED: value}}});
        written(key, self.client.merge_patch::<IgnoredAny>(T::RESOURCE, key, &patch).await)
    }

    pub(super) async fn write_content<T: AnyContent>(
        &self,
        key: &Key,
        status: &Value,
    ) -> Result<(), Outcome> {
        written(key, self.client.merge_patch::<IgnoredAny>(T::RESOURCE.sub("status"), key, status).await)
    }

    fn report_content<T: AnyContent>(&self, content: &T, reason: &str, message: &str) {
        let about = Reference {
            api_version: T::RESOURCE.api_version(),
            kind: T::KIND.to_owned(),
            namespace: String::new(),
            name: content.metadata().name.clone(),
            uid: content.metadata().uid.clone(),
        };
        self.events.publish(&about, Type::Warning, reason, message);
    }
}

fn written(key: &Key, result: cluster::Result<IgnoredAny>) -> Result<(), Outcome> {
    result.map(drop).map_err(|error| {
        if error.is_not_found() {
            return Outcome::Done;
        }
        tracing::warn!(content = %key, error = error.chain(), "cannot write the content");
        Outcome::Retry
    })
}
