//! Which node makes a claim's volume: the operator writes it on the claim, and that node's agent, which watches only claims
//! with its label, does the rest. No agent watches the claims of a cluster.
//!
//! ```text
//! claim, WaitForFirstConsumer: the scheduler's choice (annotation selected-node) ─┐
//! claim, Immediate:            a node with room, by CSIStorageCapacity ───────────┼─► label ferrovirt.io/node=N
//! PV and bound claim:          the PV's node affinity ────────────────────────────┘
//! ```
//!
//! While the driver's DaemonSet has stock csi-provisioner, that one chooses the nodes of Immediate claims; labels are
//! written in both cases, so that a switch finds them.
//!
//! - [`seen`]: what is read of the objects. [`plan`]: what is written (pure). [`control`]: caches, queue, writes.
//!
//! Not here: making volumes (virt-agent), DataVolumes and populators ([`crate::storage`]).

pub mod control;
pub mod plan;
pub mod seen;
