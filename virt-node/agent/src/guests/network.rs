//! The network of a guest in its launcher pod: between the pod's interfaces, which CNI plugins made, and the tap devices.
//!
//! ```text
//! launcher's process ─► its network namespace ─► secondary networks attached (networks) ─► wired (lib/guest) ─► taps
//! ```
//!
//! Wiring makes nothing on the node, and nothing of it has to be undone: the namespace ends with the pod. What an
//! interface had that the cluster's plugins or Multus made is kept in a file until then, because a guest with a bridge
//! takes its addresses and routes over.
//!
//! Not here: DHCP (the launcher answers it), ADD and DEL ([`crate::networks`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use api::kubevirt::{InterfaceStatus, VirtualMachineInstanceSpec};
use api::launch::{Interface as Launched, Tap};
use guest::network::{
    self as wiring, Advertiser, Binding, CniResult, Configuration, Interface, InvalidNetwork, Names, Nic,
    Resolvers, WantedNetworks,
};
use link::{Namespace, interface_mac};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use virt::live::is_absent;
use virt::resolve::{interfaces_of, queues_of};

use super::pod::Pod;
use crate::error::{Error, Kind, Result};
use crate::networks::{Attached, Networks, RequestedNetwork, Target};
use crate::pods::PodDirectory;
use crate::pods::process::Process;

/// The note of what an interface had, in the kubelet's directory of the pod: beginning and end of its name.
const NOTE: (&str, &str) = ("ferrovirt-network", ".json");
/// The name of the pod network in messages.
const POD_NETWORK: &str = "pod";
/// Longest resolv.conf that is read, in bytes.
const RESOLVERS_MAX: u64 = 64 << 10;

/// The network of a guest, advertised to it while this value lives.
#[derive(Debug, Default)]
pub(crate) struct Network {
    nics: Vec<Nic>,
    _advertisers: Vec<Advertiser>,
}

impl Network {
    /// Statuses of all interfaces.
    pub(crate) fn statuses(&self, launched: &[Launched]) -> Vec<InterfaceStatus> {
        launched.iter().map(|one| self.status(one)).collect()
    }

    /// The tap devices, by the names of the interfaces in the spec.
    pub(crate) fn taps(&self) -> BTreeMap<String, Tap> {
        self.nics.iter().map(|nic| (nic.name.clone(), nic.tap.clone())).collect()
    }

    /// The status of an interface. Its name in the guest is known to the guest's agent only.
    pub(crate) fn status(&self, launched: &Launched) -> InterfaceStatus {
        let nic = self.nics.iter().find(|nic| nic.name == launched.name);
        let addresses = nic.map(|nic| nic.addresses.as_slice()).unwrap_or_default();
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        InterfaceStatus {
            name: Some(launched.name.clone()),
            ip_address: addresses.first().cloned(),
            ip_addresses: addresses,
            mac: Some(launched.mac.clone()),
            pod_interface_name: nic.map(|nic| nic.pod_interface.clone()),
            queue_count: Some(launched.queues.unwrap_or(1)),
            info_source: Some(source(nic).to_owned()),
            link_state: Some(if launched.link_up { "up" } else { "down" }.to_owned()),
            ..InterfaceStatus::default()
        }
    }
}

/// Where the status has an interface from, in upstream's words.
fn source(nic: Option<&Nic>) -> &'static str {
    match nic {
        Some(nic) if nic.pod_interface != Names::primary().pod => "domain, multus-status",
        Some(_) | None => "domain",
    }
}

