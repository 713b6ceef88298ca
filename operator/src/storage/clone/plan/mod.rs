//! The next step of a clone. Pure: what is there decides, with the way that was chosen at the beginning and stands on the
//! claim.
//!
//! ```text
//!  csi-clone  target ─► temporary claim with the source as its data source ────────────────┐
//!  snapshot   target ─► temporary snapshot ─► temporary claim with the snapshot ────────────┼─► grown ─► rebound ─► cleaned up
//!  copy       target ─► temporary claim ─► upload server ─► sender ─► both have ended well ─┘
//!             of a snapshot: restored into a claim of its driver's first, which the sender reads
//!  direct     target is bound ─► upload server on it ─► sender ─► both have ended well ─► cleaned up
//! ```
//! Temporary claims and snapshots are in the source's namespace, where the driver can read the source; the receiving side
//! of a copy is in the target's.
//!
//! Not here: which way is taken ([`super::choose`]), the right to clone ([`super::authorize`]).
//!
//! - [`step`]: what is observed, and what a plan is.
//! - [`begin`]: the way is chosen. [`advance`]: its next step; [`copy`] and [`settle`] are steps. [`finish`]: the end.
//! - [`source`]: whether the source can be cloned now. [`make`]: the objects that help.
//! - [`direct`]: a copy into the target itself, where no populator fills claims.

mod advance;
mod begin;
mod copy;
mod direct;
mod finish;
mod make;
mod settle;
mod source;
mod step;

#[cfg(test)]
mod tests;

pub use direct::direct;
pub use step::{
    From, Observed, Plan, Start, awaits_restore, chosen, namespace, read, restored, snapshot, temporary,
};

use self::advance::advance;
use self::begin::begin;
use self::finish::{bound, clean};
use self::step::has_finalizer;
use crate::storage::names;
use crate::storage::seen::Claim;
use crate::storage::seen::claim::Phase;

/// Whether the clone is over and nothing of it is left.
pub fn is_over(target: &Claim) -> bool {
    has_content(target) && !has_finalizer(target)
}

/// Whether the clone has succeeded. What helped may still be there.
pub fn has_content(target: &Claim) -> bool {
    target.phase == Phase::Bound && target.meta.says(names::CLONE_PHASE, "Succeeded")
}

/// Decides.
pub fn plan(o: &Observed<'_>) -> Plan {
    decide(o).continued(o)
}

fn decide(o: &Observed<'_>) -> Plan {
    let target = o.target;
    if target.meta.deleting {
        return if has_finalizer(target) { clean(o) } else { Plan::default() };
    }
    if target.phase == Phase::Lost {
        return Plan::default();
    }
    if target.phase == Phase::Bound {
        return bound(o);
    }
    match chosen(target) {
        Some(way) => advance(o, way),
        None => begin(o),
    }
}
