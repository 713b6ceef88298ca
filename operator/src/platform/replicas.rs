//! Replicas of the operator itself: two where two nodes take pods, one on a single node, unless the installation gives a
//! number; and the PodDisruptionBudget of more than one.

use cluster::{Apply, Cache, Client, Delete, Key, Outcome, Queue, Resource, Result, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

use super::apply::DEPLOYMENTS;
use super::hyperconverged::read::{NodeRead, NodeSeen};
use crate::install::{OPERATOR_DEPLOYMENT, Settings, operator_budget};

const NODES: Resource = Resource::cluster("", "v1", "nodes");
const BUDGETS: Resource = Resource::namespaced("policy", "v1", "poddisruptionbudgets");
const MANAGER: Apply<'_> = Apply { manager: "ferrovirt-operator", force: true };

/// Replicas that a cluster needs. A node with a taint may be in maintenance: `present`
/// stays then.
pub(super) fn wanted(nodes: usize, workers: usize, present: u32) -> u32 {
    match (nodes, workers) {
        (0 | 1, _) => 1,
        (_, 0 | 1) => present,
        _ => present.max(2),
    }
}

/// A Deployment, as it is read.
#[derive(Deserialize)]
struct Deployment {
    spec: DeploymentSpec,
}

#[derive(Deserialize)]
struct DeploymentSpec {
    replicas: Option<u32>,
}

/// The number of replicas that a Deployment asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestedReplicas(u32);

impl From<&Deployment> for RequestedReplicas {
    fn from(object: &Deployment) -> Self {
        Self(object.spec.replicas.unwrap_or(1))
    }
}

/// The controller of the operator's Deployment.
#[derive(Clone)]
pub(super) struct Controller {
    client: Client,
    settings: Settings,
    /// Whether the number is decided here.
    scale: bool,
    nodes: Cache<NodeSeen>,
    deployments: Cache<RequestedReplicas>,
    queue: Queue<Key>,
}

impl Controller {
    /// Starts to follow nodes and the Deployment.
    pub(super) fn start(client: &Client, settings: Settings, scale: bool) -> Self {
        let queue: Queue<Key> = Queue::new();
        let key = Key::new(&settings.namespace, OPERATOR_DEPLOYMENT);
        let (feed, one) = (queue.clone(), key.clone());
        let nodes = Cache::<NodeSeen>::builder().on_change(move |_| feed.add(one.clone())).start::<NodeRead>(
            client,
            NODES,
            &Scope::all(),
        );
        let feed = queue.clone();
        let only = Scope::all().namespace(&settings.namespace).name(OPERATOR_DEPLOYMENT);
        let deployments = Cache::<RequestedReplicas>::builder()
            .on_change(move |change| feed.add(change.key.clone()))
            .start::<Deployment>(client, DEPLOYMENTS, &only);
        Self { client: client.clone(), settings, scale, nodes, deployments, queue }
    }

    /// Works until `stop`; only the leader of the platform's controllers runs it.
    pub(super) async fn run(&self, stop: impl Future<Output = ()>) {
        self.nodes.synced().await;
        self.deployments.synced().await;
        let this = self.clone();
        self.queue
            .run(1, stop, move |key| {
                let this = this.clone();
                async move { Outcome::of(this.reconcile(&key).await, "the operator's Deployment", &key) }
            })
            .await;
    }

    async fn reconcile(&self, key: &Key) -> Result<Outcome> {
        // On a developer's machine there is none.
        let Some(asked) = self.deployments.get(key) else { return Ok(Outcome::Done) };
        let nodes = self.nodes.all();
        let workers = nodes.iter().filter(|(_, node)| node.schedulable).count();
        let replicas = if self.scale { wanted(nodes.len(), workers, asked.0) } else { asked.0 };
        if replicas != asked.0 {
            tracing::info!(replicas, before = asked.0, nodes = nodes.len(), "the operator is scaled");
            let patch = json!({"spec": {"replicas": replicas}});
            self.client.merge_patch::<IgnoredAny>(DEPLOYMENTS, key, &patch).await?;
        }
        let there = self.client.find::<IgnoredAny>(BUDGETS, key).await?.is_some();
        match (replicas > 1, there) {
            (true, false) => {
                let budget = operator_budget(&self.settings);
                self.client.apply::<IgnoredAny>(BUDGETS, key, &budget, MANAGER).await?;
            }
            // With one replica it would keep a node from being drained.
            (false, true) => drop(self.client.delete(BUDGETS, key, &Delete::default()).await?),
            (true, true) | (false, false) => {}
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nodes_get_two_replicas_and_a_drained_one_changes_nothing() {
        for (nodes, workers, present, replicas) in
            [(1, 1, 1, 1), (1, 1, 2, 1), (2, 2, 1, 2), (2, 1, 2, 2), (2, 1, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)]
        {
            assert_eq!(wanted(nodes, workers, present), replicas, "{nodes} {workers} {present}");
        }
    }
}
