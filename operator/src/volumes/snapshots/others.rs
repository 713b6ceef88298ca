//! Whether another snapshot controller works in the cluster: then the operator does not. It is found by its Deployment, and
//! by the lease of its leader, in whatever namespace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::{Cache, Client, Key, Resource, Scope};
use serde_json::Value;
use tokio::sync::Notify;

const DEPLOYMENTS: Resource = Resource::namespaced("apps", "v1", "deployments");
const LEASES: Resource = Resource::namespaced("coordination.k8s.io", "v1", "leases");
/// Name of the stock controller's lease.
const LEASE: &str = "snapshot-controller-leader";
/// How often a lease that is not renewed is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// A Deployment: whether it runs a snapshot controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Deployment {
    controls: bool,
}

impl From<&Value> for Deployment {
    fn from(object: &Value) -> Self {
        let spec = &object["spec"];
        let containers = spec["template"]["spec"]["containers"].as_array().into_iter().flatten();
        let mut programs = containers.into_iter().flat_map(|one| {
            let image = one["image"].as_str().unwrap_or_default();
            let image = image.split('@').next().unwrap_or_default();
            let image = image.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default();
            [one["name"].as_str().unwrap_or_default(), image]
        });
        let runs = spec["replicas"].as_u64() != Some(0) && object["metadata"]["deletionTimestamp"].is_null();
        Self { controls: runs && programs.any(|program| program.ends_with("snapshot-controller")) }
    }
}

/// A lease: its holder, and how long each renewal holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaseState {
    held: bool,
    renewed: String,
    lives: Duration,
}

impl From<&Value> for LeaseState {
    fn from(object: &Value) -> Self {
        let spec = &object["spec"];
        let text = |name: &str| spec[name].as_str().unwrap_or_default().to_owned();
        Self {
            held: !text("holderIdentity").is_empty(),
            renewed: text("renewTime"),
            lives: Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or(15)),
        }
    }
}

/// Other snapshot controllers.
pub(super) struct Others {
    deployments: Cache<Deployment>,
    leases: Cache<LeaseState>,
    /// When each lease changed, by our clock: clocks of two machines are not compared.
    renewed: Arc<Mutex<HashMap<Key, Instant>>>,
    changed: Arc<Notify>,
}

impl Others {
    /// Follows them.
    pub(super) async fn follow(client: &Client) -> Self {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        let deployments = Cache::<Deployment>::builder()
            .on_change(move |_| wake.notify_one())
            .start::<Value>(client, DEPLOYMENTS, &Scope::all());
        let renewed = Arc::<Mutex<HashMap<Key, Instant>>>::default();
        let (wake, noted) = (Arc::clone(&changed), Arc::clone(&renewed));
        let leases = Cache::<LeaseState>::builder()
            .on_change(move |change| {
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                match change.after {
                    Some(_) => drop(noted.insert(change.key.clone(), Instant::now())),
                    None => drop(noted.remove(change.key)),
                }
                wake.notify_one();
            })
            .start::<Value>(client, LEASES, &Scope::all().name(LEASE));
        deployments.synced().await;
        leases.synced().await;
        Self { deployments, leases, renewed, changed }
    }

    /// The one that works, if there is one.
    fn present(&self) -> Option<String> {
        let deployment = self.deployments.all().into_iter().find(|(_, one)| one.controls);
        if let Some((key, _)) = deployment {
            return Some(format!("Deployment {key}"));
        }
        let renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = |key: &Key, one: &LeaseState| {
            one.held && renewed.get(key).is_some_and(|at| at.elapsed() < one.lives.saturating_mul(2))
        };
        let lease = self.leases.all().into_iter().find(|(key, one)| lives(key, one));
        lease.map(|(key, _)| format!("Lease {key}"))
    }

    /// Returns when another one works, with its name; or when none does.
    async fn until(&self, works: bool) -> Option<String> {
        loop {
            let present = self.present();
            if present.is_some() == works {
                return present;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Returns when no other one works.
    pub(super) async fn absent(&self) {
        if let Some(other) = self.present() {
            tracing::info!(other, "another snapshot controller works in this cluster; the operator's waits");
            self.until(false).await;
        }
    }

    /// Returns when another one works.
    pub(super) async fn appeared(&self) {
        let other = self.until(true).await.unwrap_or_default();
        tracing::info!(other, "another snapshot controller has come; the operator's ends");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_snapshot_controller_is_known_by_its_container() {
        let deployment = |name: &str, image: &str, replicas: u64| {
            let containers = json!([{"name": name, "image": image}]);
            let object =
                json!({"spec": {"replicas": replicas, "template": {"spec": {"containers": containers}}}});
            Deployment::from(&object).controls
        };
        for (name, image, replicas, expected) in [
            ("snapshot-controller", "mirror/x:1", 1, true),
            ("main", "registry.k8s.io/sig-storage/snapshot-controller:v8.6.0", 1, true),
            ("main", "quay.io/openshift/csi-snapshot-controller@sha256:00", 2, true),
            ("main", "localhost:5000/snapshot-controller", 1, true),
            ("snapshot-controller", "x", 0, false),
            ("operator", "localhost/ferrovirt:operator", 1, false),
            ("csi-snapshotter", "registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0", 1, false),
            ("main", "snapshot-controller.example/other:1", 1, false),
        ] {
            assert_eq!(deployment(name, image, replicas), expected, "{name} {image} {replicas}");
        }
        let lease = LeaseState::from(
            &json!({"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "t"}}),
        );
        assert!(lease.held && lease.lives == Duration::from_secs(15));
        assert!(!LeaseState::from(&json!({"spec": {"holderIdentity": ""}})).held, "a released lease");
    }
}
