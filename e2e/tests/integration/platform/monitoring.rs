//! Objects for Prometheus' operator, in a cluster that has their kinds: they are created, follow HyperConverged, and the
//! platform goes on when the kinds are removed. The definitions of the kinds take any fields: what the objects hold is checked
//! by the operator's own tests.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::platform::hyperconverged::{OBJECT, alone};
use crate::platform::place::PLACE;

const PLATFORM: &str = operator::defaults::NAMESPACE;
const GROUP: &str = "monitoring.coreos.com";

fn definition(kind: &str) -> Value {
    let singular = kind.to_lowercase();
    let plural = format!("{singular}s");
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    })
}

/// The platform's objects of a kind, in plural; none while the API server does not serve it.
fn list(plural: &str) -> Option<Vec<Value>> {
    let kind = format!("{plural}.{GROUP}");
    let text = PLACE.kubectl(&["-n", PLATFORM, "get", &kind, "-o", "json"]).ok()?;
    serde_json::from_str::<Value>(&text).ok()?["items"].as_array().cloned()
}

fn names(objects: &[Value]) -> BTreeSet<&str> {
    objects.iter().filter_map(|one| one["metadata"]["name"].as_str()).collect()
}

/// The alerts of rules.
fn alerts(rules: &[Value]) -> BTreeSet<&str> {
    let groups = rules.iter().filter_map(|one| one["spec"]["groups"].as_array()).flatten();
    let all = groups.filter_map(|group| group["rules"].as_array()).flatten();
    all.filter_map(|rule| rule["alert"].as_str()).collect()
}

#[test]
fn objects_for_prometheus_are_created_where_their_kinds_are() {
    let _alone = alone();
    let definitions = ["ServiceMonitor", "PrometheusRule"].map(definition);
    let crds = definitions.each_ref().map(|one| format!("crd/{}", one["metadata"]["name"].as_str().unwrap()));
    for (number, one) in definitions.iter().enumerate() {
        let file = PLACE.cluster.place().path(&format!("monitoring-{number}.json"));
        fs::write(&file, one.to_string()).unwrap();
        PLACE.kubectl(&["create", "-f", file.to_str().unwrap()]).unwrap();
    }
    for plural in ["servicemonitors", "prometheusrules"] {
        PLACE.until(PLATFORM, &format!("{plural} are served"), || list(plural));
    }
    let allow = |alerts: &Value| {
        let patch = json!({"spec": {"observability": {"allowedAlerts": alerts}}}).to_string();
        PLACE.kubectl(&["-n", PLATFORM, "patch", OBJECT, "--type=merge", "-p", &patch]).unwrap();
    };
    // Without a change the operator looks for the kinds every ten minutes.
    allow(&json!(["VirtAPIDown"]));
    let monitors = ["ferrovirt-macpool", "prometheus-kubevirt-rules", "service-monitor-hpp"];
    PLACE.until(PLATFORM, "the ServiceMonitors", || {
        (names(&list("servicemonitors")?) == BTreeSet::from(monitors)).then_some(())
    });
    PLACE.until(PLATFORM, "rules with the allowed alert alone", || {
        let rules = list("prometheusrules")?;
        (rules.len() == 6 && alerts(&rules) == BTreeSet::from(["VirtAPIDown"])).then_some(())
    });
    for crd in &crds {
        PLACE.kubectl(&["delete", "--wait", crd]).unwrap();
    }
    allow(&Value::Null);
    PLACE.until(PLATFORM, "HyperConverged is reconciled without the kinds", || {
        let text = PLACE.kubectl(&["-n", PLATFORM, "get", OBJECT, "-o", "json"]).ok()?;
        let owner: Value = serde_json::from_str(&text).ok()?;
        let related = owner["status"]["relatedObjects"].to_string();
        let observed = owner["status"]["observedGeneration"] == owner["metadata"]["generation"];
        (observed && !related.contains("ServiceMonitor")).then_some(())
    });
}
