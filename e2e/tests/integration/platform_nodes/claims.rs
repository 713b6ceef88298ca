//! Claims of two nodes, made and deleted while operator, agents and drivers are killed and the work changes between agents
//! and stock sidecars: each claim is bound once, and the pools of both nodes hold the volumes that the API server has. Snapshots
//! come and go as well, claims go while their volumes are made, and the scheduler avoids a node without room.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cluster::Resource;
use e2e::Second;
use e2e::storage::{DRIVER, POOL};
use places::guest::Dice;
use serde_json::{Value, json};

use crate::platform::machines;
use crate::platform::place::{CLAIMS, CONTENTS, PLACE, PODS, SNAPSHOT_CLASSES, SNAPSHOTS};
use crate::platform_nodes::kills::Program;
use crate::platform_nodes::pools;

const NAMESPACE: &str = "claims";
const CLASSES: Resource = Resource::cluster("storage.k8s.io", "v1", "storageclasses");
const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");
const CAPACITIES: Resource = Resource::namespaced("storage.k8s.io", "v1", "csistoragecapacities");
/// The class whose volumes are on the node of their first pod.
const LATE: &str = "hostpath-csi";
const NODES: [&str; 2] = ["node1", "node2"];
const KILLED: [Program; 3] = [Program::Operator, Program::Agent, Program::Driver];

/// Volumes of each node.
type Volumes = BTreeMap<&'static str, BTreeSet<String>>;

/// How many claims are made, and in how many steps they are made, and half of them deleted.
#[derive(Clone, Copy)]
struct Counts {
    claims: usize,
    steps: usize,
}

impl Counts {
    fn of_this_run() -> Self {
        match std::env::var_os("FERROVIRT_SOAK") {
            Some(_) => Self { claims: 300, steps: 30 },
            None => Self { claims: 24, steps: 6 },
        }
    }

    /// The claims of a step.
    fn of(self, step: usize) -> impl Iterator<Item = usize> {
        (0..self.claims).filter(move |claim| claim % self.steps == step)
    }
}

/// Whether a claim is deleted: every other pair is, of both nodes.
fn is_deleted(claim: usize) -> bool {
    (claim / 2).is_multiple_of(2)
}

/// The folders of volumes in the nodes' pools.
fn in_pools(second: &Second) -> Volumes {
    let pools: [PathBuf; 2] = [PLACE.cluster.node_path(POOL).unwrap(), second.node_path(POOL).unwrap()];
    let names = |pool: PathBuf| {
        let all = fs::read_dir(pool).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        all.filter(|name| name.starts_with("pvc-")).collect()
    };
    NODES.into_iter().zip(pools.map(names)).collect()
}

/// The PVs of this test's claims.
fn volumes() -> Vec<Value> {
    let all = PLACE.list(VOLUMES, "");
    all.into_iter().filter(|volume| volume["spec"]["claimRef"]["namespace"] == NAMESPACE).collect()
}

/// The handles of volumes by the node of their affinity.
fn by_node(volumes: &[Value]) -> Volumes {
    let mut all: Volumes = NODES.into_iter().map(|node| (node, BTreeSet::new())).collect();
    for volume in volumes {
        let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned();
        all.get_mut(term["values"][0].as_str().unwrap()).unwrap().insert(handle);
    }
    all
}

/// The folders that were added to pools since.
fn added(second: &Second, before: &Volumes) -> Volumes {
    let now = in_pools(second);
    now.into_iter().map(|(node, names)| (node, &names - &before[node])).collect()
}

/// Gives the volumes to stock sidecars, or to the agents.
fn provide_by(sidecars: &Value) {
    pools::patch(&json!({"metadata": {"annotations": {"ferrovirt.io/sidecars": sidecars}}}));
}

