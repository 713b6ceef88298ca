//! Table tests of rendering, rules and status.

use std::time::Duration;

use api::duration;
use api::hyperconverged::v1::HyperConverged;
use api::hyperconverged::{API_VERSION, NAME, RelatedObject};
use serde_json::{Map, Value, json};

use super::input::plain;
use super::read::{Facts, NodeSeen};
use super::render::{Child, child};
use super::status::{ChildState, Situation, status};
use super::{check, effect, patch};
use crate::lifetimes;
use crate::platform::without;

fn facts() -> Facts {
    let node = NodeSeen { schedulable: true, control_plane: true, architecture: "amd64".to_owned() };
    Facts::of("ns", "1.0.0", &[node.clone(), node])
}

fn read(spec: impl Into<Value>) -> HyperConverged {
    let spec: Value = spec.into();
    let object = json!({"apiVersion": API_VERSION, "kind": "HyperConverged", "metadata": {"name": NAME}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

fn rendered(owner: &HyperConverged) -> Vec<Value> {
    let children = Child::ALL.map(|one| plain(&child(one, owner, &facts()).unwrap()["spec"]));
    children.into_iter().chain(super::render::monitoring(owner, &facts())).collect()
}

/// A value with every field of a schema; lists and maps have one entry.
fn full(schema: &Value) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        return choices.last().cloned().unwrap();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return json!("3Gi");
    }
    match schema["type"].as_str().unwrap() {
        "boolean" => json!(false),
        "integer" => json!(37),
        "number" => json!(3.5),
        "string" => json!("text"),
        "array" => json!([full(&schema["items"])]),
        "object" => {
            let mut object = Map::new();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                object.insert(name.clone(), full(field));
            }
            if schema["additionalProperties"].is_object() {
                object.insert("entry".to_owned(), full(&schema["additionalProperties"]));
            }
            Value::Object(object)
        }
        other => panic!("{other}"),
    }
}

/// Another value of the same schema.
fn other(value: &Value, schema: &Value) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        return choices.iter().find(|one| *one != value).cloned().unwrap_or_default();
    }
    match value {
        Value::Bool(on) => json!(!on),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| json!(number.as_f64().unwrap() + 1.0), |one| json!(one + 1))
        }
        Value::String(_) if schema["x-kubernetes-int-or-string"] == true => json!("5Gi"),
        Value::String(text) => json!(format!("{text}-more")),
        Value::Null | Value::Array(_) | Value::Object(_) => panic!("{value}"),
    }
}

/// Pointers and paths of all values that are neither lists nor objects, with their schemas.
fn leaves<'a>(
    value: &Value,
    schema: &'a Value,
    at: (String, String),
    found: &mut Vec<(String, String, &'a Value)>,
) {
    let (pointer, path) = at;
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let inner = &schema["properties"][name];
                let inner = if inner.is_null() { &schema["additionalProperties"] } else { inner };
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(field, inner, (format!("{pointer}/{name}"), path), found);
            }
        }
        Value::Array(list) => {
            for (index, item) in list.iter().enumerate() {
                leaves(item, &schema["items"], (format!("{pointer}/{index}"), path.clone()), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            found.push((pointer, path, schema));
        }
    }
}

/// Sets every field `enabled`.
fn switch_on(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    for (name, field) in fields {
        if name == "enabled" {
            *field = json!(true);
        } else {
            switch_on(field);
        }
    }
}

/// Paths of all fields that are no objects with fields.
fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(object) => {
            for (name, field) in object {
                let dot = if path.is_empty() { "" } else { "." };
                fields(field, &format!("{path}{dot}{name}"), found);
            }
        }
        None => found.push(path.to_owned()),
    }
}

