//! Clones by the driver: from a claim, and from what a DataSource names.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::peer::web::Web;
use serde_json::json;

use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, WAITING, apply, assert_same};
use crate::storage::space::{Space, until};
use crate::storage::timeline::Timeline;

#[test]
fn an_imported_disk_is_cloned_without_copying_data() {
    let space = Space::new("clones");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    // The clones wait for their source.
    let forced = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": ""});
    let golden = json!({"pvc": {"namespace": "clones", "name": "golden"}});
    space.data_volume("early", &golden, IMMEDIATE, "Filesystem", &json!({}));
    until("the clone says what it waits for", || {
        let (_, reason, message) = space.condition("early", "Running")?;
        (reason == "CloneWithoutSource" && message.contains("golden doesn't exist")).then_some(())
    });
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    space.data_volume("golden", &source, IMMEDIATE, "Filesystem", &json!({}));
    space.phases("golden", "Succeeded");
    space.phases("early", "Succeeded");
    let begun = Instant::now();
    space.data_volume("clone", &golden, WAITING, "Filesystem", &forced);
    let phases = space.phases("clone", "Succeeded");
    println!("clone, created until Succeeded: {:.2?}, phases seen {phases:?}", begun.elapsed());
    space.create("DataSource", json!({"metadata": {"name": "image"}, "spec": {"source": golden}}));
    space.create(
        "DataVolume",
        json!({
            "metadata": {"name": "referring"},
            "spec": {
                "sourceRef": {"kind": "DataSource", "name": "image"},
                "storage": {"resources": {"requests": {"storage": "96Mi"}}, "storageClassName": IMMEDIATE},
            },
        }),
    );
    space.phases("referring", "Succeeded");
    for name in ["early", "clone", "referring"] {
        assert_same(&space.file(name));
        let extents = Command::new("filefrag").arg("-v").arg(space.file(name)).output().unwrap();
        assert!(String::from_utf8_lossy(&extents.stdout).contains("shared"), "{name}: no data was copied");
    }
    until("no temporary claim is left", || {
        space.names("PersistentVolumeClaim").iter().all(|name| !name.starts_with("tmp-pvc-")).then_some(())
    });
}

/// Writes random bytes to the beginning of a disk.
pub(crate) fn fill(disk: &Path, mebibytes: u32) {
    let mut to = OsString::from("of=");
    to.push(disk);
    let wrote = Command::new("dd")
        .args(["if=/dev/urandom", "bs=1M", "conv=notrunc,fsync", "status=none"])
        .arg(format!("count={mebibytes}"))
        .arg(to)
        .status();
    assert!(wrote.unwrap().success());
}

/// A disk shares all of its data with another one.
#[track_caller]
pub(crate) fn assert_shared(disk: &Path) {
    let extents = Command::new("filefrag").arg("-v").arg(disk).output().unwrap();
    let text = String::from_utf8_lossy(&extents.stdout).into_owned();
    let rows = text.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    let (shared, all) =
        rows.fold((0, 0), |(shared, all), row| (shared + usize::from(row.contains("shared")), all + 1));
    assert!(all > 0 && shared == all, "no data was copied: {text}");
}

/// A DataVolume of 4 GiB.
fn large(space: &Space, name: &str, source: &serde_json::Value) {
    space.create(
        "DataVolume",
        json!({
            "metadata": {"name": name},
            "spec": {
                "source": source,
                "storage": {"resources": {"requests": {"storage": "4Gi"}}, "storageClassName": IMMEDIATE},
            },
        }),
    );
}

#[test]
fn a_clone_of_four_gibibytes_copies_nothing() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (space, other) = (Space::new("clones-large"), Space::new("clones-large-far"));
    large(&space, "golden", &json!({"blank": {}}));
    space.phases("golden", "Succeeded");
    // The whole disk with the full counts, an eighth of it otherwise.
    fill(&space.file("golden"), if soak { 4096 } else { 512 });
    let golden = json!({"pvc": {"namespace": "clones-large", "name": "golden"}});
    for (place, which) in [(&space, "same"), (&other, "other")] {
        let begun = Instant::now();
        large(place, "clone", &golden);
        place.phases("clone", "Succeeded");
        let took = begun.elapsed();
        println!("clone of 4 GiB in the {which} namespace: {took:.2?}");
        assert!(!soak || took <= Duration::from_secs(2), "{took:?}");
        assert_shared(&place.file("clone"));
    }
    for space in [&space, &other] {
        assert_clean(space);
        // The pool is the other tests' too.
        for name in space.names("DataVolume") {
            space.delete("DataVolume", &name);
        }
    }
}

