//! Many claims at once on one node: the time until they are bound, and the memory of the agent and of the CSI driver
//! with their volumes and snapshots.

use std::time::{Duration, Instant};

use cluster::Resource;
use e2e::processes::Memory;
use e2e::storage::DRIVER;
use serde_json::{Value, json};

use crate::platform::place::{CLAIMS, PLACE, SNAPSHOT_CLASSES, SNAPSHOTS};
use crate::platform_nodes::kills::{self, Program};

/// Name of the namespace, the StorageClass and the VolumeSnapshotClass.
const NAME: &str = "many-volumes";
const CLASSES: Resource = Resource::cluster("storage.k8s.io", "v1", "storageclasses");
const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");
/// Most memory of both programs, in KiB.
const MEMORY_MAX: u64 = 72 << 10;
/// Most time for each of the claims, of which many are made at once: ten are bound per second.
const BOUND_MAX: Duration = Duration::from_millis(100);

/// A class of claims, and one of snapshots.
fn classes() {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": NAME},
        "provisioner": DRIVER, "volumeBindingMode": "Immediate", "parameters": {"storagePool": "legacy"},
    });
    PLACE.create(CLASSES, "", &class);
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass", "metadata": {"name": NAME},
        "driver": DRIVER, "deletionPolicy": "Delete",
    });
    PLACE.create(SNAPSHOT_CLASSES, "", &class);
}

/// Waits until all objects of a kind are ready.
fn all_are(kind: Resource, number: u32, is_ready: impl Fn(&Value) -> bool) {
    PLACE.until(NAME, &format!("{number} {} are ready", kind.plural), || {
        let all = PLACE.list(kind, NAME);
        (u32::try_from(all.len()) == Ok(number) && all.iter().all(&is_ready)).then_some(())
    });
}

/// Memory of agent and driver.
fn memory() -> [Memory; 2] {
    [Program::Agent, Program::Driver].map(|program| {
        PLACE.until(NAME, &format!("{program:?} runs"), || program.process());
        kills::memory(program)
    })
}

pub(crate) fn are_served_in_little_memory() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (volumes, snapshots): (u32, u32) = if soak { (500, 100) } else { (30, 6) };
    PLACE.namespace(NAME);
    classes();
    let before = memory();
    let begun = Instant::now();
    for number in 0..volumes {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": format!("claim-{number}")},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": NAME,
                "resources": {"requests": {"storage": "4Mi"}},
            },
        });
        PLACE.create(CLAIMS, NAME, &claim);
    }
    all_are(CLAIMS, volumes, |claim| claim["status"]["phase"] == "Bound");
    let bound = begun.elapsed();
    for number in 0..snapshots {
        let snapshot = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": format!("snapshot-{number}")},
            "spec": {
                "volumeSnapshotClassName": NAME,
                "source": {"persistentVolumeClaimName": format!("claim-{number}")},
            },
        });
        PLACE.create(SNAPSHOTS, NAME, &snapshot);
    }
    all_are(SNAPSHOTS, snapshots, |snapshot| snapshot["status"]["readyToUse"] == true);
    let [agent, driver] = memory();
    println!("{volumes} claims bound in {bound:?}, {snapshots} snapshots after {:?}", begun.elapsed());
    assert!(bound <= e2e::bar(BOUND_MAX * volumes), "{volumes} claims bound in {bound:?}");
    println!("KiB before: {before:?}; agent {agent:?}, driver {driver:?}");
    let sum = agent.counted().unwrap() + driver.counted().unwrap();
    assert!(sum <= MEMORY_MAX, "{sum} KiB of agent and driver together");
    PLACE.kubectl(&["-n", NAME, "delete", "volumesnapshot", "--all"]).unwrap();
    PLACE.remove_namespace(NAME);
    PLACE.until(NAME, "the volumes are gone", || {
        let is_ours = |volume: &Value| volume["spec"]["storageClassName"] == NAME;
        (!PLACE.list(VOLUMES, "").iter().any(is_ours)).then_some(())
    });
    PLACE.delete(SNAPSHOT_CLASSES, "", NAME);
    PLACE.delete(CLASSES, "", NAME);
}
