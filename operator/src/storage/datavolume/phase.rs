//! The phase of a DataVolume, from its claim. One phase at a time: a transfer that is faster than its observer still goes
//! through every phase.
//!
//! ```text
//!  "" ─► Pending ──────────────────┐
//!   └──► PendingPopulation ────────┼─► ImportScheduled ─► ImportInProgress ─► Succeeded
//!        (populator, first consumer)   UploadScheduled ─► UploadReady ──────►
//!   └──► WaitForFirstConsumer ─► PVCBound ┘ (no populator)          any ─► Failed
//! ```

use super::Facts;
use crate::storage::names;
use crate::storage::seen::claim::Phase as Binding;
use crate::storage::seen::{Claim, DataVolume, Source};

/// The kind of a transfer; decides the words of its phases and events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// An importer fetches, or makes an empty disk.
    Import,
    /// An upload server receives.
    Upload,
    /// A clone.
    Clone,
}

impl Work {
    /// The work of a source.
    pub fn of(source: &Source) -> Self {
        match source {
            Source::Upload => Self::Upload,
            Source::Claim { .. } | Source::Snapshot { .. } | Source::Reference { .. } => Self::Clone,
            Source::Remote(_)
            | Source::Registry(_)
            | Source::Blank
            | Source::Unsupported(_)
            | Source::Missing => Self::Import,
        }
    }

    /// Phase while the worker waits for its node.
    pub fn scheduled(self) -> &'static str {
        match self {
            Self::Import => "ImportScheduled",
            Self::Upload => "UploadScheduled",
            Self::Clone => "CloneScheduled",
        }
    }

    /// Phase while the worker works.
    pub fn working(self) -> &'static str {
        match self {
            Self::Import => "ImportInProgress",
            Self::Upload => "UploadReady",
            Self::Clone => "CloneInProgress",
        }
    }
}

/// Phases before a worker exists.
const BEFORE: [&str; 6] = ["", "Pending", "PendingPopulation", "WaitForFirstConsumer", "PVCBound", "Unknown"];

/// The phases of a clone's populator, and what they are called on a DataVolume.
const CLONING: [(&str, &str); 8] = [
    ("Pending", "CloneScheduled"),
    ("Snapshot", "SnapshotForSmartCloneInProgress"),
    ("SnapshotClone", "CloneFromSnapshotSourceInProgress"),
    ("CSIClone", "CSICloneInProgress"),
    ("PrepClaim", "PrepClaimInProgress"),
    ("HostClone", "CloneInProgress"),
    ("Rebind", "RebindInProgress"),
    ("Error", "CloneInProgress"),
];

/// The phase that follows the one in the status; the same when nothing has changed.
pub(super) fn next(volume: &DataVolume, claim: Option<&Claim>, facts: Facts) -> String {
    let work = Work::of(&volume.source);
    let now = volume.status.phase.as_str();
    let wanted = wanted(volume, claim, facts, work);
    let transferred = wanted == "Succeeded" && claim.is_some_and(has_worked);
    if now.is_empty()
        && (transferred || ["PVCBound", work.scheduled(), work.working()].contains(&wanted.as_str()))
    {
        return first(facts).to_owned();
    }
    let before = BEFORE.contains(&now);
    if before
        && now != "PVCBound"
        && facts.binds_first
        && (wanted == work.scheduled() || wanted == work.working())
    {
        // Without a populator the claim is bound before its worker exists.
        return "PVCBound".to_owned();
    }
    if work == Work::Clone && !facts.binds_first {
        return cloning(volume, claim, now, wanted);
    }
    if before && (wanted == work.working() || transferred) {
        return if facts.binds_first && now != "PVCBound" { "PVCBound" } else { work.scheduled() }.to_owned();
    }
    if now == work.scheduled() && transferred {
        return work.working().to_owned();
    }
    wanted
}

/// A populator's clone goes through its phases, too, when it is faster than its observer.
fn cloning(volume: &DataVolume, claim: Option<&Claim>, now: &str, wanted: String) -> String {
    let made = claim.filter(|claim| claim.meta.says(names::CREATED_FOR, &volume.meta.uid));
    let Some(way) = made.and_then(|claim| claim.meta.annotation(names::CLONE_TYPE)) else { return wanted };
    let order = order(way, &volume.source);
    let place = |phase: &str| order.iter().position(|one| *one == phase);
    let first = match place(now) {
        Some(at) => at + 1,
        None if BEFORE.contains(&now) || now == Work::Clone.scheduled() => 0,
        None => return wanted,
    };
    let skipped = place(&wanted).and_then(|end| order.get(first..end)).unwrap_or_default();
    // A clone that is as large as its target is not prepared.
    skipped.iter().find(|phase| **phase != "PrepClaimInProgress").map_or(wanted, |phase| (*phase).to_owned())
}

