//! Power requests with their options, refusals in upstream's words, identity over restarts, and deletion that leaves the
//! instance.

use std::fs;

use serde_json::{Value, json};

use super::{claim, condition, instance, put};
use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::machines::{create, machine, until_answers};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::streams::Streams;

#[track_caller]
fn refused(namespace: &str, path: &str, body: &Value, words: &str) {
    let said = put(namespace, path, body).unwrap_err();
    assert!(said.contains(words), "{path}: {said}");
}

/// Services select pods that are ready.
#[track_caller]
fn until_pod_ready(namespace: &str, wanted: &str) {
    PLACE.until(namespace, &format!("the launcher pod's Ready is {wanted}"), || {
        let pods = PLACE.list(PODS, namespace);
        let pod = pods.iter().find(|pod| pod["metadata"]["labels"]["kubevirt.io"] == "virt-launcher")?;
        condition(pod, "Ready").filter(|ready| ready["status"] == wanted).map(drop)
    });
}

#[test]
fn machine_starts_paused_keeps_its_identity_and_refuses_as_upstream_does() {
    let namespace = "power";
    PLACE.namespace(namespace);
    let _agent = Streams::follow();
    let root = claim(namespace, "vm", false);
    fs::write(root.path().join("disk.img"), guest::disk()).unwrap();
    let vm = machine("vm", "Manual", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    PLACE.create(MACHINES, namespace, &vm);
    PLACE.until_status(namespace, "vm", "Stopped");
    let preset = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset",
        "metadata": {"name": "small"}, "spec": {"domain": {"devices": {}}, "selector": {}},
    });
    let file = PLACE.cluster.place().path("preset.json");
    fs::write(&file, preset.to_string()).unwrap();
    let said = PLACE.kubectl(&["-n", namespace, "create", "-f", file.to_str().unwrap()]).unwrap_err();
    assert!(said.contains("VirtualMachineInstancePreset is deprecated and not applied"), "{said}");
    let none = json!({});
    refused(namespace, "virtualmachines/vm/stop", &none, "VM is not running");
    refused(namespace, "virtualmachines/vm/restart", &none, "VM is not running");
    refused(namespace, "virtualmachines/absent/start", &none, "not found");
    let dry = json!({"dryRun": ["All"]});
    put(namespace, "virtualmachines/vm/start", &dry).unwrap();
    put(namespace, "virtualmachines/vm/start", &json!({"paused": true})).unwrap();
    PLACE.until_status(namespace, "vm", "Paused");
    until_pod_ready(namespace, "False");
    // Its guest has not begun: nothing answers until it is unpaused.
    refused(namespace, "virtualmachines/vm/start", &none, "VM is already running");
    refused(namespace, "virtualmachineinstances/vm/pause", &none, "VMI is already paused");
    refused(namespace, "virtualmachineinstances/vm/softreboot", &none, "VMI is paused");
    put(namespace, "virtualmachineinstances/vm/unpause", &dry).unwrap();
    PLACE.until_status(namespace, "vm", "Paused");
    put(namespace, "virtualmachineinstances/vm/unpause", &none).unwrap();
    until_answers(namespace, "vm", 1);
    refused(namespace, "virtualmachineinstances/vm/unpause", &none, "VMI is not paused");
    until_pod_ready(namespace, "True");
    put(namespace, "virtualmachineinstances/vm/pause", &none).unwrap();
    until_pod_ready(namespace, "False");
    put(namespace, "virtualmachineinstances/vm/unpause", &none).unwrap();
    until_pod_ready(namespace, "True");
    let spec = |object: &Value| object["spec"]["domain"]["firmware"].clone();
    let first = instance(namespace, "vm");
    let stored = PLACE.find(MACHINES, namespace, "vm").unwrap();
    assert_eq!(spec(&first), stored["spec"]["template"]["spec"]["domain"]["firmware"]);
    assert!(spec(&first)["uuid"].is_string() && spec(&first)["serial"].is_string(), "{}", spec(&first));
    refused(
        namespace,
        "virtualmachines/vm/restart",
        &json!({"gracePeriodSeconds": 5}),
        "only gracePeriod=0 is supported",
    );
    put(namespace, "virtualmachines/vm/restart", &json!({"gracePeriodSeconds": 0})).unwrap();
    PLACE.until(namespace, "another instance", || {
        PLACE
            .find(INSTANCES, namespace, "vm")
            .filter(|one| one["metadata"]["uid"] != first["metadata"]["uid"])
    });
    until_answers(namespace, "vm", 2);
    assert_eq!(spec(&instance(namespace, "vm")), spec(&first));
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    assert_eq!(vm["status"]["stateChangeRequests"].as_array().map_or(0, Vec::len), 0, "{}", vm["status"]);
    put(namespace, "virtualmachines/vm/stop", &dry).unwrap();
    put(namespace, "virtualmachines/vm/stop", &none).unwrap();
    PLACE.until_status(namespace, "vm", "Stopped");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn deletion_by_orphaning_leaves_the_guest_running() {
    let namespace = "orphaned";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    PLACE.kubectl(&["-n", namespace, "delete", "vm", "vm", "--cascade=orphan", "--wait=false"]).unwrap();
    PLACE.until(namespace, "the VM is gone", || PLACE.list(MACHINES, namespace).is_empty().then_some(()));
    let left = PLACE.until(namespace, "the instance has no owner", || {
        let left = instance(namespace, "vm");
        let owners = left["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
        (owners == 0).then_some(left)
    });
    assert_eq!(left["metadata"]["deletionTimestamp"], Value::Null);
    assert!(condition(&left, "Ready").is_some_and(|one| one["status"] == "True"));
    let _agent = Streams::follow();
    Console::open(&PLACE, namespace, "vm").unwrap().ask(b'x', "G1x").unwrap();
    PLACE.delete(INSTANCES, namespace, "vm");
    PLACE.until(namespace, "the instance and its pod are gone", || {
        (PLACE.list(INSTANCES, namespace).is_empty() && PLACE.list(PODS, namespace).is_empty()).then_some(())
    });
    PLACE.remove_namespace(namespace);
}
