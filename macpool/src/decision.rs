//! The decision about a review: from what this replica knows and what other replicas answered. Not here: connections
//! ([`crate::webhook`], [`crate::peers`]), the rules themselves ([`crate::review`]).

use std::collections::HashMap;
use std::time::SystemTime;

use api::net::Mac;

use crate::review::{Answer, Circumstances, Reply, Review};
use crate::state::{State, stamp};

/// Decides a review by this replica's knowledge and other replicas' answers.
pub(crate) fn decide(state: &State, review: Review, answers: &HashMap<Mac, Answer>) -> Reply {
    let (now, stamp) = (state.now(), stamp());
    let mut known = state.lock();
    let dry_run = review.owner().is_some_and(|(_, dry_run)| dry_run);
    let policy = review.owner().map(|(owner, _)| known.policy_of(&owner.namespace)).unwrap_or_default();
    let may_give = known.may_give(now, SystemTime::now());
    let reply = review.decide(&mut known.pool, &Circumstances { policy, stamp, now, may_give, answers });
    drop(known);
    state.count(if dry_run { 0 } else { reply.duplicates().len() });
    reply
}
