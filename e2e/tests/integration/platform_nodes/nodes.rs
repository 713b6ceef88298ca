//! A node dies with its guests, and is switched on again.

use std::fs;
use std::path::Path;
use std::time::Instant;

use e2e::programs;
use serde_json::{Value, json};

use crate::platform::guest;
use crate::platform::machines::{mac, machine, until_answers};
use crate::platform::place::{INSTANCES, MACHINES, PLACE};
use crate::platform_nodes::join;

const NAMESPACE: &str = "nodes";

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

pub(crate) fn outlive_their_node() {
    PLACE.namespace(NAMESPACE);
    let second = PLACE.cluster.start_second().unwrap();
    second.import_images(&programs::image().unwrap()).unwrap();
    second.import_images(&programs::launcher_image().unwrap()).unwrap();
    PLACE.until(NAMESPACE, "the second node takes guests", || {
        let label = "jsonpath={.metadata.labels.kubevirt\\.io/schedulable}";
        (PLACE.kubectl(&["get", "node", "node2", "-o", label]).unwrap() == "true").then_some(())
    });
    join::guests_of_two_nodes_share_a_network(&second);
    kubectl(&["cordon", "node1"]);
    for (name, everywhere) in [("shared", true), ("local", false)] {
        create(name, everywhere);
        until_answers(NAMESPACE, name, 1);
        assert_eq!(node_of(name), "node2");
    }
    let (address, kept) = (mac(NAMESPACE, "shared"), mac(NAMESPACE, "local"));

    drop(second);
    kubectl(&["uncordon", "node1"]);
    PLACE.until(NAMESPACE, "the dead node is seen", || {
        let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        (PLACE.kubectl(&["get", "node", "node2", "-o", ready]).unwrap() == "Unknown").then_some(())
    });
    // Without the taint its guests may still run: nothing starts elsewhere.
    assert_eq!((node_of("shared"), count("shared")), ("node2".into(), '1'));
    let begun = Instant::now();
    kubectl(&["taint", "node", "node2", "node.kubernetes.io/out-of-service=shutdown:NoExecute"]);
    PLACE.until(NAMESPACE, "the VM on the shared claim is on the first node", || {
        (node_of("shared") == "node1").then_some(())
    });
    until_answers(NAMESPACE, "shared", 2);
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
    assert_eq!(count("local"), '1');

    kubectl(&["taint", "node", "node2", "node.kubernetes.io/out-of-service-"]);
    let _second = PLACE.cluster.start_second().unwrap();
    until_answers(NAMESPACE, "local", 2);
    assert_eq!(mac(NAMESPACE, "local"), kept);
    assert_eq!((node_of("local"), node_of("shared")), ("node2".into(), "node1".into()));
    assert_eq!((count("local"), count("shared")), ('2', '2'));
}
