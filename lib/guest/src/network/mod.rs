//! Guests' networks inside a network namespace: what CNI plugins put there, and the way from there to the guest.
//!
//! ```text
//!  node                    namespace of the guest                                    QEMU
//!        ──veth──┐         masquerade:  eth0 ◄─nftables─► k6t-eth0 (10.0.2.1) ── tap0 ── 10.0.2.2
//!                └─ CNI ─► bridge:      podX-nic ── k6t-X ── tapX ── the network's address and MAC
//! ```
//!
//! - [`runtime`], [`cache`]: plugins executed as a runtime must, and their answers kept on disk in libcni's form. An entry
//!   is written before ADD, so that an interrupted one is found and undone. A pod's primary interface, made by the
//!   cluster's CNI, needs neither: [`observe`] reads what it has.
//! - [`plan`] decides about links, addresses and rules between the plugin's interface and the tap device, pure; [`wire()`]
//!   makes them. Done twice it changes nothing; interrupted and done again it converges.
//! - [`Nic::tap`] is what the launch document needs; the launcher answers DHCP itself, without a capability: the namespace
//!   lets every user have the ports from 67 on. [`Advertiser`] advertises a router where a guest has IPv6 behind masquerade.
//!
//! Names, addresses and links are upstream's (virt-launcher of KubeVirt 1.9), since tools look for them.
//!
//! Not here: which networks a guest is to have, the pod network of a single machine, DHCP packets, what a plugin does.

mod advertiser;
mod binding;
pub mod cache;
mod cni_result;
mod dhcp_config;
mod names;
mod netns_wiring;
pub mod plan;
mod process;
mod resolvers;
mod rules;
pub mod runtime;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use api::cni::Configuration;
use api::launch::Tap;
use ipnet::{Ipv4Net, Ipv6Net};
use link::{Mac, Namespace};

pub use advertiser::Advertiser;
pub use binding::{InvalidNetwork, V4, V6};
pub use cni_result::CniResult;
pub use names::{Names, mac, machine};
pub use netns_wiring::{check, has, loopback, observe, set_sysctl, unwire, wire};
pub use resolvers::{Resolvers, host_resolvers};

/// Paths of the runtime's files and programs.
#[derive(Clone, Debug)]
pub struct Places {
    /// Folder of what is kept: plugins' answers, addresses given. Private to root.
    pub state: PathBuf,
    /// Folder of namespaces; in `/run/netns` `ip netns` would see them.
    pub namespaces: PathBuf,
    /// Folders of plugins, in the order they are looked through.
    pub plugins: Vec<PathBuf>,
}

/// The wanted networks of a guest.
#[derive(Clone, Debug)]
pub struct WantedNetworks {
    /// The guest, as CNI and the namespace call it: letters, digits, `_`, `.`, `-`; unique on the machine, and the same
    /// until it is detached.
    pub container: String,
    /// Namespace of its object.
    pub namespace: String,
    /// Name of its object, and what DHCP calls it.
    pub name: String,
    /// Its interfaces; the first one is the primary.
    pub interfaces: Vec<Interface>,
    /// Its DNS resolvers, where a network names none.
    pub resolvers: Resolvers,
    /// The user and group that QEMU runs as, and its taps belong to.
    pub user: u32,
}

/// An interface that is wanted.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name in the spec.
    pub name: String,
    /// Its links.
    pub names: Names,
    /// The network.
    pub network: Configuration,
    /// How the guest is attached.
    pub binding: Binding,
    /// The guest's Ethernet address, asked of the network where the guest is to bear the network's.
    pub mac: Mac,
    /// Whether the tap device takes several queues.
    pub many_queues: bool,
}

/// How a guest is attached to what CNI made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Behind the interface's address.
    Masquerade {
        /// The network between: the first address is the gateway's, the second the guest's.
        v4: Ipv4Net,
        /// The same of IPv6, where the interface has an address of IPv6.
        v6: Ipv6Net,
        /// Ports that are forwarded; empty: all.
        ports: Vec<Port>,
    },
    /// By a bridge, with the interface's Ethernet and IP addresses.
    Bridge,
}

/// Ports that are forwarded: one, or several in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// TCP, else UDP.
    pub tcp: bool,
    /// The number of the first.
    pub number: u16,
    /// The number of the last.
    pub last: u16,
}

impl Port {
    /// A single port.
    pub fn one(tcp: bool, number: u16) -> Self {
        Self { tcp, number, last: number }
    }
}

/// The attached networks of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The namespace its launcher is to run in.
    pub namespace: PathBuf,
    /// Its interfaces, in the order they were wanted.
    pub nics: Vec<Nic>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// An interface that is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name in the spec.
    pub name: String,
    /// For the launch document.
    pub tap: Tap,
    /// For the status: its name in the namespace.
    pub pod_interface: String,
    /// For the status: addresses at which others reach the guest.
    pub addresses: Vec<IpAddr>,
    /// The network that a router is to be advertised on, by the daemon: [`Advertiser`].
    pub router: Option<Ipv6Net>,
}

/// Does `work` in a guest's namespace: starting its launcher there, for one.
///
/// # Errors
/// The namespace cannot be entered, or `work` fails.
pub fn inside<T: Send, E: From<link::Error> + Send>(
    namespace: &Path,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    Namespace::open(namespace)?.on_a_thread(work)
}
