//! A VM's plan in words: what the controller does next, or why it does nothing. Pure. Not here: its instance
//! ([`crate::compute::instance`]).

use super::plan::{Observed, Step, plan};
use crate::compute::volumes::{Progress, Readiness};
use crate::compute::{clock, conditions};
use crate::view::is_true;
use virt::machine::Strategy;

/// Sentences, the most important first; none about an instance that the VM keeps.
pub(in crate::compute) fn words(observed: &Observed<'_>, progress: &Progress) -> Vec<String> {
    let machine = observed.machine;
    let plan = plan(observed);
    let mut said = Vec::new();
    if machine.metadata.deleting() {
        said.push("The VM is being deleted.".to_owned());
    }
    let refused = plan.failure.as_ref().map(|failure| format!("{}: {}", failure.reason, failure.message));
    let acts = plan.steps.iter().any(|step| !matches!(step, Step::Wait(_)));
    // The step that failed is tried again, so it is in the plan.
    let stored = is_true(&machine.status.conditions, "Failure").filter(|_| acts && refused.is_none());
    let failed = stored.map(conditions::text);
    said.extend(
        refused.map(|text| format!("The controller does not act on the VM: {}.", text.trim_end_matches('.'))),
    );
    if let Some(text) = &failed {
        said.push(format!("The last step failed: {text}."));
    }
    said.extend(plan.steps.iter().filter_map(|step| next(observed, step, failed.is_some())));
    let idle = plan.failure.is_none() && !plan.steps.iter().any(leads_to_instance);
    if observed.own_instance().is_none() && idle && !machine.metadata.deleting() {
        said.extend(idle_for(observed, progress));
    }
    said
}

/// Whether a step leads to an instance, now or after it.
fn leads_to_instance(step: &Step) -> bool {
    match step {
        Step::CreateDataVolume(_)
        | Step::KeepFlavor(_)
        | Step::CreateInstance { .. }
        | Step::RunAlways
        | Step::Wait(_) => true,
        Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::DeleteInstance
        | Step::DropRevision(_)
        | Step::ReleaseInstance
        | Step::Expand
        | Step::QueueStart
        | Step::AttachDump(_)
        | Step::DetachDump { .. } => false,
    }
}

/// A step in words; `failed`: the controller tried a step and repeats it.
fn next(observed: &Observed<'_>, step: &Step, failed: bool) -> Option<String> {
    Some(match step {
        Step::Wait(time) => {
            let failures = observed.machine.status.start_failure.as_ref();
            let count = failures.map_or(0, |failure| failure.consecutive_fail_count);
            format!("The last {count} starts failed; the next attempt is at {}.", clock::text(*time))
        }
        Step::CreateInstance { .. } if failed => {
            "Its instance is not created; that is tried again.".to_owned()
        }
        Step::CreateInstance { .. } => "Nothing stands in the way; the VM is started now.".to_owned(),
        Step::DeleteInstance => "Its instance is stopped now.".to_owned(),
        Step::CreateDataVolume(name) => format!("DataVolume {name} is created first."),
        Step::KeepFlavor(which) => format!("Its {} is stored in a revision first.", which.field()),
        Step::RunAlways => "A start is requested: the run strategy becomes Always.".to_owned(),
        Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::DropRevision(_)
        | Step::ReleaseInstance
        | Step::Expand
        | Step::QueueStart
        | Step::AttachDump(_)
        | Step::DetachDump { .. } => return None,
    })
}

