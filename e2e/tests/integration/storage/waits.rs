//! A DataVolume that does not progress reports within ten seconds the missing part and the remedy.

use std::time::{Duration, Instant};

use e2e::bar;
use e2e::peer::web::Web;
use serde_json::{Value, json};

use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, WAITING, apply};
use crate::storage::space::{Space, until};
use crate::storage::timeline::Timeline;

/// Bar until the condition has the reason.
const REPORTED: Duration = Duration::from_secs(10);

/// Makes a DataVolume and waits for this reason of its Running condition.
#[track_caller]
fn says(space: &Space, name: &str, source: &Value, class: &str, reason: &str, words: &[&str]) {
    let storage = json!({"resources": {"requests": {"storage": "96Mi"}}, "storageClassName": class});
    expect_condition(
        space,
        name,
        (&json!({"source": source, "storage": storage}), &json!({})),
        reason,
        words,
    );
}

/// The same for any specification.
#[track_caller]
fn expect_condition(
    space: &Space,
    name: &str,
    (spec, annotations): (&Value, &Value),
    reason: &str,
    words: &[&str],
) {
    let (mut begun, mut given) = (Instant::now(), false);
    space.create("DataVolume", json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec}));
    let (status, message) = until(&format!("{name} says {reason}"), || {
        // Stock csi-provisioner may take longer for a volume.
        if !given && has_volume(space, name) {
            (begun, given) = (Instant::now(), true);
        }
        let (status, found, message) = space.condition(name, "Running")?;
        let all = found.contains(reason) && words.iter().all(|word| message.contains(word));
        all.then_some((status, message))
    });
    let took = begun.elapsed();
    assert_eq!(status, "False");
    assert!(took < bar(REPORTED), "{name}: {took:?}: {message}");
}

/// Whether the prime claim has its volume.
fn has_volume(space: &Space, name: &str) -> bool {
    space.get("PersistentVolumeClaim", name).is_some_and(|claim| {
        let prime = format!("prime-{}", claim["metadata"]["uid"].as_str().unwrap());
        let prime = space.get("PersistentVolumeClaim", &prime);
        prime.is_some_and(|prime| prime["status"]["phase"] == "Bound")
    })
}

#[test]
fn a_waiting_data_volume_reports_the_reason() {
    let space = Space::new("waits");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let blank = json!({"blank": {}});
    apply(
        &CLUSTER,
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: hostpath-broken}\n\
         provisioner: kubevirt.io.hostpath-provisioner\nvolumeBindingMode: Immediate\n\
         parameters: {storagePool: nowhere}\n",
    );
    says(&space, "classless", &blank, "missing", "ErrClaimNotValid", &["StorageClass missing", "create it"]);
    let (none, size) = (json!({}), |size: &str| json!({"requests": {"storage": size}}));
    let default = json!({"source": blank, "storage": {"resources": size("96Mi")}});
    let words = ["no default StorageClass", "is-default-class"];
    expect_condition(&space, "defaultless", (&default, &none), "ErrClaimNotValid", &words);
    let vast = |class: &str| json!({"source": blank, "storage": {"resources": size("1Ti"), "storageClassName": class}});
    let forced = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": ""});
    let words = ["cannot be scheduled", "free storage"];
    expect_condition(&space, "vast", (&vast(WAITING), &forced), "Unschedulable", &words);
    let words = ["no node has room", "of 1086Gi", IMMEDIATE, "ask for less"];
    expect_condition(&space, "vaster", (&vast(IMMEDIATE), &none), "ProvisioningFailed", &words);
    says(&space, "unused", &blank, WAITING, "WaitForFirstConsumer", &["waits for a pod", "immediate"]);
    says(
        &space,
        "failing",
        &blank,
        "hostpath-broken",
        "ProvisioningFailed",
        &["no node reports room", "StorageClass hostpath-broken", "check its parameters"],
    );
    // Kubernetes binds a volume to the claim, which a populator was to fill.
    apply(
        &CLUSTER,
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: hostpath-given}\n\
         provisioner: kubevirt.io.hostpath-provisioner\nvolumeBindingMode: Immediate\n\
         parameters: {storagePool: nowhere}\n---\n\
         apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: given}\n\
         spec: {storageClassName: hostpath-given, accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, \
         claimRef: {namespace: waits, name: misbound}, persistentVolumeReclaimPolicy: Retain, hostPath: {path: /tmp/given}}\n",
    );
    let bound = ["PV given bound to unexpected claim misbound", "delete PVC misbound"];
    says(&space, "misbound", &blank, "hostpath-given", "ErrUnexpectedClaim", &bound);
    let phase = space.get("DataVolume", "misbound").unwrap()["status"]["phase"].clone();
    assert_ne!(phase, "Succeeded");
    let absent = json!({"http": {"url": web.url("absent.qcow2")}});
    let host = CLUSTER.place().host_address().to_string();
    says(&space, "unfound", &absent, IMMEDIATE, "Error", &["404", &host]);
    let silent = json!({"http": {"url": format!("http://{host}:9/disk.qcow2")}});
    says(&space, "silent", &silent, IMMEDIATE, "Error", &[&host, "refused"]);
    let untrusted = json!({"http": {"url": web.https_url("disk.qcow2"), "certConfigMap": "authority"}});
    says(&space, "untrusted", &untrusted, IMMEDIATE, "FailedMount", &["configmap", "authority", "not found"]);
    let image = format!("docker://{host}:9/disks/none:1");
    let pulled = json!({"registry": {"url": image, "pullMethod": "node"}});
    says(&space, "unpulled", &pulled, IMMEDIATE, "ImagePull", &[&host, "refused"]);
    let fetched = json!({"registry": {"url": image}});
    says(&space, "unfetched", &fetched, IMMEDIATE, "ImagePullFailed", &[&host, "refused"]);
    // Accepted as by CDI, and no file of the importer's pod.
    let archive = "oci-archive:/images/none.tar";
    let packed = json!({"registry": {"url": archive}});
    says(&space, "packed", &packed, IMMEDIATE, "ImagePullFailed", &[archive]);
    let clone = json!({"pvc": {"namespace": "waits", "name": "nothing"}});
    says(&space, "sourceless", &clone, IMMEDIATE, "CloneWithoutSource", &["nothing doesn't exist"]);
    let claim = space.get("PersistentVolumeClaim", "sourceless").unwrap();
    let error = "The source PersistentVolumeClaim nothing doesn't exist";
    assert_eq!(claim["metadata"]["annotations"]["cdi.kubevirt.io/cloneError"], error);
    // The volume controller reports it on the claim; the DataVolume has no event of its own for it.
    let events = space.events("unused");
    let own = |message: &str| !message.contains("to be created before binding");
    assert!(
        events.iter().all(|(reason, message)| reason != "WaitForFirstConsumer" || !own(message)),
        "waiting is not a fault: {events:?}"
    );
}

