//! Base chains that another program made with another type, hook, priority or policy: the rules in them would not filter,
//! so ADD refuses them before it makes anything, and CHECK and STATUS report them.

use serde_json::{Value, json};

use crate::support::{Host, Namespace};

/// The key of a configuration, the table and the chain it needs, and the chain's only right form.
const FILTERS: [(&str, &str, &str, &str); 3] = [
    ("macspoofchk", "bridge nat", "PREROUTING", "type filter hook prerouting priority -300; policy accept;"),
    (
        "ipspoofchk",
        "bridge cni_address_pins",
        "prerouting",
        "type filter hook prerouting priority -299; policy accept;",
    ),
    (
        "ipMasq",
        "inet cni_plugins_masquerade",
        "postrouting",
        "type nat hook postrouting priority 100; policy accept;",
    ),
];

/// Forms that do not see the packets, or that decide about packets of others.
fn wrong(right: &str) -> Vec<String> {
    let mut forms = vec![
        String::new(),
        right.replace("priority -300", "priority -200").replace("priority -299", "priority 0"),
        right.replace("hook prerouting", "hook postrouting").replace("priority -300", "priority -310"),
        right.replace("policy accept", "policy drop"),
    ];
    if right.contains("nat") {
        forms[1] = right.replace("priority 100", "priority 120");
        forms[2] = "type filter hook postrouting priority 100; policy accept;".to_owned();
    }
    forms
}

fn nft(host: &Host, text: &str) {
    let file = host.folder.path().join("rules.nft");
    std::fs::write(&file, text).unwrap();
    host.namespace.run("nft", &["-f", file.to_str().unwrap()]);
}

fn config(host: &Host, key: &str) -> Value {
    host.with_ranges(
        &json!([[{"subnet": "10.77.0.0/24"}]]),
        json!({key: true, "ipMasqBackend": "nftables", "spoofchkBackend": "nftables"}),
    )
}

#[test]
fn an_add_into_a_base_chain_that_does_not_filter_is_refused() {
    for (key, table, chain, right) in FILTERS {
        for form in wrong(right) {
            let (host, pod) = (Host::new(), Namespace::new());
            nft(&host, &format!("table {table} {{\nchain {chain} {{\n{form}\n}}\n}}\n"));
            let before = host.namespace.run("nft", &["list", "ruleset"]);
            let config = config(&host, key);
            let (code, words) = host.add(&pod, &config).error();
            let named = words.contains(&format!("the chain {chain} of the table {table} is"));
            assert!(code == 101 && named, "{key}, {form:?}: {code}: {words}");
            assert_eq!(host.namespace.run("nft", &["list", "ruleset"]), before, "{key}, {form:?}");
            assert!(pod.names().is_empty(), "{key}, {form:?}: {:?}", pod.names());
            let (code, words) = host.make(&host.call("STATUS", &pod, &config)).error();
            assert!([50, 51].contains(&code), "{key}, {form:?}: {code}: {words}");
            assert!(words.contains(chain), "{key}, {form:?}: {words}");
        }
    }
}

#[test]
fn a_hook_is_named() {
    let (host, pod) = (Host::new(), Namespace::new());
    nft(
        &host,
        "table bridge nat { chain PREROUTING { type filter hook postrouting priority -300; policy accept; }; }",
    );
    let (_, words) = host.add(&pod, &config(&host, "macspoofchk")).error();
    assert!(words.contains("is type filter at hook postrouting with priority -300"), "{words}");
    assert!(words.contains("must be type filter at hook prerouting with priority -300"), "{words}");
}

/// No rule can lead into a chain that packets enter by themselves.
#[test]
fn a_base_chain_in_place_of_one_that_is_jumped_to_is_named() {
    for (key, table, chain) in [
        ("ipspoofchk", "bridge cni_address_pins", "advertised"),
        ("ipMasq", "inet cni_plugins_masquerade", "masq_checks"),
    ] {
        let (host, pod) = (Host::new(), Namespace::new());
        nft(&host, &format!("table {table} {{ chain {chain} {{ type filter hook input priority 0; }}; }}"));
        let config = config(&host, key);
        let (code, words) = host.add(&pod, &config).error();
        let named = format!("the chain {chain} of the table {table} is type filter at hook input");
        assert!(code == 101 && words.contains(&named) && !words.contains("may lack"), "{code}: {words}");
        let (code, words) = host.make(&host.call("STATUS", &pod, &config)).error();
        assert!([50, 51].contains(&code) && words.contains(&named), "{code}: {words}");
        assert!(pod.names().is_empty());
    }
}

#[test]
fn a_check_reports_a_base_chain_that_was_replaced() {
    for (key, table, chain, right) in FILTERS {
        let (host, pod) = (Host::new(), Namespace::new());
        let config = config(&host, key);
        let result = host.add(&pod, &config).result();
        assert!(host.check(&pod, &config, &result).success, "{key}");
        let mut words = vec!["-nn", "list", "table"];
        words.extend(table.split(' '));
        let listed = host.namespace.run("nft", &words);
        assert!(listed.contains(right), "{key}: {listed}");
        // The kernel itself lets rules that masquerade be reached from chains of type nat only.
        let forms = wrong(right).into_iter().filter(|form| key != "ipMasq" || form.starts_with("type nat"));
        for form in forms {
            let replaced = if key == "ipspoofchk" {
                // nft cannot read all of the rules that it lists of this chain.
                format!(
                    "flush chain {table} {chain}\ndelete chain {table} {chain}\ntable {table} {{\nchain {chain} {{\n{form}\n}}\n}}\n"
                )
            } else {
                format!("delete table {table}\n{}", listed.replace(right, &form))
            };
            nft(&host, &replaced);
            let (code, words) = host.check(&pod, &config, &result).error();
            let named = words.contains(&format!("the chain {chain} of the table {table} is"));
            assert!(code == 101 && named, "{key}, {form:?}: {code}: {words}");
        }
        if key != "ipspoofchk" {
            nft(&host, &format!("delete table {table}\n{listed}"));
            host.check(&pod, &config, &result).result();
        }
        host.del(&pod, &config).result();
    }
}
