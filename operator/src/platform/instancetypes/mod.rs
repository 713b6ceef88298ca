//! The instance types and preferences that every cluster has: present while a `KubeVirt` object asks for them, restored
//! when another client changes or deletes them, gone with the object.
//!
//! ```text
//! VirtualMachineClusterInstancetypes, …Preferences ─► Live ─► plan ─► steps ─► apply ─► create, replace, delete
//! ```
//!
//! [`plan`] decides, pure; [`apply`] does. The controller of `KubeVirt` ([`super::apply`]) calls it, so that its object is
//! not released before they are gone. Not here: the objects themselves ([`virt::instancetype::shipped`]), and what VMs
//! make of them.

pub(super) mod apply;
mod plan;
