//! Guests' networks as the daemon has them made: where everything is, which networks there are, and what of them outlives
//! a guest's start: names that are forwarded, routers that are advertised.
//!
//! Not here: how a guest is attached ([`crate::network`]).

use std::collections::BTreeMap;
use std::path::PathBuf;

use api::kubevirt::{InterfaceStatus, VirtualMachineInstance};
use api::multus::NetworkAttachmentDefinition;

use super::state::State;
use super::{findings, ids, process};
use crate::error::{Error, Kind};
use crate::network::{
    self, Addresses, Advertiser, Attached, Forwarder, GuestObjects, Places, PodNetwork, host_resolvers,
    pod_gateway,
};
use guest::found as programs;
use virt::resolve;

/// Networks that guests may name.
#[derive(Clone, Debug, Default)]
pub(super) struct Networks {
    /// The one that needs no name.
    pub(super) pod: PodNetwork,
    /// Those of all namespaces, by `NAMESPACE/NAME`.
    pub(super) definitions: BTreeMap<String, NetworkAttachmentDefinition>,
}

/// Paths of networks' files and programs.
fn places(state: &State) -> Places {
    Places {
        state: state.path("networks"),
        namespaces: state.path("netns"),
        plugins: vec![state.path("plugins"), PathBuf::from("/opt/cni/bin"), PathBuf::from("/usr/lib/cni")],
    }
}

/// The namespace of a guest, named by the UID of the run's owner, so that its resources stay over a reboot. `None`: it has
/// none.
pub(super) fn namespace(state: &State, owner: &str) -> Option<PathBuf> {
    network::namespace(&places(state), owner)
}

impl Networks {
    /// Gives a run its networks, with the addresses that it had before, or mends those that it has; `None`: it has no
    /// interface.
    ///
    /// # Errors
    /// A missing or invalid network, by path; a plugin's error; for a running guest, that its namespace is gone: it would
    /// not be in a new one.
    pub(super) fn attach(
        &self,
        state: &State,
        run: &VirtualMachineInstance,
        owner: &str,
        previous: &Addresses,
        running: bool,
    ) -> Result<Option<Attached>, Error> {
        if resolve::interfaces_of(&run.spec).iter().all(|one| one.state.as_deref() == Some("absent")) {
            return Ok(None);
        }
        if running && namespace(state, owner).is_none() {
            let text = "the guest's network namespace is gone: restart it to have a new one";
            return Err(Error::new(Kind::System, text));
        }
        let places = places(state);
        network::link_plugins(&state.path("plugins"), &program()?)?;
        let pod = self.pod.configuration(&places.state)?;
        let resolvers = host_resolvers();
        let given = GuestObjects {
            namespace: run.metadata.namespace.as_deref().unwrap_or_default(),
            name: &run.metadata.name,
            container: owner,
            pod: &pod,
            networks: &self.definitions,
            resolvers: &resolvers,
            user: state.ids().of(&ids::vm(owner))?.uid,
            state: &places.state,
        };
        let wanted =
            network::of_guest(&run.spec, &given, "spec").map_err(|found| findings::invalid(&found))?;
        network::attach_again(&places, &wanted, previous).map(Some)
    }
}

/// The plugins' program, by its whole path.
fn program() -> Result<PathBuf, Error> {
    let found = process::program("cni");
    let found = if found.is_absolute() { Some(found) } else { programs::find("cni") };
    found.ok_or_else(|| {
        Error::new(Kind::System, "the program cni is neither next to virt-node nor on the PATH: install it there (make cni builds it)")
    })
}

/// Takes all networks from a guest.
pub(super) fn detach(state: &State, owner: &str) -> Result<(), Error> {
    network::detach(&places(state), owner)
}

/// Whether anything is kept of a guest's networks, as after a boot; what cannot be read is.
pub(super) fn kept(state: &State, owner: &str) -> bool {
    network::is_kept(&places(state), owner).unwrap_or(true)
}

/// The addresses of the interfaces of a guest.
pub(super) fn addresses(attached: &Attached) -> Addresses {
    attached.nics.iter().map(|nic| (nic.name.clone(), nic.addresses.clone())).collect()
}

/// The attached networks, as text.
pub(super) fn text(attached: &Attached) -> String {
    let of = |nic: &network::Nic| {
        let addresses: Vec<String> = nic.addresses.iter().map(ToString::to_string).collect();
        let addresses = if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") };
        format!("{} has {addresses} ({})", nic.name, nic.tap.mac)
    };
    attached.nics.iter().map(of).collect::<Vec<_>>().join("; ")
}

/// The interfaces in a run's status.
pub(super) fn statuses(attached: &Attached) -> Vec<InterfaceStatus> {
    let of = |nic: &network::Nic| {
        let addresses: Vec<String> = nic.addresses.iter().map(ToString::to_string).collect();
        InterfaceStatus {
            name: Some(nic.name.clone()),
            ip_address: addresses.first().cloned(),
            ip_addresses: addresses,
            mac: Some(nic.tap.mac.clone()),
            pod_interface_name: Some(nic.pod_interface.clone()),
            info_source: Some("domain".to_owned()),
            link_state: Some("up".to_owned()),
            ..InterfaceStatus::default()
        }
    };
    attached.nics.iter().map(of).collect()
}

/// Network services of guests that live as long as the daemon.
#[derive(Debug, Default)]
pub(super) struct Services {
    forwarder: Option<Forwarder>,
    advertisers: BTreeMap<String, Vec<Advertiser>>,
}

impl Services {
    /// Forwards names where the machine's resolvers are its own and the pod network is there, and only then.
    ///
    /// # Errors
    /// Another server listens on the gateway's address.
    pub(super) fn forward_names(&mut self) -> Result<(), Error> {
        let wanted = match (host_resolvers().local.first(), pod_gateway()?) {
            (Some(local), Some(gateway)) => Some((gateway, *local)),
            (_, _) => None,
        };
        if self.forwarder.as_ref().map(Forwarder::between_whom) != wanted {
            self.forwarder = None;
            self.forwarder = wanted.map(|(gateway, local)| Forwarder::start(gateway, local)).transpose()?;
        }
        Ok(())
    }

    /// Advertises routers to a guest.
    ///
    /// # Errors
    /// Its namespace cannot be entered.
    pub(super) fn advertise(&mut self, owner: &str, attached: &Attached) -> Result<(), Error> {
        let mut advertisers = Vec::new();
        for nic in &attached.nics {
            advertisers.extend(Advertiser::start(&attached.namespace, nic)?);
        }
        self.advertisers.insert(owner.to_owned(), advertisers);
        Ok(())
    }

    /// A guest is gone.
    pub(super) fn forget(&mut self, owner: &str) {
        self.advertisers.remove(owner);
    }
}
