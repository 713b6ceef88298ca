//! Hollow nodes: Node objects without a machine, with kubelets and agents that this process plays at the real API
//! server. A pod of such a node runs as soon as it is scheduled; its instance runs as soon as the operator hands it over,
//! and ends when it is deleted. Statuses are written as the node agent writes them, by the operator's account, which
//! admission lets write them.
//!
//! Not here: guests, and pods of DaemonSets, which select nodes by a label that hollow nodes lack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cluster::{Cache, Client, Config, Delete, Key, Outcome, Queue, Resource, Scope};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::platform::place::{INSTANCES, PLACE, PODS};

/// Label of hollow nodes, and the key of the taint that keeps other pods away.
pub(crate) const HOLLOW: &str = "ferrovirt.io/hollow";
const NODES: Resource = Resource::cluster("", "v1", "nodes");
const LEASES: Resource = Resource::namespaced("coordination.k8s.io", "v1", "leases");
const LEASES_OF_NODES: &str = "kube-node-lease";
/// Account that may write the status of instances, by admission.
const OPERATOR: &str = "system:serviceaccount:kubevirt-hyperconverged:kubevirt-controller";
/// How often kubelets renew their leases; agents report at every fourth time.
const RENEWAL: Duration = Duration::from_secs(15);
/// Writes at once.
const AT_ONCE: usize = 16;

/// Pods as a kubelet needs them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Pod {
    node: String,
    pending: bool,
    deleting: bool,
    containers: Vec<String>,
}

/// Instances as an agent needs them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Instance {
    pub(crate) phase: String,
    node: String,
    deleting: bool,
}

/// Anything as the API server writes it.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Written(Value);

