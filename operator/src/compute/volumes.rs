//! The claims and DataVolumes behind an instance's volumes: whether a pod can use them yet.

use std::collections::BTreeMap;

use super::conditions;
use crate::view::{Claim, DataVolume, condition, is_false};

/// How far DataVolumes are filled, by name, such as `42%`. Caches do not hold it, because it changes all the time.
pub(super) type Progress = BTreeMap<String, String>;

/// A volume that is on a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volume<'a> {
    /// Name of the claim.
    pub(super) claim_name: &'a str,
    /// Whether the volume names a DataVolume.
    pub(super) named_data_volume: bool,
    pub(super) claim: Option<&'a Claim>,
    /// The DataVolume of the claim's name.
    pub(super) data_volume: Option<&'a DataVolume>,
}

/// How far a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// A pod can use it, or decides by its place where it is made.
    Usable,
    /// Its DataVolume waits for a pod that uses the claim; the claim is bound once it is filled, so the launcher pod itself
    /// can be that pod.
    Consumable,
    /// Its DataVolume waits for a pod that uses the claim, and the claim is bound before it is filled: only a pod that
    /// does not run the guest may be that pod.
    ConsumableEmpty,
    /// It is being made or filled.
    Waits,
    /// Its claim does not exist.
    Missing,
    /// Its DataVolume failed.
    Failed,
}

impl Volume<'_> {
    /// How far the volume is.
    pub(super) fn readiness(&self) -> Readiness {
        let Some(data_volume) = self.data_volume else {
            return match self.claim {
                Some(claim) if claim.metadata.deleting() => Readiness::Waits,
                Some(_) => Readiness::Usable,
                None => Readiness::Missing,
            };
        };
        match data_volume.status.phase.as_str() {
            "Succeeded" if self.claim.is_none() => Readiness::Waits,
            "Succeeded" => Readiness::Usable,
            "Failed" => Readiness::Failed,
            "PendingPopulation" if self.claim.is_some() => Readiness::Consumable,
            "WaitForFirstConsumer" if self.claim.is_some() => Readiness::ConsumableEmpty,
            _ => Readiness::Waits,
        }
    }

    /// A sentence on how far it is.
    pub(super) fn words(&self, progress: &Progress) -> String {
        let name = self.claim_name;
        let unfilled = self.data_volume.filter(|volume| volume.status.phase != "Succeeded");
        if let Some(volume) = unfilled {
            let phase = if volume.status.phase.is_empty() { "Pending" } else { &volume.status.phase };
            let share = progress.get(name).map(|share| format!(" ({share})")).unwrap_or_default();
            let of = |kind: &str| {
                let found = condition(&volume.status.conditions, kind).filter(|one| one.status == "False");
                found.filter(|one| one.message.as_deref().is_some_and(|text| !text.is_empty()))
            };
            // The claim is the first obstacle, then the pod that fills it.
            let why = of("Bound").or_else(|| of("Running")).map(conditions::text);
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            return format!("DataVolume {name} is in phase {phase}{share}{why}.");
        }
        let Some(claim) = self.claim else { return format!("PersistentVolumeClaim {name} does not exist.") };
        if claim.metadata.deleting() {
            return format!("PersistentVolumeClaim {name} is being deleted.");
        }
        let phase = if claim.status.phase.is_empty() { "Pending" } else { &claim.status.phase };
        match claim.spec.storage_class_name.as_deref().filter(|class| !class.is_empty()) {
            Some(class) => format!(
                "PersistentVolumeClaim {name} is {phase} (StorageClass {class}): `kubectl describe pvc {name}` shows why."
            ),
            None => format!(
                "PersistentVolumeClaim {name} is {phase} and has no StorageClass: name one, or make one the default."
            ),
        }
    }

    /// Whether its DataVolume failed, or its worker keeps failing.
    pub(super) fn is_broken(&self) -> bool {
        self.data_volume.is_some_and(|volume| {
            volume.status.phase == "Failed"
                || matches!(is_false(&volume.status.conditions, "Running"), Some("Error" | "ImagePullFailed"))
        })
    }

    /// Whether its DataVolume is being filled.
    pub(super) fn is_provisioning(&self) -> bool {
        self.data_volume.is_some_and(|volume| {
            let bound = condition(&volume.status.conditions, "Bound").is_some_and(|one| one.status == "True");
            match volume.status.phase.as_str() {
                "Succeeded" | "PendingPopulation" => false,
                "WaitForFirstConsumer" => bound,
                _ => true,
            }
        })
    }
}
