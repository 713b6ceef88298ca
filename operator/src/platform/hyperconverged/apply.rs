//! Follows `HyperConverged`, its children and the nodes, and carries out the plan.

use std::sync::Arc;
use std::time::Duration;

use api::hyperconverged::HyperConvergedStatus;
use api::hyperconverged::v1::HyperConverged;
use cluster::event::{Reference, Type};
use cluster::{
    Cache, Client, Delete, Events, JsonPatch, Key, Kind, Outcome, Propagation, Queue, Resource, Result, Scope,
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::input::{plain, value};
use super::metrics::Metrics;
use super::optional::Optional;
use super::plan::{self, FINALIZER, Removal, Step};
use super::read::{Facts, NodeRead, NodeSeen, WholeObject};
use super::related::Related;
use super::render::{self, Child};
use super::status::{self, ChildState, Situation};

const HYPER_CONVERGED: Resource = Resource::namespaced("hco.kubevirt.io", "v1", "hyperconvergeds");
const NODES: Resource = Resource::cluster("", "v1", "nodes");
/// Time until children that are being deleted are looked at again, in case a change was missed.
const RECHECK: Duration = Duration::from_secs(5);

fn resource(child: Child) -> Resource {
    match child {
        Child::KubeVirt => Resource::namespaced("kubevirt.io", "v1", "kubevirts"),
        Child::Cdi => Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdis"),
        Child::Network => {
            Resource::cluster("networkaddonsoperator.network.kubevirt.io", "v1", "networkaddonsconfigs")
        }
        Child::Ssp => Resource::namespaced("ssp.kubevirt.io", "v1beta3", "ssps"),
    }
}

/// The controller of `HyperConverged`.
#[derive(Clone)]
pub struct Controller {
    client: Client,
    events: Events,
    namespace: String,
    version: String,
    emulation: bool,
    runbooks: Option<String>,
    owners: Cache<WholeObject>,
    children: [Cache<WholeObject>; 4],
    nodes: Cache<NodeSeen>,
    metrics: Arc<Metrics>,
    optional: Optional,
    related: Related,
    queue: Queue<Key>,
}

impl Controller {
    /// Starts to follow the objects.
    pub fn start(
        client: &Client,
        events: &Events,
        namespace: &str,
        version: &str,
        emulation: bool,
        runbooks: Option<&str>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let queue: Queue<Key> = Queue::new();
        let own = Key::new(namespace, api::hyperconverged::NAME);
        let feed = queue.clone();
        let owners = Cache::<WholeObject>::builder()
            .on_change(move |change| feed.add(change.key.clone()))
            .start::<Value>(client, HYPER_CONVERGED, &Scope::all());
        let children = Child::ALL.map(|child| {
            let (feed, own) = (queue.clone(), own.clone());
            let scope = if child.namespaced() { Scope::all().namespace(namespace) } else { Scope::all() };
            Cache::<WholeObject>::builder()
                .on_change(move |change| {
                    if change.key.name() == child.name() {
                        feed.add(own.clone());
                    }
                })
                .start::<Value>(client, resource(child), &scope)
        });
        let feed = queue.clone();
        let nodes = Cache::<NodeSeen>::builder().on_change(move |_| feed.add(own.clone())).start::<NodeRead>(
            client,
            NODES,
            &Scope::all(),
        );
        Self {
            client: client.clone(),
            events: events.clone(),
            namespace: namespace.to_owned(),
            version: version.to_owned(),
            emulation,
            runbooks: runbooks.map(str::to_owned),
            owners,
            children,
            nodes,
            metrics,
            optional: Optional::new(client),
            related: Related::new(client, namespace),
            queue,
        }
    }

    /// Works until `stop`; only the leader of the platform's controllers runs it.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        self.owners.synced().await;
        for cache in &self.children {
            cache.synced().await;
        }
        self.nodes.synced().await;
        let this = self.clone();
        self.queue
            .run(1, stop, move |key| {
                let this = this.clone();
                async move { Outcome::of(this.reconcile(&key).await, "HyperConverged", &key) }
            })
            .await;
    }

    fn key(&self, child: Child) -> Key {
        if child.namespaced() { Key::new(&self.namespace, child.name()) } else { Key::cluster(child.name()) }
    }

    fn live(&self, child: Child) -> Option<Value> {
        let index = Child::ALL.iter().position(|one| *one == child)?;
        self.children.get(index)?.get(&self.key(child)).map(|held| held.0.clone())
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome> {
        let own = key.namespace() == self.namespace && key.name() == api::hyperconverged::NAME;
        let Some(held) = self.owners.get(key) else {
            if own {
                self.metrics.observe(None);
            }
            return Ok(Outcome::Done);
        };
        let now = cluster::time::seconds();
        let owner = match serde_json::from_value::<HyperConverged>(held.0.clone()) {
            Ok(owner) => owner,
            Err(error) => {
                tracing::error!(
                    object = %key, %error,
                    "the HyperConverged does not fit its schema and is ignored; correct the field that the error names"
                );
                return Ok(Outcome::Done);
            }
        };
        if !own {
            let wanted = status::misplaced(&self.namespace, &now, &owner);
            self.report(key, &held.0, &wanted).await?;
            return Ok(Outcome::Done);
        }
        let finalizers = &owner.metadata.finalizers;
        let held_back = finalizers.iter().any(|one| one == FINALIZER);
        if owner.metadata.deletion_timestamp.is_some() {
            return if held_back { self.remove(key, &owner).await } else { Ok(Outcome::Done) };
        }
        if !held_back {
            let mut wanted = finalizers.clone();
            wanted.push(FINALIZER.to_owned());
            self.set_finalizers(key, &owner, wanted).await?;
            return Ok(Outcome::Done);
        }
        let nodes = self.nodes.all();
        let mut facts =
            Facts::of(&self.namespace, &self.version, nodes.iter().map(|(_, node)| node.as_ref()));
        (facts.emulation, facts.runbooks) = (self.emulation, self.runbooks.clone());
        let (children, failure) = self.write_children(&owner, &facts).await?;
        let sources = status::sources(render::boot_sources(&owner, &facts));
        let mut related = self.related.find().await?;
        let optional = self.optional.write(&render::optional(&owner, &facts)).await;
        related.extend(optional.iter().flatten().cloned());
        let situation = Situation {
            owner: &owner,
            facts: &facts,
            children: &children,
            sources,
            related,
            failure,
            now: &now,
        };
        let wanted = status::status(&situation);
        self.metrics.observe(Some((&owner, &wanted)));
        self.report(key, &held.0, &wanted).await?;
        self.report_ssp(&facts, &now).await?;
        optional?;
        Ok(Outcome::Done)
    }

    /// Writes the children that differ. Gives the children as they were before, and why one could not be written.
    async fn write_children(
        &self,
        owner: &HyperConverged,
        facts: &Facts,
    ) -> Result<(Vec<ChildState>, Option<(&'static str, String)>)> {
        let mut children = Vec::new();
        let mut failures = Vec::new();
        for child in Child::ALL {
            let live = self.live(child);
            let state = ChildState { child, object: live.clone() };
            let wanted = match render::child(child, owner, facts) {
                Ok(wanted) => wanted,
                Err((annotation, error)) => {
                    failures.push(format!("annotation {annotation} {error}"));
                    children.push(state);
                    continue;
                }
            };
            let known = status::lists(owner.status.as_ref(), child);
            match self.write_child(child, owner, plan::step(&wanted, live.as_ref(), known)).await {
                Ok(()) => children.push(state),
                Err(error) if child == Child::Network && matches!(error.kind(), Kind::NotFound) => {
                    tracing::debug!("the kind NetworkAddonsConfig does not exist in this cluster");
                }
                Err(error) if matches!(error.kind(), Kind::Conflict) => return Err(error),
                Err(error) => {
                    failures.push(format!("{} cannot be written: {}", child.kind(), error.chain()));
                    children.push(state);
                }
            }
        }
        let failure = (!failures.is_empty()).then(|| ("ReconcileFailed", failures.join("; ")));
        Ok((children, failure))
    }

    async fn write_child(&self, child: Child, owner: &HyperConverged, step: Step) -> Result<()> {
        match step {
            Step::Keep | Step::Wait => {}
            Step::Create { object, again } => {
                let namespace = if child.namespaced() { self.namespace.as_str() } else { "" };
                match self.client.create::<IgnoredAny>(resource(child), namespace, &object).await {
                    // Made before, and not seen yet.
                    Err(error) if error.is_already_exists() => return Ok(()),
                    created => drop(created?),
                }
                let text = format!("Created {} {}", child.kind(), child.name());
                self.events.publish(&self.reference(owner), Type::Normal, "Created", &text);
                if again {
                    let text = format!("Overwritten {} {}: it had been deleted", child.kind(), child.name());
                    self.events.publish(&self.reference(owner), Type::Warning, "Overwritten", &text);
                    self.metrics.modified(child.kind(), child.name());
                }
            }
            Step::Write { object, drift } => {
                // The object carries the version that was read: a conflict starts over.
                self.client.replace::<IgnoredAny>(resource(child), &self.key(child), &object).await?;
                if drift {
                    let text = format!("Overwritten {} {}", child.kind(), child.name());
                    self.events.publish(&self.reference(owner), Type::Warning, "Overwritten", &text);
                    self.metrics.modified(child.kind(), child.name());
                }
            }
        }
        Ok(())
    }

    fn reference(&self, owner: &HyperConverged) -> Reference {
        Reference {
            api_version: api::hyperconverged::API_VERSION.to_owned(),
            kind: "HyperConverged".to_owned(),
            namespace: self.namespace.clone(),
            name: owner.metadata.name.clone(),
            uid: owner.metadata.uid.clone().unwrap_or_default(),
        }
    }

    async fn remove(&self, key: &Key, owner: &HyperConverged) -> Result<Outcome> {
        let state = |child: Child| {
            let live = self.live(child)?;
            // Foreign objects stay.
            let ours = live["metadata"]["labels"][render::APP.0] == render::APP.1;
            ours.then(|| live["metadata"]["deletionTimestamp"].is_string())
        };
        match plan::removal(state) {
            Removal::Delete(children) => {
                for child in children {
                    let options = Delete::default().propagation(Propagation::Foreground);
                    if self.client.delete(resource(child), &self.key(child), &options).await? {
                        let text = format!("Removed {} {}", child.name(), child.kind());
                        self.events.publish(&self.reference(owner), Type::Normal, "Killing", &text);
                    }
                }
                Ok(Outcome::After(RECHECK))
            }
            Removal::Wait(_) => Ok(Outcome::After(RECHECK)),
            Removal::Release => {
                self.optional.remove().await?;
                let kept =
                    owner.metadata.finalizers.iter().filter(|one| *one != FINALIZER).cloned().collect();
                self.set_finalizers(key, owner, kept).await?;
                self.metrics.observe(None);
                Ok(Outcome::Done)
            }
        }
    }

    async fn set_finalizers(&self, key: &Key, owner: &HyperConverged, wanted: Vec<String>) -> Result<()> {
        let version = owner.metadata.resource_version.as_deref();
        let patch =
            JsonPatch::new().test("/metadata/resourceVersion", version).add("/metadata/finalizers", wanted);
        self.client.json_patch::<IgnoredAny>(HYPER_CONVERGED, key, &patch).await.map(drop)
    }

    /// Writes the status if it differs.
    async fn report(&self, key: &Key, live: &Value, wanted: &HyperConvergedStatus) -> Result<()> {
        let wanted = value(wanted);
        if plain(&live["status"]) == plain(&wanted) {
            return Ok(());
        }
        let mut object = live.clone();
        object["status"] = wanted;
        self.client.replace::<IgnoredAny>(HYPER_CONVERGED.sub("status"), key, &object).await.map(drop)
    }

    /// SSP has no controller of its own yet: its status reports that nothing is deployed for it.
    async fn report_ssp(&self, facts: &Facts, now: &str) -> Result<()> {
        let Some(live) = self.live(Child::Ssp) else { return Ok(()) };
        if live["metadata"]["deletionTimestamp"].is_string() {
            return Ok(());
        }
        let before = &live["status"];
        let condition = |kind: &str, value: &str| {
            let same = before["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == kind);
            let time = same.and_then(|one| one["lastTransitionTime"].as_str()).unwrap_or(now);
            json!({"type": kind, "status": value, "reason": kind, "lastTransitionTime": time,
                "message": "Boot sources and templates are not implemented; nothing is deployed"})
        };
        let wanted = json!({
            "phase": "Deployed",
            "conditions": [condition("Available", "True"), condition("Progressing", "False"), condition("Degraded", "False")],
            "observedGeneration": live["metadata"]["generation"],
            "observedVersion": facts.version,
            "operatorVersion": facts.version,
            "targetVersion": facts.version,
        });
        if plain(before) == plain(&wanted) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": live["metadata"]["uid"]}, "status": wanted});
        self.client
            .merge_patch::<IgnoredAny>(resource(Child::Ssp).sub("status"), &self.key(Child::Ssp), &patch)
            .await
            .map(drop)
    }
}
