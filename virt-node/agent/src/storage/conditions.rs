//! Conditions of a claim: those about its size and about its VolumeAttributesClass. Pure.

use serde_json::{Value, json};

use super::objects::Claim;

/// Conditions about a claim's size.
pub(super) const SIZE: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];
/// The volume gets the attributes of another class.
pub(super) const MODIFYING: &str = "ModifyingVolume";
/// It did not.
pub(super) const MODIFY_ERROR: &str = "ModifyVolumeError";
/// Conditions about a claim's VolumeAttributesClass.
pub(super) const ATTRIBUTES: [&str; 2] = [MODIFYING, MODIFY_ERROR];

/// The claim's conditions with `ours` in place of all that have one of the types `of`; null for none, as a merge patch
/// removes them.
pub(super) fn with(claim: &Claim, of: &[&str], ours: impl IntoIterator<Item = Value>) -> Value {
    let is_anothers = |one: &&Value| {
        let kind = one.get("type").and_then(Value::as_str).unwrap_or_default();
        !of.contains(&kind)
    };
    let all: Vec<Value> = claim.status.conditions.iter().filter(is_anothers).cloned().chain(ours).collect();
    if all.is_empty() { Value::Null } else { Value::Array(all) }
}

/// A condition that holds since now; an empty reason and message are left out.
pub(super) fn condition(kind: &str, reason: &str, message: &str) -> Value {
    let mut condition = json!({
        "type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": virt::time::text(virt::time::now()),
    });
    for (key, text) in [("reason", reason), ("message", message)] {
        if let Some(object) = condition.as_object_mut().filter(|_| !text.is_empty()) {
            object.insert(key.to_owned(), json!(text));
        }
    }
    condition
}
