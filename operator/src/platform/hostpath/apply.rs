//! Follows `HostPathProvisioner` and the driver's DaemonSet; deploys the driver, writes the status, and removes the driver when
//! the object goes and no volume is left.

use std::sync::Arc;
use std::time::Duration;

use api::hostpath::{HostPathProvisioner, HostPathStatus};
use cluster::event::{Reference, Type};
use cluster::{Apply, Cache, Client, Delete, Events, Key, Kind, Outcome, Queue, Resource, Result, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::metrics::Metrics;
use super::status::{self, State};
use super::{check, render};
use crate::install::{Settings, hostpath};
use crate::platform::apply::{DAEMON_SETS, Workload, finalizers};
use crate::platform::hyperconverged::read::Held;
use crate::platform::plan::Component;

const OBJECTS: Resource =
    Resource::cluster("hostpathprovisioner.kubevirt.io", "v1beta1", "hostpathprovisioners");
const DRIVERS: Resource = Resource::cluster("storage.k8s.io", "v1", "csidrivers");
const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");
/// Finalizer of the object; upstream's name.
const FINALIZER: &str = "finalizer.delete.hostpath-provisioner";
/// Time until objects that are not followed are looked at again.
const RECHECK: Duration = Duration::from_secs(60);
/// Time until volumes are counted again, while a deletion waits for them.
const RECOUNT: Duration = Duration::from_secs(2);
const MANAGER: Apply<'_> = Apply { manager: "ferrovirt-operator", force: true };

/// The controller of `HostPathProvisioner`.
#[derive(Clone)]
pub struct Controller {
    client: Client,
    events: Events,
    settings: Settings,
    version: String,
    objects: Cache<Held>,
    daemon_sets: Cache<Component>,
    metrics: Arc<Metrics>,
    queue: Queue<Key>,
}

impl Controller {
    /// Starts to follow the objects.
    pub fn start(
        client: &Client,
        events: &Events,
        settings: Settings,
        version: &str,
        metrics: Arc<Metrics>,
    ) -> Self {
        let queue: Queue<Key> = Queue::new();
        let feed = queue.clone();
        let objects = Cache::<Held>::builder()
            .on_change(move |change| feed.add(change.key.clone()))
            .start::<Value>(client, OBJECTS, &Scope::all());
        let (feed, known) = (queue.clone(), objects.clone());
        let daemon_sets = Cache::<Component>::builder()
            .on_change(move |change| {
                if change.key.name() == hostpath::DAEMON_SET {
                    for (key, _) in known.all() {
                        feed.add(key);
                    }
                }
            })
            .start::<Workload>(client, DAEMON_SETS, &Scope::all().namespace(&settings.namespace));
        Self {
            client: client.clone(),
            events: events.clone(),
            settings,
            version: version.to_owned(),
            objects,
            daemon_sets,
            metrics,
            queue,
        }
    }

    /// Works until `stop`; only the leader of the platform's controllers runs it.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        self.objects.synced().await;
        self.daemon_sets.synced().await;
        let this = self.clone();
        self.queue
            .run(1, stop, move |key| {
                let this = this.clone();
                async move {
                    this.reconcile(&key).await.unwrap_or_else(|error| {
                        if !matches!(error.kind(), Kind::Conflict) {
                            tracing::warn!(object = %key, error = error.chain(), "cannot reconcile HostPathProvisioner");
                        }
                        Outcome::Retry
                    })
                }
            })
            .await;
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome> {
        let Some(held) = self.objects.get(key) else {
            if self.objects.is_empty() {
                self.metrics.observe(None);
            }
            return Ok(Outcome::Done);
        };
        let object = match serde_json::from_value::<HostPathProvisioner>(held.0.clone()) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(object = %key, %error, "the object does not fit its schema");
                return Ok(Outcome::Done);
            }
        };
        let held = object.metadata.finalizers.iter().any(|one| one == FINALIZER);
        let older = self.older(&object);
        if object.metadata.deletion_timestamp.is_some() {
            return if held { self.remove(key, &object, older.is_some()).await } else { Ok(Outcome::Done) };
        }
        if let Some(older) = older {
            let text = format!("{older} is older and in effect; delete one of the two");
            self.report(key, &object, &State::Failed("ExistingDeployment", text)).await?;
            return Ok(Outcome::Done);
        }
        if !held {
            self.set_finalizers(key, &object, |all| all.push(FINALIZER.to_owned())).await?;
            // The change comes back and continues from there.
            return Ok(Outcome::Done);
        }
        let state = self.deploy(&object).await?;
        self.report(key, &object, &state).await?;
        Ok(Outcome::After(RECHECK))
    }

    /// Name of an object that was there before this one.
    fn older(&self, object: &HostPathProvisioner) -> Option<String> {
        let own = (object.metadata.creation_timestamp.clone().unwrap_or_default(), &object.metadata.name);
        let all = self.objects.all();
        let mut older = all.iter().filter_map(|(key, held)| {
            let created = held.0["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
            ((created, key.name()) < (own.0.as_str(), own.1.as_str())).then(|| key.name().to_owned())
        });
        older.next()
    }

    /// Writes the objects that are asked for; returns how far they are.
    async fn deploy(&self, object: &HostPathProvisioner) -> Result<State> {
        let problems: Vec<String> = check::problems(&object.spec)
            .into_iter()
            .map(|(field, text)| format!("{field}: {text}"))
            .collect();
        if !problems.is_empty() {
            return Ok(State::Failed("FailedToValidate", problems.join("; ")));
        }
        let owner = json!([{
            "apiVersion": api::hostpath::API_VERSION,
            "kind": "HostPathProvisioner",
            "name": object.metadata.name,
            "uid": object.metadata.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }]);
        for mut one in hostpath::objects(&self.settings, &render::driver(object)) {
            one["metadata"]["ownerReferences"] = owner.clone();
            let (resource, key) = match one["kind"].as_str() {
                Some("DaemonSet") => (DAEMON_SETS, Key::new(&self.settings.namespace, hostpath::DAEMON_SET)),
                _ => (DRIVERS, Key::cluster(hostpath::DRIVER)),
            };
            if resource == DAEMON_SETS {
                self.drop_others(&key, &one).await?;
            }
            if let Err(error) = self.client.apply::<IgnoredAny>(resource, &key, &one, MANAGER).await {
                if error.is_transient() || matches!(error.kind(), Kind::Conflict) {
                    return Err(error);
                }
                let text = format!("{} {key}: {}", one["kind"].as_str().unwrap_or_default(), error.chain());
                return Ok(State::Failed("FailedToApply", text));
            }
        }
        let set = self.daemon_sets.get(&Key::new(&self.settings.namespace, hostpath::DAEMON_SET));
        Ok(match set {
            None => State::Deploying(format!("DaemonSet {} does not exist yet", hostpath::DAEMON_SET)),
            Some(set) if !set.current || set.ready < set.desired => State::Deploying(format!(
                "DaemonSet {} has {} of {} pods ready",
                hostpath::DAEMON_SET,
                set.ready,
                set.desired
            )),
            Some(set) => State::Deployed(set.desired),
        })
    }

    /// Removes containers and volumes of the DaemonSet that are not wanted: an apply leaves those that others wrote, such as
    /// the manifests of an older release.
    async fn drop_others(&self, key: &Key, wanted: &Value) -> Result<()> {
        let Some(live) = self.client.find::<Value>(DAEMON_SETS, key).await? else { return Ok(()) };
        let of = |set: &Value, list: &str| {
            set["spec"]["template"]["spec"][list].as_array().cloned().unwrap_or_default()
        };
        let is_known =
            |list: &str, one: &Value| of(wanted, list).iter().any(|other| other["name"] == one["name"]);
        let lists = ["containers", "volumes"];
        if lists.iter().all(|list| of(&live, list).iter().all(|one| is_known(list, one))) {
            return Ok(());
        }
        // Both at once: containers mount the volumes by name.
        let patch = json!({"containers": of(wanted, "containers"), "volumes": of(wanted, "volumes")});
        let patch = json!({"spec": {"template": {"spec": patch}}});
        self.client.merge_patch::<IgnoredAny>(DAEMON_SETS, key, &patch).await.map(drop)
    }

    /// Removes the driver once no volume of it is left, then lets the object go.
    async fn remove(&self, key: &Key, object: &HostPathProvisioner, duplicate: bool) -> Result<Outcome> {
        if !duplicate {
            let volumes = self.volumes().await?;
            if !volumes.is_empty() {
                self.report(key, object, &State::Waiting(volumes)).await?;
                return Ok(Outcome::After(RECOUNT));
            }
            self.report(key, object, &State::Removing).await?;
            let set = Key::new(&self.settings.namespace, hostpath::DAEMON_SET);
            self.client.delete(DAEMON_SETS, &set, &Delete::default()).await?;
            self.client.delete(DRIVERS, &Key::cluster(hostpath::DRIVER), &Delete::default()).await?;
        }
        self.set_finalizers(key, object, |all| all.retain(|one| one != FINALIZER)).await?;
        Ok(Outcome::Done)
    }

    /// PersistentVolumes of the driver, each with its claim.
    async fn volumes(&self) -> Result<Vec<String>> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Claim {
            namespace: String,
            name: String,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Csi {
            driver: String,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Spec {
            csi: Csi,
            claim_ref: Claim,
        }
        #[derive(Deserialize)]
        struct Volume {
            metadata: api::resource::ObjectMeta,
            #[serde(default)]
            spec: Spec,
        }
        let mut found = Vec::new();
        let hear = |volume: Volume| {
            if volume.spec.csi.driver == hostpath::DRIVER {
                let Claim { namespace, name } = volume.spec.claim_ref;
                found.push(format!("{} of {namespace}/{name}", volume.metadata.name));
            }
        };
        self.client.each(VOLUMES, &Scope::all(), hear).await?;
        Ok(found)
    }

    async fn set_finalizers(
        &self,
        key: &Key,
        object: &HostPathProvisioner,
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<()> {
        let patch = finalizers(&object.metadata.uid, &object.metadata.finalizers, change);
        self.client.json_patch::<IgnoredAny>(OBJECTS, key, &patch).await.map(drop)
    }

    /// Writes the status if it differs.
    async fn report(&self, key: &Key, object: &HostPathProvisioner, state: &State) -> Result<()> {
        let before = object.status.clone().unwrap_or_default();
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let wanted: HostPathStatus = status::status(state, &before, &self.version, &now);
        self.metrics.observe(Some(status::is(&wanted, "Available", "True")));
        if wanted == before {
            return Ok(());
        }
        // The kind has no status subresource.
        let patch = json!({"metadata": {"uid": object.metadata.uid}, "status": wanted});
        self.client.merge_patch::<IgnoredAny>(OBJECTS, key, &patch).await?;
        for (kind, severity) in
            [("Available", Type::Normal), ("Progressing", Type::Normal), ("Degraded", Type::Warning)]
        {
            let condition = |of: &HostPathStatus| of.conditions.iter().find(|one| one.kind == kind).cloned();
            let (new, old) = (condition(&wanted), condition(&before));
            let Some(new) = new.filter(|new| new.status == "True") else { continue };
            if old.is_some_and(|old| old.status == new.status && old.reason == new.reason) {
                continue;
            }
            let (reason, text) = (new.reason.unwrap_or_default(), new.message.unwrap_or_default());
            self.events.publish(&reference(object), severity, &reason, &text);
        }
        Ok(())
    }
}

fn reference(object: &HostPathProvisioner) -> Reference {
    Reference {
        api_version: api::hostpath::API_VERSION.to_owned(),
        kind: "HostPathProvisioner".to_owned(),
        namespace: String::new(),
        name: object.metadata.name.clone(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
    }
}
