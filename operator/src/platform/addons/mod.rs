//! `NetworkAddonsConfig`: the network components of the platform.
//!
//! ```text
//!  NetworkAddonsConfig, what was applied before ─► check, render ─► MAC pool ─► apply ─► objects
//!  Deployment, DaemonSet, nodes ───────────────────────────────────────► status ─► conditions, versions, containers
//! ```
//!
//! Multus and the bridge plugin are parts of the node agent, which is installed with the platform: it attaches guests to
//! their networks, installs the plugins and marks bridges. The MAC pool is deployed here. Other components are named in
//! the condition `Degraded`.
//!
//! - [`check`]: rules of the object. [`render`]: what is deployed. [`status`] reports. All pure.
//! - [`apply`] does. [`metrics`].

pub mod apply;
pub mod check;
pub mod metrics;
pub mod render;
pub mod status;