#[test]
fn many_waiting_data_volumes_report_the_reason_as_soon_as_one() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let space = Space::new("waits-many");
    apply(
        &CLUSTER,
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: hostpath-nowhere}\n\
         provisioner: kubevirt.io.hostpath-provisioner\nvolumeBindingMode: Immediate\n\
         parameters: {storagePool: nowhere}\n",
    );
    let timeline = Timeline::start(&space);
    let names: Vec<String> =
        (0..if soak { 200 } else { 20 }).map(|number| format!("waiting{number:03}")).collect();
    for name in &names {
        space.data_volume(name, &json!({"blank": {}}), "hostpath-nowhere", "Filesystem", &json!({}));
    }
    let mut times = Vec::new();
    for name in &names {
        let reported = until(&format!("{name} reports its wait"), || {
            let states = timeline.states("Running", name);
            states.into_iter().find(|state| state.starts_with("False Provisioning"))
        });
        let made = timeline.at("DataVolume", name, "made");
        times.push(timeline.at("Running", name, &reported).duration_since(made));
    }
    let longest = times.iter().max().unwrap();
    println!("{} DataVolumes without room: reported after {longest:.1?} at most", times.len());
    assert!(*longest < bar(REPORTED), "{times:?}");
    space.delete("Namespace", &space.0);
}

#[test]
fn a_quota_is_named_and_the_data_volume_continues_without_it() {
    let space = Space::new("waits-quota");
    let quota = |name: &str, hard: Value| {
        space.create("ResourceQuota", json!({"metadata": {"name": name}, "spec": {"hard": hard}}));
        until("the quota is in force", || {
            space.get("ResourceQuota", name)?["status"]["hard"].is_object().then_some(())
        });
    };
    let blank = json!({"blank": {}});
    quota("claims", json!({"requests.storage": "1Mi"}));
    says(&space, "disk", &blank, IMMEDIATE, "ErrExceededQuota", &["exceeded quota: claims"]);
    space.delete("ResourceQuota", "claims");
    space.phases("disk", "Succeeded");
    quota("pods", json!({"pods": "0"}));
    says(&space, "podless", &blank, IMMEDIATE, "ErrStartingPod", &["exceeded quota: pods"]);
    space.delete("ResourceQuota", "pods");
    space.phases("podless", "Succeeded");
    // The claim itself is allowed, the one that the importer writes to is not.
    let claims = || space.names("PersistentVolumeClaim");
    until("prime claims are gone", || claims().iter().all(|name| !name.starts_with("prime-")).then_some(()));
    quota("prime", json!({"persistentvolumeclaims": (claims().len() + 1).to_string()}));
    let words = ["exceeded quota: prime", "in namespace waits-quota", "raise the quota"];
    says(&space, "primeless", &blank, IMMEDIATE, "ErrExceededQuota", &words);
    let (status, reason, _) = space.condition("primeless", "Bound").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ErrExceededQuota"));
    let events = space.events("primeless");
    assert!(events.iter().any(|(reason, _)| reason == "ErrCreatingPVCPrime"), "{events:?}");
    space.delete("ResourceQuota", "prime");
    space.phases("primeless", "Succeeded");
}

#[test]
fn a_quota_in_the_source_namespace_of_a_clone_is_named() {
    let (golden, space) = (Space::new("waits-golden"), Space::new("waits-copies"));
    let blank = json!({"blank": {}});
    let storage = json!({"resources": {"requests": {"storage": "96Mi"}}, "storageClassName": IMMEDIATE});
    golden.create(
        "DataVolume",
        json!({"metadata": {"name": "disk"}, "spec": {"source": blank, "storage": storage}}),
    );
    golden.phases("disk", "Succeeded");
    until("the source has one claim", || (golden.names("PersistentVolumeClaim").len() == 1).then_some(()));
    let spec = json!({"hard": {"persistentvolumeclaims": "1"}});
    golden.create("ResourceQuota", json!({"metadata": {"name": "claims"}, "spec": spec}));
    until("the quota is in force", || {
        golden.get("ResourceQuota", "claims")?["status"]["hard"].is_object().then_some(())
    });
    let clone = json!({"pvc": {"namespace": "waits-golden", "name": "disk"}});
    let words = ["exceeded quota: claims", "in namespace waits-golden"];
    says(&space, "copy", &clone, IMMEDIATE, "ErrExceededQuota", &words);
    golden.delete("ResourceQuota", "claims");
    space.phases("copy", "Succeeded");
}
