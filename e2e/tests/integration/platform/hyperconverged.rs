//! `HyperConverged`: its children, what others change of them, what is refused and what is taken.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::Resource;
use e2e::platform;
use e2e::volume::Volume;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use operator::install::Settings;
use serde_json::{Value, json};

use crate::platform::machines::{create, mac};
use crate::platform::place::{CLAIMS, EVENTS, PLACE};
use crate::platform::webhooks;

/// Namespace of the platform.
const PLATFORM: &str = operator::defaults::NAMESPACE;
/// `HyperConverged` as kubectl names it.
pub(crate) const OBJECT: &str = "hyperconverged.hco.kubevirt.io/kubevirt-hyperconverged";
/// Its children, as kubectl names them.
const CHILDREN: [(&str, &str); 4] = [
    ("KubeVirt", "kubevirt.kubevirt.io/kubevirt-kubevirt-hyperconverged"),
    ("CDI", "cdi.cdi.kubevirt.io/cdi-kubevirt-hyperconverged"),
    ("NetworkAddonsConfig", "networkaddonsconfig.networkaddonsoperator.network.kubevirt.io/cluster"),
    ("SSP", "ssp.ssp.kubevirt.io/ssp-kubevirt-hyperconverged"),
];
/// Most time until a change of a child is undone.
const UNDONE: Duration = Duration::from_secs(2);

/// Tests that change the object, or look at its health, run one after the other.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn get(object: &str) -> Value {
    let text = PLACE.kubectl(&["-n", PLATFORM, "get", object, "-o", "json"]).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Conditions as `TYPE=STATUS`.
fn conditions(object: &Value) -> Vec<String> {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    all.iter().map(|one| format!("{}={}", word(&one["type"]), word(&one["status"]))).collect()
}