fn text(object: &Value, path: &str) -> String {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl From<&Written> for Pod {
    fn from(Written(pod): &Written) -> Self {
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        Self {
            node: text(pod, "/spec/nodeName"),
            pending: pod["status"]["phase"] == "Pending",
            deleting: pod["metadata"]["deletionTimestamp"].is_string(),
            containers: containers.map(|one| text(one, "/name")).collect(),
        }
    }
}

impl From<&Written> for Instance {
    fn from(Written(instance): &Written) -> Self {
        Self {
            phase: text(instance, "/status/phase"),
            node: text(instance, "/status/nodeName"),
            deleting: instance["metadata"]["deletionTimestamp"].is_string(),
        }
    }
}

/// Hollow nodes. Dropped, they report no more; [`Self::remove`] deletes their objects.
pub(crate) struct Hollow {
    pub(crate) instances: Cache<Instance>,
    names: Vec<String>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Hollow {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Shared by the tasks.
struct Site {
    client: Client,
    kube: kube::Client,
    instances: Cache<Instance>,
    pods: Cache<Pod>,
    addresses: AtomicU32,
}

impl Hollow {
    /// Creates nodes, and plays their kubelets and agents from now on.
    pub(crate) fn start(count: usize) -> Self {
        let names: Vec<String> = (0..count).map(|number| format!("hollow-{number}")).collect();
        PLACE.cluster.run(async {
            let config = Config::load(Some(&PLACE.cluster.kubeconfig()), None).unwrap();
            let client = Client::new(&config, "hollow").unwrap();
            for name in &names {
                client.create::<IgnoredAny>(NODES, "", &node(name)).await.unwrap();
                let patch = json!({"status": status()});
                client
                    .merge_patch::<IgnoredAny>(NODES.sub("status"), &Key::cluster(name), &patch)
                    .await
                    .unwrap();
                client.create::<IgnoredAny>(LEASES, LEASES_OF_NODES, &lease(name)).await.unwrap();
            }
            let (pod_keys, instance_keys): (Queue<Key>, Queue<Key>) = (Queue::new(), Queue::new());
            let feed = pod_keys.clone();
            let pods = Cache::<Pod>::builder().on_change(move |change| feed.add(change.key.clone()));
            let pods = pods.start::<Written>(&client, PODS, &Scope::all());
            let feed = instance_keys.clone();
            let instances =
                Cache::<Instance>::builder().on_change(move |change| feed.add(change.key.clone()));
            let instances = instances.start::<Written>(&client, INSTANCES, &Scope::all());
            let site = Arc::new(Site {
                client,
                kube: PLACE.cluster.client(),
                instances: instances.clone(),
                pods,
                addresses: AtomicU32::new(0),
            });
            let (kubelets, agents, reporters) = (Arc::clone(&site), Arc::clone(&site), names.clone());
            let tasks = vec![
                tokio::spawn(async move {
                    let work = |key: Key| {
                        let site = Arc::clone(&kubelets);
                        async move { site.pod(&key).await }
                    };
                    pod_keys.run(AT_ONCE, std::future::pending(), work).await;
                }),
                tokio::spawn(async move {
                    let work = |key: Key| {
                        let site = Arc::clone(&agents);
                        async move { site.instance(&key).await }
                    };
                    instance_keys.run(AT_ONCE, std::future::pending(), work).await;
                }),
                tokio::spawn(async move { site.report(&reporters).await }),
            ];
            Self { instances, names, tasks }
        })
    }

    /// Selector and toleration that bring a VM to these nodes.
    pub(crate) fn schedule_here(vm: &mut Value) {
        let spec = &mut vm["spec"]["template"]["spec"];
        spec["nodeSelector"] = json!({HOLLOW: "true"});
        spec["tolerations"] = json!([{"key": HOLLOW, "operator": "Exists"}]);
    }

    /// Deletes the nodes.
    pub(crate) fn remove(self) {
        for name in &self.names {
            PLACE.delete(NODES, "", name);
            PLACE.delete(LEASES, LEASES_OF_NODES, name);
        }
    }
}

impl Site {
    /// A kubelet's part.
    async fn pod(&self, key: &Key) -> Outcome {
        let Some(pod) = self.pods.get(key).filter(|pod| pod.node.starts_with("hollow-")) else {
            return Outcome::Done;
        };
        if pod.deleting {
            return done(self.client.delete(PODS, key, &Delete::default().grace(0)).await);
        }
        if !pod.pending {
            return Outcome::Done;
        }
        let number = self.addresses.fetch_add(1, Ordering::Relaxed);
        let address = format!("10.250.{}.{}", number / 250 % 250, number % 250 + 1);
        let now = now();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let containers = pod.containers.iter().map(|name| {
            json!({"name": name, "ready": true, "started": true, "restartCount": 0, "image": "hollow",
                "imageID": "", "state": {"running": {"startedAt": now}}})
        });
        let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
        let status = json!({
            "phase": "Running",
            "conditions": conditions,
            "podIP": address, "podIPs": [{"ip": address}], "startTime": now,
            "containerStatuses": containers.collect::<Vec<_>>(),
        });
        let patch = json!({"status": status});
        done(self.client.merge_patch::<IgnoredAny>(PODS.sub("status"), key, &patch).await)
    }

    /// An agent's part: one write when the guest runs, one when it has ended.
    async fn instance(&self, key: &Key) -> Outcome {
        let Some(known) = self.instances.get(key).filter(|one| one.node.starts_with("hollow-")) else {
            return Outcome::Done;
        };
        let phase = match (known.phase.as_str(), known.deleting) {
            ("Scheduled", false) => "Running",
            ("Scheduled" | "Running", true) => "Succeeded",
            _ => return Outcome::Done,
        };
        let Ok(Some(object)) = self.client.find::<Value>(INSTANCES, key).await else { return Outcome::Retry };
        let patch = json!({
            "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
            "status": reported(&object, phase),
        });
        let path = format!(
            "/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{}",
            key.namespace(),
            key.name()
        );
        let request = hyper::Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .header("impersonate-user", OPERATOR);
        let request = request.body(patch.to_string().into_bytes()).unwrap();
        match self.kube.request::<Value>(request).await {
            Ok(_) => Outcome::Done,
            Err(_) => Outcome::Retry,
        }
    }

    /// Leases of kubelets and heartbeats of agents.
    async fn report(&self, names: &[String]) {
        for round in 1_u32.. {
            tokio::time::sleep(RENEWAL).await;
            let writes = stream::iter(names.to_vec()).map(|name| async move {
                let key = Key::new(LEASES_OF_NODES, &name);
                let renewed = json!({"spec": {"renewTime": now_micro()}});
                drop(self.client.merge_patch::<IgnoredAny>(LEASES, &key, &renewed).await);
                if round.is_multiple_of(4) {
                    let beat = json!({"metadata": {"annotations": {"kubevirt.io/heartbeat": now()}}});
                    drop(self.client.merge_patch::<IgnoredAny>(NODES, &Key::cluster(&name), &beat).await);
                }
            });
            writes.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
        }
    }
}

fn done<T>(result: cluster::Result<T>) -> Outcome {
    match result {
        Err(error) if !error.is_not_found() => Outcome::Retry,
        Ok(_) | Err(_) => Outcome::Done,
    }
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// As leases write it.
fn now_micro() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", HOLLOW: "true",
                "kubevirt.io/schedulable": "true", "cpu-vendor.node.kubevirt.io/Intel": "true",
                "machine-type.node.kubevirt.io/q35": "true",
            },
            "annotations": {"kubevirt.io/heartbeat": now()},
        },
        "spec": {"taints": [{"key": HOLLOW, "effect": "NoSchedule"}]},
    })
}

