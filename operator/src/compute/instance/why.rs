//! An instance's plan and status in words: where its guest runs, or what stands between it and its guest. Pure.

use super::plan::{Observed, Step, Storage, plan};
use super::status::{CreateError, Desired, status};
use crate::compute::launcher::State;
use crate::compute::volumes::{Progress, Readiness};
use crate::compute::{clock, conditions};
use crate::view::{condition, is_true};

/// Reasons of Synchronized=False that the controller sets after a create failed.
const FAILURES: [&str; 2] = ["FailedCreate", "FailedBackendStorageCreate"];

/// Sentences, the most important first.
pub(in crate::compute) fn words(observed: &Observed<'_>, progress: &Progress) -> Vec<String> {
    let planned = plan(observed);
    let creates = |step: &Step| matches!(step, Step::CreatePod | Step::CreateState | Step::CreateProvisioner);
    // The create that failed is tried again, so it is in the plan.
    let refused = planned.steps.iter().any(creates).then(|| failure(observed)).flatten();
    let after = status(observed, &planned, refused.as_ref());
    let mut said = vec![phase(observed, &after)];
    if observed.node_unresponsive() {
        said.push(format!("The agent of node {} does not report.", observed.instance.status.node_name));
    }
    if matches!(after.phase.as_str(), "Pending" | "Scheduling") {
        said.extend(volumes(observed, progress));
        match observed.state {
            State::Missing => said.push("The claim for its TPM or EFI state is created first.".to_owned()),
            State::Going => said.push("The claim for its TPM or EFI state is being deleted.".to_owned()),
            State::Unneeded | State::There(_) => {}
        }
        if let (None, None) = (observed.launcher(), &refused)
            && planned.steps.contains(&Step::CreatePod)
        {
            said.push("Its launcher pod is created now.".to_owned());
        }
    }
    let of = |kind: &str| condition(&after.conditions, kind).filter(|one| one.status == "False");
    let storage = matches!(observed.storage(), Storage::Missing(_));
    // A missing claim is both conditions' reason, and named above.
    if let Some(one) = of("PodScheduled").filter(|_| !storage) {
        said.push(format!("Its launcher pod is not scheduled: {}.", conditions::text(one)));
    }
    if let Some(one) = of("Synchronized").filter(|_| !storage) {
        said.push(format!("It is not synchronized: {}.", conditions::text(one)));
    }
    for step in &planned.steps {
        if let Step::Wait(time) = step
            && observed.instance.metadata.deleting()
        {
            said.push(format!("Its guest has until {} to shut down.", clock::text(*time)));
        }
    }
    said
}

/// The failure of a create that the controller reported.
fn failure(observed: &Observed<'_>) -> Option<CreateError> {
    let before = condition(&observed.instance.status.conditions, "Synchronized")?;
    let reason = FAILURES.into_iter().find(|reason| before.reason.as_deref() == Some(reason))?;
    Some(CreateError { reason, message: before.message.clone().unwrap_or_default(), attachment: false })
}

fn phase(observed: &Observed<'_>, after: &Desired) -> String {
    let phase = after.phase.as_str();
    let node = observed.instance.status.node_name.as_str();
    let place = if node.is_empty() { String::new() } else { format!(" on node {node}") };
    if observed.instance.metadata.deleting() {
        return format!("Its instance is being stopped{place} (phase {phase}).");
    }
    match phase {
        "Running" if is_true(&after.conditions, "Paused").is_some() => format!("The VM is paused{place}."),
        "Running" => format!("The VM runs{place}."),
        _ => {
            let reason = after.reason.as_deref().filter(|_| phase == "Failed");
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("Its instance is in phase {phase}{place}{reason}.")
        }
    }
}

