//! MAC addresses and their owners: the rules of macpool in a cluster and of virt-node on one machine.
//!
//! - [`Mac`], [`Range`]: addresses as 48-bit integers, and ranges of them.
//! - [`pool`]: the owner of each address, and the next free one.
//!
//! Not here: how either program keeps it, and the bytes of a link (lib/link has its own, since libraries see none of ours).

mod mac;
pub mod pool;

pub use mac::{Mac, Range, RangeError};
