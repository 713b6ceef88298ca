//! VolumeGroupSnapshots without sidecars and without another snapshot controller.

use csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode};
use serde_json::{Value, json};

use crate::platform::hostpath::{DRIVER, apply, bound, claim, get};
use crate::platform::machines::user;
use crate::platform::place::{CONTENTS, PLACE, PODS, SNAPSHOTS};
use crate::platform::pools::driver;
use crate::platform::streams::replace_agent_at;

const CLASS: &str = "hostpath-csi";

/// A VolumeGroupSnapshot of the claims with a label.
fn group(namespace: &str, name: &str, label: &str) {
    let object = json!({
        // The older version of the same objects.
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name},
        "spec": {
            "volumeGroupSnapshotClassName": "groups",
            "source": {"selector": {"matchLabels": {"group": label}}},
        },
    });
    apply(&format!("{namespace}-{name}"), &object, &["-n", namespace]).unwrap();
}

fn labelled(name: &str, label: &str) -> Value {
    let mut claim = claim(CLASS, 16);
    claim["metadata"] = json!({"name": name, "labels": {"group": label}});
    claim
}

/// A pod that has two claims, and runs.
fn pod(namespace: &str, name: &str, claims: [&str; 2]) {
    let pod = user(name, &claims);
    apply(&format!("{namespace}-{name}"), &pod, &["-n", namespace]).unwrap();
    PLACE.until(namespace, &format!("{name} runs"), || {
        PLACE.find(PODS, namespace, name).filter(|pod| pod["status"]["phase"] == "Running")
    });
}

fn run(namespace: &str, pod: &str, command: &str) -> String {
    PLACE.kubectl(&["-n", namespace, "exec", pod, "--", "sh", "-c", command]).unwrap()
}

/// The error in a group's status.
fn error(namespace: &str, name: &str, wanted: &str) {
    let mut shown = String::new();
    PLACE.until(namespace, &format!("{name} says {wanted:?}"), || {
        let status = get(namespace, &format!("volumegroupsnapshot/{name}"))?["status"].clone();
        shown = status.to_string();
        (status["readyToUse"] == false && shown.contains(wanted)).then_some(())
    });
}

/// Binds another group to the taken one by its handles, and deletes it: the driver keeps the taken one.
fn bind_given(namespace: &str, content: &Value, handles: &[String]) {
    let taken =
        get("", &format!("volumegroupsnapshotcontent/{}", content["metadata"]["name"].as_str().unwrap()));
    let taken = taken.unwrap();
    let given = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": "given", "labels": taken["metadata"]["labels"]},
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Retain",
            "volumeGroupSnapshotRef": {"namespace": namespace, "name": "bound"},
            "source": {"groupSnapshotHandles": {
                "volumeGroupSnapshotHandle": taken["status"]["volumeGroupSnapshotHandle"],
                "volumeSnapshotHandles": handles,
            }},
        },
    });
    apply("given", &given, &[]).unwrap();
    let bound = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": "bound"}, "spec": {"source": {"volumeGroupSnapshotContentName": "given"}},
    });
    apply("bound", &bound, &["-n", namespace]).unwrap();
    let status = PLACE.until(namespace, "the given group is ready", || {
        let group = get(namespace, "volumegroupsnapshot/bound")?;
        (group["status"]["readyToUse"] == true).then(|| group["status"].clone())
    });
    assert_eq!(status["boundVolumeGroupSnapshotContentName"], "given");
    assert_eq!(status["creationTime"], taken["status"]["creationTime"]);
    PLACE.kubectl(&["-n", namespace, "delete", "volumegroupsnapshot", "bound", "--timeout=60s"]).unwrap();
    PLACE.kubectl(&["delete", "volumegroupsnapshotcontent", "given", "--timeout=60s"]).unwrap();
}

/// A volume that an agent leaves when it ends while the driver makes the volume and the claim goes.
const STRAY: &str = "pvc-6f1d8c53-8a0e-4c0f-9d57-0a4ee0b1c9aa";

