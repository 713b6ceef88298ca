//! Follows `NetworkAddonsConfig`, the workloads and the nodes; deploys the MAC pool and writes the status.

use std::sync::Arc;
use std::time::Duration;

use api::addons::{NAME, NetworkAddonsConfig, NetworkAddonsSpec};
use api::resource::ObjectMeta;
use cluster::event::{Reference, Type};
use cluster::{Apply, Cache, Client, Delete, Events, Key, Kind, Outcome, Queue, Resource, Result, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::metrics::Metrics;
use super::status::{self, Situation};
use super::{check, render};
use crate::install::{Settings, macpool};
use crate::platform::apply::{DAEMON_SETS, DEPLOYMENTS, Workload};
use crate::platform::endpoints::Endpoints;
use crate::platform::hyperconverged::digest;
use crate::platform::hyperconverged::plan::APPLIED;
use crate::platform::hyperconverged::read::{Facts, NodeRead, NodeSeen, WholeObject};
use crate::platform::plan::Component;

const CONFIGS: Resource =
    Resource::cluster("networkaddonsoperator.network.kubevirt.io", "v1", "networkaddonsconfigs");
const NODES: Resource = Resource::cluster("", "v1", "nodes");
const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
const BUDGETS: Resource = Resource::namespaced("policy", "v1", "poddisruptionbudgets");
const WEBHOOKS: Resource =
    Resource::cluster("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations");
/// ConfigMap with the spec that was applied last; the MAC pool's range is in it.
const KEPT: &str = "cluster-networks-addons-operator-applied-cluster";
/// Part of the names of Multus's DaemonSets, such as `kube-multus-ds`.
const MULTUS: &str = "multus";
/// Time until objects that are not followed are looked at again.
const RECHECK: Duration = Duration::from_secs(60);
const MANAGER: Apply<'_> = Apply { manager: "ferrovirt-operator", force: true };

/// The controller of `NetworkAddonsConfig`.
#[derive(Clone)]
pub struct Controller {
    client: Client,
    events: Events,
    settings: Settings,
    version: String,
    configs: Cache<WholeObject>,
    deployments: Cache<Component>,
    daemon_sets: Cache<Component>,
    endpoints: Endpoints,
    nodes: Cache<NodeSeen>,
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
        let configs = Cache::<WholeObject>::builder()
            .on_change(move |change| feed.add(change.key.clone()))
            .start::<Value>(client, CONFIGS, &Scope::all());
        let workloads = |resource: Resource, name: &'static str| {
            let feed = queue.clone();
            Cache::<Component>::builder()
                .on_change(move |change| {
                    if change.key.name() == name {
                        feed.add(Key::cluster(NAME));
                    }
                })
                .start::<Workload>(client, resource, &Scope::all().namespace(&settings.namespace))
        };
        let deployments = workloads(DEPLOYMENTS, macpool::DEPLOYMENT);
        let daemon_sets = workloads(DAEMON_SETS, status::AGENT);
        let feed = queue.clone();
        let endpoints = Endpoints::start(client, &settings.namespace, move || feed.add(Key::cluster(NAME)));
        let feed = queue.clone();
        let nodes = Cache::<NodeSeen>::builder()
            .on_change(move |_| feed.add(Key::cluster(NAME)))
            .start::<NodeRead>(client, NODES, &Scope::all());
        Self {
            client: client.clone(),
            events: events.clone(),
            settings,
            version: version.to_owned(),
            configs,
            deployments,
            daemon_sets,
            endpoints,
            nodes,
            metrics,
            queue,
        }
    }

    /// Works until `stop`; only the leader of the platform's controllers runs it.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        self.configs.synced().await;
        self.deployments.synced().await;
        self.daemon_sets.synced().await;
        self.endpoints.synced().await;
        self.nodes.synced().await;
        let this = self.clone();
        self.queue
            .run(1, stop, move |key| {
                let this = this.clone();
                async move { Outcome::of(this.reconcile(&key).await, "NetworkAddonsConfig", &key) }
            })
            .await;
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome> {
        let Some(held) = self.configs.get(key) else {
            if key.name() == NAME {
                self.metrics.observe(false, false);
            }
            return Ok(Outcome::Done);
        };
        let object = match serde_json::from_value::<NetworkAddonsConfig>(held.0.clone()) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(
                    object = %key, %error,
                    "the NetworkAddonsConfig does not fit its schema and is ignored; correct the field that the error names"
                );
                return Ok(Outcome::Done);
            }
        };
        if object.metadata.deletion_timestamp.is_some() {
            // The objects that it owns go with it.
            return Ok(Outcome::Done);
        }
        if let Some(failure) = check::ignored(key.name()) {
            self.report(key, &object, Some(failure)).await?;
            return Ok(Outcome::Done);
        }
        let failure = self.deploy(&object).await?.err();
        self.report(key, &object, failure).await?;
        Ok(Outcome::After(RECHECK))
    }

    /// Writes what the object asks for. The inner error is one that the object's status names.
    async fn deploy(
        &self,
        object: &NetworkAddonsConfig,
    ) -> Result<std::result::Result<(), (&'static str, String)>> {
        let problems = check::problems(&object.spec);
        if !problems.is_empty() {
            return Ok(Err(("FailedToValidate", problems.join("; "))));
        }
        let namespace = &self.settings.namespace;
        let kept = self.client.find::<Value>(CONFIG_MAPS, &Key::new(namespace, KEPT)).await?;
        let kept = kept.as_ref().and_then(|kept| kept["data"]["applied"].as_str()).unwrap_or("");
        let before: Option<NetworkAddonsSpec> = match kept {
            "" => None,
            text => match serde_json::from_str(text) {
                Ok(before) => Some(before),
                // Another range would be given out while addresses of the old one are in use.
                Err(error) => {
                    let text = format!(
                        "the ConfigMap {KEPT} cannot be read: {error}: correct its entry \"applied\", or restore the \
                         ConfigMap"
                    );
                    return Ok(Err(("FailedToGetPreviousConfigSpec", text)));
                }
            },
        };
        let refused = check::refused_changes(before.as_ref(), &object.spec);
        if !refused.is_empty() {
            return Ok(Err(("FailedToRender", refused.join("; "))));
        }
        let nodes = self.nodes.all();
        let facts = Facts::of(namespace, &self.version, nodes.iter().map(|(_, node)| node.as_ref()));
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let present = self.deployments.get(&Key::new(namespace, macpool::DEPLOYMENT));
        let present = present.map_or(1, |deployment| deployment.desired);
        let replicas = render::replicas(nodes.len(), facts.workers, present);
        let pool = render::pool(&object.spec, before.as_ref(), &uid, replicas);
        // The range is kept before an address of it is given out.
        let wanted = render::kept(&object.spec, before.as_ref(), pool.as_ref()).to_string();
        if kept != wanted {
            let map = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": KEPT, "namespace": namespace},
                "data": {"applied": wanted},
            });
            let key = Key::new(namespace, KEPT);
            self.client.apply::<IgnoredAny>(CONFIG_MAPS, &key, &map, MANAGER).await?;
            if before.is_some() {
                let (reason, text) = status::MODIFIED;
                self.events.publish(&reference(object), Type::Normal, reason, text);
            }
        }
        let owner = json!([{
            "apiVersion": api::addons::API_VERSION,
            "kind": "NetworkAddonsConfig",
            "name": NAME,
            "uid": uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }]);
        let mut objects = pool.map(|pool| macpool::objects(&self.settings, &pool)).unwrap_or_default();
        for one in &mut objects {
            one["metadata"]["ownerReferences"] = owner.clone();
            if let Err(error) = self.write(one).await {
                if matches!(error.kind(), Kind::Conflict) {
                    return Err(error);
                }
                let text = format!("{} {}: {}", one["kind"], one["metadata"]["name"], error.chain());
                return Ok(Err(("FailedToApply", text)));
            }
        }
        let is_wanted = |kind: &str| objects.iter().any(|one| one["kind"] == kind);
        for (kind, resource, key) in [
            ("MutatingWebhookConfiguration", WEBHOOKS, Key::cluster(macpool::WEBHOOK)),
            ("PodDisruptionBudget", BUDGETS, Key::new(namespace, macpool::DEPLOYMENT)),
            ("Deployment", DEPLOYMENTS, Key::new(namespace, macpool::DEPLOYMENT)),
            ("ConfigMap", CONFIG_MAPS, Key::new(namespace, macpool::RANGE)),
        ] {
            if !is_wanted(kind) && self.client.find::<IgnoredAny>(resource, &key).await?.is_some() {
                self.client.delete(resource, &key, &Delete::default()).await?;
            }
        }
        Ok(Ok(()))
    }

    /// Writes an object that is missing or was last written with another content; workloads and settings also when
    /// they were changed by others. Selectors of the webhook are the administrator's.
    async fn write(&self, object: &Value) -> Result<()> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let (resource, key) = match kind {
            "ConfigMap" => (CONFIG_MAPS, Key::new(&self.settings.namespace, name)),
            "Deployment" => (DEPLOYMENTS, Key::new(&self.settings.namespace, name)),
            "PodDisruptionBudget" => (BUDGETS, Key::new(&self.settings.namespace, name)),
            _ => (WEBHOOKS, Key::cluster(name)),
        };
        let digest = digest(object);
        if resource == WEBHOOKS {
            let live = self.client.find::<Value>(resource, &key).await?;
            if live.is_some_and(|live| live["metadata"]["annotations"][APPLIED] == digest.as_str()) {
                return Ok(());
            }
        }
        let mut wanted = object.clone();
        wanted["metadata"]["annotations"][APPLIED] = json!(digest);
        self.client.apply::<IgnoredAny>(resource, &key, &wanted, MANAGER).await.map(drop)
    }

    /// Whether Multus is installed, in any namespace.
    async fn has_multus(&self) -> Result<bool> {
        #[derive(Deserialize)]
        struct Named {
            metadata: ObjectMeta,
        }
        let mut found = false;
        let look = |one: Named| found |= one.metadata.name.contains(MULTUS);
        self.client.each(DAEMON_SETS, &Scope::all(), look).await?;
        Ok(found)
    }

    /// Writes the status if it differs.
    async fn report(
        &self,
        key: &Key,
        object: &NetworkAddonsConfig,
        failure: Option<(&'static str, String)>,
    ) -> Result<()> {
        let before = object.status.clone().unwrap_or_default();
        let multus = object.spec.multus.is_none() || self.has_multus().await?;
        let now = cluster::time::seconds();
        let all = self.deployments.all().into_iter().chain(self.daemon_sets.all());
        let components: Vec<Component> = all.map(|(_, component)| (*component).clone()).collect();
        let wanted = status::status(&Situation {
            spec: &object.spec,
            before: &before,
            components: &components,
            services: &self.endpoints.ready(),
            multus,
            version: &self.version,
            image: &self.settings.image,
            failure,
            now: &now,
        });
        if key.name() == NAME {
            let ready = status::is(&wanted, "Available", "True");
            self.metrics.observe(ready, object.spec.kube_mac_pool.is_some());
        }
        if wanted == before {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": object.metadata.uid}, "status": wanted});
        self.client.merge_patch::<IgnoredAny>(CONFIGS.sub("status"), key, &patch).await?;
        for (severity, reason, text) in status::events(&before, &wanted) {
            self.events.publish(&reference(object), severity, reason, &text);
        }
        Ok(())
    }
}

fn reference(object: &NetworkAddonsConfig) -> Reference {
    Reference {
        api_version: api::addons::API_VERSION.to_owned(),
        kind: "NetworkAddonsConfig".to_owned(),
        namespace: String::new(),
        name: object.metadata.name.clone(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
    }
}
