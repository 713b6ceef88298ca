//! A copy: the upload server on the claim that is written to, then the pod that sends. Pure.

use std::collections::BTreeMap;

use super::settle::settle;
use super::step::{Observed, Plan, Start, delete, key};
use crate::storage::action::{Action, Kind};
use crate::storage::names;
use crate::storage::populate::mirror::{self, Changes};
use crate::storage::seen::Claim;
use crate::storage::seen::claim::Phase;
use crate::storage::seen::worker::State;

/// Takes away the Service of the upload server on a claim.
pub(super) fn release(written: &Claim) -> Action {
    Action::Release {
        service: (written.meta.namespace.clone(), api::upload::service_name(&written.meta.name)),
        claim: written.meta.uid.clone(),
    }
}

/// Copies: the server first, then the sender; both are reported.
pub(super) fn copy(o: &Observed<'_>, temporary: &Claim) -> Plan {
    if o.volume.is_some_and(|volume| volume.claim_uid == o.target.meta.uid) {
        return Plan::default();
    }
    let Some(server) = o.server else {
        if o.target.meta.says(names::POD_PHASE, "Succeeded") {
            return settle(o, temporary);
        }
        // A pod is what makes the scheduler choose a node; where none has to be chosen, it waits for the volume.
        let consumed = o.class.is_some_and(|class| class.waits_for_consumer);
        let start = (consumed || temporary.phase == Phase::Bound).then_some(Start::Server);
        return Plan { start, ..Plan::default() };
    };
    let mirror = mirror::of(server, o.target, true);
    let mut wanted = mirror.annotations.clone();
    wanted.remove(names::POD_READY);
    if let Some(sender) = o.sender {
        let (running, reason, message) = mirror::running_now(sender);
        wanted.insert(names::SOURCE_RUNNING.to_owned(), Some(running.to_string()));
        wanted.insert(names::SOURCE_RUNNING_REASON.to_owned(), Some(reason));
        wanted.insert(names::SOURCE_RUNNING_MESSAGE.to_owned(), Some(message));
        if ["Pending", "SnapshotClone"].iter().any(|phase| o.target.meta.says(names::CLONE_PHASE, phase)) {
            wanted.insert(names::CLONE_PHASE.to_owned(), Some("HostClone".to_owned()));
        }
    }
    let changes: Changes = wanted
        .into_iter()
        .filter(|(name, value)| o.target.meta.annotation(name) != value.as_deref())
        .collect();
    let early = temporary.phase == Phase::Pending && server.unschedulable.is_none();
    let mut actions = Vec::new();
    if !changes.is_empty() && !early {
        actions.push(Action::Annotate {
            claim: key(o.target),
            uid: o.target.meta.uid.clone(),
            annotations: changes,
            labels: BTreeMap::new(),
        });
    }
    if mirror.succeeded {
        return settle(o, temporary).before(actions);
    }
    if mirror.expired || server.phase == "Failed" {
        actions.push(delete(Kind::Pod, &server.meta));
        actions.push(release(temporary));
        return Plan::act(actions);
    }
    match o.sender {
        None if server.ready && !server.address.is_empty() => {
            Plan { start: Some(Start::Sender), ..Plan::act(actions) }
        }
        // It ended, or it knows an address that is not the server's any more.
        Some(sender)
            if !sender.meta.deleting
                && (sender.phase == "Failed"
                    || (server.ready && server.meta.created > sender.meta.created)
                    || (sender.phase == "Succeeded"
                        && !matches!(server.state, State::Ended(_))
                        && server.restarts > 0)) =>
        {
            actions.push(delete(Kind::Pod, &sender.meta));
            Plan::act(actions)
        }
        Some(_) | None => Plan::act(actions),
    }
}
