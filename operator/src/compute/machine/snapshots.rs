//! `status.volumeSnapshotStatuses`: of which volumes of a VM snapshots can be taken, and why not of the others. Pure; the
//! reasons are upstream's. Not here: the snapshots.

use std::collections::BTreeSet;

use crate::compute::volumes::Volume;
use crate::view::{VolumeSnapshotStatus, VolumeSource};

/// One entry for each volume, in the order of the template. `found`: what is behind those that are on claims; `classes`:
/// storage classes with a VolumeSnapshotClass for their driver.
pub(super) fn statuses(
    volumes: &[VolumeSource],
    found: &[Volume<'_>],
    classes: &BTreeSet<String>,
) -> Vec<VolumeSnapshotStatus> {
    let status = |volume: &VolumeSource| {
        let reason = refusal(volume, found, classes);
        VolumeSnapshotStatus { name: volume.name.clone(), enabled: reason.is_none(), reason }
    };
    volumes.iter().map(status).collect()
}

/// Why there can be no snapshot of a volume.
fn refusal(volume: &VolumeSource, found: &[Volume<'_>], classes: &BTreeSet<String>) -> Option<String> {
    let name = &volume.name;
    let Some(of) = volume.claim().filter(|_| volume.is_snapshottable()) else {
        return Some(format!("Snapshot is not supported for this volumeSource type [{name}]"));
    };
    let Some(claim) = found.iter().find(|one| one.claim_name == of).and_then(|one| one.claim) else {
        return Some(format!("PVC {of} does not exist yet [{name}]"));
    };
    let class = claim.spec.storage_class_name.as_deref().unwrap_or_default();
    let why = "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass";
    (!classes.contains(class)).then(|| format!("{why} [{class}] [{name}]"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::Claim;

    #[test]
    fn source_and_class_of_a_volume_decide() {
        let volumes: Vec<VolumeSource> = serde_json::from_value(json!([
            {"name": "image", "containerDisk": {"image": "i"}},
            {"name": "with", "dataVolume": {"name": "fast"}},
            {"name": "without", "persistentVolumeClaim": {"claimName": "slow"}},
            {"name": "over", "ephemeral": {"persistentVolumeClaim": {"claimName": "fast"}}},
            {"name": "none", "persistentVolumeClaim": {"claimName": "plain"}},
            {"name": "later", "persistentVolumeClaim": {"claimName": "missing"}},
        ]))
        .unwrap();
        let claim = |class: Option<&str>| -> Claim {
            serde_json::from_value(json!({"spec": {"storageClassName": class}})).unwrap()
        };
        let claims = [("fast", claim(Some("a"))), ("slow", claim(Some("b"))), ("plain", claim(None))];
        let mut found: Vec<Volume<'_>> = claims
            .iter()
            .map(|(name, claim)| Volume {
                claim_name: name,
                named_data_volume: false,
                claim: Some(claim),
                data_volume: None,
            })
            .collect();
        found.push(Volume { claim_name: "missing", claim: None, ..found[0] });
        let said = statuses(&volumes, &found, &BTreeSet::from(["a".to_owned()]));
        let unsupported =
            |name: &str| format!("Snapshot is not supported for this volumeSource type [{name}]");
        let unset = |class: &str, name: &str| {
            format!(
                "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [{class}] [{name}]"
            )
        };
        let wanted = [
            ("image", Some(unsupported("image"))),
            ("with", None),
            ("without", Some(unset("b", "without"))),
            ("over", Some(unsupported("over"))),
            ("none", Some(unset("", "none"))),
            ("later", Some("PVC missing does not exist yet [later]".to_owned())),
        ];
        let wanted = wanted.map(|(name, reason)| VolumeSnapshotStatus {
            name: name.to_owned(),
            enabled: reason.is_none(),
            reason,
        });
        assert_eq!(said, wanted);
        assert_eq!(serde_json::to_value(&said[1]).unwrap(), json!({"name": "with", "enabled": true}));
    }
}
