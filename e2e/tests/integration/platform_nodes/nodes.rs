//! A node dies with its guests, and is switched on again.

use std::fs;
use std::path::Path;
use std::time::Instant;

use e2e::{Second, programs, storage};
use serde_json::{Value, json};

use crate::platform::guest;
use crate::platform::machines::{mac, machine, until_answers};
use crate::platform::place::{EVENTS, INSTANCES, MACHINES, PLACE};
use crate::platform_nodes::{addresses, claims, crowd, join, kills, leaders, metadata};

const NAMESPACE: &str = "nodes";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Bytes of the second node's pool; it takes what is written.
const POOL: u64 = 20 << 30;

fn kubectl(arguments: &[&str]) {
    PLACE.kubectl(arguments).unwrap();
}

/// A disk in a folder, as a volume and a claim of this name on all nodes.
pub(crate) fn disk_of_all_nodes(namespace: &str, name: &str, disk: &[u8]) {
    volume(namespace, name, disk, true);
}

/// The same, of all nodes or of the second one alone.
fn volume(namespace: &str, name: &str, content: &[u8], everywhere: bool) {
    let folder = PLACE.cluster.place().path("volumes").join(name);
    fs::create_dir(&folder).unwrap();
    let disk = folder.join("disk.img");
    fs::write(&disk, content).unwrap();
    for path in [&disk, &folder] {
        std::os::unix::fs::chown(path, Some(107), Some(107)).unwrap();
    }
    let size = content.len();
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size.to_string()},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": name},
        },
    });
    if everywhere {
        volume["spec"]["hostPath"] = json!({"path": folder, "type": "Directory"});
    } else {
        volume["spec"]["local"] = json!({"path": folder});
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node2"]},
        ]}]}});
    }
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": size.to_string()}},
        },
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [volume, claim]});
    let file = PLACE.cluster.place().path(&format!("{name}.json"));
    fs::write(&file, list.to_string()).unwrap();
    kubectl(&["apply", "-f", file.to_str().unwrap()]);
}

/// A VM with such a disk.
fn create(name: &str, everywhere: bool) {
    volume(NAMESPACE, name, &guest::disk(), everywhere);
    PLACE.create(
        MACHINES,
        NAMESPACE,
        &machine(name, "Always", &json!({"persistentVolumeClaim": {"claimName": name}})),
    );
}

fn node_of(name: &str) -> Value {
    PLACE
        .find(INSTANCES, NAMESPACE, name)
        .map_or(Value::Null, |instance| instance["status"]["nodeName"].clone())
}

fn count(name: &str) -> char {
    let disk = PLACE.cluster.place().path("volumes").join(name).join("disk.img");
    char::from(fs::read(Path::new(&disk)).unwrap()[guest::COUNT])
}

/// Waits until the second node is known to be dead.
fn until_dead() {
    PLACE.until(NAMESPACE, "the dead node is seen", || {
        let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        (PLACE.kubectl(&["get", "node", "node2", "-o", ready]).unwrap() == "Unknown").then_some(())
    });
}

/// Declares the second node out of service.
fn give_up() {
    kubectl(&["taint", "node", "node2", &format!("{OUT_OF_SERVICE}=shutdown:NoExecute")]);
}

/// Every message of an object: of an event and of conditions.
fn reasons(object: &Value) -> Vec<String> {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let texts = conditions.chain([object]).filter_map(|one| one["message"].as_str());
    texts.map(str::to_owned).collect()
}

/// Adds the second node, with the platform's images, and waits until it takes guests.
pub(crate) fn add_second(namespace: &str) -> Second {
    let second = PLACE.cluster.start_second().unwrap();
    second.import_images(&programs::image().unwrap()).unwrap();
    second.import_images(&programs::launcher_image().unwrap()).unwrap();
    PLACE.until(namespace, "the second node takes guests", || {
        let label = "jsonpath={.metadata.labels.kubevirt\\.io/schedulable}";
        (PLACE.kubectl(&["get", "node", "node2", "-o", label]).unwrap() == "true").then_some(())
    });
    second
}