/// Takes the steps, with kills in between; the work changes sides at a third and at two thirds of them.
fn disturbed(steps: usize, dice: &mut Dice, mut step: impl FnMut(usize)) {
    for number in 0..steps {
        step(number);
        std::thread::sleep(Duration::from_millis(dice.next(1500)));
        if number == steps / 3 {
            provide_by(&json!("stock"));
        } else if number == steps * 2 / 3 {
            provide_by(&Value::Null);
        }
        // Its pods go, so that none waits longer and longer for its restart.
        KILLED[usize::try_from(dice.next(3)).unwrap()].kill(true);
    }
}

/// A pod that has a claim of its name, on a node if one is named.
fn user(name: &str, node: Option<&str>) -> Value {
    let mut pod = machines::user(name, &[name]);
    if let Some(node) = node {
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    }
    pod
}

/// Bytes that the scheduler may place on a node.
fn room(node: &str) -> Option<u64> {
    let all = PLACE.list(CAPACITIES, operator::defaults::NAMESPACE);
    let of = |one: &&Value| {
        let place = &one["nodeTopology"]["matchLabels"]["topology.hostpath.csi/node"];
        one["storageClassName"] == LATE && *place == node
    };
    let found = all.iter().find(of)?;
    api::quantity::bytes(found["capacity"].as_str()?).ok()
}

/// A class of volumes on one node.
fn class(name: &str, binding: &str, node: &str) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": DRIVER, "volumeBindingMode": binding, "parameters": {"storagePool": "legacy"},
        "allowedTopologies": [{"matchLabelExpressions": [
            {"key": "topology.hostpath.csi/node", "values": [node]},
        ]}],
    });
    PLACE.create(CLASSES, "", &class);
}

/// A pod of one node is not scheduled with a claim of a class that allows the other one only. Kubernetes' own case of this
/// needs two nodes, which its suite does not have here.
fn conflicting_topologies_are_refused() {
    let name = "conflicts";
    class(name, "WaitForFirstConsumer", "node1");
    let mut claim = wanted(name, 0);
    claim["spec"]["storageClassName"] = json!(name);
    PLACE.create(CLAIMS, NAMESPACE, &claim);
    PLACE.create(PODS, NAMESPACE, &user(name, Some("node2")));
    PLACE.until(NAMESPACE, "the pod fits on no node", || {
        let pod = PLACE.find(PODS, NAMESPACE, name)?;
        let all = pod["status"]["conditions"].as_array()?.clone();
        all.into_iter().find(|one| one["type"] == "PodScheduled" && one["reason"] == "Unschedulable")
    });
    let claim = PLACE.find(CLAIMS, NAMESPACE, name).unwrap();
    assert!(claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_null(), "{claim}");
    PLACE.delete(PODS, NAMESPACE, name);
    PLACE.delete(CLAIMS, NAMESPACE, name);
    PLACE.delete(CLASSES, "", name);
}

/// Takes a snapshot of a claim.
fn cut(claim: &str) {
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": claim},
        "spec": {"volumeSnapshotClassName": NAMESPACE, "source": {"persistentVolumeClaimName": claim}},
    });
    PLACE.create(SNAPSHOTS, NAMESPACE, &snapshot);
}

/// The snapshots that the pools of both nodes hold.
fn snapshots_in_pools(second: &Second) -> usize {
    let folder = format!("{POOL}/snapshots");
    let pools = [PLACE.cluster.node_path(&folder).unwrap(), second.node_path(&folder).unwrap()];
    pools.into_iter().map(|pool| fs::read_dir(pool).map_or(0, Iterator::count)).sum()
}

