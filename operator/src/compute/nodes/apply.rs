//! Marks nodes with a silent agent, and has the instances there reconciled.

use std::time::Duration;

use cluster::{Key, Outcome};
use serde::de::IgnoredAny;
use serde_json::json;

use super::plan::{Step, plan};
use crate::compute::caches::NODES;
use crate::compute::context::Context;
use crate::compute::event::Event;

/// Reconciles one node.
pub(in crate::compute) async fn reconcile(context: &Context, key: &Key) -> Outcome {
    let Some(node) = context.caches.nodes.get(key) else { return Outcome::Done };
    let now = Context::now();
    match plan(&node, now) {
        None => Outcome::Done,
        Some(Step::Wait(time)) => Outcome::After(Duration::from_secs(time.saturating_sub(now).max(1))),
        Some(Step::MarkUnresponsive) => {
            let meta = &node.metadata;
            let labels = json!({"kubevirt.io/schedulable": "false"});
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
            Outcome::Done
        }
    }
}
