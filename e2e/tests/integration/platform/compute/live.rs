//! Changes of a VM while its guest runs: fields that it follows, and fields that need a restart.

use std::fs;

use e2e::volume::Volume;
use serde_json::{Value, json};

use super::{condition, instance, patch};
use crate::platform::guest;
use crate::platform::machines::{create, machine, until_answers};
use crate::platform::place::{MACHINES, PLACE};

fn restart_required(namespace: &str) -> bool {
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    condition(&vm, "RestartRequired").is_some_and(|one| one["status"] == "True")
}

fn template(spec: &Value) -> Value {
    json!({"spec": {"template": {"spec": spec}}})
}

#[test]
fn sockets_and_placement_are_followed_and_cores_wait_for_a_restart() {
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
    PLACE.put(namespace, "virtualmachines/vm/restart").unwrap();
    until_answers(namespace, "vm", 2);
    PLACE.until(namespace, "no RestartRequired", || (!restart_required(namespace)).then_some(()));
    assert_eq!(instance(namespace, "vm")["status"]["currentCPUTopology"]["sockets"], 1);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

/// The size that a claim reports, which the API server otherwise only takes from a driver.
fn report_capacity(namespace: &str, claim: &str, size: &str) {
    let patch = json!({"status": {"capacity": {"storage": size}}}).to_string();
    let command =
        ["-n", namespace, "patch", "pvc", claim, "--subresource=status", "--type=merge", "-p", &patch];
    PLACE.kubectl(&command).unwrap();
}

#[test]
fn disk_grows_with_its_claim_while_the_guest_runs() {
    const MIB: u64 = 1 << 20;
    let namespace = "growth";
    PLACE.namespace(namespace);
    let volume = Volume::filesystem(&PLACE.cluster, namespace, "vm", 8 * MIB).unwrap();
    let disk = volume.path().join("disk.img");
    fs::write(&disk, guest::disk()).unwrap();
    std::os::unix::fs::chown(&disk, Some(107), Some(107)).unwrap();
    PLACE.until(namespace, "the claim is bound", || {
        let command = ["-n", namespace, "get", "pvc", "vm", "-o", "jsonpath={.status.phase}"];
        (PLACE.kubectl(&command).unwrap() == "Bound").then_some(())
    });
    report_capacity(namespace, "vm", "1Mi");
    let claim = json!({"persistentVolumeClaim": {"claimName": "vm"}});
    PLACE.create(MACHINES, namespace, &machine("vm", "Always", &claim));
    until_answers(namespace, "vm", 1);
    assert_eq!(fs::metadata(&disk).unwrap().len(), guest::SIZE);
    report_capacity(namespace, "vm", "8Mi");
    // 5.5 % are the filesystem's.
    PLACE.until(namespace, "the disk has 7 MiB", || {
        (fs::metadata(&disk).unwrap().len() == 7 * MIB).then_some(())
    });
    let reported = &instance(namespace, "vm")["status"]["volumeStatus"][0]["persistentVolumeClaimInfo"];
    assert_eq!(reported["capacity"]["storage"], "8Mi");
    until_answers(namespace, "vm", 1);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
