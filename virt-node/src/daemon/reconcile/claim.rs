//! Claims: a volume is made, expanded and removed. Not here: carrying the actions out (`execute`).

use api::core::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::{Action, Attempt, ClaimAction, Object, Shown};
use crate::daemon::claim::{Filled, is_bound, is_wanted, size};
use crate::daemon::csi_client::POOL;
use crate::daemon::object::Stored;

/// The claim that another one is a clone of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::daemon) struct Source {
    /// `NAMESPACE/NAME`.
    pub(in crate::daemon) name: String,
    /// `None`: it is not there.
    pub(in crate::daemon) uid: Option<String>,
    pub(in crate::daemon) filled: Filled,
    /// A guest has it.
    pub(in crate::daemon) used: bool,
}

/// The facts about a claim.
#[derive(Clone, Debug)]
pub(in crate::daemon) struct Observed<'a> {
    pub(in crate::daemon) claim: &'a PersistentVolumeClaim,
    /// A run that is not over has it.
    pub(in crate::daemon) used: bool,
    /// The source of a clone.
    pub(in crate::daemon) source: Option<Source>,
    /// The disks of guests that are up; `None`: one of the runs has a job, and its end is a message.
    pub(in crate::daemon) shown: Option<Vec<Shown>>,
    pub(in crate::daemon) attempt: Attempt,
}

/// The actions that bring a claim towards its spec.
pub(in crate::daemon) fn reconcile(observed: &Observed<'_>) -> Vec<Action> {
    let Observed { claim, used, source, shown, attempt } = observed;
    let mut actions = Vec::new();
    if claim.is_deleting() {
        actions.push(Action::Cancel);
        if !used && attempt.may_begin(&mut actions) {
            actions.push(Action::Claim(ClaimAction::Remove));
        }
    } else if !is_bound(claim) {
        if attempt.may_begin(&mut actions) {
            actions.push(make(claim, source.as_ref()));
        }
    } else if is_wanted(claim)
        && let Some(shown) = shown
        && attempt.may_begin(&mut actions)
    {
        let size = size(&claim.spec.resources).unwrap_or(0);
        actions.push(Action::event("Resizing", format!("to {size} bytes")));
        actions.push(Action::Claim(ClaimAction::Grow(shown.clone())));
    }
    actions
}

/// Makes the volume, or reports why it cannot be made yet.
fn make(claim: &PersistentVolumeClaim, source: Option<&Source>) -> Action {
    if let Some(Source { name, uid, filled, used }) = source {
        let waits = match (uid, filled) {
            (None, _) => Some(format!("there is no claim {name}")),
            (Some(_), Filled::Ready) if *used => {
                Some(format!("{name} is in use by a guest; the clone waits until it ends"))
            }
            (Some(_), Filled::Ready) => None,
            (Some(_), Filled::Missing | Filled::NotYet | Filled::Broken) => {
                Some(format!("{name} is not filled yet"))
            }
        };
        if let Some(text) = waits {
            return Action::warning("ClonePending", text);
        }
    }
    let pool = claim.spec.storage_class_name.as_deref().unwrap_or(POOL);
    if pool != POOL {
        let text = format!("there is no pool {pool:?}; the one there is is called {POOL:?}, or left out");
        return Action::warning("ProvisioningFailed", text);
    }
    Action::Claim(ClaimAction::Make { source: source.and_then(|source| source.uid.clone()) })
}

