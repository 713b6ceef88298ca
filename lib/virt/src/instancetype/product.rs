//! Every shipped instance type with every shipped preference: applied field by field as the rules have it, or refused by
//! the requirements of the preference.
//!
//! The rules are written a second time here, as paths: [`SIZES`] and [`PREFERENCES`] give the field of the template for
//! each field of the objects.

use api::kind::Kind;
use serde_json::{Map, Value, json};

use super::*;
use crate::fields::Place as Where;
use crate::finding::Verdict;
use crate::validate;

/// Fields of instance types, and the template's.
const SIZES: [(&str, &str); 7] = [
    ("cpu.dedicatedCPUPlacement", "domain.cpu.dedicatedCpuPlacement"),
    ("cpu.isolateEmulatorThread", "domain.cpu.isolateEmulatorThread"),
    ("cpu.maxSockets", "domain.cpu.maxSockets"),
    ("cpu.numa", "domain.cpu.numa"),
    ("cpu.realtime", "domain.cpu.realtime"),
    ("ioThreadsPolicy", "domain.ioThreadsPolicy"),
    ("memory", "domain.memory"),
];

/// Fields of preferences, and the template's.
const PREFERENCES: [(&str, &str); 26] = [
    ("clock.preferredClockOffset", "domain.clock"),
    ("clock.preferredTimer", "domain.clock.timer"),
    ("devices.preferredAutoattachGraphicsDevice", "domain.devices.autoattachGraphicsDevice"),
    ("devices.preferredAutoattachInputDevice", "domain.devices.autoattachInputDevice"),
    ("devices.preferredAutoattachMemBalloon", "domain.devices.autoattachMemBalloon"),
    ("devices.preferredAutoattachSerialConsole", "domain.devices.autoattachSerialConsole"),
    ("devices.preferredDiskBus", "domain.devices.disks.0.disk.bus"),
    ("devices.preferredDiskDedicatedIoThread", "domain.devices.disks.0.dedicatedIOThread"),
    ("devices.preferredInputBus", "domain.devices.inputs.0.bus"),
    ("devices.preferredInputType", "domain.devices.inputs.0.type"),
    ("devices.preferredInterfaceModel", "domain.devices.interfaces.0.model"),
    ("devices.preferredNetworkInterfaceMultiQueue", "domain.devices.networkInterfaceMultiqueue"),
    ("devices.preferredRng", "domain.devices.rng"),
    ("devices.preferredTPM", "domain.devices.tpm"),
    ("devices.preferredUseVirtioTransitional", "domain.devices.useVirtioTransitional"),
    ("devices.preferredVideoType", "domain.devices.video.type"),
    ("features.preferredAcpi", "domain.features.acpi"),
    ("features.preferredApic", "domain.features.apic"),
    ("features.preferredHyperv", "domain.features.hyperv"),
    ("features.preferredSmm", "domain.features.smm"),
    ("firmware.preferredEfi", "domain.firmware.bootloader.efi"),
    ("preferredArchitecture", "architecture"),
    ("preferredTerminationGracePeriodSeconds", "terminationGracePeriodSeconds"),
    // The topology and the requirements are rules of their own.
    ("cpu", ""),
    ("requirements", ""),
    ("annotations", ""),
];

/// An instance type or preference: its name, and the fields of its spec by path with their values.
struct Line {
    which: Which,
    name: &'static str,
    spec: Value,
    fields: Vec<(String, Value)>,
}

fn lines() -> Vec<Line> {
    let line = |one: Shipped| {
        let spec = one.object()["spec"].clone();
        let mut fields = Vec::new();
        leaves(&spec, "", &mut fields);
        Line { which: one.which, name: one.name, spec, fields }
    };
    shipped().map(line).collect()
}

/// Adds the fields of an object that have no fields of their own.
fn leaves(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let Some(fields) = value.as_object().filter(|fields| !fields.is_empty()) else {
        found.push((path.to_owned(), value.clone()));
        return;
    };
    for (name, field) in fields {
        let dot = if path.is_empty() { "" } else { "." };
        leaves(field, &format!("{path}{dot}{name}"), found);
    }
}

