//! Follows `KubeVirt`, `CDI` and the components, and carries out the plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::cdi::{Cdi, CdiStatus};
use api::kubevirt::{KubeVirt, KubeVirtStatus};
use api::resource::{Condition, ObjectMeta};
use cluster::{Cache, Client, Delete, JsonPatch, Key, Outcome, Queue, Resource, Result, Scope};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::aggregation::{self, Aggregation};
use super::endpoints::Endpoints;
use super::hyperconverged::render::Child;
use super::instancetypes::apply::Flavors;
use super::placement;
use super::plan::{self, Action, Component, Observed, ObservedOwner, Release, Side, State};
use super::status::{self, Note};
use super::without;
use crate::lifetimes;
use crate::view::{Age, WAITS, oldest};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");
const CDIS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdis");
const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
const DATA_VOLUMES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes");
pub(super) const DEPLOYMENTS: Resource = Resource::namespaced("apps", "v1", "deployments");
pub(super) const DAEMON_SETS: Resource = Resource::namespaced("apps", "v1", "daemonsets");

/// Time until workloads that are being deleted are counted again.
const RECOUNT: Duration = Duration::from_secs(2);

/// An object `KubeVirt` or `CDI`, as the cache keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Platform {
    age: Age,
    uid: String,
    generation: i64,
    finalizers: Vec<String>,
    deleting: bool,
    waits: bool,
    phase: String,
    observed_generation: i64,
    version: String,
    /// Template of images that was deployed; of `KubeVirt` alone.
    registry: String,
    conditions: Vec<Condition>,
    /// The platform's own conditions of its settings.
    notes: Vec<Note>,
    /// Whether the cluster is to have the shipped instance types and preferences; of `KubeVirt` alone.
    flavors: bool,
    /// Placement of the control plane.
    placement: Map<String, Value>,
    /// Whether administrators bind users' roles themselves; of `KubeVirt` alone.
    manual_roles: bool,
}

impl Platform {
    fn new(meta: &ObjectMeta, strategy: Option<&str>) -> Self {
        Self {
            age: Age::from(meta),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.and_then(|number| i64::try_from(number).ok()).unwrap_or(0),
            finalizers: meta.finalizers.clone(),
            deleting: meta.deletion_timestamp.is_some(),
            waits: strategy == Some(WAITS),
            ..Self::default()
        }
    }
}

impl From<&KubeVirt> for Platform {
    fn from(object: &KubeVirt) -> Self {
        let KubeVirtStatus {
            phase,
            conditions,
            observed_generation,
            observed_kube_virt_version,
            observed_kube_virt_registry,
            ..
        } = object.status.clone().unwrap_or_default();
        let configuration = object.spec.configuration.as_ref();
        Self {
            phase: phase.unwrap_or_default(),
            conditions,
            observed_generation: observed_generation.unwrap_or(0),
            version: observed_kube_virt_version.unwrap_or_default(),
            registry: observed_kube_virt_registry.unwrap_or_default(),
            notes: notes(Side::Compute, &object.spec),
            flavors: configuration
                .and_then(|configuration| configuration.common_instancetypes_deployment.as_ref()?.enabled)
                .unwrap_or(true),
            manual_roles: configuration
                .and_then(|configuration| configuration.role_aggregation_strategy.as_deref())
                == Some("Manual"),
            placement: placement::asked(
                object.spec.infra.as_ref().and_then(|infra| infra.node_placement.as_ref()),
            ),
            ..Self::new(&object.metadata, object.spec.uninstall_strategy.as_deref())
        }
    }
}

impl From<&Cdi> for Platform {
    fn from(object: &Cdi) -> Self {
        let CdiStatus { phase, conditions, observed_version, .. } = object.status.clone().unwrap_or_default();
        Self {
            phase: phase.unwrap_or_default(),
            conditions,
            version: observed_version.unwrap_or_default(),
            notes: notes(Side::Storage, &object.spec),
            placement: placement::asked(object.spec.infra.as_ref()),
            ..Self::new(&object.metadata, object.spec.uninstall_strategy.as_deref())
        }
    }
}

fn notes(side: Side, spec: &impl Serialize) -> Vec<Note> {
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let (child, raised) = match side {
        Side::Compute => (Child::KubeVirt, lifetimes::of_kubevirt(&spec).raised),
        Side::Storage => {
            (Child::Cdi, lifetimes::of_cdi(&spec).into_iter().flat_map(|one| one.raised).collect())
        }
    };
    without::note(child, &spec).into_iter().chain(status::raised(&raised)).collect()
}

