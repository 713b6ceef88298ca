//! Takes the steps of a snapshot. Each write names the version or id that was looked at; repeated, it changes nothing.

use cluster::event::{Reference, Type};
use cluster::{Delete, Key, Outcome, Resource, Result};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use virt::time;

use super::control::Controller;
use super::make;
use super::plan::{self, Change, Fail};
use super::seen::{BEING_DELETED, CLASSES, Content, Snapshot};
use crate::storage::seen::Meta;
use crate::volumes::seen::{CLAIMS, CONTENTS, SNAPSHOTS, VOLUMES};

/// The volume that a snapshot is of, or why it has none yet.
type Source = std::result::Result<(Value, Value), String>;

impl Controller {
    /// Makes the content; the source claim is protected first.
    pub(super) async fn create(&self, s: &Snapshot) -> Result<Outcome> {
        let failed = |why: String| {
            let message = format!("Failed to create snapshot content with error {why}");
            Fail::new("SnapshotContentCreationFailed", message, true)
        };
        let (claim, volume) = match self.source(s).await? {
            Ok(found) => found,
            Err(why) => return self.fail(s, &failed(why)).await,
        };
        let class = Key::cluster(s.class.as_deref().unwrap_or_default());
        let Some(class) = self.client.find::<Value>(CLASSES, &class).await? else {
            return Ok(Outcome::Retry);
        };
        let content = match make::content(s, &class, &claim, &volume) {
            Ok(content) => content,
            Err(why) => return self.fail(s, &failed(why)).await,
        };
        let claim = Meta::from(&claim);
        let protected = plan::claim_finalizers(&claim.finalizers, true);
        if claim.finalizers.len() != protected.len() {
            self.finalizers(CLAIMS, &claim, &protected).await?;
        }
        match self.client.create::<IgnoredAny>(CONTENTS, "", &content).await {
            Ok(_) => {}
            // The cache does not show it yet.
            Err(error) if error.is_already_exists() => return Ok(Outcome::Retry),
            Err(error) => return Err(error),
        }
        tracing::info!(snapshot = s.meta.name, namespace = s.meta.namespace, "VolumeSnapshotContent made");
        let waits = format!("Waiting for a snapshot {} to be created by the CSI driver.", path(s));
        self.report(s, Type::Normal, "CreatingSnapshot", &waits);
        Ok(Outcome::Done)
    }

    /// Writes the driver's default class on a snapshot without one.
    pub(super) async fn choose(&self, s: &Snapshot) -> Result<Outcome> {
        let found = self.source(s).await?;
        let classes = self.classes.all();
        let class = found.and_then(|(claim, volume)| {
            let driver = make::driver(&claim, &volume)?;
            plan::default_class(driver, classes.iter().map(|(_, class)| &**class))
        });
        match class {
            Ok(class) => {
                let patch = json!({
                    "metadata": {"resourceVersion": s.meta.version}, "spec": {"volumeSnapshotClassName": class},
                });
                self.client.merge_patch::<IgnoredAny>(SNAPSHOTS, &key(&s.meta), &patch).await?;
                Ok(Outcome::Done)
            }
            Err(why) => {
                let message = format!("Failed to set default snapshot class with error {why}");
                self.fail(s, &Fail::new("SetDefaultSnapshotClassFailed", message, false)).await
            }
        }
    }

    /// The source claim and its PV.
    async fn source(&self, s: &Snapshot) -> Result<Source> {
        let name = s.claim.as_deref().unwrap_or_default();
        let Some(claim) = self.client.find::<Value>(CLAIMS, &Key::new(&s.meta.namespace, name)).await? else {
            return Ok(Err(format!("failed to retrieve PVC {name}: it does not exist")));
        };
        if claim["metadata"]["deletionTimestamp"].is_string() {
            return Ok(Err(format!("PVC {name} is being deleted")));
        }
        if claim["status"]["phase"] != "Bound" {
            let why = format!("the PVC {name} is not yet bound to a PV, will not attempt to take a snapshot");
            return Ok(Err(why));
        }
        let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        match self.client.find::<Value>(VOLUMES, &Key::cluster(volume)).await? {
            Some(found) => Ok(Ok((claim, found))),
            None => Ok(Err(format!("failed to retrieve PV {volume}: it does not exist"))),
        }
    }

    /// Binds a content that an administrator made.
    pub(super) async fn bind(&self, s: &Snapshot, content: &Content, class: Option<&str>) -> Result<Outcome> {
        let mut spec = json!({"volumeSnapshotRef": {"uid": s.meta.uid}});
        if let Some(class) = class {
            spec["volumeSnapshotClassName"] = json!(class);
        }
        let patch = json!({"metadata": {"resourceVersion": content.meta.version}, "spec": spec});
        self.client.merge_patch::<IgnoredAny>(CONTENTS, &key(&content.meta), &patch).await?;
        Ok(Outcome::Done)
    }

