//! Decides what a `HyperConverged` and its children need next. Pure.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::input::plain;
use super::render::Child;

/// Finalizer of `HyperConverged`, upstream's.
pub const FINALIZER: &str = "kubevirt.io/hyperconverged";
/// Annotation of children: identifies the last written content, so that a later difference is known to be another client's.
pub const APPLIED: &str = "ferrovirt.io/applied";

/// The step for a child.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as it should be.
    Keep,
    /// It is being deleted; a new one follows when it is gone.
    Wait,
    /// It does not exist.
    Create {
        /// The whole object to write.
        object: Value,
        /// Whether another client deleted it: it was there before.
        again: bool,
    },
    /// It differs.
    Write {
        /// The whole object to write.
        object: Value,
        /// Whether another client changed it: the wanted content is the last written one.
        drift: bool,
    },
}

/// Identifies the wanted content of an object.
pub(in crate::platform) fn digest(wanted: &Value) -> String {
    let hash = Sha256::digest(plain(wanted).to_string());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The next step of a child. `known`: it existed before.
pub fn step(wanted: &Value, live: Option<&Value>, known: bool) -> Step {
    let digest = digest(wanted);
    let Some(live) = live else {
        let mut object = wanted.clone();
        object["metadata"]["annotations"][APPLIED] = json!(digest);
        return Step::Create { object, again: known };
    };
    if live["metadata"]["deletionTimestamp"].is_string() {
        return Step::Wait;
    }
    let mut object = live.clone();
    object["spec"] = wanted["spec"].clone();
    for group in ["labels", "annotations"] {
        for (name, text) in wanted["metadata"][group].as_object().into_iter().flatten() {
            object["metadata"][group][name] = text.clone();
        }
    }
    let drift = live["metadata"]["annotations"][APPLIED] == digest.as_str();
    object["metadata"]["annotations"][APPLIED] = json!(digest);
    if plain(&object) == plain(live) { Step::Keep } else { Step::Write { object, drift } }
}

/// The next step of a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Delete these children.
    Delete(Vec<Child>),
    /// Children are being deleted.
    Wait(Vec<Child>),
    /// All are gone: remove the finalizer.
    Release,
}

/// Children in the order in which they are removed: each group is gone before the next.
const REMOVED: [&[Child]; 3] = [&[Child::Ssp, Child::Network], &[Child::KubeVirt], &[Child::Cdi]];

/// The next step of a deletion. `state` returns whether a child exists, and whether it is being deleted.
pub fn removal(state: impl Fn(Child) -> Option<bool>) -> Removal {
    for group in REMOVED {
        let present: Vec<Child> = group.iter().copied().filter(|child| state(*child).is_some()).collect();
        let fresh: Vec<Child> =
            present.iter().copied().filter(|child| state(*child) == Some(false)).collect();
        if !fresh.is_empty() {
            return Removal::Delete(fresh);
        }
        if !present.is_empty() {
            return Removal::Wait(present);
        }
    }
    Removal::Release
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(size: u32) -> Value {
        json!({"metadata": {"name": "a", "labels": {"app": "x"}}, "spec": {"size": size, "empty": {}}})
    }

    fn created(size: u32) -> Value {
        let Step::Create { object, again: false } = step(&wanted(size), None, false) else { panic!() };
        object
    }

    #[test]
    fn missing_children_are_created_and_equal_ones_kept() {
        assert!(
            matches!(step(&wanted(1), None, true), Step::Create { again: true, .. }),
            "deleted by others"
        );
        let mut live = created(1);
        live["metadata"]["resourceVersion"] = json!("7");
        live["metadata"]["labels"]["mine"] = json!("kept");
        live["status"] = json!({"phase": "Deployed"});
        assert_eq!(step(&wanted(1), Some(&live), true), Step::Keep);
        if let Some(spec) = live["spec"].as_object_mut() {
            spec.remove("empty");
        }
        assert!(
            matches!(step(&wanted(1), Some(&live), true), Step::Write { drift: true, .. }),
            "an empty object counts"
        );
        live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(step(&wanted(1), Some(&live), true), Step::Wait);
    }

    #[test]
    fn edits_of_others_are_drift_and_own_changes_are_not() {
        let mut edited = created(1);
        edited["spec"]["added"] = json!(true);
        edited["metadata"]["labels"]["mine"] = json!("kept");
        let Step::Write { object, drift } = step(&wanted(1), Some(&edited), true) else { panic!() };
        assert!(drift && object["spec"]["added"].is_null());
        assert_eq!(object["metadata"]["labels"], json!({"app": "x", "mine": "kept"}));
        let Step::Write { object, drift } = step(&wanted(2), Some(&created(1)), true) else { panic!() };
        assert!(!drift && object["spec"]["size"] == 2);
        let mut unlabelled = created(1);
        unlabelled["metadata"]["labels"] = json!({});
        assert!(matches!(step(&wanted(1), Some(&unlabelled), true), Step::Write { drift: true, .. }));
    }

    #[test]
    fn children_are_removed_in_order() {
        let with = |present: &[(Child, bool)]| {
            let present = present.to_vec();
            removal(move |child| present.iter().find(|one| one.0 == child).map(|one| one.1))
        };
        let all = Child::ALL.map(|child| (child, false));
        assert_eq!(with(&all), Removal::Delete(vec![Child::Ssp, Child::Network]));
        assert_eq!(
            with(&[(Child::Network, true), (Child::KubeVirt, false)]),
            Removal::Wait(vec![Child::Network])
        );
        assert_eq!(
            with(&[(Child::KubeVirt, false), (Child::Cdi, false)]),
            Removal::Delete(vec![Child::KubeVirt])
        );
        assert_eq!(with(&[(Child::Cdi, true)]), Removal::Wait(vec![Child::Cdi]));
        assert_eq!(with(&[]), Removal::Release);
    }
}