/// A metric of the operator, of the sample that has `label`.
pub(crate) fn metric(name: &str, label: &str) -> Option<u64> {
    let path = format!(
        "/api/v1/namespaces/{PLATFORM}/services/kubevirt-hyperconverged-operator-metrics:metrics/proxy/metrics"
    );
    // Other tests kill the operator.
    let page = PLACE.kubectl(&["get", "--raw", &path]).ok()?;
    let line = page.lines().find(|line| line.starts_with(name) && line.contains(label))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// How often events about `HyperConverged` with a reason, `Created` or `Overwritten`, name this child; `why` follows its name.
fn told(reason: &str, kind: &str, name: &str, why: &str) -> u64 {
    let (_, child) = name.split_once('/').unwrap();
    let message = format!("{reason} {kind} {child}{why}");
    let is_it = |event: &Value| {
        event["involvedObject"]["kind"] == "HyperConverged"
            && event["reason"] == reason
            && event["message"] == message.as_str()
    };
    // One that comes again is counted.
    let found = PLACE.list(EVENTS, PLATFORM).into_iter().filter(is_it);
    found.filter_map(|event| event["count"].as_u64()).sum()
}

/// End of such an event about a child that was made again.
const DELETED: &str = ": it had been deleted";

/// Waits until the operator has undone a change; the bar is [`UNDONE`].
#[track_caller]
fn until_undone(what: &str, mut undone: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    PLACE.until(PLATFORM, &format!("{what} is undone"), || undone().then_some(()));
    let time = begun.elapsed();
    assert!(time < e2e::bar(UNDONE), "{what}: {time:?}");
    time
}

#[test]
fn hyperconverged_has_upstreams_children_and_all_are_available() {
    let _alone = alone();
    let owner = PLACE.until(PLATFORM, "HyperConverged is healthy", || {
        Some(get(OBJECT)).filter(|owner| owner["status"]["systemHealthStatus"] == "healthy")
    });
    let all = conditions(&owner);
    for wanted in [
        "ReconcileComplete=True",
        "Available=True",
        "Progressing=False",
        "Degraded=False",
        "Upgradeable=True",
    ] {
        assert!(all.iter().any(|one| one == wanted), "{wanted}: {all:?}");
    }
    let version = owner["status"]["versions"][0]["version"].clone();
    assert!(version.is_string(), "{}", owner["status"]);
    for (kind, name) in CHILDREN {
        let child = get(name);
        let all = conditions(&child);
        for wanted in ["Available=True", "Progressing=False", "Degraded=False"] {
            assert!(all.iter().any(|one| one == wanted), "{kind} {wanted}: {all:?}");
        }
        let observed = if kind == "KubeVirt" { "observedKubeVirtVersion" } else { "observedVersion" };
        assert_eq!(child["status"][observed], version, "{kind}");
        assert_eq!(child["metadata"]["labels"]["app"], "kubevirt-hyperconverged", "{kind}");
        let related = owner["status"]["relatedObjects"].as_array().unwrap();
        let own = related.iter().find(|one| one["kind"] == kind && one["uid"] == child["metadata"]["uid"]);
        assert!(own.is_some(), "{kind}: {related:?}");
    }
}

#[test]
fn network_addons_are_deployed_and_the_pools_range_is_kept() {
    let _alone = alone();
    let config = get(CHILDREN[2].1);
    let containers = config["status"]["containers"].as_array().unwrap();
    let names: Vec<&str> = containers.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["virt-handler", "network-plugins", "manager"]);
    let range = get("configmap/kubemacpool-mac-range-config")["data"].clone();
    let kept = get("configmap/cluster-networks-addons-operator-applied-cluster");
    let kept: Value = serde_json::from_str(kept["data"]["applied"].as_str().unwrap()).unwrap();
    assert_eq!(
        kept["kubeMacPool"],
        json!({"rangeStart": range["RANGE_START"], "rangeEnd": range["RANGE_END"]})
    );
    let namespace = "mac-range";
    PLACE.namespace(namespace);
    create(namespace, "vm", "Always", 0);
    PLACE.until_status(namespace, "vm", "Running");
    let mac = mac(namespace, "vm");
    let prefix = &range["RANGE_START"].as_str().unwrap()[..8];
    assert!(mac.as_str().unwrap().starts_with(prefix), "{mac} of {range}");
    PLACE.remove_namespace(namespace);
    let deployment = get("deployment/kubemacpool-mac-controller-manager");
    let owner = &deployment["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("NetworkAddonsConfig"), &config["metadata"]["uid"]));
    assert_eq!(deployment["spec"]["replicas"], 1, "one node takes pods");
    assert_eq!(metric("kubevirt_cnao_cr_ready", ""), Some(1));
    assert_eq!(metric("kubevirt_cnao_cr_kubemacpool_deployed", ""), Some(1));
    // Only VMs are attached to networks here.
    let all = conditions(&get(CHILDREN[2].1));
    assert!(all.iter().any(|one| one == "ferrovirt.io/MultusForVMsOnly=True"), "{all:?}");
    // An object of another name.
    let other = "networkaddonsconfig.networkaddonsoperator.network.kubevirt.io/other";
    let object = json!({"apiVersion": config["apiVersion"], "kind": config["kind"], "metadata": {"name": "other"},
        "spec": {"kubeMacPool": {}}});
    let file = PLACE.cluster.place().path("other.json");
    std::fs::write(&file, object.to_string()).unwrap();
    PLACE.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    PLACE.until(PLATFORM, "the object of another name is refused", || {
        let all = get(other)["status"]["conditions"].as_array().cloned()?;
        let degraded = all.into_iter().find(|one| one["type"] == "Degraded" && one["status"] == "True")?;
        degraded["message"].as_str()?.contains("\"other\" is ignored").then_some(())
    });
    PLACE.kubectl(&["delete", other]).unwrap();
    assert_eq!(metric("kubevirt_cnao_cr_ready", ""), Some(1));
}

#[test]
fn changes_of_children_by_others_are_undone_and_patches_of_annotations_stay() {
    let _alone = alone();
    // Fields that change nothing of the guests of other tests.
    for (index, patch, pointer) in [
        (0, json!({"spec": {"productName": "edited"}}), "/spec/productName"),
        (1, json!({"spec": {"priorityClass": "edited"}}), "/spec/priorityClass"),
        (
            2,
            json!({"spec": {"placementConfiguration": {"workloads": {"nodeSelector": {"edited": "true"}}}}}),
            "/spec/placementConfiguration/workloads",
        ),
        (3, json!({"spec": {"templateValidator": {"replicas": 7}}}), "/spec/templateValidator/replicas"),
    ] {
        let (kind, name) = CHILDREN[index];
        let before = get(name).pointer(pointer).cloned();
        let label = format!("\"{}/", kind.to_lowercase());
        let counted = || metric("kubevirt_hco_out_of_band_modifications_total", &label).unwrap_or(0);
        let edits = || told("Overwritten", kind, name, "");
        let (count, before_edit) = (counted(), edits());
        PLACE.kubectl(&["-n", PLATFORM, "patch", name, "--type=merge", "-p", &patch.to_string()]).unwrap();
        let time = until_undone(&format!("edit of {kind}"), || get(name).pointer(pointer).cloned() == before);
        println!("edit of {kind} -> undone: {time:?}");
        PLACE.until(PLATFORM, "the metric counts it", || (counted() > count).then_some(()));
        PLACE.until(PLATFORM, &format!("an event about the edit of {kind}"), || {
            (edits() > before_edit).then_some(())
        });
    }
    let (kind, name) = CHILDREN[3];
    let uid = get(name)["metadata"]["uid"].clone();
    let label = format!("\"{}/", kind.to_lowercase());
    let counted = || metric("kubevirt_hco_out_of_band_modifications_total", &label).unwrap_or(0);
    let events = || (told("Overwritten", kind, name, DELETED), told("Created", kind, name, ""));
    let (count, before) = (counted(), events());
    PLACE.kubectl(&["-n", PLATFORM, "delete", name, "--wait=false"]).unwrap();
    let time = until_undone(&format!("deletion of {kind}"), || {
        let found = PLACE.kubectl(&["-n", PLATFORM, "get", name, "-o", "jsonpath={.metadata.uid}"]);
        found.is_ok_and(|found| uid != found.as_str())
    });
    println!("deletion of {kind} -> undone: {time:?}");
    PLACE.until(PLATFORM, "the metric counts the deletion", || (counted() > count).then_some(()));
    PLACE.until(PLATFORM, &format!("events about the deletion of {kind}"), || {
        let now = events();
        (now.0 > before.0 && now.1 > before.1).then_some(())
    });
    patches_of_annotations_are_applied_and_reported();
}

/// The patch of an annotation is applied to its child, and named in a condition while it is there.
fn patches_of_annotations_are_applied_and_reported() {
    let (_, name) = CHILDREN[3];
    let replicas = || get(name)["spec"]["templateValidator"]["replicas"].clone();
    let before = replicas();
    let tainted = || conditions(&get(OBJECT)).iter().any(|one| one == "TaintedConfiguration=True");
    assert!(!tainted());
    let patch = r#"ssp.kubevirt.io/jsonpatch=[{"op": "replace", "path": "/spec/templateValidator/replicas", "value": 3}]"#;
    PLACE.kubectl(&["-n", PLATFORM, "annotate", OBJECT, patch]).unwrap();
    PLACE.until(PLATFORM, "the patch is applied", || (replicas() == 3 && tainted()).then_some(()));
    assert_eq!(metric("kubevirt_hco_unsafe_modifications", "ssp.kubevirt.io/jsonpatch"), Some(1));
    PLACE.kubectl(&["-n", PLATFORM, "annotate", OBJECT, "ssp.kubevirt.io/jsonpatch-"]).unwrap();
    PLACE.until(PLATFORM, "the patch is undone", || (replicas() == before && !tainted()).then_some(()));
    // A network component that is not deployed is named, by both objects.
    let degraded = |name: &str| {
        let all = get(name)["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let one = all.into_iter().find(|one| one["type"] == "Degraded" && one["status"] == "True")?;
        Some(one["message"].as_str().unwrap_or_default().to_owned())
    };
    let annotation = "networkaddonsconfigs.kubevirt.io/jsonpatch";
    let patch = format!(r#"{annotation}=[{{"op": "add", "path": "/spec/ovs", "value": {{}}}}]"#);
    PLACE.kubectl(&["-n", PLATFORM, "annotate", OBJECT, &patch]).unwrap();
    for name in [CHILDREN[2].1, OBJECT] {
        PLACE.until(PLATFORM, &format!("{name} is degraded"), || {
            // Other tests replace pods, which degrades it too.
            degraded(name)?.contains("spec.ovs: the Open vSwitch plugin is not deployed").then_some(())
        });
    }
    for (reason, text) in
        [("Modified", "Config spec was modified"), ("Failed", "Operator failed: spec.ovs: ")]
    {
        PLACE.until(PLATFORM, &format!("the event {reason}"), || {
            let about = format!("involvedObject.kind=NetworkAddonsConfig,reason={reason}");
            let words = ["get", "events", "-A", "-o", "jsonpath={.items[*].message}", "--field-selector"];
            let printed = PLACE.kubectl(&[&words[..], &[&about]].concat()).unwrap();
            printed.contains(text).then_some(())
        });
    }
    PLACE.kubectl(&["-n", PLATFORM, "annotate", OBJECT, &format!("{annotation}-")]).unwrap();
    for name in [CHILDREN[2].1, OBJECT] {
        PLACE.until(PLATFORM, "it recovers", || degraded(name).is_none().then_some(()));
    }
}

/// Asks the API server for a `HyperConverged` by a dry run of server-side apply.
fn dry_run(version: &str, annotations: &Value, spec: &Value) -> Result<(), String> {
    let kind = GroupVersionKind::gvk("hco.kubevirt.io", version, "HyperConverged");
    let resource = ApiResource::from_gvk_with_plural(&kind, "hyperconvergeds");
    let api: Api<DynamicObject> = Api::namespaced_with(PLACE.cluster.client(), PLATFORM, &resource);
    let params = PatchParams { dry_run: true, ..PatchParams::apply("e2e").force() };
    let object = json!({
        "apiVersion": format!("hco.kubevirt.io/{version}"),
        "kind": "HyperConverged",
        "metadata": {"name": "kubevirt-hyperconverged", "annotations": annotations},
        "spec": spec,
    });
    let answer = PLACE.cluster.run(api.patch("kubevirt-hyperconverged", &params, &Patch::Apply(&object)));
    answer.map(drop).map_err(|error| error.to_string())
}

/// Invalid objects: version, path of the field that the refusal names, spec.
fn invalid() -> Vec<(&'static str, &'static str, Value)> {
    let required = "spec.deployment.nodePlacements.workload.affinity.nodeAffinity.\
                    requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let term = |expression: Value| {
        json!({"deployment": {"nodePlacements": {"workload": {"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}}}})
    };
    let security = |field: &str, value: Value| json!({"security": {field: value}});
    let certificates = |value: Value| security("certConfig", value);
    let tls = |value: Value| security("tlsSecurityProfile", value);
    let networking = |field: &str, value: Value| json!({"networking": {field: value}});
    let storage = |field: &str, value: Value| json!({"storage": {field: value}});
    let guests = |field: &str, value: Value| json!({"virtualization": {field: value}});
    let range = |value: Value| networking("kubeMacPoolConfiguration", value);
    let sources = |field: &str, value: Value| json!({"workloadSources": {field: value}});
    let infra = |value: Value| json!({"deployment": {"nodePlacements": {"infra": value}}});
    vec![
        ("v1", "spec.featureGates", json!({"featureGates": [{"name": "a"}, {"name": "A"}]})),
        ("v1", "spec.featureGates", json!({"featureGates": [{"state": "Enabled"}]})),
        ("v1", "spec.featureGates[0].state", json!({"featureGates": [{"name": "a", "state": "On"}]})),
        ("v1", "spec.security.certConfig.ca.duration", certificates(json!({"ca": {"duration": "5m"}}))),
        ("v1", "spec.security.certConfig.ca.duration", certificates(json!({"ca": {"duration": "long"}}))),
        (
            "v1",
            "spec.security.certConfig.ca.renewBefore",
            certificates(json!({"ca": {"renewBefore": "72h"}})),
        ),
        (
            "v1",
            "spec.security.certConfig.server.duration",
            certificates(json!({"server": {"duration": "96h"}})),
        ),
        (
            "v1",
            "spec.security.certConfig.server.renewBefore",
            certificates(json!({"server": {"renewBefore": "48h"}})),
        ),
        ("v1", "spec.security.tlsSecurityProfile.custom", tls(json!({"type": "Custom"}))),
        ("v1", "spec.security.tlsSecurityProfile.type", tls(json!({"type": "Ancient"}))),
        (
            "v1",
            "spec.security.tlsSecurityProfile.custom.ciphers",
            tls(json!({"type": "Custom", "custom":
                {"minTLSVersion": "VersionTLS13", "ciphers": ["ECDHE-RSA-AES128-GCM-SHA256"]}})),
        ),
        (
            "v1",
            "spec.security.tlsSecurityProfile.custom.ciphers",
            tls(json!({"type": "Custom", "custom":
                {"minTLSVersion": "VersionTLS12", "ciphers": ["ECDHE-RSA-AES256-GCM-SHA384"]}})),
        ),
        (
            "v1",
            "spec.security.tlsSecurityProfile.custom.minTLSVersion",
            tls(json!({"type": "Custom", "custom": {"ciphers": ["ECDHE-RSA-AES128-GCM-SHA256"]}})),
        ),
        ("v1", "spec.deployment.uninstallStrategy", json!({"deployment": {"uninstallStrategy": "Maybe"}})),
        (
            "v1",
            "spec.deployment.nodePlacements.infra.tolerations[0].effect",
            infra(json!({"tolerations": [{"key": "a", "effect": "Never"}]})),
        ),
        (
            "v1",
            "spec.deployment.nodePlacements.infra.nodeSelector[a b]",
            infra(json!({"nodeSelector": {"a b": "c"}})),
        ),
        ("v1", required, term(json!({"key": "a", "operator": "Like", "values": ["b"]}))),
        ("v1", required, term(json!({"key": "a", "operator": "Exists", "values": ["b"]}))),
        ("v1", required, term(json!({"key": "a", "operator": "Gt", "values": ["b"]}))),
        (
            "v1",
            "spec.networking.kubeSecondaryDNSNameServerIP",
            networking("kubeSecondaryDNSNameServerIP", json!("here")),
        ),
        ("v1", "spec.networking.kubeMacPoolConfiguration", range(json!({"rangeStart": "02:00:00:00:00:00"}))),
        (
            "v1",
            "spec.networking.kubeMacPoolConfiguration.rangeStart",
            range(json!({"rangeStart": "first", "rangeEnd": "02:00:00:00:00:00"})),
        ),
        (
            "v1",
            "spec.networking.kubeMacPoolConfiguration.rangeEnd",
            range(json!({"rangeStart": "02:00:00:00:00:01", "rangeEnd": "02:00:00:00:00:00"})),
        ),
        (
            "v1",
            "spec.networking.kubeMacPoolConfiguration.rangeStart",
            range(json!({"rangeStart": "01:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:00"})),
        ),
        (
            "v1",
            "spec.observability.allowedAlerts",
            json!({"observability": {"allowedAlerts": ["none", "a"]}}),
        ),
        (
            "v1",
            "spec.storage.filesystemOverhead.global",
            storage("filesystemOverhead", json!({"global": "1.5"})),
        ),
        (
            "v1",
            "spec.storage.filesystemOverhead.storageClass[a]",
            storage("filesystemOverhead", json!({"storageClass": {"a": "2"}})),
        ),
        (
            "v1",
            "spec.storage.storageImport.insecureRegistries[0]",
            storage("storageImport", json!({"insecureRegistries": ["http://registry/path"]})),
        ),
        (
            "v1",
            "spec.storage.workloadResourceRequirements.requests[memory]",
            storage(
                "workloadResourceRequirements",
                json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
            ),
        ),
        ("v1", "spec.virtualization.evictionStrategy", guests("evictionStrategy", json!("Sometimes"))),
        (
            "v1",
            "spec.virtualization.higherWorkloadDensity.memoryOvercommitPercentage",
            guests("higherWorkloadDensity", json!({"memoryOvercommitPercentage": 5})),
        ),
        (
            "v1",
            "spec.virtualization.hypervisors",
            guests("hypervisors", json!([{"name": "kvm"}, {"name": "hyperv-direct"}])),
        ),
        (
            "v1",
            "spec.virtualization.liveMigrationConfig.bandwidthPerMigration",
            guests("liveMigrationConfig", json!({"bandwidthPerMigration": "fast"})),
        ),
        (
            "v1",
            "spec.virtualization.liveMigrationConfig.parallelMigrationsPerCluster",
            guests("liveMigrationConfig", json!({"parallelMigrationsPerCluster": 0})),
        ),
        (
            "v1",
            "spec.virtualization.workloadUpdateStrategy.workloadUpdateMethods[0]",
            guests("workloadUpdateStrategy", json!({"workloadUpdateMethods": ["Restart"]})),
        ),
        (
            "v1",
            "spec.virtualization.workloadUpdateStrategy.batchEvictionInterval",
            guests(
                "workloadUpdateStrategy",
                json!({"workloadUpdateMethods": [], "batchEvictionInterval": "soon"}),
            ),
        ),
        (
            "v1",
            "spec.virtualization.permittedHostDevices.pciHostDevices[0].pciDeviceSelector",
            guests(
                "permittedHostDevices",
                json!({"pciHostDevices": [{"pciDeviceSelector": "gpu", "resourceName": "vendor.com/gpu"}]}),
            ),
        ),
        (
            "v1",
            "spec.virtualization.permittedHostDevices.mediatedDevices[0].resourceName",
            guests(
                "permittedHostDevices",
                json!({"mediatedDevices": [{"mdevNameSelector": "a", "resourceName": "gpu"}]}),
            ),
        ),
        ("v1", "spec.virtualization.vmiCPUAllocationRatio", guests("vmiCPUAllocationRatio", json!(0))),
        ("v1", "spec.virtualization.tuningPolicy", guests("tuningPolicy", json!("annotation"))),
        ("v1", "spec.virtualization.obsoleteCPUModels[0]", guests("obsoleteCPUModels", json!([" "]))),
        (
            "v1",
            "spec.workloadSources.commonTemplatesNamespace",
            sources("commonTemplatesNamespace", json!("A_B")),
        ),
        (
            "v1",
            "spec.workloadSources.dataImportCronTemplates[0].spec",
            sources("dataImportCronTemplates", json!([{"metadata": {"name": "a"}}])),
        ),
        ("v1", "spec.unheardOf", json!({"unheardOf": true})),
        ("v1beta1", "spec.certConfig.ca.duration", json!({"certConfig": {"ca": {"duration": "5m"}}})),
        ("v1beta1", "spec.evictionStrategy", json!({"evictionStrategy": "Sometimes"})),
        ("v1beta1", "spec.defaultCPUModel", json!({"defaultCPUModel": {"name": "Haswell"}})),
        (
            "v1beta1",
            "spec.workloadUpdateStrategy.batchEvictionSize",
            json!({"workloadUpdateStrategy": {"workloadUpdateMethods": [], "batchEvictionSize": 0}}),
        ),
        (
            "v1beta1",
            "spec.kubeMacPoolConfiguration.rangeEnd",
            json!({"kubeMacPoolConfiguration":
                {"rangeStart": "02:00:00:00:00:01", "rangeEnd": "02:00:00:00:00:00"}}),
        ),
    ]
}

#[test]
fn invalid_objects_are_refused_with_the_path_of_the_field() {
    let all = invalid();
    assert!(all.len() >= 40, "{}", all.len());
    let mut wrong = Vec::new();
    let mut check = |version: &str, path: &str, answer: Result<(), String>| match answer {
        Ok(()) => wrong.push(format!("{version} {path}: taken")),
        Err(said) if said.contains(path) => {}
        Err(said) => wrong.push(format!("{version} {path}: {said}")),
    };
    for (version, path, spec) in &all {
        check(version, path, dry_run(version, &json!({}), spec));
    }
    for text in ["x", r#"[{"op": "add", "path": "/metadata/name", "value": "b"}]"#] {
        let annotations = json!({"kubevirt.kubevirt.io/jsonpatch": text});
        let path = "metadata.annotations[kubevirt.kubevirt.io/jsonpatch]";
        check("v1", path, dry_run("v1", &annotations, &json!({})));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len() + 2, wrong.join("\n"));
    // A second object, and one elsewhere.
    for (name, namespace, path) in
        [("another", PLATFORM, "metadata.name"), ("kubevirt-hyperconverged", "default", "metadata.namespace")]
    {
        let file = PLACE.cluster.place().path("misplaced.yaml");
        let text = format!(
            "apiVersion: hco.kubevirt.io/v1\nkind: HyperConverged\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
        );
        std::fs::write(&file, text).unwrap();
        let said = PLACE.kubectl(&["create", "--dry-run=server", "-f", file.to_str().unwrap()]).unwrap_err();
        assert!(said.contains(path), "{said}");
    }
}

/// Valid objects, as administrators write them: version and spec.
fn valid() -> Vec<(&'static str, Value)> {
    let cron = json!({
        "metadata": {"name": "debian", "annotations": {"dataimportcrontemplate.kubevirt.io/enable": "true"}},
        "spec": {
            "schedule": "0 */12 * * *",
            "managedDataSource": "debian",
            "garbageCollect": "Outdated",
            "template": {"spec": {
                "source": {"registry": {"url": "docker://quay.io/containerdisks/debian:12"}},
                "storage": {"resources": {"requests": {"storage": "10Gi"}}},
            }},
        },
    });
    let placement = json!({
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "node-role.kubernetes.io/infra", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]}}},
    });
    let devices = json!({
        "pciHostDevices": [{"pciDeviceSelector": "10DE:1EB8", "resourceName": "nvidia.com/TU104GL_Tesla_T4",
            "externalResourceProvider": true}],
        "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}],
        "usbHostDevices": [{"resourceName": "kubevirt.io/key",
            "selectors": [{"vendor": "46f4", "product": "0001"}]}],
    });
    let certificates = json!({"ca": {"duration": "720h0m0s", "renewBefore": "360h0m0s"},
        "server": {"duration": "72h0m0s", "renewBefore": "24h0m0s"}});
    let migration = json!({"parallelMigrationsPerCluster": 8, "parallelOutboundMigrationsPerNode": 2,
        "bandwidthPerMigration": "64Mi", "completionTimeoutPerGiB": 150, "progressTimeout": 200,
        "network": "migration", "allowAutoConverge": true, "allowPostCopy": false});
    let updates = json!({"workloadUpdateMethods": ["LiveMigrate", "Evict"], "batchEvictionSize": 5,
        "batchEvictionInterval": "5m0s"});
    let custom = json!({"type": "Custom", "custom": {"minTLSVersion": "VersionTLS12",
        "ciphers": ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"]}});
    let range = json!({"rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:ff:ff:ff"});
    vec![
        ("v1", json!({})),
        (
            "v1",
            json!({"featureGates": [{"name": "downwardMetrics"}, {"name": "alignCPUs", "state": "Disabled"}]}),
        ),
        ("v1", json!({"security": {"certConfig": certificates}})),
        ("v1", json!({"security": {"tlsSecurityProfile": custom}})),
        ("v1", json!({"security": {"tlsSecurityProfile": {"type": "Modern", "modern": {}}}})),
        (
            "v1",
            json!({"deployment": {"nodePlacements": {"infra": placement, "workload": placement},
                "uninstallStrategy": "RemoveWorkloads",
                "logVerbosityConfig": {"cdi": 3, "kubevirt": {"virtHandler": 5, "virtLauncher": 6}}}}),
        ),
        ("v1", json!({"networking": {"kubeMacPoolConfiguration": range}})),
        (
            "v1",
            json!({"storage": {"vmStateStorageClass": "hostpath-csi",
                "filesystemOverhead": {"global": "0.055", "storageClass": {"hostpath-csi": "0.1"}},
                "storageImport": {"insecureRegistries": ["registry.local:5000"]},
                "workloadResourceRequirements": {"limits": {"cpu": "2", "memory": "2Gi"},
                    "requests": {"cpu": "100m", "memory": "600Mi"}}}}),
        ),
        (
            "v1",
            json!({"virtualization": {"liveMigrationConfig": migration, "workloadUpdateStrategy": updates,
                "evictionStrategy": "LiveMigrateIfPossible"}}),
        ),
        ("v1", json!({"virtualization": {"permittedHostDevices": devices}})),
        (
            "v1",
            json!({"virtualization": {"higherWorkloadDensity": {"memoryOvercommitPercentage": 150},
                "ksmConfiguration": {"nodeLabelSelector": {}}, "vmiCPUAllocationRatio": 16,
                "liveUpdateConfiguration": {"maxCpuSockets": 8, "maxGuest": "64Gi", "maxHotplugRatio": 4},
                "obsoleteCPUModels": ["Conroe", "Penryn"],
                "virtualMachineOptions": {"defaultCPUModel": "Haswell-noTSX", "disableSerialConsoleLog": true}}}),
        ),
        (
            "v1",
            json!({"workloadSources": {"commonInstancetypesDeployment": {"enabled": true},
                "enableCommonBootImageImport": false, "commonBootImageNamespace": "images",
                "dataImportCronTemplates": [cron]}}),
        ),
        (
            "v1",
            json!({"observability": {"allowedAlerts": ["none"],
                "allowedRecordingRules": ["kubevirt_virt_handler_up"]}}),
        ),
        ("v1beta1", json!({})),
        (
            "v1beta1",
            json!({"infra": {"nodePlacement": placement}, "workloads": {"nodePlacement": placement},
                "certConfig": certificates, "uninstallStrategy": "BlockUninstallIfWorkloadsExist"}),
        ),
        (
            "v1beta1",
            json!({"featureGates": {"downwardMetrics": true, "persistentReservation": false},
                "liveMigrationConfig": migration, "workloadUpdateStrategy": updates}),
        ),
        // As HCO 1.10 takes them.
        (
            "v1beta1",
            json!({"featureGates": {"withHostPassthroughCPU": true, "deployTektonTaskResources": true,
                "nonRoot": true, "enableCommonBootImageImport": true},
                "localStorageClassName": "hostpath-csi", "vddkInitImage": "registry.local:5000/vddk:8",
                "permittedHostDevices": devices}),
        ),
        (
            "v1beta1",
            json!({"tektonPipelinesNamespace": "pipelines", "tektonTasksNamespace": "tasks",
                "commonTemplatesNamespace": "templates", "commonBootImageNamespace": "images",
                "dataImportCronTemplates": [cron], "kubeMacPoolConfiguration": range}),
        ),
        (
            "v1beta1",
            json!({"mediatedDevicesConfiguration": {"mediatedDevicesTypes": ["nvidia-231"],
                "nodeMediatedDeviceTypes": [{"nodeSelector": {"kubernetes.io/hostname": "gpu"},
                    "mediatedDevicesTypes": ["nvidia-230"]}]},
                "obsoleteCPUs": {"cpuModels": ["Opteron_G2"], "minCPUModel": "Penryn"},
                "defaultCPUModel": "Haswell-noTSX"}),
        ),
        (
            "v1beta1",
            json!({"tlsSecurityProfile": custom, "evictionStrategy": "None",
                "higherWorkloadDensity": {"memoryOvercommitPercentage": 120},
                "obsoleteCPUs": {"cpuModels": ["Conroe"]}, "ksmConfiguration": {"nodeLabelSelector": {}},
                "logVerbosityConfig": {"kubevirt": {"virtController": 4}}}),
        ),
    ]
}

#[test]
fn valid_objects_of_both_versions_are_taken() {
    let all = valid();
    assert_eq!(all.len(), 20);
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|(version, spec)| {
            let said = dry_run(version, &json!({}), spec).err()?;
            Some(format!("{version} {spec}: {said}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Applies each valid object in turn, and waits until it is observed and all children are available. The object is then as
/// before.
pub(crate) fn valid_objects_become_available() {
    let _alone = alone();
    let write = |version: &str, spec: &Value| {
        let object = format!("hyperconvergeds.{version}.hco.kubevirt.io/kubevirt-hyperconverged");
        let patch = json!([{"op": "add", "path": "/spec", "value": spec}]).to_string();
        PLACE.kubectl(&["-n", PLATFORM, "patch", &object, "--type=json", "-p", &patch]).unwrap();
    };
    let before = get(OBJECT)["spec"].clone();
    let all = valid().into_iter().chain([("v1", before)]);
    for (version, spec) in all {
        write(version, &spec);
        let begun = Instant::now();
        PLACE.until(PLATFORM, &format!("{version} {spec} is available"), || {
            let object = get(OBJECT);
            let seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            let all = conditions(&object);
            let holds = |one: &str| all.iter().any(|other| other == one);
            let wanted = ["ReconcileComplete=True", "Available=True", "Progressing=False", "Degraded=False"];
            (seen && wanted.into_iter().all(holds)).then_some(())
        });
        println!("{version} {spec}: {:?}", begun.elapsed());
    }
}

/// Deletes every child, which must have no workloads. When one is gone it is made again at once, and works.
pub(crate) fn deleted_children_come_back() {
    let _alone = alone();
    for (kind, name) in CHILDREN {
        let uid = || {
            let words = ["get", name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"];
            PLACE.kubectl(&[&["-n", PLATFORM][..], &words].concat()).unwrap()
        };
        let label = format!("\"{}/", kind.to_lowercase());
        let counted = || metric("kubevirt_hco_out_of_band_modifications_total", &label).unwrap_or(0);
        let events = || told("Overwritten", kind, name, DELETED);
        let (before, count, before_deletion) = (uid(), counted(), events());
        PLACE.kubectl(&["-n", PLATFORM, "delete", name, "--wait=false"]).unwrap();
        // The time in which its finalizers hold it does not count.
        let mut seen = Instant::now();
        PLACE.until(PLATFORM, &format!("{kind} is there again"), || {
            let now = uid();
            if now == before {
                seen = Instant::now();
            }
            (now != before && !now.is_empty()).then_some(())
        });
        let time = seen.elapsed();
        println!("deletion of {kind} -> made again: {time:?}");
        assert!(time < e2e::bar(UNDONE), "{kind}: {time:?}");
        PLACE.until(PLATFORM, &format!("the metric counts the deletion of {kind}"), || {
            (counted() > count).then_some(())
        });
        PLACE.until(PLATFORM, &format!("an event about the deletion of {kind}"), || {
            (events() > before_deletion).then_some(())
        });
        PLACE.until(PLATFORM, &format!("{kind} is available again"), || {
            conditions(&get(name)).iter().any(|one| one == "Available=True").then_some(())
        });
    }
}

/// A path of the downloads, by the API server's proxy.
fn download(path: &str) -> std::process::Output {
    let service = "hyperconverged-cluster-cli-download:http";
    let path = format!("/api/v1/namespaces/{PLATFORM}/services/{service}/proxy/{path}");
    PLACE.cluster.kubectl().args(["get", "--raw", &path]).output().unwrap()
}

#[test]
fn machines_are_accepted_while_the_mac_pool_is_replaced() {
    let _alone = alone();
    let (deployment, label) = ("kubemacpool-mac-controller-manager", "control-plane=mac-controller-manager");
    webhooks::accepted_while_replaced(deployment, label);
}

#[test]
fn clients_are_downloaded_from_inside_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let own = download(api::downloads::OWN);
    assert!(own.status.success(), "{}", String::from_utf8_lossy(&own.stderr));
    let archive = folder.path().join("virtctl.tar.gz");
    std::fs::write(&archive, &own.stdout).unwrap();
    let unpacked =
        std::process::Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()).status();
    assert!(unpacked.unwrap().success());
    let run = std::process::Command::new(folder.path().join("virtctl"))
        .arg("--kubeconfig")
        .arg(PLACE.cluster.kubeconfig())
        .arg("version")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    println!("{}: {} bytes", api::downloads::OWN, own.stdout.len());
    let list = String::from_utf8(download("").stdout).unwrap();
    assert_eq!(list, format!("/{}\n", api::downloads::OWN));
    // A file that the administrator did not supply is refused with the way to supply it.
    let missing = download("arm64/mac/virtctl.zip");
    let why = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && why.contains("(NotFound)"), "{why}");
}

/// The platform is installed again with a claim that has a client for another system, which is downloaded then, and without it.
pub(crate) fn supplied_clients_are_downloaded() {
    const MAC: &str = "arm64/mac/virtctl.zip";
    let _alone = alone();
    let volume = Volume::filesystem(&PLACE.cluster, PLATFORM, "clients", 1 << 20).unwrap();
    let file = volume.path().join(MAC);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "supplied").unwrap();
    let install = |settings: &Settings| {
        platform::install(&PLACE.cluster, settings).unwrap();
        let rollout = ["rollout", "status", "deployment/cdi-uploadproxy", "--timeout=3m"];
        PLACE.kubectl(&[&["-n", PLATFORM][..], &rollout].concat()).unwrap();
    };
    install(&Settings { clients_claim: "clients".to_owned(), ..platform::settings() });
    PLACE.until(PLATFORM, "the client is downloaded", || {
        let got = download(MAC);
        (got.status.success() && got.stdout == b"supplied").then_some(())
    });
    let list = String::from_utf8(download("").stdout).unwrap();
    assert_eq!(list, format!("/{}\n/{MAC}\n", api::downloads::OWN));
    assert!(download(api::downloads::OWN).status.success());
    install(&platform::settings());
    PLACE.until(PLATFORM, "the client is gone", || (!download(MAC).status.success()).then_some(()));
    PLACE.delete(CLAIMS, PLATFORM, "clients");
}

#[test]
fn a_narrower_role_gives_its_verbs_and_no_others() {
    let namespace = "narrow-role";
    PLACE.namespace(namespace);
    let group = "rbac.authorization.k8s.io";
    let rule = json!({"apiGroups": ["subresources.kubevirt.io"], "resources": ["virtualmachines/start"], "verbs": ["update"]});
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": "starter"}, "rules": [rule]});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "starter"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "starter"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "narrow"}]});
    PLACE.create(Resource::namespaced("rbac.authorization.k8s.io", "v1", "roles"), namespace, &role);
    PLACE.create(
        Resource::namespaced("rbac.authorization.k8s.io", "v1", "rolebindings"),
        namespace,
        &binding,
    );
    let body = PLACE.cluster.place().path("narrow.json");
    std::fs::write(&body, "{}").unwrap();
    let put = |verb: &str| {
        let path =
            format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/none/{verb}");
        PLACE.kubectl(&["--as=narrow", "replace", "--raw", &path, "-f", body.to_str().unwrap()]).unwrap_err()
    };
    // The authorizer learns of the role in a moment.
    PLACE.until(namespace, "the role is in effect", || put("start").contains("(NotFound)").then_some(()));
    let refused = put("stop");
    assert!(refused.contains("(Forbidden)"), "{refused}");
    let list = ["--as=narrow", "-n", namespace, "get", "virtualmachines.kubevirt.io"];
    let refused = PLACE.kubectl(&list).unwrap_err();
    assert!(refused.contains("(Forbidden)"), "{refused}");
    PLACE.remove_namespace(namespace);
}