fn make_stray() {
    let mode = AccessMode { mode: access_mode::Mode::SingleNodeWriter.into() };
    let request = csi::CreateVolumeRequest {
        name: STRAY.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 16 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![csi::VolumeCapability {
            access_mode: Some(mode),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        ..Default::default()
    };
    let mut driver = driver();
    PLACE.cluster.run(driver.create_volume(request)).unwrap();
}

/// The next agent reports it and leaves it alone.
fn stray_is_reported(namespace: &str) {
    PLACE.until(namespace, "the agent reports the volume that no object names", || {
        let events = PLACE
            .kubectl(&["get", "events", "--all-namespaces", "--field-selector=reason=VolumesWithoutObjects"])
            .ok()?;
        events.contains(STRAY).then_some(())
    });
    let request = csi::DeleteVolumeRequest { volume_id: STRAY.to_owned(), ..Default::default() };
    let folder = PLACE.cluster.node_path(&format!("{}/{STRAY}", e2e::storage::POOL)).unwrap();
    assert!(folder.is_dir(), "it is left alone");
    let mut driver = driver();
    PLACE.cluster.run(driver.delete_volume(request)).unwrap();
}

#[test]
fn claims_with_a_label_are_taken_at_one_point_in_time_restored_and_deleted() {
    let namespace = "group-snapshots";
    PLACE.namespace(namespace);
    let class = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": "groups"}, "driver": DRIVER, "deletionPolicy": "Delete",
    });
    PLACE.until(namespace, "the operator makes the kinds of groups", || {
        apply("groups", &class, &[]).is_ok().then_some(())
    });
    for name in ["data", "log"] {
        apply(&format!("group-{name}"), &labelled(name, "shop"), &["-n", namespace]).unwrap();
    }
    pod(namespace, "writer", ["data", "log"]);
    run(namespace, "writer", "echo before >/data/file; echo before >/log/file; sync");

    make_stray();
    let mut content = Value::Null;
    replace_agent_at(|| {
        group(namespace, "taken", "shop");
        content = PLACE.until(namespace, "the group has a content", || {
            let uid = get(namespace, "volumegroupsnapshot/taken")?["metadata"]["uid"].as_str()?.to_owned();
            get("", &format!("volumegroupsnapshotcontent/groupsnapcontent-{uid}"))
        });
    });
    assert_eq!(content["metadata"]["labels"]["snapshot.storage.kubernetes.io/managed-by"], "node1");
    stray_is_reported(namespace);
    PLACE.until(namespace, "the group is ready", || {
        let group = get(namespace, "volumegroupsnapshot/taken")?;
        (group["status"]["readyToUse"] == true).then_some(())
    });
    run(namespace, "writer", "echo after >/data/file; echo after >/log/file; sync");
    let members = PLACE.until(namespace, "both members are ready", || {
        let members = PLACE.list(SNAPSHOTS, namespace);
        let ready = members.iter().filter(|one| one["status"]["readyToUse"] == true).count();
        (ready == 2).then_some(members)
    });
    let mut handles = Vec::new();
    for member in &members {
        let of = member["spec"]["source"]["persistentVolumeClaimName"].as_str().unwrap();
        assert_eq!(member["status"]["volumeGroupSnapshotName"], "taken");
        let content = member["status"]["boundVolumeSnapshotContentName"].as_str().unwrap();
        let content = PLACE.find(CONTENTS, "", content).unwrap();
        handles.push(content["status"]["snapshotHandle"].as_str().unwrap().to_owned());
        let mut restored = claim(CLASS, 16);
        restored["metadata"]["name"] = json!(format!("{of}-restored"));
        restored["spec"]["dataSource"] = json!({
            "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": member["metadata"]["name"],
        });
        apply(&format!("restored-{of}"), &restored, &["-n", namespace]).unwrap();
    }
    pod(namespace, "reader", ["data-restored", "log-restored"]);
    let read = run(namespace, "reader", "cat /data-restored/file /log-restored/file");
    assert_eq!(read, "before\nbefore\n");

    bind_given(namespace, &content, &handles);

    // A member alone stays; the group takes all with it.
    let first = members[0]["metadata"]["name"].as_str().unwrap();
    PLACE.kubectl(&["-n", namespace, "delete", "volumesnapshot", first, "--wait=false"]).unwrap();
    PLACE.until(namespace, "the member's deletion waits", || {
        let events = PLACE.kubectl(&["-n", namespace, "get", "events"]).unwrap();
        events.contains("is a member of VolumeGroupSnapshot taken").then_some(())
    });
    assert!(PLACE.find(SNAPSHOTS, namespace, first).is_some());
    let delete = ["-n", namespace, "delete", "volumegroupsnapshot", "taken", "--wait=false"];
    replace_agent_at(|| drop(PLACE.kubectl(&delete).unwrap()));
    let name = content["metadata"]["name"].as_str().unwrap();
    PLACE.until(namespace, "the group and its content are gone", || {
        let group = get(namespace, "volumegroupsnapshot/taken");
        let content = get("", &format!("volumegroupsnapshotcontent/{name}"));
        (group.is_none() && content.is_none()).then_some(())
    });
    PLACE.until(namespace, "the members are gone", || {
        let contents = PLACE.list(CONTENTS, "");
        let of = |one: &&Value| one["spec"]["volumeSnapshotRef"]["namespace"] == namespace;
        let gone = PLACE.list(SNAPSHOTS, namespace).is_empty() && contents.iter().find(of).is_none();
        gone.then_some(())
    });
    for handle in &handles {
        let folder = format!("{}/snapshots/{handle}", e2e::storage::POOL);
        let folder = PLACE.cluster.node_path(&folder).unwrap();
        assert!(!folder.exists(), "{}", folder.display());
    }
    assert_eq!(run(namespace, "reader", "cat /data-restored/file /log-restored/file"), "before\nbefore\n");

    // A group is of one node, and of volumes that its driver has.
    for (name, node) in [("elsewhere", "elsewhere"), ("absent", "node1")] {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("group-{name}")},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"}, "storageClassName": "given",
                "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": DRIVER, "volumeHandle": format!("pvc-{name}")},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.hostpath.csi/node", "operator": "In", "values": [node]}]}]}},
            },
        });
        apply(&format!("volume-{name}"), &volume, &[]).unwrap();
        let mut given = labelled(name, "shop");
        given["spec"]["storageClassName"] = json!("given");
        given["spec"]["volumeName"] = json!(format!("group-{name}"));
        apply(&format!("claim-{name}"), &given, &["-n", namespace]).unwrap();
        bound(namespace, name);
        let why = if name == "absent" { "pvc-absent" } else { "must be on one node" };
        group(namespace, name, "shop");
        error(namespace, name, why);
        PLACE.kubectl(&["-n", namespace, "delete", "volumegroupsnapshot", name]).unwrap();
        PLACE.kubectl(&["-n", namespace, "delete", "pvc", name]).unwrap();
        PLACE.kubectl(&["delete", "pv", &format!("group-{name}")]).unwrap();
    }
    PLACE.kubectl(&["-n", namespace, "delete", "pod", "--all"]).unwrap();
    PLACE.kubectl(&["-n", namespace, "delete", "pvc", "--all"]).unwrap();
    PLACE.kubectl(&["delete", "volumegroupsnapshotclass", "groups"]).unwrap();
    PLACE.remove_namespace(namespace);
}
