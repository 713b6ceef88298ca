//! Events of VirtualMachines. Pure.

use super::plan::{Failure, Observed, Step};
use crate::compute::event::Event;
use crate::compute::volumes::Readiness;
use crate::storage::clone::authorize::Origin;
use virt::instancetype::Which;

/// The event of a step that was done.
pub(super) fn done(step: &Step, observed: &Observed<'_>) -> Option<Event> {
    match step {
        Step::CreateInstance { .. } => Some(Event::normal(
            "SuccessfulCreate",
            format!(
                "Started the virtual machine by creating the new virtual machine instance {}",
                observed.machine.metadata.name
            ),
        )),
        Step::DeleteInstance => Some(Event::normal(
            "SuccessfulDelete",
            format!(
                "Stopped the virtual machine by deleting the virtual machine instance {}",
                observed.own_instance().map_or("", |instance| &instance.metadata.uid)
            ),
        )),
        Step::CreateDataVolume(name) => {
            Some(Event::normal("SuccessfulDataVolumeCreate", format!("Created DataVolume {name}")))
        }
        Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::DropRevision(_)
        | Step::ReleaseInstance
        | Step::KeepFlavor(_)
        | Step::Expand
        | Step::QueueStart
        | Step::RunAlways
        | Step::AttachDump(_)
        | Step::DetachDump { .. }
        | Step::Wait(_) => None,
    }
}

/// The events of DataVolumes that failed, unless the VM's status reports such a failure already.
pub(super) fn imports(observed: &Observed<'_>) -> Vec<Event> {
    if observed.machine.status.printable_status == "DataVolumeError" {
        return Vec::new();
    }
    let failed = observed.templates.iter().filter(|volume| volume.readiness() == Readiness::Failed);
    let event = |name: &str| {
        Event::warning("FailedDataVolumeImport", format!("DataVolume {name} failed to import disk image"))
    };
    failed.map(|volume| event(volume.claim_name)).collect()
}

/// The event of a DataVolume that is a clone of a claim which does not exist.
pub(super) fn without_source(origin: &Origin, exists: bool, volume: &str) -> Option<Event> {
    (!origin.snapshot && !exists).then(|| {
        let message = format!(
            "Source PVC {} not available: Target PVC {volume} will remain unpopulated until source is created",
            origin.name
        );
        Event::warning("SourcePVCNotAvailabe", message)
    })
}

/// The condition Failure and the event of a step that failed with `error`. `denied`: the VM's account lacks a right.
pub(super) fn failed(step: &Step, error: &str, denied: bool) -> (Failure, Option<Event>) {
    let (reason, message) = match step {
        Step::CreateInstance { .. } => (
            "FailedCreate",
            format!("Failure while starting VMI: failed to create virtual machine instance: {error}"),
        ),
        Step::DeleteInstance => ("FailedDelete", format!("Failure while stopping VMI: {error}")),
        Step::CreateDataVolume(name) if denied => {
            ("UnauthorizedDataVolumeCreate", format!("Not authorized to create DataVolume {name}: {error}"))
        }
        Step::CreateDataVolume(name) => {
            ("FailedDataVolumeCreate", format!("Error creating DataVolume {name}: {error}"))
        }
        Step::KeepFlavor(which) => {
            let reason = match which {
                Which::Instancetype => "FailedFindInstancetype",
                Which::Preference => "FailedFindPreference",
            };
            (reason, format!("error encountered while storing the {} of the VM: {error}", which.field()))
        }
        Step::AddFinalizer
        | Step::RemoveFinalizer
        | Step::DropRevision(_)
        | Step::ReleaseInstance
        | Step::Expand
        | Step::QueueStart
        | Step::RunAlways
        | Step::AttachDump(_)
        | Step::DetachDump { .. }
        | Step::Wait(_) => {
            return (
                Failure { reason: "FailedUpdate", message: format!("Failed to update the object: {error}") },
                None,
            );
        }
    };
    (Failure { reason, message: message.clone() }, Some(Event::warning(reason, message)))
}
