//! `HyperConverged`: the one object that installs and configures the platform.
//!
//! ```text
//!  HyperConverged, nodes ─► render ─► wanted children ─┐
//!  KubeVirt, CDI, NetworkAddonsConfig, SSP ────────────┴─► plan ─► apply ─► children, events, metrics
//!                                                          status ─► conditions, versions, related objects
//! ```
//!
//! - [`render`]: the children; one file each: [`kubevirt`], [`cdi`], [`network`], [`ssp`]. [`patch`]: annotations that
//!   change them. [`check`]: rules of the object, for admission. [`effect`]: settings without an effect.
//! - [`plan`] decides, [`apply`] does (`optional`: objects of kinds that not every cluster has; `related`: installed
//!   objects), [`status`] reports. [`read`]: what is read of other objects. [`metrics`].
//!
//! Children are complete objects of their own: without HyperConverged they work alone, and their controllers never look
//! at it. Not here: what the children do.

pub mod apply;
mod cdi;
pub mod check;
pub mod effect;
pub(crate) mod input;
mod kubevirt;
pub mod metrics;
mod network;
mod optional;
pub mod patch;
pub mod plan;
pub mod read;
mod related;
pub mod render;
mod ssp;
pub mod status;

pub(super) use plan::digest;

#[cfg(test)]
mod tests;
