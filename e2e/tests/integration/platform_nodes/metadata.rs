//! Blocks of a snapshot that another node has: the agent that is asked forwards the request to that node's agent.

use std::fs::File;
use std::os::unix::fs::FileExt;

use cluster::Resource;
use e2e::Second;
use e2e::storage::{DRIVER, POOL};
use serde_json::{Value, json};

use crate::platform::place::{CLAIMS, PLACE, PODS, SNAPSHOT_CLASSES, SNAPSHOTS};
use crate::platform::pools::{allocated, backup_token, metadata_service};

/// Name of the namespace, the classes and the objects.
const NAME: &str = "metadata";
const CLASSES: Resource = Resource::cluster("storage.k8s.io", "v1", "storageclasses");
const MIB: usize = 1 << 20;

/// A block volume of the second node, of which the first MiB is written, and its snapshot.
fn snapshot_of(second: &Second) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": NAME},
        "provisioner": DRIVER, "volumeBindingMode": "Immediate", "parameters": {"storagePool": "legacy"},
        "allowedTopologies": [{"matchLabelExpressions": [
            {"key": "topology.hostpath.csi/node", "values": ["node2"]},
        ]}],
    });
    PLACE.create(CLASSES, "", &class);
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": NAME},
        "driver": DRIVER, "deletionPolicy": "Delete",
    });
    PLACE.create(SNAPSHOT_CLASSES, "", &class);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": NAME},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": NAME, "volumeMode": "Block",
            "resources": {"requests": {"storage": "16Mi"}},
        },
    });
    PLACE.create(CLAIMS, NAME, &claim);
    let volume = PLACE.until(NAME, "the claim is bound", || {
        let claim = PLACE.find(CLAIMS, NAME, NAME).filter(|claim| claim["status"]["phase"] == "Bound")?;
        claim["spec"]["volumeName"].as_str().map(str::to_owned)
    });
    let file = second.node_path(&format!("{POOL}/.hpp-csi/block/{volume}")).unwrap();
    let file = File::options().write(true).open(file).unwrap();
    file.write_all_at(&vec![1; MIB], 0).unwrap();
    file.sync_all().unwrap();
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": NAME},
        "spec": {"volumeSnapshotClassName": NAME, "source": {"persistentVolumeClaimName": NAME}},
    });
    PLACE.create(SNAPSHOTS, NAME, &snapshot);
    PLACE.until(NAME, "the snapshot is ready", || {
        PLACE.find(SNAPSHOTS, NAME, NAME).filter(|one| one["status"]["readyToUse"] == true)
    });
}

pub(crate) fn is_asked_of_the_node_that_has_it(second: &Second) {
    PLACE.namespace(NAME);
    snapshot_of(second);
    for words in [
        &["create", "serviceaccount", "backup"][..],
        &["create", "role", "backup", "--verb=get", "--resource=volumesnapshots.snapshot.storage.k8s.io"],
        &["create", "rolebinding", "backup", "--role=backup", &format!("--serviceaccount={NAME}:backup")],
    ] {
        PLACE.kubectl(&[&["-n", NAME][..], words].concat()).unwrap();
    }
    let service = metadata_service();
    let token = backup_token(&service, NAME, "backup");
    let is_first = |pod: &&Value| {
        pod["metadata"]["labels"]["kubevirt.io"] == "virt-handler" && pod["spec"]["nodeName"] == "node1"
    };
    let address = PLACE.until(NAME, "the first node's agent has an address", || {
        let pods = PLACE.list(PODS, operator::defaults::NAMESPACE);
        pods.iter().find(is_first)?["status"]["podIP"].as_str().map(str::to_owned)
    });
    let ranges = allocated(&service, &address, &token, NAME, NAME).unwrap();
    assert_eq!(ranges, [(0, i64::try_from(MIB).unwrap())]);
    PLACE.delete(SNAPSHOTS, NAME, NAME);
    PLACE.until(NAME, "the snapshot is gone", || PLACE.find(SNAPSHOTS, NAME, NAME).is_none().then_some(()));
    PLACE.delete(SNAPSHOT_CLASSES, "", NAME);
    PLACE.remove_namespace(NAME);
    PLACE.delete(CLASSES, "", NAME);
}