/// Volumes that are not there, not filled or not bound.
fn volumes(observed: &Observed<'_>, progress: &Progress) -> Vec<String> {
    let waits = observed.volumes.iter().filter(|volume| {
        volume.readiness() != Readiness::Usable || volume.claim.is_some_and(|claim| !claim.is_bound())
    });
    waits.map(|volume| volume.words(progress)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{NOW, Scene, instance, pod};
    use super::*;

    fn said(scene: &Scene) -> Vec<String> {
        scene.with(|observed, _| words(observed, &Progress::new()))
    }

    fn unbound(class: Option<&str>) -> Value {
        json!({"metadata": {"name": "root"}, "spec": {"storageClassName": class}, "status": {"phase": "Pending"}})
    }

    #[test]
    fn plan_and_status_are_put_into_words() {
        let mut queued = instance("Pending");
        queued["status"]["nodeName"] = json!("");
        let fresh = || Scene::new(queued.clone(), &[]);
        assert_eq!(
            said(&fresh()),
            ["Its instance is in phase Scheduling.", "Its launcher pod is created now."],
            "the phase that the plan leads to"
        );

        let mut quota = queued.clone();
        quota["status"]["conditions"] = json!([{"type": "Synchronized", "status": "False",
            "reason": "FailedCreate", "message": "pods is forbidden: exceeded quota: memory"}]);
        let quota = Scene::new(quota, &[]);
        assert_eq!(
            said(&quota),
            [
                "Its instance is in phase Pending.",
                "It is not synchronized: FailedCreate: pods is forbidden: exceeded quota: memory.",
            ]
        );

        let missing = Scene { has_volume: true, ..fresh() };
        assert_eq!(
            said(&missing),
            ["Its instance is in phase Pending.", "PersistentVolumeClaim root does not exist."]
        );
        for (class, expected) in [
            (
                Some("fast"),
                "PersistentVolumeClaim root is Pending (StorageClass fast): `kubectl describe pvc root` shows why.",
            ),
            (
                None,
                "PersistentVolumeClaim root is Pending and has no StorageClass: name one, or make one the default.",
            ),
        ] {
            let mut waiting = pod("Pending", false);
            waiting["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "0/1 nodes are available: pod has unbound claims."}]);
            let mut placed = queued.clone();
            placed["status"]["phase"] = json!("Scheduling");
            let scene =
                Scene { has_volume: true, claim: Some(unbound(class)), ..Scene::new(placed, &[waiting]) };
            assert_eq!(
                said(&scene),
                [
                    "Its instance is in phase Scheduling.",
                    expected,
                    "Its launcher pod is not scheduled: Unschedulable: 0/1 nodes are available: pod has unbound claims.",
                ]
            );
        }

        let mut image = pod("Pending", false);
        image["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
        let mut pulling = queued.clone();
        pulling["status"]["phase"] = json!("Scheduling");
        assert_eq!(
            said(&Scene::new(pulling, &[image])),
            [
                "Its instance is in phase Scheduling.",
                "It is not synchronized: ImagePullBackOff: no such image."
            ]
        );
    }

    #[test]
    fn guests_that_run_stop_or_ended_are_named_with_their_node() {
        let running = Scene::new(instance("Running"), &[pod("Running", true)]);
        assert_eq!(said(&running), ["The VM runs on node node-1."]);
        let mut paused = instance("Running");
        paused["status"]["conditions"] = json!([{"type": "Paused", "status": "True"}]);
        assert_eq!(said(&Scene::new(paused, &[pod("Running", true)])), ["The VM is paused on node node-1."]);
        let stopping = super::super::tests::deleted("Running");
        let expected = [
            "Its instance is being stopped on node node-1 (phase Running).".to_owned(),
            format!("Its guest has until {} to shut down.", clock::text(NOW - 5 + 30 + 15)),
        ];
        assert_eq!(said(&Scene::new(stopping, &[pod("Running", true)])), expected);
        let lost = Scene { heartbeat: NOW - 1000, ..Scene::new(instance("Running"), &[]) };
        assert_eq!(
            said(&lost),
            [
                "Its instance is in phase Failed on node node-1: NodeUnresponsive.",
                "The agent of node node-1 does not report.",
            ]
        );
    }
}
