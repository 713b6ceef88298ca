//! The next step of the chosen way: by the driver, from a snapshot, or by copying. Pure.

use std::collections::BTreeMap;

use serde_json::json;

use super::copy::copy;
use super::make::{empty, filled, of_snapshot, put_back, taken};
use super::settle::settle;
use super::source::given;
use super::step::{From, Observed, Plan, annotate, awaits_restore};
use crate::storage::action::Action;
use crate::storage::names;
use crate::storage::profile::CloneStrategy;
use crate::storage::seen::Claim;

/// The next step of the chosen way.
pub(super) fn advance(o: &Observed<'_>, way: CloneStrategy) -> Plan {
    match (way, o.temporary) {
        (CloneStrategy::Copy, None) => Plan::act(vec![Action::Create(empty(o))]),
        (CloneStrategy::Copy, Some(temporary)) => copied(o, temporary),
        (_, Some(temporary)) => settle(o, temporary),
        (CloneStrategy::CsiClone, None) => match o.from {
            From::Claim(source, ..) => {
                let data = json!({"kind": "PersistentVolumeClaim", "name": source.meta.name});
                Plan::act(vec![Action::Create(filled(o, source.capacity, &data))])
            }
            From::Snapshot(..) | From::Missing => given(o).err().unwrap_or_default(),
        },
        (CloneStrategy::Snapshot, None) => restore(o),
    }
}

/// Copies into a claim. A snapshot is restored into a claim for the sender first.
pub(super) fn copied(o: &Observed<'_>, written: &Claim) -> Plan {
    match (o.from, o.restores) {
        (From::Snapshot(source, _), Some(class)) if awaits_restore(o.target, o.restored) => {
            Plan::act(vec![Action::Create(put_back(o, source, class))])
        }
        (From::Snapshot(..) | From::Claim(..) | From::Missing, _) => copy(o, written),
    }
}

/// Takes a snapshot, if the source is none, and restores it.
fn restore(o: &Observed<'_>) -> Plan {
    let snapshot = match (o.from, o.snapshot) {
        (From::Snapshot(source, _), _) => {
            return Plan::act(vec![Action::Create(filled(o, source.size, &of_snapshot(source)))]);
        }
        (_, Some(snapshot)) => snapshot,
        (From::Claim(source, ..), None) => {
            let create = Action::Create(taken(o, source));
            return Plan { again: true, ..Plan::act(vec![create]) };
        }
        (From::Missing, None) => return given(o).err().unwrap_or_default(),
    };
    if !snapshot.error.is_empty() && !snapshot.ready {
        let message = format!("snapshot {}: {}", snapshot.meta.name, snapshot.error);
        return Plan { again: true, ..Plan::troubled("SnapshotNotReady", message) };
    }
    if !snapshot.ready {
        return Plan { again: true, ..Plan::default() };
    }
    let size = match o.from {
        From::Claim(source, ..) => source.capacity.max(snapshot.size),
        From::Snapshot(..) | From::Missing => snapshot.size,
    };
    let create = Action::Create(filled(o, size, &of_snapshot(snapshot)));
    Plan::act(vec![annotate(o.target, &[(names::CLONE_PHASE, "SnapshotClone")], BTreeMap::new()), create])
}
