//! DataVolume: a claim, and what it is filled with once.
//!
//! - [`claim`]: the claim that follows from the spec. [`plan`]: what is to be done about it.
//! - [`reserved`]: volumes that are reserved for the claim.
//! - [`phase`]: the state machine. [`status`]: conditions, progress and events.
//!
//! Not here: transfers. Those are the populators' work, seen here as annotations of the claim.

pub mod claim;
pub mod phase;
pub mod plan;
pub mod reserved;
pub mod status;

/// Reason when a quota refuses the claim.
pub const QUOTA: &str = "ErrExceededQuota";

/// Facts about a claim other than its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// A populator fills it.
    pub populated: bool,
    /// Its class binds it when a pod uses it, and nothing asks not to wait for that.
    pub consumer_first: bool,
    /// The same, and there is no such pod yet, as far as a populator can see.
    pub waits_for_consumer: bool,
    /// Its worker starts only when it is bound: no populator, and the claim is ours.
    pub binds_first: bool,
    /// Its content is there: nothing is to be transferred, or no more.
    pub complete: bool,
}

/// The obstacle between a DataVolume and its claim, or its claim and its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// For programs.
    pub reason: &'static str,
    /// The defect and the remedy.
    pub message: String,
}

impl Obstacle {
    /// The refusal of a claim by the API server: a quota, or the state that `reason` names.
    pub fn of_refusal(message: &str, reason: &'static str) -> Self {
        let reason = if message.contains("exceeded quota") { QUOTA } else { reason };
        Self { reason, message: message.to_owned() }
    }

    /// Whether a quota refuses the claim.
    pub fn is_quota(&self) -> bool {
        self.reason == QUOTA
    }
}
