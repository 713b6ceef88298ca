//! DataVolumes: a claim is made, filled from the source, and removed with its DataVolume.
//!
//! ```text
//! Pending, CloneInProgress ─bound─► ImportInProgress, UploadScheduled ─► UploadReady ─filled─► Succeeded
//! ```

use api::cdi::{DataVolume, DataVolumeStatus, StorageSpec};
use api::core::{ClaimSpec, PersistentVolumeClaim};
use api::kind::Kind;
use api::resource::{ObjectMeta, Quantity};

use super::{Action, Attempt, Object};
use crate::daemon::claim::{is_bound, is_upload, size};
use crate::daemon::import::Origin;
use crate::daemon::metadata::{is_owned, owner};
use crate::daemon::object::Stored;
use virt::{status, time};

/// The facts about a DataVolume.
#[derive(Clone, Debug)]
pub(in crate::daemon) struct Observed<'a> {
    pub(in crate::daemon) volume: &'a DataVolume,
    /// The claim of its name.
    pub(in crate::daemon) claim: Option<&'a PersistentVolumeClaim>,
    /// Bytes that the claim asks for which it is a clone of, where that is there.
    pub(in crate::daemon) source_size: Option<u64>,
    /// Its upload server waits for a client.
    pub(in crate::daemon) is_served: bool,
    /// Where the content comes from, or the sentence about what is missing; `None`: it is not filled now.
    pub(in crate::daemon) origin: Option<Result<Origin, String>>,
    pub(in crate::daemon) attempt: Attempt,
}

impl Observed<'_> {
    /// Its own claim.
    fn owned(&self) -> Option<&PersistentVolumeClaim> {
        owned(self.volume, self.claim)
    }
}

/// The claim of a DataVolume's name, if it is the DataVolume's own.
fn owned<'a>(
    volume: &DataVolume,
    claim: Option<&'a PersistentVolumeClaim>,
) -> Option<&'a PersistentVolumeClaim> {
    claim.filter(|claim| is_owned(&claim.metadata, volume.uid()))
}

/// Whether a DataVolume is to be filled: its claim is bound, and it has not been filled yet.
pub(in crate::daemon) fn is_to_be_filled(volume: &DataVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    let succeeded = volume.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded"));
    !volume.is_deleting() && !succeeded && owned(volume, claim).is_some_and(is_bound)
}

/// The actions that bring a DataVolume towards its spec.
pub(in crate::daemon) fn reconcile(observed: &Observed<'_>) -> Vec<Action> {
    let mut actions = Vec::new();
    if observed.volume.is_deleting() {
        actions.push(Action::Cancel);
        actions.extend(delete(observed));
    } else if let Some(claim) = observed.owned() {
        progress(observed, claim, &mut actions);
    } else {
        actions.push(create(observed));
    }
    actions
}

/// Has its claim go first.
fn delete(observed: &Observed<'_>) -> Option<Action> {
    match observed.owned() {
        None => Some(Action::Remove),
        Some(claim) if claim.is_deleting() || observed.attempt.busy => None,
        Some(claim) => {
            let mut claim = claim.clone();
            claim.metadata.deletion_timestamp = Some(time::text(observed.attempt.now));
            Some(Action::Put(Object::Claim(Box::new(claim))))
        }
    }
}

/// Makes its claim.
fn create(observed: &Observed<'_>) -> Action {
    let volume = observed.volume;
    if observed.claim.is_some() {
        let text = "a PersistentVolumeClaim of this name is there, and is not this DataVolume's";
        return Action::warning("ErrClaimNotValid", text);
    }
    let wanted: StorageSpec =
        volume.spec.pvc.clone().or_else(|| volume.spec.storage.clone()).unwrap_or_default();
    let mut resources = wanted.resources.unwrap_or_default();
    if size(&resources).is_none() {
        // A clone without a size gets its source's size.
        let Some(size) = observed.source_size else {
            return Action::warning("ClonePending", "the claim that is cloned is not there yet");
        };
        resources.requests.insert("storage".to_owned(), Quantity(size.to_string()));
    }
    Action::Create(Object::Claim(Box::new(PersistentVolumeClaim {
        api_version: Kind::PersistentVolumeClaim.api_version().to_owned(),
        kind: Kind::PersistentVolumeClaim.name().to_owned(),
        metadata: ObjectMeta { owner_references: vec![owner(volume)], uid: None, ..volume.metadata.clone() },
        spec: ClaimSpec {
            // The pool's access modes by default.
            access_modes: if wanted.access_modes.is_empty() {
                vec!["ReadWriteOnce".to_owned()]
            } else {
                wanted.access_modes
            },
            resources,
            storage_class_name: wanted.storage_class_name,
            volume_mode: wanted.volume_mode,
            ..ClaimSpec::default()
        },
        ..PersistentVolumeClaim::default()
    })))
}

