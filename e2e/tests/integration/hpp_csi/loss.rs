//! A node that is gone: its claims have a condition, also those that it was to make volumes for, and its volumes are
//! released by an administrator only.

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
fn a_claim_that_waits_for_a_node_that_is_gone_has_a_condition_until_another_one_is_chosen() {
    let _driver = together();
    let space = Space::new("unmade");
    let chosen = |node: Value| json!({"volume.kubernetes.io/selected-node": node});
    space.claim_with("unmade", 16, &json!({}), &chosen(json!("gone")));
    let shown = until("the claim has a condition for its node", || condition(&space, "unmade"));
    assert_eq!((&shown["status"], &shown["reason"]), (&json!("True"), &json!("NodeGone")), "{shown}");
    until("the claim has an event", || {
        space.events("unmade").iter().any(|event| event.starts_with("NodeGone: the volume")).then_some(())
    });
    let nothing = json!({"metadata": {"annotations": chosen(Value::Null)}});
    space.patch("PersistentVolumeClaim", "unmade", &nothing);
    until("the condition goes", || condition(&space, "unmade").is_none().then_some(()));
    space.delete("PersistentVolumeClaim", "unmade");
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
