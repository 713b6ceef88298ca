//! `macspoofchk` by a locked port of the bridge: what the kernel then has, what happens to real frames, which port keeps an address,
//! and that nothing is left.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Call, Host, Namespace, bridge, with};

const MAC: &str = "02:00:00:00:00:01";

fn checked() -> Value {
    with(&with(&bridge(), "macspoofchk", json!(true)), "runtimeConfig", json!({"mac": MAC}))
}

fn call_of(host: &Host, verb: &str, pod: &Namespace, config: &Value, container: &str) -> Call {
    let mut call = host.call(verb, pod, config);
    call.container = container.to_owned();
    call
}

/// The port of the bridge that an attachment answered.
fn port(result: &Value) -> String {
    result["interfaces"][1]["name"].as_str().unwrap().to_owned()
}

/// Entries of the forwarding database for the address, as `bridge` shows them.
fn entries(host: &Host) -> Vec<String> {
    let all = host.namespace.run("bridge", &["fdb", "show", "br", "br0"]);
    all.lines().filter(|line| line.starts_with(MAC)).map(|line| line.trim().to_owned()).collect()
}

fn pings(from: &Namespace, to: &str) -> bool {
    from.ip("neigh flush all");
    from.command("busybox").args(["ping", "-c1", "-W1", to]).output().unwrap().status.success()
}

#[test]
fn a_port_is_locked_and_its_address_is_fixed_without_rules() {
    let (host, pod) = (Host::new(), Namespace::new());
    let result = host.add(&pod, &checked()).result();
    let settings = host.namespace.link(&port(&result))["linkinfo"]["info_slave_data"].clone();
    assert_eq!((&settings["locked"], &settings["learning"]), (&json!(true), &json!(false)), "{settings}");
    let all = entries(&host);
    assert!(
        !all.is_empty() && all.iter().all(|one| one.contains("static") && one.contains("sticky")),
        "{all:?}"
    );
    assert_eq!(host.namespace.run("nft", &["list", "ruleset"]), "");
    assert!(host.check(&pod, &checked(), &result).success);
    host.del(&pod, &checked()).result();
    assert!(entries(&host).is_empty());
    // Without the key, and by rules, a port is not locked.
    for (key, value) in [("macspoofchk", json!(false)), ("spoofchkBackend", json!("nftables"))] {
        let config = with(&checked(), key, value);
        let result = host.add(&pod, &config).result();
        let settings = host.namespace.link(&port(&result))["linkinfo"]["info_slave_data"].clone();
        assert_eq!(settings["locked"], json!(false), "{key}");
        host.del(&pod, &config).result();
    }
    let (code, words) = host.add(&pod, &with(&checked(), "spoofchkBackend", json!("ebtables"))).error();
    assert!(code == 7 && words.contains("\"spoofchkBackend\" is bridge or nftables"), "{code}: {words}");
}

#[test]
fn a_spoofed_frame_is_dropped_and_the_address_cannot_be_taken_over() {
    let (host, one, two) = (Host::new(), Namespace::new(), Namespace::new());
    host.add(&one, &checked()).result();
    host.make(&call_of(&host, "ADD", &two, &bridge(), "c2")).result();
    one.ip("addr add 192.0.2.1/24 dev net1");
    two.ip("addr add 192.0.2.2/24 dev net1");
    assert!(pings(&one, "192.0.2.2") && pings(&two, "192.0.2.1"));
    one.ip("link set net1 address 02:00:00:00:00:09");
    assert!(!pings(&one, "192.0.2.2"));
    one.ip(&format!("link set net1 address {MAC}"));
    assert!(pings(&one, "192.0.2.2"));
    // A port that is not checked sends in the other's name.
    two.ip(&format!("link set net1 address {MAC}"));
    assert!(!pings(&two, "192.0.2.9"));
    two.ip("link set net1 address 02:00:00:00:00:02");
    assert!(pings(&two, "192.0.2.1"), "the frames still go where they belong");
}

#[test]
fn an_address_belongs_to_one_port_and_moves_when_that_ends() {
    let (host, one, two, other) = (Host::new(), Namespace::new(), Namespace::new(), Namespace::new());
    host.make(&call_of(&host, "ADD", &other, &bridge(), "c9")).result();
    other.ip("addr add 192.0.2.9/24 dev net1");
    // Learned from frames: of the guest on another node, for one.
    other.ip(&format!("link set net1 address {MAC}"));
    assert!(!pings(&other, "192.0.2.1"));
    assert!(!entries(&host).is_empty(), "the bridge has learned it");
    other.ip("link set net1 address 02:00:00:00:00:99");
    host.add(&one, &checked()).result();
    one.ip("addr add 192.0.2.1/24 dev net1");
    assert!(pings(&one, "192.0.2.9"), "it moved here");
    let before = host.namespace.names();
    let (code, words) = host.make(&call_of(&host, "ADD", &two, &checked(), "c2")).error();
    assert!(code == 101 && words.contains("belongs to the port"), "{code}: {words}");
    assert_eq!((host.namespace.names(), two.names().len()), (before, 0), "all of it is undone");
    assert!(pings(&one, "192.0.2.9"));
    host.del(&one, &checked()).result();
    let ended = Instant::now();
    host.make(&call_of(&host, "ADD", &two, &checked(), "c2")).result();
    two.ip("addr add 192.0.2.1/24 dev net1");
    assert!(pings(&two, "192.0.2.9"), "it moved there");
    assert!(ended.elapsed() < Duration::from_secs(1), "{:?}", ended.elapsed());
}

#[test]
fn a_check_misses_the_lock_and_the_entry() {
    let (host, pod) = (Host::new(), Namespace::new());
    let result = host.add(&pod, &checked()).result();
    let port = port(&result);
    let fdb = |verb: &str| {
        host.namespace.run("bridge", &["fdb", verb, MAC, "dev", &port, "master"]);
    };
    fdb("del");
    let (code, words) = host.check(&pod, &checked(), &result).error();
    assert!(code == 101 && words.contains("not fixed"), "{code}: {words}");
    host.namespace.run("bridge", &["fdb", "add", MAC, "dev", &port, "master", "static", "sticky"]);
    assert!(host.check(&pod, &checked(), &result).success);
    host.namespace.run("bridge", &["link", "set", "dev", &port, "locked", "off"]);
    let (code, words) = host.check(&pod, &checked(), &result).error();
    assert!(code == 101 && words.contains("no longer checked"), "{code}: {words}");
    host.del(&pod, &checked()).result();
}

#[test]
fn either_side_takes_a_locked_port_of_the_other_away() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.add(&pod, &checked()).result();
    host.reference(host.call("DEL", &pod, &checked())).result();
    assert!(entries(&host).is_empty() && host.namespace.names() == ["br0"]);
    // By rules, which are the reference's.
    let result = host.reference(host.call("ADD", &pod, &checked())).result();
    assert!(host.check(&pod, &checked(), &result).success);
    host.del(&pod, &checked()).result();
    assert!(!host.namespace.run("nft", &["list", "ruleset"]).contains("net1"));
}
