//! Static volumes: PVs whose claimRef names the claim of a DataVolume with annotation `storage.checkStaticVolume`. The claim
//! binds to one of them, nothing is transferred, and it counts as filled. Pure.
//!
//! ```text
//!  PV reserved ─► claim with volumeName and the list ─► bound to one of the list ─► populatedFor, without the list
//!                                                  └──► bound elsewhere, PV gone ─► deleted; again from the beginning
//! ```

use serde_json::{Value, json};

use super::claim::{self, ClusterStorage};
use super::plan::Plan;
use crate::storage::action::{About, Action, Event, Kind};
use crate::storage::names;
use crate::storage::seen::claim::Phase;
use crate::storage::seen::{Claim, DataVolume, Volume, texts};

/// Whether volumes that are reserved for a DataVolume's claim are looked for before the claim is made.
pub fn is_checked(volume: &DataVolume) -> bool {
    volume.meta.annotation(names::CHECK_STATIC_VOLUME).is_some()
        && volume.meta.annotation(names::PREPOPULATED).is_none()
        && !volume.meta.deleting
}

/// The claim of a DataVolume that binds to one of `volumes`: to the smallest. `None` when none is reserved for it and fits.
pub fn claim(volume: &DataVolume, offer: ClusterStorage<'_>, volumes: &[Volume]) -> Option<Value> {
    let (namespace, name) = (&volume.meta.namespace, &volume.meta.name);
    let reserved = volumes.iter().filter(|one| {
        one.available
            && one.claim_namespace == *namespace
            && one.claim_name == *name
            && one.claim_uid.is_empty()
    });
    let mut fitting: Vec<(&Volume, Value)> = reserved
        .filter_map(|one| {
            // A DataVolume without a size gets the disk that the volume has room for.
            let overhead = offer.settings.overhead_of(Some(&one.class), one.block);
            let claim = claim::render(volume, offer, Some(overhead.disk_in(one.capacity))).ok()?;
            fits(one, &claim).then_some((one, claim))
        })
        .collect();
    fitting.sort_by(|(one, _), (other, _)| {
        (one.capacity, &one.meta.name).cmp(&(other.capacity, &other.meta.name))
    });
    let names: Vec<&str> = fitting.iter().map(|(one, _)| one.meta.name.as_str()).collect();
    let list = json!(names).to_string();
    let (chosen, mut claim) = fitting.into_iter().next()?;
    claim["spec"]["volumeName"] = json!(chosen.meta.name);
    if let Some(spec) = claim["spec"].as_object_mut() {
        spec.remove("dataSourceRef");
    }
    claim["metadata"]["annotations"][names::VOLUME_LIST] = json!(list);
    Some(claim)
}

/// Whether Kubernetes would bind a claim to a volume.
fn fits(volume: &Volume, claim: &Value) -> bool {
    let spec = &claim["spec"];
    let named = spec["volumeName"].as_str().unwrap_or_default();
    let size = spec["resources"]["requests"]["storage"].as_str();
    let size = size.and_then(|size| api::quantity::bytes(size).ok());
    (named.is_empty() || named == volume.meta.name)
        && spec["storageClassName"].as_str().unwrap_or_default() == volume.class
        && (spec["volumeMode"] == "Block") == volume.block
        && texts(&spec["accessModes"]).iter().all(|mode| volume.modes.contains(mode))
        && size.is_some_and(|size| size <= volume.capacity)
}

/// The steps for a claim that has to bind to one of its list. `named`: the volume that it names, if that exists.
pub fn settle(volume: &DataVolume, claim: &Claim, named: Option<&Volume>) -> Plan {
    let listed = claim.meta.annotation(names::VOLUME_LIST).and_then(|list| serde_json::from_str(list).ok());
    let listed = texts(&listed.unwrap_or_default());
    let is_listed = listed.contains(&claim.volume);
    match claim.phase {
        Phase::Bound if is_listed => {
            let changes = [
                (names::POPULATED_FOR.to_owned(), Some(volume.meta.name.clone())),
                (names::VOLUME_LIST.to_owned(), None),
            ];
            Plan::act(Action::Annotate {
                claim: (claim.meta.namespace.clone(), claim.meta.name.clone()),
                uid: claim.meta.uid.clone(),
                annotations: changes.into(),
                labels: [].into(),
            })
        }
        Phase::Pending if is_listed && named.is_some_and(|named| is_for(named, claim)) => Plan::default(),
        Phase::Bound | Phase::Pending => misbound(volume, claim),
        Phase::Lost => Plan::default(),
    }
}

fn is_for(volume: &Volume, claim: &Claim) -> bool {
    volume.claim_namespace == claim.meta.namespace
        && volume.claim_name == claim.meta.name
        && (volume.claim_uid.is_empty() || volume.claim_uid == claim.meta.uid)
}

