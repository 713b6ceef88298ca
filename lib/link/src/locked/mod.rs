//! Locked ports of bridges: the address that may send from such a port is fixed to it by static, sticky entries of the
//! forwarding database, one in each VLAN of the port.
//!
//! ```text
//! ports, their VLANs, entries ─► plan ─► entries made in VLANs that were joined, removed in VLANs that were left
//! ```
//!
//! Not here: which ports are locked, and for which address.

mod apply;
mod plan;

pub use apply::{Taken, entry, fix, follow};
