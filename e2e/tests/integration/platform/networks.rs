//! Secondary networks of VMs: definitions in every form, interfaces that come and go while the guest runs, reasons of what
//! is refused, and nothing that is left by guests and agents that end.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use cluster::Resource;
use e2e::place::Place;
use e2e::volume::Volume;
use serde_json::{Value, json};

use crate::platform::compute::{condition, instance, patch};
use crate::platform::machines::{claim, machine};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::shell::{self, Guest, join};
use crate::platform::streams::{Streams, kill_agent, replace_agent_at};

const DEFINITIONS: Resource = Resource::namespaced("k8s.cni.cncf.io", "v1", "network-attachment-definitions");
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

fn soak() -> bool {
    std::env::var_os("FERROVIRT_SOAK").is_some()
}

/// Runs `ip` on the node; gives its output.
#[track_caller]
fn ip(words: &str) -> String {
    let run = PLACE.cluster.on_node("ip").unwrap().args(words.split(' ')).output().unwrap();
    assert!(run.status.success(), "ip {words}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

/// Names of the links that `ip -json link` printed.
pub(crate) fn names(links: &str) -> Vec<String> {
    let links: Vec<Value> = serde_json::from_str(links).unwrap();
    // Without links there is an empty object in the list.
    links.iter().filter_map(|link| Some(link["ifname"].as_str()?.to_owned())).collect()
}

/// A bridge of the node, which goes when this is dropped.
struct Bridge(&'static str);

impl Bridge {
    fn create(name: &'static str) -> Self {
        ip(&format!("link add {name} type bridge"));
        ip(&format!("link set {name} up"));
        Self(name)
    }

    /// Its ports.
    fn ports(&self) -> Vec<String> {
        names(&ip(&format!("-json link show master {}", self.0)))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let command = PLACE.cluster.on_node("ip").map(|mut ip| ip.args(["link", "del", self.0]).status());
        drop(command);
    }
}

/// A definition; without a configuration the node's file of its name has it.
pub(crate) fn define(namespace: &str, name: &str, config: Option<&str>, resource: Option<&str>) {
    let mut object = json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name},
        "spec": {},
    });
    if let Some(config) = config {
        object["spec"]["config"] = json!(config);
    }
    if let Some(bridge) = resource {
        let name = format!("bridge.network.kubevirt.io/{bridge}");
        object["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/resourceName": name});
    }
    PLACE.create(DEFINITIONS, namespace, &object);
}

fn bridged(bridge: &str) -> String {
    json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": bridge}).to_string()
}

/// The same with addresses, in a network of the bridge's name.
pub(crate) fn leased(bridge: &str) -> String {
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "198.51.100.0/24"}]]});
    json!({"cniVersion": "1.0.0", "name": bridge, "type": "bridge", "bridge": bridge, "ipam": ipam})
        .to_string()
}

/// The addresses that are reserved on a node in a network of [`leased`].
pub(crate) fn leases(node: &Place, network: &str) -> Vec<String> {
    let folder = node.path("var-lib/cni/networks").join(network);
    // Without an attachment there never was a directory.
    let files = fs::read_dir(folder).into_iter().flatten();
    files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("198"))
        .collect()
}

/// The name of a network's interface in the pod.
fn pod_interface(network: &str) -> String {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(network);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("pod{}", &digest[..11])
}

/// A VM without a disk on these networks: the name in the spec, and that of the definition.
pub(crate) fn diskless(name: &str, networks: &[(&str, &str)]) -> Value {
    let mut vm = machine(name, "Always", &json!({}));
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["volumes"] = json!([]);
    spec["domain"]["devices"]["disks"] = json!([]);
    for (name, definition) in networks {
        join(spec, name, definition);
    }
    vm
}

