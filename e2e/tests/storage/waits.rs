//! A DataVolume that does not progress reports within ten seconds the missing part and the remedy.

use std::time::{Duration, Instant};

use e2e::bar;
use e2e::peer::web::Web;
use serde_json::{Value, json};

use crate::setup::{CLUSTER, DISK, IMMEDIATE, WAITING, apply};
use crate::space::{Space, until};

/// Bar until the condition has the reason.
const REPORTED: Duration = Duration::from_secs(10);

/// Makes a DataVolume and waits for this reason of its Running condition.
#[track_caller]
fn says(space: &Space, name: &str, source: &Value, class: &str, reason: &str, words: &[&str]) {
    let begun = Instant::now();
    space.data_volume(name, source, class, "Filesystem", &json!({}));
    let (status, message) = until(&format!("{name} says {reason}"), || {
        let (status, found, message) = space.condition(name, "Running")?;
        let all = found == reason && words.iter().all(|word| message.contains(word));
        all.then_some((status, message))
    });
    let took = begun.elapsed();
    assert_eq!(status, "False");
    assert!(took < bar(REPORTED), "{name}: {took:?}: {message}");
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
    says(&space, "unused", &blank, WAITING, "WaitForFirstConsumer", &["waits for a pod", "immediate"]);
    says(
        &space,
        "failing",
        &blank,
        "hostpath-broken",
        "Provisioning",
        &["kubevirt.io.hostpath-provisioner", "is its driver running?"],
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
    says(&space, "unfound", &absent, IMMEDIATE, "Error", &["404"]);
    let clone = json!({"pvc": {"namespace": "waits", "name": "nothing"}});
    says(&space, "sourceless", &clone, IMMEDIATE, "CloneWithoutSource", &["nothing doesn't exist"]);
    // The volume controller reports it on the claim; the DataVolume has no event of its own for it.
    let events = space.events("unused");
    let own = |message: &str| !message.contains("to be created before binding");
    assert!(
        events.iter().all(|(reason, message)| reason != "WaitForFirstConsumer" || !own(message)),
        "waiting is not a fault: {events:?}"
    );
}
