//! The packet filter's rules as `nft` shows them, compared with those of the Go reference plugin; their effect on real
//! frames; and that either side removes the other's rules. `make peers` builds the reference.

use serde_json::{Value, json};

use crate::support::{Call, Host, Namespace, bridge, count, peer, with};

const MAC: &str = "02:00:00:00:00:01";

/// All rules of the node, without what numbers them, and links' names replaced by "PORT".
fn ruleset(host: &Host) -> Vec<Value> {
    fn plain(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.remove("handle");
                members.values_mut().for_each(plain);
            }
            Value::Array(items) => items.iter_mut().for_each(plain),
            Value::String(text) if text.starts_with("veth") => *text = "PORT".to_owned(),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut all: Value =
        serde_json::from_str(&host.namespace.run("nft", &["-j", "list", "ruleset"])).unwrap();
    let all = all["nftables"].as_array_mut().unwrap();
    all.retain(|one| one.get("metainfo").is_none());
    all.iter_mut().for_each(plain);
    all.clone()
}

/// Rules and chains of attachments: without the shared chains and the rules in them.
fn of_attachments(host: &Host) -> Vec<Value> {
    let mut all = ruleset(host);
    all.retain(|one| {
        let rule = one.get("rule").is_some_and(|rule| rule["chain"] != "postrouting");
        let name = one["chain"]["name"].as_str().unwrap_or_default();
        rule || name.starts_with("cni-br-iface") || name.starts_with("CNI-")
    });
    all
}

fn checked() -> Value {
    let rules = with(&with(&bridge(), "macspoofchk", json!(true)), "spoofchkBackend", json!("nftables"));
    with(&rules, "runtimeConfig", json!({"mac": MAC}))
}

fn check_of(host: &Host, verb: &str, pod: &Namespace, config: &Value, container: &str) -> Call {
    let mut call = host.call(verb, pod, config);
    call.container = container.to_owned();
    call
}

#[test]
fn a_spoof_check_is_the_references() {
    let (ours, go, pod) = (Host::new(), Host::new(), Namespace::new());
    ours.add(&pod, &checked()).result();
    let shown = ruleset(&ours);
    ours.del(&pod, &checked()).result();
    go.reference(go.call("ADD", &pod, &checked())).result();
    assert_eq!(shown, ruleset(&go));
    go.reference(go.call("DEL", &pod, &checked())).result();
    // The table and its common chain stay, as with the reference.
    assert_eq!(ruleset(&ours), ruleset(&go));
    assert_eq!(ruleset(&ours).len(), 2);
}

#[test]
fn either_side_takes_a_spoof_check_of_the_other_away() {
    let (host, pods) = (Host::new(), [Namespace::new(), Namespace::new(), Namespace::new()]);
    // Others' rules before and after, so that guesses may miss.
    host.make(&check_of(&host, "ADD", &pods[1], &checked(), "c2")).result();
    for mixed in 0..4 {
        let by = |call: Call, go: bool| if go { host.reference(call) } else { host.make(&call) };
        by(check_of(&host, "ADD", &pods[0], &checked(), "c1"), mixed & 1 == 1).result();
        by(check_of(&host, "ADD", &pods[2], &checked(), "c3"), mixed & 1 == 0).result();
        assert_eq!(of_attachments(&host).len(), 18);
        by(check_of(&host, "DEL", &pods[0], &checked(), "c1"), mixed & 2 == 2).result();
        by(check_of(&host, "DEL", &pods[2], &checked(), "c3"), mixed & 2 == 0).result();
        let left = of_attachments(&host);
        assert_eq!(left.len(), 6, "{mixed}: {left:?}");
        assert!(left.iter().all(|one| one.to_string().contains("c2-net1")), "{mixed}: {left:?}");
    }
}

/// Another program made the common chain, and accepts all of the frames that matter at its beginning.
#[test]
fn a_spoofed_frame_is_dropped_before_a_foreign_rule_accepts_it() {
    let host = Host::new();
    let file = host.folder.path().join("rules.nft");
    let rules = "table bridge nat {\nchain PREROUTING {\ntype filter hook prerouting priority -300;\n\
                 ether type { arp, ip } accept\n}\n}\n";
    std::fs::write(&file, rules).unwrap();
    host.namespace.run("nft", &["-f", file.to_str().unwrap()]);
    drops_spoofed_frames(&host);
}

