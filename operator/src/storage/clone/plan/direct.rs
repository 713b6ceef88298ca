//! A clone without a populator: a copy is put into the target itself. Pure.

use super::advance::copied;
use super::begin::{content_labels, far, guard, not_copied};
use super::copy::release;
use super::finish::{clean, succeeded};
use super::source::given;
use super::step::{Observed, Plan, Start, annotate, chosen, delete, has_finalizer};
use crate::storage::action::{Action, Kind};
use crate::storage::names;
use crate::storage::populate::plan::in_use;
use crate::storage::profile::CloneStrategy;
use crate::storage::seen::claim::Phase;

/// Decides for a target without a `dataSourceRef`: it is bound like any claim, and receives a copy then.
pub fn direct(o: &Observed<'_>) -> Plan {
    decide(o).continued(o)
}

fn decide(o: &Observed<'_>) -> Plan {
    let target = o.target;
    if target.meta.deleting {
        return if has_finalizer(target) { clean_up(o) } else { Plan::default() };
    }
    if target.phase == Phase::Lost {
        return Plan::default();
    }
    if target.meta.says(names::CLONE_PHASE, "Succeeded") {
        return clean_up(o);
    }
    if target.meta.annotation(names::POPULATED_FOR).is_some() {
        return Plan::default();
    }
    if target.meta.says(names::POD_PHASE, "Succeeded") {
        return succeeded(o);
    }
    let consumer_free = !o.honors_first_consumer || target.meta.annotation(names::IMMEDIATE).is_some();
    let consumes = consumer_free && o.class.is_some_and(|class| class.waits_for_consumer);
    match chosen(target) {
        _ if target.phase != Phase::Bound && !consumes => Plan::default(),
        Some(_) => unused(o, copied(o, target)),
        None => begin(o),
    }
}

/// Writes down that it is copied, before anything is made.
fn begin(o: &Observed<'_>) -> Plan {
    let given = match given(o) {
        Ok(given) => given,
        Err(plan) => return plan,
    };
    if let Some(plan) = not_copied(o, &given) {
        return plan;
    }
    let mut changes = vec![(names::CLONE_PHASE, "Pending"), (names::CLONE_TYPE, CloneStrategy::Copy.word())];
    changes.extend(far(o));
    let mut actions: Vec<Action> = guard(o).into_iter().collect();
    actions.push(annotate(o.target, &changes, content_labels(o)));
    unused(o, copied(o, o.target)).before(actions)
}

/// Starts no server on a target that a pod uses.
fn unused(o: &Observed<'_>, plan: Plan) -> Plan {
    let Some(user) = o.user.filter(|_| plan.start == Some(Start::Server)) else { return plan };
    let (report, trouble) = in_use(o.target, user, true);
    Plan { start: None, trouble: Some(trouble), ..plan.before(vec![report]) }
}

/// Removes what helped. The server's Service goes before its pod: while there is a pod, the target is looked at again.
fn clean_up(o: &Observed<'_>) -> Plan {
    let mut actions = Vec::new();
    if let Some(server) = o.server.filter(|server| !server.meta.deleting) {
        actions.push(release(o.target));
        actions.push(delete(Kind::Pod, &server.meta));
    }
    clean(o).before(actions)
}
