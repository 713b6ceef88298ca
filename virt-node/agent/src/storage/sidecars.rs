//! Whether stock csi-provisioner serves the claims of this node: then the agent leaves them alone. The driver's DaemonSet
//! decides which of both works, so a cluster is switched by changing it. Both find each other's volumes and PVs by name:
//! while a pod is replaced, no volume is made twice.

use std::time::Duration;

use cluster::{Cache, Client, Resource, Scope};
use serde::Deserialize;

use super::Settings;

const PODS: Resource = Resource::namespaced("", "v1", "pods");
/// The container that makes volumes.
const PROVISIONER: &str = "csi-provisioner";
/// The container that makes snapshots.
const SNAPSHOTTER: &str = "csi-snapshotter";
/// Time between two looks at the pods that the watch brought.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A pod, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Pod {
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Spec {
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

/// A pod that may make volumes.
#[derive(Clone, Debug, PartialEq)]
struct ObservedPod {
    provisions: bool,
    snapshots: bool,
}

impl From<&Pod> for ObservedPod {
    fn from(pod: &Pod) -> Self {
        let ended = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        let has = |name: &str| !ended && pod.spec.containers.iter().any(|container| container.name == name);
        Self { provisions: has(PROVISIONER), snapshots: has(SNAPSHOTTER) }
    }
}

/// The driver's pods of the node.
#[derive(Clone)]
pub(super) struct Sidecars(Cache<ObservedPod>);

impl Sidecars {
    /// Follows the driver's pods of the node.
    pub(super) fn watch(client: &Client, settings: &Settings) -> Self {
        let scope = Scope::all()
            .namespace(&settings.namespace)
            .labels("k8s-app=hostpath-provisioner")
            .fields(&format!("spec.nodeName={}", settings.node));
        Self(Cache::<ObservedPod>::builder().start::<Pod>(client, PODS, &scope))
    }

    fn provision(&self) -> bool {
        self.0.all().iter().any(|(_, pod)| pod.provisions)
    }

    /// Whether stock csi-snapshotter makes the snapshots of the node.
    pub(super) fn snapshot(&self) -> bool {
        self.0.all().iter().any(|(_, pod)| pod.snapshots)
    }

    /// Waits until no pod of the node has the sidecar.
    pub(super) async fn wait_until_absent(&self) {
        self.0.synced().await;
        while self.provision() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a pod of the node has the sidecar.
    pub(super) async fn wait_until_present(&self) {
        while !self.provision() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_with_the_sidecar_provisions_until_it_ends() {
        for (containers, phase, expected) in [
            (json!([{"name": "hostpath-provisioner"}]), "Running", false),
            (json!([{"name": "hostpath-provisioner"}, {"name": "csi-provisioner"}]), "Running", true),
            (json!([{"name": "csi-provisioner"}]), "Pending", true),
            (json!([{"name": "csi-provisioner"}]), "Failed", false),
        ] {
            let pod = json!({"spec": {"containers": containers}, "status": {"phase": phase}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(ObservedPod::from(&pod).provisions, expected, "{pod:?}");
        }
    }
}
