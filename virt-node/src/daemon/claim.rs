//! Facts of a volume in its claim and DataVolume: size, phase, and how it is filled. Pure.

use api::cdi::DataVolume;
use api::core::{ClaimResources, PersistentVolumeClaim};
use api::resource::Quantity;
use serde_json::Value;

use super::object::Stored;

/// The requested size in a claim's spec.
const REQUEST: &str = "/resources/requests/storage";
/// A claim's phase: `Bound` when its volume is there.
pub(super) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.other.get("status").and_then(|status| status["phase"].as_str()) == Some("Bound")
}

pub(super) fn size(resources: &ClaimResources) -> Option<u64> {
    resources.requests.get("storage").and_then(|size| size.bytes().ok())
}

/// Whether a volume is filled with what a client sends.
pub(super) fn is_upload(volume: &DataVolume) -> bool {
    volume.spec.source.as_ref().is_some_and(|source| source.upload.is_some())
}

/// How a claim's volume stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// There is no such claim.
    Missing,
    /// It is being made or filled.
    NotYet,
    /// It could not be, and is tried again.
    Broken,
    Ready,
}

/// How the volume of a claim stands; `source` is the DataVolume of its name.
pub(super) fn filled(
    claim: Option<&PersistentVolumeClaim>,
    source: Option<&DataVolume>,
    is_busy: bool,
) -> Filled {
    let Some(claim) = claim else {
        return if source.is_some() { Filled::NotYet } else { Filled::Missing };
    };
    let source = source.map(|volume| {
        let status = volume.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        (phase, status.and_then(|status| status.restart_count).unwrap_or(0))
    });
    match (is_bound(claim) && !claim.is_deleting(), source) {
        // A disk that grows is used by no guest but those that run.
        (true, _) if is_busy => Filled::NotYet,
        (true, None | Some(("Succeeded", _))) => Filled::Ready,
        (_, Some((_, restarts))) if restarts > 0 => Filled::Broken,
        (_, _) => Filled::NotYet,
    }
}

fn bytes(value: Option<&Value>) -> Option<u64> {
    let value = value?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Quantity(text).bytes().ok()
}

/// A claim's spec as it is asked for, as if it did not ask for more than is `kept`: the one change that may be.
pub(super) fn without_growth(kept: &Value, mut asked: Value) -> Value {
    let (before, after) = (kept.pointer(REQUEST), asked.pointer_mut(REQUEST));
    if let (Some(before), Some(after)) = (before, after)
        && bytes(Some(after)) > bytes(Some(before))
    {
        *after = before.clone();
    }
    asked
}

/// Has a claim ask for as much as another form of it.
pub(super) fn ask_for(claim: &mut PersistentVolumeClaim, asked: &PersistentVolumeClaim) {
    if size(&asked.spec.resources) > size(&claim.spec.resources)
        && let Some(wanted) = asked.spec.resources.requests.get("storage")
    {
        claim.spec.resources.requests.insert("storage".to_owned(), wanted.clone());
    }
}

/// Bytes that a claim's volume has.
fn capacity(claim: &PersistentVolumeClaim) -> Option<u64> {
    bytes(claim.other.get("status")?.pointer("/capacity/storage"))
}

/// Whether a claim's volume is smaller than is asked for.
pub(super) fn is_wanted(claim: &PersistentVolumeClaim) -> bool {
    capacity(claim)
        .is_some_and(|capacity| size(&claim.spec.resources).is_some_and(|wanted| wanted > capacity))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(request: &str, capacity: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"resources": {"requests": {"storage": request}}},
            "status": {"phase": "Bound", "capacity": {"storage": capacity}},
        }))
        .unwrap()
    }

    #[test]
    fn a_larger_request_is_the_one_change() {
        let spec = |request: &str, mode: &str| json!({"resources": {"requests": {"storage": request}}, "volumeMode": mode});
        let kept = spec("1Mi", "Block");
        assert_eq!(without_growth(&kept, spec("2Mi", "Block")), kept);
        assert_ne!(without_growth(&kept, spec("2Mi", "Filesystem")), kept);
        for request in ["512Ki", "x"] {
            assert_eq!(without_growth(&kept, spec(request, "Block")), spec(request, "Block"));
        }
        let mut claim = claim("1Mi", "1048576");
        assert!(!is_wanted(&claim));
        ask_for(&mut claim, &self::claim("512Ki", "1"));
        assert!(!is_wanted(&claim), "not less");
        ask_for(&mut claim, &self::claim("3Mi", "1"));
        assert!(is_wanted(&claim));
    }

    #[test]
    fn a_volume_that_is_not_there_does_not_grow() {
        let mut unbound = claim("1Mi", "1");
        unbound.other.clear();
        assert!(!is_wanted(&unbound));
    }
}
