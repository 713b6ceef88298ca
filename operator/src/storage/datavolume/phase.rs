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
    if work == Work::Clone {
        return wanted;
    }
    if before && (wanted == work.working() || transferred) {
        return if facts.binds_first && now != "PVCBound" { "PVCBound" } else { work.scheduled() }.to_owned();
    }
    if now == work.scheduled() && transferred {
        return work.working().to_owned();
    }
    wanted
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
    if facts.complete {
        // With a populator the volume has still to take its place.
        let settled = claim.phase == Binding::Bound || !facts.populated || !has_worked(claim);
        return if settled { "Succeeded".to_owned() } else { now.clone() };
    }
    let worker = of_worker(claim, work, now);
    match claim.phase {
        Binding::Pending if facts.populated && facts.waits_for_consumer && worker.is_none() => {
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
