//! Writes the Node object: labels when they change, and the heartbeat in its rhythm.

use std::collections::BTreeMap;

use cluster::{Client, Key, Resource};
use serde::Deserialize;
use tokio::sync::watch;

use super::plan::{self, Facts};
use crate::error::{Error, Kind, Result};

const NODES: Resource = Resource::cluster("", "v1", "nodes");

#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// The node's labels.
///
/// # Errors
/// The API server refuses or is not reached.
pub(crate) async fn labels(client: &Client, node: &str) -> Result<BTreeMap<String, String>> {
    let failed = |error| Error::with(Kind::Cluster, format!("cannot read the labels of node {node}"), error);
    let found: Node = client.get(NODES, &Key::cluster(node)).await.map_err(failed)?;
    Ok(found.metadata.labels)
}

/// Makes the node's labels true now and notes a heartbeat.
///
/// # Errors
/// The API server refuses or is not reached.
pub(crate) async fn once(client: &Client, node: &str, facts: &Facts) -> Result<()> {
    let failed = |error| Error::with(Kind::Cluster, format!("cannot write the labels of node {node}"), error);
    let patch = plan::patch(facts, &labels(client, node).await?, &virt::time::text(virt::time::now()));
    let key = Key::cluster(node);
    let _: serde::de::IgnoredAny = client.merge_patch(NODES, &key, &patch).await.map_err(failed)?;
    Ok(())
}

/// Reports as long as the process runs: at every change of `facts`, and as a heartbeat.
pub(crate) async fn keep(client: Client, node: String, mut facts: watch::Receiver<Facts>) {
    loop {
        let now = facts.borrow_and_update().clone();
        let pause = match once(&client, &node, &now).await {
            Ok(()) => plan::next_heartbeat(random()),
            Err(error) => {
                tracing::warn!(error = error.chain(), "cannot write the node's heartbeat; retrying");
                std::time::Duration::from_secs(2)
            }
        };
        tokio::select! {
            changed = facts.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// A number in `0..1`, so that the nodes of a cluster do not write at once.
fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes all nodes keep the shortest rhythm.
    _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u32::from_ne_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}
