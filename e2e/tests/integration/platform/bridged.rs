//! A guest on the pod network by `bridge`: it has the pod's address, which it is given by DHCP, and answers other pods.

use std::fs;

use guests::telling;
use serde_json::{Value, json};

use crate::platform::console::Console;
use crate::platform::machines::{claim, machine};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::streams::Streams;

const NAMESPACE: &str = "bridged-pod";

/// The VM's pod.
fn launcher() -> Value {
    let of_vm = |pod: &Value| pod["metadata"]["labels"]["vm.kubevirt.io/name"] == "vm";
    PLACE.list(PODS, NAMESPACE).into_iter().find(of_vm).unwrap()
}

/// What a pod prints that asks for the page at an address.
fn asked(address: &str) -> String {
    let request = r"printf 'GET / HTTP/1.0\r\n\r\n'";
    let command =
        format!("until {request} | nc -w 9 {address} 80 | grep '{}'; do sleep 1; done", telling::PAGE);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 107, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main", "image": e2e::node::BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", command],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    PLACE.create(PODS, NAMESPACE, &pod);
    PLACE.until(NAMESPACE, "the pod has the guest's answer", || {
        let pod = PLACE.find(PODS, NAMESPACE, "client")?;
        (pod["status"]["phase"] == "Succeeded").then_some(())
    });
    PLACE.kubectl(&["-n", NAMESPACE, "logs", "client"]).unwrap()
}

#[test]
fn a_guest_on_a_bridge_has_the_address_of_its_pod_and_answers_pods() {
    PLACE.namespace(NAMESPACE);
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("guest.raw");
    telling::disk(&disk);
    let _volume = claim(NAMESPACE, "vm", &fs::read(&disk).unwrap());
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["memory"]["guest"] = json!("256Mi");
    spec["domain"]["devices"]["interfaces"] = json!([{"name": "default", "bridge": {}}]);
    PLACE.create(MACHINES, NAMESPACE, &vm);
    let _streams = Streams::follow();
    let mut console = PLACE.until(NAMESPACE, "the console", || Console::open(&PLACE, NAMESPACE, "vm").ok());
    let report = telling::facts(&console.read_until(telling::TOLD).unwrap()).unwrap();
    let pod = launcher();
    let address = pod["status"]["podIP"].as_str().unwrap();
    let card = report.iter().find_map(|fact| fact.strip_prefix("network ")).unwrap();
    let interface = &PLACE.find(INSTANCES, NAMESPACE, "vm").unwrap()["status"]["interfaces"][0];
    assert_eq!(interface["ipAddress"], address, "{interface}");
    let words: Vec<&str> = card.split(' ').collect();
    assert_eq!(interface["mac"], words[1], "{card}");
    assert!(words[2].starts_with(&format!("{address}/")), "{card}: the pod has {address}");
    assert!(asked(address).contains(telling::PAGE));
    PLACE.delete(MACHINES, NAMESPACE, "vm");
    PLACE.remove_namespace(NAMESPACE);
}
