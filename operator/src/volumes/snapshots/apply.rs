//! Takes the steps of a snapshot. Each write names the version or id that was looked at; repeated, it changes nothing.

use cluster::event::{Reference, Type};
use cluster::{Delete, Key, Outcome, Resource, Result};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use virt::time;

use super::control::Controller;
use super::make;
use super::plan::{self, Change, Fail};
use super::seen::{Announced, CLASSES, Content, Object, Snapshot};
use crate::storage::seen::Meta;
use crate::volumes::seen::{CLAIMS, VOLUMES};

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
        self.add_content::<_, Content>(s, &content, "a snapshot").await
    }

    /// Creates the content of a snapshot or group, `noun`.
    pub(super) async fn add_content<T: Announced, C: Object>(
        &self,
        of: &T,
        content: &Value,
        noun: &str,
    ) -> Result<Outcome> {
        match self.client.create::<IgnoredAny>(C::RESOURCE, "", content).await {
            Ok(_) => {}
            // The cache does not show it yet.
            Err(error) if error.is_already_exists() => return Ok(Outcome::Retry),
            Err(error) => return Err(error),
        }
        let Meta { name, namespace, .. } = of.meta();
        tracing::info!(kind = C::KIND, snapshot = name, namespace, "content made");
        let waits = format!("Waiting for {noun} {} to be created by the CSI driver.", path(of));
        self.report(of, Type::Normal, T::CREATING, &waits);
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
        self.chosen(s, "volumeSnapshotClassName", class).await
    }

    /// Writes the class of a snapshot or group, or that there is none.
    pub(super) async fn chosen<T: Object>(
        &self,
        of: &T,
        field: &str,
        class: std::result::Result<String, String>,
    ) -> Result<Outcome> {
        match class {
            Ok(class) => {
                let patch =
                    json!({"metadata": {"resourceVersion": of.meta().version}, "spec": {field: class}});
                self.client.merge_patch::<IgnoredAny>(T::RESOURCE, &key(of.meta()), &patch).await?;
                Ok(Outcome::Done)
            }
            Err(why) => {
                let message = format!("Failed to set default snapshot class with error {why}");
                self.fail(of, &Fail::new("SetDefaultSnapshotClassFailed", message, false)).await
            }
        }
    }

    /// The source claim and its PV.
    async fn source(&self, s: &Snapshot) -> Result<Source> {
        let name = s.claim.as_deref().unwrap_or_default();
        let Some(claim) = self.client.find::<Value>(CLAIMS, &Key::new(&s.meta.namespace, name)).await? else {
            return Ok(Err(format!("failed to retrieve PVC {name}: it does not exist")));
        };
        let volume = self.volume(&claim).await?;
        Ok(volume.map(|volume| (claim, volume)))
    }

    /// The PV of a claim.
    pub(super) async fn volume(&self, claim: &Value) -> Result<std::result::Result<Value, String>> {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default();
        if claim["metadata"]["deletionTimestamp"].is_string() {
            return Ok(Err(format!("PVC {name} is being deleted")));
        }
        if claim["status"]["phase"] != "Bound" {
            let why = format!("the PVC {name} is not yet bound to a PV, will not attempt to take a snapshot");
            return Ok(Err(why));
        }
        let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        let found = self.client.find::<Value>(VOLUMES, &Key::cluster(volume)).await?;
        Ok(found.ok_or_else(|| format!("failed to retrieve PV {volume}: it does not exist")))
    }

    /// Binds a content that an administrator made to the snapshot or group of this id, by the field `reference` of its
    /// spec; `class`: field and name of its class, where it has none.
    pub(super) async fn bind<C: Object>(
        &self,
        content: &C,
        reference: &str,
        uid: &str,
        class: Option<(&str, String)>,
    ) -> Result<Outcome> {
        let mut spec = json!({reference: {"uid": uid}});
        if let Some((field, class)) = class {
            spec[field] = json!(class);
        }
        let meta = content.meta();
        let patch = json!({"metadata": {"resourceVersion": meta.version}, "spec": spec});
        self.client.merge_patch::<IgnoredAny>(C::RESOURCE, &key(meta), &patch).await?;
        Ok(Outcome::Done)
    }

    /// Writes a status that follows the content's.
    pub(super) async fn status<T: Announced>(&self, of: &T, change: Change) -> Result<Outcome> {
        let Change { status, taken, ready } = change;
        self.write(of, &status).await?;
        let (word, path) = (T::KIND.trim_start_matches("Volume"), path(of));
        if taken {
            let text = format!("{word} {path} was successfully created by the CSI driver.");
            self.report(of, Type::Normal, T::CREATED, &text);
        }
        if ready {
            self.report(of, Type::Normal, T::READY, &format!("{word} {path} is ready to use."));
        }
        Ok(Outcome::Done)
    }

    /// Writes an error, and reports it once.
    pub(super) async fn fail<T: Object>(&self, of: &T, fail: &Fail) -> Result<Outcome> {
        if of.failure().is_none_or(|failure| failure.message != fail.message) {
            let mut status = json!({"error": {"time": time::text(time::now()), "message": fail.message}});
            if fail.unready {
                status["readyToUse"] = json!(false);
            }
            self.write(of, &status).await?;
            self.warn(of, fail.reason, &fail.message);
        }
        Ok(Outcome::Retry)
    }

    async fn write<T: Object>(&self, of: &T, status: &Value) -> Result<()> {
        let patch = json!({"metadata": {"resourceVersion": of.meta().version}, "status": status});
        self.client.merge_patch::<IgnoredAny>(T::RESOURCE.sub("status"), &key(of.meta()), &patch).await?;
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

    /// Marks a content with an annotation: its snapshot is deleted.
    pub(super) async fn mark<C: Object>(&self, content: &C, annotation: &str) -> Result<Outcome> {
        let patch = json!({"metadata": {"uid": content.meta().uid, "annotations": {annotation: "yes"}}});
        self.client.merge_patch::<IgnoredAny>(C::RESOURCE, &key(content.meta()), &patch).await?;
        Ok(Outcome::Done)
    }

    /// Deletes a content; the sidecar or agent of its driver deletes the snapshot, and lets it go.
    pub(super) async fn delete<T: Announced, C: Object>(&self, of: &T, content: &C) -> Result<Outcome> {
        let options = Delete::default().uid(&content.meta().uid);
        if let Err(error) = self.client.delete(C::RESOURCE, &key(content.meta()), &options).await {
            let why = "Failed to delete snapshot content API object";
            self.warn(of, T::NOT_DELETED, why);
            return Err(error);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn warn<T: Object>(&self, of: &T, reason: &str, message: &str) {
        self.report(of, Type::Warning, reason, message);
    }

    fn report<T: Object>(&self, of: &T, kind: Type, reason: &str, message: &str) {
        let meta = of.meta();
        let about = Reference {
            api_version: T::RESOURCE.api_version(),
            kind: T::KIND.to_owned(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        };
        self.events.publish(&about, kind, reason, message);
    }
}

pub(super) fn key(meta: &Meta) -> Key {
    if meta.namespace.is_empty() { Key::cluster(&meta.name) } else { Key::new(&meta.namespace, &meta.name) }
}

fn path<T: Object>(of: &T) -> String {
    format!("{}/{}", of.meta().namespace, of.meta().name)
}