/// Attaches a guest's pod to its networks and wires them, or what is missing of it. `launcher` is the first process of
/// the pod.
///
/// # Errors
/// [`Kind::Content`]: the guest asks for a network that cannot be attached; [`Kind::Launcher`]: the launcher is gone;
/// [`Kind::Untrusted`]: its pod has no network namespace of its own, or its annotations are false;
/// [`Kind::System`]: the namespace is not as a CNI plugin leaves it, a plugin fails, or the kernel refuses a change;
/// [`Kind::Cluster`], [`Kind::Stale`]: the API server does not give a definition or take network-status.
pub(crate) fn wire(
    networks: &Networks,
    spec: &VirtualMachineInstanceSpec,
    namespace: &str,
    name: &str,
    pod: &Pod,
    directory: &PodDirectory,
    launcher: &Process,
) -> Result<Network> {
    let Asks { primary, secondary, default } = asks(spec, directory.uid())?;
    if primary.is_none() && secondary.is_empty() {
        return Ok(Network::default());
    }
    if pod.host_network {
        let text = "the launcher pod uses the node's network namespace, which is never changed";
        return Err(Error::new(Kind::Untrusted, text));
    }
    let path = launcher.network();
    let wired = || {
        let observed = |interface: &str| outcome(directory, &path, interface);
        let elsewhere = launcher.network_by_number();
        let target = Target {
            namespace,
            name: &pod.name,
            uid: directory.uid(),
            status: pod.network_status.as_deref(),
            network: &path,
            network_elsewhere: &elsewhere,
        };
        networks.has_default(&target, default.as_deref())?;
        let attached = networks.attach(&target, &secondary, &observed)?;
        let (mut interfaces, mut outcomes) = (Vec::new(), Vec::new());
        if let Some(interface) = primary {
            outcomes.push(observed(&interface.names.pod)?);
            interfaces.push(interface);
        }
        for Attached { interface, outcome } in attached {
            interfaces.push(interface);
            outcomes.push(outcome);
        }
        let wanted = WantedNetworks {
            container: directory.uid().to_owned(),
            namespace: namespace.to_owned(),
            name: spec.hostname.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| name.to_owned()),
            interfaces,
            resolvers: resolvers(spec, namespace, launcher),
            user: api::names::QEMU_ID,
        };
        let begun = Instant::now();
        let attached = wiring::wire(&wanted, &outcomes, directory.uid(), &path)?;
        let microseconds = begun.elapsed().as_micros();
        tracing::debug!(pod = directory.uid(), microseconds, "the network is wired");
        for note in &attached.notes {
            tracing::debug!(pod = directory.uid(), note, "a note on the network");
        }
        let mut advertisers = Vec::new();
        for nic in &attached.nics {
            advertisers.extend(Advertiser::start(&path, nic)?);
        }
        Ok(Network { nics: attached.nics, _advertisers: advertisers })
    };
    wired().map_err(|error: Error| {
        error.context(format!("the network of the launcher pod {} cannot be wired", directory.uid()))
    })
}

/// The networks that a guest requests.
#[derive(Debug, Default)]
struct Asks {
    /// The interface on the pod network, or on what Multus put in its place.
    primary: Option<Interface>,
    secondary: Vec<RequestedNetwork>,
    /// The network that Multus was to put in the pod network's place.
    default: Option<String>,
}

