//! Changes of a VM while its guest runs: fields that it follows, and fields that need a restart.

use std::fs;

use cluster::Resource;
use e2e::peer::web::Web;
use e2e::storage::POOL;
use serde_json::{Value, json};

use super::{condition, instance, patch};
use crate::platform::guest;
use crate::platform::machines::{create, imported, until_answers};
use crate::platform::place::{CLAIMS, MACHINES, PLACE};

fn restart_required(namespace: &str) -> bool {
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    condition(&vm, "RestartRequired").is_some_and(|one| one["status"] == "True")
}

fn template(spec: &Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

/// More memory reaches a guest that runs, which has no driver and takes none of it; less waits for a restart.
fn memory(namespace: &str) {
    let guest = |amount: &str| {
        patch(namespace, "vm", &template(&json!({"domain": {"memory": {"guest": amount}}})));
    };
    let status = || instance(namespace, "vm")["status"]["memory"].clone();
    assert_eq!(status()["guestAtBoot"], "1Gi");
    guest("1280Mi");
    PLACE.until(namespace, "the guest is given memory", || {
        (status()["guestRequested"] == "1280Mi").then_some(())
    });
    PLACE.until(namespace, "HotMemoryChange", || {
        let lacks = condition(&instance(namespace, "vm"), "HotMemoryChange")?;
        (lacks["status"] == "True").then_some(())
    });
    assert!(!restart_required(namespace));
    until_answers(namespace, "vm", 2);
    guest("1Gi");
    PLACE.until(namespace, "RestartRequired", || restart_required(namespace).then_some(()));
}

#[test]
fn sockets_memory_and_placement_are_followed_and_cores_wait_for_a_restart() {
    let namespace = "live";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    assert_eq!(instance(namespace, "vm")["status"]["currentCPUTopology"]["sockets"], 1);
    patch(namespace, "vm", &template(&json!({"domain": {"cpu": {"sockets": 2}}})));
    PLACE.until(namespace, "the guest has two sockets", || {
        (instance(namespace, "vm")["status"]["currentCPUTopology"]["sockets"] == 2).then_some(())
    });
    let tolerations = json!([{"key": "a", "operator": "Exists"}]);
    patch(namespace, "vm", &template(&json!({"tolerations": tolerations})));
    PLACE.until(namespace, "the instance has the tolerations", || {
        (instance(namespace, "vm")["spec"]["tolerations"] == tolerations).then_some(())
    });
    assert!(!restart_required(namespace));
    until_answers(namespace, "vm", 1);
    patch(namespace, "vm", &template(&json!({"domain": {"cpu": {"cores": 2}}})));
    PLACE.until(namespace, "RestartRequired", || restart_required(namespace).then_some(()));
    assert_eq!(instance(namespace, "vm")["spec"]["domain"]["cpu"]["cores"], 1);
    patch(namespace, "vm", &template(&json!({"domain": {"cpu": {"cores": 1}}})));
    PLACE.until(namespace, "no RestartRequired", || (!restart_required(namespace)).then_some(()));
    // Sockets are not removed while the guest runs.
    patch(namespace, "vm", &template(&json!({"domain": {"cpu": {"sockets": 1}}})));
    PLACE.until(namespace, "RestartRequired", || restart_required(namespace).then_some(()));
    // Guests that start below 1 GiB get no more memory.
    patch(namespace, "vm", &template(&json!({"domain": {"memory": {"guest": "1Gi"}}})));
    PLACE.put(namespace, "virtualmachines/vm/restart").unwrap();
    until_answers(namespace, "vm", 2);
    PLACE.until(namespace, "no RestartRequired", || (!restart_required(namespace)).then_some(()));
    assert_eq!(instance(namespace, "vm")["status"]["currentCPUTopology"]["sockets"], 1);
    memory(namespace);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn disk_grows_with_its_claim_while_the_guest_runs() {
    const MIB: u64 = 1 << 20;
    let namespace = "growth";
    PLACE.namespace(namespace);
    let folder = tempfile::tempdir().unwrap();
    guest::qcow2(&folder.path().join("guest.qcow2"));
    let web = Web::start(PLACE.cluster.place(), folder.path()).unwrap();
    PLACE.create(MACHINES, namespace, &imported("vm", &web.url("guest.qcow2")));
    until_answers(namespace, "vm", 1);
    let claim = PLACE.find(CLAIMS, namespace, "vm-root").unwrap();
    let volume = Resource::cluster("", "v1", "persistentvolumes");
    let volume = PLACE.find(volume, "", claim["spec"]["volumeName"].as_str().unwrap()).unwrap();
    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap();
    let disk = PLACE.cluster.node_path(&format!("{POOL}/{handle}/disk.img")).unwrap();
    let length = || fs::metadata(&disk).unwrap().len();
    let before = length();
    assert!((64 * MIB..=72 * MIB).contains(&before), "{before}");
    let larger = json!({"spec": {"resources": {"requests": {"storage": "160Mi"}}}}).to_string();
    PLACE.kubectl(&["-n", namespace, "patch", "pvc", "vm-root", "--type=merge", "-p", &larger]).unwrap();
    // Some per cent are the filesystem's.
    PLACE.until(namespace, "the disk has grown with its claim", || (length() >= 144 * MIB).then_some(()));
    assert!(length() < 160 * MIB, "{}", length());
    let reported = &instance(namespace, "vm")["status"]["volumeStatus"][0]["persistentVolumeClaimInfo"];
    assert_eq!(reported["capacity"]["storage"], "160Mi");
    until_answers(namespace, "vm", 1);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
