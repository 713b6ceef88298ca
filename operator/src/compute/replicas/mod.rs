//! VirtualMachineInstanceReplicaSets: as many instances of a template as asked for. An ended instance is
//! replaced.

mod apply;
mod plan;

pub(super) use apply::reconcile;
