//! `ipspoofchk`: what a pod sends must bear the addresses that IPAM gave it. Live frames between two pods, one of them
//! pinned; CHECK, DEL and GC of the pins.

use serde_json::{Value, json};

use crate::support::{Call, Host, Namespace, bridge, with};

/// A configuration with these addresses, pinned or not.
fn config(pinned: bool, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"address": address})).collect();
    let ipam = json!({"type": "static", "addresses": addresses});
    with(&with(&bridge(), "ipam", ipam), "ipspoofchk", json!(pinned))
}

fn call(host: &Host, verb: &str, pod: &Namespace, container: &str, config: &Value) -> Call {
    let mut call = host.call(verb, pod, config);
    call.container = container.to_owned();
    call
}

/// Whether an answer comes to a ping from one address to another; what the pods learnt of each other is forgotten first.
fn reaches(from: &Namespace, source: &str, other: &Namespace, address: &str) -> bool {
    for pod in [from, other] {
        pod.ip("neigh flush all");
    }
    let family = if address.contains(':') { "-6" } else { "-4" };
    let arguments = ["ping", family, "-c1", "-W1", "-I", source, address];
    from.command("busybox").args(arguments).output().unwrap().status.success()
}

#[test]
fn only_the_given_addresses_get_through() {
    let (host, pinned, free) = (Host::new(), Namespace::new(), Namespace::new());
    let ours = config(true, &["10.1.2.3/24", "fd00::3/64"]);
    let result = host.make(&call(&host, "ADD", &pinned, "c1", &ours)).result();
    let theirs = config(false, &["10.1.2.4/24", "fd00::4/64"]);
    host.make(&call(&host, "ADD", &free, "c2", &theirs)).result();
    pinned.ip("addr add 10.1.2.9/24 dev net1");
    pinned.ip("addr add fd00::9/64 dev net1 nodad");

    for (own, foreign, other) in [("10.1.2.3", "10.1.2.9", "10.1.2.4"), ("fd00::3", "fd00::9", "fd00::4")] {
        assert!(reaches(&pinned, own, &free, other), "{own} to {other}");
        assert!(reaches(&free, other, &pinned, own), "{other} to {own}");
        // It neither sends from that address nor advertises it.
        assert!(!reaches(&pinned, foreign, &free, other), "{foreign} to {other}");
        assert!(!reaches(&free, other, &pinned, foreign), "{other} to {foreign}");
    }
    // The unpinned pod may have any.
    free.ip("addr add 10.1.2.8/24 dev net1");
    assert!(reaches(&free, "10.1.2.8", &pinned, "10.1.2.3"));

    host.check(&pinned, &ours, &result).result();
    host.make(&call(&host, "DEL", &pinned, "c1", &ours)).result();
    assert!(!host.namespace.run("nft", &["list", "ruleset"]).contains("c1-net1"));
}

/// As `nft` shows it, which is how an administrator will look at it.
#[test]
fn the_rules_can_be_read() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &config(true, &["10.1.2.3/24", "fd00::3/64"])).result();
    let shown = host.namespace.run("nft", &["list", "table", "bridge", "cni_address_pins"]);
    let port = host.namespace.names().into_iter().find(|name| name.starts_with("veth")).unwrap();
    let shown = shown.replace(&port, "PORT");
    let shown: Vec<&str> = shown.lines().map(str::trim).collect();
    for line in [
        "elements = { \"PORT\" comment \"c1-net1\" }",
        "iifname != @ports return",
        "arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . arp saddr ip @pins4 return",
        "iifname . ip saddr @pins4 return",
        "icmpv6 type nd-router-advert drop",
        "icmpv6 type nd-redirect drop",
        "iifname . ip6 saddr @pins6 return",
        "iifname @any_link_local ip6 saddr fe80::/10 return",
        "icmpv6 type nd-neighbor-advert jump advertised",
        "ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp sport 68 udp dport 67 return",
        "icmpv6 type nd-router-solicit ip6 saddr :: return",
        "drop",
    ] {
        assert!(shown.contains(&line), "{line}: {shown:#?}");
    }
    assert!(shown.iter().any(|line| line.contains("\"PORT\" . 10.1.2.3")), "{shown:#?}");
    assert!(shown.iter().any(|line| line.contains("\"PORT\" . fd00::3")), "{shown:#?}");
}

#[test]
fn pins_are_checked_and_swept() {
    let (host, pods) = (Host::new(), [Namespace::new(), Namespace::new()]);
    let configs = [config(true, &["10.1.2.3/24"]), config(true, &["10.1.2.4/24"])];
    let result = host.make(&call(&host, "ADD", &pods[0], "c1", &configs[0])).result();
    host.make(&call(&host, "ADD", &pods[1], "c2", &configs[1])).result();
    let rules = || host.namespace.run("nft", &["list", "ruleset"]);

    let valid = json!([{"containerID": "c1", "ifname": "net1"}]);
    let collect = with(&configs[0], "cni.dev/valid-attachments", valid);
    // Another network's are none of its business.
    host.make(&call(&host, "GC", &pods[0], "", &with(&collect, "name", json!("other")))).result();
    assert!(rules().contains("c1-net1") && rules().contains("c2-net1"));
    host.make(&call(&host, "GC", &pods[0], "", &collect)).result();
    assert!(rules().contains("c1-net1") && !rules().contains("c2-net1"), "{}", rules());

    host.check(&pods[0], &configs[0], &result).result();
    host.namespace.run("nft", &["flush", "set", "bridge", "cni_address_pins", "pins4"]);
    let (code, words) = host.check(&pods[0], &configs[0], &result).error();
    assert_eq!((code, words.contains("no longer checked")), (101, true), "{words}");
    host.del(&pods[0], &configs[0]).result();
    host.del(&pods[0], &configs[0]).result();

    let (code, words) = host.add(&pods[0], &with(&bridge(), "ipspoofchk", json!(true))).error();
    assert_eq!((code, words.contains("ipam")), (7, true), "{words}");
}