fn status() -> Value {
    let resources = json!({
        "cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "1Ti",
        "devices.kubevirt.io/kvm": "1k", "devices.kubevirt.io/tun": "1k", "devices.kubevirt.io/vhost-net": "1k",
    });
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "hollow",
        "lastHeartbeatTime": now(), "lastTransitionTime": now()});
    json!({"capacity": resources, "allocatable": resources, "conditions": [ready]})
}

fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now_micro()},
    })
}

/// The status of an instance as the agent writes it when its guest enters a phase.
fn reported(object: &Value, phase: &str) -> Value {
    let before = &object["status"];
    let now = now();
    let mut times = before["phaseTransitionTimestamps"].as_array().cloned().unwrap_or_default();
    times.push(json!({"phase": phase, "phaseTransitionTimestamp": now}));
    if phase != "Running" {
        return json!({"phase": phase, "phaseTransitionTimestamps": times});
    }
    let new = [
        ("Ready", "True", ""),
        ("LiveMigratable", "False", "MigrationNotSupported"),
        ("StorageLiveMigratable", "False", "NotMigratable"),
        ("SoftwareEmulation", "False", ""),
    ];
    let mut conditions = before["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|one| !new.iter().any(|(kind, ..)| one["type"] == *kind));
    conditions.extend(new.map(|(kind, status, reason)| {
        json!({"type": kind, "status": status, "reason": reason, "lastProbeTime": null, "lastTransitionTime": now})
    }));
    let memory = object["spec"]["domain"]["memory"]["guest"].clone();
    json!({
        "phase": phase,
        "phaseTransitionTimestamps": times,
        "conditions": conditions,
        "runtimeUser": 107,
        "machine": {"type": "pc-q35-7.2"},
        "currentCPUTopology": {"cores": 1, "sockets": 1, "threads": 1},
        "memory": {"guestAtBoot": memory, "guestCurrent": memory, "guestRequested": memory},
        "interfaces": [{"name": "default", "infoSource": "domain", "ipAddress": "10.0.2.2",
            "ipAddresses": ["10.0.2.2"], "mac": "02:00:00:00:00:01", "queueCount": 1, "linkState": "up"}],
    })
}
