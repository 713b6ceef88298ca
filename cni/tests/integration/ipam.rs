//! The plugins `host-local` and `static`, called as a runtime calls them and by the reference's files.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Answer, Call, Host, Namespace, VERSIONS, count, golden, with};

/// A configuration of `host-local` that keeps its files in the host's folder.
fn host_local(host: &Host, ranges: &Value) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": data(host), "ranges": ranges},
    })
}

fn data(host: &Host) -> PathBuf {
    host.folder.path().join("networks")
}

fn call(host: &Host, verb: &str, container: &str, config: &Value) -> Call {
    let mut call = host.call(verb, &host.namespace, config);
    call.container = container.to_owned();
    // IPAM does not enter it; but the reference takes none that it is in itself.
    call.netns = format!("/proc/{}/ns/net", std::process::id());
    call
}

/// Addresses of an ADD.
fn addresses(answer: Answer) -> Vec<String> {
    let result = answer.result();
    let ips = result["ips"].as_array().unwrap();
    ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
}

/// All reservations, `lock` and `last_reserved_ip` left out.
fn reservations(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lock" && !name.starts_with("last_reserved_ip."))
        .collect();
    names.sort();
    names
}

#[test]
fn every_version_has_its_shape() {
    for version in VERSIONS {
        let host = Host::new();
        let resolver = host.folder.path().join("resolv.conf");
        std::fs::write(&resolver, "# us\nnameserver 192.0.2.1\nsearch a b\noptions ndots:5\ndomain c\n")
            .unwrap();
        let ranges = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]);
        let mut config = with(&host_local(&host, &ranges), "cniVersion", json!(version));
        config["ipam"]["resolvConf"] = json!(resolver);
        config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "fd01::/64", "gw": "fd00::9"}]);
        let result = host.make(&call(&host, "ADD", "c1", &config)).result();
        golden(&format!("host-local-{version}.json"), &result);
        // The reference gives the same result for the next attachment, but for the address.
        let theirs = host.reference(call(&host, "ADD", "c2", &config)).result();
        let plain = theirs.to_string().replace("10.1.2.3/", "10.1.2.2/").replace("fd00::3/", "fd00::2/");
        assert_eq!(serde_json::from_str::<Value>(&plain).unwrap(), result);
        for container in ["c1", "c2"] {
            host.make(&call(&host, "DEL", container, &config)).result();
        }
        assert!(reservations(&data(&host).join("net")).is_empty());

        let config = json!({"cniVersion": version, "name": "net", "type": "static", "ipam": {
            "type": "static",
            "addresses": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"address": "fd00::3/64"}],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["192.0.2.1"]},
        }});
        let result = host.make(&call(&host, "ADD", "c1", &config)).result();
        golden(&format!("static-{version}.json"), &result);
        assert_eq!(host.reference(call(&host, "ADD", "c1", &config)).result(), result);
        host.make(&call(&host, "DEL", "c1", &config)).result();
    }
}

