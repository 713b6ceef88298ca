//! Every field of VMs and instances by the webhooks: used, refused by its path, or named in a warning; none is ignored in
//! silence. The manifests of the tests' guests with one wrong field at a time, and every field that upstream has.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use api::kind::Kind;
use api::schema::leaves;
use cluster::review::{Answer, Request};
use guests::mutants::{Mutant, Wrong, mutants, plain};
use guests::telling::{self, Manifest};
use serde_json::{Value, json};
use virt::fields::{Place, used};
use virt::instancetype::Flavor;
use virt::{admission, validate};

use super::settings::Permitted;
use super::{instance, machine};

/// Fields below an instance's spec that the operator uses, with all below them.
const BY_OPERATOR: [&str; 24] = [
    "accessCredentials[].sshPublicKey.propagationMethod.qemuGuestAgent",
    "accessCredentials[].userPassword",
    "affinity",
    "dnsConfig",
    "dnsPolicy",
    "domain.cpu.dedicatedCpuPlacement",
    "domain.cpu.isolateEmulatorThread",
    "domain.devices.clientPassthrough",
    "domain.devices.gpus[].deviceName",
    "domain.devices.gpus[].name",
    "domain.devices.gpus[].virtualGPUOptions",
    "domain.devices.hostDevices[].deviceName",
    "domain.devices.hostDevices[].name",
    "domain.firmware.kernelBoot",
    "livenessProbe",
    "nodeSelector",
    "priorityClassName",
    "readinessProbe",
    "schedulerName",
    "subdomain",
    "tolerations",
    "topologySpreadConstraints",
    "volumes[].dataVolume.hotpluggable",
    "volumes[].serviceAccount",
];
/// Fields of a VM outside the template's spec that are used, with all below them.
const BY_MACHINES: [&str; 6] =
    ["dataVolumeTemplates", "instancetype", "preference", "runStrategy", "running", "template.metadata"];

