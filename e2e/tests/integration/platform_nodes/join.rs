//! Two guests on two nodes with bridges that a cable joins: large frames pass, and each sees the other's own Ethernet
//! address. The scheduler chose the node of one of them by a bridge that only this node has. When the other one has ended,
//! frames follow its address to the other node.

use std::process::Command;
use std::time::{Duration, Instant};

use cluster::Resource;
use e2e::Second;
use serde_json::{Value, json};

use crate::platform::machines::machine;
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::shell::{self, Guest};
use crate::platform_nodes::nodes::disk_of_all_nodes;

const NAMESPACE: &str = "joined";
const DEFINITIONS: Resource = Resource::namespaced("k8s.cni.cncf.io", "v1", "network-attachment-definitions");
const BRIDGE: &str = "e2e-joined";
const CABLE: &str = "e2e-cable";
/// A bridge of the second node alone.
const ONLY: &str = "e2e-only";
/// The guests: name of the VM, its node, its address.
const GUESTS: [(&str, &str, &str); 2] = [("one", "node1", "192.0.2.1"), ("two", "node2", "192.0.2.2")];
const MTU: usize = 9000;
/// The first node's own address on the bridge.
const PROBE: &str = "192.0.2.3";

#[track_caller]
fn ip(mut command: Command, words: &str) {
    let run = command.args(words.split(' ')).output().unwrap();
    assert!(run.status.success(), "ip {words}: {}", String::from_utf8_lossy(&run.stderr));
}

/// Number of the second node's first process: /proc/NUMBER/root.
fn process_of(second: &Second) -> String {
    let path = second.node_path("").unwrap().display().to_string();
    path.split('/').nth(2).unwrap().to_owned()
}

/// Makes a definition for a bridge, which the scheduler looks for.
fn define(name: &str, bridge: &str, more: &Value) {
    let mut config = json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": bridge});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let annotations =
        json!({"k8s.v1.cni.cncf.io/resourceName": format!("bridge.network.kubevirt.io/{bridge}")});
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "annotations": annotations}, "spec": {"config": config.to_string()},
    });
    PLACE.create(DEFINITIONS, NAMESPACE, &definition);
}