/// Deletes a claim that does not bind to one of its list: another one is made.
fn misbound(volume: &DataVolume, claim: &Claim) -> Plan {
    let message = format!(
        "PVC {} is bound to PV {}, or waits for it, which is not reserved for it: it is deleted and made again",
        claim.meta.name, claim.volume
    );
    let event = Event::warning(About::data_volume(&volume.meta), "ClaimMisbound", message);
    let delete = Action::Delete {
        kind: Kind::Claim,
        key: (claim.meta.namespace.clone(), claim.meta.name.clone()),
        uid: claim.meta.uid.clone(),
    };
    Plan { actions: vec![delete, Action::Report(event)], trouble: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::class::Classes;
    use crate::storage::profile::{Driver, Overrides, Profile, SnapshotClass};
    use crate::storage::seen::Class;
    use crate::storage::settings::Settings;

    fn data_volume(annotations: &Value, size: Option<&str>) -> DataVolume {
        DataVolume::from(&json!({
            "metadata": {"name": "disk", "namespace": "n", "uid": "u", "annotations": annotations},
            "spec": {
                "source": {"pvc": {"name": "gone", "namespace": "gone"}},
                "storage": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                    "resources": {"requests": {"storage": size}}},
            },
        }))
    }

    fn persistent(name: &str, change: &Value) -> Volume {
        let mut object = json!({
            "metadata": {"name": name},
            "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "capacity": {"storage": "2Gi"}, "claimRef": {"namespace": "n", "name": "disk"}},
            "status": {"phase": "Available"},
        });
        for (part, fields) in change.as_object().unwrap() {
            for (field, value) in fields.as_object().unwrap() {
                object[part][field] = value.clone();
            }
        }
        Volume::from(&object)
    }

    fn made(volume: &DataVolume, volumes: &[Volume]) -> Option<Value> {
        let mut class = Class { provisioner: "driver".into(), ..Class::default() };
        class.meta.name = "fast".into();
        let classes = Classes { classes: vec![class], drivers: ["driver".to_owned()].into() };
        let driver = Some(Driver::default());
        let of = |class| Profile::of(class, &Overrides::default(), driver, &[] as &[SnapshotClass]);
        let profiles: Vec<Profile> = classes.classes.iter().map(of).collect();
        let settings = Settings::default();
        claim(volume, ClusterStorage { classes: &classes, profiles: &profiles, settings: &settings }, volumes)
    }

    #[test]
    fn a_claim_names_the_smallest_volume_that_is_reserved_for_it_and_fits() {
        let volume = data_volume(&json!({names::CHECK_STATIC_VOLUME: ""}), Some("1Gi"));
        assert!(is_checked(&volume));
        let (large, fit) = (
            persistent("large", &json!({})),
            persistent("fit", &json!({"spec": {"capacity": {"storage": "1138166334"}}})),
        );
        let claim = made(&volume, &[large.clone(), fit]).unwrap();
        assert_eq!(claim["spec"]["volumeName"], "fit");
        assert!(claim["spec"]["dataSourceRef"].is_null());
        assert_eq!(claim["metadata"]["annotations"][names::VOLUME_LIST], r#"["fit","large"]"#);
        // Without a size the claim is as large as the volume allows.
        let claim = made(&data_volume(&json!({}), None), &[large]).unwrap();
        let size = api::quantity::bytes(claim["spec"]["resources"]["requests"]["storage"].as_str().unwrap())
            .unwrap();
        assert!(size <= 2 << 30 && size > (2 << 30) - (4 << 20), "{size}");
        for change in [
            json!({"spec": {"claimRef": {"namespace": "n", "name": "other"}}}),
            json!({"spec": {"claimRef": {"namespace": "m", "name": "disk"}}}),
            json!({"spec": {"claimRef": {"namespace": "n", "name": "disk", "uid": "gone"}}}),
            json!({"spec": {"storageClassName": "slow"}}),
            json!({"spec": {"volumeMode": "Block"}}),
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
            json!({"spec": {"capacity": {"storage": "1Gi"}}}),
            json!({"status": {"phase": "Released"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ] {
            assert_eq!(made(&volume, &[persistent("other", &change)]), None, "{change}");
        }
        for annotations in [json!({}), json!({names::CHECK_STATIC_VOLUME: "", names::PREPOPULATED: "disk"})] {
            assert!(!is_checked(&data_volume(&annotations, None)), "{annotations}");
        }
    }

    #[test]
    fn a_claim_is_filled_when_it_binds_to_one_of_its_list_and_else_made_again() {
        let volume = data_volume(&json!({names::CHECK_STATIC_VOLUME: ""}), None);
        let claim = |phase: &str, bound: &str| {
            Claim::from(&json!({
                "metadata": {"name": "disk", "namespace": "n", "uid": "c", "annotations": {names::VOLUME_LIST: r#"["one","two"]"#}},
                "spec": {"volumeName": bound}, "status": {"phase": phase},
            }))
        };
        assert!(claim("Pending", "one").waits_for_reserved());
        let reserved = persistent("one", &json!({}));
        let ours =
            persistent("one", &json!({"spec": {"claimRef": {"namespace": "n", "name": "disk", "uid": "c"}}}));
        let other =
            persistent("one", &json!({"spec": {"claimRef": {"namespace": "n", "name": "disk", "uid": "x"}}}));
        let kinds = |plan: &Plan| -> Vec<&'static str> {
            let kind = |action: &Action| {
                if let Action::Annotate { annotations, .. } = action {
                    assert_eq!(annotations[names::POPULATED_FOR].as_deref(), Some("disk"));
                    assert_eq!(annotations[names::VOLUME_LIST], None);
                    return "filled";
                }
                if let Action::Report(event) = action {
                    assert_eq!(event.reason, "ClaimMisbound");
                    return "event";
                }
                assert!(matches!(action, Action::Delete { uid, .. } if uid == "c"), "{action:?}");
                "delete"
            };
            plan.actions.iter().map(kind).collect()
        };
        for (phase, bound, named, expected) in [
            ("Pending", "one", Some(&reserved), &[][..]),
            ("Pending", "one", Some(&ours), &[]),
            ("Pending", "one", Some(&other), &["delete", "event"]),
            ("Pending", "one", None, &["delete", "event"]),
            ("Bound", "two", None, &["filled"]),
            ("Bound", "three", None, &["delete", "event"]),
            ("Lost", "one", None, &[]),
        ] {
            let plan = settle(&volume, &claim(phase, bound), named);
            assert_eq!(kinds(&plan), expected, "{phase} {bound} {named:?}");
        }
    }
}
