//! `status` of a StorageProfile.

use serde_json::{Value, json};

use super::infer::{Driver, Reach};
use super::{Knowledge, NO_PROVISIONER, Profile};

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

/// The merge patch that makes a status of the one before: fields that it has no more are removed.
pub fn patch(before: &Value, status: &Value) -> Value {
    let mut patch = status.clone();
    for (field, _) in before.as_object().into_iter().flatten() {
        if status.get(field).is_none() {
            patch[field] = Value::Null;
        }
    }
    patch
}

/// The facts that properties were inferred from, and what an administrator does about the properties.
fn remedy(profile: &Profile) -> String {
    let Some(driver) = profile.inferred else { return "set spec.claimPropertySets".to_owned() };
    let clones = match profile.snapshot_class.as_str() {
        "" => String::new(),
        class => format!(", the clone strategy from its VolumeSnapshotClass {class}"),
    };
    format!(
        "the properties are inferred from its CSIDriver{}{clones}; set spec.claimPropertySets and \
         spec.cloneStrategy to change them",
        topology(driver)
    )
}

/// The facts about a driver's topology, as far as properties follow from them.
fn topology(driver: Driver) -> &'static str {
    match driver.reach {
        Reach::OneNode => " and its topology, by which a volume stays on one node",
        Reach::EveryNode if driver.shares() => {
            ", which attaches no volumes, and its CSINodes without topology, so that several nodes may share a volume"
        }
        Reach::EveryNode | Reach::Unknown => "",
    }
}

fn recognized(profile: &Profile, before: &Value, now: &str) -> Value {
    let Profile { class, provisioner, .. } = profile;
    let (status, reason, message) = match profile.knowledge {
        Knowledge::Recognized => ("True", "RecognizedProvisioner", "Provisioner is recognized".to_owned()),
        Knowledge::UnknownParameters => (
            "False",
            "UnrecognizedStorageClassParameters",
            format!(
                "the parameters of StorageClass {class} name no known variant of {provisioner}; {}",
                remedy(profile)
            ),
        ),
        Knowledge::Unknown if provisioner == NO_PROVISIONER => (
            "False",
            "UnrecognizedProvisioner",
            format!(
                "no PersistentVolume has StorageClass {class}, and its properties are those of its volumes; create one, \
                 or set spec.claimPropertySets"
            ),
        ),
        Knowledge::Unknown => (
            "False",
            "UnrecognizedProvisioner",
            format!("provisioner {provisioner} is not known; {}", remedy(profile)),
        ),
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
    fn the_condition_names_the_facts_that_were_used() {
        let class = |provisioner: &str| Class { provisioner: provisioner.into(), ..Class::default() };
        let message = |provisioner: &str, driver: Option<Driver>, snapshots: &[SnapshotClass]| {
            let profile = Profile::of(&class(provisioner), &Overrides::default(), driver, snapshots);
            status(&profile, &Value::Null, "1")["conditions"][0]["message"].as_str().unwrap().to_owned()
        };
        let driver = |attaches, reach| Some(Driver { attaches, reach });
        let snapshots = [SnapshotClass { name: "snaps".into(), driver: "x".into(), is_default: false }];
        let on_one = " and its topology, by which a volume stays on one node";
        let on_all = ", which attaches no volumes, and its CSINodes without topology, so that several nodes may share a volume";
        for (driver, topology) in [
            (driver(true, Reach::Unknown), ""),
            (driver(false, Reach::Unknown), ""),
            (driver(true, Reach::EveryNode), ""),
            (driver(false, Reach::EveryNode), on_all),
            (driver(false, Reach::OneNode), on_one),
            (driver(true, Reach::OneNode), on_one),
        ] {
            for (snapshots, clones) in
                [(&[][..], ""), (&snapshots[..], ", the clone strategy from its VolumeSnapshotClass snaps")]
            {
                assert_eq!(
                    message("x", driver, snapshots),
                    format!(
                        "provisioner x is not known; the properties are inferred from its CSIDriver{topology}{clones}; set \
                         spec.claimPropertySets and spec.cloneStrategy to change them"
                    )
                );
            }
        }
        assert_eq!(message("x", None, &snapshots), "provisioner x is not known; set spec.claimPropertySets");
        assert_eq!(
            message("csi.trident.netapp.io", driver(true, Reach::Unknown), &[]),
            "the parameters of StorageClass  name no known variant of csi.trident.netapp.io; the properties are inferred \
             from its CSIDriver; set spec.claimPropertySets and spec.cloneStrategy to change them"
        );
        let volumes = message(NO_PROVISIONER, None, &[]);
        assert!(volumes.starts_with("no PersistentVolume has StorageClass "), "{volumes}");
        assert_eq!(message("topolvm.io", driver(false, Reach::OneNode), &[]), "Provisioner is recognized");
    }

    #[test]
    fn a_patch_removes_what_the_status_has_no_more() {
        let after = json!({"provisioner": "x", "cloneStrategy": "copy"});
        let before = json!({"provisioner": "x", "claimPropertySets": [{}], "snapshotClass": "s"});
        let wanted = json!({
            "provisioner": "x", "cloneStrategy": "copy", "claimPropertySets": null, "snapshotClass": null,
        });
        assert_eq!(patch(&before, &after), wanted);
        assert_eq!(patch(&Value::Null, &after), after);
    }

    #[test]
    fn statuses_are_stable_and_name_what_is_unknown() {
        let class = |provisioner: &str| Class { provisioner: provisioner.into(), ..Class::default() };
        let of = |provisioner: &str, driver| {
            Profile::of(&class(provisioner), &Overrides::default(), driver, &[] as &[SnapshotClass])
        };
        let known = of("topolvm.io", Some(Driver::default()));
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
        let unknown = status(&of("x", None), &first, "3");
        assert_eq!(unknown["conditions"][0]["reason"], "UnrecognizedProvisioner");
        assert_eq!(unknown["conditions"][0]["lastTransitionTime"], "3");
        assert!(unknown.get("claimPropertySets").is_none());
        let parameters = status(&of("csi.trident.netapp.io", Some(Driver::default())), &Value::Null, "1");
        assert_eq!(parameters["conditions"][0]["status"], "False");
    }
}