#[test]
fn every_setting_changes_a_child_or_is_listed_as_without_effect() {
    let schema = api::schema::of::<HyperConverged>()["properties"]["spec"].clone();
    let mut base = full(&schema);
    base["virtualization"]["tuningPolicy"] = json!("annotation");
    base["security"]["tlsSecurityProfile"]["custom"]["ciphers"] = json!(["ECDHE-RSA-AES128-GCM-SHA256"]);
    base["observability"]["allowedAlerts"] = json!(["VirtAPIDown"]);
    base["observability"]["allowedRecordingRules"] = json!(["kubevirt_virt_api_up"]);
    base["featureGates"] = json!([{"name": "downwardMetrics", "state": "Enabled"}]);
    let with = |spec: &Value| {
        let mut owner = read(spec.clone());
        owner.metadata.annotations.insert(check::TUNING.to_owned(), r#"{"qps": 9, "burst": 10}"#.to_owned());
        owner
    };
    let before = rendered(&with(&base));
    let mut all = Vec::new();
    leaves(&base, &schema, (String::new(), String::new()), &mut all);
    assert!(all.len() > 150, "{}", all.len());
    let listed = |path: &str| {
        effect::WITHOUT.iter().any(|(one, _)| path == *one || path.starts_with(&format!("{one}.")))
    };
    let mut silent = Vec::new();
    for (pointer, path, schema) in all {
        let mut changed = base.clone();
        let place = changed.pointer_mut(&pointer).unwrap();
        *place = other(place, schema);
        let same = rendered(&with(&changed)) == before;
        if same && !listed(&path) {
            silent.push(path);
        }
    }
    assert!(silent.is_empty(), "settings without effect that are not listed: {silent:#?}");
    // A setting that reaches a child is read there, or the child names it; one that is switched off asks for nothing.
    let mut on = base.clone();
    switch_on(&mut on);
    let mut unread = Vec::new();
    for one in Child::ALL {
        let spec = child(one, &with(&on), &facts()).unwrap()["spec"].clone();
        let Some((_, read)) = without::READ.iter().find(|(kind, _)| *kind == one.kind()) else { continue };
        let named = without::effect(one, &spec);
        let paths: Vec<&str> = named.iter().filter_map(|path| path.strip_prefix("spec.")).collect();
        let mut set = Vec::new();
        fields(&spec, "", &mut set);
        let usual: Vec<Value> = super::render::usual()
            .into_iter()
            .filter(|(usual, _)| *usual == one)
            .map(|(_, spec)| spec)
            .collect();
        let is_usual = |path: &str| {
            let at = |spec: &Value| path.split('.').fold(spec.clone(), |value, step| value[step].clone());
            usual.iter().any(|usual| at(usual) == at(&spec))
        };
        let silent =
            |path: &&String| !without::below(read, path) && !without::below(&paths, path) && !is_usual(path);
        unread.extend(set.iter().filter(silent).map(|path| format!("{} {path}", one.kind())));
    }
    assert!(unread.is_empty(), "neither read nor named by the child: {unread:#?}");
    let reported = effect::ignored(&with(&base));
    for (path, _) in effect::WITHOUT.iter().filter(|(_, default)| *default == "null") {
        assert!(reported.contains(&format!("spec.{path}")), "{path} is not reported: {reported:?}");
    }
}

#[test]
fn every_setting_of_v1beta1_becomes_one_of_v1_or_is_named_as_without_effect() {
    let schema = api::schema::of::<api::hyperconverged::v1beta1::HyperConverged>();
    let schema = schema["properties"]["spec"].clone();
    let mut base = full(&schema);
    // Deprecated names give way to the ones in force when both are there.
    let devices = base["mediatedDevicesConfiguration"].as_object_mut().unwrap();
    devices.remove("mediatedDevicesTypes").unwrap();
    let node = devices["nodeMediatedDeviceTypes"][0].as_object_mut().unwrap();
    node.remove("mediatedDevicesTypes").unwrap();
    let converted = |spec: &Value| {
        let object = json!({"apiVersion": "hco.kubevirt.io/v1beta1", "kind": "HyperConverged",
            "metadata": {"name": NAME}, "spec": spec});
        api::hyperconverged::convert(&object, API_VERSION).unwrap()
    };
    let named = |object: &Value| effect::ignored(&serde_json::from_value(object.clone()).unwrap());
    let before = converted(&base);
    let mut all = Vec::new();
    leaves(&base, &schema, (String::new(), String::new()), &mut all);
    assert!(all.len() > 150, "{}", all.len());
    let mut silent = Vec::new();
    for (pointer, path, schema) in all {
        let mut changed = base.clone();
        let place = changed.pointer_mut(&pointer).unwrap();
        *place = other(place, schema);
        let after = converted(&changed);
        if after["spec"] != before["spec"] {
            continue;
        }
        let text = format!("spec.{path} (v1beta1)");
        if !named(&before).iter().any(|one| text.starts_with(one.trim_end_matches(" (v1beta1)"))) {
            silent.push(path);
        }
    }
    assert!(silent.is_empty(), "settings without effect that are not named: {silent:#?}");
}

#[test]
fn gates_switch_something_or_are_named() {
    use api::hyperconverged::{Gate, Stage};
    let with = |name: &str, state: &str| read(json!({"featureGates": [{"name": name, "state": state}]}));
    for gate in Gate::ALL {
        let [on, off] = ["Enabled", "Disabled"].map(|state| with(gate.name, state));
        let named = |owner: &HyperConverged| !effect::ignored(owner).is_empty();
        let switches = rendered(&on) != rendered(&off);
        // A gate that cannot be switched is named where it is asked to be otherwise.
        let expected = match gate.stage {
            Stage::Stable => (false, true),
            Stage::Removed => (true, false),
            Stage::Alpha | Stage::Beta | Stage::Deprecated => (named(&on), false),
        };
        assert_eq!((named(&on), named(&off)), expected, "{gate:?}");
        assert!(switches || named(&on) || named(&off), "{gate:?}");
    }
    // The API objectgraph reads its gate.
    assert!(effect::ignored(&with("objectGraph", "Enabled")).is_empty());
}

#[test]
fn children_have_only_fields_of_their_definitions() {
    let schema = api::schema::of::<HyperConverged>()["properties"]["spec"].clone();
    let mut base = full(&schema);
    base["virtualization"]["tuningPolicy"] = json!("annotation");
    let mut owner = read(base);
    owner.metadata.annotations.insert(check::TUNING.to_owned(), r#"{"qps": 9.5, "burst": 10}"#.to_owned());
    for one in Child::ALL {
        let Some(definition) = api::definition::ALL.iter().find(|definition| definition.kind == one.kind())
        else {
            assert_eq!(one, Child::Network, "{one:?} has no definition");
            continue;
        };
        let object = child(one, &owner, &facts()).unwrap();
        let schema = definition.schema();
        let differences = api::schema::mismatches(&object["spec"], &closed(&schema["properties"]["spec"]));
        assert!(differences.is_empty(), "{one:?}: {differences:#?}");
    }
}

/// The schema, with objects without any field closed, so that unknown fields are found.
fn closed(schema: &Value) -> Value {
    let mut schema = schema.clone();
    fn close(schema: &mut Value) {
        let Some(object) = schema.as_object_mut() else { return };
        if object.get("type") == Some(&json!("object"))
            && !object.contains_key("properties")
            && !object.contains_key("additionalProperties")
            && !object.contains_key("x-kubernetes-preserve-unknown-fields")
        {
            object.insert("properties".to_owned(), json!({}));
        }
        if let Some(fields) = object.get_mut("properties").and_then(Value::as_object_mut) {
            fields.values_mut().for_each(close);
        }
        for inner in ["items", "additionalProperties"] {
            if let Some(inner) = object.get_mut(inner) {
                close(inner);
            }
        }
    }
    close(&mut schema);
    schema
}

#[test]
fn an_empty_object_gives_the_defaults_of_the_platform() {
    let all = rendered(&read(json!({})));
    let [kubevirt, cdi, network, ssp] = &all[..4] else { panic!() };
    let developer = &kubevirt["configuration"]["developerConfiguration"];
    assert_eq!(
        developer["featureGates"],
        json!([
            "CPUManager",
            "DecentralizedLiveMigration",
            "DeclarativeHotplugVolumes",
            "HostDevices",
            "HypervStrictCheck",
            "KubevirtSeccompProfile",
            "Snapshot",
            "Template"
        ])
    );
    assert_eq!(developer["cpuAllocationRatio"], 10);
    assert_eq!(kubevirt["configuration"]["migrations"]["completionTimeoutPerGiB"], 20);
    assert_eq!(kubevirt["configuration"]["evictionStrategy"], "LiveMigrate");
    // Without the list devices of every plugin are permitted.
    assert_eq!(kubevirt["configuration"]["permittedHostDevices"], Value::Null);
    assert_eq!(kubevirt["configuration"]["network"]["defaultNetworkInterface"], "masquerade");
    assert_eq!(kubevirt["configuration"]["tlsConfiguration"]["minTLSVersion"], "VersionTLS12");
    assert_eq!(kubevirt["uninstallStrategy"], "BlockUninstallIfWorkloadsExist");
    assert_eq!(
        cdi["config"]["featureGates"],
        json!(["HonorWaitForFirstConsumer", "DataVolumeClaimAdoption"])
    );
    assert_eq!(cdi["certConfig"]["client"]["renewBefore"], "12h0m0s");
    assert_eq!(network["selfSignConfiguration"]["caOverlapInterval"], "24h0m0s");
    assert_eq!(ssp["commonTemplates"]["namespace"], "ns");
}

#[test]
fn certificates_are_renewed_daily_by_the_settings_of_an_empty_object() {
    let day = Duration::from_secs(24 * 3600);
    let all = rendered(&read(json!({})));
    let [kubevirt, cdi, network] = &all[..3] else { panic!() };
    let [server, client] = lifetimes::of_cdi(cdi);
    for lifetimes in [lifetimes::of_kubevirt(kubevirt), server, client] {
        assert!(lifetimes.intervals.cert_rotate <= day && lifetimes.raised.is_empty(), "{lifetimes:?}");
    }
    let pool = network["selfSignConfiguration"]["certRotateInterval"].as_str().unwrap();
    assert!(duration::parse(pool).is_some_and(|interval| interval <= day), "{pool}");
}

#[test]
fn children_have_upstreams_names_labels_and_place() {
    for (one, name, namespace, component) in [
        (Child::KubeVirt, "kubevirt-kubevirt-hyperconverged", json!("ns"), "compute"),
        (Child::Cdi, "cdi-kubevirt-hyperconverged", json!(null), "storage"),
        (Child::Network, "cluster", json!(null), "network"),
        (Child::Ssp, "ssp-kubevirt-hyperconverged", json!("ns"), "schedule"),
    ] {
        let metadata = child(one, &read(json!({})), &facts()).unwrap()["metadata"].clone();
        assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!(name), &namespace));
        assert_eq!(metadata["labels"]["app"], "kubevirt-hyperconverged");
        assert_eq!(metadata["labels"]["app.kubernetes.io/component"], component);
        assert_eq!(metadata["labels"]["app.kubernetes.io/part-of"], "hyperconverged-cluster");
    }
}