    /// Writes a status that follows the content's.
    pub(super) async fn status(&self, s: &Snapshot, change: Change) -> Result<Outcome> {
        let Change { status, taken, ready } = change;
        self.write(s, &status).await?;
        if taken {
            let text = format!("Snapshot {} was successfully created by the CSI driver.", path(s));
            self.report(s, Type::Normal, "SnapshotCreated", &text);
        }
        if ready {
            self.report(s, Type::Normal, "SnapshotReady", &format!("Snapshot {} is ready to use.", path(s)));
        }
        Ok(Outcome::Done)
    }

    /// Writes an error, and reports it once.
    pub(super) async fn fail(&self, s: &Snapshot, fail: &Fail) -> Result<Outcome> {
        if s.failure.as_ref().is_none_or(|failure| failure.message != fail.message) {
            let mut status = json!({"error": {"time": time::text(time::now()), "message": fail.message}});
            if fail.unready {
                status["readyToUse"] = json!(false);
            }
            self.write(s, &status).await?;
            self.warn(s, fail.reason, &fail.message);
        }
        Ok(Outcome::Retry)
    }

    async fn write(&self, s: &Snapshot, status: &Value) -> Result<()> {
        let patch = json!({"metadata": {"resourceVersion": s.meta.version}, "status": status});
        self.client.merge_patch::<IgnoredAny>(SNAPSHOTS.sub("status"), &key(&s.meta), &patch).await?;
        Ok(())
    }

    /// Replaces the finalizers of an object that is still as it was read.
    pub(super) async fn finalizers(&self, of: Resource, meta: &Meta, all: &[String]) -> Result<Outcome> {
        let patch = json!({"metadata": {"resourceVersion": meta.version, "finalizers": all}});
        self.client.merge_patch::<IgnoredAny>(of, &key(meta), &patch).await?;
        Ok(Outcome::Done)
    }

    /// Takes the finalizer of a source off a claim.
    pub(super) async fn free(&self, claim: &Key) -> Result<Outcome> {
        let Some(claim) = self.client.find::<Value>(CLAIMS, claim).await? else { return Ok(Outcome::Done) };
        let claim = Meta::from(&claim);
        let all = plan::claim_finalizers(&claim.finalizers, false);
        if all == claim.finalizers {
            // The cache shows it soon, and its change adds the snapshot again.
            return Ok(Outcome::Done);
        }
        self.finalizers(CLAIMS, &claim, &all).await
    }

    /// Marks a content: its snapshot is deleted.
    pub(super) async fn mark(&self, content: &Content) -> Result<Outcome> {
        let patch = json!({"metadata": {"uid": content.meta.uid, "annotations": {BEING_DELETED: "yes"}}});
        self.client.merge_patch::<IgnoredAny>(CONTENTS, &key(&content.meta), &patch).await?;
        Ok(Outcome::Done)
    }

    /// Deletes a content; the sidecar or agent of its driver deletes the snapshot, and lets it go.
    pub(super) async fn delete(&self, s: &Snapshot, content: &Content) -> Result<Outcome> {
        let options = Delete::default().uid(&content.meta.uid);
        if let Err(error) = self.client.delete(CONTENTS, &key(&content.meta), &options).await {
            let why = "Failed to delete snapshot content API object";
            self.warn(s, "SnapshotContentObjectDeleteError", why);
            return Err(error);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn warn(&self, s: &Snapshot, reason: &str, message: &str) {
        self.report(s, Type::Warning, reason, message);
    }

    pub(super) fn warn_content(&self, content: &Content, reason: &str, message: &str) {
        self.events.publish(&about("VolumeSnapshotContent", &content.meta), Type::Warning, reason, message);
    }

    fn report(&self, s: &Snapshot, kind: Type, reason: &str, message: &str) {
        self.events.publish(&about("VolumeSnapshot", &s.meta), kind, reason, message);
    }
}

fn key(meta: &Meta) -> Key {
    if meta.namespace.is_empty() { Key::cluster(&meta.name) } else { Key::new(&meta.namespace, &meta.name) }
}

fn path(s: &Snapshot) -> String {
    format!("{}/{}", s.meta.namespace, s.meta.name)
}

fn about(kind: &str, meta: &Meta) -> Reference {
    Reference {
        api_version: "snapshot.storage.k8s.io/v1".to_owned(),
        kind: kind.to_owned(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
    }
}
