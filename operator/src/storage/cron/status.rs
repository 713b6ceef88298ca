//! `status` of a DataImportCron. Pure.

use serde_json::{Value, json};

use super::plan::Plan;
use super::seen::Cron;
use crate::storage::seen::DataVolume;

/// The status that follows. `problem`: why the source could not be polled. `now` is RFC 3339.
pub fn status(cron: &Cron, plan: &Plan, imports: &[DataVolume], problem: Option<&str>, now: &str) -> Value {
    let mut status = if cron.status.is_object() { cron.status.clone() } else { json!({}) };
    let (progressing, mut current) = conditions(plan, imports);
    if let (Some(problem), "NoDigest") = (problem, current.1) {
        current.2 = format!("{}: {problem}", current.2);
    }
    if let (Some(name), Some(digest)) = (&plan.name, &plan.desired) {
        let import = imports.iter().find(|import| import.meta.name == *name);
        let done = import.is_some_and(|import| import.status.phase == "Succeeded");
        status["currentImports"] = json!([{"DataVolumeName": name, "Digest": digest}]);
        status["sourceFormat"] = json!("pvc");
        let imported = json!({"name": name, "namespace": cron.meta.namespace});
        if done && status["lastImportedPVC"] != imported {
            status["lastImportedPVC"] = imported;
            status["lastImportTimestamp"] = json!(now);
        }
        if import.is_none() {
            status["lastExecutionTimestamp"] = json!(now);
        }
    }
    let condition = |kind: &str, (state, reason, message): (&str, &str, String)| {
        let list = cron.status["conditions"].as_array();
        let old = list.and_then(|list| list.iter().find(|one| one["type"] == kind));
        let same = |field: &str, value: &str| old.is_some_and(|old| old[field] == value);
        let since = if same("status", state) { old.map(|old| &old["lastTransitionTime"]) } else { None };
        let all = same("status", state) && same("reason", reason) && same("message", &message);
        let beat = if all { old.map(|old| &old["lastHeartbeatTime"]) } else { None };
        json!({"type": kind, "status": state, "reason": reason, "message": message,
            "lastTransitionTime": since.cloned().unwrap_or_else(|| json!(now)),
            "lastHeartbeatTime": beat.cloned().unwrap_or_else(|| json!(now))})
    };
    status["conditions"] = json!([condition("Progressing", progressing), condition("UpToDate", current)]);
    status
}

type Condition = (&'static str, &'static str, String);

/// Progressing and UpToDate.
fn conditions(plan: &Plan, imports: &[DataVolume]) -> (Condition, Condition) {
    let text = str::to_owned;
    if let Some((reason, message)) = &plan.trouble {
        return (("False", "NoImport", text("No current import")), ("False", reason, message.clone()));
    }
    let Some(name) = &plan.name else {
        return (
            ("False", "NoImport", text("No current import")),
            ("False", "NoDigest", text("No source digest")),
        );
    };
    let phase =
        imports.iter().find(|import| import.meta.name == *name).map(|import| import.status.phase.as_str());
    let outdated = |reason: &'static str, message: &str| ("False", reason, text(message));
    match phase {
        Some("Succeeded") => (
            ("False", "NoImport", text("No current import")),
            ("True", "UpToDate", text("Latest import is up to date")),
        ),
        Some("ImportInProgress" | "CloneInProgress" | "CSICloneInProgress") => (
            ("True", "ImportProgressing", text("Import is progressing")),
            outdated("ImportProgressing", "Import is progressing"),
        ),
        Some("ImportScheduled" | "Pending" | "") | None => (
            ("True", "ImportScheduled", text("Import is scheduled")),
            outdated("Outdated", "Source digest updated since last import"),
        ),
        Some(phase) => (
            ("False", "ImportNotProgressing", format!("Import DataVolume phase {phase}")),
            outdated("Outdated", "Source digest updated since last import"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(phase: &str) -> DataVolume {
        DataVolume::from(&json!({"metadata": {"name": "d"}, "spec": {}, "status": {"phase": phase}}))
    }

    #[test]
    fn conditions_follow_the_import() {
        let plan =
            Plan { steps: vec![], desired: Some("sha256:1".into()), name: Some("d".into()), trouble: None };
        let cron = Cron::from(&json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {}}));
        let reasons = |imports: &[DataVolume], plan: &Plan| {
            let status = status(&cron, plan, imports, None, "now");
            [0, 1].map(|at| status["conditions"][at]["reason"].as_str().unwrap().to_owned())
        };
        assert_eq!(reasons(&[import("Succeeded")], &plan), ["NoImport", "UpToDate"]);
        assert_eq!(reasons(&[import("ImportInProgress")], &plan), ["ImportProgressing", "ImportProgressing"]);
        assert_eq!(reasons(&[], &plan), ["ImportScheduled", "Outdated"]);
        assert_eq!(reasons(&[import("Failed")], &plan), ["ImportNotProgressing", "Outdated"]);
        let none = Plan { desired: None, name: None, ..plan.clone() };
        assert_eq!(reasons(&[], &none), ["NoImport", "NoDigest"]);
        // A second look changes nothing.
        let failed = status(&cron, &none, &[], Some("no route"), "now");
        assert_eq!(failed["conditions"][1]["message"], "No source digest: no route");
        let first = status(&cron, &plan, &[import("Succeeded")], None, "1");
        let again = Cron { status: first.clone(), ..cron.clone() };
        assert_eq!(status(&again, &plan, &[import("Succeeded")], None, "2"), first);
        assert_eq!(first["lastImportedPVC"]["name"], "d");
    }
}