/// A Deployment or DaemonSet, as it is read.
#[derive(Deserialize)]
pub(super) struct Workload {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WorkloadSpec,
    #[serde(default)]
    status: WorkloadStatus,
}

#[derive(Default, Deserialize)]
struct WorkloadSpec {
    replicas: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadStatus {
    observed_generation: u64,
    // Deployment.
    updated_replicas: u32,
    ready_replicas: u32,
    // DaemonSet.
    desired_number_scheduled: Option<u32>,
    updated_number_scheduled: u32,
    number_ready: u32,
}

impl From<&Workload> for Component {
    fn from(object: &Workload) -> Self {
        let Workload { metadata, spec, status } = object;
        let (desired, ready) = match status.desired_number_scheduled {
            Some(desired) => (desired, status.updated_number_scheduled.min(status.number_ready)),
            None => (spec.replicas.unwrap_or(1), status.updated_replicas.min(status.ready_replicas)),
        };
        Self {
            name: metadata.name.clone(),
            desired,
            ready,
            current: Some(status.observed_generation) >= metadata.generation,
        }
    }
}

/// The controller of `KubeVirt` and `CDI`.
#[derive(Clone)]
pub struct Controller {
    client: Client,
    namespace: String,
    version: String,
    image: String,
    kubevirts: Cache<Platform>,
    cdis: Cache<Platform>,
    deployments: Cache<Component>,
    daemon_sets: Cache<Component>,
    endpoints: Endpoints,
    flavors: Flavors,
    aggregation: Aggregation,
    /// The placements that are applied.
    placed: Arc<Mutex<BTreeMap<Side, Map<String, Value>>>>,
    queue: Queue<(Side, Key)>,
}

impl Controller {
    /// Starts to follow the objects. `version` and `image` are reported in the status.
    pub fn start(client: &Client, namespace: &str, version: &str, image: &str) -> Self {
        let queue: Queue<(Side, Key)> = Queue::new();
        let follow = |side: Side, queue: &Queue<(Side, Key)>| {
            let queue = queue.clone();
            Cache::<Platform>::builder().on_change(move |change| queue.add((side, change.key.clone())))
        };
        let kubevirts = follow(Side::Compute, &queue).start::<KubeVirt>(client, KUBEVIRTS, &Scope::all());
        let cdis = follow(Side::Storage, &queue).start::<Cdi>(client, CDIS, &Scope::all());
        let compute = {
            let (queue, kubevirts) = (queue.clone(), kubevirts.clone());
            move || {
                for (key, _) in kubevirts.all() {
                    queue.add((Side::Compute, key));
                }
            }
        };
        let flavors = Flavors::start(client, compute.clone());
        let all = {
            let (queue, cdis) = (queue.clone(), cdis.clone());
            move || {
                compute();
                for (key, _) in cdis.all() {
                    queue.add((Side::Storage, key));
                }
            }
        };
        let placed = Arc::new(Mutex::new(BTreeMap::<Side, Map<String, Value>>::new()));
        let components = |resource: Resource| {
            let (all, placed) = (all.clone(), Arc::clone(&placed));
            Cache::<Component>::builder()
                .on_change(move |change| {
                    // A Deployment that is created again has no placement yet.
                    if change.before.is_some() != change.after.is_some() {
                        placed.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    }
                    all();
                })
                .start::<Workload>(client, resource, &Scope::all().namespace(namespace))
        };
        let (deployments, daemon_sets) = (components(DEPLOYMENTS), components(DAEMON_SETS));
        let endpoints = Endpoints::start(client, namespace, all);
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            version: version.to_owned(),
            image: image.to_owned(),
            kubevirts,
            cdis,
            deployments,
            daemon_sets,
            endpoints,
            flavors,
            aggregation: Aggregation::default(),
            placed,
            queue,
        }
    }

