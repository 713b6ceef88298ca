//! Whether the source can be cloned now. Pure.

use super::step::{From, Observed, Plan, warning};
use crate::storage::clone::choose::CloneSource;
use crate::storage::names;
use crate::storage::seen::Claim;
use crate::storage::seen::claim::Phase;

/// Content that is a disk.
const KUBEVIRT: &str = "kubevirt";

/// Whether a DataVolume's claim is bound, as it is without a populator, and nothing has begun to fill it.
fn is_fresh(source: &Claim) -> bool {
    let annotation = |name| source.meta.annotation(name).is_some();
    let begun = [names::POD_PHASE, names::CLONE_PHASE, names::POPULATED_FOR, names::EXTERNAL_POPULATION];
    source.source.is_none() && annotation(names::CREATED_FOR) && !begun.into_iter().any(annotation)
}

/// Why the content of a claim does not fit another one. Disks are fitted to another volume mode while they are copied, so
/// sizes are compared within one mode.
fn mismatch(source: &Claim, target: &Claim) -> Option<String> {
    let content = |claim: &Claim| claim.meta.annotation(names::CONTENT_TYPE).map(str::to_owned);
    let from = content(source).unwrap_or_else(|| KUBEVIRT.to_owned());
    // A claim without the annotation is of a user, and takes what the source has.
    let to = content(target).unwrap_or_else(|| from.clone());
    if from != to {
        return Some(format!("source contentType ({from}) and target contentType ({to}) do not match"));
    }
    if source.block != target.block {
        let mode = |claim: &Claim| if claim.block { "Block" } else { "Filesystem" };
        let (from, to) = (mode(source), mode(target));
        return (content(source).is_some_and(|content| content != KUBEVIRT)).then(|| {
            format!("source volumeMode ({from}) and target volumeMode ({to}) do not match, and the content is no disk")
        });
    }
    let permissive = target.meta.says(names::PERMISSIVE_CLONE, "true");
    (target.size < source.size && !permissive).then(|| {
        let (from, to) = (source.size, target.size);
        format!("target resources requests storage size is smaller than the source {to} < {from}")
    })
}

/// The source, when it can be cloned now.
pub(super) fn given(o: &Observed<'_>) -> Result<CloneSource, Plan> {
    let name = &o.origin.name;
    match o.from {
        From::Missing => {
            let kind = if o.origin.snapshot { "VolumeSnapshot" } else { "PersistentVolumeClaim" };
            let message = format!("The source {kind} {name} doesn't exist");
            let event = warning(o, "CloneWithoutSource", &message);
            Err(Plan::troubled("CloneWithoutSource", message).before(vec![event]))
        }
        From::Claim(source, volume, _) => {
            let says = |annotation| source.meta.annotation(annotation).is_none_or(|one| one == "Succeeded");
            let filled = says(names::POD_PHASE) && says(names::CLONE_PHASE) && !is_fresh(source);
            if source.phase != Phase::Bound || source.meta.deleting || !filled {
                let message = format!("PVC {name} is not filled yet: the clone waits for it");
                return Err(Plan::troubled("CloneSourceNotReady", message));
            }
            if let Some(problem) = mismatch(source, o.target) {
                let message = format!("The clone doesn't meet the validation requirements: {problem}");
                let event = warning(o, "CloneValidationFailed", &message);
                return Err(Plan::troubled("CloneValidationFailed", message).before(vec![event]));
            }
            Ok(CloneSource {
                driver: volume.map(|volume| volume.driver.clone()).unwrap_or_default(),
                block: Some(source.block),
                size: source.capacity,
                snapshot: false,
            })
        }
        From::Snapshot(snapshot, driver) => {
            if !snapshot.ready || snapshot.meta.deleting {
                let why =
                    if snapshot.error.is_empty() { String::new() } else { format!(" ({})", snapshot.error) };
                let message =
                    format!("VolumeSnapshot {name} is not ready to use{why}: the clone waits for it");
                return Err(Plan::troubled("SnapshotNotReady", message));
            }
            Ok(CloneSource {
                driver: driver.to_owned(),
                block: snapshot.block,
                size: snapshot.size,
                snapshot: true,
            })
        }
    }
}
