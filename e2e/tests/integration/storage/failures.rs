//! Imports that fail, and the conditions of their DataVolumes; they continue when the cause is removed.

use std::time::{Duration, Instant};

use e2e::bar;
use e2e::peer::flaky::{Flaky, Mood};
use e2e::peer::registry::Registry;
use e2e::peer::web::Web;
use serde_json::{Value, json};

use crate::storage::platform;
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, MIB, assert_same};
use crate::storage::sources;
use crate::storage::space::{Space, until};
use crate::storage::timeline::Timeline;

#[test]
fn an_image_that_appears_later_is_imported() {
    let space = Space::new("failures-missing");
    let server = Flaky::start(CLUSTER.place(), &DISK.qcow2, 1000 * MIB).unwrap();
    server.set_mood(Mood::Missing);
    space.data_volume("disk", &json!({"http": {"url": server.url()}}), IMMEDIATE, "Filesystem", &json!({}));
    let (reason, message) = until("the server's answer is reported", || {
        let (status, reason, message) = space.condition("disk", "Running")?;
        (status == "False" && message.contains("answered 404")).then_some((reason, message))
    });
    assert_eq!(reason, "Error");
    assert!(message.contains(&server.url()), "{message}");
    space.warned("disk", "Error", "404");
    assert_eq!(space.condition("disk", "Ready").unwrap().0, "False");
    let claim = space.get("PersistentVolumeClaim", "disk").unwrap();
    let pending =
        format!("PVC disk Pending [prime PVC prime-{}]", claim["metadata"]["uid"].as_str().unwrap());
    let (status, reason, message) = space.condition("disk", "Bound").unwrap();
    assert_eq!([&*status, &*reason, &*message], ["False", "Pending", &*pending]);
    server.set_mood(Mood::Well);
    space.phases("disk", "Succeeded");
    assert_same(&space.file("disk"));
    let volume = space.get("DataVolume", "disk").unwrap();
    assert!(volume["status"]["restartCount"].as_u64().unwrap() >= 1);
    space.completed("disk");
    until("the success is an event", || {
        let text = "Successfully imported into PVC disk".to_owned();
        space.events("disk").contains(&("ImportSucceeded".to_owned(), text)).then_some(())
    });
}

#[test]
fn an_importer_that_fails_three_times_is_started_again_until_it_succeeds() {
    let space = Space::new("failures-thrice");
    let server = Flaky::start(CLUSTER.place(), &DISK.qcow2, 1000 * MIB).unwrap();
    server.set_mood(Mood::Missing);
    let timeline = Timeline::start(&space);
    space.data_volume("disk", &json!({"http": {"url": server.url()}}), IMMEDIATE, "Filesystem", &json!({}));
    until("the importer has failed three times", || {
        let volume = space.get("DataVolume", "disk")?;
        (volume["status"]["restartCount"].as_u64()? >= 3).then_some(())
    });
    let volume = space.get("DataVolume", "disk").unwrap();
    assert!(
        ["ImportScheduled", "ImportInProgress"].contains(&volume["status"]["phase"].as_str().unwrap()),
        "{volume}"
    );
    until("why it fails is said", || {
        let (status, reason, message) = space.condition("disk", "Running")?;
        (status == "False" && reason == "Error" && message.contains("404")).then_some(())
    });
    assert_eq!(space.condition("disk", "Ready").unwrap().0, "False");
    server.set_mood(Mood::Well);
    space.phases("disk", "Succeeded");
    assert_same(&space.file("disk"));
    let phases = timeline.phases("disk");
    assert_eq!(phases, ["Pending", "ImportScheduled", "ImportInProgress", "Succeeded"]);
    assert_eq!(space.condition("disk", "Ready").unwrap().0, "True");
    let events = space.events("disk");
    let count = |wanted: &str| events.iter().filter(|(reason, _)| reason == wanted).count();
    assert!(
        events.iter().any(|(reason, message)| reason == "Error" && message.contains("404")),
        "{events:?}"
    );
    assert_eq!((count("ImportScheduled"), count("ImportInProgress")), (1, 1), "{events:?}");
    // On the claim, which has the DataVolume's name.
    space.warned("disk", "ErrImportFailed", "404");
    until("the success is an event", || {
        let events = space.events("disk");
        events.iter().any(|(reason, _)| reason == "ImportSucceeded").then_some(())
    });
}

