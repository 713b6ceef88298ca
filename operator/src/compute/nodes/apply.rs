//! Marks nodes with a silent agent, and has the instances there reconciled.

use std::time::Duration;

use api::nodes::SCHEDULABLE;
use cluster::{Key, Outcome, Scope};
use serde::de::IgnoredAny;
use serde_json::json;

use super::plan::{self, Step};
use crate::compute::caches::{NODES, PODS};
use crate::compute::context::Context;
use crate::compute::event::Event;
use crate::view::Node;

/// Selects the agents' pods.
const AGENTS: &str = "kubevirt.io=virt-handler";

/// Reconciles one node.
pub(in crate::compute) async fn reconcile(context: &Context, key: &Key) -> Outcome {
    let Some(node) = context.caches.nodes.get(key) else { return Outcome::Done };
    let now = Context::now();
    match plan::plan(&node, now) {
        None => Outcome::Done,
        Some(Step::Wait(time)) => Outcome::After(Duration::from_secs(time.saturating_sub(now).max(1))),
        Some(Step::MarkUnresponsive) => {
            let meta = &node.metadata;
            let labels = json!({SCHEDULABLE: "false"});
            let patch = json!({"metadata": {"resourceVersion": meta.resource_version, "labels": labels}});
            if let Err(error) = context.client.merge_patch::<IgnoredAny>(NODES, key, &patch).await {
                tracing::warn!(node = %key, error = error.chain(), "cannot mark a node without heartbeat unschedulable; retrying");
                return Outcome::Retry;
            }
            tracing::warn!(node = %key, "virt-handler sends no heartbeat; node marked unschedulable");
            let message = "virt-handler is not responsive, marking node as unresponsive".to_owned();
            context.record("v1", "Node", meta, &Event::warning("NodeUnresponsive", message));
            for instance in context.caches.on_node(key.name()) {
                context.queues.instances.add(instance);
            }
            find_orphans(context, key, &node).await
        }
        Some(Step::FindOrphans) => find_orphans(context, key, &node).await,
    }
}

/// Records an event if instances are on a node without an agent.
async fn find_orphans(context: &Context, key: &Key, node: &Node) -> Outcome {
    if context.caches.on_node(key.name()).is_empty() {
        return Outcome::Done;
    }
    let scope = Scope::all().namespace(&context.namespace).labels(AGENTS);
    let scope = scope.fields(&format!("spec.nodeName={}", key.name()));
    match context.client.list::<IgnoredAny>(PODS, &scope).await {
        Ok(agents) if agents.is_empty() => {
            let event = Event::warning("NodeUnresponsive", plan::ORPHANS.to_owned());
            context.record("v1", "Node", &node.metadata, &event);
            Outcome::Done
        }
        Ok(_) => Outcome::Done,
        Err(error) => {
            tracing::warn!(node = %key, error = error.chain(), "cannot list the virt-handler pods of a node; retrying");
            Outcome::Retry
        }
    }
}
