//! Together with the Go reference plugins v1.9.1: what one side attached, the other checks and takes away; and real
//! libcni, through its cnitool, drives ours. `make peers` builds them.

use serde_json::{Value, json};

use crate::support::{Host, Namespace, Running, bridge, peer, with};

#[test]
fn go_attaches_and_ours_checks_and_deletes() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = with(&bridge(), "cniVersion", json!(version));
        let result = host.reference(host.call("ADD", &pod, &config)).result();
        if version >= "0.4.0" {
            let check = host.check(&pod, &config, &result);
            assert!(check.success, "{check:?}");
        }
        host.del(&pod, &config).result();
        assert_eq!(host.namespace.names(), ["br0"]);
        assert!(pod.names().is_empty());
    }
}

#[test]
fn ours_attaches_and_go_deletes() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &bridge()).result();
    host.reference(host.call("DEL", &pod, &bridge())).result();
    assert_eq!(host.namespace.names(), ["br0"]);
    assert!(pod.names().is_empty());
}

/// The answers have the same members with the same values, but for what each run chooses and the MTU, which the reference
/// leaves out.
#[test]
fn the_answers_are_the_references() {
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = with(&bridge(), "cniVersion", json!(version));
        let plain = |mut result: Value| {
            for interface in result["interfaces"].as_array_mut().unwrap() {
                let interface = interface.as_object_mut().unwrap();
                assert_eq!(interface.remove("mac").unwrap().as_str().unwrap().len(), 17);
                interface.remove("mtu");
                if interface["name"].as_str().unwrap().starts_with("veth") {
                    assert_eq!(interface.remove("name").unwrap().as_str().unwrap().len(), 12);
                }
            }
            result
        };
        let reference = plain(host.reference(host.call("ADD", &pod, &config)).result());
        host.del(&pod, &config).result();
        assert_eq!(plain(host.add(&pod, &config).result()), reference);
    }
}

/// The address that the runtime requests by `runtimeConfig`.
const MAC: &str = "02:00:00:00:00:07";

/// cnitool with a network list whose first plugin is ours, and a directory with ours and the other plugins of the reference.
struct Tool {
    host: Host,
    pod: Namespace,
    /// The network's name. libcni remembers attachments by it in one folder for the whole machine, and a GC takes away
    /// all that it finds there: two tests with one name would end each other's attachments.
    network: String,
}

impl Tool {
    fn new(plugins: &Value) -> Self {
        let (host, pod) = (Host::new(), Namespace::new());
        let folder = host.folder.path();
        std::os::unix::fs::symlink(peer("portmap"), folder.join("portmap")).unwrap();
        let network = pod.path().replace("/run/netns/", "");
        let list = json!({"cniVersion": "1.1.0", "name": network, "plugins": plugins});
        std::fs::create_dir(folder.join("net.d")).unwrap();
        std::fs::write(folder.join("net.d/net.conflist"), list.to_string()).unwrap();
        Self { host, pod, network }
    }

    fn run(&self, verb: &str, arguments: &str, asked: &Value) -> Vec<u8> {
        let folder = self.host.folder.path();
        let output = self
            .host
            .namespace
            .command(peer("cnitool"))
            .args([verb, &self.network, &self.pod.path()])
            .env("NETCONFPATH", folder.join("net.d"))
            .env("CNI_PATH", folder)
            .env("CNI_IFNAME", "net1")
            .env("CNI_ARGS", arguments)
            .env("CAP_ARGS", asked.to_string())
            .output()
            .unwrap();
        assert!(output.status.success(), "{verb}: {output:?}");
        output.stdout
    }

    /// Links but the bridge and the way out, and rules that name the pod's network or the attachment.
    fn left(&self) -> (Vec<String>, Vec<String>) {
        let mut links = [self.host.namespace.names(), self.pod.names()].concat();
        links.retain(|name| name != "br0" && name != "out");
        let rules = self.host.namespace.run("nft", &["list", "ruleset"]);
        let of_pod = |rule: &&str| rule.contains("10.77.0.") || rule.contains("-net1");
        (links, rules.lines().filter(of_pod).map(|rule| rule.trim().to_owned()).collect())
    }
}