#[test]
fn a_spoofed_frame_is_dropped() {
    drops_spoofed_frames(&Host::new());
}

fn drops_spoofed_frames(host: &Host) {
    let (one, two) = (Namespace::new(), Namespace::new());
    host.add(&one, &checked()).result();
    host.make(&check_of(host, "ADD", &two, &bridge(), "c2")).result();
    one.ip("addr add 192.0.2.1/24 dev net1");
    two.ip("addr add 192.0.2.2/24 dev net1");
    let arrives = || {
        // The next frame resolves the address again.
        two.ip("neigh flush all");
        one.ip("neigh flush all");
        one.command("busybox").args(["ping", "-c1", "-W1", "192.0.2.2"]).output().unwrap().status.success()
    };
    assert!(arrives());
    one.ip("link set net1 address 02:00:00:00:00:09");
    assert!(!arrives());
    one.ip(&format!("link set net1 address {MAC}"));
    assert!(arrives());
    host.del(&one, &checked()).result();
}

#[test]
fn a_check_misses_a_spoof_check() {
    let (host, pod) = (Host::new(), Namespace::new());
    let result = host.add(&pod, &checked()).result();
    assert!(host.check(&pod, &checked(), &result).success);
    host.namespace.run("nft", &["flush", "chain", "bridge", "nat", "PREROUTING"]);
    let (code, words) = host.check(&pod, &checked(), &result).error();
    assert!(code == 101 && words.contains("no longer checked"), "{code}: {words}");
    host.del(&pod, &checked()).result();
    assert!(of_attachments(&host).is_empty());
}

/// Rules of other programs before the check's own: those that may let a frame of this pod pass are reported.
#[test]
fn a_check_reports_a_foreign_rule_before_the_spoof_check() {
    let (host, pod) = (Host::new(), Namespace::new());
    let result = host.add(&pod, &checked()).result();
    let port = host.namespace.names().into_iter().find(|name| name.starts_with("veth")).unwrap();
    host.namespace.run("nft", &["add chain bridge nat other"]);
    let passes = [
        "ether type arp accept".to_owned(),
        format!("iifname {port} return"),
        "iifname veth* jump other".to_owned(),
        "iifname != eth0 goto other".to_owned(),
        "ether type vmap { arp : accept }".to_owned(),
    ];
    let harmless = [
        "ether type arp counter".to_owned(),
        format!("iifname {port} drop"),
        "iifname eth0 accept".to_owned(),
    ];
    let rules = passes.iter().map(|rule| (rule, true)).chain(harmless.iter().map(|rule| (rule, false)));
    for (rule, evades) in rules {
        host.namespace.run("nft", &[&format!("insert rule bridge nat PREROUTING {rule}")]);
        let listed = host.namespace.run("nft", &["-a", "list", "chain", "bridge", "nat", "PREROUTING"]);
        let first = listed.lines().nth(3).unwrap();
        let handle = first.rsplit(' ').next().unwrap();
        let check = host.check(&pod, &checked(), &result);
        if evades {
            let (code, words) = check.error();
            let removal = format!("nft delete rule bridge nat PREROUTING handle {handle}\"");
            assert!(code == 101 && words.contains(&removal), "{rule}: {code}: {words}");
        } else {
            assert!(check.success, "{rule}: {check:?}");
        }
        host.namespace.run("nft", &[&format!("delete rule bridge nat PREROUTING handle {handle}")]);
    }
    // After ours, as the reference adds its own.
    host.namespace.run("nft", &["add rule bridge nat PREROUTING accept"]);
    assert!(host.check(&pod, &checked(), &result).success);
    host.del(&pod, &checked()).result();
}

/// The handle of a chain's first rule.
fn first_handle(host: &Host, chain: &str) -> String {
    let listed = host.namespace.run("nft", &["-a", &format!("list chain {chain}")]);
    // Behind the lines of the table and of the chain.
    let rule = listed.lines().skip(2).find(|line| line.contains("# handle ")).unwrap();
    rule.rsplit(' ').next().unwrap().to_owned()
}

