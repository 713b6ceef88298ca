//! Events of VirtualMachineInstances. Pure.

use super::hotplug::Change;
use super::plan::{Plan, Step};
use super::status::{CreateError, Desired, NOT_GUARANTEED};
use crate::compute::event::Event;
use crate::compute::launcher::{Purpose, pod_name};
use crate::view::{Condition, Instance, is_false};

/// The event of a step that was done.
pub(super) fn done(step: &Step, instance: &Instance) -> Option<Event> {
    let meta = &instance.metadata;
    let created = |purpose| {
        let name = pod_name(&meta.name, &meta.uid, purpose);
        Some(Event::normal("SuccessfulCreate", format!("Created virtual machine pod {name}")))
    };
    match step {
        Step::CreatePod => created(Purpose::Guest),
        Step::CreateProvisioner => created(Purpose::Provision),
        Step::DeletePod { name, .. } => {
            Some(Event::normal("SuccessfulDelete", format!("Deleted virtual machine pod {name}")))
        }
        Step::CreateAttachment { volume, pod, .. } => {
            let text = format!("Created hotplug attachment pod {pod}, for volume {volume}");
            Some(Event::normal("SuccessfulCreate", text))
        }
        Step::DeleteAttachment { name, volume, .. } => {
            let text = format!("Deleted hotplug attachment pod {name}, for volume {volume}");
            Some(Event::normal("SuccessfulDelete", text))
        }
        Step::CreateState
        | Step::Gate { .. }
        | Step::Networks { .. }
        | Step::ConfirmPods
        | Step::Release(_)
        | Step::Wait(_) => None,
    }
}

/// The events of volumes that leave the instance's status.
pub(super) fn unplugged(changes: &[Change]) -> Vec<Event> {
    let gone = changes.iter().filter_map(|change| match change {
        Change::Remove(_, entry) => Some(&entry.name),
        Change::Add(_) | Change::Set(..) | Change::Claim(..) => None,
    });
    gone.map(|name| Event::normal("VolumeUnplugged", format!("Volume {name} has been unplugged"))).collect()
}

/// The API server's refusal of a pod that the level of its namespace does not allow.
const NOT_ALLOWED: &str = "violates PodSecurity";

/// Why a step could not be done, for the instance's status, and its event.
pub(super) fn refused(step: &Step, instance: &Instance, error: String) -> (CreateError, Event) {
    let refusal = refusal(instance, error);
    let (reason, message, event) = match step {
        Step::CreateAttachment { .. } => {
            let event = Event::warning("FailedCreate", format!("Error creating attachment pod: {refusal}"));
            ("FailedCreate", format!("Error creating attachment pod {refusal}"), event)
        }
        Step::DeleteAttachment { .. } => {
            let message = format!("failed to delete attachment pods: {refusal}");
            ("FailedHotplugSync", message.clone(), Event::warning("FailedHotplugSync", message))
        }
        Step::CreateState => {
            let event = failed(&refusal);
            ("FailedBackendStorageCreate", refusal, event)
        }
        Step::CreatePod
        | Step::CreateProvisioner
        | Step::DeletePod { .. }
        | Step::Gate { .. }
        | Step::Networks { .. }
        | Step::ConfirmPods
        | Step::Release(_)
        | Step::Wait(_) => {
            let event = failed(&refusal);
            ("FailedCreate", refusal, event)
        }
    };
    let attachment = matches!(step, Step::CreateAttachment { .. } | Step::DeleteAttachment { .. });
    (CreateError { reason, message, attachment }, event)
}

/// The reason why a pod could not be created, for the instance's status.
fn refusal(instance: &Instance, error: String) -> String {
    let meta = &instance.metadata;
    match error.contains(NOT_ALLOWED) {
        true => format!(
            "failed to create pod for vmi {}/{}, it needs a privileged namespace to run: {error}",
            meta.namespace, meta.name
        ),
        false => error,
    }
}

/// The event of a pod that could not be created, for this reason.
fn failed(refusal: &str) -> Event {
    let message = match refusal.contains(NOT_ALLOWED) {
        true => format!("failed to render launch manifest: {refusal}"),
        false => format!("Error creating pod: {refusal}"),
    };
    Event::warning("FailedCreate", message)
}

/// The event of an instance whose pod is found not to be Guaranteed, which it has to be.
pub(super) fn not_guaranteed(desired: &Desired, instance: &Instance) -> Option<Event> {
    let is_it = |conditions: &[Condition]| is_false(conditions, "Synchronized") == Some(NOT_GUARANTEED);
    (is_it(&desired.conditions) && !is_it(&instance.status.conditions))
        .then(|| Event::warning(NOT_GUARANTEED, "failed to guarantee pod resources".to_owned()))
}

/// The event of an instance that failed because its node is silent.
pub(super) fn unresponsive(plan: &Plan, instance: &Instance) -> Option<Event> {
    let node = &instance.status.node_name;
    (plan.reason == Some("NodeUnresponsive")).then(|| {
        let message = format!("virt-handler on node {node} is not responsive, marking VMI as failed");
        Event::warning("NodeUnresponsive", message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::status::status;
    use super::super::tests::{Scene, instance, pod};
    use super::*;
    use crate::view::VolumeEntry;

    #[test]
    fn a_guest_with_dedicated_cpus_is_not_handed_over_in_a_pod_that_is_not_guaranteed() {
        let scene = |dedicated: bool, class: &str| {
            let mut instance = instance("Scheduling");
            instance["spec"]["domain"] = json!({
                "cpu": {"cores": 1, "dedicatedCpuPlacement": dedicated}, "memory": {"guest": "1Gi"}, "devices": {},
            });
            let mut pod = pod("Running", true);
            pod["status"]["qosClass"] = json!(class);
            Scene::new(instance, &[pod])
        };
        let warning = || Event::warning(NOT_GUARANTEED, "failed to guarantee pod resources".to_owned());
        for (dedicated, class, phase, expected) in [
            (true, "Burstable", "Scheduling", Some(warning())),
            (true, "Guaranteed", "Scheduled", None),
            (false, "Burstable", "Scheduled", None),
        ] {
            scene(dedicated, class).with(|observed, plan| {
                let desired = status(observed, plan, None);
                assert_eq!(desired.phase, phase, "{dedicated} {class}");
                assert_eq!(not_guaranteed(&desired, observed.instance), expected, "{dedicated} {class}");
                let mut later = observed.instance.clone();
                later.status.conditions.clone_from(&desired.conditions);
                assert_eq!(not_guaranteed(&desired, &later), None, "it is reported once");
            });
        }
    }

    #[test]
    fn a_volume_without_an_entry_any_more_is_unplugged() {
        let entry = |name: &str| VolumeEntry { name: name.to_owned(), ..VolumeEntry::default() };
        let changes = [Change::Set(0, entry("kept"), Box::default()), Change::Remove(1, entry("data"))];
        let events = unplugged(&changes);
        let shown: Vec<_> = events.iter().map(|event| (event.reason, event.message.as_str())).collect();
        assert_eq!(shown, [("VolumeUnplugged", "Volume data has been unplugged")]);
    }
}