#[test]
fn an_image_of_another_architecture_is_named_and_the_right_one_is_taken() {
    let space = Space::new("failures-architecture");
    let registry = Registry::start(CLUSTER.place()).unwrap();
    let folder = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    let layer = sources::layer(folder.path());
    let image = CLUSTER.run(registry.push_for("arm64", "disks/foreign", &layer, &[])).unwrap();
    let fields = sources::pulled(&space, &registry, &image);
    let source = |architecture: &str| {
        let mut fields = fields.clone();
        fields["platform"] = json!({"architecture": architecture});
        json!({"registry": fields})
    };
    space.data_volume("disk", &source("amd64"), IMMEDIATE, "Filesystem", &json!({}));
    let text = "the image is for linux/arm64, and linux/amd64 was asked for";
    until("the architecture is named", || {
        let (status, _, message) = space.condition("disk", "Running")?;
        (status == "False" && message.contains(text)).then_some(())
    });
    until("the event names it", || {
        space.events("disk").iter().any(|(_, message)| message.contains(text)).then_some(())
    });
    // Asked for, it is a disk like others.
    space.data_volume("foreign", &source("arm64"), IMMEDIATE, "Filesystem", &json!({}));
    space.phases("foreign", "Succeeded");
    assert_same(&space.file("foreign"));
    CLUSTER.run(registry.push("disks/foreign", &layer, &[])).unwrap();
    space.phases("disk", "Succeeded");
    assert_same(&space.file("disk"));
}

/// An object as backup tools create it again: without identity, owners and status.
fn exported(object: &Value) -> Value {
    let mut spec = object["spec"].clone();
    spec.as_object_mut().unwrap().remove("dataSource");
    let mut meta = object["metadata"].clone();
    meta["annotations"].as_object_mut().unwrap().retain(|name, _| !name.starts_with("pv.kubernetes.io/"));
    let meta = json!({"name": meta["name"], "labels": meta["labels"], "annotations": meta["annotations"]});
    json!({"metadata": meta, "spec": spec})
}

/// A DataVolume and its claim, as they are exported.
struct Saved {
    name: &'static str,
    volume: Value,
    claim: Value,
    /// The claim is created before the DataVolume.
    first: bool,
}

impl Saved {
    /// Name of the claim's volume.
    fn persistent(&self) -> &str {
        self.claim["spec"]["volumeName"].as_str().unwrap()
    }
}

/// Waits until both name each other as filled.
fn save(space: &Space, name: &'static str, first: bool) -> Saved {
    space.phases(name, "Succeeded");
    let marked = |kind: &str, annotation: &str| {
        until(&format!("{kind} {name} has {annotation}"), || {
            let object = space.get(kind, name)?;
            let annotation = format!("cdi.kubevirt.io/storage.{annotation}");
            (object["metadata"]["annotations"][annotation] == name).then_some(object)
        })
    };
    let claim = marked("PersistentVolumeClaim", "populatedFor");
    Saved { name, volume: marked("DataVolume", "prePopulated"), claim, first }
}