/// The chains of an attachment hold the rules of its check alone.
#[test]
fn a_check_reports_a_foreign_rule_in_the_chains_of_the_spoof_check() {
    let (host, pod) = (Host::new(), Namespace::new());
    let result = host.add(&pod, &checked()).result();
    let chains: Vec<String> = of_attachments(&host)
        .iter()
        .filter_map(|one| one["chain"]["name"].as_str())
        .map(|name| format!("bridge nat {name}"))
        .collect();
    assert_eq!(chains.len(), 2, "{chains:?}");
    for chain in &chains {
        for rule in ["return", "accept", "ether saddr 02:00:00:00:00:09 return", "ether type arp accept"] {
            host.namespace.run("nft", &[&format!("insert rule {chain} {rule}")]);
            let handle = first_handle(&host, chain);
            let (code, words) = host.check(&pod, &checked(), &result).error();
            let removal = format!("nft delete rule {chain} handle {handle}\"");
            assert!(code == 101 && words.contains(&removal), "{chain} {rule}: {code}: {words}");
            host.namespace.run("nft", &[&format!("delete rule {chain} handle {handle}")]);
            assert!(host.check(&pod, &checked(), &result).success, "{chain} {rule}");
        }
    }
    for chain in &chains {
        host.namespace.run("nft", &[&format!("flush chain {chain}")]);
        let (code, words) = host.check(&pod, &checked(), &result).error();
        assert!(code == 101 && words.contains("no longer checked"), "{chain}: {code}: {words}");
    }
    host.del(&pod, &checked()).result();
    assert!(of_attachments(&host).is_empty());
}

#[test]
fn a_check_reports_a_foreign_rule_before_masquerading() {
    let (host, pods) = (Host::new(), [Namespace::new(), Namespace::new()]);
    let config = masqueraded(&host, "nftables");
    let result = host.add(&pods[0], &config).result();
    assert!(host.check(&pods[0], &config, &result).success);
    for (name, rule, evades) in [
        ("postrouting", "accept", true),
        ("postrouting", "ip saddr 10.77.0.0/24 return", true),
        ("postrouting", "counter", false),
        ("masq_checks", "return", true),
        ("masq_checks", "ip saddr 10.77.0.0/24 accept", true),
        ("masq_checks", "counter", false),
    ] {
        let chain = format!("inet cni_plugins_masquerade {name}");
        host.namespace.run("nft", &[&format!("insert rule {chain} {rule}")]);
        let handle = first_handle(&host, &chain);
        let check = host.check(&pods[0], &config, &result);
        if evades {
            let (code, words) = check.error();
            let removal = format!("nft delete rule {chain} handle {handle}\"");
            assert!(code == 101 && words.contains(&removal), "{name} {rule}: {code}: {words}");
        } else {
            assert!(check.success, "{name} {rule}: {check:?}");
        }
        host.namespace.run("nft", &[&format!("delete rule {chain} handle {handle}")]);
    }
    // Behind ours.
    for name in ["postrouting", "masq_checks"] {
        host.namespace.run("nft", &[&format!("add rule inet cni_plugins_masquerade {name} accept")]);
        assert!(host.check(&pods[0], &config, &result).success, "{name}");
    }
    // The reference writes the shared chain afresh.
    host.reference(check_of(&host, "ADD", &pods[1], &config, "c2")).result();
    assert!(host.check(&pods[0], &config, &result).success);
}

#[test]
fn a_vanished_pod_leaves_no_rule() {
    let host = Host::new();
    for netns in ["", "/run/netns/nowhere"] {
        let pod = Namespace::new();
        host.add(&pod, &checked()).result();
        let mut call = host.call("DEL", &pod, &checked());
        drop(pod);
        call.netns = netns.to_owned();
        host.make(&call).result();
        assert!(of_attachments(&host).is_empty());
        assert_eq!(host.namespace.names(), ["br0"]);
        host.make(&call).result();
    }
}

/// Remains of a lost DEL are replaced; live attachments are not touched.
#[test]
fn an_add_replaces_what_is_left_of_another_and_nothing_that_lives() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.reference(host.call("ADD", &pod, &checked())).result();
    let before = ruleset(&host);
    let (code, words) = host.add(&pod, &checked()).error();
    assert!(code == 101 && words.contains("attached"), "{words}");
    assert_eq!(ruleset(&host), before);
    pod.ip("link del net1");
    host.add(&pod, &checked()).result();
    assert_eq!(ruleset(&host), before);
    host.del(&pod, &checked()).result();
    assert!(of_attachments(&host).is_empty());
}

