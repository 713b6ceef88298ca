//! `status` of a DataVolume and the events of its changes, from the claim's annotations. Pure; times are passed in.

use serde_json::{Value, json};

use super::phase::{Work, next};
use super::{Facts, Obstacle};
use crate::storage::action::{About, Event};
use crate::storage::names;
use crate::storage::populate::plan::COMPLETE;
use crate::storage::seen::claim::Phase as Binding;
use crate::storage::seen::data_volume::Status;
use crate::storage::seen::{Claim, Condition, DataVolume};

/// Reason while the claim waits for its first consumer: nothing is wrong, so it is no event.
const CONSUMER: &str = "WaitForFirstConsumer";
/// Reason of a provisioner that makes no volume, as of its events.
pub const NOT_PROVISIONED: &str = "ProvisioningFailed";
/// Reasons while the claim has no volume.
const PROVISIONING: [&str; 2] = ["Provisioning", NOT_PROVISIONED];
/// Reasons of workers without a fault: one that ended well, and one that runs beside it.
const FAULTLESS: [&str; 2] = ["Completed", "Pod is running"];

/// A status and what is reported with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The status.
    pub status: Status,
    /// Events of what has changed.
    pub events: Vec<Event>,
}

impl Report {
    /// Whether it differs from the status that the DataVolume has.
    pub fn differs(&self, volume: &DataVolume) -> bool {
        self.status != volume.status
    }
}

/// The document of a status. [`Status`] has no times of conditions: every written condition gets this time.
pub fn document(status: &Status, now: &str) -> Value {
    let conditions: Vec<Value> = status
        .conditions
        .iter()
        .map(|one| {
            json!({
                "type": one.kind, "status": one.status, "reason": one.reason, "message": one.message,
                "lastTransitionTime": if one.since.is_empty() { now } else { &one.since },
                "lastHeartbeatTime": now,
            })
        })
        .collect();
    let mut document = json!({
        "phase": status.phase, "progress": status.progress, "restartCount": status.restarts, "conditions": conditions,
    });
    if !status.claim.is_empty() {
        document["claimName"] = json!(status.claim);
    }
    document
}

/// The status that follows from what is there. `trouble` is what keeps the DataVolume from its claim; `now` is RFC 3339.
pub fn report(
    volume: &DataVolume,
    claim: Option<&Claim>,
    facts: Facts,
    trouble: Option<&Obstacle>,
    now: &str,
) -> Report {
    let before = &volume.status;
    let phase = next(volume, claim, facts);
    if phase == before.phase && is_settling(claim, facts) {
        // The volume takes its place within milliseconds: what lies between is not reported.
        return Report { status: before.clone(), events: Vec::new() };
    }
    let succeeded = phase == "Succeeded";
    let bound = bound(claim, trouble);
    let running = running(claim, facts, succeeded, trouble);
    if phase == before.phase && is_awaited(before, &bound, &running) {
        // The worker's first report replaces the reason; a status without one would be a write for nothing.
        return Report { status: before.clone(), events: Vec::new() };
    }
    let ready = ready(&running, succeeded);
    let restarts =
        claim.and_then(|claim| claim.meta.annotation(names::POD_RESTARTS)?.parse().ok()).unwrap_or(0);
    let mut events = Vec::new();
    if phase != before.phase {
        events.extend(phase_event(volume, claim, &phase));
    }
    if phase == before.phase && claim.is_some_and(|claim| claim.meta.says(names::POD_PHASE, "Failed")) {
        // Each failure is one event, although the next try keeps the phase.
        let heard = before.condition("Running");
        let heard = heard.is_some_and(|old| old.reason == running.reason && old.message == running.message);
        events.extend(failed(volume).filter(|_| !heard));
    }
    events.extend(condition_events(volume, &bound, &running, succeeded));
    let since = |mut condition: Condition| {
        let old = before.condition(&condition.kind);
        let kept = old.filter(|old| old.status == condition.status).map(|old| old.since.clone());
        condition.since = kept.unwrap_or_else(|| now.to_owned());
        condition
    };
    let status = Status {
        progress: progress(before, claim, &phase),
        claim: claim.map(|claim| claim.meta.name.clone()).unwrap_or_default(),
        restarts,
        conditions: [ready, bound, running].into_iter().map(since).collect(),
        phase,
    };
    Report { status, events }
}