/// Deletes both; the volume outlives its claim, as a backup's does, and stays reserved for it.
fn lose(space: &Space, saved: &Saved) {
    let (name, volume) = (saved.name, saved.persistent());
    space.patch("PersistentVolume", volume, &json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    space.delete("DataVolume", name);
    until("both are gone", || {
        let gone = space.get("DataVolume", name).is_none();
        (gone && space.get("PersistentVolumeClaim", name).is_none()).then_some(())
    });
    until("the volume is released", || {
        (space.get("PersistentVolume", volume)?["status"]["phase"] == "Released").then_some(())
    });
    // It stays this claim's, whichever id that will have; an available volume would be anybody's.
    space.patch(
        "PersistentVolume",
        volume,
        &json!({"spec": {"claimRef": {"uid": null, "resourceVersion": null}}}),
    );
}

#[test]
fn restored_claims_are_adopted_and_not_filled_again() {
    let space = Space::new("failures-restored");
    let server = Flaky::start(CLUSTER.place(), &DISK.qcow2, 1000 * MIB).unwrap();
    let source = json!({"http": {"url": server.url()}});
    space.data_volume("golden", &source, IMMEDIATE, "Filesystem", &json!({}));
    space.phases("golden", "Succeeded");
    let golden = json!({"pvc": {"namespace": space.0, "name": "golden"}});
    let cases = [
        ("disk", &source, "Filesystem", "true", false),
        ("device", &source, "Block", "true", false),
        ("direct", &source, "Filesystem", "false", false),
        ("cloned", &golden, "Filesystem", "true", false),
        ("early", &source, "Filesystem", "true", true),
    ];
    for (name, source, mode, populator, _) in cases {
        let annotations = json!({
            "cdi.kubevirt.io/storage.populatedFor": name, "cdi.kubevirt.io/storage.usePopulator": populator,
        });
        space.data_volume(name, source, IMMEDIATE, mode, &annotations);
    }
    let all = cases.map(|(name, .., first)| save(&space, name, first));
    for saved in &all {
        lose(&space, saved);
    }
    let (sent, made) = (server.sent(), platform::pods_made(&space.0).len());
    for saved in &all {
        if saved.first {
            space.create("PersistentVolumeClaim", exported(&saved.claim));
            until("the restored claim is bound", || {
                (space.get("PersistentVolumeClaim", saved.name)?["status"]["phase"] == "Bound").then_some(())
            });
        } else {
            space.create("DataVolume", exported(&saved.volume));
            until("the restored DataVolume is looked at", || {
                (space.get("DataVolume", saved.name)?["status"]["phase"] == "Pending").then_some(())
            });
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    for saved in &all {
        let (name, claim) = (saved.name, space.get("PersistentVolumeClaim", saved.name));
        if saved.first {
            space.create("DataVolume", exported(&saved.volume));
        } else {
            assert!(claim.is_none(), "{name} waits for its claim");
            space.create("PersistentVolumeClaim", exported(&saved.claim));
        }
    }
    for saved in &all {
        let name = saved.name;
        space.phases(name, "Succeeded");
        let claim = space.get("PersistentVolumeClaim", name).unwrap();
        assert_eq!(claim["metadata"]["ownerReferences"][0]["kind"], "DataVolume", "{name}");
        assert_eq!(claim["spec"]["volumeName"], saved.persistent(), "{name}");
        until("it is bound", || {
            (space.get("PersistentVolumeClaim", name)?["status"]["phase"] == "Bound").then_some(())
        });
        assert_same(&space.file(name));
    }
    until("no pod is left", || space.names("Pod").is_empty().then_some(()));
    assert_eq!(server.sent(), sent, "nothing is fetched again");
    assert_eq!(platform::pods_made(&space.0).len(), made, "no worker is made again");
    let helped = |name: &String| name.starts_with("prime-") || name.starts_with("tmp-");
    assert!(!space.names("PersistentVolumeClaim").iter().any(helped), "nothing is cloned again");
    for saved in &all {
        let delete = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        space.patch("PersistentVolume", saved.persistent(), &delete);
    }
}

#[test]
fn a_wrong_checksum_fails_and_is_not_tried_again() {
    let space = Space::new("failures-checksum");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let checksum = format!("sha256:{}", "0".repeat(64));
    let source = json!({"http": {"url": web.url("disk.qcow2"), "checksum": checksum}});
    space.data_volume("disk", &source, IMMEDIATE, "Filesystem", &json!({}));
    space.phases("disk", "Failed");
    let (running, reason, _) = space.condition("disk", "Running").unwrap();
    assert_eq!((running.as_str(), reason.as_str()), ("False", "ChecksumError"));
    assert_eq!(space.condition("disk", "Ready").unwrap().0, "False");
    assert_eq!(space.condition("disk", "Bound").unwrap().0, "False", "the volume is not handed over");
    space.warned("disk", "ImportFailed", "Failed to import into PVC disk");
    space.warned("disk", "ChecksumError", "checksum");
    until("the importer is gone", || space.names("Pod").is_empty().then_some(()));
    std::thread::sleep(Duration::from_secs(3));
    assert!(space.names("Pod").is_empty(), "it is not tried again");
}

#[test]
fn a_missing_class_is_named_and_used_when_it_appears() {
    let space = Space::new("failures-class");
    let begun = Instant::now();
    space.data_volume("disk", &json!({"blank": {}}), "later", "Filesystem", &json!({}));
    let message = until("the class is named", || {
        let (_, reason, message) = space.condition("disk", "Running")?;
        (reason == "ErrClaimNotValid").then_some(message)
    });
    assert!(begun.elapsed() < bar(Duration::from_secs(10)));
    assert!(message.contains("StorageClass later does not exist"), "{message}");
    space.warned("disk", "ErrClaimNotValid", "StorageClass later does not exist");
    let (status, reason, message) = space.condition("disk", "Bound").unwrap();
    assert_eq!([&*status, &*reason, &*message], ["False", "NotFound", "No PVC found"]);
    assert_eq!(space.condition("disk", "Ready").unwrap().0, "False");
    assert_eq!(space.get("DataVolume", "disk").unwrap()["status"]["phase"], "Pending");
    space.create(
        "StorageClass",
        json!({
            "metadata": {"name": "later"}, "provisioner": "kubevirt.io.hostpath-provisioner",
            "volumeBindingMode": "Immediate", "parameters": {"storagePool": "legacy"},
        }),
    );
    space.phases("disk", "Succeeded");
    space.completed("disk");
}

#[test]
fn a_quota_is_reported_and_the_import_continues_without_it() {
    let space = Space::new("failures-quota");
    space.create(
        "ResourceQuota",
        json!({"metadata": {"name": "none"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}}),
    );
    until("the quota is in force", || {
        let quota = space.get("ResourceQuota", "none")?;
        quota["status"]["hard"].is_object().then_some(())
    });
    space.data_volume("disk", &json!({"blank": {}}), IMMEDIATE, "Filesystem", &json!({}));
    until("the quota is reported", || {
        let (status, reason, _) = space.condition("disk", "Bound")?;
        (status == "False" && reason == "ErrExceededQuota").then_some(())
    });
    assert_eq!(space.get("DataVolume", "disk").unwrap()["status"]["phase"], "Pending");
    space.warned("disk", "ErrExceededQuota", "exceeded quota: none");
    space.delete("ResourceQuota", "none");
    space.phases("disk", "Succeeded");
    space.completed("disk");
}

#[test]
fn a_deleted_claim_is_made_and_filled_again() {
    let space = Space::new("failures-claim");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    let timeline = Timeline::start(&space);
    space.data_volume("disk", &source, IMMEDIATE, "Filesystem", &json!({}));
    space.phases("disk", "Succeeded");
    let uid = space.get("PersistentVolumeClaim", "disk").unwrap()["metadata"]["uid"].clone();
    // The claim stays until no pod uses it.
    space.consumer("disk", "Filesystem");
    until("the claim is used", || {
        (space.get("Pod", "consumer-disk")?["status"]["phase"] == "Running").then_some(())
    });
    space.delete("PersistentVolumeClaim", "disk");
    until("the DataVolume waits for the end of its claim", || {
        let (status, reason, message) = space.condition("disk", "Running")?;
        let named = message.contains("marked for deletion");
        (status == "False" && reason == "ErrResourceMarkedForDeletion" && named).then_some(())
    });
    space.warned("disk", "ErrResourceMarkedForDeletion", "marked for deletion");
    space.delete("Pod", "consumer-disk");
    until("another claim is filled", || {
        let claim = space.get("PersistentVolumeClaim", "disk")?;
        let done = space.get("DataVolume", "disk")?["status"]["phase"] == "Succeeded";
        (claim["metadata"]["uid"] != uid && done && claim["status"]["phase"] == "Bound").then_some(())
    });
    assert_same(&space.file("disk"));
    space.completed("disk");
    let once = ["Pending", "ImportScheduled", "ImportInProgress", "Succeeded"];
    assert_eq!(timeline.phases("disk"), [once, once].concat());
}

#[test]
fn a_volume_that_is_reserved_for_the_claim_is_used_as_it_is() {
    let space = Space::new("failures-static");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    space.data_volume("before", &source, IMMEDIATE, "Filesystem", &json!({}));
    space.phases("before", "Succeeded");
    let claim = space.get("PersistentVolumeClaim", "before").unwrap();
    let volume = claim["spec"]["volumeName"].as_str().unwrap().to_owned();
    space.patch("PersistentVolume", &volume, &json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    space.delete("DataVolume", "before");
    until("the volume is released", || {
        (space.get("PersistentVolume", &volume)?["status"]["phase"] == "Released").then_some(())
    });
    let reserved =
        json!({"namespace": "failures-static", "name": "after", "uid": null, "resourceVersion": null});
    space.patch("PersistentVolume", &volume, &json!({"spec": {"claimRef": reserved}}));
    until("the volume is available", || {
        (space.get("PersistentVolume", &volume)?["status"]["phase"] == "Available").then_some(())
    });
    // A transfer would fail.
    let absent = json!({"http": {"url": web.url("absent.qcow2")}});
    let checked = json!({"cdi.kubevirt.io/storage.checkStaticVolume": ""});
    space.data_volume("after", &absent, IMMEDIATE, "Filesystem", &checked);
    assert_eq!(space.phases("after", "Succeeded").last().map(String::as_str), Some("Succeeded"));
    let claim = space.get("PersistentVolumeClaim", "after").unwrap();
    assert_eq!(claim["spec"]["volumeName"], volume);
    let (pods, uid) = (space.names("Pod"), claim["metadata"]["uid"].as_str().unwrap());
    let worked = pods.iter().any(|pod| pod.contains(uid));
    assert!(claim["spec"]["dataSourceRef"].is_null() && !worked, "{pods:?}: {claim}");
    assert_same(&space.file("after"));
    // Without a reserved volume the source is imported.
    space.data_volume("usual", &source, IMMEDIATE, "Filesystem", &checked);
    space.phases("usual", "Succeeded");
    assert_same(&space.file("usual"));
}

#[test]
fn a_data_volume_deleted_during_its_transfer_leaves_nothing() {
    let space = Space::new("failures-deleted");
    let server = Flaky::start(CLUSTER.place(), &DISK.qcow2, MIB / 4).unwrap();
    let import = json!({"http": {"url": server.url()}});
    let upload = json!({"upload": {}});
    let cases = [
        ("imported", &import, "ImportInProgress", "true"),
        ("imported-directly", &import, "ImportInProgress", "false"),
        ("uploaded", &upload, "UploadReady", "true"),
        ("uploaded-directly", &upload, "UploadReady", "false"),
    ];
    for (name, source, phase, populator) in cases {
        let annotations = json!({"cdi.kubevirt.io/storage.usePopulator": populator});
        space.data_volume(name, source, IMMEDIATE, "Filesystem", &annotations);
        space.phases(name, phase);
        space.delete("DataVolume", name);
        until(&format!("nothing of {name} is left"), || {
            let left = [space.names("PersistentVolumeClaim"), space.names("Pod"), space.names("Service")];
            left.iter().all(Vec::is_empty).then_some(())
        });
    }
}

#[test]
fn a_namespace_with_running_imports_is_deleted_in_thirty_seconds() {
    let space = Space::new("failures-namespace");
    let server = Flaky::start(CLUSTER.place(), &DISK.qcow2, MIB / 4).unwrap();
    for number in 0..3 {
        let source = json!({"http": {"url": server.url()}});
        space.data_volume(&format!("disk-{number}"), &source, IMMEDIATE, "Filesystem", &json!({}));
    }
    space.phases("disk-0", "ImportInProgress");
    let begun = Instant::now();
    space.delete("Namespace", "failures-namespace");
    until("the namespace is gone", || space.get("Namespace", "failures-namespace").is_none().then_some(()));
    println!("namespace with 3 running imports: gone after {:.1?}", begun.elapsed());
    assert!(begun.elapsed() < bar(Duration::from_secs(30)));
}
