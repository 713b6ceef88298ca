//! Changes of a VM while its guest runs: fields that it follows, and fields that need a restart.

use serde_json::{Value, json};

use super::{condition, instance, patch};
use crate::platform::machines::{create, until_answers};
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