/// Makes a VM with a guest that runs commands, on the pod network and these others.
fn shell(namespace: &'static str, name: &'static str, networks: &[(&str, &str)]) -> (Guest, Volume) {
    let volume = claim(namespace, name, &shell::disk());
    let mut vm = machine(name, "Always", &json!({"persistentVolumeClaim": {"claimName": name}}));
    let spec = &mut vm["spec"]["template"]["spec"];
    spec["domain"]["memory"]["guest"] = json!(shell::MEMORY);
    for (name, definition) in networks {
        join(spec, name, definition);
    }
    PLACE.create(MACHINES, namespace, &vm);
    (Guest::of(namespace, name), volume)
}

/// The status of an interface of a VM's instance.
fn interface(namespace: &str, vm: &str, name: &str) -> Option<Value> {
    let status = instance(namespace, vm)["status"]["interfaces"].clone();
    status.as_array()?.iter().find(|one| one["name"] == name).cloned()
}

/// The VM's launcher pod.
fn pod(namespace: &str, vm: &str) -> Option<Value> {
    PLACE.list(PODS, namespace).into_iter().find(|pod| pod["metadata"]["labels"]["vm.kubevirt.io/name"] == vm)
}

/// The annotation network-status of a pod.
pub(crate) fn listed_in(pod: &Value) -> Vec<Value> {
    let text = pod["metadata"]["annotations"][STATUS].as_str();
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The same of the VM's pod.
fn listed(namespace: &str, vm: &str) -> Vec<Value> {
    pod(namespace, vm).map(|pod| listed_in(&pod)).unwrap_or_default()
}

/// Makes a VM on a network with a configuration of 1 MiB, and one on 200 networks, and waits until the agent has refused
/// both.
#[track_caller]
pub(crate) fn refuse_large(namespace: &str) {
    let config = json!({"cniVersion": "1.0.0", "type": "bridge", "more": "x".repeat(1 << 20)});
    define(namespace, "large", Some(&config.to_string()), None);
    define(namespace, "small", Some(&bridged("e2e-small")), None);
    let names: Vec<String> = (0..200).map(|number| format!("net{number}")).collect();
    let networks: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "small")).collect();
    let cases =
        [("large", &[("net", "large")][..], "spec.config"), ("many", &networks[..], "32 is the limit")];
    for (name, networks, _) in cases {
        PLACE.create(MACHINES, namespace, &diskless(name, networks));
    }
    for (name, _, why) in cases {
        until_refused(namespace, name, why);
    }
}

/// Waits until an instance does not run for this reason.
#[track_caller]
fn until_refused(namespace: &str, name: &str, why: &str) {
    PLACE.until(namespace, &format!("{name} is refused: {why}"), || {
        let found = PLACE.find(INSTANCES, namespace, name)?;
        let synchronized = condition(&found, "Synchronized").filter(|one| one["status"] == "False")?;
        assert_ne!(found["status"]["phase"], "Running", "{name}");
        synchronized["message"].as_str()?.contains(why).then_some(())
    });
}

/// The notes of a node's agent about attachments of a namespace.
pub(crate) fn notes(node: &Place, namespace: &str) -> Vec<String> {
    let folders = ["begun", "results"].map(|name| node.path("var-lib/ferrovirt/network").join(name));
    let files = folders.into_iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let of = format!("[\"K8S_POD_NAMESPACE\",\"{namespace}\"]");
    let texts = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
    texts.filter(|text| text.replace(' ', "").contains(&of)).collect()
}

/// Waits until no VM, pod or attachment of the namespace is left.
#[track_caller]
fn until_nothing_is_left(namespace: &str, bridges: &[&Bridge]) {
    PLACE.until(namespace, "the VMs and pods are gone", || {
        (PLACE.list(MACHINES, namespace).is_empty() && PLACE.list(PODS, namespace).is_empty()).then_some(())
    });
    let left = || {
        let ports: Vec<String> = bridges.iter().flat_map(|bridge| bridge.ports()).collect();
        (ports, notes(PLACE.cluster.place(), namespace))
    };
    let mut last = left();
    PLACE.until(namespace, "no attachment is left", || {
        last = left();
        (last.0.is_empty() && last.1.is_empty()).then_some(())
    });
}