/// Brings it on from phase to phase, and fills its claim.
fn progress(observed: &Observed<'_>, claim: &PersistentVolumeClaim, actions: &mut Vec<Action>) {
    let Observed { volume, attempt, .. } = observed;
    let mut status = volume.status.clone().unwrap_or_default();
    let clone = volume.spec.source.as_ref().is_some_and(|source| source.pvc.is_some());
    let phase = match (status.phase.as_deref(), is_bound(claim), clone) {
        (Some("Succeeded"), _, _) => return,
        (_, false, true) => "CloneInProgress",
        (_, false, false) => "Pending",
        (_, true, _) if !is_upload(volume) => "ImportInProgress",
        (_, true, _) if observed.is_served => "UploadReady",
        (_, true, _) => {
            // No message reports that its server is there.
            actions.push(Action::Look(attempt.now + 1));
            "UploadScheduled"
        }
    };
    status.phase = Some(phase.to_owned());
    status.claim_name = Some(volume.metadata.name.clone());
    let bound = if is_bound(claim) { ("Bound", "PVC Bound") } else { ("Pending", "PVC Pending") };
    status::condition(&mut status.conditions, "Bound", is_bound(claim), bound.0, bound.1);
    if is_bound(claim) && attempt.may_begin(actions) {
        fill(observed, &mut status, actions);
    }
    actions.push(Action::Put(Object::DataVolume(Box::new(DataVolume {
        status: Some(status),
        ..(*volume).clone()
    }))));
}

/// Fills its claim, or reports why that cannot be done.
fn fill(observed: &Observed<'_>, status: &mut DataVolumeStatus, actions: &mut Vec<Action>) {
    let volume = observed.volume;
    let name = &volume.metadata.name;
    match &observed.origin {
        None => {}
        Some(Err(problem)) => {
            actions.extend([Action::warning("ImportFailed", problem), Action::Fail]);
        }
        Some(Ok(origin)) => {
            status::condition(&mut status.conditions, "Running", true, "Pod is running", "");
            actions.push(if is_upload(volume) {
                let text = format!("virt-node image-upload dv {name} --no-create --image-path FILE fills it");
                Action::event("UploadScheduled", text)
            } else {
                Action::event("ImportInProgress", format!("filling {name}"))
            });
            actions.push(Action::FillVolume(Box::new(origin.clone())));
        }
    }
}

