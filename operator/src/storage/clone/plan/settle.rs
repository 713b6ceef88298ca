//! The temporary claim's volume becomes the target's. Pure.

use std::collections::BTreeMap;

use super::step::{Observed, Plan, annotate, key};
use crate::storage::action::Action;
use crate::storage::names;
use crate::storage::seen::Claim;

/// The temporary claim has the content, or will have: it grows to the target's size, then its volume is rebound.
pub(super) fn settle(o: &Observed<'_>, temporary: &Claim) -> Plan {
    let Some(volume) = o.volume else { return Plan::default() };
    if volume.claim_uid == o.target.meta.uid {
        return Plan::default();
    }
    if volume.claim_uid != temporary.meta.uid {
        let message = format!(
            "PV {} bound to unexpected claim {}: delete PVC {} (or its DataVolume) and create it again",
            volume.meta.name, volume.claim_name, o.target.meta.name
        );
        return Plan::troubled("ErrUnexpectedClaim", message);
    }
    if temporary.size < o.target.size {
        let changes = [(names::CLONE_PHASE, "PrepClaim")];
        return Plan::act(vec![
            annotate(o.target, &changes, BTreeMap::new()),
            Action::Expand { claim: key(temporary), uid: temporary.meta.uid.clone(), size: o.target.size },
        ]);
    }
    // A filesystem that the node has still to grow grows when the target is mounted.
    if temporary.capacity < o.target.size && !temporary.grows_when_mounted {
        return Plan::default();
    }
    let mut actions = Vec::new();
    if !o.target.meta.says(names::CLONE_PHASE, "Rebind") {
        actions.push(annotate(o.target, &[(names::CLONE_PHASE, "Rebind")], BTreeMap::new()));
    }
    let (namespace, name) = key(o.target);
    actions.push(Action::Rebind {
        volume: volume.meta.name.clone(),
        version: volume.meta.version.clone(),
        claim: (namespace, name, o.target.meta.uid.clone()),
    });
    Plan::act(actions)
}
