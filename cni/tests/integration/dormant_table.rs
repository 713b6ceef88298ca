//! Rules that were removed or made dormant by other programs: an ADD fails, and CHECK and STATUS report it.

use serde_json::json;

use crate::support::{Host, Namespace, bridge_with};

#[test]
fn rules_of_pins_that_are_gone_come_back() {
    let host = Host::new();
    let config = host.with_ranges(&json!([[{"subnet": "10.77.0.0/24"}]]), json!({"ipspoofchk": true}));
    let nft = |words: &str| host.namespace.run("nft", &words.split(' ').collect::<Vec<_>>());
    let shown = || nft("list chain bridge cni_address_pins prerouting");
    let pod = Namespace::new();
    host.add(&pod, &config).result();
    let whole = shown();
    host.del(&pod, &config).result();
    for gone in [
        "flush table bridge cni_address_pins",
        "flush chain bridge cni_address_pins prerouting",
        "delete chain bridge cni_address_pins prerouting",
        "delete table bridge cni_address_pins",
    ] {
        nft(gone);
        let result = host.add(&pod, &config).result();
        assert_eq!(shown(), whole, "{gone}");
        host.check(&pod, &config, &result).result();
        host.del(&pod, &config).result();
    }
}

#[test]
fn a_dormant_table_is_an_error() {
    for (key, table) in [
        ("ipspoofchk", "bridge cni_address_pins"),
        ("macspoofchk", "bridge nat"),
        ("ipMasq", "inet cni_plugins_masquerade"),
    ] {
        let (host, pod, late) = (Host::new(), Namespace::new(), Namespace::new());
        let plain = host.with_ranges(&json!([[{"subnet": "10.77.0.0/24"}]]), json!({}));
        let mut config = plain.clone();
        config[key] = json!(true);
        config["spoofchkBackend"] = json!("nftables");
        let result = host.add(&pod, &config).result();
        let nft = |words: String| host.namespace.run("nft", &words.split(' ').collect::<Vec<_>>());
        nft(format!("add table {table} {{ flags dormant; }}"));
        let wakes = format!("nft add table {table}");

        let (code, words) = host.check(&pod, &config, &result).error();
        assert!(code == 101 && words.contains(&wakes), "{key}: {code}: {words}");
        let (code, words) = host.make(&host.call("STATUS", &pod, &config)).error();
        assert!(code == 51 && words.contains(&wakes), "{key}: {code}: {words}");
        let mut add = host.call("ADD", &late, &config);
        add.container = "c2".to_owned();
        let rules = nft("list ruleset".to_owned());
        let (code, words) = host.make(&add).error();
        assert!(code == 101 && words.contains(&wakes), "{key}: {code}: {words}");
        assert_eq!((nft("list ruleset".to_owned()), late.names().len()), (rules, 0), "{key}");
        // Networks without these rules are not affected.
        host.make(&host.call("STATUS", &pod, &plain)).result();

        nft(format!("add table {table}"));
        host.check(&pod, &config, &result).result();
        host.make(&add).result();
        nft(format!("add table {table} {{ flags dormant; }}"));
        host.del(&pod, &config).result();
        add.verb = "DEL".to_owned();
        host.make(&add).result();
        assert!(!nft("list ruleset".to_owned()).contains("net1"), "{key}");
    }
}

#[test]
fn a_dormant_table_without_attachments_is_code_50() {
    let (host, pod) = (Host::new(), Namespace::new());
    host.namespace.run("nft", &["add", "table", "bridge", "nat", "{", "flags", "dormant;", "}"]);
    let config = bridge_with(json!({"macspoofchk": true, "spoofchkBackend": "nftables"}));
    assert_eq!(host.make(&host.call("STATUS", &pod, &config)).error().0, 50);
    assert_eq!(host.add(&pod, &config).error().0, 101);
    assert!(host.namespace.names().is_empty());
}
