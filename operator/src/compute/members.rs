//! Members of a set or pool: their status, and what both controllers decide alike. Pure.

use api::core::LabelSelector;

use super::conditions;
use crate::view::{SetStatus, condition, is_true, selector_text};

/// Members that are made or deleted in one reconciliation; the rest follows in the next.
pub(super) const BURST: usize = 20;

/// Why members could not be made or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The status of a set.
pub(super) fn status(
    before: &SetStatus,
    selector: &LabelSelector,
    (replicas, ready): (usize, usize),
    paused: bool,
    failure: Option<&Failure>,
    now: u64,
) -> SetStatus {
    let mut after = before.clone();
    let count = |members: usize| u32::try_from(members).unwrap_or(u32::MAX);
    (after.replicas, after.ready_replicas) = (count(replicas), count(ready));
    after.label_selector = selector_text(selector);
    let all = &mut after.conditions;
    if paused {
        conditions::set(all, "ReplicaPaused", "True", "Paused", "Controller got paused", now);
    } else {
        conditions::remove(all, "ReplicaPaused");
    }
    match failure {
        Some(failure) => {
            conditions::set(all, "ReplicaFailure", "True", failure.reason, &failure.message, now);
        }
        None => conditions::remove(all, "ReplicaFailure"),
    }
    after
}

/// Reason and message of the event when the controller is paused or resumed.
pub(super) fn pause_event(before: &SetStatus, paused: bool) -> Option<(&'static str, &'static str)> {
    match (is_true(&before.conditions, "ReplicaPaused").is_some(), paused) {
        (false, true) => Some(("SuccessfulPaused", "Paused")),
        (true, false) => Some(("SuccessfulResumed", "Resumed")),
        _ => None,
    }
}

/// Whether the status already has this failure.
pub(super) fn already_says(before: &SetStatus, failure: &Failure) -> bool {
    condition(&before.conditions, "ReplicaFailure")
        .is_some_and(|one| one.message.as_deref() == Some(failure.message.as_str()))
}

/// The lowest numbers that are not taken.
pub(super) fn free(taken: &[u64], count: usize) -> Vec<u64> {
    (0..).filter(|index| !taken.contains(index)).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_free_numbers_are_used() {
        assert_eq!(free(&[], 3), [0, 1, 2]);
        assert_eq!(free(&[1, 3], 3), [0, 2, 4]);
    }

    #[test]
    fn status_counts_members_and_names_pause_and_failure() {
        let selector = LabelSelector::default();
        let failure = Failure { reason: "FailedCreate", message: "quota".into() };
        let after = status(&SetStatus::default(), &selector, (3, 1), true, Some(&failure), 0);
        assert_eq!((after.replicas, after.ready_replicas), (3, 1));
        assert!(is_true(&after.conditions, "ReplicaPaused").is_some());
        assert!(already_says(&after, &failure));
        assert_eq!(pause_event(&SetStatus::default(), true), Some(("SuccessfulPaused", "Paused")));
        assert_eq!(pause_event(&after, true), None);
        assert_eq!(pause_event(&after, false), Some(("SuccessfulResumed", "Resumed")));
        let healed = status(&after, &selector, (3, 3), false, None, 1);
        assert!(healed.conditions.is_empty());
    }
}
