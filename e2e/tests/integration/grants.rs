//! No verb is granted that is never used: roles of the platform's accounts and the audit logs of all tests with a cluster.

use std::collections::BTreeSet;
use std::fs;

use e2e::grants::{FOLDER, Grant, granted};

/// Why Helm's Job may delete objects that HyperConverged's deletion removes otherwise.
const OWN_SWITCH: &str = "an object that a user made without HyperConverged";

/// Grants that no test uses: account, verbs (all if empty), how the resource with its group begins or, after `*`, ends, and why
/// they are granted.
const UNUSED: [(&str, &[&str], &str, &str); 17] = [
    (
        "kubevirt-controller",
        &["update"],
        "*/finalizers",
        "OpenShift lets only those refer to an owner who may change its finalizers",
    ),
    ("kubevirt-controller", &[], "securitycontextconstraints", "OpenShift"),
    ("kubevirt-controller", &[], "consoleclidownloads", "OpenShift"),
    ("kubevirt-controller", &[], "routes", "OpenShift"),
    ("kubevirt-controller", &[], "imagestreams", "OpenShift"),
    ("kubevirt-controller", &[], "prometheusrules", "Prometheus' operator"),
    ("kubevirt-controller", &[], "servicemonitors", "Prometheus' operator"),
    ("kubevirt-controller", &["delete"], "configmaps", "the MAC pool's range, when kubeMacPool is removed"),
    (
        "kubevirt-controller",
        &["delete"],
        "secrets",
        "damaged certificates; credentials of claims that are gone",
    ),
    (
        "kubevirt-controller",
        &["escalate"],
        "clusterroles",
        "the API server asks for it when a label of a role changes; no request has this verb",
    ),
    ("kubevirt-controller", &["patch"], "nodes", "marks nodes whose agent is silent"),
    ("kubevirt-controller", &["patch"], "events", "an event that comes again is counted"),
    ("kubevirt-handler", &["patch"], "events", "an event that comes again is counted"),
    ("ferrovirt-uninstall", &["delete"], "kubevirts", OWN_SWITCH),
    ("ferrovirt-uninstall", &["delete"], "cdis", OWN_SWITCH),
    ("ferrovirt-uninstall", &["delete"], "networkaddonsconfigs", OWN_SWITCH),
    ("ferrovirt-uninstall", &["delete"], "ssps", OWN_SWITCH),
];

/// Why a grant that no test uses is there.
fn reason(grant: &Grant) -> Option<&'static str> {
    let resource = format!("{}.{}", grant.resource, grant.group);
    let is_it = |(account, verbs, wanted, _): &&(&str, &[&str], &str, &str)| {
        let named = match wanted.strip_prefix('*') {
            Some(end) => grant.resource.ends_with(end),
            None => resource.starts_with(wanted),
        };
        grant.account == *account && (verbs.is_empty() || verbs.contains(&grant.verb.as_str())) && named
    };
    UNUSED.iter().find(is_it).map(|(.., reason)| *reason)
}

#[test]
fn every_reason_is_of_a_grant() {
    let reasons: BTreeSet<&str> = granted().iter().filter_map(reason).collect();
    for (account, _, resource, why) in UNUSED {
        assert!(reasons.contains(why), "{account} {resource}: {why}");
    }
}

#[test]
#[ignore = "needs what all other tests with a cluster used: make soak"]
fn every_verb_that_is_granted_is_used() {
    let folder = std::env::var_os(FOLDER).unwrap_or_else(|| panic!("{FOLDER} is not set"));
    let files =
        fs::read_dir(&folder).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let used: BTreeSet<String> =
        files.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let granted = granted();
    let is_used = |grant: &Grant| {
        // The right to list objects is one to read each of them.
        let listed = Grant { verb: "list".to_owned(), ..grant.clone() };
        used.contains(&grant.to_string()) || (grant.verb == "get" && used.contains(&listed.to_string()))
    };
    let (used, unused): (Vec<&Grant>, Vec<&Grant>) = granted.iter().partition(|grant| is_used(grant));
    let (known, unused): (Vec<&Grant>, Vec<&Grant>) =
        unused.into_iter().partition(|grant| reason(grant).is_some());
    println!("verbs granted: {}, used: {}, unused with a reason: {}", granted.len(), used.len(), known.len());
    used.into_iter()
        .filter(|grant| reason(grant).is_some())
        .for_each(|grant| println!("used after all: {grant}"));
    let unused: Vec<String> = unused.into_iter().map(ToString::to_string).collect();
    assert!(unused.is_empty(), "{} verbs granted and not used:\n{}", unused.len(), unused.join("\n"));
}
