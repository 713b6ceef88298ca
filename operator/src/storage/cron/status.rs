//! `status` of a DataImportCron. Pure.

use serde_json::{Value, json};
use virt::time;

use super::plan::Plan;
use super::seen::{Cron, LAST_POLLED};
use crate::storage::seen::DataVolume;

/// The status that follows. `problem`: why the source could not be polled. `now` is RFC 3339.
pub fn status(cron: &Cron, plan: &Plan, imports: &[DataVolume], problem: Option<&str>, now: &str) -> Value {
    let mut status = if cron.status.is_object() { cron.status.clone() } else { json!({}) };
    let polled = cron.meta.annotation(LAST_POLLED).and_then(time::seconds);
    let (progressing, mut current) = conditions(plan, imports);
    if let (Some(problem), "NoDigest") = (problem, current.1.as_str()) {
        current.2 = format!("{}: {problem}", current.2);
    }
    if let (Some(name), Some(digest)) = (&plan.name, &plan.desired) {
        let import = imports.iter().find(|import| import.meta.name == *name);
        status["currentImports"] = json!([{"DataVolumeName": name, "Digest": digest}]);
        status["sourceFormat"] = json!(plan.form.word());
        let imported = json!({"name": name, "namespace": cron.meta.namespace});
        if plan.done && status["lastImportedPVC"] != imported {
            status["lastImportedPVC"] = imported;
            status["lastImportTimestamp"] = json!(now);
        }
        // A claim is watched, not polled.
        if polled.is_none() && import.is_none() && !plan.done {
            status["lastExecutionTimestamp"] = json!(now);
        }
    }
    if let Some(polled) = polled {
        status["lastExecutionTimestamp"] = json!(time::text(polled));
    }
    let condition = |kind: &str, (state, reason, message): Condition| {
        let list = cron.status["conditions"].as_array();
        let old = list.and_then(|list| list.iter().find(|one| one["type"] == kind));
        let same = |field: &str, value: &str| old.is_some_and(|old| old[field] == value);
        let since = if same("status", state) { old.map(|old| &old["lastTransitionTime"]) } else { None };
        let all = same("status", state) && same("reason", &reason) && same("message", &message);
        let beat = if all { old.map(|old| &old["lastHeartbeatTime"]) } else { None };
        json!({"type": kind, "status": state, "reason": reason, "message": message,
            "lastTransitionTime": since.cloned().unwrap_or_else(|| json!(now)),
            "lastHeartbeatTime": beat.cloned().unwrap_or_else(|| json!(now))})
    };
    status["conditions"] = json!([condition("Progressing", progressing), condition("UpToDate", current)]);
    status
}

/// Status, reason and message.
type Condition = (&'static str, String, String);

/// Progressing and UpToDate.
fn conditions(plan: &Plan, imports: &[DataVolume]) -> (Condition, Condition) {
    let of = |status, reason: &str, message: &str| (status, reason.to_owned(), message.to_owned());
    let idle = || of("False", "NoImport", "No current import");
    if let Some((reason, message)) = &plan.trouble {
        return (idle(), of("False", reason, message));
    }
    let Some(name) = &plan.name else { return (idle(), of("False", "NoDigest", "No source digest")) };
    let phase =
        imports.iter().find(|import| import.meta.name == *name).map(|import| import.status.phase.as_str());
    let outdated = || of("False", "Outdated", "Source digest updated since last import");
    match phase {
        _ if plan.done => (idle(), of("True", "UpToDate", "Latest import is up to date")),
        // A snapshot of it is still to be made.
        Some("ImportInProgress" | "CloneInProgress" | "CSICloneInProgress" | "Succeeded") => (
            of("True", "ImportProgressing", "Import is progressing"),
            of("False", "ImportProgressing", "Import is progressing"),
        ),
        Some("ImportScheduled" | "Pending" | "") | None => {
            (of("True", "ImportScheduled", "Import is scheduled"), outdated())
        }
        Some(phase) => (of("False", phase, &format!("Import DataVolume phase {phase}")), outdated()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::cron::plan::Form;

    fn import(phase: &str) -> DataVolume {
        DataVolume::from(&json!({"metadata": {"name": "d"}, "spec": {}, "status": {"phase": phase}}))
    }

    #[test]
    fn the_last_execution_is_the_last_poll_or_the_last_import_of_a_watched_claim() {
        let plan = |done| Plan {
            steps: vec![],
            desired: Some("sha256:1".into()),
            name: Some("d".into()),
            form: Form::Claim,
            done,
            awaits: false,
            trouble: None,
        };
        let (polled, begun) = ("2026-01-02T03:00:00Z", "2026-01-02T03:00:05Z");
        let unchanged = json!({"lastExecutionTimestamp": "2026-01-01T03:00:00Z"});
        for (annotation, done, expected) in [
            (Some(polled), false, polled),
            (Some(polled), true, polled),
            (Some("2026-01-02T05:00:00+02:00"), true, polled),
            (None, false, begun),
            (None, true, "2026-01-01T03:00:00Z"),
        ] {
            let cron = Cron::from(&json!({
                "metadata": {"name": "c", "namespace": "n", "annotations": {LAST_POLLED: annotation}},
                "spec": {}, "status": unchanged,
            }));
            let status = status(&cron, &plan(done), &[], None, begun);
            assert_eq!(status["lastExecutionTimestamp"], expected, "{annotation:?} {done}");
        }
    }

    #[test]
    fn conditions_follow_the_import() {
        let plan = Plan {
            steps: vec![],
            desired: Some("sha256:1".into()),
            name: Some("d".into()),
            form: Form::Claim,
            done: false,
            awaits: false,
            trouble: None,
        };
        let kept = Plan { done: true, ..plan.clone() };
        let cron = Cron::from(&json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {}}));
        let reasons = |imports: &[DataVolume], plan: &Plan| {
            let status = status(&cron, plan, imports, None, "now");
            [0, 1].map(|at| status["conditions"][at]["reason"].as_str().unwrap().to_owned())
        };
        assert_eq!(reasons(&[import("Succeeded")], &kept), ["NoImport", "UpToDate"]);
        assert_eq!(reasons(&[import("Succeeded")], &plan), ["ImportProgressing", "ImportProgressing"]);
        assert_eq!(reasons(&[import("ImportInProgress")], &plan), ["ImportProgressing", "ImportProgressing"]);
        assert_eq!(reasons(&[], &plan), ["ImportScheduled", "Outdated"]);
        assert_eq!(reasons(&[import("Failed")], &plan), ["Failed", "Outdated"]);
        let none = Plan { desired: None, name: None, ..plan.clone() };
        assert_eq!(reasons(&[], &none), ["NoImport", "NoDigest"]);
        // A second look changes nothing.
        let failed = status(&cron, &none, &[], Some("no route"), "now");
        assert_eq!(failed["conditions"][1]["message"], "No source digest: no route");
        let first = status(&cron, &kept, &[import("Succeeded")], None, "1");
        let again = Cron { status: first.clone(), ..cron.clone() };
        assert_eq!(status(&again, &kept, &[import("Succeeded")], None, "2"), first);
        assert_eq!((&first["lastImportedPVC"]["name"], &first["sourceFormat"]), (&json!("d"), &json!("pvc")));
        // Its claim has given way to a snapshot.
        let snapshot = Plan { form: Form::Snapshot, ..kept };
        let shown = status(&again, &snapshot, &[], None, "3");
        assert_eq!(
            (&shown["sourceFormat"], &shown["lastExecutionTimestamp"]),
            (&json!("snapshot"), &Value::Null)
        );
        assert_eq!(shown["conditions"], first["conditions"]);
    }
}
