//! Carries out actions. Each is safe to repeat: creates have derived names, patches name the uid or version they are
//! for, deletes name the uid.

use cluster::event::{Reference, Type};
use cluster::{Client, Delete, Events, JsonPatch, Key, Propagation, Result};
use serde_json::{Value, json};

use super::action::{Action, Event, Kind};
use super::resources::{self, CLAIMS, DATA_VOLUMES, PODS, VOLUMES};
use super::seen::Meta;
use super::written::{Collection, Written};

/// The result of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Done {
    /// The object was written; this is what it is now.
    Written(Value),
    /// It was as wanted already, or it is one that the caller sees in its cache.
    AlreadyThere,
}

/// Carries out actions.
#[derive(Debug)]
pub struct Applier {
    client: Client,
    events: Events,
    /// Writes that the caches have to show.
    pub written: Written,
}

impl Applier {
    /// Uses this client, and publishes events there.
    pub fn new(client: Client, events: Events) -> Self {
        Self { client, events, written: Written::default() }
    }

    /// Carries out one action.
    ///
    /// # Errors
    /// Those of the API server; the object is planned again then.
    pub async fn apply(&self, action: &Action) -> Result<Done> {
        match action {
            Action::Create(object) => self.create(object).await,
            Action::Annotate { claim, uid, annotations, labels } => {
                let patch = json!({"metadata": {"uid": uid, "annotations": annotations, "labels": labels}});
                self.patch_claim(claim, &patch).await
            }
            Action::Mark { volume: (namespace, name), uid, annotations } => {
                let key = Key::new(namespace, name);
                let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
                let made: Value = self.client.merge_patch(DATA_VOLUMES, &key, &patch).await?;
                let version = made["metadata"]["resourceVersion"].as_str().unwrap_or_default();
                self.written.object(Collection::Volumes, key, version);
                Ok(Done::AlreadyThere)
            }
            Action::Adopt { claim, version, owners, annotations } => {
                let meta = json!({"resourceVersion": version, "ownerReferences": owners, "annotations": annotations});
                self.patch_claim(claim, &json!({"metadata": meta})).await
            }
            Action::Rebind { volume, version, claim: (namespace, name, uid) } => {
                let reference = json!({
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name, "uid": uid,
                });
                let patch = JsonPatch::new()
                    .test("/metadata/resourceVersion", version)
                    .replace("/spec/claimRef", reference);
                Ok(Done::Written(self.client.json_patch(VOLUMES, &Key::cluster(volume), &patch).await?))
            }
            Action::Delete { kind, key: (namespace, name), uid } => {
                self.delete(*kind, namespace, name, uid).await
            }
            Action::Expand { claim, uid, size } => {
                let requests = json!({"requests": {"storage": size.to_string()}});
                let patch = json!({"metadata": {"uid": uid}, "spec": {"resources": requests}});
                self.patch_claim(claim, &patch).await
            }
            Action::Finalize { claim, version, finalizers } => {
                let meta = json!({"resourceVersion": version, "finalizers": finalizers});
                self.patch_claim(claim, &json!({"metadata": meta})).await
            }
            Action::Forget { kind, key: (namespace, name) } => {
                let key = Key::new(namespace, name);
                let existed = self.client.delete(resources::of(*kind), &key, &Delete::default()).await?;
                Ok(if existed { Done::Written(Value::Null) } else { Done::AlreadyThere })
            }
            Action::Release { service: (namespace, name), claim } => {
                let key = Key::new(namespace, name);
                let Some(service) = self.client.find::<Value>(resources::SERVICES, &key).await? else {
                    return Ok(Done::AlreadyThere);
                };
                let service = Meta::from(&service);
                if !service.is_controlled_by(claim) {
                    return Ok(Done::AlreadyThere);
                }
                self.delete(Kind::Service, namespace, name, &service.uid).await
            }
            Action::Report(event) => {
                self.report(event);
                Ok(Done::AlreadyThere)
            }
        }
    }

    async fn create(&self, object: &Value) -> Result<Done> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let namespace = text(&object["metadata"]["namespace"]);
        let (resource, collection) = match object["kind"].as_str() {
            Some("PersistentVolumeClaim") => (CLAIMS, Some(Collection::Claims)),
            Some("Pod") => (PODS, Some(Collection::Workers)),
            Some("Service") => (resources::SERVICES, None),
            Some("Secret") => (resources::SECRETS, None),
            Some("ConfigMap") => (resources::CONFIG_MAPS, None),
            Some("VolumeSnapshot") => (resources::SNAPSHOTS, None),
            Some(_) | None => {
                let kind = object["kind"].to_string();
                return Err(cluster::Error::new(
                    cluster::Kind::Input,
                    format!("{kind} is not created by storage"),
                ));
            }
        };
        match self.client.create::<Value>(resource, &namespace, object).await {
            Ok(made) => {
                if let Some(collection) = collection {
                    let key = Key::new(&namespace, &text(&made["metadata"]["name"]));
                    self.written.object(collection, key, &text(&made["metadata"]["resourceVersion"]));
                }
                Ok(Done::Written(made))
            }
            Err(error) if error.is_already_exists() => Ok(Done::AlreadyThere),
            Err(error) => Err(error),
        }
    }

    async fn patch_claim(&self, (namespace, name): &(String, String), patch: &Value) -> Result<Done> {
        let key = Key::new(namespace, name);
        let made: Value = self.client.merge_patch(CLAIMS, &key, patch).await?;
        let version = made["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        self.written.object(Collection::Claims, key, version);
        Ok(Done::Written(made))
    }

    async fn delete(&self, kind: Kind, namespace: &str, name: &str, uid: &str) -> Result<Done> {
        let key = Key::new(namespace, name);
        let mut how = Delete::default().uid(uid);
        if kind == Kind::Claim {
            // A claim stays while a pod that has ended still names it: its worker goes first.
            how = how.propagation(Propagation::Foreground);
        }
        let existed = match self.client.delete(resources::of(kind), &key, &how).await {
            Ok(existed) => existed,
            // Another object has the name now.
            Err(error) if error.is_conflict() => false,
            Err(error) => return Err(error),
        };
        match kind {
            Kind::Claim => self.written.deleted(Collection::Claims, key),
            Kind::Pod => self.written.deleted(Collection::Workers, key),
            Kind::Service | Kind::Secret | Kind::Snapshot => {}
        }
        Ok(if existed { Done::Written(Value::Null) } else { Done::AlreadyThere })
    }

    /// Publishes an event; lost ones harm nothing.
    pub fn report(&self, event: &Event) {
        let about = Reference {
            api_version: event.about.api_version.to_owned(),
            kind: event.about.kind.to_owned(),
            namespace: event.about.namespace.clone(),
            name: event.about.name.clone(),
            uid: event.about.uid.clone(),
        };
        let kind = if event.warning { Type::Warning } else { Type::Normal };
        self.events.publish(&about, kind, &event.reason, &event.message);
    }
}
