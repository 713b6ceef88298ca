//! Conditions of a VirtualMachine: its own, and those of its instance.

use api::kubevirt::VirtualMachineInstance;
use api::resource::Condition;

use super::{condition, holds, without};

/// Condition of a machine whose instance has another template.
pub const RESTART: &str = "RestartRequired";
/// Condition of a machine after a failed step.
pub const FAILURE: &str = "Failure";
/// Conditions that are the machine's own; every other one is a copy of its instance's.
const OWN: [&str; 6] = ["Ready", FAILURE, RESTART, "Initialized", "FieldsWithoutEffect", "ManuallyStopped"];

/// Brings the conditions of a machine in line with its instance, the error of its last step (reason and text), and whether
/// the template needs a restart. Copies of an instance's conditions stay when the instance is gone, but for `Ready`.
pub fn conditions(
    conditions: &mut Vec<Condition>,
    instance: Option<&VirtualMachineInstance>,
    failure: Option<(&str, &str)>,
    restart: bool,
) {
    let of_instance = instance.and_then(|one| one.status.as_ref()).map(|status| &status.conditions[..]);
    ready(conditions, instance.is_some(), of_instance.unwrap_or_default());
    if let (Some(_), Some(theirs)) = (instance, of_instance) {
        copy(conditions, theirs);
    }
    match failure {
        Some((reason, text)) => condition(conditions, FAILURE, true, reason, text),
        None => without(conditions, FAILURE),
    }
    if restart {
        let text = "a non-live-updatable field was changed in the template spec";
        condition(conditions, RESTART, true, "RestartRequired", text);
    } else {
        without(conditions, RESTART);
    }
}

/// `Ready`: the instance's, or that there is none.
fn ready(conditions: &mut Vec<Condition>, exists: bool, of_instance: &[Condition]) {
    if !exists {
        return condition(conditions, "Ready", false, "VMINotExists", "VMI does not exist");
    }
    match of_instance.iter().find(|one| one.kind == "Ready") {
        Some(theirs) => {
            without(conditions, "Ready");
            conditions.push(theirs.clone());
        }
        None => {
            let text = "Guest VM is not reported as running";
            condition(conditions, "Ready", false, "GuestNotRunning", text);
        }
    }
}

/// Copies the instance's conditions to the machine's own.
fn copy(conditions: &mut Vec<Condition>, theirs: &[Condition]) {
    let is_own = |one: &Condition| OWN.contains(&one.kind.as_str());
    conditions.retain(is_own);
    conditions.extend(theirs.iter().filter(|one| !is_own(one)).cloned());
}

/// Whether the machine has the condition that its template needs a restart.
pub fn needs_restart(conditions: &[Condition]) -> bool {
    holds(conditions, RESTART).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn instance(conditions: &serde_json::Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({"status": {"conditions": conditions}})).unwrap()
    }

    fn words(conditions: &[Condition]) -> Vec<String> {
        let mut words: Vec<String> =
            conditions.iter().map(|one| format!("{}={}", one.kind, one.status)).collect();
        words.sort();
        words
    }

    #[test]
    fn a_machine_has_its_instances_conditions_and_its_own() {
        let mut all = Vec::new();
        conditions(&mut all, None, Some(("FailedCreate", "quota")), false);
        assert_eq!(words(&all), ["Failure=True", "Ready=False"]);
        assert_eq!(all[0].reason.as_deref(), Some("VMINotExists"));
        let paused = json!([{"type": "Ready", "status": "False", "reason": "GuestNotRunning"},
            {"type": "Paused", "status": "True"}, {"type": "FieldsWithoutEffect", "status": "True"}]);
        conditions(&mut all, Some(&instance(&paused)), None, true);
        assert_eq!(words(&all), ["Paused=True", "Ready=False", "RestartRequired=True"]);
        let running =
            json!([{"type": "Ready", "status": "True"}, {"type": "AgentConnected", "status": "True"}]);
        conditions(&mut all, Some(&instance(&running)), None, false);
        assert_eq!(words(&all), ["AgentConnected=True", "Ready=True"]);
        conditions(&mut all, None, None, false);
        assert_eq!(words(&all), ["AgentConnected=True", "Ready=False"], "the last ones stay");
    }
}
