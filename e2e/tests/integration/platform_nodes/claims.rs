//! Claims of two nodes, made and deleted while operator, agents and drivers are killed and the work changes between agents
//! and stock sidecars: each claim is bound once, and the pools of both nodes hold the volumes that the API server has. The
//! scheduler avoids a node without room.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cluster::Resource;
use e2e::Second;
use e2e::storage::{DRIVER, POOL};
use places::guest::Dice;
use serde_json::{Value, json};

use crate::platform::machines;
use crate::platform::place::{CLAIMS, PLACE, PODS};
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

/// Kills a program; its pods go, so that none waits longer and longer for its restart.
fn kill(program: Program) {
    PLACE.until(NAMESPACE, &format!("{program:?} runs"), || program.process());
    program.kill(true);
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
        kill(KILLED[usize::try_from(dice.next(3)).unwrap()]);
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

/// The first node is filled: a pod that may run on both nodes gets its claim, and runs, on the second one.
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
        PLACE.create(PODS, NAMESPACE, &user(name, node));
        let runs = PLACE.until(NAMESPACE, &format!("{name} runs"), || {
            PLACE.find(PODS, NAMESPACE, name).filter(|pod| pod["status"]["phase"] == "Running")
        });
        assert_eq!(runs["spec"]["nodeName"], node.unwrap_or("node2"), "{name}");
        PLACE.until(NAMESPACE, "the first node is full", || room("node1").filter(|left| *left < size));
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
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": format!("claims-{node}")},
            "provisioner": DRIVER, "volumeBindingMode": "Immediate", "parameters": {"storagePool": "legacy"},
            "allowedTopologies": [{"matchLabelExpressions": [
                {"key": "topology.hostpath.csi/node", "values": [node]},
            ]}],
        });
        PLACE.create(CLASSES, "", &class);
    }
    let (before, mut dice) = (in_pools(second), Dice(27));
    let counts = Counts::of_this_run();
    let name = |claim: usize| format!("claim-{claim}");
    disturbed(counts.steps, &mut dice, |step| {
        for claim in counts.of(step) {
            let object = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name(claim)},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": format!("claims-{}", NODES[claim % 2]),
                    "resources": {"requests": {"storage": "16Mi"}},
                },
            });
            PLACE.create(CLAIMS, NAMESPACE, &object);
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

    disturbed(counts.steps, &mut dice, |step| {
        for claim in counts.of(step).filter(|claim| is_deleted(*claim)) {
            PLACE.delete(CLAIMS, NAMESPACE, &name(claim));
        }
    });
    let left = (0..counts.claims).filter(|claim| !is_deleted(*claim)).count();
    PLACE.until(NAMESPACE, "the PVs of deleted claims are gone", || (volumes().len() == left).then_some(()));
    PLACE.until(NAMESPACE, "the pools hold the other volumes", || {
        (added(second, &before) == by_node(&volumes())).then_some(())
    });
    let objects = [PLACE.list(CLAIMS, NAMESPACE), volumes()].concat();
    let stuck: Vec<&Value> =
        objects.iter().filter(|object| !object["metadata"]["deletionTimestamp"].is_null()).collect();
    assert!(objects.len() == 2 * left && stuck.is_empty(), "{} objects: {stuck:?}", objects.len());

    a_full_node_is_avoided();
    PLACE.remove_namespace(NAMESPACE);
    PLACE.until(NAMESPACE, "all volumes are gone", || volumes().is_empty().then_some(()));
    for node in NODES {
        PLACE.delete(CLASSES, "", &format!("claims-{node}"));
    }
    let set = ["rollout", "status", "daemonset/hostpath-provisioner-csi", "--timeout=240s"];
    PLACE.kubectl(&[&["-n", operator::defaults::NAMESPACE][..], &set].concat()).unwrap();
    let Counts { claims, steps } = counts;
    println!("{claims} claims on two nodes, {} kills, 4 changes of sides: each bound once", 2 * steps);
}
