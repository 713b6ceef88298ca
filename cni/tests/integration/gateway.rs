//! A bridge that is the pods' gateway: the addresses it gets, has and keeps, and its Ethernet address.

use serde_json::json;

use crate::support::addresses::{addresses, both, four, reserved};
use crate::support::{Host, Namespace, with};

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
        let index = (!prepare.is_empty()).then(|| host.namespace.link("br0")["ifindex"].clone());
        let result = host.add(&one, &config).result();
        assert!(index.is_none_or(|index| host.namespace.link("br0")["ifindex"] == index));
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

/// Also the address that the kernel gave a bridge which never had a port: the first one would change it.
#[test]
fn a_bridge_without_ports_keeps_its_ethernet_address() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 type bridge");
    let mac = host.namespace.link("br0")["address"].clone();
    let config = four(&host, json!({"isGateway": true}));
    let result = host.add(&pod, &config).result();
    assert_eq!((&result["interfaces"][0]["mac"], &host.namespace.link("br0")["address"]), (&mac, &mac));
    assert!(host.check(&pod, &config, &result).success);
    host.del(&pod, &config).result();
    assert_eq!(host.namespace.link("br0")["address"], mac);
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

/// A failure after the rules were made takes them back too.
#[test]
fn a_failing_add_leaves_no_rule() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.ip("link add br0 up type bridge");
    host.namespace.ip("addr add 10.9.9.9/24 dev br0");
    let config = four(
        &host,
        json!({"isGateway": true, "macspoofchk": true, "spoofchkBackend": "nftables", "ipMasq": true}),
    );
    assert_eq!(host.add(&pod, &config).error().0, 101);
    let all = host.namespace.run("nft", &["list", "ruleset"]);
    assert!(!all.contains("net1") && !all.contains("10.1.2."), "{all}");
    assert_eq!((host.namespace.names(), pod.names()), (vec!["br0".to_owned()], vec![]));
    assert_eq!(reserved(&host, "net"), 0);
}
