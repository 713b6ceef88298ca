//! Secondary networks of a launcher pod, attached on a node of the test's own by a plugin that logs its calls.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::*;

/// A guest with the pod network and bridged networks of these names, each on the definition of the same name unless
/// `NAME=DEFINITION` names another one.
fn spec(networks: &[&str]) -> Value {
    let mut interfaces =
        vec![json!({"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:10"})];
    let mut all = vec![json!({"name": "default", "pod": {}})];
    for (at, one) in networks.iter().enumerate() {
        let (name, definition) = one.split_once('=').unwrap_or((one, one));
        interfaces.push(json!({
            "name": name, "bridge": {}, "macAddress": format!("02:00:00:00:01:{at:02x}"),
        }));
        all.push(json!({"name": name, "multus": {"networkName": definition}}));
    }
    json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": all})
}

impl Launcher {
    fn config(&self, more: &Value) -> String {
        let mut config = json!({"cniVersion": "1.1.0", "type": "veth", "log": self.log()});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config.to_string()
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The verbs that the plugin was called with, and forgets them.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        drop(std::fs::remove_file(self.log()));
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    /// The pod's object has what was written, as after the watch brought it.
    fn observe(&mut self) -> Value {
        self.object.network_status = self.cluster.written.lock().unwrap().clone();
        serde_json::from_str(self.object.network_status.as_deref().unwrap_or("[]")).unwrap()
    }

    /// Links of the node.
    fn on_node(&self) -> Vec<String> {
        let shown = inside(&self.folder.path().join("node"), || run("ip -o link show"));
        let names = shown.lines().map(|line| line.split(": ").nth(1).unwrap().to_owned());
        names.filter(|name| name != "lo").collect()
    }

    /// Detaches the pods that do not live.
    fn sweep(&self, lives: &dyn Fn(&str) -> bool) {
        self.networks.sweep(lives).unwrap();
        self.networks.settle();
    }

    /// Changes the only record.
    fn rewrite(&self, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        let results = self.folder.path().join("network/results");
        let file = std::fs::read_dir(&results).unwrap().next().unwrap().unwrap().path();
        let mut record = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        change(&mut record);
        std::fs::write(&file, Value::Object(record).to_string()).unwrap();
    }

    fn kept(&self) -> usize {
        std::fs::read_dir(self.folder.path().join("network/results")).map_or(0, Iterator::count)
    }
}

#[test]
fn a_guest_is_attached_once_and_detached_when_its_pod_is_over() {
    let mut pod = Launcher::with_eth0();
    pod.cluster.define("ns/blue", &pod.config(&json!({})));
    pod.cluster.define("default/red", &pod.config(&json!({"address": "192.0.2.7/24"})));
    let spec = spec(&["blue", "red=default/red"]);
    let first = pod.wire(spec.clone()).unwrap();
    assert_eq!(pod.calls(), ["ADD", "ADD"]);
    let names = Names::secondary("blue");
    assert_eq!(names.pod, "pod16477688c0e", "upstream's name");
    let shown = pod.snapshot();
    for part in [&names.port, &names.bridge, &names.tap, "169.254.75.12/32"] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    let taps = first.taps();
    assert_eq!(taps["blue"].mac, "02:00:00:00:01:00");
    assert!(taps["blue"].dhcp.is_none(), "a network without addresses is left to its own DHCP");
    assert_eq!(taps["red"].dhcp.as_ref().unwrap().v4.as_ref().unwrap().address, Ipv4Addr::new(192, 0, 2, 7));
    let status = pod.observe();
    assert_eq!(status[0]["interface"], "eth0");
    assert_eq!(status[0]["default"], true);
    assert_eq!(
        status[1],
        json!({"name": "ns/blue", "interface": names.pod, "mac": "02:00:00:00:01:00", "mtu": 1500, "dns": {}})
    );
    assert_eq!((&status[2]["name"], &status[2]["ips"]), (&json!("default/red"), &json!(["192.0.2.7"])));

    // As after a restart of the agent.
    let again = pod.wire(spec.clone()).unwrap();
    assert_eq!((again.nics, pod.snapshot()), (first.nics, shown));
    assert!(pod.calls().is_empty());
    assert_eq!(pod.observe(), status);
    pod.sweep(&|_| true);
    assert_eq!((pod.calls().len(), pod.kept(), pod.on_node().len()), (0, 2, 2));
    pod.sweep(&|uid| uid != UID);
    assert_eq!(pod.calls(), ["DEL", "DEL"]);
    assert_eq!((pod.kept(), pod.on_node()), (0, vec![]));
}

#[test]
fn every_form_of_a_definition_is_attached_or_refused_with_a_reason() {
    let pod = Launcher::with_eth0();
    let file = |name: &str, text: &str| {
        std::fs::write(pod.folder.path().join("net.d").join(name), text).unwrap();
    };
    file("10-pods.conflist", r#"{"name": "pods"}"#);
    file("20-broken.conf", "{");
    file("30-file.conf", &pod.config(&json!({"name": "file"})));
    let inline = pod.config(&json!({}));
    let routed = json!({"address": "192.0.2.7/24", "gateway": "192.0.2.1"});
    pod.cluster.define("ns/routed", &pod.config(&routed));
    for name in ["ns/inline", "infra/shared", "other/foreign"] {
        pod.cluster.define(name, &inline);
    }
    pod.cluster.define("ns/file", "");
    pod.cluster.define("ns/nofile", "");
    pod.cluster.define("ns/broken", "{\"type\":");
    pod.cluster.define("ns/outside", &pod.config(&json!({"type": "../../bin/sh"})));
    pod.cluster.define("ns/noplugin", &pod.config(&json!({"type": "absent"})));
    pod.cluster.define("ns/fails", &pod.config(&json!({"mode": "fail"})));
    for good in ["inline", "ns/inline", "file", "infra/shared", "routed"] {
        let network = pod.wire(spec(&[&format!("n={good}")])).unwrap();
        assert_eq!(pod.calls(), ["ADD"], "{good}");
        if good == "routed" {
            let written = pod.cluster.written.lock().unwrap().clone().unwrap();
            let status: Value = serde_json::from_str(&written).unwrap();
            assert_eq!(status[1]["gateway"], json!(["192.0.2.1"]));
            let lease = network.taps()["n"].dhcp.as_ref().unwrap().v4.clone().unwrap();
            assert_eq!((lease.gateway, lease.routes.len()), (Some(Ipv4Addr::new(192, 0, 2, 1)), 1));
        }
        pod.sweep(&|_| false);
        *pod.cluster.written.lock().unwrap() = None;
        pod.calls();
    }
    for (bad, kind, words) in [
        ("absent", Kind::Content, "NetworkAttachmentDefinition ns/absent does not exist"),
        ("other/foreign", Kind::Content, "VMs of namespace ns may not use"),
        ("nofile", Kind::Content, "none of the 3 CNI configurations of the node has the name nofile"),
        ("broken", Kind::Content, "ns/broken, spec.config: not a CNI configuration"),
        ("outside", Kind::Content, "\"../../bin/sh\" is not the name of a plugin"),
        ("noplugin", Kind::System, "the CNI plugin absent is in none of"),
        ("fails", Kind::System, "the switch is on fire"),
        ("a/b/c", Kind::Content, "neither NAME nor NAMESPACE/NAME"),
    ] {
        let error = pod.wire(spec(&[&format!("n={bad}")])).unwrap_err();
        let said = error.chain();
        assert_eq!(error.kind(), kind, "{said}");
        assert!(
            said.contains(words) && said.contains("spec.networks[1].multus.networkName"),
            "{bad}: {said}"
        );
        assert_eq!((pod.on_node().len(), pod.kept()), (0, 0), "{bad} leaves nothing: {said}");
    }
    let many: Vec<String> = (0..200).map(|at| format!("n{at}=inline")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(pod.wire(spec(&many)).unwrap_err().chain().contains("200 secondary networks"));
    // One definition twice, and as many as a guest may well have.
    pod.calls();
    let network = pod.wire(spec(&many[..8])).unwrap();
    assert_eq!((pod.calls().len(), network.nics.len()), (8, 9));
    pod.sweep(&|_| false);
    assert!(pod.on_node().is_empty());
}

#[test]
fn networks_that_multus_attached_are_left_alone() {
    let name = Names::secondary("blue").pod;
    let mut pod = Launcher::with_eth0();
    let make = format!("ip link add {name} address 02:00:00:00:09:01 type veth peer name other");
    let listed =
        |interface: &str| json!([{"name": "ns/blue", "interface": interface, "dns": {}}]).to_string();
    pod.object.network_status = Some(listed(&name));
    let error = pod.wire(spec(&["blue"])).unwrap_err();
    assert_eq!(error.kind(), Kind::Untrusted, "listed, but the kernel has no such interface");
    assert!(error.chain().contains(&format!("lists the interface {name}")), "{}", error.chain());
    inside(&pod.path(), || run(&make) + &run(&format!("ip link set {name} up")));
    let network = pod.wire(spec(&["blue"])).unwrap();
    assert_eq!(network.taps()["blue"].mac, "02:00:00:00:09:01");
    assert_eq!(pod.wire(spec(&["blue"])).unwrap().nics, network.nics, "also once the guest has the address");
    assert_eq!((pod.calls().len(), pod.kept()), (0, 0));
    assert!(pod.cluster.written.lock().unwrap().is_none());
    pod.object.network_status = Some(" ".repeat(crate::networks::STATUS_MAX) + "[]");
    assert_eq!(pod.wire(spec(&["blue"])).unwrap_err().kind(), Kind::Untrusted, "too long");
    // Nothing but Multus can put a network in the pod network's place.
    let mut default = spec(&[]);
    default["networks"][0] = json!({"name": "default", "multus": {"networkName": "blue", "default": true}});
    pod.object.network_status = None;
    let error = pod.wire(default.clone()).unwrap_err();
    assert!(error.chain().contains("Multus has to be installed"), "{}", error.chain());
    pod.object.network_status =
        Some(json!([{"name": "ns/blue", "interface": "eth0", "default": true}]).to_string());
    pod.wire(default).unwrap();
}

#[test]
fn attachments_that_were_cut_short_are_taken_back_first() {
    let pod = Launcher::with_eth0();
    pod.cluster.define("ns/blue", &pod.config(&json!({})));
    pod.wire(spec(&["blue"])).unwrap();
    pod.calls();
    // Killed after ADD was noted and before its answer was.
    pod.rewrite(|record| drop(record.remove("result")));
    *pod.cluster.written.lock().unwrap() = None;
    pod.wire(spec(&["blue"])).unwrap();
    assert_eq!(pod.calls(), ["DEL", "ADD"]);
    assert_eq!((pod.on_node().len(), pod.kept()), (1, 1));
}

/// The fault between ADD and DEL, and whether the agent had noted the answer of ADD by then. 50 times with FERROVIRT_SOAK=1.
#[test]
fn nothing_is_left_after_a_fault_between_add_and_del() {
    let rounds = if std::env::var_os("FERROVIRT_SOAK").is_some() { 50 } else { 6 };
    for round in 0..rounds {
        let (fault, noted) = (["API server", "agent", "node"][round % 3], round / 3 % 2 == 0);
        let mut pod = Launcher::with_eth0();
        pod.cluster.define("ns/blue", &pod.config(&json!({})));
        pod.cluster.refuses.store(fault == "API server", Ordering::Relaxed);
        let wired = pod.wire(spec(&["blue"]));
        assert_eq!(wired.is_err(), fault == "API server", "{fault}");
        assert_eq!((pod.on_node().len(), pod.kept()), (1, 1), "{fault}");
        if !noted {
            pod.rewrite(|record| drop(record.remove("result")));
        }
        if fault == "node" {
            pod.child.kill().unwrap();
            pod.child.wait().unwrap();
            for name in ["netns", "node"] {
                Namespace::remove(&pod.folder.path().join(name)).unwrap();
            }
            Namespace::create(&pod.folder.path().join("node")).unwrap();
        }
        if fault != "API server" {
            pod.networks = agent(pod.folder.path(), &pod.cluster);
        }
        pod.sweep(&|_| false);
        assert_eq!((pod.kept(), pod.on_node()), (0, vec![]), "{fault}, noted: {noted}");
        assert_eq!(pod.calls(), ["ADD", "DEL"], "{fault}, noted: {noted}");
    }
}

#[test]
fn a_network_is_plugged_again_after_an_unplug_that_was_cut_short() {
    let mut pod = Launcher::with_eth0();
    pod.cluster.define("ns/blue", &pod.config(&json!({})));
    pod.wire(spec(&["blue"])).unwrap();
    let status = pod.observe();
    pod.calls();
    // The API server stops before the unplug.
    pod.cluster.refuses.store(true, Ordering::Relaxed);
    assert_eq!(pod.wire(spec(&[])).unwrap_err().kind(), Kind::Cluster);
    assert_eq!(
        (pod.calls().len(), pod.kept()),
        (0, 1),
        "no DEL as long as network-status lists the interface"
    );
    pod.cluster.refuses.store(false, Ordering::Relaxed);
    pod.wire(spec(&["blue"])).unwrap();
    assert_eq!((pod.calls().len(), pod.observe()), (0, status.clone()));
    // The agent is killed in DEL, at a time when network-status still lists the interface.
    pod.rewrite(|record| drop(record.insert("leaving".into(), json!(true))));
    pod.wire(spec(&["blue"])).unwrap();
    assert_eq!((pod.calls(), pod.observe()), (vec!["DEL".into(), "ADD".into()], status.clone()));
    // An unplug that is not cut short, and another plug.
    pod.wire(spec(&[])).unwrap();
    assert_eq!((pod.calls(), pod.kept()), (vec!["DEL".into()], 0));
    assert_eq!(pod.observe(), json!([status[0]]));
    pod.wire(spec(&["blue"])).unwrap();
    assert_eq!((pod.calls(), pod.observe()), (vec!["ADD".into()], status));
}

#[test]
fn a_pod_without_its_namespace_is_detached() {
    let mut pod = Launcher::with_eth0();
    pod.cluster.define("ns/blue", &pod.config(&json!({})));
    pod.wire(spec(&["blue"])).unwrap();
    pod.calls();
    pod.child.kill().unwrap();
    pod.child.wait().unwrap();
    Namespace::remove(&pod.path()).unwrap();
    pod.sweep(&|_| false);
    assert_eq!((pod.kept(), pod.on_node()), (0, vec![]));
    let log = std::fs::read_to_string(pod.log()).unwrap();
    assert!(
        log.contains(&format!("DEL {UID} pod16477688c0e  ")),
        "without a path that may lead elsewhere: {log}"
    );
}

#[test]
fn an_agent_waits_for_the_one_before_it_and_removes_its_unfinished_files() {
    let pod = Launcher::with_eth0();
    let alone = |networks: Arc<Networks>| Arc::into_inner(networks).unwrap().alone().unwrap();
    let first = alone(agent(pod.folder.path(), &pod.cluster));
    let network = pod.folder.path().join("network");
    let unfinished = ["begun", "results"].map(|name| network.join(name).join(".blue.0123456789ab.new"));
    for file in &unfinished {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "{").unwrap();
    }
    let second = agent(pod.folder.path(), &pod.cluster);
    let (sender, begun) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        let second = alone(second);
        sender.send(()).unwrap();
        second
    });
    assert!(begun.recv_timeout(Duration::from_millis(300)).is_err(), "the first one still works");
    assert!(unfinished.iter().all(|file| file.exists()));
    drop(first);
    begun.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(unfinished.iter().all(|file| !file.exists()));
    drop(waiting.join().unwrap());
}