#[test]
fn both_sides_go_round_together() {
    let host = Host::new();
    let config = host_local(&host, &json!([[{"subnet": "10.1.2.0/29"}]]));
    let folder = data(&host).join("net");
    let add = |ours: bool, container: &str| {
        let call = call(&host, "ADD", container, &config);
        addresses(if ours { host.make(&call) } else { host.reference(call) }).remove(0)
    };
    let delete = |ours: bool, container: &str| {
        let call = call(&host, "DEL", container, &config);
        if ours { host.make(&call).result() } else { host.reference(call).result() }
    };
    assert_eq!(add(true, "c1"), "10.1.2.2/29");
    assert_eq!(add(false, "c2"), "10.1.2.3/29");
    assert_eq!(add(true, "c3"), "10.1.2.4/29");
    assert_eq!(std::fs::read_to_string(folder.join("10.1.2.2")).unwrap(), "c1\r\nnet1");
    // An address freed by one side is reused last by the other.
    delete(false, "c1");
    delete(true, "c2");
    assert_eq!(reservations(&folder).iter().filter(|name| !name.starts_with('.')).count(), 1);
    assert_eq!(add(false, "c4"), "10.1.2.5/29");
    assert_eq!(add(true, "c5"), "10.1.2.6/29");
    assert_eq!(add(true, "c6"), "10.1.2.2/29");
    assert_eq!(add(false, "c7"), "10.1.2.3/29");
    // Full for both.
    let (code, words) = host.make(&call(&host, "ADD", "c8", &config)).error();
    assert_eq!((code, words.contains("no IP addresses available in range set")), (11, true), "{words}");
    host.reference(call(&host, "ADD", "c8", &config)).error();
    let (code, words) = host.make(&call(&host, "STATUS", "c8", &config)).error();
    assert_eq!((code, words.contains("10.1.2.1-10.1.2.6")), (50, true), "{words}");
    // Each side finds what the other made, and refuses to give twice.
    for container in ["c3", "c4"] {
        let again = call(&host, "ADD", container, &config);
        assert!(host.make(&again).error().1.contains("duplicate"), "{container}");
        assert!(host.reference(again).error().1.contains("duplicate"), "{container}");
        let check = call(&host, "CHECK", container, &config);
        host.make(&check).result();
        host.reference(check).result();
    }
    let (code, _) = host.make(&call(&host, "CHECK", "c9", &config)).error();
    assert_eq!(code, 101);
    for (ours, container) in [(true, "c4"), (false, "c5"), (false, "c3"), (true, "c6"), (true, "c7")] {
        delete(ours, container);
        delete(!ours, container);
    }
    assert!(reservations(&folder).is_empty(), "{:?}", reservations(&folder));
    host.make(&call(&host, "STATUS", "c8", &config)).result();
}

#[test]
fn addresses_asked_for_by_name() {
    let host = Host::new();
    let ranges = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]);
    let base = host_local(&host, &ranges);
    let ask = |container: &str, arguments: &str, keys: Value| {
        let mut config = base.clone();
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let mut call = call(&host, "ADD", container, &config);
        call.arguments = arguments.to_owned();
        call
    };
    let add = |call: Call| addresses(host.make(&call));
    assert_eq!(add(ask("c1", "IP=10.1.2.7", json!({}))), ["10.1.2.7/24", "fd00::2/64"]);
    let keys = json!({"args": {"cni": {"ips": ["10.1.2.9/16", "fd00::9"]}}});
    assert_eq!(add(ask("c2", "IgnoreUnknown=1;K8S_POD_NAME=p", keys)), ["10.1.2.9/24", "fd00::9/64"]);
    let keys = json!({"RuntimeConfig": {"IPs": ["fd00::a"]}});
    assert_eq!(add(ask("c3", "", keys)), ["10.1.2.10/24", "fd00::a/64"]);
    let keys = json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}});
    let three = add(ask("c4", "", keys));
    assert_eq!(three.len(), 3);
    assert!(three[0].starts_with("10.9.0."), "{three:?}");

    let before = reservations(&data(&host).join("net"));
    for (arguments, ips, code) in [
        ("IP=10.1.2.7", json!([]), 101),
        ("", json!(["10.1.2.1"]), 7),
        ("", json!(["10.1.3.1"]), 7),
        // The first one could be given; nothing of it is left.
        ("", json!(["10.1.2.99", "fd00::9"]), 101),
        ("", json!(["10.1.2.99", "10.1.2.98"]), 7),
        ("", json!(["nonsense"]), 7),
        ("IP=nonsense", json!([]), 7),
        ("FOO=bar", json!([]), 4),
    ] {
        let refused = ask("c9", arguments, json!({"runtimeConfig": {"ips": ips}}));
        assert_eq!(host.make(&refused).error().0, code, "{arguments} {ips}");
        assert_eq!(reservations(&data(&host).join("net")), before, "{arguments} {ips}");
    }
    // Asking by name is no way to a second address either.
    assert_eq!(host.make(&ask("c1", "IP=10.1.2.77", json!({}))).error().0, 101);
    assert_eq!(reservations(&data(&host).join("net")), before);
}

