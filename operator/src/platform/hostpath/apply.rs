//! Follows `HostPathProvisioner` and the driver's DaemonSet; deploys the driver, writes the status, and removes the driver when
//! the object goes and no volume is left.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::hostpath::{HostPathProvisioner, HostPathStatus, StoragePoolStatus};
use cluster::access::{Access, User};
use cluster::event::{Reference, Type};
use cluster::{Apply, Cache, Client, Delete, Events, Key, Kind, Outcome, Queue, Resource, Result, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::check::Provisioner;
use super::metrics::Metrics;
use super::status::{self, State};
use super::{check, render, volumes};
use crate::install::hostpath::{Driver, Sidecars};
use crate::install::{Settings, hostpath, pools};
use crate::platform::apply::{DAEMON_SETS, DEPLOYMENTS, Workload, finalizers};
use crate::platform::hyperconverged::read::WholeObject;
use crate::platform::plan::Component;

const OBJECTS: Resource =
    Resource::cluster("hostpathprovisioner.kubevirt.io", "v1beta1", "hostpathprovisioners");
const DRIVERS: Resource = Resource::cluster("storage.k8s.io", "v1", "csidrivers");
/// Finalizer of the object; upstream's name.
const FINALIZER: &str = "finalizer.delete.hostpath-provisioner";
/// Time until objects that are not followed are looked at again.
const RECHECK: Duration = Duration::from_secs(60);
/// Time until volumes are counted again, while a deletion waits for them.
const RECOUNT: Duration = Duration::from_secs(2);
/// Time until volumes of upstream's provisioner without CSI are looked for again, where there were none.
const RARELY: Duration = Duration::from_secs(1800);
pub(super) const MANAGER: Apply<'_> = Apply { manager: "ferrovirt-operator", force: true };

/// The controller of `HostPathProvisioner`.
#[derive(Clone)]
pub struct Controller {
    pub(super) client: Client,
    pub(super) events: Events,
    pub(super) settings: Settings,
    version: String,
    objects: Cache<WholeObject>,
    pub(super) daemon_sets: Cache<Component>,
    /// Provisioners of all namespaces.
    provisioners: Cache<Provisioner>,
    deployments: Cache<Component>,
    metrics: Arc<Metrics>,
    /// When no volume of upstream's provisioner without CSI was found, for which generation of the object.
    without_legacy: Arc<Mutex<Option<(Instant, u64)>>>,
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
        let objects = Cache::<WholeObject>::builder()
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
        let (feed, known) = (queue.clone(), objects.clone());
        let provisioners = Cache::<Provisioner>::builder()
            .on_change(move |_| known.all().into_iter().for_each(|(key, _)| feed.add(key)))
            .start::<Value>(client, DAEMON_SETS, &Scope::all().labels("k8s-app=hostpath-provisioner"));
        let (feed, known) = (queue.clone(), objects.clone());
        let deployments = Cache::<Component>::builder()
            .on_change(move |_| known.all().into_iter().for_each(|(key, _)| feed.add(key)))
            .start::<Workload>(
                client,
                DEPLOYMENTS,
                &Scope::all().namespace(&settings.namespace).labels(pools::LABEL),
            );
        Self {
            client: client.clone(),
            events: events.clone(),
            settings,
            version: version.to_owned(),
            objects,
            daemon_sets,
            provisioners,
            deployments,
            metrics,
            without_legacy: Arc::default(),
            queue,
        }
    }

    /// Works until `stop`; only the leader of the platform's controllers runs it.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        self.objects.synced().await;
        self.daemon_sets.synced().await;
        self.provisioners.synced().await;
        self.deployments.synced().await;
        let this = self.clone();
        self.queue
            .run(1, stop, move |key| {
                let this = this.clone();
                async move { Outcome::of(this.reconcile(&key).await, "HostPathProvisioner", &key) }
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
                tracing::error!(
                    object = %key, %error,
                    "the HostPathProvisioner does not fit its schema and is ignored; correct the field that the error names"
                );
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
            self.report(key, &object, &State::Failed("ExistingDeployment", text), None).await?;
            return Ok(Outcome::Done);
        }
        if !held {
            self.set_finalizers(key, &object, |all| all.push(FINALIZER.to_owned())).await?;
            // The change comes back and continues from there.
            return Ok(Outcome::Done);
        }
        let (state, pools) = self.deploy(&object).await?;
        self.report(key, &object, &state, pools).await?;
        // Claims, jobs and volumes are not followed.
        let is_settled = matches!(state, State::Deployed(_) | State::Impaired(..) | State::Failed(..));
        let settled = is_settled && self.adopt(&object).await? == 0;
        Ok(Outcome::After(if settled { RECHECK } else { RECOUNT }))
    }

    /// Deletes volumes of upstream's provisioner without CSI that are released; gives how many are on their way. PVs are
    /// listed each time while there are any, and else rarely: no more of them are made.
    async fn adopt(&self, object: &HostPathProvisioner) -> Result<usize> {
        let seen = || self.without_legacy.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = object.metadata.generation.unwrap_or(0);
        if seen().is_some_and(|(at, of): (Instant, u64)| at.elapsed() < RARELY && of == generation) {
            return Ok(0);
        }
        let legacy = volumes::list(&self.client).await?.legacy;
        *seen() = legacy.is_empty().then(|| (Instant::now(), generation));
        self.delete_legacy(&render::driver(object), &legacy).await
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

    /// Writes the objects that are asked for; returns how far they are, and the pools.
    async fn deploy(&self, object: &HostPathProvisioner) -> Result<(State, Option<Vec<StoragePoolStatus>>)> {
        let problems: Vec<String> =
            check::problems(object).into_iter().map(|(field, text)| format!("{field}: {text}")).collect();
        if !problems.is_empty() {
            return Ok((State::Failed("FailedToValidate", problems.join("; ")), None));
        }
        let set = Key::new(&self.settings.namespace, hostpath::DAEMON_SET);
        let live = self.client.find::<Value>(DAEMON_SETS, &set).await?;
        let writer = live.as_ref().and_then(|live| live["metadata"]["annotations"][check::VERSION].as_str());
        if let Some(text) = check::downgrade(writer, &self.version) {
            return Ok((State::Failed("OperatorDowngraded", text), None));
        }
        let mut driver = render::driver(object);
        let problem = self.problem(&mut driver, &set).await?;
        let mut waits = Vec::new();
        let served = live.as_ref().map(hostpath::served).unwrap_or_default();
        if volumes::leave(&driver.pools, &served) {
            match volumes::kept(&driver.pools, &served, &volumes::list(&self.client).await?.volumes) {
                Ok(kept) => (driver.pools, waits) = kept,
                Err(text) => return Ok((State::Failed("FailedToValidate", text), None)),
            }
        }
        let owner = owner(object);
        for mut one in hostpath::objects(&self.settings, &driver) {
            one["metadata"]["ownerReferences"] = owner.clone();
            let (resource, key) = match one["kind"].as_str() {
                Some("DaemonSet") => {
                    one["metadata"]["annotations"][check::VERSION] = json!(self.version);
                    (DAEMON_SETS, set.clone())
                }
                _ => (DRIVERS, Key::cluster(hostpath::DRIVER)),
            };
            if let Some(live) = live.as_ref().filter(|_| resource == DAEMON_SETS) {
                self.drop_others(&key, live, &one).await?;
            }
            if let Err(error) = self.client.apply::<IgnoredAny>(resource, &key, &one, MANAGER).await {
                if error.is_transient() || matches!(error.kind(), Kind::Conflict) {
                    return Err(error);
                }
                let text = format!("{} {key}: {}", one["kind"].as_str().unwrap_or_default(), error.chain());
                return Ok((State::Failed("FailedToApply", text), None));
            }
        }
        let progress = self.keep_pools(object, &driver, &owner).await?;
        let mut missing = progress.missing;
        missing.extend(self.offer_metadata(&owner).await?);
        // Once it was deployed, a node that fails or is restarted does not undo that.
        let before = object.status.clone().unwrap_or_default();
        let was_deployed = before.observed_version.as_deref() == Some(self.version.as_str())
            && status::is(&before, "Available", "True");
        let state = if let Some(unready) = self.unready() {
            if was_deployed && missing.is_empty() && live.is_some_and(|live| is_rolled_out(&live)) {
                State::Degraded(unready)
            } else {
                missing.insert(0, unready);
                State::Deploying(missing.join("; "))
            }
        } else if !missing.is_empty() {
            State::Deploying(missing.join("; "))
        } else if !waits.is_empty() {
            State::Keeping(waits)
        } else if !progress.leaving.is_empty() {
            State::Leaving(progress.leaving)
        } else {
            State::Deployed(self.daemon_sets.get(&set).map_or(0, |set| set.desired))
        };
        Ok((state.with_problem(problem), Some(progress.statuses)))
    }

    /// The cluster's problems with a driver, as one. Sidecars without rights are left out: the agents keep the work.
    async fn problem(&self, driver: &mut Driver, set: &Key) -> Result<Option<(&'static str, String)>> {
        let mut problems = Vec::new();
        if driver.sidecars != Sidecars::None {
            let user = hostpath::user(&self.settings);
            if !self.may_make_volumes(&user).await? {
                driver.sidecars = Sidecars::None;
                problems.push(check::without_rights(&user));
            }
        }
        let mut others = Vec::new();
        for (key, one) in self.provisioners.all() {
            // A DaemonSet of a user may have upstream's label and name, and makes no volumes.
            if key != *set && one.serves && self.may_make_volumes(&one.user).await? {
                others.push(key);
            }
        }
        problems.extend(check::others(&others, set));
        Ok(check::joined(&problems))
    }

    /// Whether a user may create PersistentVolumes.
    async fn may_make_volumes(&self, user: &str) -> Result<bool> {
        let create =
            Access { verb: "create", version: "v1", resource: "persistentvolumes", ..Access::default() };
        let asked = User { username: user.to_owned(), ..User::default() };
        Ok(self.client.may(&asked, &create).await?.allowed)
    }

    /// The reason why the driver's DaemonSet is not ready.
    fn unready(&self) -> Option<String> {
        let name = hostpath::DAEMON_SET;
        match self.daemon_sets.get(&Key::new(&self.settings.namespace, name)) {
            None => Some(format!("DaemonSet {name} does not exist yet")),
            Some(set) if set.is_ready() => None,
            Some(set) => Some(set.progress("DaemonSet")),
        }
    }

    /// Removes containers and volumes of the DaemonSet that are not wanted: an apply leaves those that others wrote, such as
    /// the manifests of an older release.
    async fn drop_others(&self, key: &Key, live: &Value, wanted: &Value) -> Result<()> {
        let of = |set: &Value, list: &str| {
            set["spec"]["template"]["spec"][list].as_array().cloned().unwrap_or_default()
        };
        let is_known =
            |list: &str, one: &Value| of(wanted, list).iter().any(|other| other["name"] == one["name"]);
        let lists = ["containers", "volumes"];
        if lists.iter().all(|list| of(live, list).iter().all(|one| is_known(list, one))) {
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
            let volumes::Listed { volumes, legacy } = volumes::list(&self.client).await?;
            if !volumes.is_empty() {
                self.delete_legacy(&render::driver(object), &legacy).await?;
                let volumes = volumes.into_iter().map(|volume| volume.text).collect();
                self.report(key, object, &State::Waiting(volumes), None).await?;
                return Ok(Outcome::After(RECOUNT));
            }
            let waits = self.drop_pools(&render::driver(object)).await?;
            self.report(key, object, &State::Removing(waits.clone()), None).await?;
            if !waits.is_empty() {
                return Ok(Outcome::After(RECOUNT));
            }
            let set = Key::new(&self.settings.namespace, hostpath::DAEMON_SET);
            self.client.delete(DAEMON_SETS, &set, &Delete::default()).await?;
            self.withdraw_metadata().await?;
            self.client.delete(DRIVERS, &Key::cluster(hostpath::DRIVER), &Delete::default()).await?;
        }
        self.set_finalizers(key, object, |all| all.retain(|one| one != FINALIZER)).await?;
        Ok(Outcome::Done)
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

    /// Writes the status if it differs; without pools, theirs stay.
    async fn report(
        &self,
        key: &Key,
        object: &HostPathProvisioner,
        state: &State,
        pools: Option<Vec<StoragePoolStatus>>,
    ) -> Result<()> {
        let before = object.status.clone().unwrap_or_default();
        let now = cluster::time::seconds();
        let ignored = check::without_effect(&object.spec);
        let mut wanted: HostPathStatus = status::status(state, &ignored, &before, &self.version, &now);
        wanted.storage_pool_statuses = pools.unwrap_or_else(|| before.storage_pool_statuses.clone());
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

/// Whether every node has a pod of a DaemonSet's present version, ready or not.
fn is_rolled_out(set: &Value) -> bool {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let status = &set["status"];
    number(&status["observedGeneration"]) == number(&set["metadata"]["generation"])
        && number(&status["updatedNumberScheduled"]) >= number(&status["desiredNumberScheduled"])
}

/// Reference to the object, as the owner of others.
fn owner(object: &HostPathProvisioner) -> Value {
    json!([{
        "apiVersion": api::hostpath::API_VERSION,
        "kind": "HostPathProvisioner",
        "name": object.metadata.name,
        "uid": object.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }])
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