#[test]
fn a_plugin_finds_its_interface_by_name_at_the_end_of_a_guest() {
    let pod = Launcher::with_eth0();
    pod.cluster.define("ns/blue", &pod.config(&json!({"mode": "by-name"})));
    pod.wire(spec(&["blue"])).unwrap();
    assert_eq!(pod.on_node().len(), 1);
    // The guest has ended; its pod and the namespace are still there.
    pod.sweep(&|_| false);
    assert_eq!((pod.kept(), pod.on_node()), (0, vec![]));
    let (shown, names) = (pod.snapshot(), Names::secondary("blue"));
    for link in [&names.pod, &names.port, &names.bridge, &names.tap] {
        assert!(!shown.contains(link.as_str()), "{link} is left: {shown}");
    }
}

#[test]
fn a_del_that_fails_is_tried_again() {
    let pod = Launcher::with_eth0();
    pod.cluster.define("ns/blue", &pod.config(&json!({"mode": "stuck"})));
    pod.wire(spec(&["blue"])).unwrap();
    pod.sweep(&|_| false);
    pod.sweep(&|_| false);
    assert_eq!((pod.calls(), pod.kept()), (vec!["ADD".into(), "DEL".into(), "DEL".into()], 1));
}

#[test]
fn a_plugin_that_hangs_delays_no_other_pod() {
    let pod = Launcher::with_eth0();
    pod.cluster.define("ns/blue", &pod.config(&json!({"mode": "hang"})));
    pod.wire(spec(&["blue"])).unwrap();
    // Nine other pods, of which some come after the one that hangs.
    let results = pod.folder.path().join("network/results");
    let file = std::fs::read_dir(&results).unwrap().next().unwrap().unwrap();
    let (name, text) =
        (file.file_name().into_string().unwrap(), std::fs::read_to_string(file.path()).unwrap());
    let good = STANDARD.encode(pod.config(&json!({})));
    for at in 1..10 {
        let other = format!("{at}{}", &UID[1..]);
        let mut record: Value = serde_json::from_str(&text.replace(UID, &other)).unwrap();
        record["config"] = json!(good);
        std::fs::write(results.join(name.replace(UID, &other)), record.to_string()).unwrap();
    }
    let begun = Instant::now();
    pod.networks.sweep(&|_| false).unwrap();
    while pod.kept() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} attachments are left", pod.kept());
        std::thread::sleep(Duration::from_millis(20));
    }
    // The next sweep starts no second DEL of the pod that hangs.
    pod.networks.sweep(&|_| false).unwrap();
    assert_eq!(pod.calls().iter().filter(|verb| *verb == "DEL").count(), 10);
}