#[test]
fn gc_frees_addresses_without_a_valid_attachment() {
    let host = Host::new();
    let config = host_local(&host, &json!([[{"subnet": "10.1.2.0/24"}]]));
    let folder = data(&host).join("net");
    for container in ["c1", "c2"] {
        host.make(&call(&host, "ADD", container, &config)).result();
    }
    host.reference(call(&host, "ADD", "c3", &config)).result();
    host.reference(call(&host, "ADD", "c4", &config)).result();
    // Old versions' files, and one with content that never reached the disk.
    std::fs::write(folder.join("10.1.2.100"), "c1").unwrap();
    std::fs::write(folder.join("10.1.2.101"), "c9").unwrap();
    std::fs::write(folder.join("10.1.2.102"), "").unwrap();
    std::fs::write(folder.join("readme"), "c9\r\nnet1").unwrap();
    let valid = json!([
        {"containerID": "c1", "ifname": "net1"},
        {"containerID": "c2", "ifname": "other"},
        {"containerID": "c3", "ifname": "net1"},
    ]);
    let collect = with(&config, "cni.dev/valid-attachments", valid);
    host.make(&call(&host, "GC", "", &collect)).result();
    let left: Vec<String> = reservations(&folder).into_iter().filter(|name| !name.starts_with('.')).collect();
    assert_eq!(left, ["10.1.2.100", "10.1.2.2", "10.1.2.4", "readme"]);
    assert_eq!(reservations(&folder).len(), 5, "{:?}", reservations(&folder));
    let nonsense = with(&config, "cni.dev/valid-attachments", json!([{"containerID": "x"}]));
    assert_eq!(host.make(&call(&host, "GC", "", &nonsense)).error().0, 7);
    assert_eq!(reservations(&folder).len(), 5);
    // A network that was never used.
    host.make(&call(&host, "GC", "", &with(&collect, "name", json!("unused")))).result();
    host.make(&call(&host, "DEL", "c1", &with(&config, "name", json!("unused")))).result();
    assert!(!data(&host).join("unused").exists());
}

#[test]
fn an_address_with_an_empty_reservation_is_reused() {
    let host = Host::new();
    let config = host_local(&host, &json!([[{"subnet": "10.1.2.0/30"}]]));
    let folder = data(&host).join("net");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("10.1.2.2"), "").unwrap();
    host.make(&call(&host, "STATUS", "c1", &config)).result();
    assert_eq!(addresses(host.make(&call(&host, "ADD", "c1", &config))), ["10.1.2.2/30"]);
    assert_eq!(std::fs::read_to_string(folder.join("10.1.2.2")).unwrap(), "c1\r\nnet1");
}

#[test]
fn invalid_ranges_are_refused_and_del_succeeds() {
    let host = Host::new();
    for ranges in [
        json!([]),
        json!([[]]),
        json!([[{"subnet": "10.1.2.0/31"}]]),
        json!([[{"subnet": "10.1.2.1/24"}]]),
        json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.0.0/16"}]]),
        json!([[{"subnet": "10.1.2.0/24"}, {"subnet": "fd00::/64"}]]),
        json!([{"subnet": "10.1.2.0/24"}]),
        json!("10.1.2.0/24"),
    ] {
        let config = host_local(&host, &ranges);
        assert_eq!(host.make(&call(&host, "ADD", "c1", &config)).error().0, 7, "{ranges}");
        assert!(!data(&host).exists());
        host.make(&call(&host, "DEL", "c1", &config)).result();
    }
    let two = host_local(&host, &json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]));
    let (code, words) =
        host.make(&call(&host, "ADD", "c1", &with(&two, "cniVersion", json!("0.2.0")))).error();
    assert_eq!((code, words.contains("more than 1 address per family")), (7, true), "{words}");
    let mut relative = host_local(&host, &json!([[{"subnet": "10.1.2.0/24"}]]));
    relative["ipam"]["dataDir"] = json!("networks");
    assert_eq!(host.make(&call(&host, "ADD", "c1", &relative)).error().0, 7);
    let no_ipam = json!({"cniVersion": "1.1.0", "name": "net", "type": "host-local"});
    assert_eq!(host.make(&call(&host, "ADD", "c1", &no_ipam)).error().0, 7);
}

