//! DataSource: whether what it names can be consumed, as its `status`. Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::names;
use super::seen::claim::Phase;
use super::seen::{Claim, DataVolume, Source, map, text};

/// The source that a DataSource names.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The claim, if the source is one and it exists.
    pub claim: Option<&'a Claim>,
    /// The DataVolume that fills it.
    pub volume: Option<&'a DataVolume>,
    /// The snapshot, if the source is one and it exists.
    pub snapshot: Option<&'a Value>,
    /// The DataSource that it refers to, if it refers to one and that exists.
    pub referred: Option<&'a Value>,
}

/// The source after following one reference; the reason when there is none.
fn resolve<'a>(source: &'a Value, o: &Observed<'a>) -> Result<&'a Value, (&'static str, String)> {
    let own = &source["spec"]["source"];
    let reference = &own["dataSource"];
    if !reference.is_object() {
        return Ok(own);
    }
    let (namespace, name) = (text(&source["metadata"]["namespace"]), text(&source["metadata"]["name"]));
    if reference["namespace"].as_str().is_some_and(|other| other != namespace) {
        let message = "DataSource cannot reference a DataSource in another namespace";
        return Err(("CrossNamespaceReference", message.to_owned()));
    }
    if reference["name"] == *name {
        return Err(("SelfReference", "DataSource cannot reference itself".to_owned()));
    }
    match o.referred {
        None => Err(("NotFound", "DataSource not found".to_owned())),
        Some(other) if other["spec"]["source"]["dataSource"].is_object() => Err((
            "MaxReferenceDepthReached",
            "DataSource reference chain exceeds maximum depth of 1".to_owned(),
        )),
        Some(other) => Ok(&other["spec"]["source"]),
    }
}

/// Why it is ready, or not: status, reason, message.
fn ready(resolved: &Value, o: &Observed<'_>) -> (bool, String, String) {
    let not = |reason: &str, message: &str| (false, reason.to_owned(), message.to_owned());
    let is_ready = || (true, "Ready".to_owned(), "DataSource is ready to be consumed".to_owned());
    match Source::from(resolved) {
        Source::Claim { .. } => match (o.claim, o.volume) {
            (None, _) => not("NotFound", "PVC not found"),
            (Some(_), Some(volume)) if volume.status.phase != "Succeeded" => {
                let phase = if volume.status.phase.is_empty() { "Pending" } else { &volume.status.phase };
                not(phase, &format!("Import DataVolume phase {phase}"))
            }
            (Some(claim), _) if claim.phase == Phase::Lost => not("NotFound", "PVC not found"),
            (Some(_), _) => is_ready(),
        },
        Source::Snapshot { .. } => match o.snapshot {
            None => not("NotFound", "Snapshot not found"),
            Some(snapshot) if snapshot["status"]["readyToUse"] != true => {
                not("SnapshotNotReady", "Snapshot not ready")
            }
            Some(_) => is_ready(),
        },
        Source::Remote(_)
        | Source::Registry(_)
        | Source::Blank
        | Source::Upload
        | Source::Reference { .. }
        | Source::Unsupported(_)
        | Source::Missing => not("NoSource", "No source"),
    }
}