#[test]
fn a_failing_add_leaves_no_rule() {
    let (host, pod) = (Host::new(), Namespace::new());
    pod.ip("link add net1 type veth peer name other");
    host.add(&pod, &checked()).error();
    assert!(of_attachments(&host).is_empty());
    let mut call = host.call("ADD", &pod, &checked());
    call.container = "c".repeat(200);
    let (code, words) = host.make(&call).error();
    assert!(code == 2 && words.contains("at most"), "{code}: {words}");
    assert!(host.namespace.names().is_empty());
}

/// Three networks, two on one bridge, some attachments made by the reference, all pods gone.
#[test]
fn a_collection_takes_rules_of_its_own_network_only() {
    let host = Host::new();
    let leases = host.folder.path().join("leases");
    let network = |name: &str, bridge_: &str| {
        let config = with(&with(&checked(), "name", json!(name)), "bridge", json!(bridge_));
        with(&config, "ipam", json!({"type": "host-local", "dataDir": leases, "subnet": "10.9.0.0/24"}))
    };
    let without_ipam = |config: &Value| {
        let mut config = config.clone();
        config.as_object_mut().unwrap().remove("ipam");
        config
    };
    let nets = [network("n1", "br0"), network("n2", "br0"), network("n3", "br1")];
    let pods: Vec<Namespace> = (0..9).map(|_| Namespace::new()).collect();
    for (index, pod) in pods.iter().enumerate() {
        let config = &nets[index % 3];
        let container = format!("c{index}");
        if index < 6 {
            host.make(&check_of(&host, "ADD", pod, &without_ipam(config), &container)).result();
        } else {
            host.reference(check_of(&host, "ADD", pod, config, &container)).result();
        }
    }
    assert_eq!(of_attachments(&host).len(), 9 * 6);
    let links = host.namespace.names().len();
    // The pods of two of ours are gone, and with them their links; of n1, c0 is valid.
    pods[3].ip("link del net1");
    pods[4].ip("link del net1");
    let mut config =
        with(&nets[0], "cni.dev/valid-attachments", json!([{"containerID": "c0", "ifname": "net1"}]));
    config["type"] = json!("bridge");
    let mut call = host.call("GC", &pods[0], &config);
    call.path = peer("host-local").parent().unwrap().display().to_string();
    let answer = host.make(&call);
    let left: Vec<String> = of_attachments(&host).iter().map(Value::to_string).collect();
    for index in 0..9 {
        let rules = left.iter().filter(|one| one.contains(&format!("c{index}-net1"))).count();
        let swept = [3, 6].contains(&index);
        assert_eq!(rules, if swept { 0 } else { 6 }, "c{index}; {answer:?}");
    }
    // c6 was made by the reference: its address and its check prove its owner.
    assert!(pods[6].names().is_empty());
    assert_eq!(host.namespace.names().len(), links - 3);
    assert_eq!(pods[7].names(), ["net1"]);
}

#[test]
fn many_checks_are_swept_at_once() {
    let host = Host::new();
    let stale = count(40, 500);
    let pods: Vec<Namespace> = (0..stale + 1).map(|_| Namespace::new()).collect();
    for (index, pod) in pods.iter().enumerate() {
        host.make(&check_of(&host, "ADD", pod, &checked(), &format!("c{index}"))).result();
    }
    let valid = json!([{"containerID": format!("c{stale}"), "ifname": "net1"}]);
    let start = std::time::Instant::now();
    host.make(&host.call("GC", &pods[0], &with(&checked(), "cni.dev/valid-attachments", valid))).result();
    let took = start.elapsed();
    println!("GC of {stale} stale attachments with a spoof check: {took:?}");
    assert_eq!(of_attachments(&host).len(), 6);
    assert_eq!(host.namespace.names().len(), 2);
    assert!(took.as_millis() < 1000, "{took:?}");
}

