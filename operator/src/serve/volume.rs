//! `addvolume` and `removevolume`: of a VM they change volumes and disks of the template, of an instance its own until it
//! ends. The change is decided by [`plan`] (pure) and written as a JSON patch that tests the fields it was decided on.

use std::sync::Arc;

use api::kind::Kind;
use cluster::{JsonPatch, Key, Resource};
use http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use serve::route::{Call, text};
use virt::fields::Place;
use virt::finding::Verdict;
use virt::validate;

use super::Site;
use super::instance::INSTANCES;
use super::options;
use super::status::{ATTEMPTS, Answered, Refusal};
use crate::compute::EPHEMERAL;

const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");

/// Requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Remove,
}

/// Both, with the last part of their paths.
pub(super) const VERBS: [(Verb, &str); 2] = [(Verb::Add, "addvolume"), (Verb::Remove, "removevolume")];

/// The changed kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Machine,
    Instance,
}

/// Both.
pub(super) const TARGETS: [Target; 2] = [Target::Machine, Target::Instance];

impl Target {
    /// Resource in plural.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Machine => "virtualmachines",
            Self::Instance => "virtualmachineinstances",
        }
    }

    fn resource(self) -> Resource {
        match self {
            Self::Machine => MACHINES,
            Self::Instance => INSTANCES,
        }
    }

    /// How errors name the object.
    fn kind(self) -> &'static str {
        match self {
            Self::Machine => "virtualmachine",
            Self::Instance => "virtualmachineinstance",
        }
    }

    /// Where the spec of its guest is.
    fn spec(self) -> &'static str {
        match self {
            Self::Machine => "/spec/template/spec",
            Self::Instance => "/spec",
        }
    }
}

/// Body of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    name: String,
    disk: Option<Value>,
    volume_source: Option<Value>,
    dry_run: Option<Vec<String>>,
}

/// Answers a request.
pub(super) async fn handle(
    site: Arc<Site>,
    mut call: Call,
    target: Target,
    verb: Verb,
    path: &'static str,
) -> Answered {
    site.gate.admit(&call, target.plural(), path).await?;
    let body = call.bytes(options::MOST_BODY).await?;
    let options = parse(&body)?;
    let name = call.parameter("name");
    let key = Key::new(call.parameter("namespace"), name);
    let accepted = || Ok(text(StatusCode::ACCEPTED, ""));
    for _ in 0..ATTEMPTS {
        let object: Option<Value> = site.client.find(target.resource(), &key).await?;
        let object = object.ok_or_else(|| Refusal::absent(target.kind(), name))?;
        let patch = plan(target, verb, name, &object, &options)?;
        if options.dry_run.as_ref().is_some_and(|dry| !dry.is_empty()) {
            return accepted();
        }
        match site.client.json_patch::<IgnoredAny>(target.resource(), &key, &patch).await {
            Ok(_) => return accepted(),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::raced(target.kind(), name))
}

fn bad(why: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, why)
}

fn parse(body: &[u8]) -> Result<Options, Refusal> {
    if body.is_empty() {
        return Err(bad("Request with no body, a new name is expected as the request body"));
    }
    options::parse(body)
}

/// The change of an object's spec.
fn plan(
    target: Target,
    verb: Verb,
    name: &str,
    object: &Value,
    options: &Options,
) -> Result<JsonPatch, Refusal> {
    let refused = |why: String| Refusal::conflict(target.kind(), name, &why);
    if target == Target::Instance && object["status"]["phase"] != "Running" {
        return Err(refused("VMI is not running".to_owned()));
    }
    let none = json!([]);
    let at = target.spec();
    let spec = object.pointer(at).unwrap_or(&Value::Null);
    let volumes = spec.get("volumes").unwrap_or(&none);
    let disks = spec.pointer("/domain/devices/disks").unwrap_or(&none);
    let (mut volumes_after, mut disks_after) = (list(volumes), list(disks));
    let wanted = options.name.as_str();
    match verb {
        Verb::Add => {
            let (volume, disk) = added(options)?;
            if volumes_after.iter().any(|one| one["name"] == wanted) {
                let text =
                    format!("Unable to add volume [{wanted}] because volume with that name already exists");
                return Err(refused(text));
            }
            if let Some(claim) = claim(&volume)
                && volumes_after.iter().any(|one| self::claim(one) == Some(claim))
            {
                return Err(refused(format!(
                    "Unable to add volume source [{claim}] because it already exists"
                )));
            }
            let drive = disks_after.iter().find(|one| one["name"] == wanted);
            match drive {
                // A medium for a drive that is empty.
                Some(drive) if drive["cdrom"].is_object() => {}
                Some(_) => {
                    let text =
                        format!("Unable to add disk [{wanted}] because disk with that name already exists");
                    return Err(refused(text));
                }
                None => disks_after.push(disk),
            }
            volumes_after.push(volume);
        }
        Verb::Remove => {
            if wanted.is_empty() {
                return Err(bad("RemoveVolumeOptions requires name to be set"));
            }
            let Some(volume) = volumes_after.iter().find(|one| one["name"] == wanted) else {
                return Err(refused(format!("Unable to remove volume [{wanted}] because it does not exist")));
            };
            if !is_hotpluggable(volume) {
                return Err(refused(format!(
                    "Unable to remove volume [{wanted}] because it is not hotpluggable"
                )));
            }
            volumes_after.retain(|one| one["name"] != wanted);
            disks_after.retain(|one| one["name"] != wanted || one["cdrom"].is_object());
        }
    }
    check(target, object, &volumes_after, &disks_after)?;
    let mut patch = JsonPatch::new()
        .test(format!("{at}/volumes"), spec.get("volumes"))
        .test(format!("{at}/domain/devices/disks"), spec.pointer("/domain/devices/disks"))
        .add(format!("{at}/volumes"), volumes_after)
        .add(format!("{at}/domain/devices/disks"), disks_after);
    if target == Target::Instance {
        patch.extend(ephemeral_patch(verb, object, wanted));
    }
    Ok(patch)
}

