//! VirtualMachines: when they have an instance, and their status.

mod apply;
mod authorize;
mod dump;
mod event;
mod interfaces;
pub(crate) mod live;
mod plan;
mod printable;
mod render;
mod snapshots;
mod status;
pub(super) mod why;
mod without_effect;

#[cfg(test)]
mod tests;

pub(super) use apply::reconcile;
pub(super) use plan::Observed;
