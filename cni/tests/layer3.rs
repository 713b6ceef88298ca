//! The plugin `bridge` on layer 3, in network namespaces: addresses, routes, gateways, and that nothing is left of them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Answer, Call, Host, Namespace, VERSIONS, bridge, count, golden, peer, with};

/// A configuration of `bridge` with further keys.
fn config(keys: Value) -> Value {
    let mut config = bridge();
    let Value::Object(keys) = keys else { panic!("{keys}") };
    config.as_object_mut().unwrap().extend(keys);
    config
}

fn data(host: &Host) -> PathBuf {
    host.folder.path().join("networks")
}

/// The same with `host-local`.
fn with_ranges(host: &Host, ranges: &Value, keys: Value) -> Value {
    let ipam = json!({"type": "host-local", "dataDir": data(host), "ranges": ranges});
    with(&config(keys), "ipam", ipam)
}

fn four(host: &Host, keys: Value) -> Value {
    with_ranges(host, &json!([[{"subnet": "10.1.2.0/24"}]]), keys)
}

fn both(host: &Host, keys: Value) -> Value {
    with_ranges(host, &json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]), keys)
}

/// How many addresses are reserved.
fn reserved(host: &Host, network: &str) -> usize {
    let Ok(folder) = std::fs::read_dir(data(host).join(network)) else { return 0 };
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock" && !name.starts_with("last_reserved_ip.")).count()
}

/// Addresses of a link, those of the link itself left out.
fn addresses(namespace: &Namespace, link: &str) -> Vec<String> {
    let shown: Value =
        serde_json::from_str(&namespace.run("ip", &["-j", "addr", "show", "dev", link])).unwrap();
    let of_link = |address: &&Value| address["scope"] != "link";
    let text = |address: &Value| format!("{}/{}", address["local"].as_str().unwrap(), address["prefixlen"]);
    shown[0]["addr_info"].as_array().unwrap().iter().filter(of_link).map(text).collect()
}

fn routes(namespace: &Namespace, family: &str) -> Vec<String> {
    let shown = namespace.run("ip", &[family, "route"]);
    shown.lines().map(|line| line.trim().to_owned()).filter(|line| !line.starts_with("fe80")).collect()
}

fn setting(namespace: &Namespace, key: &str) -> String {
    namespace.run("cat", &[&format!("/proc/sys/net/{key}")]).trim().to_owned()
}

/// The same call to the reference plugin.
fn theirs(host: &Host, mut call: Call) -> Answer {
    call.plugin = peer(call.plugin.file_name().unwrap().to_str().unwrap());
    host.make(&call)
}

/// The same, with the reference's IPAM as well.
fn all_theirs(host: &Host, mut call: Call) -> Answer {
    call.path = peer("bridge").parent().unwrap().display().to_string();
    theirs(host, call)
}

/// The result with what differs from run to run replaced.
fn stable(result: &Value, pod: &Namespace) -> Value {
    let mut text = result.to_string().replace(&pod.path(), "NETNS");
    for interface in result["interfaces"].as_array().into_iter().flatten() {
        let mac = interface["mac"].as_str().unwrap();
        assert_eq!(mac.len(), 17, "{mac}");
        text = text.replace(mac, "MAC");
    }
    serde_json::from_str(&text).unwrap()
}

/// The same without what only one side says, and with the host end's name replaced.
fn plain(mut result: Value) -> Value {
    for interface in result["interfaces"].as_array_mut().into_iter().flatten() {
        let interface = interface.as_object_mut().unwrap();
        interface.remove("mac");
        interface.remove("mtu");
        if interface["name"].as_str().unwrap().starts_with("veth") {
            interface.remove("name");
        }
    }
    result
}

#[test]
fn a_gateway_for_both_families_in_every_version() {
    for version in VERSIONS {
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
            // The bridge looks for others who have its address first.
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
    }
}

