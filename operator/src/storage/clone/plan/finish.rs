//! The end of a clone: it is reported, and what helped is removed. Pure.

use std::collections::BTreeMap;

use super::step::{Observed, Plan, chosen, delete, finalize, has_finalizer, key};
use crate::storage::action::{Action, Kind};
use crate::storage::clone::sender;
use crate::storage::names;
use crate::storage::populate::mirror::Changes;
use crate::storage::populate::plan::{COMPLETE, is_filled, misbound};
use crate::storage::profile::CloneStrategy;

/// The target has a volume.
pub(super) fn bound(o: &Observed<'_>) -> Plan {
    if !is_filled(o.target, o.temporary) {
        return Plan { trouble: Some(misbound(o.target)), ..Plan::default() };
    }
    if !o.target.meta.says(names::CLONE_PHASE, "Succeeded") {
        return succeeded(o);
    }
    clean(o)
}

/// Reports that the target has the content.
pub(super) fn succeeded(o: &Observed<'_>) -> Plan {
    let mut changes: Changes = [
        (names::CLONE_PHASE, "Succeeded"),
        (names::PROGRESS, COMPLETE),
        (names::RUNNING, "false"),
        (names::RUNNING_REASON, "Completed"),
        (names::RUNNING_MESSAGE, "Clone Complete"),
    ]
    .map(|(name, value)| (name.to_owned(), Some(value.to_owned())))
    .into();
    for name in [names::SOURCE_RUNNING, names::SOURCE_RUNNING_REASON, names::SOURCE_RUNNING_MESSAGE] {
        if o.target.meta.annotation(name).is_some() {
            changes.insert(name.to_owned(), None);
        }
    }
    Plan::act(vec![Action::Annotate {
        claim: key(o.target),
        uid: o.target.meta.uid.clone(),
        annotations: changes,
        labels: BTreeMap::new(),
    }])
}

/// Removes what helped, then the finalizer.
pub(super) fn clean(o: &Observed<'_>) -> Plan {
    let mut actions = Vec::new();
    if let Some(sender) = o.sender.filter(|sender| !sender.meta.deleting) {
        actions.push(delete(Kind::Pod, &sender.meta));
    }
    if o.sender.is_some() || (has_finalizer(o.target) && chosen(o.target) == Some(CloneStrategy::Copy)) {
        actions.push(Action::Forget {
            kind: Kind::Secret,
            key: (o.origin.namespace.clone(), sender::name(&o.target.meta.uid)),
        });
    }
    if let Some(snapshot) = o.snapshot.filter(|snapshot| !snapshot.meta.deleting) {
        actions.push(delete(Kind::Snapshot, &snapshot.meta));
    }
    let claims = [o.temporary, o.restored].into_iter().flatten();
    actions.extend(claims.filter(|claim| !claim.meta.deleting).map(|claim| delete(Kind::Claim, &claim.meta)));
    let left = o.sender.is_some() || o.temporary.is_some() || o.restored.is_some() || o.snapshot.is_some();
    if has_finalizer(o.target) && !left {
        let others = o.target.meta.finalizers.iter().filter(|one| *one != names::CLONE_FINALIZER);
        actions.push(finalize(o.target, others.cloned().collect()));
    }
    Plan { again: left && has_finalizer(o.target), ..Plan::act(actions) }
}
