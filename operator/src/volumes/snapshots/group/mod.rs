//! VolumeGroupSnapshots: snapshots of all claims with some labels, taken at one point in time.
//!
//! ```text
//!  VolumeGroupSnapshot ─► VolumeGroupSnapshotContent ─► (agent or csi-snapshotter takes the group) ─► status of both
//!                             └─► a VolumeSnapshot and a VolumeSnapshotContent of each member
//! ```
//!
//! - [`seen`]: what is read of the objects. [`plan`]: the next step (pure). [`make`]: contents and members (pure).
//! - [`apply`]: the writes.
//!
//! Not here: groups that an administrator imports by a content of their own.

mod apply;
mod make;
mod plan;
pub(super) mod seen;
#[cfg(test)]
mod tests;