#[test]
fn the_answers_are_the_references() {
    for version in VERSIONS {
        for keys in
            [json!({}), json!({"isGateway": true}), json!({"isDefaultGateway": true, "dns": {"domain": "d"}})]
        {
            let (host, pod) = (Host::new(), Namespace::new());
            let mut config = both(&host, with(&keys, "cniVersion", json!(version)));
            config["ipam"]["routes"] =
                json!([{"dst": "192.0.2.0/24"}, {"dst": "fd01::/64", "gw": "fd00::9"}]);
            let reference = all_theirs(&host, host.call("ADD", &pod, &config)).result();
            let theirs = (addresses(&pod, "net1"), routes(&pod, "-4"), addresses(&host.namespace, "br0"));
            all_theirs(&host, host.call("DEL", &pod, &config)).result();
            std::fs::remove_dir_all(data(&host)).unwrap();
            let (host, pod) = (host, Namespace::new());
            let answer = host.add(&pod, &config).result();
            let text =
                |result: Value, pod: &Namespace| plain(result).to_string().replace(&pod.path(), "NETNS");
            let ours = (addresses(&pod, "net1"), routes(&pod, "-4"), addresses(&host.namespace, "br0"));
            assert_eq!(theirs.0, ours.0);
            assert_eq!(theirs.2, ours.2);
            assert_eq!(theirs.1.len(), ours.1.len(), "{theirs:?} {ours:?}");
            let sandboxless = |mut result: Value| {
                for one in result["interfaces"].as_array_mut().into_iter().flatten() {
                    one.as_object_mut().unwrap().remove("sandbox");
                }
                result
            };
            assert_eq!(
                text(sandboxless(answer), &pod),
                text(sandboxless(reference), &pod),
                "{version} {keys}"
            );
        }
    }
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
fn a_bridge_keeps_its_ethernet_address() {
    // Also one that an administrator made, and one that lost its last port and with it its address.
    for prepare in ["", "link add br0 type bridge", "link add br0 up type bridge"] {
        let (host, one, two) = (Host::new(), Namespace::new(), Namespace::new());
        if !prepare.is_empty() {
            host.namespace.ip(prepare);
            host.namespace.ip("link add t0 type veth peer name t1");
            host.namespace.ip("link set t0 master br0");
            host.namespace.ip("link del t0");
            assert_eq!(host.namespace.link("br0")["address"], "00:00:00:00:00:00");
        }
        let config = four(&host, json!({"isGateway": true}));
        let result = host.add(&one, &config).result();
        let mac = host.namespace.link("br0")["address"].clone();
        assert_eq!(result["interfaces"][0]["mac"], mac);
        assert_ne!(result["interfaces"][1]["mac"], mac);
        assert_ne!(mac, "00:00:00:00:00:00");
        let mut call = host.call("ADD", &two, &config);
        call.container = "c2".to_owned();
        assert_eq!(host.make(&call).result()["interfaces"][0]["mac"], mac);
        host.del(&one, &config).result();
        assert_eq!(host.namespace.link("br0")["address"], mac);
        call.verb = "DEL".to_owned();
        host.make(&call).result();
        assert_eq!(host.namespace.link("br0")["address"], mac);
    }
}

#[test]
fn a_bridge_that_has_another_address() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 up type bridge");
    host.namespace.ip("addr add 10.9.9.9/24 dev br0");
    host.namespace.ip("addr add fd00::9/48 dev br0 nodad");
    host.namespace.ip("addr add fd09::9/64 dev br0 nodad");
    let before = addresses(&host.namespace, "br0");
    let config = both(&host, json!({"isGateway": true}));
    let (code, words) = host.add(&pod, &config).error();
    assert_eq!(code, 101);
    assert!(words.contains("10.9.9.9/24") && words.contains("forceAddress"), "{words}");
    assert_eq!((host.namespace.names(), pod.names()), (vec!["br0".to_owned()], vec![]));
    assert_eq!(addresses(&host.namespace, "br0"), before);
    assert_eq!(reserved(&host, "net"), 0);

    host.add(&pod, &with(&config, "forceAddress", json!(true))).result();
    let mut after = addresses(&host.namespace, "br0");
    after.sort();
    assert_eq!(after, ["10.1.2.1/24", "fd00::1/64", "fd09::9/64"]);
}

