//! The packet filter, spoken to by its own netlink messages: nf_tables, as much of it as the plugins need. A change is one
//! transaction in one system call.
//!
//! `mac_spoof` and `masquerade` write what the reference plugins write, name by name and expression by expression, because
//! those must be able to remove it, and the other way round. `ip_spoof` is ours alone. `iptables` is only recognised and
//! removed, and written when a configuration asks for it.
//!
//! The way to the kernel is `link::nft`, which knows nothing of CNI.

mod foreign;
mod ip_spoof;
mod iptables;
mod mac_spoof;
mod masquerade;
mod sys;
mod tag;

pub(crate) use ip_spoof::{AddressPins, Allowed};
pub(crate) use mac_spoof::{SpoofCheck, SpoofChecks};
pub(crate) use masquerade::{Backend, Masquerading, offers_inet};

pub(crate) use ip_spoof::{offered as offers_pins, sweep as sweep_pins};
pub(crate) use masquerade::sweep as sweep_masquerading;