/// The phases of a populator's clone, in their order.
fn order(way: &str, source: &Source) -> Vec<&'static str> {
    let begins: &[&str] = match (way, source) {
        ("csi-clone", _) => &["CSICloneInProgress"],
        ("snapshot", Source::Claim { .. }) => {
            &["SnapshotForSmartCloneInProgress", "CloneFromSnapshotSourceInProgress"]
        }
        ("snapshot", _) => &["CloneFromSnapshotSourceInProgress"],
        (_, _) => &["CloneInProgress"],
    };
    [begins, &["PrepClaimInProgress", "RebindInProgress", "Succeeded"]].concat()
}

/// The phase that a DataVolume with a claim begins with.
fn first(facts: Facts) -> &'static str {
    match (facts.consumer_first, facts.populated) {
        (true, true) => "PendingPopulation",
        (true, false) => "WaitForFirstConsumer",
        (false, _) => "Pending",
    }
}

/// Whether a worker has filled the claim for this DataVolume, in contrast to an adopted one.
fn has_worked(claim: &Claim) -> bool {
    claim.meta.annotation(names::CREATED_FOR).is_some() && claim.meta.says(names::POD_PHASE, "Succeeded")
}

fn wanted(volume: &DataVolume, claim: Option<&Claim>, facts: Facts, work: Work) -> String {
    let now = &volume.status.phase;
    let Some(claim) = claim else { return "Pending".to_owned() };
    if claim.phase == Binding::Lost {
        return "Failed".to_owned();
    }
    if claim.meta.says(names::FATAL, "true") {
        return "Failed".to_owned();
    }
    if claim.waits_for_reserved() {
        return "Pending".to_owned();
    }
    if facts.complete {
        // With a populator the volume has still to take its place.
        let settled = claim.phase == Binding::Bound || !facts.populated || !has_worked(claim);
        return if settled { "Succeeded".to_owned() } else { now.clone() };
    }
    let worker = of_worker(claim, work, now);
    match claim.phase {
        Binding::Pending
            if facts.populated
                && facts.waits_for_consumer
                && worker.as_deref().is_none_or(|phase| phase == Work::Clone.scheduled()) =>
        {
            "PendingPopulation".to_owned()
        }
        // Without a populator the worker, if there is one, is what the claim waits for.
        Binding::Pending if !facts.populated => {
            if facts.waits_for_consumer { "WaitForFirstConsumer" } else { "Pending" }.to_owned()
        }
        Binding::Bound if worker.is_none() && BEFORE.contains(&now.as_str()) => "PVCBound".to_owned(),
        Binding::Pending | Binding::Bound => worker.unwrap_or_else(|| unworked(now, facts)),
        Binding::Lost => now.clone(),
    }
}

/// The phase while there is no worker: once the claim exists, a phase that was reached stays.
fn unworked(now: &str, facts: Facts) -> String {
    match now {
        "" => first(facts),
        "WaitForFirstConsumer" | "Succeeded" | "Failed" | "Unknown" => "Pending",
        phase => phase,
    }
    .to_owned()
}

