//! Decisions without effects: pure functions of what is asked for and what is observed, tested as tables.
//!
//! ```text
//! request, observed (records, uses, mounts) ─► plan ─► actions, or the answer, or the error ─► [`crate::apply`] does
//! ```
//!
//! Not here: opening anything, and undoing what a failed action leaves.

pub(crate) mod defragment;
pub(crate) mod node;
pub(crate) mod room;
pub(crate) mod size;
pub(crate) mod snapshot;
pub(crate) mod volume;
