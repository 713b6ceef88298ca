//! A launcher pod's network namespace, made as CNI plugins leave it, and a process in it.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use api::launch::{Lease4, Route4};
use api::multus::{NetworkAttachmentDefinition, NetworkSpec};
use serde_json::json;

use super::*;
use crate::networks::{Annotated, Node, Objects, Reference};

/// The pod's uid.
const UID: &str = "0a1b2c3d-0000-4000-8000-00000000000f";

/// A pod and its node; their namespaces and the pod's process end with it.
struct Launcher {
    folder: tempfile::TempDir,
    networks: Arc<Networks>,
    cluster: Arc<Cluster>,
    /// The pod's object.
    object: Pod,
    directory: PodDirectory,
    process: Process,
    child: Child,
}

impl Launcher {
    /// A pod with a namespace that the commands prepare, words between spaces.
    fn new(commands: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("pods").join(UID)).unwrap();
        let directory = PodDirectory::open(folder.path(), UID).unwrap().unwrap();
        let path = folder.path().join("netns");
        Namespace::create(&path).unwrap();
        Namespace::create(&folder.path().join("node")).unwrap();
        let cluster = Arc::new(Cluster::default());
        std::fs::create_dir(folder.path().join("net.d")).unwrap();
        let networks = agent(folder.path(), &cluster);
        let child = inside(&path, || {
            for command in commands {
                run(command);
            }
            Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap()
        });
        let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        let object = Pod { uid: UID.to_owned(), name: "virt-launcher-vm-x".to_owned(), ..Pod::default() };
        Self { folder, networks, cluster, object, directory, process, child }
    }

    /// One with an eth0 of both families; its other end is in the same namespace under another name.
    fn with_eth0() -> Self {
        Self::new(&[
            "ip link set lo up",
            "ip link add eth0 mtu 1400 address 02:00:00:00:00:01 type veth peer name outside",
            "ip addr add 10.244.3.7/24 dev eth0",
            "ip addr add fd00:10:244::7/64 dev eth0 nodad",
            "ip link set outside up",
            "ip link set eth0 up",
            "ip route add default via 10.244.3.1",
            "ip route add 10.244.0.0/16 via 10.244.3.1",
            "ip route add 192.0.2.1/32 dev eth0",
        ])
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("netns")
    }

    fn wire(&self, spec: serde_json::Value) -> Result<Network> {
        let spec = serde_json::from_value(spec).unwrap();
        wire(&self.networks, &spec, "ns", "vm", &self.object, &self.directory, &self.process)
    }

    /// All that wiring changes, but for whether links have a carrier: the kernel finds that out a moment later.
    fn snapshot(&self) -> String {
        inside(&self.path(), || {
            let sysctls = [
                "net/ipv4/ip_unprivileged_port_start",
                "net/ipv4/ip_forward",
                "net/ipv6/conf/all/forwarding",
            ];
            let sysctl = |name: &&str| std::fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap();
            let sysctls: Vec<String> = sysctls.iter().map(sysctl).collect();
            let shown = ["ip -o link show", "ip -o -4 addr show", "ip route show", "nft list ruleset"];
            shown.iter().map(|command| without_carrier(&run(command))).chain(sysctls).collect()
        })
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        for name in ["netns", "node"] {
            drop(Namespace::remove(&self.folder.path().join(name)));
        }
    }
}

/// The agent's attachments, as it starts on a node with these files.
fn agent(folder: &Path, cluster: &Arc<Cluster>) -> Arc<Networks> {
    let node = Node { network: folder.join("node"), mounts: None, configurations: folder.join("net.d") };
    let shared = vec!["infra".to_owned()];
    Arc::new(Networks::new(Arc::clone(cluster) as _, node, folder, vec![plugins()], shared))
}

fn inside<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> T {
    Namespace::open(path).unwrap().on_a_thread(|| Ok::<_, Error>(work())).unwrap()
}