/// Why no step leads to an instance.
fn idle_for(observed: &Observed<'_>, progress: &Progress) -> Vec<String> {
    let name = &observed.machine.metadata.name;
    if observed.start_wanted() {
        let waits = observed.templates.iter().filter(|volume| {
            matches!(volume.readiness(), Readiness::Waits | Readiness::Missing | Readiness::Failed)
        });
        return waits.map(|volume| volume.words(progress)).collect();
    }
    vec![match observed.strategy() {
        Strategy::Halted => format!("The VM is halted: `virtctl start {name}` starts it."),
        Strategy::Always => "The VM is started at the next reconciliation.".to_owned(),
        strategy @ Strategy::Manual => format!(
            "The run strategy is {} and no start is requested: `virtctl start {name}` does that.",
            strategy.word()
        ),
        strategy @ Strategy::RerunOnFailure => format!(
            "The run strategy is {} and the last run succeeded: `virtctl start {name}` starts another one.",
            strategy.word()
        ),
        strategy @ Strategy::Once => {
            format!(
                "The run strategy is {} and the VM has run: another run strategy starts it.",
                strategy.word()
            )
        }
    }]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::compute::volumes::Volume;
    use crate::view::{DataVolume, Instance, Machine};

    const NOW: u64 = 1_000_000;

    fn said(
        strategy: &str,
        status: Value,
        data_volume: Option<Value>,
        instance: Option<Value>,
    ) -> Vec<String> {
        let mut status = status;
        status["runStrategy"] = status.get("runStrategy").cloned().unwrap_or_else(|| json!(strategy));
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "n", "uid": "v",
                "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"]},
            "spec": {"runStrategy": strategy, "dataVolumeTemplates": [{"metadata": {"name": "root"}}]},
            "status": status,
        }))
        .unwrap();
        let ready = json!({"status": {"phase": "Succeeded"}});
        let data_volume: DataVolume = serde_json::from_value(data_volume.unwrap_or(ready)).unwrap();
        let claim = serde_json::from_value(json!({"status": {"phase": "Bound"}})).unwrap();
        let instance: Option<Instance> = instance.map(|one| serde_json::from_value(one).unwrap());
        let root = Volume {
            claim_name: "root",
            named_data_volume: true,
            claim: Some(&claim),
            data_volume: Some(&data_volume),
        };
        let observed = Observed {
            machine: &machine,
            instance: instance.as_ref(),
            volumes: vec![root],
            templates: vec![root],
            snapshot_classes: BTreeSet::new(),
            expand_all: false,
            now: NOW,
        };
        words(&observed, &Progress::from([("root".to_owned(), "42%".to_owned())]))
    }

    #[test]
    fn each_plan_is_put_into_words() {
        let failed = json!({"startFailure": {"consecutiveFailCount": 3, "lastFailedUID": "x",
            "retryAfterTimestamp": clock::text(NOW + 60)}});
        let quota = json!({"conditions": [{"type": "Failure", "status": "True", "reason": "FailedCreate",
            "message": "exceeded quota: vms."}]});
        let start = json!({"stateChangeRequests": [{"action": "Start"}]});
        let classless = json!({"status": {"phase": "Pending", "conditions": [{"type": "Bound", "status": "False",
            "reason": "ErrClaimNotValid", "message": "there is no default StorageClass."}]}});
        let filling = json!({"status": {"phase": "ImportInProgress"}});
        for (strategy, status, data_volume, expected) in [
            ("Halted", json!({}), None, vec!["The VM is halted: `virtctl start vm` starts it.".to_owned()]),
            (
                "Manual",
                json!({}),
                None,
                vec!["The run strategy is Manual and no start is requested: `virtctl start vm` does that.".to_owned()],
            ),
            ("Manual", start, None, vec!["Nothing stands in the way; the VM is started now.".to_owned()]),
            (
                "Once",
                json!({}),
                None,
                vec!["The run strategy is Once and the VM has run: another run strategy starts it.".to_owned()],
            ),
            (
                "Always",
                failed,
                None,
                vec![format!("The last 3 starts failed; the next attempt is at {}.", clock::text(NOW + 60))],
            ),
            (
                "Always",
                quota.clone(),
                None,
                vec![
                    "The last step failed: FailedCreate: exceeded quota: vms.".to_owned(),
                    "Its instance is not created; that is tried again.".to_owned(),
                ],
            ),
            // A failure that no step repeats is over.
            ("Halted", quota, None, vec!["The VM is halted: `virtctl start vm` starts it.".to_owned()]),
            (
                "Always",
                json!({}),
                Some(classless),
                vec!["DataVolume root is in phase Pending (42%): ErrClaimNotValid: there is no default StorageClass."
                    .to_owned()],
            ),
            (
                "Always",
                json!({}),
                Some(filling),
                vec!["DataVolume root is in phase ImportInProgress (42%).".to_owned()],
            ),
        ] {
            assert_eq!(said(strategy, status, data_volume, None), expected, "{strategy}");
        }
    }

    #[test]
    fn instance_of_another_owner_is_named() {
        let other = json!({"metadata": {"name": "vm", "uid": "i"}});
        let said = said("Always", json!({}), None, Some(other));
        let start = "The controller does not act on the VM: FailedCreate: VirtualMachineInstance vm exists";
        assert!(said.len() == 1 && said[0].starts_with(start), "{said:?}");
    }
}
