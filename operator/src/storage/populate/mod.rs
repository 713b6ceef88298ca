//! Filling claims: the populators of VolumeImportSource and VolumeUploadSource, and the path for claims without a
//! `dataSourceRef`.
//!
//! ```text
//!  target (dataSourceRef) ─► prime claim ─► worker pod ─► volume rebound to the target ─► prime deleted
//!  target (no dataSourceRef) ─► worker pod on the target itself
//! ```
//! Everything is named after the target's uid, so that every step can be repeated after a crash.
//!
//! - [`task`]: what a claim is filled with. [`plan`]: the next step. [`mirror`]: the worker's state as annotations.
//! - [`prime`]: the claim that the worker writes to.

pub mod mirror;
pub mod plan;
pub mod prime;
pub mod task;
