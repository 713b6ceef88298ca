//! Clones: authorization and strategy.
//!
//! - [`authorize`]: which permissions a clone from another namespace needs.
//! - [`cloned`]: what a DataVolume is cloned from.
//! - [`choose`]: CSI clone, snapshot or copy, and why the storage's own way cannot be used.
//! - [`token`]: the content of a token for a clone.
//! - [`reference`]: grants of a namespace's owners to others. [`permit`]: rights and grants together.
//! - [`plan`]: the next step of a clone.

pub mod authorize;
pub mod choose;
pub mod cloned;
pub mod permit;
pub mod plan;
pub mod reference;
pub mod sender;
pub mod token;
