//! Objects for Prometheus: what it collects, recording rules and alerts, with upstream's names. They are created only in
//! clusters that have their kinds, so they are not among [`super::manifests`].
//!
//! Not here: the rules themselves ([`rules`]).

mod rules;

use serde_json::{Value, json};

use rules::{Alert, Subject};

use super::{SCRAPED, object, with};

/// Group and version of the kinds.
const MONITORING: &str = "monitoring.coreos.com/v1";
/// Upstream's pages about alerts; `%s` stands for the alert's name.
pub(crate) const RUNBOOKS: &str = "https://kubevirt.io/monitoring/runbooks/%s";

/// Choice of rules: names, `none` or nothing for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Alerts.
    pub(crate) alerts: Vec<String>,
    /// Recording rules.
    pub(crate) records: Vec<String>,
}

fn allows(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|one| one == name)
}

/// ServiceMonitors and rules. `runbooks` is the URL of the pages about alerts, with `%s` for the name; `None`: upstream's, of
/// the alerts that upstream has.
pub(crate) fn objects(namespace: &str, allowed: &Allowed, runbooks: Option<&str>) -> Vec<Value> {
    let mut all: Vec<Value> =
        rules::ALL.iter().map(|rules| rule_object(rules, namespace, allowed, runbooks)).collect();
    for (name, label) in [
        ("prometheus-kubevirt-rules", SCRAPED.0),
        ("service-monitor-hpp", "prometheus.hostpathprovisioner.kubevirt.io"),
        ("ferrovirt-macpool", "prometheus.kubemacpool.io"),
    ] {
        let mut endpoint = json!({
            "port": "metrics",
            "scheme": "https",
            "honorLabels": true,
            "tlsConfig": {"insecureSkipVerify": true},
        });
        if label != SCRAPED.0 {
            endpoint["bearerTokenFile"] = json!("/var/run/secrets/kubernetes.io/serviceaccount/token");
        }
        all.push(with(
            object(MONITORING, "ServiceMonitor", name, Some(namespace)),
            json!({"spec": {
                "selector": {"matchLabels": {label: "true"}},
                "namespaceSelector": {"matchNames": [namespace]},
                "endpoints": [endpoint],
            }}),
        ));
    }
    all
}

/// The PrometheusRule of a component.
fn rule_object(rules: &rules::Rules, namespace: &str, allowed: &Allowed, runbooks: Option<&str>) -> Value {
    let records = rules.records.iter().filter(|one| allows(&allowed.records, one.name)).map(|one| {
        let mut rule = json!({"record": one.name, "expr": one.expression.replace("NS", namespace)});
        if let Some(reason) = one.reason {
            rule["labels"] = json!({"reason": reason});
        }
        rule
    });
    let alerts = rules.alerts.iter().filter(|one| allows(&allowed.alerts, one.name)).map(|one| {
        let impact = one.impact.unwrap_or(match (one.subject, one.severity) {
            (Subject::Guest | Subject::Client, _) => "none",
            (Subject::Platform, "critical") => "critical",
            (Subject::Platform, _) => "warning",
        });
        let mut annotations = json!({"summary": one.summary});
        if let Some(description) = one.description {
            annotations["description"] = json!(description);
        }
        if let Some(template) = runbooks.or(one.upstream.then_some(RUNBOOKS)) {
            annotations["runbook_url"] = json!(template.replace("%s", one.name));
        }
        json!({
            "alert": one.name,
            "expr": expression(one, namespace),
            "for": one.duration,
            "labels": {
                "severity": one.severity,
                "operator_health_impact": impact,
                "kubernetes_operator_part_of": "kubevirt",
                "kubernetes_operator_component": rules.component,
            },
            "annotations": annotations,
        })
    });
    let groups = json!([
        {"name": format!("{}.records", rules.component), "rules": records.collect::<Vec<_>>()},
        {"name": format!("{}.alerts", rules.component), "rules": alerts.collect::<Vec<_>>()},
    ]);
    with(
        object(MONITORING, "PrometheusRule", rules.object, Some(namespace)),
        json!({"spec": {"groups": groups}}),
    )
}

