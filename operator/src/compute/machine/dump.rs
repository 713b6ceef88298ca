//! A memory dump of a VM's guest: `status.memoryDumpRequest`, from the request to the claim that holds the file. Pure.
//!
//! ```text
//! Associating ─ claim attached ─► InProgress ─ agent ─► Unmounting ─ claim detached ─► Completed
//!                                     └─► Failed                    Dissociating ─ claim detached ─► no request
//! ```
//! The claim is a utility volume of the instance, and of no template: the next instance has none. Not here: the requests
//! (`serve::dump`), the file (the node agent).

use api::kubevirt::MemoryDumpRequest;
use virt::live::dump;

use super::plan::{Observed, Step};
use crate::compute::clock;
use crate::view::{Instance, VolumeEntry};

/// Annotation of a claim with the name of the file that it holds, or with [`FAILED`].
pub(super) const ANNOTATION: &str = "kubevirt.io/memory-dump";
/// Value of the annotation for a dump that failed.
const FAILED: &str = "Memory dump failed";

/// The next step for the request.
pub(super) fn step(observed: &Observed<'_>) -> Option<Step> {
    let request = observed.machine.status.memory_dump_request.as_ref()?;
    let instance = observed.own_instance().filter(|_| !observed.machine.metadata.deleting())?;
    let claim = request.claim_name.clone();
    let lives = instance.status.phase == "Running" && !instance.metadata.deleting();
    match (request.phase.as_str(), is_attached(instance, &claim)) {
        ("Associating", false) if lives => Some(Step::AttachDump(claim)),
        ("Unmounting", true) => Some(Step::DetachDump { claim, note: request.file_name.clone() }),
        ("Failed", true) => Some(Step::DetachDump { claim, note: Some(FAILED.to_owned()) }),
        ("Dissociating", true) => Some(Step::DetachDump { claim, note: None }),
        _ => None,
    }
}

/// The request as the status is to have it.
pub(super) fn request(observed: &Observed<'_>) -> Option<MemoryDumpRequest> {
    let before = observed.machine.status.memory_dump_request.as_ref()?;
    let instance = observed.own_instance().filter(|instance| !instance.is_final());
    let attached = instance.is_some_and(|instance| is_attached(instance, &before.claim_name));
    let entry = instance.and_then(|instance| entry(instance, &before.claim_name));
    let mut after = before.clone();
    match before.phase.as_str() {
        "Associating" if attached => after.phase = "InProgress".to_owned(),
        "InProgress" if !attached => {
            let text = "the guest ended before its memory was dumped";
            fail(&mut after, Some(text.to_owned()), Some(clock::text(observed.now)));
        }
        "InProgress" => {
            if let Some((entry, state)) = entry.and_then(|one| Some((one, one.memory_dump_volume.as_ref()?)))
            {
                after.start_timestamp = state.start_timestamp.clone().or(after.start_timestamp);
                match entry.phase.as_str() {
                    dump::COMPLETED => {
                        after.phase = "Unmounting".to_owned();
                        after.end_timestamp.clone_from(&state.end_timestamp);
                        after.file_name.clone_from(&state.target_file_name);
                    }
                    dump::FAILED => {
                        let message = Some(entry.message.clone()).filter(|text| !text.is_empty());
                        fail(&mut after, message, state.end_timestamp.clone());
                    }
                    _ => {}
                }
            }
        }
        "Unmounting" if !attached && entry.is_none() => after.phase = "Completed".to_owned(),
        "Dissociating" if !attached && entry.is_none() => return None,
        _ => {}
    }
    Some(after)
}

fn fail(request: &mut MemoryDumpRequest, message: Option<String>, end: Option<String>) {
    request.phase = "Failed".to_owned();
    (request.message, request.end_timestamp) = (message, end);
}

fn is_attached(instance: &Instance, claim: &str) -> bool {
    instance.spec.volumes.iter().any(|volume| volume.is_dump() && volume.name == claim)
}