/// Sets a field: steps with dots between them, numbers for places of lists.
fn set(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for step in path.split('.') {
        place = match step.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[step],
        };
    }
    *place = value;
}

impl Line {
    fn get(&self, path: &str) -> Option<&Value> {
        self.fields.iter().find(|(one, _)| one == path).map(|(_, value)| value)
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.get(path).and_then(Value::as_u64)
    }

    fn bytes(&self, path: &str) -> Option<u64> {
        self.get(path).and_then(Value::as_str).map(|text| api::quantity::bytes(text).unwrap())
    }
}

/// The template's path of a field.
fn target(table: &[(&str, &str)], path: &str) -> Option<String> {
    let (from, to) = table
        .iter()
        .find(|(from, _)| {
            path.strip_prefix(from).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .unwrap_or_else(|| panic!("{path} is in no table"));
    (!to.is_empty()).then(|| format!("{to}{}", &path[from.len()..]))
}

/// A template that leaves all to both. Input devices have a type, unless the preference gives them one.
fn template(preference: &Line) -> Value {
    let preferred = preference.get("devices.preferredInputType").is_some();
    let kind = if preferred { "" } else { "tablet" };
    json!({
        "architecture": "amd64",
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "open", "containerDisk": {"image": "a"}}, {"name": "own", "containerDisk": {"image": "b"}}],
        "domain": {"devices": {
            "disks": [{"name": "open", "disk": {}}, {"name": "own", "disk": {"bus": "scsi"}}],
            "inputs": [{"name": "pointer", "type": kind}],
            "interfaces": [{"name": "default", "masquerade": {}}],
        }},
    })
}

/// Sockets, cores and threads.
fn topology(size: u64, preference: &Line) -> (u64, u64, u64) {
    let word = preference.get("cpu.preferredCPUTopology").and_then(Value::as_str);
    let across = preference.get("cpu.spreadOptions.across").and_then(Value::as_str);
    let ratio = preference.number("cpu.spreadOptions.ratio").unwrap_or(2);
    match (size, word, across) {
        (1, ..) => (1, 1, 1),
        (_, Some("spread"), Some("CoresThreads")) => (1, size / ratio, ratio),
        (_, Some("spread"), Some("SocketsCoresThreads")) => (size / ratio / 2, ratio, 2),
        (_, Some("spread"), _) => (size / ratio, ratio, 1),
        (_, Some("cores"), _) => (1, size, 1),
        (_, Some("threads"), _) => (1, 1, size),
        (_, None | Some("sockets"), _) => (size, 1, 1),
        other => panic!("{other:?}"),
    }
}

/// A word of the refusal, if the preference requires what the instance type lacks.
fn refusal(size: &Line, preference: &Line) -> Option<&'static str> {
    let vcpus = size.number("cpu.guest").unwrap();
    let (sockets, cores, threads) = topology(vcpus, preference);
    let memory = size.bytes("memory.guest").unwrap();
    if sockets * cores * threads != vcpus {
        return Some("not divisible");
    }
    if preference.number("requirements.cpu.guest").is_some_and(|wanted| wanted > vcpus) {
        return Some("insufficient CPU");
    }
    if preference.bytes("requirements.memory.guest").is_some_and(|wanted| wanted > memory) {
        return Some("insufficient Memory");
    }
    preference
        .get("requirements.architecture")
        .filter(|wanted| **wanted != "amd64")
        .map(|_| "requires architecture")
}

