//! The packet filter, spoken to by its own netlink messages: nf_tables, as much of it as the plugins need. A change is one
//! transaction in one system call, and costs the same however many rules there are.
//!
//! `spoof` and `masquerade` write what the reference plugins write, name by name and expression by expression, because
//! those must be able to remove it, and the other way round. `iptables` is only recognised and removed, and written when a
//! configuration asks for it.
//!
//! `attribute`, `expression`, `batch` and `filter` are the way to the kernel and know nothing of CNI.

mod attribute;
mod batch;
mod expression;
mod filter;
mod iptables;
mod masquerade;
mod spoof;

pub(crate) use filter::Filter;
pub(crate) use masquerade::{Backend, Masquerading};
pub(crate) use spoof::{SpoofCheck, SpoofChecks};

pub(crate) use masquerade::sweep as sweep_masquerading;
