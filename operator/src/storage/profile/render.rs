//! `status` of a StorageProfile.

use serde_json::{Value, json};

use super::{Knowledge, Profile};

/// The status that a StorageProfile should have. Times of conditions are the caller's: `now` (RFC 3339) is used where
/// the condition of `before` differs.
pub fn status(profile: &Profile, before: &Value, now: &str) -> Value {
    let sets: Vec<Value> = profile
        .properties
        .iter()
        .map(|property| {
            let mode = if property.block { "Block" } else { "Filesystem" };
            json!({"accessModes": property.modes, "volumeMode": mode})
        })
        .collect();
    let mut status = json!({
        "storageClass": profile.class,
        "provisioner": profile.provisioner,
        "cloneStrategy": profile.clone.word(),
        "dataImportCronSourceFormat": if profile.cron_snapshots { "snapshot" } else { "pvc" },
        "conditions": [recognized(profile, &before["conditions"], now)],
    });
    if !sets.is_empty() {
        status["claimPropertySets"] = Value::Array(sets);
    }
    if !profile.snapshot_class.is_empty() {
        status["snapshotClass"] = json!(profile.snapshot_class);
    }
    status
}

fn recognized(profile: &Profile, before: &Value, now: &str) -> Value {
    let (status, reason, message) = match profile.knowledge {
        Knowledge::Recognized => ("True", "RecognizedProvisioner", "Provisioner is recognized".to_owned()),
        Knowledge::UnknownParameters => (
            "False",
            "UnrecognizedStorageClassParameters",
            format!(
                "the parameters of StorageClass {} name no known variant of {}",
                profile.class, profile.provisioner
            ),
        ),
        Knowledge::Unknown if profile.properties.is_empty() => (
            "False",
            "UnrecognizedProvisioner",
            format!("provisioner {} is not known; set spec.claimPropertySets", profile.provisioner),
        ),
        Knowledge::Unknown => {
            let clones = match profile.snapshot_class.as_str() {
                "" => String::new(),
                class => format!(", the clone strategy from its VolumeSnapshotClass {class}"),
            };
            let message = format!(
                "provisioner {} is not known; the properties are inferred from its CSIDriver{clones}; set \
                 spec.claimPropertySets and spec.cloneStrategy to change them",
                profile.provisioner
            );
            ("False", "UnrecognizedProvisioner", message)
        }
    };
    let before = before.as_array().into_iter().flatten().find(|one| one["type"] == "Recognized");
    let time =
        |field: &str, same: bool| before.filter(|_| same).and_then(|one| one[field].as_str()).unwrap_or(now);
    let unchanged = before.is_some_and(|one| one["status"] == status);
    let equal = unchanged && before.is_some_and(|one| one["reason"] == reason && one["message"] == *message);
    json!({
        "type": "Recognized", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": time("lastTransitionTime", unchanged),
        "lastHeartbeatTime": time("lastHeartbeatTime", equal),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Overrides, SnapshotClass};
    use super::*;
    use crate::storage::seen::Class;

    #[test]
    fn statuses_are_stable_and_name_what_is_unknown() {
        let class = |provisioner: &str| Class { provisioner: provisioner.into(), ..Class::default() };
        let of = |provisioner: &str, driver| {
            Profile::of(&class(provisioner), &Overrides::default(), driver, &[] as &[SnapshotClass])
        };
        let known = of("topolvm.io", true);
        let first = status(&known, &Value::Null, "1");
        assert_eq!(
            first["claimPropertySets"][0],
            json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"})
        );
        assert_eq!(
            (&first["cloneStrategy"], &first["conditions"][0]["status"]),
            (&json!("copy"), &json!("True"))
        );
        assert_eq!(status(&known, &first, "2"), first);
        let unknown = status(&of("x", false), &first, "3");
        assert_eq!(unknown["conditions"][0]["reason"], "UnrecognizedProvisioner");
        assert_eq!(unknown["conditions"][0]["lastTransitionTime"], "3");
        assert!(unknown.get("claimPropertySets").is_none());
        let snapshot = SnapshotClass { name: "snaps".into(), driver: "x".into(), is_default: false };
        for (snapshots, clones) in
            [(&[][..], ""), (&[snapshot][..], ", the clone strategy from its VolumeSnapshotClass snaps")]
        {
            let inferred = Profile::of(&class("x"), &Overrides::default(), true, snapshots);
            let message = format!(
                "provisioner x is not known; the properties are inferred from its CSIDriver{clones}; set \
                 spec.claimPropertySets and spec.cloneStrategy to change them"
            );
            assert_eq!(status(&inferred, &Value::Null, "1")["conditions"][0]["message"], message);
        }
        let parameters = status(&of("csi.trident.netapp.io", true), &Value::Null, "1");
        assert_eq!(parameters["conditions"][0]["status"], "False");
    }
}
