//! Snapshots and groups of them next to stock snapshot-controller as it is installed in most clusters, without distributed
//! snapshotting: it names no node in its contents. The operator does, and the node's agent takes them.

use std::fs;
use std::path::Path;

use e2e::storage::{self, Provisioner};
use serde_json::{Value, json};

use crate::hpp_csi::modes::{AT_ONCE, class_at_once};
use crate::hpp_csi::space::{Space, until};
use crate::hpp_csi::{CLASS, CLUSTER, alone, provisioner};

const NAMESPACE: &str = "undistributed";
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
const GROUP: &str = "groupsnapshot.storage.k8s.io/v1beta2";

fn kubectl(arguments: &[&str]) -> Result<String, String> {
    let run = CLUSTER.kubectl().args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if run.status.success() { Ok(text(&run.stdout)) } else { Err(text(&run.stderr)) }
}

fn apply(name: &str, text: &str) -> Result<String, String> {
    let file = CLUSTER.place().path(name);
    fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file])
}

fn get(object: &str) -> Option<Value> {
    let text = kubectl(&["-n", NAMESPACE, "get", object, "-o", "json", "--show-managed-fields"]).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// Stock snapshot-controller with groups and without distributed snapshotting.
fn start_controller() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/snapshot-controller.yaml");
    let distributed = fs::read_to_string(file).unwrap();
    let option = "--enable-distributed-snapshotting";
    assert!(distributed.contains(option));
    let text = distributed.replace(option, "--feature-gates=CSIVolumeGroupSnapshot=true");
    apply("undistributed-controller.yaml", &text).unwrap();
    kubectl(&["-n", "kube-system", "rollout", "status", "deployment/snapshot-controller", "--timeout=120s"])
        .unwrap();
}

/// A content that stock snapshot-controller made and the operator gave to the node.
fn is_of_both(content: &str) {
    let content = get(content).unwrap();
    assert_eq!(content["metadata"]["labels"][MANAGED_BY], "node1");
    let writers = content["metadata"]["managedFields"].to_string();
    assert!(writers.contains("snapshot-controller"), "{writers}");
}

/// The VolumeSnapshots of the namespace that are ready.
fn ready(number: usize) -> Vec<Value> {
    until(&format!("{number} snapshots are ready"), || {
        let all = get("volumesnapshots")?["items"].as_array()?.clone();
        let ready = all.iter().filter(|one| one["status"]["readyToUse"] == true).count();
        (all.len() == number && ready == number).then_some(all)
    })
}

fn content_of(snapshot: &Value) -> String {
    let name = snapshot["status"]["boundVolumeSnapshotContentName"].as_str().unwrap();
    format!("volumesnapshotcontent/{name}")
}

#[test]
fn snapshots_and_groups_are_taken_next_to_a_controller_that_names_no_node() {
    let _driver = alone();
    let space = Space::new(NAMESPACE);
    class_at_once();
    storage::provision_by(&CLUSTER, Provisioner::Agent).unwrap();
    let class = json!({
        "apiVersion": GROUP, "kind": "VolumeGroupSnapshotClass", "metadata": {"name": NAMESPACE},
        "driver": storage::DRIVER, "deletionPolicy": "Delete",
    });
    until("the operator makes the kinds of groups", || {
        apply("undistributed-class.json", &class.to_string()).ok()
    });
    start_controller();
    for name in ["data", "log"] {
        let claim = json!({
            "metadata": {"labels": {"group": "shop"}},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": AT_ONCE,
                "resources": {"requests": {"storage": "16Mi"}},
            },
        });
        space.create("PersistentVolumeClaim", name, &claim);
    }
    for name in ["data", "log"] {
        space.bound(name);
    }
    let single = json!({"spec": {
        "volumeSnapshotClassName": CLASS, "source": {"persistentVolumeClaimName": "data"},
    }});
    space.create("VolumeSnapshot", "single", &single);
    is_of_both(&content_of(&ready(1)[0]));
    space.delete("VolumeSnapshot", "single");

    let group = json!({
        "apiVersion": GROUP, "kind": "VolumeGroupSnapshot",
        "metadata": {"name": "group", "namespace": NAMESPACE},
        "spec": {
            "volumeGroupSnapshotClassName": NAMESPACE, "source": {"selector": {"matchLabels": {"group": "shop"}}},
        },
    });
    apply("undistributed-group.json", &group.to_string()).unwrap();
    let content = until("the group is ready", || {
        let status = get("volumegroupsnapshot/group")?["status"].clone();
        let name = status["boundVolumeGroupSnapshotContentName"].as_str()?;
        (status["readyToUse"] == true).then(|| format!("volumegroupsnapshotcontent/{name}"))
    });
    is_of_both(&content);
    let members = ready(2);
    kubectl(&["-n", NAMESPACE, "delete", "volumegroupsnapshot", "group", "--wait=false"]).unwrap();
    until("the group's objects are gone", || {
        let contents = members.iter().map(content_of).chain([content.clone()]);
        let gone = contents.into_iter().all(|content| get(&content).is_none());
        (gone && get("volumegroupsnapshot/group").is_none()).then_some(())
    });
    for name in ["data", "log"] {
        space.delete("PersistentVolumeClaim", name);
    }
    kubectl(&["delete", "volumegroupsnapshotclass", NAMESPACE]).unwrap();
    storage::provision_by(&CLUSTER, provisioner()).unwrap();
}
