//! The objects that a VirtualMachine makes: its instance, the revision that this started from, its DataVolumes. Pure; all
//! names follow from the VM, so that creating twice is harmless.

use api::kubevirt::VirtualMachine;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use virt::instancetype::{Flavor, Which};

use super::plan::{FINALIZER, revision_name};
use crate::compute::instance;
use crate::compute::launcher::SKIP_HOOKS;
use crate::fill::fill;

/// The reference by which a VM owns an object.
fn owner(machine: &Value) -> Value {
    json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "name": machine["metadata"]["name"], "uid": machine["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    }])
}

fn uid(machine: &Value) -> &str {
    machine.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default()
}

/// The guest of the instance, as the template has it now.
pub(super) fn guest(machine: &Value) -> Value {
    let mut spec = machine["spec"]["template"]["spec"].clone();
    identity(&mut spec, uid(machine));
    spec
}

/// The instance. `paused`: its guest does not run until it is unpaused.
pub(super) fn instance(machine: &Value, paused: bool) -> Value {
    let template = &machine["spec"]["template"];
    let of_template = |field: &str| template["metadata"].get(field).and_then(Value::as_object).cloned();
    let mut annotations = of_template("annotations").unwrap_or_default();
    let generation = machine["metadata"]["generation"].as_u64().unwrap_or(0);
    annotations.insert("kubevirt.io/vm-generation".to_owned(), json!(generation.to_string()));
    // The one annotation of the VM itself that its instance has.
    if machine["metadata"]["annotations"][SKIP_HOOKS] == "true" {
        annotations.insert(SKIP_HOOKS.to_owned(), json!("true"));
    }
    let mut spec = guest(machine);
    if paused {
        spec["startStrategy"] = json!("Paused");
    }
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": machine["metadata"]["name"],
            "namespace": machine["metadata"]["namespace"],
            "labels": of_template("labels").unwrap_or_default(),
            "annotations": annotations,
            "ownerReferences": owner(machine),
            "finalizers": [instance::FINALIZER, FINALIZER],
        },
        "spec": spec,
        "status": {"virtualMachineRevisionName": revision_name(uid(machine), generation)},
    })
}

/// The VM with instance type and preference in its template. Its instance is made of it.
///
/// # Errors
/// The fields in conflict, or why the VM cannot be read.
pub(super) fn flavored(machine: &Value, flavor: &Flavor) -> Result<Value, String> {
    if flavor.is_empty() {
        return Ok(machine.clone());
    }
    let typed = VirtualMachine::deserialize(machine);
    let mut typed = typed.map_err(|error| format!("the VirtualMachine cannot be read: {error}"))?;
    for which in Which::BOTH {
        let Some(reference) = which.of(&typed) else { continue };
        let annotation = virt::instancetype::annotation(which, reference.kind.as_deref().unwrap_or_default());
        let name = reference.name.clone().unwrap_or_default();
        typed.spec.template.metadata.annotations.insert(annotation, name);
    }
    expand(&mut typed, flavor)?;
    let spec = serde_json::to_value(&typed.spec);
    let spec = spec.map_err(|error| format!("the VirtualMachine cannot be written: {error}"))?;
    let mut made = machine.clone();
    made["spec"] = spec;
    Ok(made)
}

fn expand(machine: &mut VirtualMachine, flavor: &Flavor) -> Result<(), String> {
    virt::instancetype::expand(machine, flavor).map_err(|conflicts| {
        format!("VM field(s) {} conflicts with selected instance type", conflicts.join(", "))
    })
}

/// The VM as users read it with instance type and preference in its template, and no references to them.
///
/// # Errors
/// The fields in conflict, or why the VM cannot be read.
pub(super) fn expanded(machine: &Value, flavor: &Flavor) -> Result<Value, String> {
    let mut made = machine.clone();
    let mut done = Err("the VirtualMachine cannot be read".to_owned());
    fill::<VirtualMachine>(&mut made, |machine| done = expand(machine, flavor));
    done.map(|()| made)
}

