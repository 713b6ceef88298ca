//! `volumeStatus` of an instance that is handed to an agent: its volumes by name, with their claims, from which the agent
//! takes the size of a disk. Pure.

use api::kubevirt::{ClaimInfo, VolumeStatus};

use super::plan::Observed;
use crate::compute::launcher::State;
use crate::view::Claim;

/// Filesystem overhead where CDI is not configured, as upstream.
const DEFAULT_OVERHEAD: &str = "0.055";

/// All volumes, by name.
pub(super) fn status(observed: &Observed<'_>) -> Vec<VolumeStatus> {
    let volumes = observed.instance.spec.volumes.iter();
    let mut all: Vec<VolumeStatus> = volumes
        .map(|volume| {
            let on_claim = |name| observed.volumes.iter().find(|one| one.claim_name == name);
            let claim = volume.claim().and_then(on_claim).and_then(|one| one.claim);
            VolumeStatus {
                name: volume.name.clone(),
                // Required.
                persistent_volume_claim_info: claim.map(|claim| info(observed, claim)),
                ..VolumeStatus::default()
            }
        })
        .collect();
    // As upstream: what the guest keeps besides its disks is a volume of its claim's name.
    if let State::There(claim) = observed.state {
        all.push(VolumeStatus {
            name: claim.metadata.name.clone(),
            persistent_volume_claim_info: Some(info(observed, claim)),
            ..VolumeStatus::default()
        });
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

/// The facts about a claim in `volumeStatus`.
pub(super) fn info(observed: &Observed<'_>, claim: &Claim) -> ClaimInfo {
    let overhead = match claim.is_block() {
        true => "0".to_owned(),
        false => {
            let class = claim.spec.storage_class_name.as_deref();
            (observed.overhead)(class).unwrap_or_else(|| DEFAULT_OVERHEAD.to_owned())
        }
    };
    ClaimInfo {
        claim_name: Some(claim.metadata.name.clone()),
        access_modes: claim.spec.access_modes.clone(),
        capacity: claim.status.capacity.clone(),
        filesystem_overhead: Some(overhead),
        preallocated: claim.is_preallocated().then_some(true),
        requests: claim.spec.resources.requests.clone(),
        volume_mode: claim.spec.volume_mode.clone().or_else(|| Some("Filesystem".to_owned())),
    }
}