/// The agent's own times for attachments, in microseconds, as its log has them.
fn times(namespace: &str) -> Vec<u64> {
    let words = ["logs", "daemonset/virt-handler", "-n", "kubevirt-hyperconverged", "--tail=-1"];
    let log = PLACE.kubectl(&words).unwrap();
    let ours = log.lines().filter(|line| line.contains("attached to networks") && line.contains(namespace));
    let number = |line: &str| {
        let (_, rest) = line.split_once("microseconds")?;
        let digits = rest.trim_start_matches(|one: char| !one.is_ascii_digit());
        digits.split(|one: char| !one.is_ascii_digit()).next()?.parse().ok()
    };
    ours.filter_map(number).collect()
}

/// How many of a bridge the node has for pods, as the scheduler sees it; a thousand is `1k` to the API server.
fn allocatable(bridge: &str) -> String {
    let path = format!("jsonpath={{.status.allocatable.bridge\\.network\\.kubevirt\\.io/{bridge}}}");
    PLACE.kubectl(&["get", "node", "node1", "-o", &path]).unwrap()
}

#[test]
fn bridges_are_resources_of_the_node() {
    let latest = e2e::bar(Duration::from_secs(5));
    let _streams = Streams::follow();
    let mut times = Vec::new();
    let mut follows = |change: &[&str], wanted: &[(&str, &str)]| {
        change.iter().for_each(|words| drop(ip(words)));
        let begun = Instant::now();
        while wanted.iter().any(|(bridge, count)| allocatable(bridge) != *count) {
            assert!(begun.elapsed() < latest, "{change:?}: {wanted:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        times.push(begun.elapsed());
    };
    for _ in 0..(if soak() { 20 } else { 2 }) {
        follows(&["link add e2e-mark type bridge"], &[("e2e-mark", "1k")]);
        follows(&["link set e2e-mark name e2e-other"], &[("e2e-mark", ""), ("e2e-other", "1k")]);
        follows(&["link del e2e-other"], &[("e2e-other", "")]);
    }
    println!("bridge added, renamed, removed -> allocatable: {times:?}");
    // The scheduler places no pod where its bridge is missing.
    let namespace = "marked";
    PLACE.namespace(namespace);
    define(namespace, "absent", Some(&bridged("e2e-absent")), Some("e2e-absent"));
    PLACE.create(MACHINES, namespace, &diskless("vm", &[("absent", "absent")]));
    PLACE.until_status(namespace, "vm", "ErrorUnschedulable");
    let bridge = Bridge::create("e2e-absent");
    PLACE.until_status(namespace, "vm", "Running");
    assert_eq!(bridge.ports().len(), 1);
    PLACE.delete(MACHINES, namespace, "vm");
    until_nothing_is_left(namespace, &[&bridge]);
    PLACE.remove_namespace(namespace);
}

#[test]
fn interfaces_come_and_go_while_the_guest_runs() {
    let namespace = "networks";
    PLACE.namespace(namespace);
    let _streams = Streams::follow();
    let (lan, more) = (Bridge::create("e2e-lan"), Bridge::create("e2e-more"));
    define(namespace, "lan", Some(&bridged(lan.0)), Some(lan.0));
    let list = json!({
        "cniVersion": "1.1.0", "name": "more", "type": "bridge", "bridge": more.0, "mtu": 1400,
        "ipam": {"type": "static", "addresses": [{"address": "192.0.2.7/24"}]},
    });
    let file = PLACE.cluster.node_path("/etc/cni/net.d/50-more.conf").unwrap();
    fs::write(&file, list.to_string()).unwrap();
    define(namespace, "more", None, None);
    PLACE.until(namespace, "the bridge is a resource of the node", || {
        (allocatable(lan.0) == "1k").then_some(())
    });
    let more_name = format!("{namespace}/more");
    let (mut guest, _disk) = shell(namespace, "vm", &[("lan", "lan"), ("more", &more_name)]);
    guest.until("true");
    PLACE.until_status(namespace, "vm", "Running");

    // The pod's requests, the attachments, their report, the guest's view.
    let limits = pod(namespace, "vm").unwrap()["spec"]["containers"].clone();
    let compute = limits.as_array().unwrap().iter().find(|one| one["name"] == "compute").unwrap();
    assert_eq!(compute["resources"]["limits"]["bridge.network.kubevirt.io/e2e-lan"], "1");
    let status = listed(namespace, "vm");
    let keys = |one: &Value| one.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(status.len(), 3, "{status:?}");
    assert_eq!((&status[0]["interface"], &status[0]["default"]), (&json!("eth0"), &json!(true)));
    for (at, name) in [(1, "lan"), (2, "more")] {
        assert_eq!(status[at]["name"], format!("{namespace}/{name}"));
        assert_eq!(status[at]["interface"], pod_interface(name));
        let told = interface(namespace, "vm", name).unwrap();
        assert_eq!((&told["mac"], &told["linkState"]), (&status[at]["mac"], &json!("up")), "{told}");
        assert_eq!(told["podInterfaceName"], pod_interface(name));
        guest.until(&format!("grep -qi {} /sys/class/net/*/address", told["mac"].as_str().unwrap()));
    }
    assert_eq!(keys(&status[1]), ["dns", "interface", "mac", "name"].map(str::to_owned).into());
    assert_eq!((&status[2]["ips"], &status[2]["mtu"]), (&json!(["192.0.2.7"]), &json!(1400)));
    assert_eq!(interface(namespace, "vm", "more").unwrap()["ipAddress"], "192.0.2.7");
    assert_eq!((lan.ports().len(), more.ports().len()), (1, 1));

    let before = PLACE.find(MACHINES, namespace, "vm").unwrap()["spec"]["template"]["spec"].clone();
    for round in 0..(if soak() { 20 } else { 2 }) {
        let mac = format!("02:00:00:00:17:{round:02x}");
        let mut spec = before.clone();
        // One definition a second time.
        join(&mut spec, "plugged", "lan");
        let interfaces = spec["domain"]["devices"]["interfaces"].as_array_mut().unwrap();
        let last = interfaces.len() - 1;
        interfaces[last]["macAddress"] = json!(mac);
        let apply = |spec: &Value| patch(namespace, "vm", &json!({"spec": {"template": {"spec": spec}}}));
        apply(&spec);
        PLACE.until(namespace, "the interface is attached", || {
            interface(namespace, "vm", "plugged").filter(|one| one["linkState"] == "up" && one["mac"] == mac)
        });
        // The card is found by its address; its name is the kernel's choice.
        let name = guest.card(&mac);
        guest.until(&format!("ip link set {name} up && grep -q 1 /sys/class/net/{name}/carrier"));
        assert_eq!(lan.ports().len(), 2);
        assert!(listed(namespace, "vm").iter().any(|one| one["interface"] == pod_interface("plugged")));
        for (state, carrier) in [("down", 0), ("up", 1)] {
            spec["domain"]["devices"]["interfaces"][last]["state"] = json!(state);
            apply(&spec);
            PLACE.until(namespace, &format!("the link is {state}"), || {
                interface(namespace, "vm", "plugged").filter(|one| one["linkState"] == state)
            });
            guest.until(&format!("grep -q {carrier} /sys/class/net/{name}/carrier"));
        }
        if soak() || round == 0 {
            restart(namespace, "vm");
            guest = Guest::of(namespace, "vm");
            let name = guest.card(&mac);
            guest.until(&format!("ip link set {name} up && grep -q 1 /sys/class/net/{name}/carrier"));
            PLACE.until(namespace, "the instance alone has its interfaces", || {
                let plugged = interface(namespace, "vm", "plugged")?;
                let ports = (lan.ports().len(), more.ports().len());
                (plugged["linkState"] == "up" && plugged["mac"] == mac && ports == (2, 1)).then_some(())
            });
        }
        spec["domain"]["devices"]["interfaces"][last]["state"] = json!("absent");
        apply(&spec);
        PLACE.until(namespace, "the interface is detached", || {
            (interface(namespace, "vm", "plugged").is_none() && lan.ports().len() == 1).then_some(())
        });
        guest.until(&format!("! grep -q {mac} /sys/class/net/*/address"));
        assert_eq!(listed(namespace, "vm").len(), 3);
        // The pod of a VM that started with the interface named its network until now.
        PLACE.until(namespace, "the pod's annotation does not name the network", || {
            let pod = pod(namespace, "vm")?;
            let networks = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str()?;
            let names = |name: &str| networks.contains(&pod_interface(name));
            (names("lan") && names("more") && !names("plugged")).then_some(())
        });
        apply(&before);
        PLACE.until(namespace, "the instance has followed", || {
            let spec = instance(namespace, "vm")["spec"]["networks"].clone();
            (spec.as_array()?.len() == 3).then_some(())
        });
        let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
        assert_eq!(condition(&vm, "RestartRequired"), None);
    }
    let mut times = times(namespace);
    times.sort_unstable();
    assert!(times.len() >= 3, "the agent's log has its times: {times:?}");
    let median = times[times.len() / 2];
    println!("agent's time for one network, µs: p50 {median}, all {times:?}");
    assert!(!soak() || median <= 20_000, "{median} µs of the agent's own for a network: {times:?}");
    PLACE.delete(MACHINES, namespace, "vm");
    until_nothing_is_left(namespace, &[&lan, &more]);
    fs::remove_file(&file).unwrap();
    PLACE.remove_namespace(namespace);
}

/// Restarts a VM, and waits until another instance of it runs.
#[track_caller]
fn restart(namespace: &str, vm: &str) {
    let before = instance(namespace, vm)["metadata"]["uid"].clone();
    PLACE.put(namespace, &format!("virtualmachines/{vm}/restart")).unwrap();
    PLACE.until(namespace, "another instance runs", || {
        let now = PLACE.find(INSTANCES, namespace, vm)?;
        (now["metadata"]["uid"] != before && now["status"]["phase"] == "Running").then_some(())
    });
}

#[test]
fn eight_networks_of_definitions_in_every_place_are_attached_and_listed() {
    let namespace = "eight-networks";
    PLACE.namespace(namespace);
    let bridge = Bridge::create("e2e-eight");
    let routed = json!({
        "cniVersion": "1.0.0", "name": "routed", "type": "bridge", "bridge": bridge.0,
        "ipam": {
            "type": "static", "addresses": [{"address": "198.51.100.9/24"}],
            "routes": [{"dst": "203.0.113.0/24", "gw": "198.51.100.1"}],
        },
    });
    define(namespace, "plain", Some(&bridged(bridge.0)), None);
    define(namespace, "routed", Some(&routed.to_string()), None);
    define("default", "e2e-shared", Some(&bridged(bridge.0)), None);
    let networks = [
        ("a", "plain"),
        ("b", "plain"),
        ("c", "default/e2e-shared"),
        ("d", "routed"),
        ("e", "eight-networks/plain"),
        ("f", "default/e2e-shared"),
        ("g", "plain"),
        ("h", "plain"),
    ];
    PLACE.create(MACHINES, namespace, &diskless("vm", &networks));
    PLACE.until_status(namespace, "vm", "Running");
    assert_eq!(bridge.ports().len(), networks.len());
    let status = listed(namespace, "vm");
    assert_eq!(status.len(), 1 + networks.len(), "{status:?}");
    let mut macs = BTreeSet::new();
    for (name, definition) in networks {
        let own = format!("{namespace}/{definition}");
        let full: &str = if definition.contains('/') { definition } else { &own };
        let one = status.iter().find(|one| one["interface"] == pod_interface(name)).unwrap();
        assert_eq!(one["name"], full, "{status:?}");
        let shown = PLACE.until(namespace, "the interface is reported", || interface(namespace, "vm", name));
        assert_eq!(shown["mac"], one["mac"], "{shown}");
        macs.insert(one["mac"].as_str().unwrap().to_owned());
        let expected = if name == "d" { json!(["198.51.100.9"]) } else { Value::Null };
        assert_eq!(one["ips"], expected, "{one}");
    }
    assert_eq!(macs.len(), networks.len(), "{macs:?}");
    PLACE.delete(MACHINES, namespace, "vm");
    until_nothing_is_left(namespace, &[&bridge]);
    PLACE.delete(DEFINITIONS, "default", "e2e-shared");
    PLACE.remove_namespace(namespace);
}

#[test]
fn cards_and_disks_are_at_the_addresses_that_are_requested() {
    let namespace = "placed-devices";
    PLACE.namespace(namespace);
    let _streams = Streams::follow();
    let _volume = claim(namespace, "vm", &shell::disk());
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    let domain = &mut vm["spec"]["template"]["spec"]["domain"];
    domain["memory"]["guest"] = json!(shell::MEMORY);
    domain["devices"]["interfaces"][0]["pciAddress"] = json!("0000:00:10.0");
    domain["devices"]["disks"][0]["disk"]["pciAddress"] = json!("0000:03:00.0");
    PLACE.create(MACHINES, namespace, &vm);
    let mut guest = Guest::of(namespace, "vm");
    for device in ["0000:00:10.0/virtio*/net", "0000:03:00.0/virtio*"] {
        guest.until(&format!("ls -d /sys/bus/pci/devices/{device}"));
    }
    PLACE.delete(MACHINES, namespace, "vm");
    until_nothing_is_left(namespace, &[]);
    PLACE.remove_namespace(namespace);
}

#[test]
fn networks_that_cannot_be_attached_are_named() {
    let (namespace, other) = ("refused-networks", "refused-elsewhere");
    PLACE.namespace(namespace);
    PLACE.namespace(other);
    let bridge = Bridge::create("e2e-refused");
    let many =
        json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": bridge.0, "more": "x".repeat(1 << 20)});
    define(other, "lan", Some(&bridged(bridge.0)), None);
    define(namespace, "broken", Some("{\"type\": "), None);
    define(namespace, "plugin", Some(r#"{"cniVersion": "1.0.0", "type": "absent-plugin"}"#), None);
    define(namespace, "outside", Some(r#"{"cniVersion": "1.0.0", "type": "../../../bin/sh"}"#), None);
    define(namespace, "nofile", None, None);
    define(namespace, "long", Some(&many.to_string()), None);
    let cases = [
        ("forbidden", "refused-elsewhere/lan", "may not use the NetworkAttachmentDefinition"),
        ("missing", "nowhere", "refused-networks/nowhere"),
        ("broken", "broken", "spec.config: not a CNI configuration"),
        ("plugin", "plugin", "the CNI plugin absent-plugin is in none of"),
        ("outside", "outside", "\"type\""),
        ("nofile", "nofile", "none of the"),
        ("long", "long", "spec.config"),
    ];
    for (name, definition, _) in cases {
        PLACE.create(MACHINES, namespace, &diskless(name, &[("net", definition)]));
    }
    for (name, _, why) in cases {
        until_refused(namespace, name, why);
        PLACE.until(namespace, &format!("{name} has an event"), || {
            let words = ["get", "events", "-n", namespace, "-o", "json", "--field-selector"];
            let about = format!("involvedObject.name={name}");
            let events = PLACE.kubectl(&[&words[..], &[&about]].concat()).unwrap();
            let events: Value = serde_json::from_str(&events).unwrap();
            let said = |event: &Value| event["message"].as_str().is_some_and(|text| text.contains(why));
            events["items"].as_array()?.iter().any(said).then_some(())
        });
    }
    // More networks than a guest can have, and a pod that claims what it does not have.
    let names: Vec<String> = (0..200).map(|number| format!("net{number}")).collect();
    let networks: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "plugin")).collect();
    PLACE.create(MACHINES, namespace, &diskless("many", &networks));
    until_refused(namespace, "many", "200 secondary networks; 32 is the limit");
    let list = json!([{"name": "refused-networks/plugin", "interface": pod_interface("net"), "dns": {}}]);
    let long = format!("[{}]", " ".repeat(100 << 10));
    for (text, why) in [(list.to_string(), "lists the interface"), (long, "65536 bytes is the limit")] {
        let name = pod(namespace, "plugin").unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
        let annotation = format!("{STATUS}={text}");
        let words = ["annotate", "--overwrite", "-n", namespace, "pod", &name, &annotation];
        PLACE.kubectl(&words).unwrap();
        until_refused(namespace, "plugin", why);
    }
    // The missing definition comes: the guest starts.
    define(namespace, "nowhere", Some(&bridged(bridge.0)), None);
    PLACE.until_status(namespace, "missing", "Running");
    assert_eq!(bridge.ports().len(), 1);
    for name in cases.iter().map(|(name, _, _)| *name).chain(["many"]) {
        PLACE.delete(MACHINES, namespace, name);
    }
    until_nothing_is_left(namespace, &[&bridge]);
    PLACE.remove_namespace(namespace);
    PLACE.remove_namespace(other);
}

#[test]
fn attachments_of_agents_that_were_killed_are_removed() {
    let namespace = "killed-networks";
    PLACE.namespace(namespace);
    let (one, two) = (Bridge::create("e2e-one"), Bridge::create("e2e-two"));
    define(namespace, "one", Some(&bridged(one.0)), None);
    define(namespace, "two", Some(&leased(two.0)), None);
    let (rounds, guests) = if soak() { (10, 5) } else { (1, 2) };
    for round in 0..rounds {
        let names: Vec<String> = (0..guests).map(|number| format!("vm{number}")).collect();
        let create = || {
            for name in &names {
                PLACE.create(MACHINES, namespace, &diskless(name, &[("one", "one"), ("two", "two")]));
            }
            // In the middle of it.
            PLACE.until(namespace, "the first attachment begins", || {
                (!notes(PLACE.cluster.place(), namespace).is_empty()).then_some(())
            });
        };
        replace_agent_at(create);
        for name in &names {
            PLACE.until_status(namespace, name, "Running");
            assert_eq!(listed(namespace, name).len(), 3, "{round}: {name}");
        }
        assert_eq!((one.ports().len(), two.ports().len()), (guests, guests));
        replace_agent_at(|| names.iter().for_each(|name| PLACE.delete(MACHINES, namespace, name)));
        until_nothing_is_left(namespace, &[&one, &two]);
        assert_eq!(leases(PLACE.cluster.place(), two.0), [""; 0]);
    }
    PLACE.remove_namespace(namespace);
}

#[test]
fn nothing_is_left_of_guests_that_came_and_went_while_the_agent_was_killed_again_and_again() {
    let namespace = "often-killed-networks";
    PLACE.namespace(namespace);
    let (one, two) = (Bridge::create("e2e-often"), Bridge::create("e2e-leased"));
    define(namespace, "one", Some(&bridged(one.0)), None);
    define(namespace, "two", Some(&leased(two.0)), None);
    let (guests, kills) = if soak() { (30, 10) } else { (3, 2) };
    let names: Vec<String> = (0..guests).map(|number| format!("vm{number}")).collect();
    let mut attached = 0;
    let kill = || {
        std::thread::sleep(Duration::from_secs(3));
        kill_agent();
    };
    replace_agent_at(|| {
        for name in &names {
            PLACE.create(MACHINES, namespace, &diskless(name, &[("one", "one"), ("two", "two")]));
        }
        for _ in 0..kills {
            kill();
            attached = attached.max(one.ports().len() + two.ports().len());
        }
        // Some are attached by now, and others are in the middle of it.
        PLACE.until(namespace, "an attachment begins", || {
            (!notes(PLACE.cluster.place(), namespace).is_empty()).then_some(())
        });
        names.iter().for_each(|name| PLACE.delete(MACHINES, namespace, name));
        (0..kills).for_each(|_| kill());
    });
    println!("{guests} VMs, agent killed {} times, at most {attached} ports at a kill", 2 * kills + 1);
    until_nothing_is_left(namespace, &[&one, &two]);
    assert_eq!(leases(PLACE.cluster.place(), two.0), [""; 0]);
    PLACE.remove_namespace(namespace);
}
