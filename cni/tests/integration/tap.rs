//! The plugins `tap` and `loopback` in network namespaces.

use serde_json::{Value, json};

use crate::support::{Host, Namespace, VERSIONS, peer, with};

fn tap() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "tap"})
}

#[test]
fn a_device_is_made_for_its_owner_checked_and_taken_away() {
    let (host, pod) = (Host::new(), Namespace::new());
    pod.ip("link add br0 up type bridge");
    let mut config = tap();
    let keys = json!({
        "owner": 107, "group": 36, "multiQueue": true, "mtu": 1400, "mac": "02:00:00:00:00:0a", "bridge": "br0",
        "selinuxContext": "system_u:system_r:container_t:s0",
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let result = host.add(&pod, &config).result();
    let wanted = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:0a", "mtu": 1400, "sandbox": pod.path()}],
    });
    assert_eq!(result, wanted);
    let link = pod.link("net1");
    let data = &link["linkinfo"]["info_data"];
    assert_eq!(
        (&data["type"], &data["multi_queue"], &data["persist"]),
        (&json!("tap"), &json!(true), &json!(true)),
        "{link}"
    );
    assert_eq!((&data["vnet_hdr"], &data["pi"]), (&json!(true), &json!(false)), "{link}");
    assert_eq!((data["user"].to_string(), data["group"].to_string()).0.trim_matches('"'), "107");
    assert_eq!(
        (&link["mtu"], &link["master"], &link["ifalias"]),
        (&json!(1400), &json!("br0"), &json!("net/c1/net1"))
    );
    assert!(link["flags"].as_array().unwrap().contains(&json!("UP")));
    let check = host.check(&pod, &config, &result);
    assert!(check.success, "{check:?}");
    pod.ip("link set net1 nomaster");
    assert_eq!(host.check(&pod, &config, &result).error().0, 101);
    assert_eq!(host.add(&pod, &config).error().0, 101);
    for _ in 0..2 {
        assert!(host.del(&pod, &config).success);
        assert_eq!(pod.names(), ["br0"]);
    }
}

#[test]
fn versions_and_invalid_configurations() {
    for version in VERSIONS {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = with(&tap(), "cniVersion", json!(version));
        let answer = host.add(&pod, &config);
        if version < "0.3.0" {
            assert!(answer.error().1.contains("no valid IP addresses"));
            assert!(pod.names().is_empty());
        } else {
            assert_eq!(answer.result()["interfaces"][0]["name"], "net1");
        }
    }
    let (host, pod) = (Host::new(), Namespace::new());
    pod.ip("link add other type veth peer name peer");
    for (key, value) in [
        ("owner", json!(-1)),
        ("group", json!("kvm")),
        ("mtu", json!(67)),
        ("mtu", json!(65_522)),
        ("mac", json!("01:00:00:00:00:00")),
        ("bridge", json!("a/b")),
        ("bridge", json!("absent")),
        ("bridge", json!("other")),
        ("multiQueue", json!(1)),
        ("ipam", json!({"type": "absent"})),
    ] {
        let (_, words) = host.add(&pod, &with(&tap(), key, value.clone())).error();
        assert_eq!(pod.names(), ["other", "peer"], "{key} {value}: {words}");
    }
}

/// virt-node's way: on a bridge of the host, by CNI_NETNS_OVERRIDE.
#[test]
fn a_device_on_the_hosts_bridge_is_collected_by_its_alias() {
    let host = Host::new();
    host.namespace.ip("link add br0 up type bridge");
    host.namespace.ip("link add net9 type veth peer name peer9");
    let config = with(&tap(), "bridge", json!("br0"));
    let made = |verb: &str, interface: &str, config: &Value| {
        let mut call = host.call(verb, &host.namespace, config);
        call.interface = interface.to_owned();
        let mut command = host.namespace.command("env");
        command.arg("CNI_NETNS_OVERRIDE=true").arg(&call.plugin);
        host.run(command, &call)
    };
    let other = with(&config, "name", json!("net2"));
    made("ADD", "net1", &config).result();
    made("ADD", "net2", &config).result();
    made("ADD", "net3", &other).result();
    // A link of that name that is no tap is not ours to take.
    assert!(made("DEL", "net9", &config).success);
    assert_eq!(host.namespace.names(), ["br0", "net1", "net2", "net3", "net9", "peer9"]);
    let valid = with(&config, "cni.dev/valid-attachments", json!([{"containerID": "c1", "ifname": "net2"}]));
    made("GC", "", &valid).result();
    assert_eq!(host.namespace.names(), ["br0", "net2", "net3", "net9", "peer9"]);
    made("STATUS", "", &config).result();
    made("DEL", "net2", &config).result();
    made("DEL", "net3", &other).result();
    // Without the override nothing in our own namespace is touched.
    assert_eq!(host.make(&host.call("ADD", &host.namespace, &config)).error().0, 8);
    assert_eq!(host.namespace.names(), ["br0", "net9", "peer9"]);
}