    /// Works until `stop`; only the leader of the platform's controllers runs it.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        for cache in [&self.kubevirts, &self.cdis] {
            cache.synced().await;
        }
        for cache in [&self.deployments, &self.daemon_sets] {
            cache.synced().await;
        }
        self.endpoints.synced().await;
        self.flavors.synced().await;
        let this = self.clone();
        self.queue
            .run(1, stop, move |(side, key)| {
                let this = this.clone();
                async move { Outcome::of(this.reconcile(side, &key).await, "the platform", &key) }
            })
            .await;
    }

    fn objects(&self, side: Side) -> (&Cache<Platform>, Resource) {
        match side {
            Side::Compute => (&self.kubevirts, KUBEVIRTS),
            Side::Storage => (&self.cdis, CDIS),
        }
    }

    async fn reconcile(&self, side: Side, key: &Key) -> Result<Outcome> {
        let (cache, resource) = self.objects(side);
        let Some(object) = cache.get(key) else { return Ok(Outcome::Done) };
        let older = oldest(cache.all(), |(_, other)| &other.age)
            .filter(|(_, other)| other.age < object.age)
            .map(|(key, _)| key.name().to_owned());
        let observed = Observed {
            object: ObservedOwner {
                deleting: object.deleting,
                held: object.finalizers.iter().any(|one| one == side.finalizer()),
                waits: object.waits,
            },
            older,
            deployed: (object.phase == "Deployed")
                .then(|| Release { version: object.version.clone(), registry: object.registry.clone() }),
            target: self.release(side),
            components: self
                .deployments
                .all()
                .into_iter()
                .chain(self.daemon_sets.all())
                .map(|(_, component)| (*component).clone())
                .collect(),
            services: self.endpoints.ready(),
            workloads: if object.deleting { self.workloads(side).await? } else { 0 },
            flavors: object.deleting && side == Side::Compute && self.flavors.left(),
        };
        let state = plan::state(side, &observed);
        match plan::plan(&observed, &state) {
            Some(Action::Hold) => {
                self.set_finalizers(resource, key, &object, |all| all.push(side.finalizer().to_owned()))
                    .await?;
                // The change comes back and continues from there.
                return Ok(Outcome::Done);
            }
            Some(Action::DeleteWorkloads) => self.delete_workloads(side).await?,
            Some(Action::DeleteFlavors) => {
                self.flavors.advance(false).await?;
                // The cache may not have seen the last ones go.
                return Ok(Outcome::After(RECOUNT));
            }
            Some(Action::Release) => {
                self.set_finalizers(resource, key, &object, |all| all.retain(|one| one != side.finalizer()))
                    .await?;
                return Ok(Outcome::Done);
            }
            None => {}
        }
        self.report(side, key, &object, &state).await?;
        let stays = match state {
            State::Deploying(_) | State::Updating(..) | State::Degraded(_) | State::Deployed => true,
            State::Duplicate(_) | State::Waiting(_) | State::Removing(_) | State::Removed => false,
        };
        // A few at a time, so that the status follows the components.
        if stays && side == Side::Compute && self.flavors.advance(object.flavors).await? {
            return Ok(Outcome::After(Duration::ZERO));
        }
        let manual = stays && side == Side::Compute && object.manual_roles;
        // Neither of the last two steps is kept from being done by the other one's error.
        let followed = if stays && side == Side::Compute {
            self.aggregation.follow(&self.client, manual).await
        } else {
            Ok(())
        };
        if stays {
            self.place(side, &object.placement).await?;
        }
        followed?;
        if manual {
            return Ok(Outcome::After(aggregation::AGAIN));
        }
        Ok(match state {
            State::Waiting(_) | State::Removing(_) => Outcome::After(RECOUNT),
            State::Duplicate(_)
            | State::Deploying(_)
            | State::Updating(..)
            | State::Degraded(_)
            | State::Deployed
            | State::Removed => Outcome::Done,
        })
    }

    /// Places the control plane as the object asks for. A Deployment that is missing, as on a developer's machine, is
    /// not made.
    async fn place(&self, side: Side, placement: &Map<String, Value>) -> Result<()> {
        let key = Key::new(&self.namespace, placement::placed(side));
        let is_known =
            self.placed.lock().unwrap_or_else(PoisonError::into_inner).get(&side) == Some(placement);
        if is_known || self.deployments.get(&key).is_none() {
            return Ok(());
        }
        let before: Option<Value> = self.client.find(DEPLOYMENTS, &key).await?;
        let Some(before) = before else { return Ok(()) };
        if !placement.is_empty() || placement::is_placed(&before) {
            let wanted = placement::applied(&key, placement);
            self.client.apply::<IgnoredAny>(DEPLOYMENTS, &key, &wanted, placement::MANAGER).await?;
        }
        self.placed.lock().unwrap_or_else(PoisonError::into_inner).insert(side, placement.clone());
        Ok(())
    }

    async fn set_finalizers(
        &self,
        resource: Resource,
        key: &Key,
        object: &Platform,
        change: impl FnOnce(&mut Vec<String>),
    ) -> Result<()> {
        let patch = finalizers(&object.uid, &object.finalizers, change);
        self.client.json_patch::<IgnoredAny>(resource, key, &patch).await.map(drop)
    }

    /// Keys of the workloads of a side, with the kind of each.
    async fn keys(&self, side: Side) -> Result<Vec<(Resource, Key)>> {
        #[derive(Deserialize)]
        struct Named {
            metadata: ObjectMeta,
        }
        let kinds: &[Resource] = match side {
            Side::Compute => &[MACHINES, INSTANCES],
            Side::Storage => &[DATA_VOLUMES],
        };
        let mut keys = Vec::new();
        for kind in kinds {
            let add = |one: Named| {
                let namespace = one.metadata.namespace.unwrap_or_default();
                keys.push((*kind, Key::new(&namespace, &one.metadata.name)));
            };
            self.client.each(*kind, &Scope::all(), add).await?;
        }
        Ok(keys)
    }

    async fn workloads(&self, side: Side) -> Result<usize> {
        Ok(self.keys(side).await?.len())
    }

    async fn delete_workloads(&self, side: Side) -> Result<()> {
        for (kind, key) in self.keys(side).await? {
            self.client.delete(kind, &key, &Delete::default()).await?;
        }
        Ok(())
    }

    /// Writes the status if it differs.
    async fn report(&self, side: Side, key: &Key, object: &Platform, state: &State) -> Result<()> {
        let now = cluster::time::seconds();
        let conditions = status::conditions(side, state, &object.notes, &object.conditions, &now);
        let phase = status::phase(state).unwrap_or(&object.phase);
        let deployed = *state == State::Deployed;
        let before = Release { version: object.version.clone(), registry: object.registry.clone() };
        let generation_seen = side == Side::Storage || object.observed_generation == object.generation;
        if conditions == object.conditions
            && phase == object.phase
            && (!deployed || before == self.release(side))
            && generation_seen
        {
            return Ok(());
        }
        let (resource, fields) = match side {
            Side::Compute => (KUBEVIRTS.sub("status"), self.compute_status(object, deployed)),
            // CDI has no status subresource.
            Side::Storage => (CDIS, self.storage_status(deployed)),
        };
        let mut wanted = json!({"phase": phase, "conditions": conditions});
        if let Value::Object(wanted) = &mut wanted {
            wanted.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        let patch = json!({"metadata": {"uid": object.uid}, "status": wanted});
        self.client.merge_patch::<IgnoredAny>(resource, key, &patch).await.map(drop)
    }

    fn compute_status(&self, object: &Platform, deployed: bool) -> BTreeMap<&'static str, Value> {
        let mut fields = BTreeMap::from([
            ("observedGeneration", json!(object.generation)),
            ("operatorVersion", json!(self.version)),
            ("targetKubeVirtVersion", json!(self.version)),
            ("targetKubeVirtRegistry", json!(self.image)),
            ("targetDeploymentID", json!(self.deployment())),
        ]);
        if deployed {
            fields.extend([
                ("observedKubeVirtVersion", json!(self.version)),
                ("observedKubeVirtRegistry", json!(self.image)),
                ("observedDeploymentID", json!(self.deployment())),
            ]);
        }
        fields
    }

    fn storage_status(&self, deployed: bool) -> BTreeMap<&'static str, Value> {
        let mut fields = BTreeMap::from([
            ("operatorVersion", json!(self.version)),
            ("targetVersion", json!(self.version)),
        ]);
        if deployed {
            fields.insert("observedVersion", json!(self.version));
        }
        fields
    }

    /// The release of this process, as the status of a side reports it.
    fn release(&self, side: Side) -> Release {
        let registry = match side {
            Side::Compute => self.image.clone(),
            Side::Storage => String::new(),
        };
        Release { version: self.version.clone(), registry }
    }

    /// Identifies what is deployed: version, image and namespace.
    fn deployment(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.image, self.version)
    }
}

/// A change of the finalizers of the object with this uid. It tests them, so that a concurrent change is a conflict.
pub(super) fn finalizers(
    uid: &impl Serialize,
    before: &[String],
    change: impl FnOnce(&mut Vec<String>),
) -> JsonPatch {
    const PATH: &str = "/metadata/finalizers";
    let mut after = before.to_vec();
    change(&mut after);
    let patch = JsonPatch::new().test("/metadata/uid", uid);
    if before.is_empty() {
        patch.test(PATH, Value::Null).add(PATH, after)
    } else {
        patch.test(PATH, before).replace(PATH, after)
    }
}
