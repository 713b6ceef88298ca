//! Claims of DataVolumes that something else made, fills, binds elsewhere or loses; and workers that are retained.

use std::time::Duration;

use e2e::peer::web::Web;
use serde_json::json;

use crate::storage::clones;
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, assert_same};
use crate::storage::space::{Space, until};

#[test]
fn a_data_volume_waits_for_the_end_of_a_claim_of_its_name() {
    let space = Space::new("claims-foreign");
    space.create(
        "PersistentVolumeClaim",
        json!({
            "metadata": {"name": "disk"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": IMMEDIATE,
                "resources": {"requests": {"storage": "1Mi"}},
            },
        }),
    );
    let uid = space.get("PersistentVolumeClaim", "disk").unwrap()["metadata"]["uid"].clone();
    space.data_volume("disk", &json!({"blank": {}}), IMMEDIATE, "Filesystem", &json!({}));
    let text = "Resource \"disk\" already exists and is not managed by DataVolume";
    until("the claim is named", || {
        let (status, reason, message) = space.condition("disk", "Running")?;
        (status == "False" && reason == "ErrResourceExists" && message == text).then_some(())
    });
    space.warned("disk", "ErrResourceExists", text);
    assert_eq!(space.get("DataVolume", "disk").unwrap()["status"]["phase"], "Pending");
    let claim = space.get("PersistentVolumeClaim", "disk").unwrap();
    assert!(claim["metadata"]["uid"] == uid && claim["metadata"]["ownerReferences"].is_null(), "{claim}");
    space.delete("PersistentVolumeClaim", "disk");
    space.phases("disk", "Succeeded");
    space.completed("disk");
    assert_ne!(space.get("PersistentVolumeClaim", "disk").unwrap()["metadata"]["uid"], uid);
}

#[test]
fn a_claim_that_loses_its_volume_fails_its_data_volume() {
    let space = Space::new("claims-lost");
    space.data_volume("disk", &json!({"blank": {}}), IMMEDIATE, "Filesystem", &json!({}));
    space.phases("disk", "Succeeded");
    let claim = space.get("PersistentVolumeClaim", "disk").unwrap();
    let volume = claim["spec"]["volumeName"].as_str().unwrap();
    // An administrator removes it although a claim is bound to it.
    space.delete("PersistentVolume", volume);
    space.patch("PersistentVolume", volume, &json!({"metadata": {"finalizers": null}}));
    space.phases("disk", "Failed");
    let (status, reason, message) = space.condition("disk", "Bound").unwrap();
    assert_eq!([&*status, &*reason, &*message], ["False", "ClaimLost", "Claim Lost"]);
    space.warned("disk", "ErrClaimLost", "PVC disk lost");
}

#[test]
fn a_claim_that_cannot_bind_to_a_reserved_volume_is_made_again() {
    let space = Space::new("claims-misbound");
    // A DataVolume that is restored makes no claim: this one is as if the volume of its list had been deleted.
    let restored = json!({
        "cdi.kubevirt.io/storage.prePopulated": "disk", "cdi.kubevirt.io/storage.checkStaticVolume": "",
    });
    space.data_volume("disk", &json!({"blank": {}}), IMMEDIATE, "Filesystem", &restored);
    let uid = space.get("DataVolume", "disk").unwrap()["metadata"]["uid"].clone();
    space.create(
        "PersistentVolumeClaim",
        json!({
            "metadata": {
                "name": "disk",
                "annotations": {"cdi.kubevirt.io/storage.persistentVolumeList": "[\"gone\"]"},
                "ownerReferences": [{
                    "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk", "uid": uid,
                    "controller": true,
                }],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": IMMEDIATE, "volumeName": "gone",
                "resources": {"requests": {"storage": "128Mi"}},
            },
        }),
    );
    space.warned("disk", "ClaimMisbound", "PVC disk is bound to PV gone, or waits for it");
    until("the claim is gone", || space.get("PersistentVolumeClaim", "disk").is_none().then_some(()));
    let made = json!({"cdi.kubevirt.io/storage.prePopulated": null});
    space.patch("DataVolume", "disk", &json!({"metadata": {"annotations": made}}));
    space.phases("disk", "Succeeded");
    space.completed("disk");
}

#[test]
fn workers_are_retained_where_their_data_volumes_ask_for_it() {
    let space = Space::new("claims-retained");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    let retained = "cdi.kubevirt.io/storage.pod.retainAfterCompletion";
    for (name, populator) in [("populated", "true"), ("direct", "false")] {
        let annotations = json!({retained: "true", "cdi.kubevirt.io/storage.usePopulator": populator});
        space.data_volume(name, &source, IMMEDIATE, "Filesystem", &annotations);
    }
    for name in ["populated", "direct"] {
        space.phases(name, "Succeeded");
        space.completed(name);
        assert_same(&space.file(name));
    }
    let claim = space.get("PersistentVolumeClaim", "populated").unwrap();
    let prime = format!("prime-{}", claim["metadata"]["uid"].as_str().unwrap());
    until("the prime claim is reported as retained", || {
        space.events("populated").iter().any(|(reason, _)| reason == "RetainedPVCPrime").then_some(())
    });
    // Without the annotation both would be gone by now.
    std::thread::sleep(Duration::from_secs(2));
    assert!(space.get("PersistentVolumeClaim", &prime).is_some(), "the prime claim stays");
    let mut pods = space.names("Pod");
    pods.sort();
    let mut workers = [format!("importer-{prime}"), "importer-direct".to_owned()];
    workers.sort();
    assert_eq!(pods, workers);
}

#[test]
fn a_claim_that_another_populator_fills_is_awaited() {
    let (space, _web) = clones::golden("claims-external", IMMEDIATE);
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "taken"});
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": IMMEDIATE,
        "resources": {"requests": {"storage": "128Mi"}}, "dataSourceRef": snapshot,
    });
    space.create("DataVolume", json!({"metadata": {"name": "disk"}, "spec": {"pvc": claim}}));
    // The driver waits for the snapshot, and the DataVolume for the driver.
    until("the claim is made", || space.get("PersistentVolumeClaim", "disk"));
    space.phases("disk", "Pending");
    space.create(
        "VolumeSnapshot",
        json!({
            "metadata": {"name": "taken"},
            "spec": {"volumeSnapshotClassName": "hostpath-csi", "source": {"persistentVolumeClaimName": "golden"}},
        }),
    );
    space.phases("disk", "Succeeded");
    assert_same(&space.file("disk"));
    let claim = space.get("PersistentVolumeClaim", "disk").unwrap();
    assert_eq!(claim["spec"]["dataSourceRef"]["kind"], "VolumeSnapshot");
    assert!(!space.names("Pod").iter().any(|pod| pod.contains("disk")), "no worker is made");
}
