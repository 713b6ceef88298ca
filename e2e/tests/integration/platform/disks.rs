//! Disks: images of containers, cloud-init, empty claims.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use image::archive::{self, Tag};
use image::layer::{self, Member};
use serde_json::json;

use crate::platform::guest;
use crate::platform::machines::{claim, machine, until_answers};
use crate::platform::place::{
    CLAIMS, CONTENTS, INSTANCES, MACHINES, PLACE, PODS, SNAPSHOT_CLASSES, SNAPSHOTS,
};
use crate::platform::untrusted::until_refused;

/// An image that holds nothing but a disk, as `localhost/guests:answers`.
pub(crate) fn container_disk() -> &'static str {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.qcow2");
    guest::qcow2(&disk);
    container_image("answers", "disk", &[("disk.qcow2", disk.as_path())]);
    "localhost/guests:answers"
}

/// An image that holds nothing but a folder with these files, as `localhost/guests:TAG`.
pub(crate) fn container_image(tag: &str, folder: &str, files: &[(&str, &Path)]) {
    let work = tempfile::tempdir().unwrap();
    let mut members = BTreeMap::from([(folder.to_owned(), Member::Folder { mode: 0o755 })]);
    members.extend(files.iter().map(|(name, from)| {
        (format!("{folder}/{name}"), Member::File { from: from.to_path_buf(), mode: 0o444 })
    }));
    let layer = layer::pack(&members, &work.path().join("layer")).unwrap();
    let file = PLACE.cluster.place().path(&format!("guests-{tag}.tar"));
    let tag =
        Tag { repository: "localhost/guests".into(), name: tag.into(), entrypoint: Vec::new(), user: None };
    archive::write(&file, &[layer], &[tag]).unwrap();
    PLACE.cluster.import_images(&file).unwrap();
    fs::remove_file(file).unwrap();
}

#[test]
fn image_of_a_container_is_a_disk_that_forgets_what_is_written() {
    let namespace = "container";
    PLACE.namespace(namespace);
    let image = container_disk();
    let mut vm = machine("vm", "Always", &json!({"containerDisk": {"image": image}}));
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["devices"]["disks"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "settings", "disk": {"bus": "virtio"}}));
    spec["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "settings", "cloudInitNoCloud": {"userData": "#cloud-config\n{}\n"}}));
    PLACE.create(MACHINES, namespace, &vm);
    until_answers(namespace, "vm", 1);
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    let unsupported = |name: &str| {
        let reason = format!("Snapshot is not supported for this volumeSource type [{name}]");
        json!({"name": name, "enabled": false, "reason": reason})
    };
    assert_eq!(vm["status"]["volumeSnapshotStatuses"], json!([unsupported("root"), unsupported("settings")]));
    let restarts = if std::env::var_os("FERROVIRT_SOAK").is_some() { 10 } else { 2 };
    for _ in 0..restarts {
        let before = PLACE.find(INSTANCES, namespace, "vm").unwrap()["metadata"]["uid"].clone();
        PLACE.put(namespace, "virtualmachines/vm/restart").unwrap();
        PLACE.until(namespace, "another instance", || {
            PLACE.find(INSTANCES, namespace, "vm").filter(|one| one["metadata"]["uid"] != before)
        });
        until_answers(namespace, "vm", 1);
    }
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.until(namespace, "the VM is gone", || {
        (PLACE.list(MACHINES, namespace).is_empty() && PLACE.list(PODS, namespace).is_empty()).then_some(())
    });
    PLACE.remove_namespace(namespace);
}

/// CRC-32 as Go's package calls IEEE.
fn crc32(bytes: &[u8]) -> u32 {
    let of_bit = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), of_bit))
}