fn without_carrier(text: &str) -> String {
    let line = |line: &str| {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if let Some(state) = words.iter().position(|word| word == "state") {
            words.remove(state + 1);
        }
        words.retain(|word| word != "linkdown");
        for flags in words.iter_mut().filter(|word| word.starts_with('<')) {
            *flags = flags.trim_matches(['<', '>']).split(',').any(|flag| flag == "UP").to_string();
        }
        words.join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn masquerade() -> serde_json::Value {
    json!({
        "domain": {"devices": {"interfaces": [
            {"name": "default", "masquerade": {}, "macAddress": "02:00:00:00:00:10", "ports": [{"port": 22}]},
        ]}},
        "networks": [{"name": "default", "pod": {}}],
        "hostname": "host",
    })
}

fn bridge() -> serde_json::Value {
    json!({
        "domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}]}},
        "networks": [{"name": "default", "pod": {}}],
    })
}

#[test]
fn a_guest_behind_masquerade_is_wired_once() {
    let pod = Launcher::with_eth0();
    let first = pod.wire(masquerade()).unwrap();
    let shown = pod.snapshot();
    for part in [
        "tap0",
        "k6t-eth0",
        "10.0.2.1/24",
        "10.244.3.7/24",
        "tcp dport 22 dnat ip to 10.0.2.2",
        "oifname \"eth0\" masquerade",
        "67\n1\n1\n",
    ] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    let details = inside(&pod.path(), || run("ip -d -o link show dev tap0"));
    assert!(details.contains("user 107 ") && details.contains("master k6t-eth0"), "{details}");
    let tap = &first.taps()["default"];
    assert_eq!((tap.link.as_str(), tap.mac.as_str(), tap.mtu), ("tap0", "02:00:00:00:00:10", 1400));
    let dhcp = tap.dhcp.as_ref().unwrap();
    assert_eq!(dhcp.v4.as_ref().unwrap().address, Ipv4Addr::new(10, 0, 2, 2));
    assert_eq!((dhcp.v6.unwrap().to_string(), dhcp.host_name.as_str()), ("fd10:0:2::2".into(), "host"));
    // As after a restart of the agent.
    let again = pod.wire(masquerade()).unwrap();
    assert_eq!(again.nics, first.nics);
    assert_eq!(pod.snapshot(), shown);
}

#[test]
fn a_bridged_guests_configuration_stays_after_eth0_lost_its_addresses() {
    let pod = Launcher::with_eth0();
    let first = pod.wire(bridge()).unwrap();
    let tap = &first.taps()["default"];
    assert_eq!(tap.mac, "02:00:00:00:00:01", "eth0's");
    let gateway = Ipv4Addr::new(10, 244, 3, 1);
    let route = |network: [u8; 4], prefix, gateway| Route4 { network: network.into(), prefix, gateway };
    let wanted = Lease4 {
        address: Ipv4Addr::new(10, 244, 3, 7),
        prefix: 24,
        server: Ipv4Addr::new(169, 254, 75, 10),
        gateway: Some(gateway),
        routes: vec![route([192, 0, 2, 1], 32, Ipv4Addr::UNSPECIFIED), route([10, 244, 0, 0], 16, gateway)],
    };
    assert_eq!(tap.dhcp.as_ref().unwrap().v4, Some(wanted));
    let shown = pod.snapshot();
    for part in ["tap0", "k6t-eth0", "eth0-nic", "169.254.75.10/32"] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
    assert!(!shown.contains("default via"), "the route is the guest's: {shown}");
    let again = pod.wire(bridge()).unwrap();
    assert_eq!(again.nics, first.nics);
    assert_eq!(pod.snapshot(), shown);
    // Cut off before the guest had its bridge.
    inside(&pod.path(), || run("ip link del k6t-eth0") + &run("ip link del tap0"));
    assert_eq!(pod.wire(bridge()).unwrap().nics, first.nics);
    assert_eq!(pod.snapshot().matches("k6t-eth0").count(), shown.matches("k6t-eth0").count());
}

#[test]
fn the_status_names_the_pods_interface_and_addresses() {
    let pod = Launcher::with_eth0();
    let network = pod.wire(masquerade()).unwrap();
    let launched: Launched = serde_json::from_value(json!({
        "name": "default", "tap": "tap0", "mac": "02:00:00:00:00:10", "mtu": 1400, "model": "virtio", "queues": 2,
        "bootOrder": null, "acpiIndex": null, "linkUp": true, "dhcp": null,
    }))
    .unwrap();
    let status = network.status(&launched);
    assert_eq!(status.ip_address.as_deref(), Some("10.244.3.7"));
    assert_eq!(status.ip_addresses, ["10.244.3.7", "fd00:10:244::7"]);
    assert_eq!(status.pod_interface_name.as_deref(), Some("eth0"));
    assert_eq!((status.queue_count, status.info_source.as_deref()), (Some(2), Some("domain")));
    assert_eq!(status.mac.as_deref(), Some("02:00:00:00:00:10"));
}

#[test]
fn a_namespace_that_cannot_be_wired_is_refused_with_the_reason() {
    // Without an eth0.
    let mut pod = Launcher::new(&["ip link set lo up"]);
    let error = pod.wire(masquerade()).unwrap_err();
    assert_eq!(error.kind(), Kind::System);
    let said = error.chain();
    assert!(said.contains(UID) && said.contains("has no interface eth0"), "{said}");
    // Nothing was changed.
    assert!(!pod.snapshot().contains("k6t-eth0"));
    // Its process is gone.
    pod.child.kill().unwrap();
    pod.child.wait().unwrap();
    assert_eq!(pod.wire(masquerade()).unwrap_err().kind(), Kind::Launcher);
    // The agent's own, and the node's.
    let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap().unwrap();
    let spec = serde_json::from_value(masquerade()).unwrap();
    for (host_network, process) in [(false, &own), (true, &pod.process)] {
        let object = Pod { host_network, ..Pod::default() };
        let error = wire(&pod.networks, &spec, "ns", "vm", &object, &pod.directory, process).unwrap_err();
        assert_eq!(error.kind(), Kind::Untrusted, "{}", error.chain());
    }
}

#[test]
fn networks_that_cannot_be_attached_are_refused_by_path() {
    let named = |network: serde_json::Value| {
        json!({
            "domain": {"devices": {"interfaces": [{"name": "a", "masquerade": {}}, {"name": "b", "bridge": {}}]}},
            "networks": [{"name": "a", "pod": {"vmNetworkCIDR": "10.7.0.0/31"}}, network],
        })
    };
    for (spec, path) in [
        (named(json!({"name": "b", "pod": {}})), "spec.networks[0].pod.vmNetworkCIDR: not a network"),
        (
            json!({"domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}, {"name": "b", "bridge": {}}]}}}),
            "spec.domain.devices.interfaces[1].name: only one interface can be on the pod network",
        ),
        (
            json!({
                "domain": {"devices": {"interfaces": [{"name": "b", "masquerade": {}}]}},
                "networks": [{"name": "b", "multus": {"networkName": "blue"}}],
            }),
            "spec.domain.devices.interfaces[0].masquerade: only for the pod network",
        ),
    ] {
        let error = asks(&serde_json::from_value(spec).unwrap(), UID).unwrap_err();
        assert!(error.kind() == Kind::Content && error.message().starts_with(path), "{}", error.chain());
    }
    // One that is absent is none, and neither is one that was never asked for.
    for spec in [
        json!({"domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}, "state": "absent"}]}}}),
        json!({"domain": {"devices": {"autoattachPodInterface": false}}}),
    ] {
        let found = asks(&serde_json::from_value(spec).unwrap(), UID).unwrap();
        assert!(found.primary.is_none() && found.secondary.is_empty());
    }
    // By default a guest is behind masquerade.
    let found = asks(&serde_json::from_value(json!({"domain": {}})).unwrap(), UID).unwrap();
    assert!(matches!(found.primary.unwrap().binding, Binding::Masquerade { .. }));
}

#[test]
fn a_subdomain_is_searched_first() {
    let pod = Resolvers::parse("nameserver 10.96.0.10\nsearch ns.svc.cluster.local svc.cluster.local\n");
    let found = with_subdomain(pod.clone(), Some("db"), "ns");
    assert_eq!(found.search[0], "db.ns.svc.cluster.local");
    assert_eq!(found.addresses, ["10.96.0.10".parse::<IpAddr>().unwrap()]);
    for (subdomain, namespace) in [(None, "ns"), (Some(""), "ns"), (Some("db"), "other")] {
        assert_eq!(with_subdomain(pod.clone(), subdomain, namespace), pod);
    }
}

/// The API server: definitions by namespace and name, and the last network-status that was written.
#[derive(Debug, Default)]
struct Cluster {
    definitions: Mutex<BTreeMap<String, String>>,
    written: Mutex<Option<String>>,
    /// Whether it takes no network-status.
    refuses: AtomicBool,
}

impl Cluster {
    fn define(&self, name: &str, config: &str) {
        self.definitions.lock().unwrap().insert(name.to_owned(), config.to_owned());
    }
}

impl Objects for Cluster {
    fn definition(&self, reference: &Reference) -> Result<Option<NetworkAttachmentDefinition>> {
        let found = self.definitions.lock().unwrap().get(&reference.to_string()).cloned();
        let object = |config: String| NetworkAttachmentDefinition {
            spec: NetworkSpec { config: Some(config).filter(|config| !config.is_empty()) },
            ..NetworkAttachmentDefinition::default()
        };
        Ok(found.map(object))
    }

    fn annotate(&self, pod: &Annotated<'_>, after: &str) -> Result<()> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Cluster, "the API server does not answer"));
        }
        let mut written = self.written.lock().unwrap();
        if written.as_deref() != pod.before {
            return Err(Error::new(Kind::Stale, "another status was written"));
        }
        *written = Some(after.to_owned());
        Ok(())
    }
}

/// A folder with one plugin: it makes a veth pair between the node and the pod by `ip`, as root's plugins do.
///
/// The configuration's `mode` selects its behaviour; every call is appended to the file `log` of the configuration.
fn plugins() -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("virt-agent-plugins-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let new = folder.join(format!(".veth.{:?}", std::thread::current().id()));
    std::fs::write(&new, include_str!("tests/plugin.sh")).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(&new, folder.join("veth")).unwrap();
    folder
}

mod secondary;