/// Addresses from host-local, masqueraded by a backend.
fn masqueraded(host: &Host, backend: &str) -> Value {
    let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]);
    host.with_ranges(&ranges, json!({"ipMasq": true, "ipMasqBackend": backend}))
}

#[test]
fn masquerading_is_the_references() {
    for backend in ["nftables", "iptables"] {
        let (ours, go, pod) = (Host::new(), Host::new(), Namespace::new());
        ours.add(&pod, &masqueraded(&ours, backend)).result();
        let shown = ruleset(&ours);
        ours.del(&pod, &masqueraded(&ours, backend)).result();
        go.reference(go.call("ADD", &pod, &masqueraded(&go, backend))).result();
        assert_eq!(shown, ruleset(&go), "{backend}");
        assert!(of_attachments(&ours).is_empty(), "{backend}: {:?}", of_attachments(&ours));
    }
}

#[test]
fn either_side_takes_masquerading_of_the_other_away() {
    for backend in ["nftables", "iptables"] {
        let (host, pods) = (Host::new(), [Namespace::new(), Namespace::new()]);
        let config = masqueraded(&host, backend);
        host.make(&check_of(&host, "ADD", &pods[1], &config, "c2")).result();
        let before = of_attachments(&host).len();
        // The configuration of a DEL may name the other backend.
        for (go_adds, deleting) in [(false, "nftables"), (true, "nftables"), (true, "iptables")] {
            let add = check_of(&host, "ADD", &pods[0], &config, "c1");
            if go_adds { host.reference(add) } else { host.make(&add) }.result();
            assert_eq!(of_attachments(&host).len(), before * 2, "{backend}");
            let del = check_of(&host, "DEL", &pods[0], &masqueraded(&host, deleting), "c1");
            if go_adds { host.make(&del) } else { host.reference(del) }.result();
            assert_eq!(of_attachments(&host).len(), before, "{backend} {go_adds} {deleting}");
        }
    }
}

#[test]
fn a_vanished_pod_leaves_no_masquerading() {
    for backend in ["nftables", "iptables"] {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = masqueraded(&host, backend);
        host.add(&pod, &config).result();
        let mut call = host.call("DEL", &pod, &config);
        drop(pod);
        call.netns = String::new();
        host.make(&call).result();
        assert!(of_attachments(&host).is_empty(), "{backend}: {:?}", of_attachments(&host));
        host.make(&call).result();
    }
}

#[test]
fn a_collection_takes_masquerading_of_its_own_network_only() {
    let (host, pods) = (Host::new(), [Namespace::new(), Namespace::new(), Namespace::new()]);
    let config = masqueraded(&host, "nftables");
    let other = with(&config, "name", json!("net2"));
    host.make(&check_of(&host, "ADD", &pods[0], &config, "c1")).result();
    host.reference(check_of(&host, "ADD", &pods[1], &config, "c2")).result();
    host.make(&check_of(&host, "ADD", &pods[2], &other, "c3")).result();
    let valid = json!([{"containerID": "c2", "ifname": "net1"}]);
    host.make(&host.call("GC", &pods[0], &with(&config, "cni.dev/valid-attachments", valid))).result();
    let left: Vec<String> = of_attachments(&host).iter().map(Value::to_string).collect();
    assert_eq!(left.len(), 4, "{left:?}");
    assert!(!left.iter().any(|one| one.contains("id: c1")), "{left:?}");
}

/// A node beyond sees the node's address, and not the pod's.
#[test]
fn a_frame_leaves_with_the_nodes_address() {
    let (host, pod, world) = (Host::new(), Namespace::new(), Namespace::new());
    host.namespace.ip(&format!("link add out type veth peer name in netns {}", world.path()));
    host.namespace.ip("addr add 198.51.100.1/24 dev out");
    host.namespace.ip("link set out up");
    world.ip("addr add 198.51.100.2/24 dev in");
    world.ip("link set in up");
    let mut config = with(&masqueraded(&host, "nftables"), "isDefaultGateway", json!(true));
    config["ipam"]["ranges"] = json!([[{"subnet": "10.77.0.0/24"}]]);
    // There is no way back to the pod's network: an answer comes only to the node's address.
    host.add(&pod, &config).result();
    pod.run("busybox", &["ping", "-c1", "-W2", "198.51.100.2"]);
    host.del(&pod, &config).result();
}
