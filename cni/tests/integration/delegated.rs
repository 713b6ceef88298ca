//! IPAM plugins of other programs, run as the specification requires; among them the reference's `dhcp`, which asks through
//! the pod's own interface: by the time it is called, the interface must be there and reach the network. `make peers` builds
//! it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Host, Namespace, Running, bridge, peer, with};

/// A server of addresses on the bridge `br0`, and the plugin's daemon.
fn network(host: &Host) -> (Namespace, [Running; 2], Value) {
    let folder = host.folder.path();
    std::os::unix::fs::symlink(peer("dhcp"), folder.join("dhcp")).unwrap();
    let server = Namespace::new();
    host.namespace.ip("link add br0 up type bridge");
    host.namespace.ip(&format!("link add s0 up master br0 type veth peer name s1 netns {}", server.path()));
    server.ip("addr add 10.88.0.1/24 dev s1");
    server.ip("link set s1 up");
    let settings = format!(
        "start 10.88.0.10\nend 10.88.0.20\ninterface s1\nlease_file {0}/leases\npidfile {0}/pid\n\
         option subnet 255.255.255.0\noption router 10.88.0.1\noption lease 600\n",
        folder.display()
    );
    std::fs::write(folder.join("leases"), "").unwrap();
    std::fs::write(folder.join("udhcpd.conf"), settings).unwrap();
    let serves =
        Running::start(server.command("busybox").args(["udhcpd", "-f"]).arg(folder.join("udhcpd.conf")));
    let socket = folder.join("dhcp.sock");
    let daemon = ["daemon", "-socketpath", socket.to_str().unwrap()];
    let daemon = Running::start(host.namespace.command(peer("dhcp")).args(daemon));
    // A client that asks before the server listens repeats only seconds later.
    let listens = || server.run("cat", &["/proc/net/udp"]).contains(":0043 ");
    let until = Instant::now() + Duration::from_secs(10);
    while !socket.exists() || !listens() {
        assert!(Instant::now() < until, "the daemon and the server do not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let ipam = json!({"type": "dhcp", "daemonSocketPath": socket});
    (server, [serves, daemon], with(&bridge(), "ipam", ipam))
}

#[test]
fn an_address_from_the_network() {
    let (host, pod) = (Host::new(), Namespace::new());
    let (_server, _running, config) = network(&host);
    let result = host.add(&pod, &config).result();
    assert!(result["ips"][0]["address"].as_str().unwrap().starts_with("10.88.0."), "{result}");
    assert_eq!(result["ips"][0]["gateway"], "10.88.0.1");
    pod.run("busybox", &["ping", "-c1", "-W2", "10.88.0.1"]);
    let check = host.check(&pod, &config, &result);
    assert!(check.success, "{check:?}");
    host.del(&pod, &config).result();
    assert!(pod.names().is_empty());
    assert_eq!(host.namespace.names(), ["br0", "s0"]);
}

/// A plugin that notes what it is asked, and what it finds in the pod; its answer to ADD is a line of shell.
fn noting(host: &Host, answer: &str) -> Value {
    use std::os::unix::fs::PermissionsExt;
    let plugin = host.folder.path().join("noting");
    let log = host.folder.path().join("log").display().to_string();
    let script = format!(
        "#!/bin/sh\nif nsenter --net=\"$CNI_NETNS\" ip link show \"$CNI_IFNAME\" >&2; then f=there; else f=gone; fi\n\
         grep -q '\"extra\":7' || exit 9\necho $CNI_COMMAND $CNI_CONTAINERID $f >> {log}\n\
         [ $CNI_COMMAND = DEL ] && exit 0\n{answer}\n"
    );
    std::fs::write(&plugin, script).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    with(&bridge(), "ipam", json!({"type": "noting", "extra": 7}))
}

#[test]
fn a_plugin_that_fails_is_asked_to_clean_up() {
    let refuses = "echo '{\"cniVersion\": \"1.1.0\", \"code\": 123, \"msg\": \"no more\"}'; exit 1";
    for (answer, code, said) in [
        (refuses, 123, "no more"),
        ("echo nonsense", 6, "not JSON"),
        ("echo '{\"cniVersion\": \"1.1.0\"}'", 999, "gave no address"),
        ("exit 3", 999, "without an error message"),
    ] {
        let (host, pod) = (Host::new(), Namespace::new());
        let (found, words) = host.add(&pod, &noting(&host, answer)).error();
        assert!(found == code && words.contains(said), "{answer}: {found}: {words}");
        let log = std::fs::read_to_string(host.folder.path().join("log")).unwrap();
        assert_eq!(log, "ADD c1 there\nDEL c1 there\n", "{answer}");
        assert!(pod.names().is_empty() && host.namespace.names().is_empty(), "{answer}");
    }
    // A step that fails later returns the address.
    let (host, pod) = (Host::new(), Namespace::new());
    let answer = "echo '{\"cniVersion\": \"1.1.0\", \"ips\": [{\"address\": \"10.1.2.3/24\", \"gateway\": \"10.9.9.9\"}], \
                  \"routes\": [{\"dst\": \"0.0.0.0/0\"}]}'";
    host.add(&pod, &noting(&host, answer)).error();
    let log = std::fs::read_to_string(host.folder.path().join("log")).unwrap();
    assert_eq!(log, "ADD c1 there\nDEL c1 gone\n");
    assert!(pod.names().is_empty() && host.namespace.names().is_empty());
}

/// Without a server; the daemon is not there.
#[test]
fn no_address_and_nothing_left() {
    let (host, pod) = (Host::new(), Namespace::new());
    let (_server, running, config) = network(&host);
    drop(running);
    let (_, words) = host.add(&pod, &config).error();
    assert!(words.contains("dhcp"), "{words}");
    assert!(pod.names().is_empty());
    assert_eq!(host.namespace.names(), ["br0", "s0"]);
}
