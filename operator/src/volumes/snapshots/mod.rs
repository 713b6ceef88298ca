//! The snapshot controller: VolumeSnapshots get their contents, classes, status and finalizers, whatever driver they are of.
//! Stock snapshot-controller does the same with the same objects; where it works, this one does not.
//!
//! ```text
//!  VolumeSnapshot ─► VolumeSnapshotContent ─► (agent or csi-snapshotter takes the snapshot) ─► status of both
//! ```
//!
//! - [`seen`]: what is read of the objects. [`plan`]: the next step (pure). [`make`]: the content (pure).
//! - [`control`]: caches and queue. [`apply`]: the writes.
//! - [`group`]: the same of VolumeGroupSnapshots, and their members.
//! - [`others`]: another snapshot controller. [`definitions`]: the kinds, where the cluster has none.
//!
//! Not here: calls of a driver (virt-agent, csi-snapshotter).

mod apply;
mod control;
mod definitions;
mod group;
mod make;
mod others;
mod plan;
mod seen;
#[cfg(test)]
mod tests;

use cluster::{Client, Events, Stop};

pub(super) use self::group::seen::GROUP_CONTENTS;
use self::others::Others;

/// Does the snapshot controller's work until `stop`, whenever no other one does.
pub async fn run(client: Client, events: Events, stop: Stop) {
    let Some(others) = unless(&stop, Others::follow(&client)).await else { return };
    while unless(&stop, others.absent()).await.is_some() {
        let work = async {
            if unless(&stop, definitions::ensure(&client)).await.is_some() {
                control::run(client.clone(), events.clone(), stop.wait()).await;
            }
        };
        tokio::select! {
            () = work => return,
            () = others.appeared() => {}
        }
    }
}

/// The result of `work`; `None` when it is stopped before.
async fn unless<T>(stop: &Stop, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        () = stop.wait() => None,
        done = work => Some(done),
    }
}
