//! MAC addresses and their owners: the rules of macpool in a cluster and of virt-node on one machine.
//!
//! - [`Mac`], [`Range`]: addresses and ranges of them.
//! - [`pool`]: the owner of each address, and the next free one.
//!
//! Not here: how either program keeps it.

pub mod pool;
mod range;

pub use ::mac::Mac;
pub use range::{Range, RangeError};