#[test]
fn a_single_node_gets_one_replica_and_no_eviction() {
    let node = NodeSeen { schedulable: true, control_plane: false, architecture: "amd64".to_owned() };
    let blocked = NodeSeen { schedulable: false, control_plane: true, architecture: "amd64".to_owned() };
    let facts = Facts::of("ns", "1.0.0", &[node, blocked]);
    let owner = read(json!({}));
    let kubevirt = child(Child::KubeVirt, &owner, &facts).unwrap();
    assert_eq!(kubevirt["spec"]["infra"]["replicas"], 1);
    assert_eq!(kubevirt["spec"]["configuration"]["evictionStrategy"], "None");
    assert_eq!(child(Child::Cdi, &owner, &facts).unwrap()["spec"]["infra"]["uploadProxyReplicas"], 1);
    assert_eq!(child(Child::Ssp, &owner, &facts).unwrap()["spec"]["templateValidator"]["replicas"], 1);
}

/// A spec with one value set.
fn set(path: &str, value: Value) -> Value {
    let mut spec = json!({});
    let place = path.split('.').fold(&mut spec, |object, step| &mut object[step]);
    *place = value;
    spec
}

#[test]
fn invalid_objects_are_refused_by_the_path_of_the_field() {
    const CERTS: &str = "security.certConfig";
    const TLS: &str = "security.tlsSecurityProfile";
    const MIGRATION: &str = "virtualization.liveMigrationConfig";
    const UPDATE: &str = "virtualization.workloadUpdateStrategy";
    const DEVICES: &str = "virtualization.permittedHostDevices";
    const SOURCES: &str = "workloadSources.dataImportCronTemplates";
    const TERMS: &str =
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let infra = "deployment.nodePlacements.infra";
    let terms =
        |requirement: Value| (format!("{infra}.{TERMS}"), json!([{"matchExpressions": [requirement]}]));
    let registry = json!({"source": {"registry": {"url": "docker://a"}}});
    let cron = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": {"schedule": "", "managedDataSource": "a", "template": {"spec": spec}}});
    let mut marked = cron("a", registry.clone());
    marked["metadata"]["annotations"] = json!({"dataimportcrontemplate.kubevirt.io/enable": "maybe"});
    let pci =
        |selector: &str, resource: &str| json!([{"pciDeviceSelector": selector, "resourceName": resource}]);
    let (in_path, in_terms) = terms(json!({"key": "a", "operator": "In"}));
    let (exists_path, exists_terms) = terms(json!({"key": "a", "operator": "Exists", "values": ["b"]}));
    let (gt_path, gt_terms) = terms(json!({"key": "a", "operator": "Gt", "values": ["b"]}));
    let (key_path, key_terms) = terms(json!({"key": "-a", "operator": "Exists"}));
    let (op_path, op_terms) = terms(json!({"key": "a", "operator": "Like"}));
    let first = |path: &str, field: &str| format!("{path}[0].matchExpressions[0].{field}");
    let rows: Vec<(String, Value, String)> = vec![
        (format!("{CERTS}.ca.duration"), json!("5m"), format!("{CERTS}.ca.duration")),
        (format!("{CERTS}.ca.duration"), json!("2 days"), format!("{CERTS}.ca.duration")),
        (format!("{CERTS}.ca.renewBefore"), json!("9m59s"), format!("{CERTS}.ca.renewBefore")),
        (format!("{CERTS}.server.duration"), json!("-1h"), format!("{CERTS}.server.duration")),
        (format!("{CERTS}.server.renewBefore"), json!("0s"), format!("{CERTS}.server.renewBefore")),
        (
            CERTS.to_owned(),
            json!({"ca": {"duration": "1h", "renewBefore": "2h"}, "server": {"duration": "1h", "renewBefore": "1h"}}),
            format!("{CERTS}.ca.renewBefore"),
        ),
        (format!("{CERTS}.server.renewBefore"), json!("25h"), format!("{CERTS}.server.renewBefore")),
        (format!("{CERTS}.server.duration"), json!("49h"), format!("{CERTS}.server.duration")),
        (TLS.to_owned(), json!({"custom": {}}), format!("{TLS}.type")),
        (TLS.to_owned(), json!({"type": "Custom"}), format!("{TLS}.custom")),
        (
            TLS.to_owned(),
            json!({"type": "Custom", "custom": {"ciphers": ["ECDHE-RSA-AES128-GCM-SHA256"]}}),
            format!("{TLS}.custom.minTLSVersion"),
        ),
        (
            TLS.to_owned(),
            json!({"type": "Custom", "custom": {"minTLSVersion": "VersionTLS13", "ciphers": ["A"]}}),
            format!("{TLS}.custom.ciphers"),
        ),
        (
            TLS.to_owned(),
            json!({"type": "Custom", "custom": {"minTLSVersion": "VersionTLS12", "ciphers": ["ECDHE-RSA-AES256-GCM-SHA384"]}}),
            format!("{TLS}.custom.ciphers"),
        ),
        (in_path.clone(), in_terms, first(&in_path, "values")),
        (exists_path.clone(), exists_terms, first(&exists_path, "values")),
        (gt_path.clone(), gt_terms, first(&gt_path, "values")),
        (key_path.clone(), key_terms, first(&key_path, "key")),
        (op_path.clone(), op_terms, first(&op_path, "operator")),
        (format!("{infra}.{TERMS}"), json!([]), format!("{infra}.{TERMS}")),
        (
            format!("{infra}.tolerations"),
            json!([{"effect": "Never"}]),
            format!("{infra}.tolerations[0].effect"),
        ),
        (
            format!("{infra}.tolerations"),
            json!([{"operator": "In"}]),
            format!("{infra}.tolerations[0].operator"),
        ),
        (format!("{infra}.nodeSelector"), json!({"a b": "c"}), format!("{infra}.nodeSelector[a b]")),
        (
            "networking.kubeSecondaryDNSNameServerIP".to_owned(),
            json!("::1"),
            "networking.kubeSecondaryDNSNameServerIP".to_owned(),
        ),
        (
            "networking.kubeMacPoolConfiguration".to_owned(),
            json!({"rangeStart": "02:00:00:00:00:05", "rangeEnd": "02:00:00:00:00:01"}),
            "networking.kubeMacPoolConfiguration.rangeEnd".to_owned(),
        ),
        (
            "networking.kubeMacPoolConfiguration".to_owned(),
            json!({"rangeStart": "01:00:00:00:00:05", "rangeEnd": "02:00:00:00:00:01"}),
            "networking.kubeMacPoolConfiguration.rangeStart".to_owned(),
        ),
        (
            "storage.filesystemOverhead.storageClass".to_owned(),
            json!({"fast": "1.5"}),
            "storage.filesystemOverhead.storageClass[fast]".to_owned(),
        ),
        (
            "storage.workloadResourceRequirements".to_owned(),
            json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
            "storage.workloadResourceRequirements.requests[memory]".to_owned(),
        ),
        (
            "storage.storageImport.insecureRegistries".to_owned(),
            json!(["http://a/b"]),
            "storage.storageImport.insecureRegistries[0]".to_owned(),
        ),
        (
            format!("{MIGRATION}.bandwidthPerMigration"),
            json!("-1Gi"),
            format!("{MIGRATION}.bandwidthPerMigration"),
        ),
        (
            format!("{MIGRATION}.parallelMigrationsPerCluster"),
            json!(0),
            format!("{MIGRATION}.parallelMigrationsPerCluster"),
        ),
        (
            format!("{MIGRATION}.parallelOutboundMigrationsPerNode"),
            json!(-1),
            format!("{MIGRATION}.parallelOutboundMigrationsPerNode"),
        ),
        (
            format!("{MIGRATION}.completionTimeoutPerGiB"),
            json!(0),
            format!("{MIGRATION}.completionTimeoutPerGiB"),
        ),
        (format!("{MIGRATION}.progressTimeout"), json!(-5), format!("{MIGRATION}.progressTimeout")),
        (
            format!("{UPDATE}.workloadUpdateMethods"),
            json!(["Reboot"]),
            format!("{UPDATE}.workloadUpdateMethods[0]"),
        ),
        (format!("{UPDATE}.batchEvictionInterval"), json!("soon"), format!("{UPDATE}.batchEvictionInterval")),
        (format!("{UPDATE}.batchEvictionSize"), json!(0), format!("{UPDATE}.batchEvictionSize")),
        (
            "virtualization.liveUpdateConfiguration.maxCpuSockets".to_owned(),
            json!(0),
            "virtualization.liveUpdateConfiguration.maxCpuSockets".to_owned(),
        ),
        (
            format!("{DEVICES}.pciHostDevices"),
            pci("10DE", "nvidia.com/A"),
            format!("{DEVICES}.pciHostDevices[0].pciDeviceSelector"),
        ),
        (
            format!("{DEVICES}.pciHostDevices"),
            pci("10DE:1EB8", "gpu"),
            format!("{DEVICES}.pciHostDevices[0].resourceName"),
        ),
        (
            format!("{DEVICES}.mediatedDevices"),
            json!([{"mdevNameSelector": "", "resourceName": "nvidia.com/A"}]),
            format!("{DEVICES}.mediatedDevices[0].mdevNameSelector"),
        ),
        (
            format!("{DEVICES}.usbHostDevices"),
            json!([{"resourceName": "kubevirt.io/a", "selectors": [{"vendor": "46f4", "product": "x"}]}]),
            format!("{DEVICES}.usbHostDevices[0].selectors[0].product"),
        ),
        (
            "virtualization.obsoleteCPUModels".to_owned(),
            json!([" "]),
            "virtualization.obsoleteCPUModels[0]".to_owned(),
        ),
        (
            "virtualization.tuningPolicy".to_owned(),
            json!("annotation"),
            "virtualization.tuningPolicy".to_owned(),
        ),
        (
            "workloadSources.commonBootImageNamespace".to_owned(),
            json!("A_b"),
            "workloadSources.commonBootImageNamespace".to_owned(),
        ),
        (SOURCES.to_owned(), json!([cron("", registry.clone())]), format!("{SOURCES}[0].metadata.name")),
        (
            SOURCES.to_owned(),
            json!([cron("a", registry.clone()), cron("a", registry.clone())]),
            format!("{SOURCES}[1].metadata.name"),
        ),
        (SOURCES.to_owned(), json!([{"metadata": {"name": "a"}}]), format!("{SOURCES}[0].spec")),
        (
            SOURCES.to_owned(),
            json!([marked]),
            format!("{SOURCES}[0].metadata.annotations[dataimportcrontemplate.kubevirt.io/enable]"),
        ),
        (
            SOURCES.to_owned(),
            json!([cron("a", json!({"source": {"blank": {}}}))]),
            format!("{SOURCES}[0].spec.template.spec.source"),
        ),
    ];
    assert!(rows.len() >= 40, "{}", rows.len());
    for (path, value, field) in rows {
        let problems = check::problems(&read(set(&path, value.clone())));
        let fields: Vec<&str> = problems.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(fields, [format!("spec.{field}")], "{path} = {value}");
    }
}