#[test]
fn path_of_a_container_disk_chooses_a_file_of_the_image() {
    let namespace = "chosen";
    PLACE.namespace(namespace);
    let folder = tempfile::tempdir().unwrap();
    let (disk, other) = (folder.path().join("disk"), folder.path().join("other"));
    guest::qcow2(&disk);
    fs::write(&other, "nothing to start").unwrap();
    container_image("two-files", "disk", &[("a.img", &other), ("b.qcow2", &disk), ("c.img", &other)]);
    let image = "localhost/guests:two-files";
    for (name, volume) in [
        ("chosen", json!({"image": image, "path": "/disk/b.qcow2"})),
        ("open", json!({"image": image})),
        ("absent", json!({"image": image, "path": "/disk/d.img"})),
    ] {
        PLACE.create(MACHINES, namespace, &machine(name, "Always", &json!({"containerDisk": volume})));
    }
    until_answers(namespace, "chosen", 1);
    let wanted = crc32(&fs::read(&disk).unwrap());
    PLACE.until(namespace, "the checksum of the chosen file", || {
        let instance = PLACE.find(INSTANCES, namespace, "chosen")?;
        let volumes = instance["status"]["volumeStatus"].as_array()?;
        let root = volumes.iter().find(|one| one["name"] == "root")?;
        (root["containerDiskVolume"]["checksum"] == wanted).then_some(())
    });
    until_refused(namespace, "open", "set containerDisk.path to one of them");
    until_refused(namespace, "absent", "the image has no file d.img");
    for name in ["chosen", "open", "absent"] {
        PLACE.delete(MACHINES, namespace, name);
    }
    PLACE.remove_namespace(namespace);
}

#[test]
fn empty_claim_gets_a_disk_of_its_size_without_the_overhead() {
    let namespace = "empty";
    PLACE.namespace(namespace);
    // The pool is a thousand times as large: its free space is not the claim's.
    let empty = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {
            "storageClassName": "hostpath-csi", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}},
        },
    });
    PLACE.create(CLAIMS, namespace, &empty);
    let _root = claim(namespace, "root", &guest::disk());
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "root"}}));
    let spec = &mut vm["spec"]["template"]["spec"];
    let data = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    spec["volumes"].as_array_mut().unwrap().push(data);
    PLACE.create(MACHINES, namespace, &vm);
    until_answers(namespace, "vm", 1);
    let instance = PLACE.find(INSTANCES, namespace, "vm").unwrap();
    let volumes = instance["status"]["volumeStatus"].as_array().unwrap();
    let info = &volumes.iter().find(|one| one["name"] == "data").unwrap()["persistentVolumeClaimInfo"];
    assert_eq!(
        (&info["claimName"], &info["requests"]["storage"]),
        (&json!("data"), &json!("64Mi")),
        "{info}"
    );
    assert!(info["filesystemOverhead"].is_string() && info["volumeMode"] == "Filesystem", "{info}");
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    let reasons: Vec<&str> = vm["status"]["volumeSnapshotStatuses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["reason"].as_str().unwrap())
        .collect();
    let unset = "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass";
    assert_eq!(reasons, [format!("{unset} [] [root]"), format!("{unset} [hostpath-csi] [data]")]);
    let pod = PLACE.list(PODS, namespace)[0]["metadata"]["uid"].as_str().unwrap().to_owned();
    let mounts =
        PLACE.cluster.node_path(&format!("/var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~csi")).unwrap();
    let mount = fs::read_dir(mounts).unwrap().next().unwrap().unwrap().path();
    // 64 MiB without five and a half or six per cent, in whole mebibytes.
    assert_eq!(fs::metadata(mount.join("mount/disk.img")).unwrap().len(), 60 << 20);
    PLACE.delete(MACHINES, namespace, "vm");
    take_snapshot(namespace, "data");
    PLACE.remove_namespace(namespace);
}

/// Takes and deletes a snapshot of a claim by the driver's default class: operator and agent do what snapshot-controller and
/// csi-snapshotter do elsewhere.
fn take_snapshot(namespace: &str, claim: &str) {
    PLACE.create(
        SNAPSHOT_CLASSES,
        "",
        &json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {
                "name": "hostpath-csi",
                "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"},
            },
            "driver": "kubevirt.io.hostpath-provisioner", "deletionPolicy": "Delete",
        }),
    );
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": claim},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
    });
    PLACE.create(SNAPSHOTS, namespace, &snapshot);
    let ready = PLACE.until(namespace, "the snapshot is ready", || {
        PLACE.find(SNAPSHOTS, namespace, claim).filter(|one| one["status"]["readyToUse"] == true)
    });
    assert_eq!(ready["spec"]["volumeSnapshotClassName"], "hostpath-csi");
    assert_eq!(ready["status"]["restoreSize"], "64Mi");
    let content = ready["status"]["boundVolumeSnapshotContentName"].as_str().unwrap().to_owned();
    PLACE.delete(SNAPSHOTS, namespace, claim);
    PLACE.until(namespace, "the snapshot and its content are gone", || {
        let left = PLACE.find(SNAPSHOTS, namespace, claim).or_else(|| PLACE.find(CONTENTS, "", &content));
        left.is_none().then_some(())
    });
    PLACE.delete(SNAPSHOT_CLASSES, "", "hostpath-csi");
}