/// The expression of an alert. Consoles lead from an alert about a guest to its VM by the label `vm`.
fn expression(alert: &Alert, namespace: &str) -> String {
    let text = alert.expression.replace("NS", namespace);
    match alert.subject {
        Subject::Guest => format!("label_replace({text}, 'vm', '$1', 'name', '(.+)')"),
        Subject::Platform | Subject::Client => text,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::rules::Record;
    use super::*;
    use crate::install::{Settings, macpool, manifests};

    fn records() -> impl Iterator<Item = &'static Record> {
        rules::ALL.iter().flat_map(|rules| rules.records)
    }

    fn alerts() -> impl Iterator<Item = &'static Alert> {
        rules::ALL.iter().flat_map(|rules| rules.alerts)
    }

    #[test]
    fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/runbooks");
        let pages: BTreeSet<String> = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let alerts: BTreeSet<String> = alerts().map(|one| one.name.to_owned()).collect();
        assert_eq!(pages, alerts);
    }

    #[test]
    fn dashboard_shows_records_and_documented_metrics() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let documented = fs::read_to_string(docs.join("metrics.md")).unwrap();
        let dashboard = fs::read_to_string(docs.join("grafana/ferrovirt.json")).unwrap();
        let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let expressions = panels.flat_map(|panel| panel["targets"].as_array().unwrap().clone());
        let mut count = 0;
        for target in expressions {
            let expression = target["expr"].as_str().unwrap();
            for word in expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                let ours =
                    ["kubevirt_", "ferrovirt_", "macpool_"].iter().any(|start| word.starts_with(start));
                if !ours {
                    continue;
                }
                count += 1;
                // Of several metrics in one row the first is whole; `_free_` or `_free_bytes` stands for another.
                let shortened = word.match_indices('_').any(|(place, _)| {
                    let (start, rest) = (&word[..=place], &word[place + 1..]);
                    let first = rest.split('_').next().unwrap_or_default();
                    let endings = [format!("`_{rest}`"), format!("`_{first}_`")];
                    documented.lines().any(|line| {
                        line.contains(&format!("`{start}")) && endings.iter().any(|end| line.contains(end))
                    })
                });
                let whole = [format!("`{word}`"), format!("`{word}{{")];
                let known = shortened || whole.iter().any(|name| documented.contains(name));
                assert!(known || records().any(|one| one.name == word), "{expression}: {word}");
            }
        }
        assert!(count > 15, "{count}");
    }

    #[test]
    fn rules_can_be_chosen_by_name() {
        let count = |allowed: &Allowed| {
            let all = objects("ns", allowed, None);
            [0, 1].map(|group: usize| {
                let of = |one: &Value| one["spec"]["groups"][group]["rules"].as_array().map_or(0, Vec::len);
                all.iter().map(of).sum::<usize>()
            })
        };
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(count(&Allowed::default()), [records().count(), alerts().count()]);
        let one = Allowed { alerts: list(&["VirtAPIDown"]), records: list(&["none"]) };
        assert_eq!(count(&one), [0, 1]);
    }

    #[test]
    fn expressions_name_the_namespace_and_records_that_exist() {
        for one in alerts() {
            for word in one.expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':') {
                let record = word.starts_with("kubevirt_") && word.ends_with("_up") || word.contains(':');
                let known = word == ":" || records().any(|record| record.name == word);
                assert!(!record || known, "{}: {word}", one.name);
            }
        }
        assert!(!objects("ns", &Allowed::default(), None).iter().any(|one| one.to_string().contains("'NS'")));
    }

    #[test]
    fn pods_of_transfers_restart_three_times_before_they_count() {
        let restarts: Vec<_> = records().filter(|one| one.name.contains("pods_high_restart")).collect();
        assert_eq!(restarts.len(), 6);
        for one in restarts {
            assert!(one.expression.contains("'} > 3) or on() vector(0)"), "{}", one.expression);
        }
    }

    #[test]
    fn alerts_about_a_guest_name_its_vm() {
        let all = objects("ns", &Allowed::default(), None);
        let rules = all.iter().filter_map(|one| one["spec"]["groups"][1]["rules"].as_array());
        let named = |rule: &&Value| {
            rule["annotations"]["description"].as_str().is_some_and(|text| text.contains("$labels.name "))
        };
        let (mut guests, mut others) = (0, 0);
        for rule in rules.flatten() {
            let expression = rule["expr"].as_str().unwrap();
            let labelled = expression.starts_with("label_replace(")
                && expression.ends_with(", 'vm', '$1', 'name', '(.+)')");
            assert_eq!(labelled, named(&rule), "{rule}");
            if labelled {
                assert_eq!(rule["labels"]["operator_health_impact"], "none", "{rule}");
                guests += 1;
            } else {
                others += 1;
            }
        }
        assert_eq!(guests, 7);
        assert!(others > 40, "{others}");
    }

    /// The rule of an alert.
    fn rule_of(name: &str) -> Value {
        let all = objects("ns", &Allowed::default(), None);
        let mut rules = all.iter().filter_map(|one| one["spec"]["groups"][1]["rules"].as_array()).flatten();
        rules.find(|rule| rule["alert"] == name).unwrap().clone()
    }

    #[test]
    fn a_driver_without_its_object_is_not_down() {
        let expression = rule_of("HPPOperatorDown")["expr"].as_str().unwrap().to_owned();
        assert!(expression.ends_with(" == 0 and on() kubevirt_hpp_cr_ready >= 0"), "{expression}");
    }

    #[test]
    fn an_alert_has_the_impact_of_its_severity_or_its_own() {
        for (name, severity, impact) in [
            ("VirtAPIDown", "critical", "critical"),
            ("HPPOperatorDown", "warning", "warning"),
            ("HPPNotReady", "warning", "critical"),
        ] {
            let rule = rule_of(name);
            assert_eq!(rule["labels"]["severity"], severity, "{name}");
            assert_eq!(rule["labels"]["operator_health_impact"], impact, "{name}");
        }
    }

    #[test]
    fn a_page_about_an_alert_is_upstreams_or_the_administrators() {
        let pages = |template: Option<&str>| -> Vec<(String, Value)> {
            let all = objects("ns", &Allowed::default(), template);
            let rules = all.iter().filter_map(|one| one["spec"]["groups"][1]["rules"].as_array());
            let name = |rule: &Value| rule["alert"].as_str().unwrap().to_owned();
            rules.flatten().map(|rule| (name(rule), rule["annotations"]["runbook_url"].clone())).collect()
        };
        let default = pages(None);
        let page = |name: &str| default.iter().find(|one| one.0 == name).unwrap().1.clone();
        assert_eq!(page("VirtAPIDown"), "https://kubevirt.io/monitoring/runbooks/VirtAPIDown");
        assert_eq!(page("HPPPoolReadOnly"), Value::Null, "upstream has no such page");
        for (name, page) in pages(Some("https://wiki/%s.md")) {
            assert_eq!(page, format!("https://wiki/{name}.md"));
        }
    }

    /// Whether the labels of a pod or Service are among those of `wanted`.
    fn selects(wanted: &Value, labels: &Value) -> bool {
        wanted.as_object().unwrap().iter().all(|(name, value)| labels[name] == *value)
    }

    #[test]
    fn prometheus_reads_each_pod_of_the_records_once_over_tls() {
        let settings = Settings::default();
        let mut installed = manifests(&settings);
        installed.extend(macpool::objects(&settings, &macpool::Pool::default()));
        installed.extend(crate::install::hostpath::objects(
            &settings,
            &crate::install::hostpath::Driver::default(),
        ));
        let of = |kind: &'static str| installed.iter().filter(move |one| one["kind"] == kind);
        let all = objects(&settings.namespace, &Allowed::default(), None);
        // Names of pods begin with those of their sets.
        let mut read = Vec::new();
        for monitor in all.iter().filter(|one| one["kind"] == "ServiceMonitor") {
            let endpoint = &monitor["spec"]["endpoints"][0];
            assert_eq!(endpoint["scheme"], "https");
            let wanted = &monitor["spec"]["selector"]["matchLabels"];
            for service in of("Service").filter(|one| selects(wanted, &one["metadata"]["labels"])) {
                let port = &service["spec"]["ports"][0];
                assert_eq!(port["name"], endpoint["port"]);
                for set in of("Deployment").chain(of("DaemonSet")) {
                    let template = &set["spec"]["template"];
                    if selects(&service["spec"]["selector"], &template["metadata"]["labels"]) {
                        let ports = template["spec"]["containers"][0]["ports"].as_array().unwrap();
                        assert!(ports.iter().any(|one| one["containerPort"] == port["targetPort"]), "{set}");
                        read.push(set["metadata"]["name"].as_str().unwrap().to_owned());
                    }
                }
            }
        }
        read.sort();
        let pods = records()
            .filter_map(|one| one.expression.split_once("up{namespace='NS', pod=~'")?.1.split_once("-.*"));
        let wanted: BTreeSet<&str> = pods.map(|(pod, _)| pod).collect();
        assert_eq!(read, wanted.into_iter().collect::<Vec<_>>());
    }
}
