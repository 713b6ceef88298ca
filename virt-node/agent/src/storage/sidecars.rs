//! Whether stock csi-provisioner serves the claims of this node, and stock csi-snapshotter its snapshots: the agent leaves
//! alone what they serve. The driver's DaemonSet decides which of both works, so a cluster is switched by changing it. Both find each other's volumes and PVs by name:
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

/// The work that stock sidecars do on the node; the agent does the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Duties {
    /// csi-provisioner serves claims and PVs.
    pub(super) volumes: bool,
    /// csi-snapshotter serves contents of snapshots and groups.
    pub(super) snapshots: bool,
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

    /// Waits until the pods are known.
    pub(super) async fn synced(&self) {
        self.0.synced().await;
    }

    /// What the sidecars of the node do.
    pub(super) fn duties(&self) -> Duties {
        let pods = self.0.all();
        Duties {
            volumes: pods.iter().any(|(_, pod)| pod.provisions),
            snapshots: pods.iter().any(|(_, pod)| pod.snapshots),
        }
    }

    fn provision(&self) -> bool {
        self.duties().volumes
    }

    /// Waits until no pod of the node has stock csi-provisioner.
    pub(super) async fn wait_until_absent(&self) {
        while self.provision() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a pod of the node has stock csi-provisioner.
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
    fn a_pod_with_a_sidecar_does_its_work_until_it_ends() {
        let driver = json!({"name": "hostpath-provisioner"});
        let (provisioner, snapshotter) = (json!({"name": PROVISIONER}), json!({"name": SNAPSHOTTER}));
        for (containers, phase, expected) in [
            (json!([driver]), "Running", (false, false)),
            (json!([driver, provisioner]), "Running", (true, false)),
            (json!([driver, provisioner, snapshotter]), "Running", (true, true)),
            (json!([provisioner]), "Pending", (true, false)),
            (json!([provisioner, snapshotter]), "Failed", (false, false)),
        ] {
            let pod = json!({"spec": {"containers": containers}, "status": {"phase": phase}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let observed = ObservedPod::from(&pod);
            assert_eq!((observed.provisions, observed.snapshots), expected, "{pod:?}");
        }
    }
}