fn workspace(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Documents of the manifests that the tests' guests run by, by manifest.
fn manifests() -> BTreeMap<String, Vec<Value>> {
    let read = |manifest: Manifest| {
        let text = manifest.with_server("https://example.com");
        let documents = api::manifest::documents(text.as_bytes()).unwrap();
        let documents = documents.into_iter().map(|document| document.value);
        (manifest.name, documents.collect())
    };
    telling::manifests().into_iter().map(read).collect()
}

/// Whether an object is admitted, and the fields that the answer names.
fn judged(object: &Value) -> (bool, Vec<String>) {
    let request = Request { operation: "CREATE".into(), object: object.clone(), ..Request::default() };
    let answer = match object["kind"].as_str() {
        Some("VirtualMachine") => {
            machine::validate(&request, false, &Flavor::default(), &Permitted::default())
        }
        Some("VirtualMachineInstance") => instance::validate(&request, false, &Permitted::default()),
        Some("DataVolume") => {
            let findings = validate::object(Kind::DataVolume, object, Place::Cluster);
            super::answer::judge(Vec::new(), &findings)
        }
        other => panic!("{other:?}"),
    };
    let named = named(&answer);
    (answer.is_allowed(), named)
}

fn named(answer: &Answer) -> Vec<String> {
    let response = answer.write("u")["response"].clone();
    let causes = response.pointer("/status/details/causes").and_then(Value::as_array).cloned();
    let causes = causes.unwrap_or_default().into_iter();
    let causes = causes.filter_map(|cause| cause["field"].as_str().map(str::to_owned));
    let warnings = response["warnings"].as_array().cloned().unwrap_or_default().into_iter();
    let warnings = warnings
        .filter_map(|warning| Some(warning.as_str()?.split_once(": ")?.0.trim_end_matches('…').to_owned()));
    causes.chain(warnings).collect()
}

/// Fields that findings about an object name; a refusal would leave out the warnings.
fn found(object: &Value) -> Vec<String> {
    let kind =
        if object["kind"] == "VirtualMachine" { Kind::VirtualMachine } else { Kind::VirtualMachineInstance };
    validate::object(kind, object, Place::Cluster).into_iter().map(|finding| finding.path).collect()
}

#[test]
fn one_wrong_field_at_a_time_is_refused_by_its_path() {
    let manifests = manifests();
    assert_eq!(manifests.len(), 12, "{:?}", manifests.keys());
    let mut tried = 0;
    for (name, documents) in &manifests {
        for document in documents {
            let kind = document["kind"].as_str().unwrap_or_default();
            if matches!(kind, "ConfigMap" | "Secret") {
                continue;
            }
            let (allowed, told) = judged(document);
            assert!(allowed && told.is_empty(), "{name}: {told:?}");
            for mutant in mutants(document, &leaves(document)) {
                let Mutant { wrong, field, object } = &mutant;
                tried += 1;
                let (allowed, told) = judged(object);
                if allowed {
                    assert!(mutant.is_free(), "{name}: {field} is accepted: {wrong:?}");
                } else if *wrong == Wrong::Value {
                    assert!(!told.is_empty(), "{name}: {field} is refused without a path");
                } else {
                    assert!(told.contains(field), "{name}: {field} is refused as {told:?}");
                }
            }
        }
    }
    assert!(tried > 500, "{tried}");
}

/// One line of an outline of fields: path, type, facts, and the path of another kind that it is like.
struct FieldLine {
    path: String,
    kind: String,
    facts: String,
    like: Option<(String, String)>,
}

fn outline(kind: &str) -> Vec<FieldLine> {
    let text = fs::read_to_string(workspace(&format!("lib/api/tests/fields/{kind}.txt"))).unwrap();
    let mut steps: Vec<String> = Vec::new();
    let lines = text.lines().map(|line| {
        let depth = (line.len() - line.trim_start().len()) / 2;
        steps.truncate(depth);
        let (line, like) = match line.trim_start().split_once(" = ") {
            Some((line, like)) => (line, like.split_once(' ')),
            None => (line.trim_start(), None),
        };
        let (name, rest) = line.split_once(' ').unwrap();
        let (kind, facts) = rest.split_once(' ').unwrap_or((rest, ""));
        let list = if kind == "array" || kind.starts_with('[') { "[]" } else { "" };
        steps.push(format!("{}{list}", name.trim_end_matches('!')));
        let like = like.map(|(kind, path)| (kind.to_owned(), path.to_owned()));
        FieldLine { path: steps.join("."), kind: kind.to_owned(), facts: facts.to_owned(), like }
    });
    lines.collect()
}

/// Fields of a kind: path with `[]` for lists, type, facts. Those that are like others have the others' fields.
fn fields(kind: &str, below: &str) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for FieldLine { path, kind: of, facts, like } in outline(kind) {
        if path != below && !path.starts_with(&format!("{below}.")) && !below.is_empty() {
            continue;
        }
        if let Some((other, start)) = like {
            let more = fields(&other, &start).into_iter();
            let more = more.filter_map(|(inner, of, facts)| {
                Some((format!("{path}{}", inner.strip_prefix(&start)?), of, facts))
            });
            all.extend(more.filter(|(inner, _, _)| *inner != path));
        }
        all.push((path, of, facts));
    }
    all
}

/// A value of a type.
fn sample(kind: &str, facts: &str) -> Value {
    let word = facts.split("; ").find_map(|fact| fact.strip_prefix("enum "));
    match kind {
        "string" => json!(word.map_or("a", |words| words.split('|').next().unwrap_or_default())),
        "integer" | "number" | "int-or-string" => json!(1),
        "boolean" => json!(true),
        "quantity" => json!("1Gi"),
        "array" => json!([{}]),
        "[string]" => json!(["a"]),
        "[integer]" => json!([1]),
        "object" => json!({}),
        other => panic!("no value of type {other}"),
    }
}

