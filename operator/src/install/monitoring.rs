//! Objects for Prometheus: what it collects, recording rules and alerts with upstream's names. They are created only in
//! clusters that have their kinds, so they are not among [`super::manifests`].
//!
//! Upstream's rules look for pods of its own names; the records here have the same names and look for ours. Every alert has
//! a page in docs/runbooks.

use serde_json::{Value, json};

use super::{object, with};

/// Group and version of the kinds.
const MONITORING: &str = "monitoring.coreos.com/v1";
/// Name of the rules, and how the names of all objects begin.
const RULES: &str = "ferrovirt-rules";

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

/// A recording rule: name, expression. `NS` stands for the namespace.
const RECORDS: [(&str, &str); 29] = [
    ("kubevirt_virt_api_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    (
        "cluster:kubevirt_virt_api_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    ("kubevirt_virt_controller_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    (
        "cluster:kubevirt_virt_controller_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    ("kubevirt_virt_operator_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    (
        "cluster:kubevirt_virt_operator_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    ("kubevirt_virt_handler_up", "sum(up{namespace='NS', pod=~'virt-handler-.*'}) or vector(0)"),
    ("cluster:kubevirt_virt_handler_up:sum", "sum(up{namespace='NS', pod=~'virt-handler-.*'}) or vector(0)"),
    ("kubevirt_cdi_operator_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    (
        "cluster:kubevirt_cdi_operator_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    (
        "kubevirt_cdi_import_pods_high_restart",
        "count(kube_pod_container_status_restarts_total{pod=~'importer-.*', container='importer'} > 5) or on() vector(0)",
    ),
    (
        "cluster:kubevirt_cdi_import_pods_high_restart:count",
        "count(kube_pod_container_status_restarts_total{pod=~'importer-.*', container='importer'} > 5) or on() vector(0)",
    ),
    (
        "kubevirt_cdi_upload_pods_high_restart",
        "count(kube_pod_container_status_restarts_total{pod=~'cdi-upload-.*', container='cdi-upload-server'} > 5) or on() vector(0)",
    ),
    (
        "cluster:kubevirt_cdi_upload_pods_high_restart:count",
        "count(kube_pod_container_status_restarts_total{pod=~'cdi-upload-.*', container='cdi-upload-server'} > 5) or on() vector(0)",
    ),
    (
        "kubevirt_cdi_clone_pods_high_restart",
        "count(kube_pod_container_status_restarts_total{pod=~'.*-source-pod', container='cdi-clone-source'} > 5) or on() vector(0)",
    ),
    (
        "cluster:kubevirt_cdi_clone_pods_high_restart:count",
        "count(kube_pod_container_status_restarts_total{pod=~'.*-source-pod', container='cdi-clone-source'} > 5) or on() vector(0)",
    ),
    ("kubevirt_hpp_operator_up", "sum(up{namespace='NS', pod=~'hostpath-provisioner-csi-.*'}) or vector(0)"),
    (
        "cluster:kubevirt_hpp_operator_up:sum",
        "sum(up{namespace='NS', pod=~'hostpath-provisioner-csi-.*'}) or vector(0)",
    ),
    (
        "kubevirt_cnao_kubemacpool_manager_up",
        "sum(up{namespace='NS', pod=~'kubemacpool-mac-controller-manager-.*'}) or vector(0)",
    ),
    (
        "cluster:kubevirt_cnao_kubemacpool_manager_up:sum",
        "sum(up{namespace='NS', pod=~'kubemacpool-mac-controller-manager-.*'}) or vector(0)",
    ),
    ("kubevirt_cnao_operator_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    (
        "cluster:kubevirt_cnao_operator_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    (
        "kubevirt_cnao_cr_kubemacpool_aggregated",
        "sum(kubevirt_cnao_cr_kubemacpool_deployed{namespace='NS'} or vector(0))",
    ),
    (
        "cluster:kubevirt_cnao_cr_kubemacpool_deployed:sum",
        "sum(kubevirt_cnao_cr_kubemacpool_deployed{namespace='NS'} or vector(0))",
    ),
    ("kubevirt_cnao_kubemacpool_duplicate_macs", "max(kubevirt_kmp_duplicate_macs{namespace='NS'})"),
    (
        "kubevirt_hyperconverged_operator_health_status",
        "max(kubevirt_hco_system_health_status{namespace='NS'})",
    ),
    (
        "cluster:kubevirt_hco_operator_health_status:count",
        "max(kubevirt_hco_system_health_status{namespace='NS'})",
    ),
    (
        "kubevirt_nodes_with_kvm",
        "count(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'} != 0) or vector(0)",
    ),
    ("kubevirt_allocatable_nodes", "count(count(kube_node_status_allocatable) by (node))"),
];

/// An alert.
#[derive(Debug)]
struct Alert {
    name: &'static str,
    expression: &'static str,
    /// How long the expression must hold.
    duration: &'static str,
    severity: &'static str,
    summary: &'static str,
}

const fn alert(
    name: &'static str,
    expression: &'static str,
    duration: &'static str,
    severity: &'static str,
    summary: &'static str,
) -> Alert {
    Alert { name, expression, duration, severity, summary }
}

/// All alerts. `NS` stands for the namespace.
const ALERTS: [Alert; 31] = [
    alert(
        "VirtAPIDown",
        "kubevirt_virt_api_up == 0",
        "10m",
        "critical",
        "No replica of the operator serves the API.",
    ),
    alert(
        "VirtControllerDown",
        "kubevirt_virt_controller_up == 0",
        "10m",
        "critical",
        "No replica of the operator runs its controllers.",
    ),
    alert(
        "VirtOperatorDown",
        "kubevirt_virt_operator_up == 0",
        "10m",
        "critical",
        "No replica of the operator runs.",
    ),
    alert("VirtHandlerDown", "kubevirt_virt_handler_up == 0", "10m", "critical", "No node agent runs."),
    alert(
        "VirtHandlerDaemonSetRolloutFailing",
        "(kube_daemonset_status_number_ready{namespace='NS', daemonset='virt-handler'} \
         - kube_daemonset_status_desired_number_scheduled{namespace='NS', daemonset='virt-handler'}) != 0",
        "15m",
        "warning",
        "The node agent is not ready on every node.",
    ),
    alert(
        "LowKVMNodesCount",
        "kubevirt_allocatable_nodes > 1 and kubevirt_nodes_with_kvm < 2",
        "5m",
        "warning",
        "Fewer than two nodes have KVM.",
    ),
    alert(
        "CDIOperatorDown",
        "kubevirt_cdi_operator_up == 0",
        "5m",
        "warning",
        "No replica of the operator imports data.",
    ),
    alert(
        "CDINotReady",
        "max(kubevirt_cdi_cr_ready{namespace='NS'}) == 0",
        "5m",
        "critical",
        "CDI is not available.",
    ),
    alert(
        "CDIDataVolumeUnusualRestartCount",
        "kubevirt_cdi_import_pods_high_restart > 0 or kubevirt_cdi_upload_pods_high_restart > 0 or kubevirt_cdi_clone_pods_high_restart > 0",
        "5m",
        "warning",
        "Pods that fill volumes fail again and again.",
    ),
    alert(
        "CDIStorageProfilesIncomplete",
        "sum by (storageclass, provisioner) (kubevirt_cdi_storageprofile_info{complete='false'}) > 0",
        "5m",
        "info",
        "Nothing is known about the provisioner of a storage class.",
    ),
    alert(
        "CDIDataImportCronOutdated",
        "sum by (ns, cron_name) (kubevirt_cdi_dataimportcron_outdated{pending='false'}) > 0",
        "15m",
        "info",
        "The latest version of a source is not imported.",
    ),
    alert(
        "CDINoDefaultStorageClass",
        "sum(kubevirt_cdi_storageprofile_info{default='true'} or on() vector(0)) + sum(kubevirt_cdi_storageprofile_info{virtdefault='true'} or on() vector(0)) == 0 and max(kubevirt_cdi_datavolume_pending) > 0",
        "5m",
        "warning",
        "DataVolumes wait for a default storage class.",
    ),
    alert(
        "CDIMultipleDefaultVirtStorageClasses",
        "sum(kubevirt_cdi_storageprofile_info{virtdefault='true'} or on() vector(0)) > 1",
        "5m",
        "warning",
        "Several storage classes are the default for virtual machines.",
    ),
    alert(
        "CDIDefaultStorageClassDegraded",
        "sum(kubevirt_cdi_storageprofile_info{default='true', degraded='true'} or kubevirt_cdi_storageprofile_info{virtdefault='true', degraded='true'}) > 0 and sum(kubevirt_cdi_storageprofile_info{default='true', degraded='false'} or kubevirt_cdi_storageprofile_info{virtdefault='true', degraded='false'} or on() vector(0)) == 0",
        "5m",
        "warning",
        "The default storage class cannot clone volumes or share them between nodes.",
    ),
    alert(
        "VMStorageClassWarning",
        "(count(kubevirt_ssp_vm_rbd_block_volume_without_rxbounce > 0) or vector(0)) > 0",
        "0m",
        "warning",
        "Disks of virtual machines on Ceph RBD are mapped without krbd:rxbounce.",
    ),
    alert("HPPOperatorDown", "kubevirt_hpp_operator_up == 0", "5m", "warning", "No hostpath driver runs."),
    alert(
        "HPPNotReady",
        "kubevirt_hpp_cr_ready == 0",
        "5m",
        "warning",
        "HostPathProvisioner is not available.",
    ),
    alert(
        "HPPPoolNearlyFull",
        "kubevirt_hpp_pool_free_bytes < 0.1 * kubevirt_hpp_pool_size_bytes",
        "5m",
        "warning",
        "Less than a tenth of a storage pool is free.",
    ),
    alert(
        "HPPPoolMostlyReserved",
        "kubevirt_hpp_pool_promised_bytes > 0.9 * kubevirt_hpp_pool_limit_bytes",
        "5m",
        "warning",
        "More than 90 % of a storage pool is reserved.",
    ),
    alert(
        "HPPPoolReadOnly",
        "kubevirt_hpp_pool_read_only == 1",
        "1m",
        "warning",
        "A storage pool accepts no writes.",
    ),
    alert(
        "HPPPoolNotEnforced",
        "kubevirt_hpp_pool_enforced_info{by='none'} == 1",
        "15m",
        "info",
        "The capacity of volumes is not enforced in a storage pool.",
    ),
    alert(
        "HPPLoopDeviceBuffered",
        "kubevirt_hpp_volume_loop_info{direct='false'} == 1",
        "15m",
        "info",
        "The loop device of a volume uses the page cache.",
    ),
    alert(
        "HPPSharingPoolPathWithOS",
        "kubevirt_hpp_pool_path_shared_with_os == 1",
        "1m",
        "warning",
        "A storage pool shares the root filesystem of its node.",
    ),
    alert(
        "CnaoDown",
        "kubevirt_cnao_operator_up == 0",
        "5m",
        "warning",
        "No replica of the operator deploys network components.",
    ),
    alert(
        "NetworkAddonsConfigNotReady",
        "sum(kubevirt_cnao_cr_ready{namespace='NS'} or vector(0)) == 0",
        "5m",
        "warning",
        "NetworkAddonsConfig is not available.",
    ),
    alert(
        "KubemacpoolDown",
        "kubevirt_cnao_cr_kubemacpool_aggregated > 0 and kubevirt_cnao_kubemacpool_manager_up == 0",
        "5m",
        "critical",
        "No replica of the MAC pool runs.",
    ),
    alert(
        "KubeMacPoolDuplicateMacsFound",
        "kubevirt_cnao_kubemacpool_duplicate_macs != 0",
        "5m",
        "warning",
        "NICs share a MAC address.",
    ),
    alert(
        "KubeVirtCRModified",
        "sum by (component_name) (increase(kubevirt_hco_out_of_band_modifications_total{namespace='NS'}[10m])) > 0",
        "0m",
        "warning",
        "A child object of HyperConverged was changed by others and restored.",
    ),
    alert(
        "UnsupportedHCOModification",
        "sum by (annotation_name) (kubevirt_hco_unsafe_modifications{namespace='NS'}) > 0",
        "0m",
        "info",
        "An annotation of HyperConverged patches a child object.",
    ),
    alert(
        "HCOInstallationIncomplete",
        "max(kubevirt_hco_hyperconverged_cr_exists{namespace='NS'}) == 0",
        "1h",
        "info",
        "The operator runs, and no HyperConverged object exists.",
    ),
    alert(
        "HCOOperatorConditionsUnhealthy",
        "kubevirt_hyperconverged_operator_health_status > 0",
        "10m",
        "warning",
        "HyperConverged reports a problem.",
    ),
];

/// ServiceMonitors and rules.
pub(crate) fn objects(namespace: &str, allowed: &Allowed) -> Vec<Value> {
    let records = RECORDS
        .iter()
        .filter(|(name, _)| allows(&allowed.records, name))
        .map(|(name, expression)| json!({"record": name, "expr": expression.replace("NS", namespace)}));
    let alerts = ALERTS.iter().filter(|one| allows(&allowed.alerts, one.name)).map(|one| {
        let health = if one.severity == "critical" { "critical" } else { "warning" };
        json!({
            "alert": one.name,
            "expr": one.expression.replace("NS", namespace),
            "for": one.duration,
            "labels": {
                "severity": one.severity,
                "operator_health_impact": health,
                "kubernetes_operator_part_of": "kubevirt",
                "kubernetes_operator_component": "ferrovirt",
            },
            "annotations": {"summary": one.summary, "runbook_url": format!("docs/runbooks/{}.md", one.name)},
        })
    });
    let groups = json!([
        {"name": "ferrovirt.records", "rules": records.collect::<Vec<_>>()},
        {"name": "ferrovirt.alerts", "rules": alerts.collect::<Vec<_>>()},
    ]);
    let mut all = vec![with(
        object(MONITORING, "PrometheusRule", RULES, Some(namespace)),
        json!({"spec": {"groups": groups}}),
    )];
    for (name, label, scheme) in [
        ("ferrovirt-kubevirt", "prometheus.kubevirt.io", "http"),
        ("ferrovirt-hostpath", "prometheus.hostpathprovisioner.kubevirt.io", "https"),
        ("ferrovirt-macpool", "prometheus.kubemacpool.io", "https"),
    ] {
        let mut endpoint = json!({"port": "metrics", "scheme": scheme, "honorLabels": true});
        if scheme == "https" {
            endpoint["tlsConfig"] = json!({"insecureSkipVerify": true});
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/runbooks");
        let pages: BTreeSet<String> = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let alerts: BTreeSet<String> = ALERTS.iter().map(|one| one.name.to_owned()).collect();
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
                assert!(known || RECORDS.iter().any(|(name, _)| *name == word), "{expression}: {word}");
            }
        }
        assert!(count > 15, "{count}");
    }

    #[test]
    fn rules_can_be_chosen_by_name() {
        let count = |allowed: &Allowed| {
            let groups = objects("ns", allowed)[0]["spec"]["groups"].clone();
            [0, 1].map(|group: usize| groups[group]["rules"].as_array().unwrap().len())
        };
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(count(&Allowed::default()), [RECORDS.len(), ALERTS.len()]);
        let one = Allowed { alerts: list(&["VirtAPIDown"]), records: list(&["none"]) };
        assert_eq!(count(&one), [0, 1]);
    }

    #[test]
    fn expressions_name_the_namespace_and_records_that_exist() {
        for one in &ALERTS {
            for word in one.expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':') {
                let record = word.starts_with("kubevirt_") && word.ends_with("_up");
                assert!(!record || RECORDS.iter().any(|(name, _)| *name == word), "{}: {word}", one.name);
            }
        }
        assert!(!objects("ns", &Allowed::default())[0].to_string().contains("'NS'"));
    }
}
