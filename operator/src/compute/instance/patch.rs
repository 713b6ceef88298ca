//! The write that turns an instance's stored status into the desired one; none where they are equal. Pure.
//!
//! Until an instance is handed to an agent, only the controller writes it: a merge patch that fails when the instance
//! changed. Afterwards the agent writes it too: a JSON patch of single members, each guarded by a `test`.

use cluster::JsonPatch;
use serde_json::{Map, Value, json};

use super::status::Desired;
use crate::view::{Instance, condition};

/// A patch and its content type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Patch {
    /// `application/merge-patch+json`.
    Merge(Value),
    /// `application/json-patch+json`.
    Json(JsonPatch),
}

/// The patch from what is stored to `desired`, without `released` finalizers.
pub(super) fn patch(instance: &Instance, desired: &Desired, released: &[&str]) -> Option<Patch> {
    if matches!(instance.status.phase.as_str(), "" | "Pending" | "Scheduling") {
        merge(instance, desired, released).map(Patch::Merge)
    } else {
        members(instance, desired, released).map(Patch::Json)
    }
}

fn merge(instance: &Instance, desired: &Desired, released: &[&str]) -> Option<Value> {
    let before = &instance.status;
    let mut status = Map::new();
    let mut metadata = Map::new();
    if before.phase != desired.phase {
        status.insert("phase".into(), json!(desired.phase));
        status.insert("phaseTransitionTimestamps".into(), json!(desired.phase_transition_timestamps));
    }
    if before.reason != desired.reason {
        status.insert("reason".into(), json!(desired.reason));
    }
    if before.conditions != desired.conditions {
        status.insert("conditions".into(), json!(desired.conditions));
    }
    if let Some(placement) = &desired.placement {
        metadata.insert("labels".into(), json!({"kubevirt.io/nodeName": placement.node}));
        status.insert("nodeName".into(), json!(placement.node));
        status.insert("activePods".into(), json!(placement.active_pods));
        status.insert("runtimeUser".into(), json!(placement.runtime_user));
        if !placement.interfaces.is_empty() {
            status.insert("interfaces".into(), json!(placement.interfaces));
        }
        if !placement.volumes.is_empty() {
            status.insert("volumeStatus".into(), json!(placement.volumes));
        }
        if let Some(image) = &placement.image {
            status.insert("launcherContainerImageVersion".into(), json!(image));
        }
        if let Some(class) = &placement.qos_class {
            status.insert("qosClass".into(), json!(class));
        }
        if let Some(overhead) = &placement.memory_overhead {
            status.insert("memory".into(), json!({"memoryOverhead": overhead}));
        }
    }
    if !released.is_empty() {
        let kept = instance.metadata.finalizers.iter().filter(|one| !released.contains(&one.as_str()));
        metadata.insert("finalizers".into(), kept.cloned().collect());
    }
    if status.is_empty() && metadata.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".into(), json!(instance.metadata.resource_version));
    let mut patch = json!({"metadata": metadata});
    if !status.is_empty() {
        patch["status"] = Value::Object(status);
    }
    Some(patch)
}

fn members(instance: &Instance, desired: &Desired, released: &[&str]) -> Option<JsonPatch> {
    let before = &instance.status;
    let mut patch = JsonPatch::new();
    if before.phase != desired.phase {
        patch = patch.test("/status/phase", &before.phase).replace("/status/phase", &desired.phase);
        let transitions = "/status/phaseTransitionTimestamps";
        patch = match desired.phase_transition_timestamps.last() {
            Some(_) if before.phase_transition_timestamps.is_empty() => {
                patch.add(transitions, &desired.phase_transition_timestamps)
            }
            Some(last) => patch.add(format!("{transitions}/-"), last),
            None => patch,
        };
    }
    if before.reason != desired.reason {
        patch = patch.add("/status/reason", &desired.reason);
    }
    // From the back, so that removals do not move what is before them.
    for (place, one) in before.conditions.iter().enumerate().rev() {
        let path = format!("/status/conditions/{place}");
        let wanted = condition(&desired.conditions, &one.kind);
        if wanted == Some(one) {
            continue;
        }
        patch = patch.test(format!("{path}/type"), &one.kind).test(format!("{path}/status"), &one.status);
        patch = match wanted {
            Some(wanted) => patch.replace(path, wanted),
            None => patch.remove(path),
        };
    }
    let new = desired.conditions.iter().filter(|one| condition(&before.conditions, &one.kind).is_none());
    let new: Vec<_> = new.collect();
    if before.conditions.is_empty() && !new.is_empty() {
        patch = patch.test("/status/conditions", Value::Null).add("/status/conditions", new);
    } else {
        for one in new {
            patch = patch.add("/status/conditions/-", one);
        }
    }
    for (place, finalizer) in instance.metadata.finalizers.iter().enumerate().rev() {
        if released.contains(&finalizer.as_str()) {
            let path = format!("/metadata/finalizers/{place}");
            patch = patch.test(path.as_str(), finalizer).remove(path);
        }
    }
    (!patch.is_empty()).then_some(patch)
}