/// Records volumes of an instance that its VM's template lacks, so that the VM's controller leaves them there.
fn ephemeral_patch(verb: Verb, object: &Value, volume: &str) -> JsonPatch {
    let annotations = &object["metadata"]["annotations"];
    let before = annotations[EPHEMERAL].as_str().unwrap_or_default();
    let mut names: Vec<&str> = before.split(',').filter(|name| !name.is_empty() && *name != volume).collect();
    if verb == Verb::Add {
        names.push(volume);
    }
    let path = JsonPatch::pointer(["metadata", "annotations", EPHEMERAL]);
    let names = names.join(",");
    match (annotations.is_object(), names.is_empty(), before.is_empty()) {
        (true, false, _) => JsonPatch::new().add(path, names),
        (false, false, _) => JsonPatch::new().add("/metadata/annotations", json!({EPHEMERAL: names})),
        (_, true, false) => JsonPatch::new().remove(path),
        (_, true, true) => JsonPatch::new(),
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Volume and disk that a request adds.
fn added(options: &Options) -> Result<(Value, Value), Refusal> {
    if options.name.is_empty() {
        return Err(bad("AddVolumeOptions requires name to be set"));
    }
    let mut disk = options.disk.clone().filter(Value::is_object);
    let disk = disk.as_mut().ok_or_else(|| bad("AddVolumeOptions requires disk to not be nil"))?;
    let source = options.volume_source.clone().filter(Value::is_object);
    let source = source.ok_or_else(|| bad("AddVolumeOptions requires VolumeSource to not be nil"))?;
    disk["name"] = json!(options.name);
    let mut volume = json!({"name": options.name});
    for field in ["dataVolume", "persistentVolumeClaim"] {
        if let Some(value) = source.get(field).filter(|value| value.is_object()) {
            volume[field] = value.clone();
            volume[field]["hotpluggable"] = json!(true);
            return Ok((volume, disk.clone()));
        }
    }
    Err(bad("AddVolumeOptions requires VolumeSource to be a DataVolume or a PersistentVolumeClaim"))
}

/// Claim of a volume: a DataVolume's has its name.
fn claim(volume: &Value) -> Option<&str> {
    let named = volume["dataVolume"]["name"].as_str();
    named.or_else(|| volume["persistentVolumeClaim"]["claimName"].as_str())
}

fn is_hotpluggable(volume: &Value) -> bool {
    let of = |field: &str| volume[field]["hotpluggable"] == true;
    of("dataVolume") || of("persistentVolumeClaim")
}

/// The rules that admission has for users; it does not check the operator's own writes.
fn check(target: Target, object: &Value, volumes: &[Value], disks: &[Value]) -> Result<(), Refusal> {
    let mut changed = object.clone();
    if let Some(fields) = changed.as_object_mut() {
        fields.remove("status");
    }
    let Some(spec) = changed.pointer_mut(target.spec()) else { return Ok(()) };
    spec["volumes"] = json!(volumes);
    spec["domain"]["devices"]["disks"] = json!(disks);
    let wrong = |path: &str| path.contains(".volumes") || path.contains(".disks");
    let kind = match target {
        Target::Machine => Kind::VirtualMachine,
        Target::Instance => Kind::VirtualMachineInstance,
    };
    let findings = validate::object(kind, &changed, Place::Cluster);
    let errors = findings.iter().filter(|one| matches!(one.verdict, Verdict::Error | Verdict::Unknown));
    let texts: Vec<String> =
        errors.filter(|one| wrong(&one.path)).map(|one| format!("{}: {}", one.path, one.text)).collect();
    if texts.is_empty() { Ok(()) } else { Err(bad(texts.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm", "namespace": "n"},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "domain": {"memory": {"guest": "1Gi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}],
        }}}})
    }

    fn options(body: Value) -> Options {
        serde_json::from_value(body).unwrap()
    }

    fn data() -> Value {
        json!({"name": "data", "disk": {"disk": {"bus": "scsi"}, "serial": "s"},
            "volumeSource": {"persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}}})
    }

    /// The object after a request.
    fn after(verb: Verb, object: &Value, body: Value) -> Result<Value, (u16, String)> {
        let said = |refusal: Refusal| {
            let (code, text) = refusal.code_and_message();
            (code, text.to_owned())
        };
        let target = if object["kind"] == "VirtualMachine" { Target::Machine } else { Target::Instance };
        let patch = plan(target, verb, "vm", object, &options(body)).map_err(said)?;
        let mut after = object.clone();
        for operation in patch.operations() {
            let path = operation["path"].as_str().unwrap();
            let before = after.pointer(path).cloned().unwrap_or(Value::Null);
            if operation["op"] == "test" {
                assert_eq!(before, operation["value"], "{path}");
            } else {
                let (parent, name) = path.rsplit_once('/').unwrap();
                after.pointer_mut(parent).unwrap()[name] = operation["value"].clone();
            }
        }
        Ok(after)
    }

    #[test]
    fn volume_is_added_to_the_template_and_removed_from_it() {
        let with = after(Verb::Add, &machine(), data()).unwrap();
        let spec = &with["spec"]["template"]["spec"];
        let claim =
            json!({"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}});
        assert_eq!(spec["volumes"][1], claim);
        let disk = json!({"name": "data", "disk": {"bus": "scsi"}, "serial": "s"});
        assert_eq!(spec["domain"]["devices"]["disks"][1], disk);
        let without = after(Verb::Remove, &with, json!({"name": "data"})).unwrap();
        assert_eq!(without, machine());
    }

    #[test]
    fn instance_that_runs_gets_a_volume_of_its_own() {
        let mut instance = machine();
        instance["kind"] = json!("VirtualMachineInstance");
        instance["spec"] = instance["spec"]["template"]["spec"].clone();
        let refused = after(Verb::Add, &instance, data()).unwrap_err();
        assert!(refused.1.ends_with("VMI is not running"), "{refused:?}");
        instance["status"]["phase"] = json!("Running");
        let with = after(Verb::Add, &instance, data()).unwrap();
        assert_eq!(with["spec"]["volumes"][1]["name"], "data");
        assert_eq!(with["metadata"]["annotations"][EPHEMERAL], "data");
        let said =
            plan(Target::Instance, Verb::Remove, "vm", &with, &options(json!({"name": "data"}))).unwrap();
        let last = said.operations().last().unwrap();
        assert_eq!(last["op"], "remove");
        assert_eq!(last["path"], "/metadata/annotations/kubevirt.io~1ephemeral-hotplug-volumes");
    }

    #[test]
    fn medium_is_put_into_an_empty_drive_and_taken_out() {
        let mut vm = machine();
        let drive = json!({"name": "data", "cdrom": {"bus": "sata"}});
        let disks = vm.pointer_mut("/spec/template/spec/domain/devices/disks").unwrap();
        disks.as_array_mut().unwrap().push(drive);
        let with = after(Verb::Add, &vm, data()).unwrap();
        let spec = &with["spec"]["template"]["spec"];
        assert_eq!(
            spec["domain"]["devices"]["disks"],
            vm["spec"]["template"]["spec"]["domain"]["devices"]["disks"]
        );
        assert_eq!(spec["volumes"][1]["name"], "data");
        assert_eq!(after(Verb::Remove, &with, json!({"name": "data"})).unwrap(), vm);
    }

    #[test]
    fn requests_that_cannot_be_done_are_refused_in_upstreams_words() {
        let with = after(Verb::Add, &machine(), data()).unwrap();
        let mut other = data();
        other["name"] = json!("other");
        let change = |field: &str, value: Value| {
            let mut body = data();
            body[field] = value;
            body
        };
        let none = || change("volumeSource", json!({"emptyDisk": {}}));
        for (object, verb, body, code, text) in [
            (
                &with,
                Verb::Add,
                data(),
                409,
                "Unable to add volume [data] because volume with that name already exists",
            ),
            (&with, Verb::Add, other, 409, "Unable to add volume source [data] because it already exists"),
            (
                &with,
                Verb::Remove,
                json!({"name": "x"}),
                409,
                "Unable to remove volume [x] because it does not exist",
            ),
            (&with, Verb::Remove, json!({"name": "root"}), 409, "because it is not hotpluggable"),
            (&with, Verb::Remove, json!({}), 400, "RemoveVolumeOptions requires name to be set"),
            (&with, Verb::Add, change("name", json!("")), 400, "AddVolumeOptions requires name to be set"),
            (
                &with,
                Verb::Add,
                change("disk", Value::Null),
                400,
                "AddVolumeOptions requires disk to not be nil",
            ),
            (
                &with,
                Verb::Add,
                change("volumeSource", Value::Null),
                400,
                "requires VolumeSource to not be nil",
            ),
            (&with, Verb::Add, none(), 400, "to be a DataVolume or a PersistentVolumeClaim"),
        ] {
            let (found, said) = after(verb, object, body).unwrap_err();
            assert_eq!(found, code, "{said}");
            assert!(said.ends_with(text), "{said}");
        }
        assert!(parse(b"").is_err());
    }
}