pub(crate) fn outlive_their_node() {
    PLACE.namespace(NAMESPACE);
    storage::prepare_second(&PLACE.cluster, POOL).unwrap();
    let second = add_second(NAMESPACE);
    join::guests_of_two_nodes_share_a_network(&second);
    addresses::are_unique_with_two_replicas();
    crowd::starts_on_two_nodes();
    claims::are_bound_once(&second);
    metadata::is_asked_of_the_node_that_has_it(&second);
    leaders::are_two_and_do_nothing_twice();
    kubectl(&["cordon", "node1"]);
    for (name, everywhere) in [("shared", true), ("local", false)] {
        create(name, everywhere);
        until_answers(NAMESPACE, name, 1);
        assert_eq!(node_of(name), "node2");
    }
    let (address, kept) = (mac(NAMESPACE, "shared"), mac(NAMESPACE, "local"));

    // Switched off and on again: its guests run again there.
    drop(second);
    let second = PLACE.cluster.start_second().unwrap();
    for (name, address) in [("shared", &address), ("local", &kept)] {
        until_answers(NAMESPACE, name, 2);
        assert_eq!((node_of(name), &mac(NAMESPACE, name)), ("node2".into(), address));
    }

    drop(second);
    kubectl(&["uncordon", "node1"]);
    until_dead();
    // Without the taint its guests may still run: nothing starts elsewhere.
    assert_eq!((node_of("shared"), count("shared")), ("node2".into(), '2'));
    let begun = Instant::now();
    give_up();
    PLACE.until(NAMESPACE, "the VM on the shared claim is on the first node", || {
        (node_of("shared") == "node1").then_some(())
    });
    until_answers(NAMESPACE, "shared", 3);
    println!("node declared out of service -> guest runs elsewhere: {:?}", begun.elapsed());
    assert_eq!(mac(NAMESPACE, "shared"), address);
    let waiting = PLACE.until_status(NAMESPACE, "local", "ErrorUnschedulable");
    let conditions = waiting["status"]["conditions"].as_array().unwrap();
    let why = conditions.iter().find(|one| one["type"] == "PodScheduled").unwrap();
    assert_eq!(
        (why["status"].as_str(), why["reason"].as_str()),
        (Some("False"), Some("Unschedulable")),
        "{why}"
    );
    let text = why["message"].as_str().unwrap_or_default();
    assert!(text.contains("affinity"), "the other node is not that of its volume: {why}");
    assert_eq!(count("local"), '2');

    kubectl(&["taint", "node", "node2", &format!("{OUT_OF_SERVICE}-")]);
    let second = PLACE.cluster.start_second().unwrap();
    until_answers(NAMESPACE, "local", 3);
    assert_eq!(mac(NAMESPACE, "local"), kept);
    assert_eq!((node_of("local"), node_of("shared")), ("node2".into(), "node1".into()));
    assert_eq!((count("local"), count("shared")), ('3', '3'));
    a_disk_in_use_is_not_used_twice(second);
}

/// A node that is declared out of service although its guest runs: the disk's lock keeps the guest from starting elsewhere,
/// until the node is dead.
fn a_disk_in_use_is_not_used_twice(second: Second) {
    kubectl(&["cordon", "node1"]);
    create("held", true);
    until_answers(NAMESPACE, "held", 1);
    kills::hang(second.place());
    kubectl(&["uncordon", "node1"]);
    until_dead();
    give_up();
    let why = PLACE.until(NAMESPACE, "the disk's lock is reported", || {
        let objects = [EVENTS, INSTANCES, MACHINES].into_iter().flat_map(|kind| PLACE.list(kind, NAMESPACE));
        objects.flat_map(|object| reasons(&object)).find(|text| text.contains("lock"))
    });
    println!("the guest of a node that is declared out of service runs; elsewhere: {why}");
    assert_eq!(count("held"), '1');
    drop(second);
    until_answers(NAMESPACE, "held", 2);
    assert_eq!(node_of("held"), "node1");
    kubectl(&["taint", "node", "node2", &format!("{OUT_OF_SERVICE}-")]);
}