#[test]
fn invalid_annotations_are_refused() {
    for (name, text) in [
        (patch::KUBEVIRT, "no"),
        (patch::CDI, r#"[{"op": "add", "path": "/metadata/labels/a", "value": "b"}]"#),
        (check::TUNING, r#"{"qps": 0, "burst": 1}"#),
        (check::TUNING, "fast"),
    ] {
        let mut owner = read(json!({}));
        owner.metadata.annotations.insert(name.to_owned(), text.to_owned());
        let problems = check::problems(&owner);
        assert_eq!(problems.len(), 1, "{text}");
        assert_eq!(problems[0].field, format!("metadata.annotations[{name}]"));
    }
}

#[test]
fn valid_objects_pass_and_render() {
    let v1 = [
        json!({}),
        json!({"featureGates": [{"name": "downwardMetrics"}, {"name": "unheardOf", "state": "Disabled"}]}),
        json!({"security": {"certConfig": {"ca": {"duration": "20m", "renewBefore": "10m"}, "server": {"duration": "20m", "renewBefore": "10m"}}}}),
        json!({"security": {"tlsSecurityProfile": {"type": "Modern", "modern": {}}}}),
        json!({"security": {"tlsSecurityProfile": {"type": "Custom", "custom": {"minTLSVersion": "VersionTLS13"}}}}),
        json!({"virtualization": {"permittedHostDevices": {"pciHostDevices": [{"pciDeviceSelector": "10DE:1eb8", "resourceName": "nvidia.com/TU104GL_Tesla_T4"}]}}}),
        json!({"virtualization": {"liveMigrationConfig": {"bandwidthPerMigration": "64Mi", "network": "ns/net"}}}),
        json!({"networking": {"kubeMacPoolConfiguration": {"rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:ff:ff"}}}),
        json!({"deployment": {"nodePlacements": {"infra": {"tolerations": [{"operator": "Exists"}]}, "workload": {"nodeSelector": {"a/b": "c"}}}}}),
        json!({"storage": {"filesystemOverhead": {"global": "0.06", "storageClass": {"a": "0.1"}}}}),
    ];
    let beta = [
        json!({}),
        json!({"featureGates": {"downwardMetrics": true, "nonRoot": true}}),
        json!({"infra": {"nodePlacement": {"nodeSelector": {"a": "b"}}}, "workloads": {}}),
        json!({"liveMigrationConfig": {"completionTimeoutPerGiB": 800, "parallelMigrationsPerCluster": 5}}),
        json!({"certConfig": {"ca": {"duration": "48h0m0s", "renewBefore": "24h0m0s"}}}),
        json!({"obsoleteCPUs": {"cpuModels": ["Opteron_G2"], "minCPUModel": "Penryn"}}),
        json!({"resourceRequirements": {"storageWorkloads": {"limits": {"cpu": "500m"}}, "vmiCPUAllocationRatio": 4}}),
        json!({"mediatedDevicesConfiguration": {"mediatedDevicesTypes": ["nvidia-231"]}}),
        json!({"uninstallStrategy": "RemoveWorkloads", "evictionStrategy": "LiveMigrateIfPossible"}),
        json!({"storageImport": {"insecureRegistries": ["registry.example:5000"]}, "logVerbosityConfig": {"cdi": 3}}),
    ];
    let converted = beta.iter().map(|spec| {
        let object =
            json!({"apiVersion": "hco.kubevirt.io/v1beta1", "metadata": {"name": NAME}, "spec": spec});
        api::hyperconverged::convert(&object, API_VERSION).unwrap()["spec"].clone()
    });
    for spec in v1.into_iter().chain(converted) {
        let owner = read(spec.clone());
        assert_eq!(check::problems(&owner), [], "{spec}");
        assert!(rendered(&owner).len() > 4);
    }
}

#[test]
fn settings_reach_their_child() {
    for (path, value, child, pointer, expected) in [
        (
            "virtualization.vmiCPUAllocationRatio",
            json!(4),
            0,
            "/configuration/developerConfiguration/cpuAllocationRatio",
            json!(4),
        ),
        ("virtualization.virtualMachineOptions.disableFreePageReporting", json!(true), 99, "", json!(null)),
        (
            "virtualization.mediatedDevicesConfiguration.enabled",
            json!(false),
            0,
            "/configuration/mediatedDevicesConfiguration/enabled",
            json!(false),
        ),
        (
            "virtualization.permittedHostDevices.pciHostDevices",
            json!([{"pciDeviceSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4", "disabled": true}]),
            0,
            "/configuration/permittedHostDevices",
            json!({}),
        ),
        (
            "security.certConfig.ca.duration",
            json!("72h"),
            2,
            "/selfSignConfiguration/caRotateInterval",
            json!("72h"),
        ),
        (
            "storage.storageImport.insecureRegistries",
            json!(["a:5000"]),
            1,
            "/config/insecureRegistries",
            json!(["a:5000"]),
        ),
        (
            "deployment.uninstallStrategy",
            json!("RemoveWorkloads"),
            1,
            "/uninstallStrategy",
            json!("RemoveWorkloads"),
        ),
        ("deployment.logVerbosityConfig.cdi", json!(5), 1, "/config/logVerbosity", json!(5)),
    ] {
        let children = rendered(&read(set(path, value)));
        let Some(spec) = children.get(child) else { continue };
        assert_eq!(spec.pointer(pointer).cloned().unwrap_or_default(), expected, "{path}");
    }
}

fn child_state(child: Child, available: bool, progressing: bool, degraded: bool) -> ChildState {
    let condition = |kind: &str, value: bool| json!({"type": kind, "status": if value { "True" } else { "False" }, "message": format!("{} text", child.kind())});
    let version = if child == Child::KubeVirt { "observedKubeVirtVersion" } else { "observedVersion" };
    let object = json!({
        "apiVersion": "x/v1", "kind": child.kind(),
        "metadata": {"name": child.name(), "uid": "u", "resourceVersion": "9"},
        "status": {version: "1.0.0", "conditions": [
            condition("Available", available), condition("Progressing", progressing), condition("Degraded", degraded),
        ]},
    });
    ChildState { child, object: Some(object) }
}

/// Conditions as `Type=Status/Reason`, of children and an owner.
fn folded(
    owner: &HyperConverged,
    children: &[ChildState],
) -> (Vec<String>, api::hyperconverged::HyperConvergedStatus) {
    let facts = facts();
    let situation = Situation {
        owner,
        facts: &facts,
        children,
        sources: Vec::new(),
        related: vec![RelatedObject { kind: Some("PriorityClass".to_owned()), ..RelatedObject::default() }],
        failure: None,
        now: "2026-01-01T00:00:00Z",
    };
    let status = status(&situation);
    let texts =
        status.conditions.iter().map(|one| format!("{}={}/{}", one.kind, one.status, one.reason)).collect();
    (texts, status)
}

#[test]
fn status_folds_the_children_and_names_all_that_fail() {
    let owner = read(json!({}));
    let good = Child::ALL.map(|one| child_state(one, true, false, false));
    let (texts, status) = folded(&owner, &good);
    assert_eq!(
        texts,
        [
            "ReconcileComplete=True/ReconcileCompleted",
            "Available=True/ReconcileCompleted",
            "Progressing=False/ReconcileCompleted",
            "Degraded=False/ReconcileCompleted",
            "Upgradeable=True/ReconcileCompleted"
        ]
    );
    assert_eq!(status.system_health_status.as_deref(), Some("healthy"));
    assert_eq!(status.versions[0].version.as_deref(), Some("1.0.0"));
    assert_eq!(status.related_objects.len(), 5);
    assert!(Child::ALL.into_iter().all(|one| super::status::lists(Some(&status), one)));
    assert!(!super::status::lists(None, Child::Cdi));
    let schedule = status.data_import_schedule.clone().unwrap();
    let words: Vec<&str> = schedule.split(' ').collect();
    let [minute, hour, "*", "*", "*"] = words[..] else { panic!("{schedule}") };
    let hour = hour.strip_suffix("/12").unwrap();
    assert!(minute.parse::<u8>().unwrap() < 60 && hour.parse::<u8>().unwrap() < 12, "{schedule}");
    let mut later = owner.clone();
    later.metadata.uid = Some("another".to_owned());
    assert_ne!(folded(&later, &good).1.data_import_schedule, status.data_import_schedule);
    later.status = Some(status.clone());
    assert_eq!(folded(&later, &good).1.data_import_schedule, status.data_import_schedule, "drawn once");
    assert_eq!(status.related_objects[0].resource_version.as_deref(), Some("9"));

    let mut mixed = good.clone();
    mixed[0] = child_state(Child::KubeVirt, false, true, false);
    mixed[1] = child_state(Child::Cdi, false, false, true);
    mixed[2].object = Some(json!({"kind": "NetworkAddonsConfig", "metadata": {}}));
    let (texts, status) = folded(&owner, &mixed);
    assert_eq!(
        texts,
        [
            "ReconcileComplete=True/ReconcileCompleted",
            "Available=False/KubeVirtNotAvailable",
            "Progressing=True/KubeVirtProgressing",
            "Degraded=True/CDIDegraded",
            "Upgradeable=False/KubeVirtProgressing"
        ]
    );
    let message = &status.conditions[1].message;
    for part in [
        "KubeVirt is not available: KubeVirt text",
        "CDI is not available",
        "NetworkAddonsConfig reports no condition Available",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(status.system_health_status.as_deref(), Some("error"));
    assert!(status.versions.is_empty(), "the version is reported when all children have it");
}

#[test]
fn an_upgrade_progresses_until_every_child_reports_the_version() {
    let mut owner = read(json!({}));
    let (_, first) = folded(&owner, &Child::ALL.map(|one| child_state(one, true, false, false)));
    owner.status = Some(api::hyperconverged::HyperConvergedStatus {
        versions: vec![api::hyperconverged::Version {
            name: Some("operator".to_owned()),
            version: Some("0.9.0".to_owned()),
        }],
        ..first
    });
    let mut children = Child::ALL.map(|one| child_state(one, true, false, false));
    if let Some(object) = &mut children[1].object {
        object["status"]["observedVersion"] = json!("0.9.0");
    }
    let (texts, status) = folded(&owner, &children);
    assert!(texts.contains(&"Progressing=True/HCOUpgrading".to_owned()), "{texts:?}");
    assert_eq!(status.versions[0].version.as_deref(), Some("0.9.0"));
    let (texts, status) = folded(&owner, &Child::ALL.map(|one| child_state(one, true, false, false)));
    assert!(texts.contains(&"Upgradeable=True/ReconcileCompleted".to_owned()), "{texts:?}");
    assert_eq!(status.versions[0].version.as_deref(), Some("1.0.0"));
}

#[test]
fn patches_taint_and_settings_without_effect_are_named() {
    let mut owner = read(
        json!({"storage": {"scratchSpaceStorageClass": "fast"}, "featureGates": [{"name": "unheardOf"}]}),
    );
    let text = r#"[{"op": "add", "path": "/spec/configuration/cpuModel", "value": "Haswell"}]"#;
    owner.metadata.annotations.insert(patch::KUBEVIRT.to_owned(), text.to_owned());
    let (texts, status) = folded(&owner, &Child::ALL.map(|one| child_state(one, true, false, false)));
    assert!(
        texts.contains(&"TaintedConfiguration=True/UnsupportedFeatureAnnotation".to_owned()),
        "{texts:?}"
    );
    let message = &status.conditions.last().unwrap().message;
    assert!(
        message.contains("spec.storage.scratchSpaceStorageClass") && message.contains("unheardOf"),
        "{message}"
    );
    assert_eq!(rendered(&owner)[0]["configuration"]["cpuModel"], "Haswell");
}

#[test]
fn an_eviction_strategy_that_is_chosen_is_named() {
    let named =
        |strategy: Value| effect::ignored(&read(json!({"virtualization": {"evictionStrategy": strategy}})));
    for strategy in ["LiveMigrate", "LiveMigrateIfPossible", "External"] {
        assert_eq!(named(json!(strategy)), ["spec.virtualization.evictionStrategy"], "{strategy}");
    }
    assert_eq!(named(json!("None")), [""; 0], "guests end when their pods are evicted");
    assert_eq!(named(Value::Null), [""; 0], "the default is upstream's");
}

#[test]
fn conditions_of_the_children_about_settings_are_repeated() {
    let owner = read(json!({"storage": {"scratchSpaceStorageClass": "fast"}}));
    let mut children = Child::ALL.map(|one| child_state(one, true, false, false));
    for (state, kind, message) in [
        (0, without::CONDITION, "these settings have no effect: spec.imageTag"),
        (1, without::CONDITION, "these settings have no effect: spec.priorityClass"),
        (1, crate::platform::status::RAISED, "raised"),
    ] {
        let conditions =
            children[state].object.as_mut().unwrap()["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": kind, "status": "True", "message": message}));
    }
    let (texts, status) = folded(&owner, &children);
    assert_eq!(
        texts[5..],
        [
            "ferrovirt.io/SettingsWithoutEffect=True/NotImplemented",
            "ferrovirt.io/CertificateLifetimeRaised=True/TooShort"
        ]
    );
    assert_eq!(
        status.conditions[5].message,
        "these settings have no effect: spec.storage.scratchSpaceStorageClass; KubeVirt: these settings have no \
         effect: spec.imageTag; CDI: these settings have no effect: spec.priorityClass"
    );
    assert_eq!(status.conditions[6].message, "CDI: raised");
}
