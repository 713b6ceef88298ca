//! Guests' networks on one machine: a network namespace for each guest, what CNI plugins put into it, and the way from there
//! to the guest.
//!
//! ```text
//!  host                    namespace of the guest (under Places::namespaces)         QEMU
//!  fv0 ──veth──┐           masquerade:  eth0 ◄─nftables─► k6t-eth0 (10.0.2.1) ── tap0 ── 10.0.2.2
//!  (pod network)└─ CNI ──► bridge:      podX-nic ── k6t-X ── tapX ── the network's address and MAC
//!  any bridge … ┘
//! ```
//!
//! 1. **wanted** ([`WantedNetworks`], [`of_guest`]): from a spec and the objects it names, pure. The pod network is a CNI
//!    configuration like any other, generated ([`PodNetwork`]).
//! 2. **runtime** (`runtime`, `process`, `cache`): plugins executed as a runtime must, and what they answered kept on disk in
//!    libcni's form. An entry is written before ADD, so that what was killed in between is found and undone.
//! 3. **plan** decides from (wanted, found), pure, about what CNI does and about the links and rules between its interface and
//!    the tap device; **apply** does the former, **wire** the latter. [`attach`] twice changes nothing; killed at any line and
//!    called again it converges; [`detach`] leaves nothing.
//! 4. The guest's DHCP configuration is part of the launch document ([`Nic::tap`]); the launcher's worker answers
//!    (package virt-launcher), without any capability: the namespace opens its ports from 67 on to every user.
//!
//! Names, addresses and links are upstream's (virt-launcher of KubeVirt 1.9), since tools look for them. Its dummy interface
//! with the guest's address, next to a bridge binding, is left out where the kernel has none, and [`Attached::notes`]
//! reports it.
//!
//! How the daemon uses it, at each start of a guest and after each start of the machine:
//!
//! ```text
//!  link_plugins(folder, cni)                         once; Places::plugins begins with that folder
//!  PodNetwork::configuration ─► of_guest(spec, …) ─► attach ─► Attached
//!     nics[..].tap ─► resolve::Made::taps            nics[..].addresses ─► the status        notes ─► a condition
//!     inside(namespace, || start the launcher)       Advertiser::start for each nic that has a router
//!  Forwarder::start(pod_gateway(), …)                once, where host_resolvers() has local ones only
//!  attach with one more, or one less                 with the launcher's Attach and Detach of an interface
//!  detach(container)                                 when the launcher is gone
//! ```
//!
//! Not here: the callers and their timing (the daemon), DHCP packets, the plugins' work.

mod apply;
mod firewall;
mod forwarder;
mod machine_addresses;
mod pod;
mod spec;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use guest::network::{
    Advertiser, Attached, Binding, Configuration, Interface, Names, Nic, Places, Port, Resolvers,
    WantedNetworks, host_resolvers, inside,
};
use guest::network::{cache, runtime};
use link::Namespace;

use crate::error::{Error, Kind};
pub use firewall::closed;
pub use forwarder::Forwarder;
pub use pod::{PodNetwork, gateway as pod_gateway};
pub use spec::{GuestObjects, of_guest};

/// Addresses of a guest, by the name of the interface.
pub type Addresses = BTreeMap<String, Vec<IpAddr>>;

/// Gives a guest its networks, and takes away those that it has and that are not wanted any more. What it has stays as it is.
///
/// # Errors
/// Everything made in this call is undone; the error lists the rest.
pub fn attach(places: &Places, wanted: &WantedNetworks) -> Result<Attached, Error> {
    attach_again(places, wanted, &Addresses::new())
}

/// The same for a guest that had addresses before: each interface has its own again, unless another guest has them by now.
///
/// # Errors
/// See [`attach`].
pub fn attach_again(
    places: &Places,
    wanted: &WantedNetworks,
    previous: &Addresses,
) -> Result<Attached, Error> {
    apply::attach(places, wanted, previous)
}

/// Removes all networks from a guest whose launcher is gone. Nothing is left; a guest without any is no error.
///
/// # Errors
/// Every failure, after all was tried. Called again it goes on.
pub fn detach(places: &Places, container: &str) -> Result<(), Error> {
    apply::detach(places, container)
}

/// The namespace of a guest, while it is there.
pub fn namespace(places: &Places, container: &str) -> Option<PathBuf> {
    let path = runtime::namespace(places, container);
    Namespace::open(&path).is_ok().then_some(path)
}

/// Whether [`detach`] has anything to remove.
///
/// # Errors
/// The records cannot be read.
pub fn is_kept(places: &Places, container: &str) -> Result<bool, Error> {
    Ok(runtime::namespace(places, container).exists() || !cache::of(&places.state, container)?.is_empty())
}

/// Fails when a guest's networks are not as [`attach`] made them: links and addresses, and the plugins' CHECK.
///
/// # Errors
/// The differences.
pub fn check(places: &Places, wanted: &WantedNetworks) -> Result<(), Error> {
    apply::check(places, wanted)
}

/// Has the plugins of `network` remove the attachments of no guest (CNI's GC); nothing where its version has none. No attach
/// or detach may run at the same time.
///
/// # Errors
/// Every failure, after all was tried.
pub fn collect(places: &Places, network: &Configuration) -> Result<(), Error> {
    Ok(runtime::collect(places, network)?)
}

/// Whether guests could be attached to `network` now (CNI's STATUS); always where its version has none.
///
/// # Errors
/// Why not, in the plugin's words.
pub fn status(places: &Places, network: &Configuration) -> Result<(), Error> {
    Ok(runtime::status(places, network)?)
}

/// Makes a folder in which every plugin of the program `cni` is found by its name.
///
/// # Errors
/// When it cannot be made.
pub fn link_plugins(folder: &Path, cni: &Path) -> Result<(), Error> {
    let failed = |error| Error::with(Kind::System, format!("cannot make {}", folder.display()), error);
    std::fs::create_dir_all(folder).map_err(failed)?;
    for name in [
        "bandwidth",
        "bridge",
        "cnv-bridge",
        "cnv-tuning",
        "host-local",
        "loopback",
        "static",
        "tap",
        "tuning",
    ] {
        let file = folder.join(name);
        if std::fs::read_link(&file).is_ok_and(|to| to == cni) {
            continue;
        }
        // By a rename: another process may be about to start it.
        let new = folder.join(format!(".{name}"));
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        std::os::unix::fs::symlink(cni, &new).and_then(|()| std::fs::rename(&new, &file)).map_err(failed)?;
    }
    Ok(())
}