/// The end of a claim's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::daemon) enum End<'a> {
    /// Its volume is there, with so many bytes.
    Made(u64),
    /// Its volume has so many bytes now.
    Grown(u64),
    /// Its volume is gone.
    Removed,
    /// It could not be expanded.
    NotGrown(&'a str),
    /// It could not be made or removed.
    Failed(&'a str),
}

/// The actions that follow the end of a claim's job.
pub(in crate::daemon) fn ended(claim: &PersistentVolumeClaim, end: End<'_>) -> Vec<Action> {
    let mut claim = claim.clone();
    match end {
        End::Made(size) => {
            let status = json!({
                "phase": "Bound",
                "capacity": {"storage": size.to_string()},
                "accessModes": claim.spec.access_modes,
            });
            claim.other.insert("status".to_owned(), status);
            vec![Action::Succeed, Action::Put(Object::Claim(Box::new(claim)))]
        }
        End::Grown(size) => {
            if let Some(status) = claim.other.get_mut("status").and_then(Value::as_object_mut) {
                status.insert("capacity".to_owned(), json!({"storage": size.to_string()}));
            }
            vec![
                Action::Succeed,
                Action::event("FileSystemResizeSuccessful", format!("it has {size} bytes")),
                Action::Put(Object::Claim(Box::new(claim))),
            ]
        }
        End::Removed => vec![Action::Remove],
        End::NotGrown(text) => vec![Action::Fail, Action::warning("VolumeResizeFailed", text)],
        End::Failed(text) => vec![Action::Fail, Action::warning("ProvisioningFailed", text)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(status: &Value, more: &Value) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "disk", "namespace": "a", "uid": "u"},
            "spec": {"resources": {"requests": {"storage": "2Mi"}}},
            "status": status,
        });
        if let (Some(claim), Some(more)) = (claim["metadata"].as_object_mut(), more.as_object()) {
            claim.extend(more.clone());
        }
        serde_json::from_value(claim).unwrap()
    }

    fn observed(claim: &PersistentVolumeClaim) -> Observed<'_> {
        Observed { claim, used: false, source: None, shown: Some(Vec::new()), attempt: Attempt::default() }
    }

    const LATER: Attempt = Attempt { busy: false, retry: Some(7), now: 5 };
    const BUSY: Attempt = Attempt { busy: true, retry: None, now: 5 };

    #[test]
    fn a_claim_is_bound_once_and_grows_to_its_request() {
        let new = claim(&Value::Null, &Value::Null);
        let make = Action::Claim(ClaimAction::Make { source: None });
        assert_eq!(reconcile(&observed(&new)), [make]);
        assert_eq!(reconcile(&Observed { attempt: LATER, ..observed(&new) }), [Action::Look(7)]);
        assert_eq!(reconcile(&Observed { attempt: BUSY, ..observed(&new) }), []);
        let Some(Action::Put(Object::Claim(made))) = ended(&new, End::Made(1 << 20)).pop() else { panic!() };
        let shown = vec![Shown { run: "r".to_owned(), disk: "root".to_owned() }];
        let grows = Observed { shown: Some(shown.clone()), ..observed(&made) };
        let Some(Action::Claim(ClaimAction::Grow(disks))) = reconcile(&grows).pop() else { panic!() };
        assert_eq!(disks, shown);
        assert_eq!(reconcile(&Observed { shown: None, ..observed(&made) }), [], "a run of it has a job");
        let Some(Action::Put(Object::Claim(grown))) = ended(&made, End::Grown(2 << 20)).pop() else {
            panic!()
        };
        assert_eq!(reconcile(&observed(&grown)), []);
        let failed = ended(&made, End::NotGrown("full"));
        assert_eq!(failed, [Action::Fail, Action::warning("VolumeResizeFailed", "full")]);
    }

    #[test]
    fn a_claim_in_use_keeps_its_volume_until_its_guest_has_ended() {
        let old = claim(&json!({"phase": "Bound"}), &json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        assert_eq!(reconcile(&Observed { used: true, ..observed(&old) }), [Action::Cancel]);
        assert_eq!(reconcile(&Observed { attempt: BUSY, ..observed(&old) }), [Action::Cancel]);
        assert_eq!(reconcile(&observed(&old)), [Action::Cancel, Action::Claim(ClaimAction::Remove)]);
        assert_eq!(ended(&old, End::Removed), [Action::Remove]);
    }

    #[test]
    fn a_clone_waits_for_its_source() {
        let new = claim(&Value::Null, &Value::Null);
        let source = |uid: Option<&str>, filled, used| Source {
            name: "a/from".into(),
            uid: uid.map(str::to_owned),
            filled,
            used,
        };
        for (source, text) in [
            (source(None, Filled::Missing, false), "there is no claim a/from"),
            (source(Some("s"), Filled::NotYet, false), "a/from is not filled yet"),
            (source(Some("s"), Filled::Ready, true), "a/from is in use by a guest"),
        ] {
            let actions = reconcile(&Observed { source: Some(source), ..observed(&new) });
            let [Action::Event { warning: true, reason: "ClonePending", text: said }] = &actions[..] else {
                panic!("{actions:?}")
            };
            assert!(said.starts_with(text), "{said}");
        }
        let ready = Observed { source: Some(source(Some("s"), Filled::Ready, false)), ..observed(&new) };
        assert_eq!(reconcile(&ready), [Action::Claim(ClaimAction::Make { source: Some("s".to_owned()) })]);
    }

    #[test]
    fn a_pool_that_is_not_there_is_reported() {
        let mut new = claim(&Value::Null, &Value::Null);
        new.spec.storage_class_name = Some("fast".to_owned());
        let actions = reconcile(&observed(&new));
        assert!(
            matches!(&actions[..], [Action::Event { reason: "ProvisioningFailed", text, .. }] if text.contains("\"fast\"")),
            "{actions:?}"
        );
    }
}
