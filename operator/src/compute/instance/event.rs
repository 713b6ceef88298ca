//! Events of VirtualMachineInstances. Pure.

use super::hotplug::Change;
use super::plan::{Plan, Step};
use super::status::CreateError;
use crate::compute::event::Event;
use crate::compute::launcher::{Purpose, pod_name};
use crate::view::Instance;

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
    use super::*;
    use crate::view::VolumeEntry;

    #[test]
    fn a_volume_without_an_entry_any_more_is_unplugged() {
        let entry = |name: &str| VolumeEntry { name: name.to_owned(), ..VolumeEntry::default() };
        let changes = [Change::Set(0, entry("kept"), Box::default()), Change::Remove(1, entry("data"))];
        let events = unplugged(&changes);
        let shown: Vec<_> = events.iter().map(|event| (event.reason, event.message.as_str())).collect();
        assert_eq!(shown, [("VolumeUnplugged", "Volume data has been unplugged")]);
    }
}