/// Makes a class with this clone strategy and binding mode.
pub(crate) fn class(strategy: &str, binding: &str) -> String {
    let name = format!("hostpath-{strategy}-{}", binding.to_lowercase());
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata:\n  name: {name}\n  annotations: \
             {{cdi.kubevirt.io/clone-strategy: {strategy}}}\nprovisioner: kubevirt.io.hostpath-provisioner\n\
             volumeBindingMode: {binding}\nallowVolumeExpansion: true\nparameters: {{storagePool: legacy}}\n"
        ),
    );
    name
}

/// A namespace with a filled claim `golden`.
pub(crate) fn golden(name: &str, class: &str) -> (Space, Web) {
    let space = Space::new(name);
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    space.data_volume("golden", &source, class, "Filesystem", &json!({}));
    space.phases("golden", "Succeeded");
    (space, web)
}

/// Nothing that helped with a clone is left in a namespace.
#[track_caller]
fn assert_clean(space: &Space) {
    until("helpers of clones are gone", || {
        let kinds = ["PersistentVolumeClaim", "Pod", "Service", "Secret", "VolumeSnapshot"];
        let mut left: Vec<String> = kinds.iter().flat_map(|kind| space.names(kind)).collect();
        // Stock csi-provisioner tries only once to remove its finalizer from a snapshot.
        left.retain(|name| {
            let snapshot = space.get("VolumeSnapshot", name);
            snapshot.is_none_or(|one| one["metadata"]["deletionTimestamp"].is_null())
        });
        let helps = |name: &&String| {
            ["tmp-", "cdi-upload-"].iter().any(|begin| name.starts_with(begin))
                || name.ends_with("-source-pod")
        };
        left.iter().find(helps).is_none().then_some(())
    });
}