/// The template and its annotations as the rules have them.
fn expected(size: &Line, preference: &Line) -> (Value, Map<String, Value>) {
    let mut spec = template(preference);
    let mut annotations = Map::new();
    let vcpus = size.number("cpu.guest").unwrap();
    let (sockets, cores, threads) = topology(vcpus, preference);
    spec["domain"]["cpu"] = json!({"sockets": sockets, "cores": cores, "threads": threads});
    for (path, value) in &size.fields {
        if let Some(name) = path.strip_prefix("annotations.") {
            annotations.insert(name.to_owned(), value.clone());
        } else if path == "memory.overcommitPercent" {
            let left = size.bytes("memory.guest").unwrap() * (100 - value.as_u64().unwrap()) / 100;
            spec["domain"]["resources"] = json!({"requests": {"memory": left.to_string()}});
        } else if path != "cpu.guest" {
            set(&mut spec, &target(&SIZES, path).unwrap(), value.clone());
        }
    }
    for (path, value) in &preference.fields {
        if let Some(name) = path.strip_prefix("annotations.") {
            annotations.entry(name).or_insert_with(|| value.clone());
            continue;
        }
        // Of the preferred bus depends whether the disk can have a thread.
        let threads = path == "devices.preferredDiskDedicatedIoThread";
        if threads && preference.get("devices.preferredDiskBus") != Some(&json!("virtio")) {
            continue;
        }
        if let Some(target) = target(&PREFERENCES, path).filter(|target| target != "architecture") {
            set(&mut spec, &target, value.clone());
        }
    }
    (spec, annotations)
}

/// The object as the types write it: without what is null or left out.
fn written(spec: Value) -> Value {
    let spec: VirtualMachineInstanceSpec = serde_json::from_value(spec).unwrap();
    serde_json::to_value(spec).unwrap()
}

#[test]
fn every_shipped_instance_type_with_every_shipped_preference() {
    let lines = lines();
    let (sizes, preferences): (Vec<&Line>, Vec<&Line>) =
        lines.iter().partition(|one| one.which == Which::Instancetype);
    let (mut applied, mut refused) = (0, 0);
    for size in &sizes {
        for preference in &preferences {
            let name = format!("{} {}", size.name, preference.name);
            let flavor = Flavor {
                instancetype: Some(serde_json::from_value(size.spec.clone()).unwrap()),
                preference: Some(serde_json::from_value(preference.spec.clone()).unwrap()),
            };
            let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(template(preference)).unwrap();
            if let Some(word) = refusal(size, preference) {
                let found = unmet(&flavor, &spec);
                assert!(
                    found.as_ref().is_some_and(|(_, text)| text.contains(word)),
                    "{name}: {word}: {found:?}"
                );
                refused += 1;
                continue;
            }
            assert_eq!(unmet(&flavor, &spec), None, "{name}");
            let mut metadata = ObjectMeta::default();
            apply(&flavor, &mut metadata, &mut spec).unwrap();
            let (wanted, annotations) = expected(size, preference);
            assert_eq!(serde_json::to_value(&spec).unwrap(), written(wanted), "{name}");
            assert_eq!(json!(metadata.annotations), json!(annotations), "{name}");
            // The result can be run.
            let machine = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": "a", "namespace": "n"},
                "spec": {"runStrategy": "Always", "template": {"spec": spec}}});
            let mut findings = validate::object(Kind::VirtualMachine, &machine, Where::Cluster);
            findings.retain(|finding| matches!(finding.verdict, Verdict::Error | Verdict::Unknown));
            assert_eq!(findings, [], "{name}");
            // A template with a size of its own is refused, and is not changed.
            let mut own: VirtualMachineInstanceSpec = serde_json::from_value(template(preference)).unwrap();
            own.domain.cpu = serde_json::from_value(json!({"cores": 1})).unwrap();
            let before = own.clone();
            let conflicts = apply(&flavor, &mut ObjectMeta::default(), &mut own);
            assert_eq!(conflicts, Err(vec!["spec.domain.cpu.cores".to_owned()]), "{name}");
            assert_eq!(own, before, "{name}");
            applied += 1;
        }
    }
    println!(
        "{} instance types × {} preferences: {applied} applied, {refused} refused",
        sizes.len(),
        preferences.len()
    );
    assert!(applied > 1000 && refused > 100, "{applied} applied, {refused} refused");
}