/// The remains of an attachment.
const NOTHING: (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());

/// The verbs in order, with the names that the network addons operator installs.
#[test]
fn cnitool_drives_a_chain() {
    let tuning = json!({
        "type": "cnv-tuning", "capabilities": {"mac": true}, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
    });
    let tool = Tool::new(
        &json!([{"type": "cnv-bridge", "bridge": "br0", "macspoofchk": true, "spoofchkBackend": "nftables"}, tuning]),
    );
    let run = |verb: &str| tool.run(verb, "IgnoreUnknown=1;K8S_POD_NAME=p", &json!({"mac": MAC}));
    run("status");
    let result: Value = serde_json::from_slice(&run("add")).unwrap();
    assert_eq!(result["interfaces"][2]["mac"], MAC);
    assert_eq!(tool.pod.link("net1")["address"], MAC);
    run("check");
    for _ in 0..2 {
        run("del");
        assert_eq!(tool.left(), NOTHING);
    }
    // cnitool calls no attachment valid.
    run("add");
    run("gc");
    assert_eq!(tool.left(), NOTHING);
}

/// Ports of the node that lead to the pod, by either backend of the reference's `portmap`, and a limit after it.
#[test]
fn cnitool_drives_ports_and_a_limit() {
    for backend in ["iptables", "nftables"] {
        let tool = Tool::new(&json!([
            {
                "type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipMasqBackend": backend, "capabilities": {"mac": true, "ips": true},
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}]], "dataDir": "LEASES"},
            },
            {"type": "portmap", "backend": backend, "snat": true, "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ]));
        let folder = tool.host.folder.path();
        let list = folder.join("net.d/net.conflist");
        let leases = folder.join("leases").display().to_string();
        let text = std::fs::read_to_string(&list).unwrap().replace("LEASES", &leases);
        std::fs::write(list, text).unwrap();
        let world = Namespace::new();
        tool.host.namespace.ip(&format!("link add out type veth peer name in netns {}", world.path()));
        tool.host.namespace.ip("addr add 198.51.100.1/24 dev out");
        tool.host.namespace.ip("link set out up");
        world.ip("addr add 198.51.100.2/24 dev in");
        world.ip("link set in up");

        let asked = json!({
            "mac": MAC,
            "ips": ["10.77.0.9"],
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}],
            "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 8_000_000, "egressRate": 8_000_000,
                "egressBurst": 8_000_000},
        });
        let run = |verb: &str| tool.run(verb, "IgnoreUnknown=1;K8S_POD_NAME=p", &asked);
        run("status");
        let result: Value = serde_json::from_slice(&run("add")).unwrap();
        assert_eq!(result["ips"][0]["address"], "10.77.0.9/24");
        run("check");
        std::fs::write(folder.join("hello"), "hello").unwrap();
        let served = folder.display().to_string();
        let serve = ["httpd", "-f", "-p", "80", "-h", &served];
        let server = Running::start(tool.pod.command("busybox").args(serve));
        let mut said = String::new();
        let fetched = (0..50).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let fetch = [
                "--silent",
                "--show-error",
                "--noproxy",
                "*",
                "--max-time",
                "2",
                "http://198.51.100.1:8080/hello",
            ];
            let output = world.command("curl").args(fetch).output().unwrap();
            said = format!("{output:?}");
            output.stdout == b"hello"
        });
        drop(server);
        assert!(fetched, "{backend}: {said}");
        run("del");
        assert_eq!(tool.left(), NOTHING, "{backend}");
        run("add");
        run("gc");
        assert_eq!(tool.left(), NOTHING, "{backend}");
    }
}