fn entry<'a>(instance: &'a Instance, claim: &str) -> Option<&'a VolumeEntry> {
    instance.status.volume_status.iter().find(|entry| entry.name == claim)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::view::Machine;

    /// The step and the request for a request in `phase` and an instance with these parts.
    fn after(
        phase: &str,
        attached: bool,
        entry: &Value,
        lives: bool,
    ) -> (Option<Step>, Option<(String, Value)>) {
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {"uid": "m"},
            "status": {"memoryDumpRequest": {"claimName": "c", "phase": phase, "fileName": "f"}},
        }))
        .unwrap();
        let volume = json!({"name": "c", "claimName": "c", "type": "MemoryDump"});
        let instance: Instance = serde_json::from_value(json!({
            "metadata": {"ownerReferences": [{"uid": "m", "controller": true}]},
            "spec": {"utilityVolumes": if attached { json!([volume]) } else { json!([]) }},
            "status": {"phase": "Running", "volumeStatus": if entry.is_null() { json!([]) } else { json!([entry]) }},
        }))
        .unwrap();
        let observed = Observed {
            machine: &machine,
            instance: lives.then_some(&instance),
            volumes: Vec::new(),
            templates: Vec::new(),
            snapshot_classes: BTreeSet::new(),
            expand_all: false,
            now: 0,
        };
        let request =
            request(&observed).map(|request| (request.phase.clone(), serde_json::to_value(request).unwrap()));
        (step(&observed), request)
    }

    #[test]
    fn a_request_is_brought_to_its_end() {
        let entry = |phase: &str| {
            json!({"name": "c", "phase": phase, "message": "why", "memoryDumpVolume": {
                "startTimestamp": "2026-01-01T00:00:00Z", "endTimestamp": "2026-01-01T00:00:09Z",
                "targetFileName": "file"}})
        };
        let detach =
            |note: Option<&str>| Some(Step::DetachDump { claim: "c".into(), note: note.map(str::to_owned) });
        for (phase, attached, entry, lives, step, next) in [
            (
                "Associating",
                false,
                Value::Null,
                true,
                Some(Step::AttachDump("c".into())),
                Some("Associating"),
            ),
            ("Associating", false, Value::Null, false, None, Some("Associating")),
            ("Associating", true, Value::Null, true, None, Some("InProgress")),
            ("InProgress", true, entry("Bound"), true, None, Some("InProgress")),
            ("InProgress", true, entry(dump::IN_PROGRESS), true, None, Some("InProgress")),
            ("InProgress", true, entry(dump::COMPLETED), true, None, Some("Unmounting")),
            ("InProgress", true, entry(dump::FAILED), true, None, Some("Failed")),
            ("InProgress", false, Value::Null, false, None, Some("Failed")),
            ("InProgress", false, Value::Null, true, None, Some("Failed")),
            ("Unmounting", true, entry(dump::COMPLETED), true, detach(Some("f")), Some("Unmounting")),
            ("Unmounting", false, entry("Detaching"), true, None, Some("Unmounting")),
            ("Unmounting", false, Value::Null, true, None, Some("Completed")),
            ("Unmounting", false, Value::Null, false, None, Some("Completed")),
            ("Failed", true, entry(dump::FAILED), true, detach(Some(FAILED)), Some("Failed")),
            ("Completed", false, Value::Null, true, None, Some("Completed")),
            ("Dissociating", true, entry("Bound"), true, detach(None), Some("Dissociating")),
            ("Dissociating", false, Value::Null, true, None, None),
            ("Dissociating", false, Value::Null, false, None, None),
        ] {
            let name = format!("{phase} {attached} {entry} {lives}");
            let (found, request) = after(phase, attached, &entry, lives);
            assert_eq!((found, request.as_ref().map(|one| one.0.as_str())), (step, next), "{name}");
        }
        let (_, done) = after("InProgress", true, &entry(dump::COMPLETED), true);
        let done = done.unwrap().1;
        assert_eq!(done["fileName"], "file");
        assert_eq!(
            (&done["startTimestamp"], &done["endTimestamp"]),
            (&json!("2026-01-01T00:00:00Z"), &json!("2026-01-01T00:00:09Z"))
        );
        let (_, failed) = after("InProgress", true, &entry(dump::FAILED), true);
        assert_eq!(failed.unwrap().1["message"], "why");
    }
}
