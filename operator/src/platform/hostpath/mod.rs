//! `HostPathProvisioner`: the CSI driver on the nodes, and its pools.
//!
//! ```text
//!  HostPathProvisioner ─► check, render ─► apply ─► CSIDriver, DaemonSet
//!  DaemonSet ────────────────────► status ─► conditions, versions
//!  deletion ─► PersistentVolumes of the driver: waits for them ─► CSIDriver and DaemonSet go, then the object
//! ```
//!
//! Nothing of the driver exists before there is an object. The annotation `ferrovirt.io/sidecars: stock` puts stock sidecars
//! next to the driver; without it the node agent and the operator ([`crate::volumes`]) make the volumes.
//!
//! - [`check`]: rules of the object. [`render`]: what is deployed. [`status`] reports. All pure.
//! - [`apply`] does. [`metrics`].

pub mod apply;
pub mod check;
pub mod metrics;
pub mod render;
pub mod status;
