//! Snapshots by the stock snapshotter and snapshot-controller, or by agent and operator; restoring, and clones.

use std::fs;

use serde_json::{Value, json};

use crate::hpp_csi::space::{Space, Volume, in_pool, until};
use crate::hpp_csi::{CLASS, together};

fn from(kind: &str, name: &str) -> Value {
    let group = if kind == "VolumeSnapshot" { "snapshot.storage.k8s.io" } else { "" };
    json!({"dataSource": {"apiGroup": group, "kind": kind, "name": name}})
}

#[test]
fn a_snapshot_is_restored_and_a_claim_cloned() {
    let _driver = together();
    let space = Space::new("snapshots");
    space.claim("data", 200, &json!({}));
    space.pod("writer", "echo before >/data/file; sync", &[Volume::Files("data")]);
    space.running("writer");
    let file = space.folder("data").join("file");
    until("the file is written", || (fs::read_to_string(&file).ok()? == "before\n").then_some(()));
    let snapshot = json!({"spec": {
        "volumeSnapshotClassName": CLASS, "source": {"persistentVolumeClaimName": "data"},
    }});
    space.create("VolumeSnapshot", "snap", &snapshot);
    let content = until("the snapshot is ready", || {
        let status = space.get("VolumeSnapshot", "snap")?["status"].clone();
        (status["readyToUse"] == true).then(|| {
            assert_eq!(status["restoreSize"], "200Mi");
            status["boundVolumeSnapshotContentName"].as_str().unwrap().to_owned()
        })
    });
    space.exec("writer", "echo after >/data/file");
    space.claim("restored", 300, &from("VolumeSnapshot", "snap"));
    space.claim("clone", 200, &from("PersistentVolumeClaim", "data"));
    space.pod(
        "reader",
        "cat /restored/file /clone/file",
        &[Volume::Files("restored"), Volume::Files("clone")],
    );
    space.running("reader");
    assert_eq!(space.exec("reader", "cat /restored/file /clone/file"), "before\nafter\n");
    assert_eq!(space.bound("restored")["spec"]["capacity"]["storage"], "300Mi");

    // The snapshot outlives its volume, and its folder goes with it.
    let handle = space.get("VolumeSnapshotContent", &content).unwrap()["status"]["snapshotHandle"].clone();
    let folder = in_pool("snapshots").join(handle.as_str().unwrap());
    space.delete("Pod", "writer");
    space.delete("PersistentVolumeClaim", "data");
    assert!(folder.exists());
    space.delete("VolumeSnapshot", "snap");
    until("the snapshot's folder is gone", || (!folder.exists()).then_some(()));
    assert_eq!(space.exec("reader", "cat /restored/file /clone/file"), "before\nafter\n");
}
