//! `ipspoofchk` and `macspoofchk` together, frame by frame: frames that a pod sends without an address, with its link's
//! address, or with others' addresses. Frames that no program sends by itself are made by the pod's own packet filter.

use serde_json::{Value, json};

use crate::support::{Host, Namespace, bridge_with, with};

const MAC: &str = "02:00:00:00:00:01";
const OWN_LINK_LOCAL: &str = "fe80::ff:fe00:1";
/// Of a neighbour, or of the bridge.
const FOREIGN_LINK_LOCAL: &str = "fe80::99";

fn config(keys: &Value) -> Value {
    let addresses = json!([{"address": "10.1.2.3/24"}, {"address": "fd00::3/64"}]);
    let mut config = bridge_with(json!({
        "ipspoofchk": true, "macspoofchk": true, "spoofchkBackend": "nftables", "runtimeConfig": {"mac": MAC},
        "ipam": {"type": "static", "addresses": addresses},
    }));
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    config
}

fn nft(place: &Namespace, words: &str) -> String {
    place.run("nft", &words.split(' ').collect::<Vec<_>>())
}

/// The pod's port on the bridge.
fn port(host: &Host) -> String {
    host.namespace.names().into_iter().find(|name| name.starts_with("veth")).unwrap()
}

/// Whether a frame gets beyond the pins while the pod does something.
fn passes(host: &Host, frame: &str, does: impl FnOnce()) -> bool {
    nft(&host.namespace, "add table bridge seen");
    nft(&host.namespace, "add chain bridge seen passed { type filter hook prerouting priority 0; }");
    nft(&host.namespace, &format!("add rule bridge seen passed iifname {} {frame} counter", port(host)));
    does();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let shown = nft(&host.namespace, "list chain bridge seen passed");
    nft(&host.namespace, "delete table bridge seen");
    assert!(shown.contains("counter packets"), "{shown}");
    !shown.contains("counter packets 0 ")
}

/// A pod that rewrites what it sends by a rule, with the counter's view of it.
fn rewritten(
    host: &Host,
    pod: &Namespace,
    family: &str,
    rule: &str,
    frame: &str,
    does: impl FnOnce(),
) -> bool {
    nft(pod, &format!("add table {family} liar"));
    nft(pod, &format!("add chain {family} liar out {{ type filter hook output priority 0; }}"));
    nft(pod, &format!("add rule {family} liar out {rule}"));
    let passed = passes(host, frame, does);
    nft(pod, &format!("delete table {family} liar"));
    passed
}

/// The target of a neighbour solicitation or advertisement, as bytes: only recent versions of `nft` have a name for it.
fn about(address: &str) -> String {
    let address: std::net::Ipv6Addr = address.parse().unwrap();
    format!("@th,64,128 {:#034x}", address.to_bits())
}

fn tries(pod: &Namespace, words: &str) {
    // An answer is not required.
    let _ = pod.command("busybox").args(words.split(' ')).output().unwrap();
}

#[test]
fn a_link_local_address_cannot_be_taken_over() {
    std::thread::scope(|scope| {
        scope.spawn(|| of_link_local_addresses(false, &json!({})));
        scope.spawn(|| of_link_local_addresses(true, &json!({"anyLinkLocal": true})));
    });
}

fn of_link_local_addresses(any: bool, keys: &Value) {
    let (host, pod) = (Host::new(), Namespace::new());
    // Regardless of the node's default, the address is derived from the Ethernet address.
    if !any {
        pod.run("sh", &["-c", "echo 3 > /proc/sys/net/ipv6/conf/default/addr_gen_mode"]);
    }
    let config = config(keys);
    let result = host.add(&pod, &config).result();
    host.check(&pod, &config, &result).result();
    assert!(any || pod.ip("-6 addr show dev net1").contains(OWN_LINK_LOCAL));
    host.namespace.ip("addr add fd00::1/64 dev br0 nodad");
    pod.ip(&format!("addr add {FOREIGN_LINK_LOCAL}/64 dev net1 nodad"));
    let from = |address: &str| {
        let of_link = if address.starts_with("fe80") { "%net1" } else { "" };
        let pings = format!("ping -6 -c1 -W1 -I {address}{of_link} fd00::1");
        passes(&host, &format!("ip6 saddr {address}"), || tries(&pod, &pings))
    };
    assert!(from("fd00::3"));
    assert_eq!(from(FOREIGN_LINK_LOCAL), any);
    // Its answer to a solicitation: one would be enough.
    let told = |address: &str| {
        let frame = format!("icmpv6 type nd-neighbor-advert {}", about(address));
        passes(&host, &frame, || {
            host.namespace.ip("neigh flush all");
            let pings = format!("ping -6 -c1 -W1 {address}%br0");
            let _ = host.namespace.command("busybox").args(pings.split(' ')).output().unwrap();
        })
    };
    assert_eq!(told(FOREIGN_LINK_LOCAL), any);
    if !any {
        assert!(told(OWN_LINK_LOCAL) && from(OWN_LINK_LOCAL));
    }
    host.del(&pod, &config).result();
    assert!(!host.namespace.run("nft", &["list", "ruleset"]).contains("net1"));
}

