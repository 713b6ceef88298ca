//! The reference plugin `ptp` as the pod network, with an interface that lists its ports.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use e2e::peer::web::Web;
use guests::telling;
use serde_json::json;

use crate::platform::console::Console;
use crate::platform::machines::{claim, echoes, machine, page};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};

const NAMESPACE: &str = "ptp";

/// The node's configuration that comes before the harness's.
fn configuration() -> PathBuf {
    PLACE.cluster.node_path("/etc/cni/net.d/05-ptp.conflist").unwrap()
}

pub(crate) fn guest_is_on_a_point_to_point_network() {
    PLACE.namespace(NAMESPACE);
    let pods = PLACE.cluster.place().pods();
    let start = pods.replace(".0/24", ".200");
    let list = json!({
        "cniVersion": "1.0.0", "name": "ptp",
        "plugins": [
            {
                "type": "ptp", "ipMasq": false,
                "ipam": {
                    "type": "host-local", "routes": [{"dst": "0.0.0.0/0"}],
                    "ranges": [[{"subnet": pods, "rangeStart": start}]],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    fs::write(configuration(), list.to_string()).unwrap();

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("index.html"), "from outside\n").unwrap();
    let web = Web::start(PLACE.cluster.place(), folder.path()).unwrap();
    let server = web.url("");
    let server = server.trim_start_matches("http://").trim_end_matches('/').replace(':', " ");
    let disk = folder.path().join("guest.raw");
    telling::disk(&disk);
    let _volume = claim(NAMESPACE, "vm", &fs::read(&disk).unwrap());
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "outside", "namespace": NAMESPACE},
        "data": {"fetch": format!("{server}\n")}});
    let file = PLACE.cluster.place().path("ptp.json");
    fs::write(&file, map.to_string()).unwrap();
    PLACE.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["memory"]["guest"] = json!("256Mi");
    spec["domain"]["devices"]["interfaces"][0]["ports"] = json!([{"port": 80}]);
    spec["domain"]["devices"]["disks"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "outside", "disk": {"bus": "virtio"}}));
    spec["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "outside", "configMap": {"name": "outside"}}));
    PLACE.create(MACHINES, NAMESPACE, &vm);
    let mut console = PLACE.until(NAMESPACE, "the console", || Console::open(&PLACE, NAMESPACE, "vm").ok());
    let report = telling::facts(&console.read_until(telling::TOLD).unwrap()).unwrap();
    assert!(report.iter().any(|fact| fact == "outside says from outside"), "out by masquerade: {report:#?}");

    // The pod's interface is of ptp: its address is the host's alone.
    let instance = PLACE.find(INSTANCES, NAMESPACE, "vm").unwrap();
    let address = instance["status"]["interfaces"][0]["ipAddress"].as_str().unwrap().to_owned();
    let last: u8 = address.rsplit('.').next().unwrap().parse().unwrap();
    assert!(last >= 200, "{address}");
    let address: SocketAddr = format!("{address}:80").parse().unwrap();
    PLACE.until(NAMESPACE, "the guest's page at the pod's address", || page(address));
    assert!(!echoes(SocketAddr::new(address.ip(), 7)), "a port that is not in the list of the interface");
    PLACE.delete(MACHINES, NAMESPACE, "vm");
    PLACE.until(NAMESPACE, "the VM is gone", || {
        (PLACE.list(MACHINES, NAMESPACE).is_empty() && PLACE.list(PODS, NAMESPACE).is_empty()).then_some(())
    });
    PLACE.remove_namespace(NAMESPACE);
    fs::remove_file(configuration()).unwrap();
}