/// The identity of a guest stays over restarts: firmware UUID and MAC addresses come from the VM's uid where neither a user
/// nor admission set them.
fn identity(spec: &mut Value, uid: &str) {
    if spec.pointer("/domain/firmware/uuid").is_none() {
        if !spec["domain"]["firmware"].is_object() {
            spec["domain"]["firmware"] = json!({});
        }
        spec["domain"]["firmware"]["uuid"] = json!(uid);
    }
    let interfaces = spec.pointer_mut("/domain/devices/interfaces").and_then(Value::as_array_mut);
    for interface in interfaces.into_iter().flatten() {
        if interface.get("macAddress").is_none_or(|mac| mac.as_str().is_none_or(str::is_empty)) {
            let name = interface.get("name").and_then(Value::as_str).unwrap_or_default();
            interface["macAddress"] = json!(mac(uid, name));
        }
    }
}

/// A MAC address that follows from a VM's uid and an interface's name: unicast, locally administered.
pub(super) fn mac(uid: &str, interface: &str) -> String {
    let digest = Sha256::new().chain_update(uid).chain_update("/").chain_update(interface).finalize();
    let rest: String = digest.iter().take(5).map(|byte| format!(":{byte:02x}")).collect();
    format!("02{rest}")
}

/// The revision that a start is from: the VM's spec as it is then.
pub(super) fn revision(machine: &Value) -> Value {
    let generation = machine["metadata"]["generation"].as_u64().unwrap_or(0);
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name(uid(machine), generation),
            "namespace": machine["metadata"]["namespace"],
            "ownerReferences": owner(machine),
        },
        "data": {"spec": machine["spec"]},
        "revision": generation,
    })
}

