//! Nodes: whether the agent on each of them still reports.

pub(super) mod apply;
pub(super) mod plan;