/// Whether the transfer is over and the volume is not yet the claim's.
fn is_settling(claim: Option<&Claim>, facts: Facts) -> bool {
    facts.populated && facts.complete && claim.is_some_and(|claim| claim.phase == Binding::Pending)
}

/// Whether the claim has just got its first consumer or its volume, and its worker has not reported yet; or what it waits for
/// is not known again since the operator was restarted.
fn is_awaited(before: &Status, bound: &Condition, running: &Condition) -> bool {
    let reason = before.condition("Running").map_or("", |old| &old.reason);
    let same = before.condition("Bound").is_some_and(|old| old.status == bound.status);
    let waited = reason == CONSUMER || (same && PROVISIONING.contains(&reason));
    waited && running.status == "Unknown" && running.reason.is_empty()
}

fn condition(kind: &str, status: &str, reason: &str, message: impl Into<String>) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        since: String::new(),
    }
}

fn bound(claim: Option<&Claim>, trouble: Option<&Obstacle>) -> Condition {
    let Some(claim) = claim else {
        return match trouble {
            Some(trouble) if trouble.is_quota() => {
                condition("Bound", "False", trouble.reason, &trouble.message)
            }
            Some(_) | None => condition("Bound", "False", "NotFound", "No PVC found"),
        };
    };
    let name = &claim.meta.name;
    match claim.phase {
        Binding::Bound => condition("Bound", "True", "Bound", format!("PVC {name} Bound")),
        Binding::Lost => condition("Bound", "False", "ClaimLost", "Claim Lost"),
        Binding::Pending => pending(claim),
    }
}

/// The Bound condition of a claim without a volume: it names the claim that is filled in its place, and what that one,
/// or another program's, waits for.
fn pending(claim: &Claim) -> Condition {
    let (name, annotation) = (&claim.meta.name, |name| claim.meta.annotation(name));
    let prime = annotation(names::PRIME).map(|prime| format!(" [prime PVC {prime}]")).unwrap_or_default();
    let waits = |bound: &str| !bound.eq_ignore_ascii_case("true");
    let (reason, message) = if claim.meta.says(names::RUNNING_REASON, super::QUOTA) {
        (super::QUOTA, annotation(names::RUNNING_MESSAGE))
    } else if annotation(names::BOUND).is_some_and(waits) {
        (annotation(names::BOUND_REASON).unwrap_or_default(), annotation(names::BOUND_MESSAGE))
    } else {
        return condition("Bound", "False", "Pending", format!("PVC {name} Pending{prime}"));
    };
    let message = message.unwrap_or_default();
    condition("Bound", "False", reason, format!("target PVC {name} Pending{prime} and {message}"))
}

