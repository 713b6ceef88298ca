//! Attachments with addresses in which each verb, and IPAM, is carried out by ours or by the Go reference plugins v1.9.1.
//! `make peers` builds them.

use serde_json::{Value, json};

use crate::support::addresses::{addresses, both, four, reserved, routes};
use crate::support::{Host, Namespace, in_every_version, peer, with};

/// The same without properties of one side only, and with the host end's name replaced.
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
fn the_answers_are_the_references() {
    in_every_version(|version| {
        for keys in
            [json!({}), json!({"isGateway": true}), json!({"isDefaultGateway": true, "dns": {"domain": "d"}})]
        {
            let (host, pod) = (Host::new(), Namespace::new());
            let mut config = both(&host, with(&keys, "cniVersion", json!(version)));
            config["ipam"]["routes"] =
                json!([{"dst": "192.0.2.0/24"}, {"dst": "fd01::/64", "gw": "fd00::9"}]);
            let reference = host.reference(host.call("ADD", &pod, &config)).result();
            let theirs = (addresses(&pod, "net1"), routes(&pod, "-4"), addresses(&host.namespace, "br0"));
            host.reference(host.call("DEL", &pod, &config)).result();
            std::fs::remove_dir_all(host.networks()).unwrap();
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
    });
}

/// ADD, IPAM, CHECK and DEL by ours or the reference, in all combinations.
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
            if !plugin_is_ours {
                call.plugin = peer("bridge");
            }
            host.make(&call)
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
        host.with_ranges(&json!([[{"subnet": subnet}]]), keys)
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
            let answer = if container.starts_with("go") { host.reference(call) } else { host.make(&call) };
            answer.result();
            pods.push(pod);
        }
    }
    // On the first network's bridge, with an address that a stale reservation of it names too: no proof.
    let pod = Namespace::new();
    let clash = host.with_ranges(&json!([[{"subnet": "10.1.2.0/24"}]]), json!({"name": "four"}));
    let mut call = host.call("ADD", &pod, &with(&clash, "runtimeConfig", json!({"ips": ["10.1.2.4"]})));
    call.container = "clash".to_owned();
    host.reference(call).result();
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
        let names = std::fs::read_dir(host.networks().join(network)).unwrap();
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

/// All that there is at once, attached by ours or the reference and detached by the other: no rule is left either.
#[test]
fn with_spoof_check_and_masquerading() {
    for turn in 0..4 {
        let (host, pod) = (Host::new(), Namespace::new());
        let keys = json!({
            "isDefaultGateway": true, "macspoofchk": true, "spoofchkBackend": "nftables", "ipMasq": true, "ipMasqBackend": "nftables",
        });
        let config = four(&host, keys);
        let call = |verb: &str, ours: bool, config: &Value| {
            let call = host.call(verb, &pod, config);
            if ours { host.make(&call) } else { host.reference(call) }
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