/// Puts a value at a path of an object, in the first element of lists.
fn put(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    let steps: Vec<&str> = path.split('.').collect();
    for (index, step) in steps.iter().enumerate() {
        let name = step.trim_end_matches("[]");
        let last = index + 1 == steps.len();
        if last {
            // The base may have other fields in the list.
            if !(place[name].is_array() || place[name].is_object())
                || !(value == json!({}) || value == json!([{}]))
            {
                place[name] = value;
            }
            return;
        }
        if step.ends_with("[]") {
            if !place[name].is_array() {
                place[name] = json!([{}]);
            }
            place = &mut place[name][0];
        } else {
            if !place[name].is_object() {
                place[name] = json!({});
            }
            place = &mut place[name];
        }
    }
}

/// A guest to which one field is added.
fn spec() -> Value {
    json!({
        "domain": {
            "memory": {"guest": "1Gi"},
            "devices": {
                "disks": [{"name": "root", "disk": {}}],
                "interfaces": [{"name": "default", "masquerade": {}}],
            },
        },
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "emptyDisk": {"capacity": "1Gi"}}],
    })
}

/// Whether one path is the other, or one of them is below the other.
fn same_branch(one: &str, other: &str) -> bool {
    let below = |path: &str, above: &str| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    below(one, other) || below(other, one)
}

#[test]
fn every_field_of_a_guest_is_used_or_named() {
    /// Parts of the base: a finding about one of them as a whole is not about a field in it.
    const BASE: [&str; 8] = [
        "",
        "domain",
        "domain.devices",
        "domain.devices.disks[]",
        "domain.devices.interfaces[]",
        "networks[]",
        "volumes[]",
        "domain.memory",
    ];
    let (mut silent, mut count) = (Vec::new(), 0);
    for (path, kind, facts) in fields("VirtualMachineInstance", "spec") {
        let Some(field) = path.strip_prefix("spec.") else { continue };
        count += 1;
        if used().chain(BY_OPERATOR).any(|one| same_branch(field, one)) {
            continue;
        }
        for (start, object) in [
            (
                "spec.",
                json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": "a", "namespace": "n"}, "spec": spec()}),
            ),
            (
                "spec.template.spec.",
                json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": "a", "namespace": "n"},
                "spec": {"runStrategy": "Always", "template": {"spec": spec()}}}),
            ),
        ] {
            let mut object = object;
            put(&mut object, &format!("{start}{field}"), sample(&kind, &facts));
            let told: Vec<String> = found(&object).iter().map(|path| plain(path)).collect();
            let is_named = |told: &String| {
                told.strip_prefix(start).is_some_and(|told| !BASE.contains(&told) && same_branch(told, field))
            };
            if !told.iter().any(is_named) {
                silent.push(format!("{start}{field}: {told:?}"));
            }
        }
    }
    assert!(count > 400, "{count}");
    assert!(silent.is_empty(), "{} fields are ignored in silence: {silent:#?}", silent.len());
}

#[test]
fn every_field_of_a_machine_is_used_or_named() {
    let mut silent = Vec::new();
    for (path, kind, facts) in fields("VirtualMachine", "spec") {
        let Some(field) = path.strip_prefix("spec.") else { continue };
        if field == "template"
            || BY_MACHINES.iter().chain(&["template.spec"]).any(|one| same_branch(field, one))
        {
            continue;
        }
        let mut object = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"runStrategy": "Always", "template": {"spec": spec()}}});
        put(&mut object, &path, sample(&kind, &facts));
        let told = found(&object);
        if !told.iter().any(|told| same_branch(&plain(told), &path)) {
            silent.push(format!("{path}: {told:?}"));
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
    // A status that users write is removed, and the stored one restored.
    let forged = json!({"metadata": {}, "spec": {}, "status": {"phase": "Running", "nodeName": "stolen"}});
    let mut made: api::kubevirt::VirtualMachineInstance =
        serde_json::from_value(machine::without_status(&forged)).unwrap();
    let identity = admission::Identity { uuid: "u".into(), serial: "s".into() };
    admission::instance(&mut made, &admission::Settings::default(), &identity, 0);
    let status = made.status.unwrap();
    assert_eq!((status.phase.as_deref(), status.node_name), (Some("Pending"), None));
}