fn running(claim: Option<&Claim>, facts: Facts, succeeded: bool, trouble: Option<&Obstacle>) -> Condition {
    if let Some(trouble) = trouble {
        return condition("Running", "False", trouble.reason, &trouble.message);
    }
    let annotation = |name| claim.and_then(|claim| claim.meta.annotation(name));
    if let Some(claim) = claim.filter(|claim| claim.phase == Binding::Pending && facts.waits_for_consumer)
        && annotation(names::RUNNING).is_none()
    {
        let message = format!(
            "PVC {} waits for a pod or virtual machine that uses it; with annotation {} it is filled at once",
            claim.meta.name,
            names::IMMEDIATE
        );
        return condition("Running", "False", CONSUMER, message);
    }
    let status = |name| match annotation(name) {
        Some("true") => "True",
        Some("false") => "False",
        _ if succeeded => "False",
        _ => "Unknown",
    };
    let texts =
        |message, reason| (annotation(message).unwrap_or_default(), annotation(reason).unwrap_or_default());
    let (message, mut reason) = texts(names::RUNNING_MESSAGE, names::RUNNING_REASON);
    let target = status(names::RUNNING);
    if annotation(names::SOURCE_RUNNING).is_none() {
        if succeeded && reason.is_empty() {
            reason = "Completed";
        }
        return condition("Running", target, reason, message);
    }
    // A clone has a sending worker too: both must run.
    let source = status(names::SOURCE_RUNNING);
    let (other, other_reason) = texts(names::SOURCE_RUNNING_MESSAGE, names::SOURCE_RUNNING_REASON);
    let joined = |one: &str, two: &str| match (one.is_empty(), two.is_empty()) {
        (false, false) => format!("{one} and {two}"),
        (_, _) => format!("{one}{two}"),
    };
    let both = match (target, source) {
        ("True", "True") => "True",
        ("Unknown", _) | (_, "Unknown") => "Unknown",
        (_, _) => "False",
    };
    condition("Running", both, &joined(reason, other_reason), joined(message, other))
}

fn ready(running: &Condition, succeeded: bool) -> Condition {
    match (succeeded, running.status.as_str()) {
        (true, _) => condition("Ready", "True", "", ""),
        (false, "True") => condition("Ready", "False", "TransferRunning", ""),
        (false, _) => condition("Ready", "False", "", ""),
    }
}

fn progress(before: &Status, claim: Option<&Claim>, phase: &str) -> String {
    if phase == "Succeeded" {
        return COMPLETE.to_owned();
    }
    // The claim is complete while earlier phases are still to be reported.
    let shown = |progress: &&str| *progress != COMPLETE;
    match claim.and_then(|claim| claim.meta.annotation(names::PROGRESS)).filter(shown) {
        Some(progress) => progress.to_owned(),
        None if before.progress.is_empty() || before.phase == "Succeeded" => "N/A".to_owned(),
        None => before.progress.clone(),
    }
}

/// The event of a worker that failed.
fn failed(volume: &DataVolume) -> Option<Event> {
    let name = &volume.meta.name;
    let (reason, message) = match Work::of(&volume.source) {
        Work::Upload => ("UploadFailed", format!("Upload into {name} failed")),
        Work::Import => ("ImportFailed", format!("Failed to import into PVC {name}")),
        Work::Clone => return None,
    };
    Some(Event::warning(About::data_volume(&volume.meta), reason, message))
}

fn phase_event(volume: &DataVolume, claim: Option<&Claim>, phase: &str) -> Option<Event> {
    let about = || About::data_volume(&volume.meta);
    let name = &volume.meta.name;
    let work = Work::of(&volume.source);
    let worked = claim.is_some_and(|claim| claim.meta.says(names::POD_PHASE, "Succeeded"));
    let (reason, message) = match (phase, work) {
        ("ImportScheduled", _) => (phase, format!("Import into {name} scheduled")),
        ("ImportInProgress", _) => (phase, format!("Import into {name} in progress")),
        ("UploadScheduled", _) => (phase, format!("Upload into {name} scheduled")),
        ("UploadReady", _) => (phase, format!("Upload into {name} ready")),
        ("Succeeded", Work::Import) if worked => {
            ("ImportSucceeded", format!("Successfully imported into PVC {name}"))
        }
        ("Succeeded", Work::Upload) if worked => {
            ("UploadSucceeded", format!("Successfully uploaded into {name}"))
        }
        ("Succeeded", Work::Clone) => ("CloneSucceeded", format!("Successfully cloned into {name}")),
        ("Failed", _) if claim.is_some_and(|claim| claim.phase == Binding::Lost) => {
            return Some(Event::warning(about(), "ErrClaimLost", format!("PVC {name} lost")));
        }
        ("Failed", _) => return failed(volume),
        (phase, Work::Clone) if phase.ends_with("InProgress") || phase == "CloneScheduled" => {
            (phase, format!("Cloning into {name}: {phase}"))
        }
        (_, _) => return None,
    };
    Some(Event::normal(about(), reason, message))
}

