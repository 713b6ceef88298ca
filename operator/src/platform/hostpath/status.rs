//! Status of a `HostPathProvisioner`, with upstream's reasons. Pure.

use api::hostpath::HostPathStatus;
use api::resource::Condition;

use crate::platform::without;

/// Most volumes that a text names.
const MOST_NAMED: usize = 3;

/// State of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The driver is not ready on all nodes: what is waited for.
    Deploying(String),
    /// The deployed driver of this version is not ready on a node, with the DaemonSet's progress.
    Degraded(String),
    /// The driver is ready on this number of nodes.
    Deployed(u32),
    /// The driver is ready; a problem of the cluster limits it: reason, and text.
    Impaired(&'static str, String),
    /// Nothing was applied: reason, and text.
    Failed(&'static str, String),
    /// The deletion waits for these volumes, each with its claim.
    Waiting(Vec<String>),
    /// The driver is ready; pools that are not asked for any more stay until these volumes are gone.
    Keeping(Vec<String>),
    /// The driver is ready; pods of pools that are not asked for any more leave: what is waited for.
    Leaving(Vec<String>),
    /// The driver is being removed: what is waited for.
    Removing(Vec<String>),
}

impl State {
    /// The state where the cluster has a problem as well, with which the driver works: reason, and text.
    #[must_use]
    pub fn with_problem(self, problem: Option<(&'static str, String)>) -> Self {
        let Some((reason, text)) = problem else { return self };
        match self {
            Self::Deploying(missing) => Self::Deploying(format!("{missing}; {text}")),
            Self::Degraded(missing) => Self::Degraded(format!("{missing}; {text}")),
            Self::Deployed(_) => Self::Impaired(reason, text),
            // What is being done is reported first; the problem follows when it is done.
            other @ (Self::Keeping(_)
            | Self::Leaving(_)
            | Self::Impaired(..)
            | Self::Failed(..)
            | Self::Waiting(_)
            | Self::Removing(_)) => other,
        }
    }
}

/// The status of an object in a state at a time (RFC 3339), after the one that it had; `ignored` are settings without
/// an effect.
pub fn status(
    state: &State,
    ignored: &[&str],
    before: &HostPathStatus,
    version: &str,
    now: &str,
) -> HostPathStatus {
    let (reason, text) = match state {
        State::Deploying(missing) => ("DeployStarted", missing.clone()),
        State::Degraded(missing) => ("ComponentsNotReady", missing.clone()),
        State::Deployed(_) => ("Complete", "Application Available".to_owned()),
        State::Failed(reason, text) | State::Impaired(reason, text) => (*reason, text.clone()),
        State::Waiting(volumes) => ("VolumesExist", waits_for("the deletion waits", volumes)),
        State::Keeping(volumes) => ("VolumesExist", waits_for("the removal of a pool waits", volumes)),
        State::Leaving(waits) => ("CleanupInProgress", waits.join("; ")),
        State::Removing(waits) if waits.is_empty() => {
            ("DeletionInProgress", "the driver is being removed".to_owned())
        }
        State::Removing(waits) => ("DeletionInProgress", waits.join("; ")),
    };
    let (available, progressing, degraded) = match state {
        State::Deploying(_) => (false, true, false),
        State::Degraded(_) | State::Impaired(..) => (true, false, true),
        State::Deployed(_) => (true, false, false),
        State::Failed(..) => (false, false, true),
        // The driver still works.
        State::Waiting(_) | State::Keeping(_) | State::Leaving(_) => (true, true, false),
        State::Removing(_) => (false, true, false),
    };
    let conditions = [("Available", available), ("Progressing", progressing), ("Degraded", degraded)];
    let of_state = conditions.map(|(kind, holds)| (kind, holds, reason, text.clone()));
    let note = (!ignored.is_empty()).then(|| {
        (without::CONDITION, true, without::REASON, format!("{}{}", without::MESSAGE, ignored.join(", ")))
    });
    let conditions = of_state.into_iter().chain(note).map(|(kind, holds, reason, text)| {
        let old = before.conditions.iter().find(|one| one.kind == kind);
        let mut new = Condition {
            kind: kind.to_owned(),
            status: if holds { "True" } else { "False" }.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(text),
            ..Condition::default()
        };
        let same = old.filter(|old| old.status == new.status);
        new.last_transition_time =
            same.map_or_else(|| Some(now.to_owned()), |old| old.last_transition_time.clone());
        let unchanged = same.filter(|old| old.reason == new.reason && old.message == new.message);
        new.last_heartbeat_time =
            unchanged.map_or_else(|| Some(now.to_owned()), |old| old.last_heartbeat_time.clone());
        new
    });
    let deployed =
        matches!(state, State::Deployed(_) | State::Impaired(..) | State::Keeping(_) | State::Leaving(_));
    HostPathStatus {
        conditions: conditions.collect(),
        observed_version: if deployed { Some(version.to_owned()) } else { before.observed_version.clone() },
        operator_version: Some(version.to_owned()),
        target_version: Some(version.to_owned()),
        storage_pool_statuses: before.storage_pool_statuses.clone(),
    }
}

/// The text of something that waits for volumes.
fn waits_for(what: &str, volumes: &[String]) -> String {
    let (named, rest) = volumes.split_at(volumes.len().min(MOST_NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let number = volumes.len();
    format!("{what} for {number} PersistentVolumes: {}{more}; delete their claims", named.join(", "))
}

/// Whether a condition has a value.
pub fn is(status: &HostPathStatus, kind: &str, value: &str) -> bool {
    status.conditions.iter().any(|one| one.kind == kind && one.status == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-01T00:01:00Z";

    fn words(status: &HostPathStatus) -> String {
        let all = status.conditions.iter().map(|one| format!("{}={}", one.kind, one.status));
        let reason = status.conditions[0].reason.clone().unwrap();
        format!("{} {reason}", all.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn conditions_follow_the_state() {
        let before = HostPathStatus::default();
        for (state, wanted) in [
            (
                State::Deploying(String::new()),
                "Available=False Progressing=True Degraded=False DeployStarted",
            ),
            (
                State::Degraded(String::new()),
                "Available=True Progressing=False Degraded=True ComponentsNotReady",
            ),
            (State::Deployed(2), "Available=True Progressing=False Degraded=False Complete"),
            (
                State::Failed("FailedToValidate", String::new()),
                "Available=False Progressing=False Degraded=True FailedToValidate",
            ),
            (
                State::Impaired("OtherProvisioner", String::new()),
                "Available=True Progressing=False Degraded=True OtherProvisioner",
            ),
            (
                State::Keeping(vec!["pvc-1".to_owned()]),
                "Available=True Progressing=True Degraded=False VolumesExist",
            ),
            (
                State::Leaving(vec!["Job".to_owned()]),
                "Available=True Progressing=True Degraded=False CleanupInProgress",
            ),
            (
                State::Removing(Vec::new()),
                "Available=False Progressing=True Degraded=False DeletionInProgress",
            ),
            (
                State::Waiting(vec!["pvc-1".to_owned()]),
                "Available=True Progressing=True Degraded=False VolumesExist",
            ),
        ] {
            assert_eq!(words(&status(&state, &[], &before, "1", NOW)), wanted);
        }
    }

    #[test]
    fn a_problem_of_the_cluster_hides_nothing_that_is_worse_or_under_way() {
        let problem = || Some(("OtherProvisioner", "another".to_owned()));
        let impaired = State::Impaired("OtherProvisioner", "another".to_owned());
        for (state, expected) in [
            (State::Deployed(1), impaired),
            (State::Keeping(vec!["pvc-1".to_owned()]), State::Keeping(vec!["pvc-1".to_owned()])),
            (State::Leaving(Vec::new()), State::Leaving(Vec::new())),
            (State::Deploying("a".to_owned()), State::Deploying("a; another".to_owned())),
            (State::Degraded("a".to_owned()), State::Degraded("a; another".to_owned())),
            (State::Failed("b", "a".to_owned()), State::Failed("b", "a".to_owned())),
        ] {
            assert_eq!(state.clone().with_problem(None), state);
            assert_eq!(state.with_problem(problem()), expected);
        }
        let status =
            status(&State::Deployed(1).with_problem(problem()), &[], &HostPathStatus::default(), "1", NOW);
        assert_eq!(status.observed_version.as_deref(), Some("1"), "the driver runs");
    }

    #[test]
    fn times_are_those_of_changes_and_the_version_that_of_what_runs() {
        let first = status(&State::Deployed(1), &[], &HostPathStatus::default(), "1", NOW);
        assert_eq!(status(&State::Deployed(2), &[], &first, "1", LATER), first, "nothing is written");
        let second = status(&State::Deploying("x".to_owned()), &[], &first, "2", LATER);
        assert_eq!(second.observed_version.as_deref(), Some("1"));
        assert_eq!(second.target_version.as_deref(), Some("2"));
        let degraded = second.conditions.iter().find(|one| one.kind == "Degraded").unwrap();
        assert_eq!(degraded.last_transition_time.as_deref(), Some(NOW));
        assert_eq!(degraded.last_heartbeat_time.as_deref(), Some(LATER));
    }

    #[test]
    fn settings_without_an_effect_are_a_condition_of_their_own() {
        let deployed = State::Deployed(1);
        let without = status(&deployed, &[], &HostPathStatus::default(), "1", NOW);
        let with = status(&deployed, &["spec.a", "spec.b"], &without, "1", LATER);
        let (note, others) = with.conditions.split_last().unwrap();
        assert_eq!(others, without.conditions);
        assert_eq!((note.kind.as_str(), note.status.as_str()), (without::CONDITION, "True"));
        assert_eq!(note.reason.as_deref(), Some("NotImplemented"));
        assert_eq!(note.message.as_deref(), Some("these settings have no effect: spec.a, spec.b"));
        assert_eq!(status(&deployed, &["spec.a", "spec.b"], &with, "1", NOW), with, "nothing is written");
        assert_eq!(status(&deployed, &[], &with, "1", LATER).conditions, without.conditions);
    }

    #[test]
    fn a_deletion_names_some_of_what_it_waits_for() {
        let all: Vec<String> = (0..5).map(|number| format!("pvc-{number} of a/b")).collect();
        assert_eq!(
            waits_for("the deletion waits", &all),
            "the deletion waits for 5 PersistentVolumes: pvc-0 of a/b, pvc-1 of a/b, pvc-2 of a/b and 2 more; \
             delete their claims"
        );
    }
}