/// Those that were not deleted become ready; then they go, and nothing of any of them is held.
fn snapshots_come_and_go(second: &Second, before: usize, left: &[String]) {
    PLACE.until(NAMESPACE, "the snapshots are ready", || {
        let all = PLACE.list(SNAPSHOTS, NAMESPACE);
        let ready = all.iter().filter(|one| one["status"]["readyToUse"] == true).count();
        (all.len() == left.len() && ready == left.len()).then_some(())
    });
    left.iter().for_each(|name| PLACE.delete(SNAPSHOTS, NAMESPACE, name));
    PLACE.until(NAMESPACE, "no snapshot, content or finalizer of one is left", || {
        let contents = PLACE.list(CONTENTS, "");
        let is_ours = |one: &Value| one["spec"]["volumeSnapshotRef"]["namespace"] == NAMESPACE;
        let claims = PLACE.list(CLAIMS, NAMESPACE);
        let is_held = |one: &Value| {
            one["metadata"]["finalizers"].to_string().contains("snapshot.storage.kubernetes.io")
        };
        let gone = PLACE.list(SNAPSHOTS, NAMESPACE).is_empty()
            && !contents.iter().any(is_ours)
            && !claims.iter().any(is_held);
        gone.then_some(())
    });
    PLACE.until(NAMESPACE, "the pools hold no snapshot of them", || {
        (snapshots_in_pools(second) == before).then_some(())
    });
}

/// Claims that are deleted while their volumes are made leave nothing in the pools.
fn claims_go_in_flight(second: &Second, before: &Volumes, claims: usize, dice: &mut Dice) {
    let kept = volumes().len();
    let name = |claim: usize| format!("hasty-{claim}");
    for claim in 0..claims {
        PLACE.create(CLAIMS, NAMESPACE, &wanted(&name(claim), claim));
        std::thread::sleep(Duration::from_millis(dice.next(60)));
        PLACE.delete(CLAIMS, NAMESPACE, &name(claim));
    }
    PLACE.until(NAMESPACE, "nothing is left of the claims that went at once", || {
        let all = PLACE.list(CLAIMS, NAMESPACE);
        let is_left =
            |claim: &Value| claim["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("hasty-"));
        let volumes = volumes();
        let gone = !all.iter().any(is_left) && volumes.len() == kept;
        (gone && added(second, before) == by_node(&volumes)).then_some(())
    });
}

/// The claim of a number: every other one is of the second node.
fn wanted(name: &str, number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": format!("claims-{}", NODES[number % 2]),
            "resources": {"requests": {"storage": "16Mi"}},
        },
    })
}

/// The first node is filled: a pod that may run on both nodes gets its claim, and runs, on the second one. The first node's
/// room is right soon after its claim is bound.
fn a_full_node_is_avoided() {
    let before = PLACE.until(NAMESPACE, "the first node's room is known", || room("node1"));
    // More than half of it.
    let size = before / 5 * 3;
    for (name, node) in [("fills", Some("node1")), ("avoids", None)] {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": LATE,
                "resources": {"requests": {"storage": size.to_string()}},
            },
        });
        PLACE.create(CLAIMS, NAMESPACE, &claim);
        let begun = Instant::now();
        PLACE.create(PODS, NAMESPACE, &user(name, node));
        PLACE.until(NAMESPACE, &format!("{name} is bound"), || {
            PLACE.find(CLAIMS, NAMESPACE, name).filter(|claim| claim["status"]["phase"] == "Bound")
        });
        let bound = Instant::now();
        PLACE.until(NAMESPACE, "the first node is full", || room("node1").filter(|left| *left < size));
        let full = bound.elapsed();
        let runs = PLACE.until(NAMESPACE, &format!("{name} runs"), || {
            PLACE.find(PODS, NAMESPACE, name).filter(|pod| pod["status"]["phase"] == "Running")
        });
        assert_eq!(runs["spec"]["nodeName"], node.unwrap_or("node2"), "{name}");
        println!("{name}: bound after {:?}, node1 known to be full {full:?} later", bound - begun);
        assert!(full <= e2e::bar(Duration::from_secs(2)), "{full:?}");
    }
    for name in ["fills", "avoids"] {
        PLACE.delete(PODS, NAMESPACE, name);
        PLACE.delete(CLAIMS, NAMESPACE, name);
    }
}

