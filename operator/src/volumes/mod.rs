//! Which node makes a claim's volume: the operator writes it on the claim, and that node's agent, which watches only claims
//! with its label, does the rest. No agent watches the claims of a cluster.
//!
//! ```text
//! claim, WaitForFirstConsumer: the scheduler's choice (annotation selected-node) ─┐
//! claim, Immediate:            a node with room, by CSIStorageCapacity ───────────┼─► label ferrovirt.io/node=N
//! PV and bound claim:          the PV's node affinity ────────────────────────────┤
//! PV of a shared pool:         a node that has the pool ──────────────────────────┘
//! ```
//!
//! While the driver's DaemonSet has stock csi-provisioner, that one chooses the nodes of Immediate claims; labels are
//! written in both cases, so that a switch finds them.
//!
//! - [`seen`]: what is read of the objects. [`plan`]: what is written (pure). [`control`]: caches, queue, writes.
//! - [`attempts`]: pauses between the choices for one claim.
//! - [`sources`]: sources of copies; [`guards`]: their finalizers.
//! - [`loss`]: nodes that are away, and what an administrator gives up (pure). [`release`]: the writes of that.
//! - [`snapshots`]: the snapshot controller.
//!
//! Not here: making volumes (virt-agent), DataVolumes and populators ([`crate::storage`]).

mod attempts;
pub mod control;
mod guards;
mod loss;
pub mod plan;
mod release;
pub mod seen;
pub mod snapshots;
mod sources;

use cluster::Stop;

use crate::context::Context;

/// Runs the controllers of volumes until the stop is set.
pub async fn run(context: Context, stop: Stop) {
    let Context { client, events, .. } = context;
    tokio::join!(
        control::run(client.clone(), events.clone(), stop.wait()),
        snapshots::run(client, events, stop.clone())
    );
}
