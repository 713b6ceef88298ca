//! Phase and conditions of `KubeVirt` and `CDI`. Pure.
//!
//! While something is being deployed or updated, `Available`, `Progressing` and `Degraded` have upstream's values, which other
//! operators and GitOps tools evaluate.

use api::resource::Condition;

use super::plan::{Side, State};

/// How the types of the platform's own conditions begin. They are there while they hold.
pub(super) const OWN: &str = "ferrovirt.io/";

/// A condition of the platform's own that holds: type, reason, message.
pub(super) type Note = (&'static str, &'static str, String);

/// Phase of an object in a state; `None` leaves the field alone.
pub fn phase(state: &State) -> Option<&'static str> {
    match state {
        State::Duplicate(_) => None,
        State::Deploying(_) => Some("Deploying"),
        State::Updating(..) | State::Degraded(_) | State::Deployed => Some("Deployed"),
        State::Waiting(_) | State::Removing(_) => Some("Deleting"),
        State::Removed => Some("Deleted"),
    }
}

/// Condition that names lifetimes of certificates which are too short; missing if there are none.
pub(super) const RAISED: &str = "ferrovirt.io/CertificateLifetimeRaised";
/// Its reason.
pub(super) const TOO_SHORT: &str = "TooShort";

/// The condition that names lifetimes of certificates which are too short, and were raised.
pub(super) fn raised(settings: &[String]) -> Option<Note> {
    let text =
        || format!("lifetimes of certificates that are too short were raised: {}", settings.join(", "));
    (!settings.is_empty()).then(|| (RAISED, TOO_SHORT, text()))
}

/// A condition: type, status, reason, message.
type Fact = (&'static str, bool, &'static str, String);

/// The conditions of an object in a state.
fn facts(side: Side, state: &State) -> Vec<Fact> {
    match state {
        State::Duplicate(older) => {
            let text = format!("{older} is older and in effect; delete one of the two");
            match side {
                Side::Compute => vec![("Synchronized", false, "ExistingDeployment", text)],
                Side::Storage => vec![
                    ("Available", false, "ExistingDeployment", text.clone()),
                    ("Progressing", false, "ExistingDeployment", text.clone()),
                    ("Degraded", true, "ExistingDeployment", text),
                ],
            }
        }
        State::Deploying(missing) => {
            let text = format!("waiting for {}", missing.join(", "));
            let reason = match side {
                Side::Compute => "DeploymentInProgress",
                Side::Storage => "DeployStarted",
            };
            vec![
                ("Available", false, reason, text.clone()),
                ("Progressing", true, reason, text.clone()),
                ("Degraded", false, reason, text),
            ]
        }
        // As upstream: the deployed release is available while the next one replaces it, and all three are True.
        State::Updating(from, to) => {
            let (reason, text) = match side {
                Side::Compute => (
                    "UpdateInProgress",
                    format!(
                        "Transitioning from previous version {} with registry {} to target version {} using registry {}",
                        from.version, from.registry, to.version, to.registry,
                    ),
                ),
                Side::Storage => ("UpgradeStarted", format!("Started upgrade to version {}", to.version)),
            };
            vec![
                ("Available", true, reason, text.clone()),
                ("Progressing", true, reason, text.clone()),
                ("Degraded", true, reason, text),
            ]
        }
        State::Degraded(missing) => {
            let text = format!("waiting for {}", missing.join(", "));
            vec![
                ("Available", true, "ComponentsNotReady", text.clone()),
                ("Progressing", false, "ComponentsNotReady", text.clone()),
                ("Degraded", true, "ComponentsNotReady", text),
            ]
        }
        State::Deployed => {
            let (reason, text) = match side {
                Side::Compute => ("AllComponentsReady", "All components are ready."),
                Side::Storage => ("DeployCompleted", "Deployment Completed"),
            };
            let mut all = vec![
                ("Available", true, reason, text.to_owned()),
                ("Progressing", false, reason, text.to_owned()),
                ("Degraded", false, reason, text.to_owned()),
            ];
            if side == Side::Compute {
                all.push(("Created", true, "AllResourcesCreated", "All resources were created.".to_owned()));
            }
            all
        }
        State::Waiting(count) => {
            let text = match side {
                Side::Compute => format!("{count} virtual machines exist; delete them first"),
                Side::Storage => format!("{count} DataVolumes exist; delete them first"),
            };
            match side {
                Side::Compute => vec![("Synchronized", false, "DeletionFailed", text)],
                Side::Storage => vec![("Degraded", true, "DeletionFailed", text)],
            }
        }
        State::Removing(_) | State::Removed => {
            let text = "Deletion was triggered".to_owned();
            vec![
                ("Available", false, "DeletionInProgress", text.clone()),
                ("Progressing", true, "DeletionInProgress", text.clone()),
                ("Degraded", false, "DeletionInProgress", text),
            ]
        }
    }
}