pub(crate) fn are_bound_once(second: &Second) {
    let sidecars = PLACE.cluster.place().path("sidecars.tar");
    second.import_images(&sidecars).unwrap();
    PLACE.namespace(NAMESPACE);
    for node in NODES {
        class(&format!("claims-{node}"), "Immediate", node);
    }
    let (before, mut dice) = (in_pools(second), Dice(27));
    let counts = Counts::of_this_run();
    let name = |claim: usize| format!("claim-{claim}");
    disturbed(counts.steps, &mut dice, |step| {
        for claim in counts.of(step) {
            PLACE.create(CLAIMS, NAMESPACE, &wanted(&name(claim), claim));
        }
    });
    let mut bound = BTreeSet::new();
    for claim in 0..counts.claims {
        let claim = PLACE.until(NAMESPACE, &format!("{} is bound", name(claim)), || {
            let claim = PLACE.find(CLAIMS, NAMESPACE, &name(claim))?;
            (claim["status"]["phase"] == "Bound").then_some(claim)
        });
        let own = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
        assert_eq!(claim["spec"]["volumeName"], own);
        assert!(bound.insert(own));
    }
    let all = volumes();
    let names: BTreeSet<String> =
        all.iter().map(|volume| volume["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!((all.len(), &names), (counts.claims, &bound), "one PV for each claim");
    let handles = by_node(&all);
    assert!(handles.values().all(|handles| handles.len() == counts.claims / 2), "{handles:?}");
    PLACE.until(NAMESPACE, "the pools hold the PVs' volumes", || {
        (added(second, &before) == handles).then_some(())
    });

    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": NAMESPACE},
        "driver": DRIVER, "deletionPolicy": "Delete",
    });
    PLACE.create(SNAPSHOT_CLASSES, "", &class);
    let (snapshots, mut cuts) = (snapshots_in_pools(second), Vec::new());
    disturbed(counts.steps, &mut dice, |step| {
        for claim in counts.of(step).filter(|claim| is_deleted(*claim)) {
            PLACE.delete(CLAIMS, NAMESPACE, &name(claim));
        }
        let Some(claim) = counts.of(step).find(|claim| !is_deleted(*claim)).map(name) else { return };
        cut(&claim);
        // Every other snapshot goes while it is taken.
        if step.is_multiple_of(2) {
            cuts.push(claim);
        } else {
            PLACE.delete(SNAPSHOTS, NAMESPACE, &claim);
        }
    });
    snapshots_come_and_go(second, snapshots, &cuts);
    let left = (0..counts.claims).filter(|claim| !is_deleted(*claim)).count();
    PLACE.until(NAMESPACE, "the PVs of deleted claims are gone", || (volumes().len() == left).then_some(()));
    PLACE.until(NAMESPACE, "the pools hold the other volumes", || {
        (added(second, &before) == by_node(&volumes())).then_some(())
    });
    let objects = [PLACE.list(CLAIMS, NAMESPACE), volumes()].concat();
    let stuck: Vec<&Value> =
        objects.iter().filter(|object| !object["metadata"]["deletionTimestamp"].is_null()).collect();
    assert!(objects.len() == 2 * left && stuck.is_empty(), "{} objects: {stuck:?}", objects.len());

    // A sidecar that ends with its pod would leave what it has begun.
    let set = ["rollout", "status", "daemonset/hostpath-provisioner-csi", "--timeout=240s"];
    PLACE.kubectl(&[&["-n", operator::defaults::NAMESPACE][..], &set].concat()).unwrap();
    claims_go_in_flight(second, &before, counts.claims / 2, &mut dice);
    a_full_node_is_avoided();
    conflicting_topologies_are_refused();
    PLACE.delete(SNAPSHOT_CLASSES, "", NAMESPACE);
    PLACE.remove_namespace(NAMESPACE);
    PLACE.until(NAMESPACE, "all volumes are gone", || volumes().is_empty().then_some(()));
    for node in NODES {
        PLACE.delete(CLASSES, "", &format!("claims-{node}"));
    }
    let Counts { claims, steps } = counts;
    println!("{claims} claims on two nodes, {} kills, 4 changes of sides: each bound once", 2 * steps);
}
