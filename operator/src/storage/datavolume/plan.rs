//! Decides the steps for a DataVolume's claim. Pure.

use serde_json::{Value, json};

use super::claim::{self, ClusterStorage};
use super::{Facts, Obstacle};
use crate::storage::action::{About, Action, Event};
use crate::storage::names;
use crate::storage::populate::plan::{is_filled, is_populated};
use crate::storage::seen::claim::Phase as Binding;
use crate::storage::seen::{Claim, DataVolume, Source};

/// The steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order; the status is computed after them.
    pub actions: Vec<Action>,
    /// The obstacle between the DataVolume and its claim.
    pub trouble: Option<Obstacle>,
}

impl Plan {
    pub(super) fn act(action: Action) -> Self {
        Self { actions: vec![action], trouble: None }
    }

    fn troubled(reason: &'static str, message: String) -> Self {
        Self { actions: Vec::new(), trouble: Some(Obstacle { reason, message }) }
    }
}

/// Decides. `size` is the source's, where the DataVolume gives none.
pub fn plan(
    volume: &DataVolume,
    claim: Option<&Claim>,
    offer: ClusterStorage<'_>,
    size: Option<u64>,
) -> Plan {
    if volume.meta.deleting {
        return Plan::default();
    }
    let Some(claim) = claim else { return without(volume, offer, size) };
    let name = &claim.meta.name;
    if claim.meta.deleting {
        let message = format!("PVC {name} is marked for deletion: the DataVolume continues when it is gone");
        return Plan::troubled("ErrResourceMarkedForDeletion", message);
    }
    if claim.meta.is_controlled_by(&volume.meta.uid) {
        return owned(volume, claim);
    }
    if may_adopt(volume, claim, offer) {
        return Plan::act(adoption(volume, claim));
    }
    Plan::troubled(
        "ErrResourceExists",
        format!("Resource {name:?} already exists and is not managed by DataVolume"),
    )
}

/// Facts about the claim; `prime` is its prime claim, if there is one.
pub fn facts(volume: &DataVolume, claim: &Claim, prime: Option<&Claim>, offer: ClusterStorage<'_>) -> Facts {
    let class = claim.class.as_deref().and_then(|name| offer.classes.named(name));
    let populated = is_populated(claim);
    let chosen = claim.meta.annotation(names::SELECTED_NODE).is_some();
    let immediate = claim.meta.annotation(names::IMMEDIATE).is_some();
    let honored = populated || offer.settings.honors_first_consumer;
    let reserved = claim.waits_for_reserved();
    let consumer_first =
        class.is_some_and(|class| class.waits_for_consumer) && honored && !immediate && !reserved;
    let waits = consumer_first && !(populated && chosen);
    let stray = populated && claim.phase == Binding::Bound && !is_filled(claim, prime);
    // Of a clone by a populator that is the copy's server: its volume has still to be made the claim's.
    let copied = populated && claim.meta.annotation(names::CLONE_PHASE).is_some();
    let transferred = !stray && !copied && claim.meta.says(names::POD_PHASE, "Succeeded");
    let complete = transferred
        || claim.meta.says(names::CLONE_PHASE, "Succeeded")
        || claim.meta.says(names::POPULATED_FOR, &volume.meta.name)
        || is_adopted(volume, claim)
        || (claim::is_external(volume) && claim.phase == Binding::Bound);
    Facts {
        populated,
        consumer_first,
        waits_for_consumer: waits,
        binds_first: !populated && !is_adopted(volume, claim),
        complete,
    }
}

/// Whether the claim was not made for this DataVolume, and is its all the same.
fn is_adopted(volume: &DataVolume, claim: &Claim) -> bool {
    let made_for = claim.meta.annotation(names::CREATED_FOR);
    made_for != Some(volume.meta.uid.as_str())
        && claim.meta.owners.iter().any(|owner| owner.uid == volume.meta.uid)
}

fn without(volume: &DataVolume, offer: ClusterStorage<'_>, size: Option<u64>) -> Plan {
    // A backup tool restores the claim.
    if volume.meta.annotation(names::PREPOPULATED).is_some() {
        return Plan::default();
    }
    if let Source::Unsupported(source) = volume.source {
        return Plan::troubled(claim::NOT_VALID, format!("source {source} is not supported"));
    }
    match claim::render(volume, offer, size) {
        Ok(claim) => Plan::act(Action::Create(claim)),
        Err(refusal) => Plan::troubled(refusal.reason, refusal.message),
    }
}

fn owned(volume: &DataVolume, claim: &Claim) -> Plan {
    let told = claim.meta.annotation(names::POPULATED_FOR).is_some();
    // Backup tools restore the claim with this, so that nothing is transferred again. It is set at the end only: a
    // backup of a transfer in progress must not pass for a complete one.
    if volume.status.phase == "Succeeded" && !told && volume.meta.annotation(names::POPULATED_FOR).is_some() {
        let name = (names::POPULATED_FOR.to_owned(), Some(volume.meta.name.clone()));
        return Plan::act(Action::Annotate {
            claim: (claim.meta.namespace.clone(), claim.meta.name.clone()),
            uid: claim.meta.uid.clone(),
            annotations: [name].into(),
            labels: [].into(),
        });
    }
    // A DataVolume with this annotation is restored without its claim, which follows or was there before.
    let filled = claim.phase == Binding::Bound && claim.meta.says(names::POPULATED_FOR, &volume.meta.name);
    if filled && volume.meta.annotation(names::PREPOPULATED).is_none() {
        return Plan::act(Action::Mark {
            volume: (volume.meta.namespace.clone(), volume.meta.name.clone()),
            uid: volume.meta.uid.clone(),
            annotations: [(names::PREPOPULATED.to_owned(), claim.meta.name.clone())].into(),
        });
    }
    Plan::default()
}

/// Whether a claim of the DataVolume's name that something else made becomes its claim.
fn may_adopt(volume: &DataVolume, claim: &Claim, offer: ClusterStorage<'_>) -> bool {
    let controlled = claim.meta.controller().is_some();
    let populated = claim.meta.says(names::POPULATED_FOR, &volume.meta.name)
        || volume.meta.says(names::PREPOPULATED, &claim.meta.name);
    let asked = match volume.meta.annotation(names::ALLOW_ADOPTION) {
        Some(answer) => answer == "true",
        None => offer.settings.adopts_claims,
    };
    !controlled && (populated || asked)
}

fn adoption(volume: &DataVolume, claim: &Claim) -> Action {
    let mut owners: Vec<Value> = claim
        .meta
        .owners
        .iter()
        .map(|owner| {
            json!({"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid})
        })
        .collect();
    owners.push(claim::owner(volume));
    Action::Adopt {
        claim: (claim.meta.namespace.clone(), claim.meta.name.clone()),
        version: claim.meta.version.clone(),
        owners: Value::Array(owners),
        annotations: [(names::POPULATED_FOR.to_owned(), volume.meta.name.clone())].into(),
    }
}

/// The event of a new trouble; none for one that the status already reports.
pub fn event(volume: &DataVolume, trouble: &Obstacle) -> Option<Event> {
    let running = volume.status.condition("Running");
    let known = running.is_some_and(|one| one.reason == trouble.reason && one.message == trouble.message);
    // The others are events of their conditions.
    let own = trouble.reason == claim::NOT_VALID || trouble.reason.starts_with("ErrResource");
    (!known && own)
        .then(|| Event::warning(About::data_volume(&volume.meta), trouble.reason, trouble.message.clone()))
}