/// The guest on the first node ends, and its addresses come up on the second one: the first node's frames follow as soon as
/// the end is reported, although a checked port of the bridge had the address for good.
fn an_address_moves_to_the_other_node(second: &Second, mac: &str) {
    let (name, _, address) = GUESTS[0];
    let on_first = |program: &str| PLACE.cluster.on_node(program).unwrap();
    let is_fixed = || {
        let entries = on_first("bridge").args(["fdb", "show", "br", BRIDGE]).output().unwrap();
        let entries = String::from_utf8(entries.stdout).unwrap();
        entries.lines().any(|one| one.starts_with(mac) && one.contains("sticky"))
    };
    ip(on_first("ip"), &format!("addr add {PROBE}/24 dev {BRIDGE}"));
    ip(on_first("ip"), &format!("neigh replace {address} lladdr {mac} dev {BRIDGE} nud permanent"));
    assert!(is_fixed(), "{mac}");
    PLACE.delete(MACHINES, NAMESPACE, name);
    PLACE.until(NAMESPACE, "the guest has ended", || match PLACE.find(INSTANCES, NAMESPACE, name) {
        Some(instance) => {
            ["Succeeded", "Failed"].iter().any(|phase| instance["status"]["phase"] == *phase).then_some(())
        }
        None => Some(()),
    });
    let (ended, latest) = (Instant::now(), e2e::bar(Duration::from_secs(1)));
    ip(second.on_node("ip").unwrap(), &format!("link set {BRIDGE} address {mac}"));
    ip(second.on_node("ip").unwrap(), &format!("addr add {address}/24 dev {BRIDGE}"));
    while is_fixed() {
        assert!(ended.elapsed() < latest, "the port of the ended guest keeps {mac}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ping = on_first("busybox").args(["ping", "-c1", "-W1", address]).output().unwrap();
    let took = ended.elapsed();
    assert!(ping.status.success() && took < latest, "{took:?}: {}", String::from_utf8_lossy(&ping.stdout));
    println!("end of a guest -> frames reach its address on the other node: {took:?}");
}

pub(crate) fn guests_of_two_nodes_share_a_network(second: &Second) {
    PLACE.namespace(NAMESPACE);
    let on = |node: &str| match node {
        "node1" => PLACE.cluster.on_node("ip").unwrap(),
        _ => second.on_node("ip").unwrap(),
    };
    let process = process_of(second);
    ip(
        on("node1"),
        &format!("link add {CABLE} mtu {MTU} type veth peer name {CABLE} mtu {MTU} netns {process}"),
    );
    for node in ["node1", "node2"] {
        ip(on(node), &format!("link add {BRIDGE} mtu {MTU} type bridge"));
        ip(on(node), &format!("link set {CABLE} master {BRIDGE} up"));
        ip(on(node), &format!("link set {BRIDGE} up"));
    }
    ip(on("node2"), &format!("link add {ONLY} type bridge"));
    ip(on("node2"), &format!("link set {ONLY} up"));
    define("lan", BRIDGE, &json!({"mtu": MTU, "macspoofchk": true}));
    define("only", ONLY, &json!({}));
    let disk = shell::disk();
    for (name, node, _) in GUESTS {
        disk_of_all_nodes(NAMESPACE, name, &disk);
        let mut vm = machine(name, "Always", &json!({"persistentVolumeClaim": {"claimName": name}}));
        let spec = &mut vm["spec"]["template"]["spec"];
        spec["domain"]["memory"]["guest"] = json!(shell::MEMORY);
        shell::join(spec, "lan", "lan");
        match node {
            "node1" => spec["nodeSelector"] = json!({"kubernetes.io/hostname": node}),
            // Its bridge leaves the scheduler this node.
            _ => shell::join(spec, "only", "only"),
        }
        PLACE.create(MACHINES, NAMESPACE, &vm);
    }
    let mut guests = GUESTS.map(|(name, _, _)| Guest::of(NAMESPACE, name));
    let mut macs = Vec::new();
    for (guest, (name, node, address)) in guests.iter_mut().zip(GUESTS) {
        guest.until("true");
        let instance = PLACE.find(INSTANCES, NAMESPACE, name).unwrap();
        assert_eq!(instance["status"]["nodeName"], node);
        let interfaces = instance["status"]["interfaces"].as_array().unwrap().clone();
        let lan: &Value = interfaces.iter().find(|one| one["name"] == "lan").unwrap();
        let mac = lan["mac"].as_str().unwrap().to_owned();
        let card = guest.card(&mac);
        guest.until(&format!("ip link set {card} mtu {MTU} up"));
        guest.until(&format!("ip addr replace {address}/24 dev {card}"));
        macs.push(mac);
    }
    // Without the headers of IPv4 and ICMP.
    let size = MTU - 28;
    for (at, guest) in guests.iter_mut().enumerate() {
        let (address, mac) = (GUESTS[1 - at].2, &macs[1 - at]);
        let said = guest.until(&format!("ping -c 3 -w 10 -s {size} {address}"));
        println!("{} -> {}: {}", GUESTS[at].1, GUESTS[1 - at].1, said.lines().last().unwrap_or_default());
        guest.until(&format!("ip neigh show {address} | grep -i {mac}"));
    }
    an_address_moves_to_the_other_node(second, &macs[0].to_lowercase());
    PLACE.delete(MACHINES, NAMESPACE, GUESTS[1].0);
    PLACE.until(NAMESPACE, "the VMs are gone", || {
        (PLACE.list(MACHINES, NAMESPACE).is_empty() && PLACE.list(PODS, NAMESPACE).is_empty()).then_some(())
    });
    PLACE.remove_namespace(NAMESPACE);
    for node in ["node1", "node2"] {
        ip(on(node), &format!("link del {BRIDGE}"));
    }
    ip(on("node1"), &format!("link del {CABLE}"));
    ip(on("node2"), &format!("link del {ONLY}"));
}