fn of_worker(claim: &Claim, work: Work, now: &str) -> Option<String> {
    if work == Work::Clone {
        let phase = claim.meta.annotation(names::CLONE_PHASE)?;
        return CLONING.iter().find(|(name, _)| *name == phase).map(|(_, phase)| (*phase).to_owned());
    }
    match claim.meta.annotation(names::POD_PHASE)? {
        "Pending" if now == work.working() => Some(now.to_owned()),
        "Pending" => Some(work.scheduled().to_owned()),
        "Running" if work == Work::Upload && !claim.meta.says(names::POD_READY, "true") => {
            Some(if now == work.working() { now.to_owned() } else { work.scheduled().to_owned() })
        }
        "Running" => Some(work.working().to_owned()),
        // Tried again: the phase stays.
        "Failed" => Some(if BEFORE.contains(&now) { work.scheduled().to_owned() } else { now.to_owned() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The phases that follow each other while nothing but the status changes.
    fn phases(source: &Value, claim: &Value, facts: Facts) -> Vec<String> {
        let mut volume = DataVolume::from(&json!({
            "metadata": {"name": "clone", "namespace": "n", "uid": "u"},
            "spec": {"source": source}, "status": {"phase": "Pending"},
        }));
        let claim = Claim::from(claim);
        let mut seen = Vec::new();
        while seen.last() != Some(&volume.status.phase) {
            seen.push(volume.status.phase.clone());
            volume.status.phase = next(&volume, Some(&claim), facts);
        }
        seen
    }

    fn claim(way: &str, made_for: &str, phase: &str) -> Value {
        json!({
            "metadata": {"name": "clone", "annotations": {
                names::CREATED_FOR: made_for, names::CLONE_TYPE: way, names::CLONE_PHASE: phase,
                names::POD_PHASE: "Succeeded",
            }},
            "status": {"phase": "Bound"},
        })
    }

    #[test]
    fn a_clone_that_waits_for_its_source_is_scheduled() {
        let pvc = json!({"pvc": {"namespace": "n", "name": "golden"}});
        let of = |annotations: &Value| json!({"metadata": {"name": "clone", "annotations": annotations}, "status": {"phase": "Pending"}});
        let waits = of(&json!({names::CREATED_FOR: "u", names::CLONE_PHASE: "Pending"}));
        let populated = Facts { populated: true, ..Facts::default() };
        assert_eq!(phases(&pvc, &waits, populated), ["Pending", "CloneScheduled"]);
        let unused = Facts { waits_for_consumer: true, consumer_first: true, ..populated };
        assert_eq!(phases(&pvc, &waits, unused), ["Pending", "PendingPopulation"]);
        // Then it goes through the phases of its way.
        let mut volume = DataVolume::from(&json!({
            "metadata": {"name": "clone", "uid": "u"}, "spec": {"source": pvc}, "status": {"phase": "CloneScheduled"},
        }));
        let cloned = Claim::from(&claim("csi-clone", "u", "Succeeded"));
        let complete = Facts { complete: true, ..populated };
        for expected in ["CSICloneInProgress", "RebindInProgress", "Succeeded"] {
            volume.status.phase = next(&volume, Some(&cloned), complete);
            assert_eq!(volume.status.phase, expected);
        }
    }

    #[test]
    fn a_claim_of_a_reserved_volume_is_pending_until_it_counts_as_filled() {
        let pvc = json!({"pvc": {"namespace": "n", "name": "golden"}});
        let claim = |annotations: Value| {
            let metadata = json!({"name": "clone", "annotations": annotations});
            json!({"metadata": metadata, "status": {"phase": "Bound"}})
        };
        let direct = Facts { binds_first: true, ..Facts::default() };
        let listed = claim(json!({names::CREATED_FOR: "u", names::VOLUME_LIST: "[\"v\"]"}));
        assert_eq!(phases(&pvc, &listed, direct), ["Pending"]);
        let filled = claim(json!({names::CREATED_FOR: "u", names::POPULATED_FOR: "clone"}));
        let complete = Facts { complete: true, ..direct };
        assert_eq!(phases(&pvc, &filled, complete), ["Pending", "Succeeded"]);
    }

    #[test]
    fn clones_that_are_faster_than_their_observer_go_through_every_phase() {
        let pvc = json!({"pvc": {"namespace": "n", "name": "golden"}});
        let snapshot = json!({"snapshot": {"namespace": "n", "name": "taken"}});
        let populated = Facts { populated: true, complete: true, ..Facts::default() };
        for (way, source, going) in [
            ("csi-clone", &pvc, &["CSICloneInProgress"][..]),
            ("snapshot", &pvc, &["SnapshotForSmartCloneInProgress", "CloneFromSnapshotSourceInProgress"]),
            ("snapshot", &snapshot, &["CloneFromSnapshotSourceInProgress"]),
            ("copy", &pvc, &["CloneInProgress"]),
        ] {
            let expected = [&["Pending"][..], going, &["RebindInProgress", "Succeeded"]].concat();
            assert_eq!(phases(source, &claim(way, "u", "Succeeded"), populated), expected);
            // Its volume is about to be rebound.
            let rebinding = Facts { complete: false, ..populated };
            let expected = [&["Pending"][..], going, &["RebindInProgress"]].concat();
            assert_eq!(phases(source, &claim(way, "u", "Rebind"), rebinding), expected);
            let expected = [&["Pending"][..], going, &["PrepClaimInProgress"]].concat();
            assert_eq!(phases(source, &claim(way, "u", "PrepClaim"), rebinding), expected);
        }
        // A claim that was restored from a backup of another one.
        let expected = ["Pending", "Succeeded"];
        assert_eq!(phases(&pvc, &claim("copy", "before", "Succeeded"), populated), expected);
        let direct = Facts { binds_first: true, complete: true, ..Facts::default() };
        let expected = ["Pending", "PVCBound", "CloneScheduled", "CloneInProgress", "Succeeded"];
        assert_eq!(phases(&pvc, &claim("copy", "u", "Succeeded"), direct), expected);
    }
}