#[test]
fn a_disk_is_cloned_into_another_namespace_without_copying_data() {
    let (source, _web) = golden("clones-source", IMMEDIATE);
    let target = Space::new("clones-target");
    let golden = json!({"pvc": {"namespace": "clones-source", "name": "golden"}});
    target.data_volume("clone", &golden, IMMEDIATE, "Filesystem", &json!({}));
    let phases = target.phases("clone", "Succeeded");
    println!("{phases:?}");
    assert_same(&target.file("clone"));
    let extents = Command::new("filefrag").arg("-v").arg(target.file("clone")).output().unwrap();
    assert!(String::from_utf8_lossy(&extents.stdout).contains("shared"), "no data was copied");
    assert_clean(&source);
    let claim = target.get("PersistentVolumeClaim", "clone").unwrap();
    until("the finalizer is gone", || {
        let claim = target.get("PersistentVolumeClaim", "clone")?;
        let finalizers = claim["metadata"]["finalizers"].to_string();
        (!finalizers.contains("clonePopulator")).then_some(())
    });
    assert!(claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.extended.clone.token"].is_string());
    // A user without rights in the source's namespace is refused, in upstream's words.
    let volume = format!(
        "{{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {{name: stolen, namespace: clones-target}}, \
         spec: {{source: {{pvc: {{namespace: clones-source, name: golden}}}}, storage: {{storageClassName: {IMMEDIATE}, \
         resources: {{requests: {{storage: 96Mi}}}}}}}}}}"
    );
    let file = CLUSTER.place().path("stolen.yaml");
    std::fs::write(&file, volume).unwrap();
    let rights =
        ["create", "rolebinding", "bob", "-n", "clones-target", "--clusterrole=cluster-admin", "--user=bob"];
    assert!(CLUSTER.kubectl().args(rights).output().unwrap().status.success());
    let tried = CLUSTER.kubectl().args(["create", "--as=bob", "-f"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&tried.stderr);
    let text = "User bob has insufficient permissions in clone source namespace clones-source";
    assert!(!tried.status.success() && said.contains(text), "{said}");
}

#[test]
fn a_token_is_good_for_its_own_clone_only() {
    let (_source, _web) = golden("clones-tokens", IMMEDIATE);
    let space = Space::new("clones-forged");
    // A claim that claims to belong to a DataVolume of its user, with an unsigned token.
    let golden = json!({"pvc": {"namespace": "clones-tokens", "name": "golden"}});
    let never = json!({"cdi.kubevirt.io/storage.prePopulated": "copy"});
    space.data_volume("copy", &golden, IMMEDIATE, "Filesystem", &never);
    let uid = space.get("DataVolume", "copy").unwrap()["metadata"]["uid"].clone();
    space.create(
        "PersistentVolumeClaim",
        json!({
            "metadata": {
                "name": "copy",
                "annotations": {
                    "cdi.kubevirt.io/storage.extended.clone.token": "a.b.c", "cdi.kubevirt.io/clonePhase": "CSIClone",
                    "cdi.kubevirt.io/cloneType": "csi-clone",
                },
                "ownerReferences": [{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "copy",
                    "uid": uid, "controller": true}],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": IMMEDIATE,
                "resources": {"requests": {"storage": "128Mi"}},
                "dataSourceRef": {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeCloneSource", "name": "x"},
            },
        }),
    );
    until("the claim says why it is not filled", || {
        let claim = space.get("PersistentVolumeClaim", "copy")?;
        let reason = &claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.condition.running.reason"];
        (*reason == "CloneNotAuthorized").then_some(())
    });
    assert_eq!(space.get("PersistentVolumeClaim", "copy").unwrap()["status"]["phase"], "Pending");
}

#[test]
fn a_disk_is_copied_where_the_storage_cannot_clone() {
    let class = class("copy", "Immediate");
    let (source, _web) = golden("clones-copied", &class);
    let other = Space::new("clones-copied-far");
    let golden = json!({"pvc": {"namespace": "clones-copied", "name": "golden"}});
    source.data_volume("file", &golden, &class, "Filesystem", &json!({}));
    // Other volume modes are always copied.
    source.data_volume("device", &golden, IMMEDIATE, "Block", &json!({}));
    other.data_volume("far", &golden, &class, "Filesystem", &json!({}));
    for (space, name) in [(&source, "file"), (&source, "device"), (&other, "far")] {
        space.phases(name, "Succeeded");
        let reported = space.events(name);
        assert!(reported.iter().any(|(reason, _)| reason == "CloneInProgress"), "{name}: {reported:?}");
        assert_same(&space.file(name));
        let claim = space.get("PersistentVolumeClaim", name).unwrap();
        assert_eq!(claim["metadata"]["annotations"]["cdi.kubevirt.io/cloneType"], "copy");
    }
    let claim = source.get("PersistentVolumeClaim", "device").unwrap();
    let reason = &claim["metadata"]["annotations"]["cdi.kubevirt.io/cloneFallbackReason"];
    assert_eq!(reason, "IncompatibleVolumeModes");
    assert_clean(&source);
    assert_clean(&other);
}

#[test]
fn a_source_in_use_is_copied_later_and_a_smaller_target_is_refused() {
    let (space, _web) = golden("clones-used", IMMEDIATE);
    let source = json!({"pvc": {"namespace": space.0, "name": "golden"}});
    space.consumer("golden", "Filesystem");
    until("a pod writes to the source", || {
        (space.get("Pod", "consumer-golden")?["status"]["phase"] == "Running").then_some(())
    });
    let reports = |name: &str, reason: &str, text: &str| {
        until(&format!("{name} reports {reason}"), || {
            let (status, found, message) = space.condition(name, "Running")?;
            (status == "False" && found == reason && message.starts_with(text)).then_some(())
        });
        space.warned(name, reason, text);
    };
    // Another volume mode is copied.
    space.data_volume("copy", &source, IMMEDIATE, "Block", &json!({}));
    let text = format!("pod {}/consumer-golden using PersistentVolumeClaim golden", space.0);
    reports("copy", "CloneSourceInUse", &text);
    space.delete("Pod", "consumer-golden");
    space.phases("copy", "Succeeded");
    assert_same(&space.file("copy"));
    let storage = json!({"storageClassName": IMMEDIATE, "resources": {"requests": {"storage": "32Mi"}}});
    let spec = json!({"source": source, "storage": storage});
    space.create("DataVolume", json!({"metadata": {"name": "smaller"}, "spec": spec}));
    reports("smaller", "CloneValidationFailed", "The clone doesn't meet the validation requirements");
    assert_eq!(space.get("PersistentVolumeClaim", "smaller").unwrap()["status"]["phase"], "Pending");
}

#[test]
fn a_disk_is_cloned_by_snapshot_and_grows() {
    let class = class("snapshot", "Immediate");
    let (space, _web) = golden("clones-snapshots", &class);
    let golden = json!({"pvc": {"namespace": "clones-snapshots", "name": "golden"}});
    let timeline = Timeline::start(&space);
    // The same phases however fast the clone is.
    let went = |name: &str, phases: &[&str]| {
        timeline.at("DataVolume", name, "Succeeded");
        assert_eq!(
            timeline.phases(name),
            [&["Pending"][..], phases, &["RebindInProgress", "Succeeded"]].concat(),
            "{name}"
        );
    };
    space.data_volume("smart", &golden, &class, "Filesystem", &json!({}));
    space.phases("smart", "Succeeded");
    assert_same(&space.file("smart"));
    went("smart", &["SnapshotForSmartCloneInProgress", "CloneFromSnapshotSourceInProgress"]);
    space.create(
        "VolumeSnapshot",
        json!({
            "metadata": {"name": "taken"},
            "spec": {"volumeSnapshotClassName": "hostpath-csi", "source": {"persistentVolumeClaimName": "golden"}},
        }),
    );
    until("the snapshot is ready", || {
        (space.get("VolumeSnapshot", "taken")?["status"]["readyToUse"] == true).then_some(())
    });
    let taken = json!({"snapshot": {"namespace": "clones-snapshots", "name": "taken"}});
    space.data_volume("restored", &taken, &class, "Filesystem", &json!({}));
    space.phases("restored", "Succeeded");
    assert_same(&space.file("restored"));
    went("restored", &["CloneFromSnapshotSourceInProgress"]);
    // One that is larger, and one that gives no size.
    for (name, resources) in [("larger", json!({"requests": {"storage": "300Mi"}})), ("unsized", json!({}))] {
        space.create(
            "DataVolume",
            json!({
                "metadata": {"name": name},
                "spec": {"source": golden, "storage": {"storageClassName": IMMEDIATE, "resources": resources}},
            }),
        );
        space.phases(name, "Succeeded");
        assert_same(&space.file(name));
    }
    let capacity = |name: &str| {
        let claim = space.get("PersistentVolumeClaim", name).unwrap();
        let text = claim["status"]["capacity"]["storage"].as_str().unwrap().to_owned();
        api::quantity::bytes(&text).unwrap()
    };
    went("larger", &["CSICloneInProgress", "PrepClaimInProgress"]);
    assert!(capacity("larger") >= 300 << 20);
    assert!(capacity("unsized") <= capacity("golden") + (1 << 20));
    assert_clean(&space);
}

#[test]
fn a_namespaces_owners_grant_clones_to_another_one() {
    let (source, _web) = golden("grants-source", IMMEDIATE);
    let target = Space::new("grants-target");
    let reference = json!({"kind": "PersistentVolumeClaim", "name": "golden"});
    target.create("VolumeCloneSource", json!({"metadata": {"name": "far"}, "spec": {"source": reference}}));
    let annotations = json!({"cdi.kubevirt.io/dataSourceNamespace": "grants-source"});
    target.claim("mine", ("VolumeCloneSource", "far"), &annotations);
    until("the claim says why it is not filled", || {
        let claim = target.get("PersistentVolumeClaim", "mine")?;
        let reason = &claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.condition.running.reason"];
        (*reason == "CloneNotAuthorized").then_some(())
    });
    source.create(
        "ReferenceGrant",
        json!({
            "metadata": {"name": "golden"},
            "spec": {
                "from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": "grants-target"}],
                "to": [{"group": "", "kind": "PersistentVolumeClaim", "name": "golden"}],
            },
        }),
    );
    until("the claim is filled", || {
        (target.get("PersistentVolumeClaim", "mine")?["status"]["phase"] == "Bound").then_some(())
    });
    assert_same(&target.file("mine"));
    assert_clean(&source);
    // The kinds that fill claims are named to volume-data-source-validator.
    until("VolumePopulators exist", || {
        let names = target.names("VolumePopulator");
        ["import", "upload", "clone"]
            .iter()
            .all(|kind| names.contains(&format!("volume{kind}source-populator")))
            .then_some(())
    });
}