/// The DataVolume of a template; none if the VM has no template of that name.
pub(super) fn data_volume(machine: &Value, name: &str) -> Option<Value> {
    let templates = machine.pointer("/spec/dataVolumeTemplates")?.as_array()?;
    let template = templates.iter().find(|template| template["metadata"]["name"] == name)?;
    let of_template = |field: &str| -> Map<String, Value> {
        template["metadata"].get(field).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let mut labels = of_template("labels");
    labels.insert("kubevirt.io/created-by".to_owned(), json!(uid(machine)));
    let mut annotations = of_template("annotations");
    let adopt = annotations.entry("cdi.kubevirt.io/allowClaimAdoption");
    adopt.or_insert(json!("true"));
    Some(json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {
            "name": name,
            "namespace": machine["metadata"]["namespace"],
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": owner(machine),
        },
        "spec": template["spec"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "n", "uid": "6a1a24a1-4061-4607-8bf4-a3963d0c5895", "generation": 3},
            "spec": {
                "runStrategy": "Always",
                "dataVolumeTemplates": [{"metadata": {"name": "root", "labels": {"a": "b"}}, "spec": {"storage": {}}}],
                "template": {
                    "metadata": {"labels": {"app": "web"}, "annotations": {"x": "y"}},
                    "spec": {"domain": {"devices": {"interfaces": [
                        {"name": "default", "masquerade": {}}, {"name": "lan", "macAddress": "02:00:00:00:00:01"},
                    ]}}},
                },
            },
        })
    }

    #[test]
    fn instance_is_made_of_the_template() {
        let one = instance(&machine(), false);
        assert_eq!(one["metadata"]["labels"], json!({"app": "web"}));
        assert_eq!(one["metadata"]["annotations"], json!({"x": "y", "kubevirt.io/vm-generation": "3"}));
        assert_eq!(one["metadata"]["finalizers"].as_array().map(Vec::len), Some(2));
        assert_eq!(one["metadata"]["ownerReferences"][0]["controller"], true);
        assert_eq!(one["spec"]["domain"]["firmware"]["uuid"], "6a1a24a1-4061-4607-8bf4-a3963d0c5895");
        let kept = revision(&machine())["metadata"]["name"].clone();
        assert_eq!(one["status"], json!({"virtualMachineRevisionName": kept}));
        assert_eq!(one.pointer("/spec/startStrategy"), None);
        assert_eq!(instance(&machine(), true)["spec"]["startStrategy"], "Paused");
    }

    #[test]
    fn of_the_annotations_of_a_vm_only_that_against_backup_hooks_reaches_its_instance() {
        let mut machine = machine();
        for (value, wanted) in [("true", json!("true")), ("false", Value::Null)] {
            machine["metadata"]["annotations"] = json!({SKIP_HOOKS: value, "kubevirt.io/other": "x"});
            let annotations = &instance(&machine, false)["metadata"]["annotations"];
            assert_eq!(annotations[SKIP_HOOKS], wanted);
            assert_eq!(annotations["kubevirt.io/other"], Value::Null);
        }
    }

    #[test]
    fn instance_carries_its_instance_type_and_reports_it() {
        let mut machine = machine();
        machine["spec"]["instancetype"] =
            json!({"name": "u1.small", "kind": "VirtualMachineClusterInstancetype"});
        let size = json!({"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}});
        let flavor =
            Flavor { instancetype: Some(serde_json::from_value(size).unwrap()), ..Flavor::default() };
        let one = instance(&flavored(&machine, &flavor).unwrap(), false);
        assert_eq!(one["spec"]["domain"]["cpu"], json!({"sockets": 2, "cores": 1, "threads": 1}));
        assert_eq!(one["spec"]["domain"]["memory"]["guest"], "2Gi");
        let annotations = &one["metadata"]["annotations"];
        assert_eq!(annotations["kubevirt.io/cluster-instancetype-name"], "u1.small");
        assert_eq!(annotations["x"], "y");
        assert_eq!(one["spec"]["domain"]["devices"]["interfaces"][1]["macAddress"], "02:00:00:00:00:01");
        machine["spec"]["template"]["spec"]["domain"]["memory"] = json!({"guest": "1Gi"});
        let conflict = flavored(&machine, &flavor).unwrap_err();
        assert!(conflict.contains("spec.template.spec.domain.memory.guest"), "{conflict}");
    }

    #[test]
    fn mac_stays_over_restarts_and_is_only_made_where_none_is_given() {
        let interfaces = |one: &Value| one["spec"]["domain"]["devices"]["interfaces"].clone();
        let (first, second) = (instance(&machine(), false), instance(&machine(), false));
        assert_eq!(interfaces(&first), interfaces(&second));
        assert_eq!(interfaces(&first)[1]["macAddress"], "02:00:00:00:00:01");
        let made = interfaces(&first)[0]["macAddress"].as_str().unwrap().to_owned();
        assert!(made.starts_with("02:") && made.len() == 17, "{made}");
        assert_ne!(mac("a", "x"), mac("b", "x"));
        assert_ne!(mac("a", "x"), mac("a", "y"));
    }

    #[test]
    fn an_expanded_machine_has_values_in_place_of_references() {
        let mut flavor = Flavor::default();
        let small = json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": "small"}, "spec": {"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}},
        });
        virt::instancetype::read(&mut flavor, Which::Instancetype, &small).unwrap();
        let mut machine = machine();
        machine["spec"]["instancetype"] =
            json!({"name": "small", "kind": "VirtualMachineClusterInstancetype"});
        let made = expanded(&machine, &flavor).unwrap();
        assert_eq!(made["spec"].get("instancetype"), None);
        let domain = &made["spec"]["template"]["spec"]["domain"];
        assert_eq!((&domain["cpu"]["sockets"], &domain["memory"]["guest"]), (&json!(2), &json!("1Gi")));
        assert_eq!(made["spec"]["template"]["metadata"], machine["spec"]["template"]["metadata"]);
        machine["spec"]["template"]["spec"]["domain"]["cpu"] = json!({"sockets": 1});
        assert!(expanded(&machine, &flavor).unwrap_err().contains("conflicts with selected instance type"));
    }

    #[test]
    fn data_volume_is_owned_by_the_machine() {
        let volume = data_volume(&machine(), "root").unwrap();
        let labels = json!({"a": "b", "kubevirt.io/created-by": "6a1a24a1-4061-4607-8bf4-a3963d0c5895"});
        assert_eq!(volume["metadata"]["labels"], labels);
        assert_eq!(volume["metadata"]["annotations"]["cdi.kubevirt.io/allowClaimAdoption"], "true");
        assert_eq!(data_volume(&machine(), "other"), None);
    }
}
