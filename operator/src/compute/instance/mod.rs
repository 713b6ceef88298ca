//! VirtualMachineInstances: from creation over a launcher pod to a guest that virt-agent runs, and to their end.

mod apply;
mod event;
mod hotplug;
mod networks;
mod patch;
mod plan;
mod status;
mod volumes;
pub(super) mod why;

#[cfg(test)]
mod tests;

pub(super) use apply::{own, reconcile};
pub(super) use plan::{FINALIZER, Observed};
