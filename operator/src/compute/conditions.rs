//! Conditions of a status that is computed whole: set and removed, with the time of their last change kept.

use super::clock;
use crate::view::Condition;

/// Sets a condition. Its transition time stays while its status does.
pub(super) fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: u64,
) {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let place = conditions.iter().position(|condition| condition.kind == kind);
    let before = place.map(|place| conditions[place].clone());
    let kept = before.as_ref().filter(|before| before.status == status);
    let condition = Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: given(reason),
        message: given(message),
        last_probe_time: before.as_ref().and_then(|before| before.last_probe_time.clone()),
        last_transition_time: Some(
            kept.and_then(|before| before.last_transition_time.clone()).unwrap_or_else(|| clock::text(now)),
        ),
    };
    match place {
        Some(place) => conditions[place] = condition,
        None => conditions.push(condition),
    }
}

/// Takes over a condition of another object, with its times.
pub(super) fn copy(conditions: &mut Vec<Condition>, other: &Condition) {
    match conditions.iter_mut().find(|condition| condition.kind == other.kind) {
        Some(condition) => condition.clone_from(other),
        None => conditions.push(other.clone()),
    }
}

/// Removes a condition.
pub(super) fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|condition| condition.kind != kind);
}

/// Reason and message of a condition, without the full stop.
pub(super) fn text(condition: &Condition) -> String {
    let of = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let text = match (of(&condition.reason), of(&condition.message)) {
        (Some(reason), Some(message)) => format!("{reason}: {message}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => condition.kind.clone(),
    };
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let mut all = Vec::new();
        set(&mut all, "Ready", "False", "A", "a", 0);
        set(&mut all, "Ready", "False", "B", "b", 60);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].reason.as_deref(), Some("B"));
        assert_eq!(all[0].last_transition_time.as_deref(), Some("1970-01-01T00:00:00Z"));
        set(&mut all, "Ready", "True", "", "", 60);
        assert_eq!(all[0].last_transition_time.as_deref(), Some("1970-01-01T00:01:00Z"));
        assert_eq!(all[0].reason, None);
        remove(&mut all, "Ready");
        assert!(all.is_empty());
    }
}