/// The status that a DataSource should have; times of unchanged conditions are kept. `now` is RFC 3339.
pub fn status(source: &Value, o: &Observed<'_>, now: &str) -> Value {
    let (resolved, (ready, reason, message)) = match resolve(source, o) {
        Ok(resolved) => (resolved.clone(), self::ready(resolved, o)),
        Err((reason, message)) => (Value::Null, (false, reason.to_owned(), message)),
    };
    let word = if ready { "True" } else { "False" };
    let before =
        source["status"]["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == "Ready");
    let same = before.filter(|one| one["status"] == word);
    let equal = same.filter(|one| one["reason"] == *reason && one["message"] == *message);
    let time =
        |of: Option<&Value>, field: &str| of.and_then(|one| one[field].as_str()).unwrap_or(now).to_owned();
    let mut status = json!({"conditions": [{
        "type": "Ready", "status": word, "reason": reason, "message": message,
        "lastTransitionTime": time(same, "lastTransitionTime"),
        "lastHeartbeatTime": time(equal, "lastHeartbeatTime"),
    }]});
    // Merged into the stored status: a source that is gone is removed.
    status["source"] =
        if resolved.as_object().is_some_and(|fields| !fields.is_empty()) { resolved } else { Value::Null };
    status
}

/// Labels that a DataSource gets from its content and does not have yet. Those that name a DataImportCron do not follow: they
/// would make it the cron's.
pub fn labels(source: &Value, o: &Observed<'_>) -> BTreeMap<String, String> {
    let of_snapshot = o.snapshot.map(|snapshot| map(&snapshot["metadata"]["labels"]));
    let all = o.claim.map(|claim| claim.meta.labels.clone()).or(of_snapshot).unwrap_or_default();
    all.into_iter()
        .filter(|(name, _)| names::follows_content(name) && !name.starts_with("cdi.kubevirt.io/"))
        .filter(|(name, value)| source["metadata"]["labels"][name] != **value)
        .collect()
}

/// Whether a stored status is that one.
pub fn is_current(stored: &Value, status: &Value) -> bool {
    stored["conditions"] == status["conditions"] && stored["source"] == status["source"]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(spec: &Value) -> Value {
        json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"source": spec}})
    }

    fn reason(source: &Value, o: &Observed<'_>) -> (String, String) {
        let status = status(source, o, "1");
        let condition = &status["conditions"][0];
        (text(&condition["reason"]), text(&condition["message"]))
    }

    const NONE: Observed<'_> = Observed { claim: None, volume: None, snapshot: None, referred: None };

    #[test]
    fn a_data_source_reports_whether_it_can_be_consumed() {
        let claim = Claim { phase: Phase::Bound, ..Claim::default() };
        let filling = DataVolume::from(&json!({"status": {"phase": "ImportInProgress"}}));
        let filled = DataVolume::from(&json!({"status": {"phase": "Succeeded"}}));
        let (ready, unready) = (json!({"status": {"readyToUse": true}}), json!({"status": {}}));
        let of_claim = source(&json!({"pvc": {"namespace": "n", "name": "c"}}));
        let of_snapshot = source(&json!({"snapshot": {"namespace": "n", "name": "c"}}));
        let with = |claim, volume| Observed { claim, volume, ..NONE };
        for (source, o, expected) in [
            (&of_claim, NONE, "NotFound"),
            (&of_claim, with(Some(&claim), None), "Ready"),
            (&of_claim, with(Some(&claim), Some(&filled)), "Ready"),
            (&of_claim, with(Some(&claim), Some(&filling)), "ImportInProgress"),
            (&of_snapshot, NONE, "NotFound"),
            (&of_snapshot, Observed { snapshot: Some(&unready), ..NONE }, "SnapshotNotReady"),
            (&of_snapshot, Observed { snapshot: Some(&ready), ..NONE }, "Ready"),
            (&source(&json!({})), NONE, "NoSource"),
        ] {
            assert_eq!(reason(source, &o).0, expected, "{source}");
        }
        assert_eq!(
            reason(&of_claim, &with(Some(&claim), Some(&filling))).1,
            "Import DataVolume phase ImportInProgress"
        );
    }

    #[test]
    fn references_are_followed_once_within_the_namespace() {
        let claim = Claim::default();
        let direct = source(&json!({"pvc": {"namespace": "n", "name": "c"}}));
        let chained = source(&json!({"dataSource": {"namespace": "n", "name": "x"}}));
        let with = |referred| Observed { claim: Some(&claim), referred, ..NONE };
        let refers = |namespace: &str, name: &str| {
            source(&json!({"dataSource": {"namespace": namespace, "name": name}}))
        };
        assert_eq!(reason(&refers("n", "other"), &with(Some(&direct))).0, "Ready");
        assert_eq!(reason(&refers("n", "other"), &with(None)).0, "NotFound");
        assert_eq!(reason(&refers("n", "other"), &with(Some(&chained))).0, "MaxReferenceDepthReached");
        assert_eq!(reason(&refers("n", "s"), &with(Some(&direct))).0, "SelfReference");
        assert_eq!(reason(&refers("m", "other"), &with(Some(&direct))).0, "CrossNamespaceReference");
        let resolved = status(&refers("n", "other"), &with(Some(&direct)), "1");
        assert_eq!(resolved["source"]["pvc"]["name"], "c");
    }

    #[test]
    fn labels_of_the_content_follow_it() {
        let of = json!({"metadata": {"labels": {
            "instancetype.kubevirt.io/default-preference": "fedora", "kubevirt.io/os": "linux", "app": "own",
            "cdi.kubevirt.io/dataImportCron": "nightly",
        }}});
        let claim = Claim::from(&of);
        let mut data_source = source(&json!({}));
        data_source["metadata"]["labels"] =
            json!({"kubevirt.io/os": "linux", "instancetype.kubevirt.io/default-preference": "old"});
        let wanted: BTreeMap<_, _> =
            [("instancetype.kubevirt.io/default-preference".to_owned(), "fedora".to_owned())].into();
        assert_eq!(labels(&data_source, &Observed { claim: Some(&claim), ..NONE }), wanted);
        assert_eq!(labels(&data_source, &Observed { snapshot: Some(&of), ..NONE }), wanted);
        assert!(labels(&data_source, &NONE).is_empty());
    }

    #[test]
    fn times_stay_while_nothing_changes() {
        let mut stored = source(&json!({}));
        let first = status(&stored, &NONE, "1");
        stored["status"] = first.clone();
        let second = status(&stored, &NONE, "2");
        assert!(is_current(&stored["status"], &second));
    }
}
