//! Facts that decide a clone, the form of a plan, and the actions of several steps. Pure.

use std::collections::BTreeMap;

use crate::storage::action::{About, Action, Event, Kind};
use crate::storage::clone::authorize::Origin;
use crate::storage::datavolume::Obstacle;
use crate::storage::names;
use crate::storage::populate::mirror::Changes;
use crate::storage::profile::{CloneStrategy, Profile};
use crate::storage::seen::{Claim, Class, Meta, Snapshot, Volume, Worker};

/// The source.
#[derive(Clone, Copy, Debug)]
pub enum From<'a> {
    /// It does not exist.
    Missing,
    /// A claim, its volume, and a pod that writes to it.
    Claim(&'a Claim, Option<&'a Volume>, Option<&'a str>),
    /// A snapshot and its driver.
    Snapshot(&'a Snapshot, &'a str),
}

/// The existing objects.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The claim to fill.
    pub target: &'a Claim,
    /// Name of what is cloned.
    pub origin: &'a Origin,
    /// The source.
    pub from: From<'a>,
    /// The temporary claim.
    pub temporary: Option<&'a Claim>,
    /// Its volume, once it is bound.
    pub volume: Option<&'a Volume>,
    /// The temporary snapshot.
    pub snapshot: Option<&'a Snapshot>,
    /// The claim into which a snapshot is restored to be copied.
    pub restored: Option<&'a Claim>,
    /// A class of the snapshot's driver, for that claim.
    pub restores: Option<&'a Class>,
    /// The upload server on the temporary claim.
    pub server: Option<&'a Worker>,
    /// The sending pod.
    pub sender: Option<&'a Worker>,
    /// The target's class.
    pub class: Option<&'a Class>,
    /// Its profile.
    pub profile: Option<&'a Profile>,
    /// CDI's `cloneStrategyOverride`.
    pub forced: Option<CloneStrategy>,
    /// Whether claims of classes with WaitForFirstConsumer wait for a pod of the user.
    pub honors_first_consumer: bool,
    /// Name of a pod that uses the target; only observed before the server is made that writes to the target itself.
    pub user: Option<&'a str>,
}

/// A worker that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The upload server on the temporary claim.
    Server,
    /// The sending pod.
    Sender,
}

/// The next actions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order.
    pub actions: Vec<Action>,
    /// The reason why the clone waits.
    pub trouble: Option<Obstacle>,
    /// A worker to make.
    pub start: Option<Start>,
    /// Whether to look again soon: snapshots are not watched.
    pub again: bool,
}

impl Plan {
    pub(super) fn act(actions: Vec<Action>) -> Self {
        Self { actions, ..Self::default() }
    }

    pub(super) fn troubled(reason: &'static str, message: String) -> Self {
        Self { trouble: Some(Obstacle { reason, message }), ..Self::default() }
    }

    /// Takes the last error off the claim of a clone that continues: after the steps that the API server may refuse, and
    /// not before a worker's pod is there.
    pub(super) fn continued(mut self, o: &Observed<'_>) -> Self {
        let target = &o.target.meta;
        let waits = self.trouble.is_some() || self.start.is_some() || target.deleting;
        if !waits && target.annotation(names::CLONE_ERROR).is_some() {
            self.actions.push(Action::Annotate {
                claim: key(o.target),
                uid: target.uid.clone(),
                annotations: [(names::CLONE_ERROR.to_owned(), None)].into(),
                labels: BTreeMap::new(),
            });
        }
        self
    }

    pub(super) fn before(mut self, mut actions: Vec<Action>) -> Self {
        actions.append(&mut self.actions);
        Self { actions, ..self }
    }
}

/// Name of the temporary claim of a target.
pub fn temporary(target_uid: &str) -> String {
    format!("tmp-pvc-{target_uid}")
}

/// Name of the temporary snapshot of a target.
pub fn snapshot(target_uid: &str) -> String {
    format!("tmp-snapshot-{target_uid}")
}

/// Name of the claim into which a snapshot is restored to be copied to a target.
pub fn restored(target_uid: &str) -> String {
    format!("tmp-source-pvc-{target_uid}")
}

/// Name of the claim, in the source's namespace, that the sender of a copy reads.
pub fn read(target: &Claim, origin: &Origin) -> String {
    if origin.snapshot { restored(&target.meta.uid) } else { origin.name.clone() }
}

/// Whether a copy of a snapshot to a target needs the claim into which the snapshot is restored, and it is missing.
pub fn awaits_restore(target: &Claim, restored: Option<&Claim>) -> bool {
    restored.is_none() && !target.meta.says(names::POD_PHASE, "Succeeded")
}

/// The way that was chosen for a target.
pub fn chosen(target: &Claim) -> Option<CloneStrategy> {
    CloneStrategy::of_word(target.meta.annotation(names::CLONE_TYPE)?)
}

/// Namespace of the temporary claim.
pub fn namespace<'a>(target: &'a Claim, origin: &'a Origin) -> &'a str {
    match chosen(target) {
        Some(CloneStrategy::Copy) => &target.meta.namespace,
        Some(CloneStrategy::CsiClone | CloneStrategy::Snapshot) | None => &origin.namespace,
    }
}

pub(super) fn has_finalizer(target: &Claim) -> bool {
    target.meta.finalizers.iter().any(|one| one == names::CLONE_FINALIZER)
}

pub(super) fn key(claim: &Claim) -> (String, String) {
    (claim.meta.namespace.clone(), claim.meta.name.clone())
}

pub(super) fn delete(kind: Kind, meta: &Meta) -> Action {
    Action::Delete { kind, key: (meta.namespace.clone(), meta.name.clone()), uid: meta.uid.clone() }
}

pub(super) fn finalize(target: &Claim, finalizers: Vec<String>) -> Action {
    Action::Finalize { claim: key(target), version: target.meta.version.clone(), finalizers }
}

pub(super) fn warning(o: &Observed<'_>, reason: &str, message: &str) -> Action {
    Action::Report(Event::warning(About::claim(&o.target.meta), reason, message))
}

pub(super) fn annotate(claim: &Claim, changes: &[(&str, &str)], labels: BTreeMap<String, String>) -> Action {
    let annotations: Changes =
        changes.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect();
    Action::Annotate { claim: key(claim), uid: claim.meta.uid.clone(), annotations, labels }
}
