//! The plugin `bridge` on layer 3, in network namespaces: addresses and routes of pods in every version, the changes that
//! CHECK finds, and complete removal. Gateways are in `gateway`, comparisons with the reference in `mixed_layer3`.

use serde_json::{Value, json};

use crate::support::addresses::{addresses, both, four, reserved, routes};
use crate::support::{Host, Namespace, bridge, golden, in_every_version, stable, with};

fn setting(namespace: &Namespace, key: &str) -> String {
    namespace.run("cat", &[&format!("/proc/sys/net/{key}")]).trim().to_owned()
}

#[test]
fn a_gateway_for_both_families_in_every_version() {
    in_every_version(|version| {
        let (host, pod) = (Host::new(), Namespace::new());
        let keys = json!({"cniVersion": version, "isDefaultGateway": true});
        let config = both(&host, keys);
        let result = host.add(&pod, &config).result();
        golden(&format!("bridge-l3-{version}.json"), &stable(&result, &pod));

        assert_eq!(addresses(&pod, "net1"), ["10.1.2.2/24", "fd00::2/64"]);
        assert_eq!(addresses(&host.namespace, "br0"), ["10.1.2.1/24", "fd00::1/64"]);
        assert_eq!(
            routes(&pod, "-4"),
            ["default via 10.1.2.1 dev net1", "10.1.2.0/24 dev net1 proto kernel scope link src 10.1.2.2"]
        );
        assert!(routes(&pod, "-6").iter().any(|route| route.starts_with("default via fd00::1 dev net1")));
        assert_eq!(setting(&host.namespace, "ipv4/ip_forward"), "1");
        assert_eq!(setting(&host.namespace, "ipv6/conf/all/forwarding"), "1");
        for (key, value) in [
            ("ipv4/conf/net1/arp_notify", "1"),
            ("ipv6/conf/net1/accept_dad", "0"),
            ("ipv6/conf/net1/disable_ipv6", "0"),
            ("ipv6/conf/net1/keep_addr_on_down", "1"),
        ] {
            assert_eq!(setting(&pod, key), value, "{key}");
        }
        assert_eq!(pod.link("net1")["operstate"], "UP");
        pod.run("busybox", &["ping", "-c1", "-W2", "10.1.2.1"]);
        if version == "1.1.0" {
            // Duplicate address detection on the bridge comes first.
            let reached = |_| {
                let ping =
                    pod.command("busybox").args(["ping", "-6", "-c1", "-W1", "fd00::1"]).output().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(100));
                ping.status.success()
            };
            assert!((0..50).any(reached));
        }
        assert!(reserved(&host, "net") > 0);
        if version >= "0.4.0" {
            let check = host.check(&pod, &config, &result);
            assert!(check.success, "{check:?}");
        }
        for _ in 0..2 {
            host.del(&pod, &config).result();
            assert_eq!((host.namespace.names(), pod.names()), (vec!["br0".to_owned()], vec![]));
            assert_eq!(reserved(&host, "net"), 0);
        }
    });
}

#[test]
fn routes_dns_and_options_of_ipam() {
    let (host, pod) = (Host::new(), Namespace::new());
    let mut config = four(&host, json!({"dns": {"nameservers": ["192.0.2.53"]}}));
    config["ipam"]["routes"] = json!([
        {"dst": "0.0.0.0/0"},
        {"dst": "192.0.2.0/24", "gw": "10.1.2.9", "priority": 50, "mtu": 1300, "advmss": 1200},
        {"dst": "198.51.100.0/24", "gw": "10.1.2.8", "table": 77},
        {"dst": "203.0.113.7/24", "scope": 253, "gw": ""},
    ]);
    let result = host.add(&pod, &config).result();
    assert_eq!(result["dns"], json!({"nameservers": ["192.0.2.53"]}));
    let main = routes(&pod, "-4");
    assert!(main.contains(&"default via 10.1.2.1 dev net1".to_owned()), "{main:?}");
    let route = main.iter().find(|route| route.starts_with("192.0.2.0/24")).unwrap();
    for part in ["via 10.1.2.9", "metric 50", "mtu 1300", "advmss 1200"] {
        assert!(route.contains(part), "{route}");
    }
    let other = pod.run("ip", &["route", "show", "table", "77"]);
    assert!(other.contains("198.51.100.0/24 via 10.1.2.8"), "{other}");
    assert!(addresses(&host.namespace, "br0").is_empty(), "no gateway was asked for");
    assert!(host.check(&pod, &config, &result).success);
    host.del(&pod, &config).result();
}

