//! A node that is gone: its claims have a condition, and its volumes are released by an administrator only.

use std::thread;
use std::time::Duration;

use e2e::storage::DRIVER;
use serde_json::{Value, json};

use crate::hpp_csi::space::{Space, until};
use crate::hpp_csi::{CLASS, together};

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The condition of a claim about its node.
fn condition(space: &Space, claim: &str) -> Option<Value> {
    let all = space.get("PersistentVolumeClaim", claim)?["status"]["conditions"].clone();
    all.as_array()?.iter().find(|one| one["type"] == "ferrovirt.io/NodeUnavailable").cloned()
}

#[test]
fn volumes_of_a_node_that_is_gone_are_kept_until_an_administrator_gives_them_up() {
    let _driver = together();
    let namespace = "loss";
    let space = Space::new(namespace);
    // As the node's agent made it, before the node went away.
    let made = json!({
        "metadata": {"finalizers": [FINALIZER], "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {
            "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": DRIVER, "volumeHandle": "pvc-lost"},
            "claimRef": {"namespace": namespace, "name": "lost"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.hostpath.csi/node", "operator": "In", "values": ["gone"]}]}]}},
        },
    });
    space.create("PersistentVolume", "lost", &made);
    let provisioner = json!({"volume.kubernetes.io/storage-provisioner": DRIVER});
    space.claim_with("lost", 16, &json!({"volumeName": "lost"}), &provisioner);
    let shown = until("the claim has a condition for its node", || condition(&space, "lost"));
    assert_eq!((&shown["status"], &shown["reason"]), (&json!("True"), &json!("NodeGone")), "{shown}");
    let message = shown["message"].as_str().unwrap();
    assert!(message.contains("kubectl annotate pv lost ferrovirt.io/node-lost=true"), "{message}");
    until("the claim has an event", || {
        space.events("lost").iter().any(|event| event.starts_with("NodeGone: volume lost")).then_some(())
    });
    space.delete("PersistentVolumeClaim", "lost");
    let volume = || space.get("PersistentVolume", "lost");
    until("the PV is released", || (volume()?["status"]["phase"] == "Released").then_some(()));
    thread::sleep(Duration::from_secs(1));
    let kept = volume().unwrap();
    assert!(kept["metadata"]["deletionTimestamp"].is_null(), "nothing is deleted by itself: {kept}");
    let given_up = json!({"metadata": {"annotations": {"ferrovirt.io/node-lost": "true"}}});
    space.patch("PersistentVolume", "lost", &given_up);
    until("the PV is gone", || volume().is_none().then_some(()));
}
