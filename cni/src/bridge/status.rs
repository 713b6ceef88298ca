//! STATUS: whether an ADD could succeed now, asked without changing anything, and whether what is attached suffers too.

use crate::bridge::addressing::{Addressing, gateway_step};
use crate::bridge::config::Config;
use crate::bridge::plan::BridgeStep;
use crate::bridge::undo::find;
use crate::bridge::{identity, lock, plan};
use crate::check_node;
use crate::error::{Error, Kind};
use crate::ipam::Ipam;
use crate::netlink::{Address, Link, Router, VlanRange};
use crate::nft::{SpoofCheck, offers_pins};
use crate::protocol::{Call, Outcome};

/// The most ports the kernel gives a bridge: BR_MAX_PORTS of net/bridge/br_private.h, of which number 0 is none.
const MOST_PORTS: usize = 1023;

/// Looks. What an ADD would put right by itself, a bridge that is missing or down, is no reason.
///
/// # Errors
/// [`Kind::Unavailable`] with the reason why an ADD would fail, [`Kind::Impaired`] when existing attachments of the network
/// are affected too; or the IPAM plugin's error.
pub(super) fn status(config: &Config, call: &Call) -> Result<(), Error> {
    let mut host = Router::open()?;
    let bridge = find(&mut host, &config.bridge)?;
    let unavailable = |error| not_now(Kind::Unavailable, call, error);
    let impaired = |error| impaired(call, error);
    let step = plan::bridge_step(config, bridge.as_ref()).map_err(impaired)?;
    let filters = match step {
        BridgeStep::Create(new) => new.vlan_filtering,
        BridgeStep::Use { filter_vlans, .. } => filter_vlans,
    };
    if filters {
        check_node::offers_vlan_filtering().map_err(unavailable)?;
    }
    if let Some(bridge) = &bridge {
        of_uplinks(config, bridge, &mut host).map_err(impaired)?;
    }
    // The ports of all bridges are listed in a third of the time that those of one take.
    if let Some(bridge) = bridge
        && host.count(Link::list_ports())? >= MOST_PORTS
        && host.count(Link::list(Some(bridge.index)))? >= MOST_PORTS
    {
        return Err(unavailable(Error::new(Kind::Kernel, full(&bridge.name))));
    }
    // A defect of the packet filter affects existing attachments too.
    if config.spoof_check && !(config.lock_port && lock::offered()) {
        SpoofCheck::offered().map_err(impaired)?;
    }
    if config.pin_addresses {
        offers_pins().map_err(impaired)?;
    }
    if let Some(backend) = config.masquerade {
        backend.offered().map_err(impaired)?;
    }
    let Some(ipam) = &config.ipam else { return Ok(()) };
    of_ipam(ipam, call)?;
    let lease = ipam.predicted(call).map_err(unavailable)?;
    let addressing = Addressing::make(config, &lease, &Outcome::default()).map_err(unavailable)?;
    of_gateway(config, &addressing, &mut host).map_err(impaired)
}

/// Whether the VLANs leave the node: a bridge may have no uplink, but one that has some must have each VLAN, or a part of
/// each range, at one of them.
fn of_uplinks(config: &Config, bridge: &Link, host: &mut Router) -> Result<(), Error> {
    let Some(vlans) = config.vlans.as_ref().filter(|vlans| vlans.any()) else { return Ok(()) };
    let mut ports = Link::all(&host.ask(Link::list_vlans())?);
    // The kernel lists the bridge itself as a port, too.
    ports.retain(|port| {
        port.master == Some(bridge.index) && port.index != bridge.index && !identity::is_host_name(&port.name)
    });
    let mut uplinks = Vec::new();
    for port in ports {
        let link = find(host, &port.name)?;
        uplinks.extend(link.filter(|link| !link.is_veth() && !link.is_tun()).map(|_| port));
    }
    let access = vlans.access.map(|vlan| VlanRange { first: vlan, last: vlan, native: true });
    let carries = |wanted: &VlanRange| {
        let mut all = uplinks.iter().flat_map(|uplink| &uplink.vlans);
        all.any(|vlan| vlan.first <= wanted.last && wanted.first <= vlan.last)
    };
    match access.iter().chain(&vlans.trunk).find(|wanted| !carries(wanted)) {
        Some(VlanRange { first, .. }) if !uplinks.is_empty() => {
            let names: Vec<&str> = uplinks.iter().map(|uplink| uplink.name.as_str()).collect();
            let (name, uplink) = (&bridge.name, names.join(", "));
            Err(Error::mismatch(format!(
                "VLAN {first} is at no uplink of the bridge {name}: {uplink}; \"bridge vlan add dev {} vid {first}\" adds it",
                names.first().unwrap_or(&"")
            )))
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether the bridge, or its link in the VLAN, could have the gateway's addresses. One that is not there yet could.
fn of_gateway(config: &Config, addressing: &Addressing, host: &mut Router) -> Result<(), Error> {
    let name = plan::gateway_link(config).unwrap_or_else(|| config.bridge.clone());
    let Some(link) = find(host, &name)? else { return Ok(()) };
    // Where this is refused, all addresses are listed.
    let _ = host.strict();
    let mut found = Address::all(&host.ask(Address::list(Some(link.index)))?);
    found.retain(|address| address.link == link.index);
    let wanted = &addressing.gateways;
    wanted
        .iter()
        .try_for_each(|address| gateway_step(&name, &found, *address, wanted, config.force_address).map(drop))
}

fn of_ipam(ipam: &Ipam, call: &Call) -> Result<(), Error> {
    ipam.locate(call).map_err(|error| not_now(Kind::Unavailable, call, error))?;
    ipam.status(call)
}

/// The error about a bridge without a free port.
pub(super) fn full(bridge: &str) -> String {
    format!("the bridge {bridge} has {MOST_PORTS} ports and takes no more")
}

/// The error of a defect: another code if pods of the network are attached, which it affects, too.
fn impaired(call: &Call, error: Error) -> Error {
    let listed = Router::open().and_then(|mut host| host.ask(Link::list(None)));
    let links = listed.map(|messages| Link::all(&messages)).unwrap_or_default();
    let suffers = links.iter().any(|link| identity::is_of(&link.alias, &call.network));
    not_now(if suffers { Kind::Impaired } else { Kind::Unavailable }, call, error)
}

fn not_now(kind: Kind, call: &Call, error: Error) -> Error {
    Error::with(kind, format!("network {} cannot be attached to", call.network), error)
}
