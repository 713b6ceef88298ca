//! Decides which instance types and preferences are written or deleted next. Pure.

use serde_json::{Value, json};
use virt::instancetype::Shipped;

use crate::platform::hyperconverged::plan::{Step as Difference, step};

/// Label of the platform's own objects, and its value. Objects without it are not deleted.
const OWN: (&str, &str) = ("app.kubernetes.io/part-of", "ferrovirt");

/// A shipped object with the labels of upstream's operator and of the platform.
fn wanted(one: &Shipped) -> Value {
    let mut object = one.object();
    for (label, value) in
        [("app.kubernetes.io/component", "kubevirt"), ("app.kubernetes.io/managed-by", "virt-operator"), OWN]
    {
        object["metadata"]["labels"][label] = json!(value);
    }
    object
}

/// The object as it is to be written; `live`: as it is now. `None`: it need not be written.
pub(super) fn written(one: &Shipped, live: Option<&Value>) -> Option<Value> {
    match step(&wanted(one), live, false) {
        Difference::Create { object, .. } | Difference::Write { object, .. } => Some(object),
        Difference::Keep | Difference::Wait => None,
    }
}

/// An instance type or preference of the cluster, compared with the shipped one of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Live {
    /// None of its name is shipped, or it lacks the platform's label.
    #[default]
    Foreign,
    /// The platform's, with another content.
    Changed,
    /// The platform's, as it is shipped; or it is being deleted.
    Current,
}

/// Compares a live object with `one`, the shipped one of its name.
pub(super) fn compare(one: &Shipped, live: &Value) -> Live {
    if live["metadata"]["labels"][OWN.0] != OWN.1 {
        Live::Foreign
    } else if written(one, Some(live)).is_some() {
        Live::Changed
    } else {
        Live::Current
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It does not exist.
    Create(Shipped),
    /// It exists with another content.
    Restore(Shipped),
    /// It is not wanted any more.
    Delete(Shipped),
}

/// The step of one; `present`: whether it should exist.
fn next(one: Shipped, present: bool, live: Option<Live>) -> Option<Step> {
    match (present, live) {
        (true, None) => Some(Step::Create(one)),
        (true, Some(Live::Foreign | Live::Changed)) => Some(Step::Restore(one)),
        (false, Some(Live::Changed | Live::Current)) => Some(Step::Delete(one)),
        (true, Some(Live::Current)) | (false, None | Some(Live::Foreign)) => None,
    }
}

/// All steps, for the shipped objects `all`; `live` finds the cluster's object of a shipped one's kind and name.
pub(super) fn plan(
    all: impl Iterator<Item = Shipped>,
    present: bool,
    live: impl Fn(&Shipped) -> Option<Live>,
) -> Vec<Step> {
    all.filter_map(|one| next(one, present, live(&one))).collect()
}

#[cfg(test)]
mod tests {
    use virt::instancetype::shipped;

    use super::*;

    fn micro() -> Shipped {
        shipped().find(|one| one.name == "u1.micro").unwrap()
    }

    #[test]
    fn missing_and_changed_ones_are_written_and_only_own_ones_are_deleted() {
        let one = micro();
        for (present, live, wanted) in [
            (true, None, Some(Step::Create(one))),
            (true, Some(Live::Foreign), Some(Step::Restore(one))),
            (true, Some(Live::Changed), Some(Step::Restore(one))),
            (true, Some(Live::Current), None),
            (false, None, None),
            (false, Some(Live::Foreign), None),
            (false, Some(Live::Changed), Some(Step::Delete(one))),
            (false, Some(Live::Current), Some(Step::Delete(one))),
        ] {
            assert_eq!(next(one, present, live), wanted, "{present} {live:?}");
        }
        assert_eq!(plan(shipped(), true, |_| None).len(), shipped().count());
    }

    #[test]
    fn a_written_object_is_current_until_another_client_changes_it() {
        let one = micro();
        let created = written(&one, None).unwrap();
        assert_eq!(created["metadata"]["labels"]["app.kubernetes.io/managed-by"], "virt-operator");
        assert_eq!(created["metadata"]["labels"]["instancetype.kubevirt.io/size"], "micro");
        assert_eq!(created["spec"], json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}}));
        let live = |change: fn(&mut Value)| {
            let mut live = created.clone();
            live["metadata"]["uid"] = json!("u");
            live["metadata"]["resourceVersion"] = json!("7");
            live["metadata"]["labels"]["team"] = json!("a");
            change(&mut live);
            live
        };
        for (change, seen) in [
            ((|_| {}) as fn(&mut Value), Live::Current),
            (|live| live["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"), Live::Current),
            (|live| live["spec"]["memory"]["guest"] = json!("2Gi"), Live::Changed),
            (|live| live["spec"]["cpu"]["isolateEmulatorThread"] = json!(true), Live::Changed),
            (
                |live| live["metadata"]["labels"]["instancetype.kubevirt.io/size"] = json!("nano"),
                Live::Changed,
            ),
            (|live| live["metadata"]["annotations"] = json!({}), Live::Changed),
            (|live| live["metadata"]["labels"] = json!({}), Live::Foreign),
        ] {
            let live = live(change);
            assert_eq!(compare(&one, &live), seen, "{live}");
            // It is written with the shipped content, the version that was read, and the labels of others.
            if let Some(restored) = written(&one, Some(&live)) {
                assert_eq!(restored["spec"], created["spec"]);
                assert_eq!(restored["metadata"]["annotations"], created["metadata"]["annotations"]);
                assert_eq!(restored["metadata"]["resourceVersion"], "7");
                assert_eq!(restored["metadata"]["labels"]["team"], live["metadata"]["labels"]["team"]);
                assert_eq!(compare(&one, &restored), Live::Current);
            }
        }
    }
}
