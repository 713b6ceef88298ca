//! `HostPathProvisioner`: the CSI driver on the nodes, and its pools.
//!
//! ```text
//!  HostPathProvisioner ─► check, render ─► apply ─► CSIDriver, DaemonSet
//!                                members ─► pools ─► pool on claims: a claim, a Deployment and its pod per node
//!  DaemonSet, Deployments, claims ────► status ─► conditions, versions, pools
//!  deletion ─► PersistentVolumes of the driver: waits for them ─► pools are unmounted, CSIDriver and DaemonSet go, then
//!                                                                 the object
//!  pool that is not asked for any more ─► stays while it has PersistentVolumes ([`volumes`])
//! ```
//!
//! Nothing of the driver exists before there is an object. The annotation `ferrovirt.io/sidecars: stock` puts stock sidecars
//! next to the driver; without it the node agent and the operator ([`crate::volumes`]) make the volumes.
//!
//! - [`check`]: rules of the object. [`render`]: what is deployed. [`members`]: pods of pools. [`status`] reports. All pure.
//! - [`apply`], [`pools`] and [`metadata`] (changed blocks) do. [`volumes`]: PersistentVolumes and the pools that they keep;
//!   [`legacy`], [`removal`]: those of upstream's provisioner without CSI. [`metrics`].

pub mod apply;
pub mod check;
pub mod legacy;
pub mod members;
mod metadata;
pub mod metrics;
mod pools;
mod removal;
pub mod render;
pub mod status;
pub mod volumes;
