//! STATUS: whether an ADD could succeed now, asked without changing anything, and whether what is attached suffers too.

use crate::bridge::addressing::{Addressing, gateway_step};
use crate::bridge::apply::find;
use crate::bridge::config::Config;
use crate::bridge::plan::BridgeStep;
use crate::bridge::{identity, lock, plan};
use crate::check_node;
use crate::error::{Error, Kind};
use crate::ipam::Ipam;
use crate::netlink::{Address, Link, Router};
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
    let links = Link::all(&host.ask(Link::list(None))?);
    let unavailable = |error| not_now(Kind::Unavailable, call, error);
    let impaired = |error| {
        let suffers = links.iter().any(|link| identity::is_of(&link.alias, &call.network));
        not_now(if suffers { Kind::Impaired } else { Kind::Unavailable }, call, error)
    };
    let step = plan::bridge_step(config, bridge.as_ref()).map_err(impaired)?;
    let filters = match step {
        BridgeStep::Create(new) => new.vlan_filtering,
        BridgeStep::Use { filter_vlans, .. } => filter_vlans,
    };
    if filters {
        check_node::offers_vlan_filtering().map_err(unavailable)?;
    }
    if let Some(bridge) = bridge {
        let ports = links.iter().filter(|link| link.master == Some(bridge.index)).count();
        if ports >= MOST_PORTS {
            return Err(unavailable(Error::new(Kind::Kernel, full(&bridge.name))));
        }
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

fn not_now(kind: Kind, call: &Call, error: Error) -> Error {
    Error::with(kind, format!("network {} cannot be attached to", call.network), error)
}