/// The networks that a guest requests, in the order of its interfaces.
fn asks(spec: &VirtualMachineInstanceSpec, pod: &str) -> Result<Asks> {
    let invalid = |path: String, text: &str| Error::new(Kind::Content, format!("{path}: {text}"));
    let mut asks = Asks::default();
    for (at, one) in interfaces_of(spec).iter().enumerate().filter(|(_, one)| !is_absent(one)) {
        let path = |field: &str| format!("spec.domain.devices.interfaces[{at}].{field}");
        let position = spec.networks.iter().position(|network| network.name == one.name);
        let network = position.and_then(|position| spec.networks.get(position));
        let at_network = |field: &str| format!("spec.networks[{}].{field}", position.unwrap_or(0));
        let binding = Binding::of(one, network)
            .map_err(|InvalidNetwork { field, text }| invalid(at_network(&format!("pod.{field}")), &text))?;
        let mac = match one.mac_address.as_deref().filter(|text| !text.is_empty()) {
            None => wiring::mac(pod, &[&one.name]),
            Some(text) => {
                interface_mac(text).map_err(|error| invalid(path("macAddress"), &error.to_string()))?
            }
        };
        let many_queues = queues_of(spec, one).is_some();
        let multus = network.and_then(|network| network.multus.as_ref());
        let default = multus.filter(|multus| multus.is_default == Some(true));
        if let (Some(multus), None) = (multus, default) {
            if binding != Binding::Bridge {
                return Err(invalid(path("masquerade"), "only for the pod network; use bridge here"));
            }
            asks.secondary.push(RequestedNetwork {
                name: one.name.clone(),
                path: at_network("multus.networkName"),
                network: multus.network_name.clone(),
                mac,
                many_queues,
            });
            continue;
        }
        if network.is_some_and(|network| network.pod.is_none() && network.multus.is_none()) {
            return Err(invalid(at_network("name"), "needs pod or multus"));
        }
        if asks.primary.is_some() {
            return Err(invalid(path("name"), "only one interface can be on the pod network"));
        }
        asks.default = default.map(|multus| multus.network_name.clone());
        let plugin = format!(r#"{{"cniVersion": "1.0.0", "type": "{POD_NETWORK}"}}"#);
        let configuration = Configuration::read(&plugin, POD_NETWORK);
        asks.primary = Some(Interface {
            name: one.name.clone(),
            names: Names::primary(),
            network: configuration.map_err(|error| Error::new(Kind::System, error))?,
            binding,
            mac,
            many_queues,
        });
    }
    Ok(asks)
}

/// The state of an interface before it was wired.
#[derive(Serialize, Deserialize)]
struct Note {
    /// Number of the network namespace: another one has other interfaces.
    namespace: u64,
    /// In the form of a plugin's answer.
    result: Value,
}

/// The result of others' CNI plugins for an interface of the pod: observed once, before anything is changed, and kept.
fn outcome(directory: &PodDirectory, path: &Path, interface: &str) -> Result<CniResult> {
    let gone = || Error::new(Kind::Launcher, "the launcher's process has ended");
    let namespace = Namespace::find(path)?.ok_or_else(gone)?;
    if namespace.is(&Namespace::ours()?) {
        let text = "the launcher is in the agent's network namespace, which is never changed";
        return Err(Error::new(Kind::Untrusted, text));
    }
    let (begin, end) = NOTE;
    let name = match interface {
        primary if primary == Names::primary().pod => format!("{begin}{end}"),
        other => format!("{begin}-{other}{end}"),
    };
    // A note that cannot be read was torn by a crash of the node, which no pod's namespace survives.
    let note = directory.note(&name)?.and_then(|note| serde_json::from_slice::<Note>(&note).ok());
    if let Some(note) = note.filter(|note| note.namespace == namespace.number()) {
        return Ok(CniResult::read(&note.result, interface));
    }
    let outcome = wiring::observe(path, interface)?;
    let note = Note { namespace: namespace.number(), result: outcome.answer(interface) };
    let note = serde_json::to_vec(&note).map_err(|error| Error::system("cannot write a record", error))?;
    directory.keep_note(&name, &note)?;
    Ok(outcome)
}

/// The guest's DNS configuration: the pod's, with the domain of its subdomain first, where it has one.
fn resolvers(spec: &VirtualMachineInstanceSpec, namespace: &str, launcher: &Process) -> Resolvers {
    let text = launcher.directory("/etc").and_then(|etc| Ok(etc.read("resolv.conf", RESOLVERS_MAX)?));
    let text = text.unwrap_or_else(|error| {
        tracing::warn!(error = error.chain(), "the launcher pod's resolv.conf cannot be read");
        None
    });
    with_subdomain(
        Resolvers::parse(&String::from_utf8_lossy(&text.unwrap_or_default())),
        spec.subdomain.as_deref(),
        namespace,
    )
}

fn with_subdomain(mut resolvers: Resolvers, subdomain: Option<&str>, namespace: &str) -> Resolvers {
    let service = format!("{namespace}.svc.");
    let domain = resolvers.search.iter().find(|domain| domain.starts_with(&service));
    if let (Some(subdomain), Some(domain)) = (subdomain.filter(|name| !name.is_empty()), domain) {
        let own = format!("{subdomain}.{domain}");
        resolvers.search.insert(0, own);
    }
    resolvers
}

#[cfg(test)]
mod tests;