#[test]
fn the_reference_deletes_ours_and_ours_the_references() {
    let (host, pod) = (Host::new(), Namespace::new());
    let mut call = host.call("ADD", &pod, &with(&with(&tap(), "owner", json!(0)), "group", json!(0)));
    host.make(&call).result();
    call.plugin = peer("tap");
    call.verb = "DEL".to_owned();
    assert!(host.make(&call).success);
    assert!(pod.names().is_empty());
    call.verb = "ADD".to_owned();
    host.make(&call).result();
    call.plugin = host.folder.path().join("tap");
    call.verb = "DEL".to_owned();
    assert!(host.make(&call).success);
    assert!(pod.names().is_empty());
}

#[test]
fn foreign_devices_stay() {
    let (host, pod) = (Host::new(), Namespace::new());
    pod.ip("link add net1 type ifb");
    assert_eq!(host.add(&pod, &tap()).error().0, 101);
    host.del(&pod, &tap()).result();
    assert_eq!(pod.names(), ["net1"]);
    pod.ip("link del net1");
    // Another network's.
    let other = with(&tap(), "name", json!("net2"));
    host.add(&pod, &other).result();
    host.del(&pod, &tap()).result();
    assert_eq!(pod.names(), ["net1"]);
    host.del(&pod, &other).result();
    assert!(pod.names().is_empty());
}

fn loopback() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "loopback"})
}

/// What runtimes give all plugins of a pod.
#[test]
fn loopback_takes_arguments_that_it_does_not_know() {
    let (host, pod) = (Host::new(), Namespace::new());
    for verb in ["ADD", "DEL"] {
        let mut call = host.call(verb, &pod, &loopback());
        call.arguments = "K8S_POD_NAME=p;K8S_POD_NAMESPACE=n".to_owned();
        host.make(&call).result();
    }
}

/// ADD and STATUS agree.
#[test]
fn addresses_of_a_tap_device_are_refused() {
    let (host, pod) = (Host::new(), Namespace::new());
    let config = with(&tap(), "ipam", json!({"type": "host-local", "subnet": "10.77.0.0/24"}));
    let (code, words) = host.add(&pod, &config).error();
    assert!(code == 2 && words.contains("\"ipam\" is not supported for a tap device"), "{code}: {words}");
    let (code, words) = host.make(&host.call("STATUS", &pod, &config)).error();
    assert!(code == 50 && words.contains("\"ipam\" is not supported for a tap device"), "{code}: {words}");
    assert!(pod.names().is_empty());
}

#[test]
fn loopback_is_the_references() {
    for version in VERSIONS {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = with(&loopback(), "cniVersion", json!(version));
        let mut call = host.call("ADD", &pod, &config);
        let mut answers = Vec::new();
        for plugin in [host.folder.path().join("loopback"), peer("loopback")] {
            pod.ip("link set lo down");
            call.plugin = plugin;
            answers.push(host.make(&call).result());
            assert!(pod.link("lo")["flags"].as_array().unwrap().contains(&json!("UP")));
        }
        let ours = &answers[0];
        match version {
            "0.1.0" | "0.2.0" => {
                assert_eq!(
                    (&ours["ip4"]["ip"], &ours["ip6"]["ip"]),
                    (&json!("127.0.0.1/8"), &json!("::1/128"))
                );
            }
            // The reference answers these in the newest shape.
            "0.3.0" | "0.3.1" | "0.4.0" => {
                let ips = json!([
                    {"address": "127.0.0.1/8", "interface": 0, "version": "4"},
                    {"address": "::1/128", "interface": 0, "version": "6"},
                ]);
                assert_eq!((&ours["interfaces"], &ours["ips"]), (&answers[1]["interfaces"], &ips));
            }
            _ => assert_eq!(*ours, answers[1]),
        }
        call.plugin = host.folder.path().join("loopback");
        if version >= "0.4.0" {
            assert!(host.check(&pod, &config, &answers[0]).success);
        }
        assert!(host.del(&pod, &config).success);
        assert!(!pod.link("lo")["flags"].as_array().unwrap().contains(&json!("UP")));
        if version >= "0.4.0" {
            assert_eq!(host.check(&pod, &config, &answers[0]).error().0, 101);
        }
        call.verb = "DEL".to_owned();
        call.netns = "/nowhere".to_owned();
        assert!(host.make(&call).success);
        let previous = json!({"cniVersion": version, "dns": {}, "ip4": {"ip": "192.0.2.2/24"}});
        if version < "0.3.0" {
            assert_eq!(host.add(&pod, &with(&config, "prevResult", previous.clone())).result(), previous);
        }
    }
}