/// The actions that follow the end of its job; `problem`: why it is not filled.
pub(in crate::daemon) fn ended(volume: &DataVolume, problem: Option<&str>) -> Vec<Action> {
    let mut status = volume.status.clone().unwrap_or_default();
    let mut actions = Vec::new();
    match problem {
        None => {
            status.phase = Some("Succeeded".to_owned());
            status.progress = Some("100.0%".to_owned());
            status::condition(&mut status.conditions, "Running", false, "Completed", "Import Complete");
            status::condition(&mut status.conditions, "Ready", true, "", "");
            let text = format!("{} is filled", volume.metadata.name);
            actions.extend([Action::Succeed, Action::event("ImportSucceeded", text)]);
        }
        Some(problem) => {
            actions.push(Action::Fail);
            if !volume.is_deleting() {
                status.restart_count = Some(status.restart_count.unwrap_or(0) + 1);
                status::condition(&mut status.conditions, "Running", false, "Error", problem);
                actions.push(Action::warning("ImportFailed", problem));
            }
        }
    }
    actions.push(Action::Put(Object::DataVolume(Box::new(DataVolume {
        status: Some(status),
        ..volume.clone()
    }))));
    actions
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(source: &Value) -> DataVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "disk", "namespace": "a", "uid": "u", "labels": {"a": "b"}},
            "spec": {"source": source, "storage": {"resources": {"requests": {"storage": "1Gi"}}}},
        }))
        .unwrap()
    }

    fn claim(owner: &str, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "disk", "namespace": "a", "uid": "c", "ownerReferences": [{"uid": owner}]},
            "spec": {},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn observed<'a>(volume: &'a DataVolume, claim: Option<&'a PersistentVolumeClaim>) -> Observed<'a> {
        let attempt = Attempt { busy: false, retry: None, now: 1000 };
        Observed { volume, claim, source_size: None, is_served: false, origin: None, attempt }
    }

    /// The DataVolume's phase, restarts and conditions that hold after the actions.
    fn status(actions: &[Action]) -> (String, Option<u32>, Vec<String>) {
        let stored = actions.iter().find_map(|action| {
            let Action::Put(Object::DataVolume(volume)) = action else { return None };
            volume.status.clone()
        });
        let stored = stored.unwrap_or_else(|| panic!("{actions:?}"));
        let holding = stored.conditions.iter().filter(|one| one.status == "True");
        (
            stored.phase.unwrap_or_default(),
            stored.restart_count,
            holding.map(|one| one.kind.clone()).collect(),
        )
    }

    #[test]
    fn a_claim_of_its_name_is_made_and_another_objects_is_not_taken() {
        let blank = volume(&json!({"blank": {}}));
        let actions = reconcile(&observed(&blank, None));
        let [Action::Create(Object::Claim(made))] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(made.spec.access_modes, ["ReadWriteOnce"]);
        assert_eq!(size(&made.spec.resources), Some(1 << 30));
        assert!(is_owned(&made.metadata, "u") && made.metadata.uid.is_none());
        let foreign = claim("another", "Bound");
        let actions = reconcile(&observed(&blank, Some(&foreign)));
        assert!(matches!(&actions[..], [Action::Event { reason: "ErrClaimNotValid", .. }]), "{actions:?}");
    }

    #[test]
    fn a_clone_without_a_size_has_its_sources() {
        let mut clone = volume(&json!({"pvc": {"name": "from"}}));
        clone.spec.storage = None;
        let actions = reconcile(&observed(&clone, None));
        assert!(matches!(&actions[..], [Action::Event { reason: "ClonePending", .. }]), "{actions:?}");
        let actions = reconcile(&Observed { source_size: Some(42), ..observed(&clone, None) });
        let [Action::Create(Object::Claim(made))] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!(size(&made.spec.resources), Some(42));
        let pending = claim("u", "Pending");
        assert_eq!(status(&reconcile(&observed(&clone, Some(&pending)))).0, "CloneInProgress");
    }

    #[test]
    fn an_import_goes_from_pending_over_failures_to_its_success() {
        let import = volume(&json!({"http": {"url": "http://a/b"}}));
        let (pending, bound) = (claim("u", "Pending"), claim("u", "Bound"));
        let actions = reconcile(&observed(&import, Some(&pending)));
        assert_eq!((status(&actions).0.as_str(), actions.len()), ("Pending", 1));
        let origin = Origin::File("/f".into());
        let ready = Observed { origin: Some(Ok(origin.clone())), ..observed(&import, Some(&bound)) };
        let actions = reconcile(&ready);
        assert_eq!(status(&actions).2, ["Bound", "Running"]);
        assert!(actions.contains(&Action::FillVolume(Box::new(origin))), "{actions:?}");
        // While it is filled, and before the next try, nothing begins.
        for (attempt, looks) in [
            (Attempt { busy: true, ..ready.attempt }, Vec::new()),
            (Attempt { retry: Some(1007), ..ready.attempt }, vec![Action::Look(1007)]),
        ] {
            let actions = reconcile(&Observed { attempt, ..ready.clone() });
            let (put, others) = actions.split_last().unwrap();
            assert!(matches!(put, Action::Put(_)) && others == looks, "{actions:?}");
        }
        let actions = reconcile(&Observed { origin: Some(Err("no Secret".into())), ..ready.clone() });
        assert!(actions.contains(&Action::Fail), "{actions:?}");
        let actions = ended(&import, Some("404"));
        assert_eq!((status(&actions).1, &actions[0]), (Some(1), &Action::Fail));
        let actions = ended(&import, None);
        assert_eq!(status(&actions), ("Succeeded".to_owned(), None, vec!["Ready".to_owned()]));
        let Some(Action::Put(Object::DataVolume(filled))) = actions.last() else { panic!("{actions:?}") };
        assert_eq!(reconcile(&Observed { volume: filled, ..ready.clone() }), []);
        assert!(!is_to_be_filled(filled, Some(&bound)) && is_to_be_filled(&import, Some(&bound)));
    }

    #[test]
    fn an_upload_is_ready_when_its_server_is() {
        let upload = volume(&json!({"upload": {}}));
        let bound = claim("u", "Bound");
        let busy = Attempt { busy: true, retry: None, now: 5 };
        let waiting = Observed { attempt: busy, ..observed(&upload, Some(&bound)) };
        let actions = reconcile(&waiting);
        assert_eq!((status(&actions).0.as_str(), &actions[0]), ("UploadScheduled", &Action::Look(6)));
        assert_eq!(status(&reconcile(&Observed { is_served: true, ..waiting })).0, "UploadReady");
    }

    #[test]
    fn a_deleted_one_takes_its_claim_with_it() {
        let mut old = volume(&json!({"blank": {}}));
        old.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        let mut bound = claim("u", "Bound");
        let busy =
            Observed { attempt: Attempt { busy: true, retry: None, now: 5 }, ..observed(&old, Some(&bound)) };
        assert_eq!(reconcile(&busy), [Action::Cancel]);
        let actions = reconcile(&observed(&old, Some(&bound)));
        let [Action::Cancel, Action::Put(Object::Claim(marked))] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert!(marked.is_deleting());
        bound.metadata.deletion_timestamp.clone_from(&old.metadata.deletion_timestamp);
        assert_eq!(reconcile(&observed(&old, Some(&bound))), [Action::Cancel]);
        assert_eq!(reconcile(&observed(&old, None)), [Action::Cancel, Action::Remove]);
        let foreign = claim("another", "Bound");
        assert_eq!(reconcile(&observed(&old, Some(&foreign))), [Action::Cancel, Action::Remove]);
    }
}
