//! Every key of `bridge` in every version of the specification: what it does to the node or the pod, that CHECK agrees
//! where there is one, and that DEL leaves nothing. VLANs are in `vlan`, in a guest.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{self, Host, Namespace, bridge, bridge_with, in_every_version, with};

/// The observable effect of a key.
#[derive(Clone, Copy)]
enum Effect {
    /// A member of a link as `ip` describes it: of the bridge, the host's end, the pod's end.
    Bridge(&'static str),
    HostEnd(&'static str),
    PodEnd(&'static str),
    /// A program's output, on the node or in the pod.
    Node(&'static str),
    Pod(&'static str),
    /// A member of the result.
    Result(&'static str),
}

struct Row {
    keys: Value,
    arguments: &'static str,
    /// Whether it has addresses.
    layer3: bool,
    seen: Effect,
    /// Is in what is seen.
    wanted: &'static str,
}

fn row(layer3: bool, keys: Value, seen: Effect, wanted: &'static str) -> Row {
    Row { keys, arguments: "", layer3, seen, wanted }
}

fn rows() -> Vec<Row> {
    use Effect::{Bridge, HostEnd, Node, Pod, PodEnd, Result};
    let mac = "02:00:00:00:00:0a";
    vec![
        row(false, json!({}), Bridge("/operstate"), "UP"),
        row(false, json!({"bridge": null}), Node("ip link show cni0"), "cni0"),
        row(false, json!({"BRIDGE": "br7", "bridge2": 7}), Node("ip link show br7"), "br7"),
        row(false, json!({"MTU": 1400}), HostEnd("/mtu"), "1400"),
        row(false, json!({"mtu": 1400}), PodEnd("/mtu"), "1400"),
        row(false, json!({"mtu": 1400}), Bridge("/mtu"), "1400"),
        row(false, json!({"hairpinMode": true}), HostEnd("/linkinfo/info_slave_data/hairpin"), "true"),
        row(false, json!({"hairpinMode": null}), HostEnd("/linkinfo/info_slave_data/hairpin"), "false"),
        row(false, json!({"promiscMode": true}), Bridge("/flags"), "PROMISC"),
        row(false, json!({"portIsolation": true}), HostEnd("/linkinfo/info_slave_data/isolated"), "true"),
        row(false, json!({"disableContainerInterface": true}), PodEnd("/operstate"), "DOWN"),
        row(
            false,
            json!({"macspoofchk": true, "spoofchkBackend": "nftables"}),
            Node("nft list table bridge nat"),
            "macspoofchk-c1-net1",
        ),
        row(false, json!({"runtimeConfig": {"mac": mac}}), PodEnd("/address"), mac),
        row(false, json!({"args": {"cni": {"mac": mac}}}), PodEnd("/address"), mac),
        Row {
            arguments: "MAC=02:00:00:00:00:0a",
            ..row(true, json!({}), PodEnd("/address"), "02:00:00:00:00:0a")
        },
        row(false, json!({"vlanTrunk": null, "vlan": 0, "ipam": {}}), Bridge("/operstate"), "UP"),
        row(true, json!({}), Pod("ip -4 addr show dev net1"), "10.77.0.2/24"),
        row(true, json!({}), Pod("ip -6 addr show dev net1"), "fd77::2/64"),
        row(true, json!({"isGateway": true}), Node("ip -4 addr show dev br0"), "10.77.0.1/24"),
        row(true, json!({"isDefaultGateway": true}), Pod("ip route"), "default via 10.77.0.1 dev net1"),
        row(true, json!({"isDefaultGateway": true}), Node("cat /proc/sys/net/ipv4/ip_forward"), "1"),
        row(
            true,
            json!({"isGateway": true, "forceAddress": true, "name": "forced"}),
            Node("ip -4 addr show dev br0"),
            "10.77.0.1/24",
        ),
        row(true, json!({"ipMasq": true}), Node("nft list table inet cni_plugins_masquerade"), "10.77.0.2"),
        row(
            true,
            json!({"ipspoofchk": true}),
            Node("nft list set bridge cni_address_pins pins4"),
            "10.77.0.2",
        ),
        row(
            true,
            json!({"ipspoofchk": true, "anyLinkLocal": true}),
            Node("nft list set bridge cni_address_pins any_link_local"),
            "c1-net1",
        ),
        row(
            true,
            json!({"ipMasq": true, "ipMasqBackend": "iptables"}),
            Node("iptables-save -t nat"),
            "10.77.0.2",
        ),
        row(true, json!({"enabledad": true}), Pod("cat /proc/sys/net/ipv6/conf/net1/accept_dad"), "1"),
        row(true, json!({"enabledad": false}), Pod("cat /proc/sys/net/ipv6/conf/net1/accept_dad"), "0"),
        row(true, json!({"dns": {"nameservers": ["192.0.2.53"]}}), Result("/dns"), "192.0.2.53"),
    ]
}

fn observed(host: &Host, pod: &Namespace, seen: Effect, name: &str) -> String {
    let member = |link: Value, pointer: &str| link.pointer(pointer).unwrap_or(&Value::Null).to_string();
    let output = |namespace: &Namespace, line: &str| {
        let (program, arguments) = line.split_once(' ').unwrap();
        namespace.run(program, &arguments.split(' ').collect::<Vec<_>>())
    };
    match seen {
        Effect::Bridge(pointer) => member(host.namespace.link("br0"), pointer),
        Effect::HostEnd(pointer) => member(host.namespace.link(name), pointer),
        Effect::PodEnd(pointer) => member(pod.link("net1"), pointer),
        Effect::Node(line) => output(&host.namespace, line),
        Effect::Pod(line) => output(pod, line),
        Effect::Result(_) => String::new(),
    }
}

#[test]
fn every_key_in_every_version() {
    // Most of the time the kernel waits for a grace period after a link's removal.
    const PARTS: usize = 3;
    in_every_version(|version| {
        std::thread::scope(|scope| {
            for part in 0..PARTS {
                scope.spawn(move || every_nth_key(version, part, PARTS));
            }
        });
    });
}

fn every_nth_key(version: &str, first: usize, parts: usize) {
    let (host, pod) = (Host::new(), Namespace::new());
    for Row { keys, arguments, layer3, seen: what, wanted } in rows().into_iter().skip(first).step_by(parts) {
        let mut config = with(&bridge(), "cniVersion", json!(version));
        if layer3 {
            let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]);
            config = host.with_ranges(&ranges, json!({"cniVersion": version}));
        } else if version < "0.3.0" {
            // It has no words for an attachment without addresses.
            continue;
        }
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        if keys.get("BRIDGE").is_some() {
            config.as_object_mut().unwrap().remove("bridge");
        }
        if keys.get("forceAddress").is_some() {
            host.namespace.ip("link add br0 type bridge");
            host.namespace.ip("addr add 192.0.2.1/24 dev br0");
        }
        let call = |verb: &str, config: &Value| {
            let mut call = host.call(verb, &pod, config);
            call.arguments = arguments.to_owned();
            host.make(&call)
        };
        let result = call("ADD", &config).result();
        let name = host.namespace.names().into_iter().find(|name| name.starts_with("veth")).unwrap();
        let show = || match what {
            Effect::Result(pointer) => result.pointer(pointer).unwrap_or(&Value::Null).to_string(),
            other @ (Effect::Bridge(_)
            | Effect::HostEnd(_)
            | Effect::PodEnd(_)
            | Effect::Node(_)
            | Effect::Pod(_)) => observed(&host, &pod, other, &name),
        };
        // A bridge is up soon after its port, not with it.
        let until = Instant::now() + Duration::from_secs(10);
        let mut shown = show();
        while !shown.contains(wanted) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            shown = show();
        }
        assert!(shown.contains(wanted), "{version} {keys}: {wanted} is not in {shown}");
        if version >= "0.4.0" {
            let check = call("CHECK", &with(&config, "prevResult", result));
            assert!(check.success, "{version} {keys}: {check:?}");
        }
        call("DEL", &config).result();
        let left = host.namespace.names();
        assert!(left.len() == 1 && pod.names().is_empty(), "{version} {keys}: {left:?}");
        let rules = host.namespace.run("nft", &["list", "ruleset"]);
        assert!(!rules.contains("10.77.0") && !rules.contains("c1-net1"), "{version} {keys}: {rules}");
        host.namespace.ip(&format!("link del {}", left[0]));
        let _ = std::fs::remove_dir_all(host.networks());
    }
}

#[test]
fn a_changed_mtu_is_seen() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = bridge_with(json!({"mtu": 1400}));
    let result = host.add(&pod, &config).result();
    host.check(&pod, &config, &result).result();
    let port = host.namespace.names().into_iter().find(|name| name.starts_with("veth")).unwrap();
    for (place, name) in [(&pod, "net1"), (&host.namespace, port.as_str())] {
        place.ip(&format!("link set {name} mtu 1300"));
        let (code, words) = host.check(&pod, &config, &result).error();
        assert!(code == 101 && words.contains("MTU") && words.contains("1300"), "{code}: {words}");
        place.ip(&format!("link set {name} mtu 1400"));
    }
    // By a later plugin, which reports it in its result.
    pod.ip("link set net1 mtu 1350");
    let mut later = result.clone();
    later["interfaces"][2]["mtu"] = json!(1350);
    host.check(&pod, &config, &later).result();
    host.del(&pod, &config).result();
}

#[test]
fn an_mtu_that_is_too_small_for_ipv6() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = |subnet: &str| host.with_ranges(&json!([[{"subnet": subnet}]]), json!({"mtu": 68}));
    let (code, words) = host.add(&pod, &config("fd00::/64")).error();
    assert!(code == 7 && words.contains("1280"), "{code}: {words}");
    assert!(host.namespace.names().is_empty() && pod.names().is_empty());
    assert_eq!(support::place::walk(&host.networks()), 0);
    host.add(&pod, &config("10.77.0.0/24")).result();
    host.del(&pod, &config("10.77.0.0/24")).result();
}