/// Events of conditions: every change of Bound, and every new reason for not running.
fn condition_events(
    volume: &DataVolume,
    bound: &Condition,
    running: &Condition,
    succeeded: bool,
) -> Vec<Event> {
    let mut events = Vec::new();
    let about = || About::data_volume(&volume.meta);
    let old = |kind: &str| volume.status.condition(kind);
    let changed = |one: &Condition| {
        volume
            .status
            .condition(&one.kind)
            .is_none_or(|old| old.status != one.status || old.reason != one.reason)
    };
    if changed(bound) {
        let make = if bound.reason == super::QUOTA { Event::warning } else { Event::normal };
        events.push(make(about(), bound.reason.clone(), bound.message.clone()));
    }
    let heard =
        old("Running").is_some_and(|old| old.status == running.status && old.message == running.message);
    if running.status == "False"
        && !running.message.is_empty()
        && !succeeded
        && !heard
        && running.reason != CONSUMER
        && !running.reason.split(" and ").all(|reason| FAULTLESS.contains(&reason))
    {
        let reason = if running.reason.is_empty() { "Error" } else { &running.reason };
        events.push(Event::warning(about(), reason, running.message.clone()));
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::populate::plan::waiting;

    #[test]
    fn a_pod_that_failed_is_an_event_and_the_phase_stays() {
        let volume = |reason: &str| {
            DataVolume::from(&json!({
                "metadata": {"name": "disk", "namespace": "n", "uid": "u"},
                "spec": {"source": {"http": {"url": "http://a"}}},
                "status": {"phase": "ImportInProgress", "conditions": [
                    {"type": "Running", "status": "False", "reason": reason, "message": "no room"},
                ]},
            }))
        };
        let claim = Claim::from(&json!({"metadata": {"name": "disk", "annotations": {
            names::POD_PHASE: "Failed", names::RUNNING: "false", names::RUNNING_REASON: "Evicted",
            names::RUNNING_MESSAGE: "no room",
        }}}));
        let failures = |reason: &str| {
            let report = report(
                &volume(reason),
                Some(&claim),
                Facts { populated: true, ..Facts::default() },
                None,
                "now",
            );
            assert_eq!(report.status.phase, "ImportInProgress");
            let failed = |event: &&Event| event.warning && event.reason == "ImportFailed";
            report.events.iter().filter(failed).map(|event| event.message.clone()).collect::<Vec<_>>()
        };
        assert_eq!(failures("Pod is running"), ["Failed to import into PVC disk"]);
        assert_eq!(failures("Evicted"), [""; 0]);
    }

    #[test]
    fn a_quota_that_refuses_the_prime_claim_is_the_reason_of_both_conditions() {
        let volume = DataVolume::from(&json!({
            "metadata": {"name": "disk", "namespace": "n", "uid": "u"},
            "spec": {"source": {"http": {"url": "http://a"}}}, "status": {"phase": "Pending"},
        }));
        let mut claim = Claim::default();
        claim.meta.name = "disk".into();
        let message = "exceeded quota: claims".to_owned();
        claim.meta.annotations.extend(waiting(&Obstacle { reason: super::super::QUOTA, message }));
        let report = report(&volume, Some(&claim), Facts::default(), None, "now");
        let condition = |kind: &str| report.status.condition(kind).unwrap().clone();
        let (bound, running) = (condition("Bound"), condition("Running"));
        assert_eq!((bound.status.as_str(), bound.reason.as_str()), ("False", "ErrExceededQuota"));
        assert_eq!(bound.message, "target PVC disk Pending and exceeded quota: claims");
        assert_eq!((running.status.as_str(), running.reason.as_str()), ("False", "ErrExceededQuota"));
        let warnings = report.events.iter().filter(|event| event.warning).count();
        assert_eq!((report.status.phase.as_str(), warnings), ("Pending", 2));
    }

    #[test]
    fn a_pending_claim_is_reported_with_its_prime_claim_and_what_it_waits_for() {
        let (prime, bound) = ((names::PRIME, "prime-u"), (names::BOUND, "false"));
        let why = [(names::BOUND_REASON, "ClaimPending"), (names::BOUND_MESSAGE, "no volume")];
        let quota = [(names::RUNNING_REASON, "ErrExceededQuota"), (names::RUNNING_MESSAGE, "exceeded quota")];
        for (annotations, reason, message) in [
            (vec![], "Pending", "PVC disk Pending"),
            (vec![prime], "Pending", "PVC disk Pending [prime PVC prime-u]"),
            (vec![prime, (names::BOUND, "True")], "Pending", "PVC disk Pending [prime PVC prime-u]"),
            (vec![bound, why[0], why[1]], "ClaimPending", "target PVC disk Pending and no volume"),
            (
                vec![prime, bound, why[0], why[1]],
                "ClaimPending",
                "target PVC disk Pending [prime PVC prime-u] and no volume",
            ),
            (
                vec![prime, quota[0], quota[1]],
                "ErrExceededQuota",
                "target PVC disk Pending [prime PVC prime-u] and exceeded quota",
            ),
        ] {
            let mut claim = Claim::default();
            claim.meta.name = "disk".into();
            let annotations =
                annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            claim.meta.annotations.extend(annotations);
            let found = pending(&claim);
            assert_eq!(
                (found.status.as_str(), found.reason.as_str(), found.message.as_str()),
                ("False", reason, message)
            );
            claim.phase = Binding::Bound;
            assert_eq!(super::bound(Some(&claim), None).message, "PVC disk Bound");
        }
    }

    #[test]
    fn a_wait_for_the_driver_is_reported_until_the_worker_reports() {
        let volume = DataVolume::from(&json!({
            "metadata": {"name": "disk", "namespace": "n", "uid": "u"},
            "spec": {"source": {"http": {"url": "http://a"}}},
            "status": {"phase": "Pending", "claimName": "disk", "progress": "N/A", "conditions": [
                {"type": "Ready", "status": "False"},
                {"type": "Bound", "status": "False", "reason": "Pending", "message": "PVC disk Pending"},
                {"type": "Running", "status": "False", "reason": "Provisioning", "message": "no driver"},
            ]},
        }));
        let claim = |annotations: &Value, phase: &str| {
            Claim::from(&json!({
                "metadata": {"name": "disk", "namespace": "n", "annotations": annotations},
                "spec": {"volumeName": "v"}, "status": {"phase": phase},
            }))
        };
        let facts = Facts { populated: true, ..Facts::default() };
        let running = |claim: &Claim| {
            let report = report(&volume, Some(claim), facts, None, "now");
            let running = report.status.condition("Running").unwrap();
            (report.differs(&volume), running.reason.clone())
        };
        // The operator was restarted, or the worker is just starting.
        assert_eq!(running(&claim(&json!({}), "Pending")), (false, "Provisioning".to_owned()));
        let wait = json!({names::RUNNING: "false", names::RUNNING_REASON: "ProvisioningFailed"});
        assert_eq!(running(&claim(&wait, "Pending")), (true, "ProvisioningFailed".to_owned()));
        let works = json!({names::RUNNING: "true", names::RUNNING_REASON: "Pod is running"});
        assert_eq!(running(&claim(&works, "Pending")), (true, "Pod is running".to_owned()));
        assert_eq!(running(&claim(&json!({}), "Bound")), (true, String::new()));
    }
}
