//! ControllerRevisions that keep the instance type and preference of a VM as they were when it first used them. Pure.

use api::instancetype::{VirtualMachineInstancetypeSpec, VirtualMachinePreferenceSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Flavor, GROUP, Which};

/// A revision: its name and the object.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// Name.
    pub name: String,
    /// ControllerRevision.
    pub object: Value,
}

/// Name of the revision of `object` for the VM of this name.
pub fn revision_name(machine: &str, object: &Value) -> String {
    let meta = &object["metadata"];
    let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
    let generation = meta["generation"].as_u64().unwrap_or(0);
    format!("{machine}-{}-{}-{}-{generation}", text("name"), version(object), text("uid"))
}

fn version(object: &Value) -> &str {
    let written = object["apiVersion"].as_str().unwrap_or_default();
    written.rsplit('/').next().unwrap_or_default()
}

/// The revision of an instance type or preference for a VM, which owns it.
pub fn revision(machine: &Value, object: &Value) -> Revision {
    let meta = &machine["metadata"];
    let name = revision_name(meta["name"].as_str().unwrap_or_default(), object);
    let mut kept = object.clone();
    if let Some(fields) = kept.get_mut("metadata").and_then(Value::as_object_mut) {
        fields.remove("managedFields");
    }
    let label = |word: &str| format!("{GROUP}/object-{word}");
    let of = &object["metadata"];
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {
                label("generation"): of["generation"].as_u64().unwrap_or(0).to_string(),
                label("kind"): object["kind"],
                label("name"): of["name"],
                label("uid"): of["uid"],
                label("version"): version(object),
            },
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": meta["name"], "uid": meta["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "data": kept,
        "revision": 0,
    });
    Revision { name, object }
}

/// Reads the spec of an object or of a revision of it into `flavor`.
///
/// # Errors
/// Why it cannot be read, for people.
pub fn read(flavor: &mut Flavor, which: Which, object: &Value) -> Result<(), String> {
    let object = if object["kind"] == "ControllerRevision" { &object["data"] } else { object };
    let kind = object["kind"].as_str().unwrap_or_default();
    if which.resource(kind).is_none() {
        return Err(format!("it holds a {kind:?} instead of the kind for {}", which.field()));
    }
    let spec = object.get("spec").ok_or_else(|| "it has no spec".to_owned())?;
    let broken = |error: serde_json::Error| format!("its spec cannot be read: {error}");
    match which {
        Which::Instancetype => {
            let spec = VirtualMachineInstancetypeSpec::deserialize(spec).map_err(broken)?;
            flavor.instancetype = Some(spec);
        }
        Which::Preference => {
            flavor.preference = Some(VirtualMachinePreferenceSpec::deserialize(spec).map_err(broken)?);
        }
    }
    Ok(())
}
