//! Steps of a VirtualMachineInstanceReplicaSet. Pure; each step can be repeated.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::compute::members::BURST;
use crate::view::{Instance, ReplicaSet, is_true};

/// Instances where the spec gives no number.
const REPLICAS: u32 = 1;
/// Characters of the suffix of names.
const SUFFIX: usize = 5;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the instance of this name.
    Create(String),
    /// Delete the instance of this name and uid.
    Delete(String, String),
}

/// Whether an instance counts: its guest has not ended and it stays.
fn is_active(instance: &Instance) -> bool {
    !instance.is_final() && !instance.metadata.deleting()
}

fn is_ready(instance: &Instance) -> bool {
    is_true(&instance.status.conditions, "Ready").is_some()
}

/// Instances that count, and those of them that are ready.
pub(super) fn counts(members: &[&Instance]) -> (usize, usize) {
    let active = members.iter().filter(|instance| is_active(instance));
    (active.clone().count(), active.filter(|instance| is_ready(instance)).count())
}

/// The steps of a set. `members`: its instances. While workloads are removed with the platform there are none.
pub(super) fn plan(set: &ReplicaSet, members: &[&Instance], removing: bool) -> Vec<Step> {
    if set.metadata.deleting() || set.spec.paused || removing {
        return Vec::new();
    }
    let delete =
        |instance: &&Instance| Step::Delete(instance.metadata.name.clone(), instance.metadata.uid.clone());
    let ended = members.iter().filter(|instance| instance.is_final() && !instance.metadata.deleting());
    let mut steps: Vec<Step> = ended.take(BURST).map(delete).collect();
    let mut active: Vec<&Instance> = members.iter().copied().filter(|instance| is_active(instance)).collect();
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(REPLICAS)).unwrap_or(usize::MAX);
    if active.len() < wanted {
        let missing = (wanted - active.len()).min(BURST);
        let names: Vec<&str> = members.iter().map(|instance| instance.metadata.name.as_str()).collect();
        let candidates = (0..).map(|index| name(set, index)).filter(|name| !names.contains(&name.as_str()));
        steps.extend(candidates.take(missing).map(Step::Create));
    } else {
        // Unready instances carry no load; of the others, the newest has the least state.
        active.sort_by_key(|instance| {
            let created = instance.metadata.creation_timestamp.clone();
            (is_ready(instance), std::cmp::Reverse((created, instance.metadata.uid.clone())))
        });
        steps.extend(active.iter().take((active.len() - wanted).min(BURST)).map(delete));
    }
    steps
}

/// Name of an instance: it follows from the set and a number, so that a repeated create makes no second one.
fn name(set: &ReplicaSet, index: u64) -> String {
    let digest = Sha256::new()
        .chain_update(&set.metadata.uid)
        .chain_update("/")
        .chain_update(index.to_string())
        .finalize();
    let suffix = digest.iter().take(SUFFIX).map(|byte| char::from(BASE32[usize::from(byte % 32)]));
    format!("{}{}", set.metadata.name, suffix.collect::<String>())
}

/// The instance of a name, from the whole set.
pub(super) fn instance(set: &Value, name: &str) -> Value {
    let template = &set["spec"]["template"];
    let meta = &set["metadata"];
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": template["metadata"].get("labels").cloned().unwrap_or_else(|| json!({})),
            "annotations": template["metadata"].get("annotations").cloned().unwrap_or_else(|| json!({})),
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
                "name": meta["name"], "uid": meta["uid"], "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(replicas: u32) -> ReplicaSet {
        let object = json!({"metadata": {"name": "web", "uid": "u"}, "spec": {"replicas": replicas}});
        serde_json::from_value(object).unwrap()
    }

    fn member(name: &str, created: &str, phase: &str, ready: bool) -> Instance {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "creationTimestamp": created},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn names(steps: &[Step]) -> Vec<String> {
        let show = |step: &Step| match step {
            Step::Create(name) => format!("+{name}"),
            Step::Delete(name, _) => format!("-{name}"),
        };
        steps.iter().map(show).collect()
    }

    #[test]
    fn missing_instances_are_created_under_names_that_stay() {
        let steps = plan(&set(3), &[], false);
        assert_eq!(steps.len(), 3);
        assert_eq!(steps, plan(&set(3), &[], false), "a repeated reconciliation creates the same");
        let Step::Create(first) = &steps[0] else { panic!("{steps:?}") };
        assert!(first.starts_with("web") && first.len() == 8, "{first}");
        let there = member(first, "2026-01-01T00:00:00Z", "Running", true);
        assert_eq!(plan(&set(3), &[&there], false), steps[1..], "names that exist are not used again");
        assert_eq!(plan(&set(1000), &[], false).len(), BURST);
    }

    #[test]
    fn ended_instances_are_replaced() {
        let ended = member("webended", "2026-01-01T00:00:00Z", "Failed", false);
        let steps = plan(&set(1), &[&ended], false);
        assert_eq!(names(&steps)[0], "-webended");
        assert!(names(&steps)[1].starts_with("+web"));
        let mut going = ended;
        going.metadata.deletion_timestamp = Some("2026-01-01T00:00:01Z".into());
        assert_eq!(plan(&set(1), &[&going], false).len(), 1, "its deletion is not asked for twice");
    }

    #[test]
    fn unready_and_new_instances_go_first() {
        let members = [
            member("old", "2026-01-01T00:00:00Z", "Running", true),
            member("new", "2026-01-03T00:00:00Z", "Running", true),
            member("starting", "2026-01-02T00:00:00Z", "Scheduling", false),
        ];
        let all: Vec<&Instance> = members.iter().collect();
        assert_eq!(counts(&all), (3, 2));
        assert_eq!(names(&plan(&set(1), &all, false)), ["-starting", "-new"]);
        assert_eq!(names(&plan(&set(0), &all, false)).len(), 3);
        assert_eq!(plan(&set(3), &all, false), []);
    }

    #[test]
    fn paused_and_deleted_sets_change_nothing() {
        let mut paused = set(3);
        paused.spec.paused = true;
        assert_eq!(plan(&paused, &[], false), []);
        let mut deleted = set(3);
        deleted.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".into());
        assert_eq!(plan(&deleted, &[], false), []);
    }

    #[test]
    fn nothing_is_made_again_while_workloads_are_removed() {
        let ended = member("webended", "2026-01-01T00:00:00Z", "Failed", false);
        assert_eq!(plan(&set(3), &[&ended], true), []);
        assert_eq!(plan(&set(3), &[&ended], false).len(), 4);
    }

    #[test]
    fn instance_carries_the_template_and_its_owner() {
        let whole = json!({"metadata": {"name": "web", "namespace": "n", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {}}}}});
        let one = instance(&whole, "webxyz");
        assert_eq!(one["metadata"]["labels"]["a"], "b");
        assert_eq!(one["metadata"]["ownerReferences"][0]["kind"], "VirtualMachineInstanceReplicaSet");
        assert_eq!(one["spec"], json!({"domain": {}}));
    }
}