#[test]
fn static_addresses_asked_for_elsewhere() {
    let host = Host::new();
    let base = json!({"cniVersion": "1.1.0", "name": "net", "type": "static", "ipam": {
        "type": "static", "addresses": [{"address": "10.1.2.3/24"}],
    }});
    let ask = |arguments: &str, keys: Value| {
        let mut config = base.clone();
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let mut call = call(&host, "ADD", "c1", &config);
        call.arguments = arguments.to_owned();
        let ours = host.make(&call);
        let theirs = host.reference(call);
        assert_eq!(ours.success, theirs.success, "{ours:?} {theirs:?}");
        if ours.success {
            assert_eq!(ours.document, theirs.document);
        }
        ours
    };
    let both = addresses(ask("IP=10.9.0.2/24, 10.8.0.2/24;GATEWAY=10.9.0.1", json!({})));
    assert_eq!(both, ["10.1.2.3/24", "10.9.0.2/24", "10.8.0.2/24"]);
    assert_eq!(addresses(ask("", json!({"args": {"cni": {"ips": ["fd00::7/64"]}}}))), ["fd00::7/64"]);
    let keys = json!({"runtimeConfig": {"ips": ["10.7.0.7/24"]}, "args": {"cni": {"ips": ["fd00::7/64"]}}});
    assert_eq!(addresses(ask("", keys)), ["10.7.0.7/24"]);
    for (arguments, ips) in [("IP=10.9.0.2", json!([])), ("", json!(["10.9.0.2"])), ("GATEWAY=x", json!([]))]
    {
        ask(arguments, json!({"runtimeConfig": {"ips": ips}})).error();
    }
}

/// Ours and the reference's at once, on one range that has exactly as many addresses.
#[test]
fn many_at_once_with_the_reference_and_no_address_twice() {
    let host = Host::new();
    let total = count(32, 253);
    let config = host_local(&host, &json!([[{"subnet": "10.1.2.0/24"}]]));
    let all: Vec<String> = std::thread::scope(|scope| {
        let (host, config) = (&host, &config);
        let calls: Vec<_> = (0..total)
            .map(|index| {
                scope.spawn(move || {
                    let call = call(host, "ADD", &format!("c{index}"), config);
                    addresses(if index % 4 == 0 { host.reference(call) } else { host.make(&call) }).remove(0)
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let mut distinct = all.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), total);
}

/// Finding an owner's addresses does not read the others'.
#[test]
fn a_full_folder_costs_little() {
    let host = Host::new();
    let config = host_local(&host, &json!([[{"subnet": "10.0.0.0/16"}]]));
    let report = host.folder.path().join("report");
    let opened = |verb: &str, container: &str| {
        let call = call(&host, verb, container, &config);
        let mut command = host.namespace.command("strace");
        command.args(["-f", "-c", "-o"]).arg(&report).arg(&call.plugin);
        host.run(command, &call).result();
        let report = std::fs::read_to_string(&report).unwrap();
        let total = report.lines().find(|line| line.ends_with("total")).unwrap();
        total.split_whitespace().nth(3).unwrap().parse::<usize>().unwrap()
    };
    let empty = (opened("ADD", "first"), opened("DEL", "first"));
    for index in 0..count(40, 900) {
        host.make(&call(&host, "ADD", &format!("c{index}"), &config)).result();
    }
    let full = (opened("ADD", "last"), opened("DEL", "last"));
    println!("system calls of ADD and DEL: {empty:?} alone, {full:?} among others");
    assert!(full.0 <= empty.0 + 10 && full.1 <= empty.1 + 10, "{empty:?} {full:?}");
}

#[test]
fn the_namespace_is_not_needed() {
    let host = Host::new();
    let config = host_local(&host, &json!([[{"subnet": "10.1.2.0/24"}]]));
    host.make(&call(&host, "ADD", "c1", &config)).result();
    let mut gone = call(&host, "DEL", "c1", &config);
    gone.netns.clear();
    host.make(&gone).result();
    assert!(reservations(&data(&host).join("net")).is_empty());
    drop(Namespace::new());
}