#[test]
fn several_addresses_of_one_family() {
    let (host, pod) = (Host::new(), Namespace::new());
    let ranges = json!([
        [{"subnet": "10.1.2.0/24"}],
        [{"subnet": "fd00::/64"}],
        [{"subnet": "fd01::/64", "gateway": "fd01::f"}],
    ]);
    let config = host.with_ranges(&ranges, json!({"isDefaultGateway": true}));
    let result = host.add(&pod, &config).result();
    assert_eq!(addresses(&host.namespace, "br0").len(), 3);
    assert_eq!(addresses(&pod, "net1").len(), 3);
    assert_eq!(result["routes"].as_array().unwrap().len(), 2);
    assert!(host.check(&pod, &config, &result).success);
}

#[test]
fn duplicate_address_detection_only_when_asked() {
    let (host, one, two) = (Host::new(), Namespace::new(), Namespace::new());
    let config = both(&host, json!({"enabledad": true}));
    let start = std::time::Instant::now();
    host.add(&one, &config).result();
    println!("ADD with duplicate address detection: {:?}", start.elapsed());
    assert_eq!(setting(&one, "ipv6/conf/net1/accept_dad"), "1");
    assert_eq!(setting(&one, "ipv6/conf/net1/enhanced_dad"), "1");
    let shown = one.run("ip", &["-6", "addr", "show", "dev", "net1"]);
    assert!(!shown.contains("tentative"), "{shown}");

    // The address that comes next is somebody's already.
    one.ip("addr add fd00::3/64 dev net1 nodad");
    let mut call = host.call("ADD", &two, &config);
    call.container = "c2".to_owned();
    let (_, words) = host.make(&call).error();
    assert!(words.contains("fd00::3") && words.contains("another host"), "{words}");
    assert!(two.names().is_empty());
    assert_eq!(host.namespace.names().len(), 2);
}

#[test]
fn after_another_plugin_of_the_chain() {
    let (host, pod) = (Host::new(), Namespace::new());
    let before = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": pod.path()}],
        "ips": [{"address": "192.0.2.5/24", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "192.0.2.1"}],
        "dns": {"nameservers": ["192.0.2.53"]},
    });
    let config = four(&host, json!({"isDefaultGateway": true, "prevResult": before}));
    let result = host.add(&pod, &config).result();
    let names: Vec<&str> =
        result["interfaces"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[1], names[3]), ("eth0", "br0", "net1"));
    assert_eq!(result["ips"][0], before["ips"][0]);
    assert_eq!(
        (&result["ips"][1]["address"], &result["ips"][1]["interface"]),
        (&json!("10.1.2.2/24"), &json!(3))
    );
    // The pod has its default route; a second one would be a second way out.
    assert_eq!(result["routes"], before["routes"]);
    assert_eq!(result["dns"], before["dns"]);
    assert!(!routes(&pod, "-4").iter().any(|route| route.starts_with("default")));
}