#[test]
fn several_addresses_of_one_family() {
    let (host, pod) = (Host::new(), Namespace::new());
    let ranges = json!([
        [{"subnet": "10.1.2.0/24"}],
        [{"subnet": "fd00::/64"}],
        [{"subnet": "fd01::/64", "gateway": "fd01::f"}],
    ]);
    let config = with_ranges(&host, &ranges, json!({"isDefaultGateway": true}));
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
    assert!(words.contains("fd00::3") && words.contains("somebody else"), "{words}");
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
    let full = with_ranges(&host, &json!([[{"subnet": "10.1.2.0/30"}]]), keys);
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
fn a_check_tells_what_is_lost() {
    type Change = fn(&Host, &Namespace);
    let changes: [(&str, Change); 6] = [
        ("10.1.2.2/24", |_, pod| drop(pod.ip("addr del 10.1.2.2/24 dev net1"))),
        ("fd00::2/64", |_, pod| drop(pod.ip("addr del fd00::2/64 dev net1"))),
        ("0.0.0.0/0", |_, pod| drop(pod.ip("route del default"))),
        ("gateway's address 10.1.2.1", |host, _| drop(host.namespace.ip("addr del 10.1.2.1/24 dev br0"))),
        ("not reserved", |host, _| std::fs::remove_file(data(host).join("net/10.1.2.2")).unwrap()),
        ("no address is reserved", |host, _| std::fs::remove_dir_all(data(host)).unwrap()),
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

/// Who attached, who gave the address, who checks, and who detaches: ours or the reference's, all ways.
#[test]
fn mixed_with_the_reference() {
    for turn in 0..8 {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = both(&host, json!({"isDefaultGateway": true}));
        let reference = peer("bridge").parent().unwrap().display().to_string();
        let make = |verb: &str, config: &Value, plugin_is_ours: bool, ipam_is_ours: bool| {
            let mut call = host.call(verb, &pod, config);
            if !ipam_is_ours {
                call.path.clone_from(&reference);
            }
            if plugin_is_ours { host.make(&call) } else { theirs(&host, call) }
        };
        let (attaches, gives, detaches) = (turn & 1 == 0, turn & 2 == 0, turn & 4 == 0);
        let result = make("ADD", &config, attaches, gives).result();
        let check = with(&config, "prevResult", result);
        for (plugin, ipam) in [(true, true), (true, false), (false, true), (false, false)] {
            let answer = make("CHECK", &check, plugin, ipam);
            assert!(answer.success, "{turn} {plugin} {ipam}: {answer:?}");
        }
        make("DEL", &config, detaches, !gives).result();
        assert_eq!(host.namespace.names(), ["br0"], "{turn}");
        assert!(pod.names().is_empty(), "{turn}");
        assert_eq!(reserved(&host, "net"), 0, "{turn}");
    }
}

/// Three networks, two on one bridge, attachments of both sides; a collection of one leaves the others' alone.
#[test]
fn a_collection_takes_what_the_reference_made_too() {
    let host = Host::new();
    let network = |name: &str, bridge: &str, subnet: &str| {
        let keys = json!({"name": name, "bridge": bridge});
        with_ranges(&host, &json!([[{"subnet": subnet}]]), keys)
    };
    let networks = [
        network("one", "br0", "10.1.2.0/24"),
        network("two", "br0", "10.1.3.0/24"),
        network("three", "br1", "10.1.4.0/24"),
    ];
    let mut pods = Vec::new();
    for (index, config) in networks.iter().enumerate() {
        for container in ["stale", "valid", "gostale", "govalid"] {
            let pod = Namespace::new();
            let mut call = host.call("ADD", &pod, config);
            call.container = format!("{container}{index}");
            let answer = if container.starts_with("go") { all_theirs(&host, call) } else { host.make(&call) };
            answer.result();
            pods.push(pod);
        }
    }
    // On the first network's bridge, with an address that a stale reservation of it names too: no proof.
    let pod = Namespace::new();
    let clash = with_ranges(&host, &json!([[{"subnet": "10.1.2.0/24"}]]), json!({"name": "four"}));
    let mut call = host.call("ADD", &pod, &with(&clash, "runtimeConfig", json!({"ips": ["10.1.2.4"]})));
    call.container = "clash".to_owned();
    all_theirs(&host, call).result();
    pods.push(pod);
    let attached = || pods.iter().map(|pod| pod.names().len()).collect::<Vec<_>>();
    assert_eq!(attached(), [1; 13]);

    let valid = json!([
        {"containerID": "valid0", "ifname": "net1"},
        {"containerID": "govalid0", "ifname": "net1"},
    ]);
    let collect = with(&networks[0], "cni.dev/valid-attachments", valid);
    host.make(&host.call("GC", &pods[0], &collect)).result();
    // The stale one of the reference shares its address with another network: its link stays until its pod goes.
    assert_eq!(attached(), [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!((reserved(&host, "two") > 0, reserved(&host, "three") > 0), (true, true));
    let left = |network: &str| {
        let names = std::fs::read_dir(data(&host).join(network)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("10.")).count()
    };
    assert_eq!((left("one"), left("two"), left("three"), left("four")), (2, 4, 4, 1));

    let valid =
        json!([{"containerID": "valid1", "ifname": "net1"}, {"containerID": "govalid1", "ifname": "net1"}]);
    let collect = with(&networks[1], "cni.dev/valid-attachments", valid);
    host.make(&host.call("GC", &pods[0], &collect)).result();
    assert_eq!(attached(), [0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1]);
    assert_eq!((left("one"), left("two"), left("three"), left("four")), (2, 2, 4, 1));
}

#[test]
fn a_status_tells_a_full_range() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = with_ranges(&host, &json!([[{"subnet": "10.1.2.0/30"}]]), json!({}));
    let status = || host.make(&host.call("STATUS", &pod, &config));
    status().result();
    host.add(&pod, &config).result();
    assert_eq!(status().error().0, 50);
    host.del(&pod, &config).result();
    status().result();
}

/// 64 on one bridge that is not there yet, with one range.
#[test]
fn many_at_once_have_different_addresses() {
    let host = Host::new();
    let total = count(64, 250);
    let config = four(&host, json!({"isDefaultGateway": true}));
    let pods: Vec<Namespace> = (0..total).map(|_| Namespace::new()).collect();
    let start = std::time::Instant::now();
    let results: Vec<Value> = std::thread::scope(|scope| {
        let (host, config) = (&host, &config);
        let calls = pods.iter().enumerate().map(|(index, pod)| {
            scope.spawn(move || {
                let mut call = host.call("ADD", pod, config);
                call.container = format!("c{index}");
                host.make(&call).result()
            })
        });
        let calls: Vec<_> = calls.collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    println!("{total} ADDs at once: {:?}", start.elapsed());
    let mut distinct: Vec<&str> =
        results.iter().map(|result| result["ips"][0]["address"].as_str().unwrap()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), total);
    let mac = host.namespace.link("br0")["address"].clone();
    assert!(
        results.iter().all(|result| result["interfaces"][0]["mac"] == mac),
        "the bridge's address is one"
    );
    assert_eq!(addresses(&host.namespace, "br0"), ["10.1.2.1/24"]);
    pods[0].run("busybox", &["ping", "-c1", "-W2", distinct[total - 1].trim_end_matches("/24")]);
    std::thread::scope(|scope| {
        let (host, config) = (&host, &config);
        for (index, pod) in pods.iter().enumerate() {
            scope.spawn(move || {
                let mut call = host.call("DEL", pod, config);
                call.container = format!("c{index}");
                host.make(&call).result();
            });
        }
    });
    assert_eq!(host.namespace.names(), ["br0"]);
    assert_eq!(reserved(&host, "net"), 0);
}

/// This kernel does not filter VLANs, so the gateway in one is refused: with a reason, and with nothing left.
#[test]
fn a_gateway_in_a_vlan_is_made_or_refused_whole() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = four(&host, json!({"isGateway": true, "vlan": 100}));
    let answer = host.add(&pod, &config);
    if answer.success {
        let result = answer.result();
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 4);
        assert_eq!(result["interfaces"][3]["name"], "br0.100");
        assert_eq!(addresses(&host.namespace, "br0.100"), ["10.1.2.1/24"]);
        assert!(host.check(&pod, &config, &result).success);
        host.del(&pod, &config).result();
    } else {
        answer.error();
        assert!(host.namespace.names().is_empty(), "{:?}", host.namespace.names());
    }
    assert!(pod.names().is_empty());
    assert_eq!(reserved(&host, "net"), 0);
    let long = with(&config, "bridge", json!("a23456789012345"));
    let (code, words) = host.add(&pod, &long).error();
    assert_eq!((code, words.contains("shorter")), (7, true), "{words}");
}

/// Both as shipped and as the reference is built; who wins is the benchmark's to say.
#[test]
fn it_takes_few_system_calls() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 up type bridge");
    let config = four(&host, json!({"isDefaultGateway": true}));
    let report = host.folder.path().join("report");
    let call = host.call("ADD", &pod, &config);
    let mut command = host.namespace.command("strace");
    command.args(["-f", "-c", "-o"]).arg(&report).arg(&call.plugin);
    host.run(command, &call).result();
    let report = std::fs::read_to_string(report).unwrap();
    let total = report.lines().find(|line| line.ends_with("total")).unwrap();
    println!("{} system calls", total.split_whitespace().nth(3).unwrap());
    assert!(!report.contains("execve") || report.contains("         1           execve"), "{report}");
}

/// All that there is at once, attached by ours or the reference and detached by the other: no rule is left either.
#[test]
fn with_spoof_check_and_masquerading() {
    for turn in 0..4 {
        let (host, pod) = (Host::new(), Namespace::new());
        let keys = json!({
            "isDefaultGateway": true, "macspoofchk": true, "ipMasq": true, "ipMasqBackend": "nftables",
        });
        let config = four(&host, keys);
        let call = |verb: &str, ours: bool, config: &Value| {
            let call = host.call(verb, &pod, config);
            if ours { host.make(&call) } else { theirs(&host, call) }
        };
        let rules = || {
            let all = host.namespace.run("nft", &["list", "ruleset"]);
            (all.matches("masquerade").count(), all.matches("macspoofchk").count())
        };
        let before = rules();
        let result = call("ADD", turn & 1 == 0, &config).result();
        let during = rules();
        assert!(during.0 > before.0 && during.1 > before.1, "{turn}: {during:?}");
        let check = call("CHECK", true, &with(&config, "prevResult", result));
        assert!(check.success, "{turn}: {check:?}");
        pod.run("busybox", &["ping", "-c1", "-W2", "10.1.2.1"]);
        call("DEL", turn & 2 == 0, &config).result();
        assert_eq!(reserved(&host, "net"), 0);
        let all = host.namespace.run("nft", &["list", "ruleset"]);
        assert!(!all.contains("net1") && !all.contains("10.1.2."), "{turn}: {all}");
    }
}

/// A failure after the rules were made takes them back too.
#[test]
fn a_failing_add_leaves_no_rule() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 up type bridge");
    host.namespace.ip("addr add 10.9.9.9/24 dev br0");
    let config = four(&host, json!({"isGateway": true, "macspoofchk": true, "ipMasq": true}));
    assert_eq!(host.add(&pod, &config).error().0, 101);
    let all = host.namespace.run("nft", &["list", "ruleset"]);
    assert!(!all.contains("net1") && !all.contains("10.1.2."), "{all}");
    assert_eq!((host.namespace.names(), pod.names()), (vec!["br0".to_owned()], vec![]));
    assert_eq!(reserved(&host, "net"), 0);
}