/// Mostly waits for answers that do not come.
#[test]
fn unconfigured_pod_may_only_send_dhcp_and_dad() {
    std::thread::scope(|scope| {
        scope.spawn(asks_for_an_address);
        scope.spawn(asks_whether_an_own_address_is_taken);
        for (address, passed) in [("fd00::3", true), ("fd00::4", false), ("fe80::4", false)] {
            scope.spawn(move || asks_whether_an_address_of_ipv6_is_taken(address, passed));
        }
        scope.spawn(sends_nothing_else_from_no_address);
    });
}

fn asks_for_an_address() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = config(&json!({}));
    host.add(&pod, &config).result();
    // A server is asked, from no address; nothing else is sent from none.
    let asks = "udhcpc -i net1 -n -q -f -t 1 -T 1 -s /bin/true";
    assert!(passes(&host, "ip saddr 0.0.0.0 udp dport 67", || tries(&pod, asks)));
    pod.ip("neigh add 10.1.2.4 lladdr 02:00:00:00:00:04 dev net1");
    let sends = || {
        pod.run("bash", &["-c", "echo x > /dev/udp/10.1.2.4/67"]);
    };
    let lied = |lies: &str, frame: &str| rewritten(&host, &pod, "ip", lies, frame, sends);
    assert!(lied("udp sport set 68", "ip saddr 10.1.2.3 udp sport 68 udp dport 67"));
    let lies = "udp sport set 68 ip saddr set 0.0.0.0";
    assert!(!lied(&format!("{lies} udp dport set 5000"), "ip saddr 0.0.0.0"));
    // To one server's address, or from another port.
    assert!(!lied(lies, "ip saddr 0.0.0.0"));
    assert!(!lied("ip daddr set 255.255.255.255 ip saddr set 0.0.0.0", "ip saddr 0.0.0.0"));
    assert!(lied(&format!("{lies} ip daddr set 255.255.255.255"), "ip saddr 0.0.0.0"));
}

fn asks_whether_an_own_address_is_taken() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &config(&json!({}))).result();
    for (address, passed) in [("10.1.2.3", true), ("10.1.2.4", false)] {
        let probes = format!("arping -D -c 1 -w 1 -I net1 {address}");
        let frame = format!("arp saddr ip 0.0.0.0 arp daddr ip {address}");
        assert_eq!(passes(&host, &frame, || tries(&pod, &probes)), passed, "{address}");
    }
}

fn asks_whether_an_address_of_ipv6_is_taken(address: &str, passed: bool) {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &config(&json!({}))).result();
    let frame = format!("ip6 saddr :: icmpv6 type nd-neighbor-solicit {}", about(address));
    let probes = || {
        let _ = pod.command("ip").args(["addr", "del", &format!("{address}/64"), "dev", "net1"]).output();
        pod.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv6/conf/net1/accept_dad"]);
        pod.ip(&format!("addr add {address}/64 dev net1"));
        std::thread::sleep(std::time::Duration::from_millis(1200));
    };
    assert_eq!(passes(&host, &frame, probes), passed, "{address}");
}

fn sends_nothing_else_from_no_address() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &config(&json!({}))).result();
    let pings = || tries(&pod, "ping -6 -c1 -W1 fd00::4");
    pod.ip("neigh add fd00::4 lladdr 02:00:00:00:00:04 dev net1");
    let lies = "icmpv6 type echo-request ip6 saddr set ::";
    assert!(!rewritten(&host, &pod, "ip6", lies, "ip6 saddr :: icmpv6 type echo-request", pings));
}

#[test]
fn an_arp_message_bears_the_pods_ethernet_address() {
    std::thread::scope(|scope| {
        for checked in [true, false] {
            scope.spawn(move || of_arp(checked));
        }
    });
}

fn of_arp(checked: bool) {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = with(&config(&json!({})), "macspoofchk", json!(checked));
    let result = host.add(&pod, &config).result();
    host.check(&pod, &config, &result).result();
    let asks = || tries(&pod, "ping -4 -c1 -W1 10.1.2.4");
    assert!(passes(&host, "arp saddr ip 10.1.2.3", asks));
    // The frame itself bears the right one.
    let lies = "arp saddr ether set 02:00:00:00:00:99";
    let frame = "arp saddr ether 02:00:00:00:00:99";
    let passed = rewritten(&host, &pod, "arp", lies, frame, || {
        pod.ip("neigh flush all");
        asks();
    });
    assert_eq!(passed, !checked);
    if checked {
        nft(&host.namespace, "flush set bridge cni_address_pins mac_ports");
        let (code, words) = host.check(&pod, &config, &result).error();
        assert!(code == 101 && words.contains("no longer checked"), "{code}: {words}");
    }
    host.del(&pod, &config).result();
    assert!(!host.namespace.run("nft", &["list", "ruleset"]).contains("net1"));
}