#[test]
fn a_failing_add_gives_all_back() {
    let keys = json!({"isDefaultGateway": true});
    // The name is taken in the pod.
    let (host, pod) = (Host::new(), Namespace::new());
    pod.ip("link add net1 type veth peer name other");
    host.add(&pod, &both(&host, keys.clone())).error();
    assert!(host.namespace.names().is_empty(), "{:?}", host.namespace.names());
    assert_eq!(reserved(&host, "net"), 0);

    // A route that cannot be.
    let (host, pod) = (Host::new(), Namespace::new());
    let mut config = both(&host, keys.clone());
    config["ipam"]["routes"] = json!([{"dst": "192.0.2.0/24", "gw": "198.51.100.1"}]);
    let (code, words) = host.add(&pod, &config).error();
    assert_eq!(code, 100);
    assert!(words.contains("192.0.2.0/24 via 198.51.100.1"), "{words}");
    assert!(host.namespace.names().is_empty() && pod.names().is_empty());
    assert_eq!(reserved(&host, "net"), 0);

    // IPAM has nothing left, or gives nothing, or is none.
    let full = host.with_ranges(&json!([[{"subnet": "10.1.2.0/30"}]]), keys);
    let mut call = host.call("ADD", &pod, &full);
    call.container = "c0".to_owned();
    host.make(&call).result();
    let (names, taken) = (host.namespace.names(), reserved(&host, "net"));
    assert_eq!(host.add(&Namespace::new(), &full).error().0, 11);
    let nothing = config_of(json!({"type": "static"}));
    assert_eq!(host.add(&Namespace::new(), &nothing).error().0, 999);
    let own = config_of(json!({"type": "static", "addresses": [{"address": "10.1.2.1/24"}]}));
    let (code, words) = host.add(&Namespace::new(), &with(&own, "isGateway", json!(true))).error();
    assert_eq!((code, words.contains("gateway")), (7, true), "{words}");
    for no_ipam in ["bridge", "cnv-bridge"] {
        assert_eq!(host.add(&Namespace::new(), &config_of(json!({"type": no_ipam}))).error().0, 7);
    }
    assert_eq!((host.namespace.names(), reserved(&host, "net")), (names, taken));

    // Attached already: the addresses stay with the first.
    call.verb = "ADD".to_owned();
    let (_, words) = host.make(&call).error();
    assert!(words.contains("attached"), "{words}");
    assert_eq!(reserved(&host, "net"), taken);
    assert_eq!(addresses(&host.namespace, "br0"), ["10.1.2.1/30"]);
}

fn config_of(ipam: Value) -> Value {
    with(&bridge(), "ipam", ipam)
}

#[test]
fn a_check_reports_losses() {
    type Change = fn(&Host, &Namespace);
    let changes: [(&str, Change); 6] = [
        ("10.1.2.2/24", |_, pod| drop(pod.ip("addr del 10.1.2.2/24 dev net1"))),
        ("fd00::2/64", |_, pod| drop(pod.ip("addr del fd00::2/64 dev net1"))),
        ("0.0.0.0/0", |_, pod| drop(pod.ip("route del default"))),
        ("gateway's address 10.1.2.1", |host, _| drop(host.namespace.ip("addr del 10.1.2.1/24 dev br0"))),
        ("not reserved", |host, _| std::fs::remove_file(host.networks().join("net/10.1.2.2")).unwrap()),
        ("no address is reserved", |host, _| std::fs::remove_dir_all(host.networks()).unwrap()),
    ];
    for (wanted, change) in changes {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = both(&host, json!({"isDefaultGateway": true}));
        let result = host.add(&pod, &config).result();
        assert!(host.check(&pod, &config, &result).success);
        change(&host, &pod);
        let (code, words) = host.check(&pod, &config, &result).error();
        assert_eq!(code, 101, "{words}");
        assert!(words.contains(wanted), "{wanted}: {words}");
        host.del(&pod, &config).result();
        assert_eq!(reserved(&host, "net"), 0, "{wanted}");
    }
}

/// KubeVirt moves the addresses to a dummy of the old name; a bridge stands for it.
#[test]
fn an_interface_that_kubevirt_renamed_keeps_its_addresses_in_a_check() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = four(&host, json!({"isGateway": true}));
    let result = host.add(&pod, &config).result();
    let mac = result["interfaces"][2]["mac"].as_str().unwrap();
    pod.ip("link set net1 down");
    pod.ip("link set net1 name net1-nic");
    pod.ip("addr flush dev net1-nic");
    pod.ip("link set net1-nic address 02:00:00:00:00:09 up");
    pod.ip(&format!("link add net1 address {mac} type bridge"));
    pod.ip("addr add 10.1.2.2/24 dev net1");
    let check = host.check(&pod, &config, &result);
    assert!(check.success, "{check:?}");
    host.del(&pod, &config).result();
    assert!(pod.names().is_empty());
    assert_eq!(reserved(&host, "net"), 0);
}

/// `host-local`, when it is ours, is no process of its own.
#[test]
fn addresses_need_no_other_program() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = four(&host, json!({"isDefaultGateway": true}));
    let report = host.folder.path().join("report");
    let call = host.call("ADD", &pod, &config);
    let mut command = host.namespace.command("strace");
    command.args(["-f", "-e", "trace=execve,execveat", "-o"]).arg(&report).arg(&call.plugin);
    host.run(command, &call).result();
    let report = std::fs::read_to_string(report).unwrap();
    assert_eq!(report.matches("exec").count(), 1, "{report}");
}