/// The conditions of an object in a state at a time (RFC 3339), after those that it had; `notes`: the platform's own. A
/// condition that stays equal keeps its times.
pub(super) fn conditions(
    side: Side,
    state: &State,
    notes: &[Note],
    before: &[Condition],
    now: &str,
) -> Vec<Condition> {
    let mut facts = facts(side, state);
    facts.extend(notes.iter().map(|(kind, reason, text)| (*kind, true, *reason, text.clone())));
    let mut all: Vec<Condition> = before
        .iter()
        .filter(|one| one.kind != "Synchronized" && !one.kind.starts_with(OWN))
        .filter(|one| !facts.iter().any(|fact| fact.0 == one.kind))
        .cloned()
        .collect();
    for (kind, holds, reason, message) in facts {
        let status = if holds { "True" } else { "False" };
        let old = before.iter().find(|one| one.kind == kind);
        let mut new = Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            ..Condition::default()
        };
        let same = old.filter(|old| old.status == new.status);
        new.last_transition_time =
            same.map_or_else(|| Some(now.to_owned()), |old| old.last_transition_time.clone());
        let unchanged = same.is_some_and(|old| old.reason == new.reason && old.message == new.message);
        match side {
            Side::Compute => {
                new.last_probe_time = old
                    .filter(|_| unchanged)
                    .map_or_else(|| Some(now.to_owned()), |old| old.last_probe_time.clone());
            }
            Side::Storage => {
                new.last_heartbeat_time = old
                    .filter(|_| unchanged)
                    .map_or_else(|| Some(now.to_owned()), |old| old.last_heartbeat_time.clone());
            }
        }
        all.push(new);
    }
    all.sort_by(|a, b| a.kind.cmp(&b.kind));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::platform::hyperconverged::render::Child;
    use crate::platform::plan::Release;
    use crate::platform::without;

    const NOW: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-01T00:01:00Z";

    fn values(conditions: &[Condition]) -> Vec<String> {
        conditions.iter().map(|one| format!("{}={}", one.kind, one.status)).collect()
    }

    #[test]
    fn conditions_follow_the_state() {
        let updating = State::Updating(Release::default(), Release::default());
        for (side, state, wanted) in [
            (
                Side::Compute,
                State::Deploying(vec!["x".to_owned()]),
                "Available=False Degraded=False Progressing=True",
            ),
            (Side::Compute, updating.clone(), "Available=True Degraded=True Progressing=True"),
            (Side::Storage, updating, "Available=True Degraded=True Progressing=True"),
            (
                Side::Compute,
                State::Degraded(vec!["x".to_owned()]),
                "Available=True Degraded=True Progressing=False",
            ),
            (Side::Compute, State::Deployed, "Available=True Created=True Degraded=False Progressing=False"),
            (Side::Storage, State::Deployed, "Available=True Degraded=False Progressing=False"),
            (Side::Compute, State::Duplicate("a".to_owned()), "Synchronized=False"),
            (Side::Compute, State::Waiting(1), "Synchronized=False"),
            (Side::Storage, State::Removing(1), "Available=False Degraded=False Progressing=True"),
        ] {
            assert_eq!(
                values(&conditions(side, &state, &[], &[], NOW)).join(" "),
                wanted,
                "{side:?} {state:?}"
            );
        }
    }

    #[test]
    fn equal_conditions_keep_their_times_and_changed_ones_get_new_ones() {
        let deploying = State::Deploying(vec!["virt-handler".to_owned()]);
        let first = conditions(Side::Compute, &deploying, &[], &[], NOW);
        assert_eq!(conditions(Side::Compute, &deploying, &[], &first, LATER), first);
        let second = conditions(Side::Compute, &State::Deployed, &[], &first, LATER);
        let time = |kind: &str| {
            let one = second.iter().find(|one| one.kind == kind).unwrap();
            (one.last_transition_time.as_deref(), one.last_probe_time.as_deref())
        };
        assert_eq!(time("Available"), (Some(LATER), Some(LATER)));
        assert_eq!(time("Degraded"), (Some(NOW), Some(LATER)), "the reason changed, the status did not");
    }

    #[test]
    fn an_update_keeps_the_phase_and_has_upstreams_reason() {
        let release = |version: &str| Release { version: version.to_owned(), registry: "r".to_owned() };
        let state = State::Updating(release("1"), release("2"));
        assert_eq!(phase(&state), Some("Deployed"));
        assert_eq!(phase(&State::Degraded(Vec::new())), Some("Deployed"));
        let text =
            "Transitioning from previous version 1 with registry r to target version 2 using registry r";
        for one in conditions(Side::Compute, &state, &[], &[], NOW) {
            let found = (one.reason.as_deref(), one.message.as_deref());
            assert_eq!(found, (Some("UpdateInProgress"), Some(text)), "{}", one.kind);
        }
    }

    #[test]
    fn a_refused_deletion_is_forgotten_when_it_proceeds() {
        let waiting = conditions(Side::Compute, &State::Waiting(2), &[], &[], NOW);
        assert_eq!(waiting[0].message.as_deref(), Some("2 virtual machines exist; delete them first"));
        let removing = conditions(Side::Compute, &State::Removing(2), &[], &waiting, LATER);
        assert!(removing.iter().all(|one| one.kind != "Synchronized"));
    }

    #[test]
    fn settings_without_effect_are_named_while_they_are_set() {
        let note = without::note(Child::KubeVirt, &json!({"imageTag": "v1"})).unwrap();
        let short = raised(&["spec.x from 1m to 600s".to_owned()]).unwrap();
        let first = conditions(Side::Compute, &State::Deployed, &[note, short], &[], NOW);
        let values = values(&first).join(" ");
        assert!(values.contains("ferrovirt.io/CertificateLifetimeRaised=True"), "{values}");
        let one = first.iter().find(|one| one.kind == without::CONDITION).unwrap();
        assert_eq!(one.message.as_deref(), Some("these settings have no effect: spec.imageTag"));
        let second = conditions(Side::Compute, &State::Deployed, &[], &first, LATER);
        assert!(second.iter().all(|one| !one.kind.starts_with(OWN)));
    }
}
