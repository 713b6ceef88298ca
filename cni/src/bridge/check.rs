//! CHECK: whether an attachment still is what its ADD answered. Looked at from the host, so that a pod's end that
//! KubeVirt renamed and replaced by a dummy is found too; what later plugins of a chain may change is not compared.

use ipnet::IpNet;

use crate::bridge::apply::larger_mtu;
use crate::bridge::config::Config;
use crate::bridge::identity::{self, NAMES};
use crate::bridge::lock;
use crate::bridge::plan::{gateway_link, locked_in};
use crate::bridge::undo::{find, present};
use crate::error::{Error, Kind};
use crate::netlink::{Address, KernelRoute, Link, PortSettings, Router};
use crate::nft::{AddressPins, Allowed, Masquerading, SpoofCheck};
use crate::protocol::{Call, Interface, IpConfig, Outcome};
use link::Namespace;
use link::nft::Filter;

/// Checks.
///
/// # Errors
/// [`Kind::Mismatch`] with what differs.
pub(crate) fn check(config: &Config, call: &Call) -> Result<(), Error> {
    let previous = Outcome::previous(&call.config, call.version)?
        .ok_or_else(|| Error::config("CHECK needs \"prevResult\""))?;
    let home = Namespace::ours()?;
    let pod = Namespace::open(call.namespace.as_deref().unwrap_or_else(|| "".as_ref()))?;
    let sandbox = call.namespace.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let name = &call.attachment.interface;
    let pod_end = previous
        .interfaces
        .iter()
        .find(|interface| interface.name == *name && interface.sandbox == sandbox)
        .ok_or_else(|| Error::mismatch(format!("\"prevResult\" has no {name} in {sandbox}")))?;

    let mut host = Router::open()?;
    let bridge = check_bridge(config, &previous, &mut host)?;
    let host_end = host_end(config, call, &previous, &mut host)?;
    check_port(config, &bridge, &host_end)?;
    if config.lock_port && lock::is_locked(&host_end) {
        let vlans = locked_in(config, &bridge);
        lock::check(&host_end, pod_end, vlans.as_deref(), &mut host)?;
    } else if config.spoof_check {
        let check = SpoofCheck::new(&call.network, &call.attachment);
        check.check(&mut Filter::open()?, &host_end.name)?;
    }
    let mut inside = Router::open_in(&pod, &home)?;
    check_pod(config, pod_end, (&bridge, &host_end), &mut inside)?;
    let given = given(&previous, pod_end);
    if config.pin_addresses {
        // The Ethernet address may be another one by now, by a later plugin of the chain: without it nothing gets out.
        let allowed = Allowed {
            addresses: given.iter().map(|ip| ip.address.addr()).collect(),
            mac: None,
            mac_checked: config.spoof_check,
            any_link_local: config.any_link_local,
        };
        let pins = AddressPins::new(&call.network, &call.attachment);
        pins.check(&mut Filter::open()?, &host_end.name, &allowed)?;
    }
    if !given.is_empty() {
        check_addresses(name, &given, &mut inside)?;
        check_routes(&previous, &mut inside)?;
        check_gateway(config, &given, &mut host)?;
        if config.masquerade.is_some() {
            let addresses: Vec<IpNet> = given.iter().map(|ip| ip.address).collect();
            Masquerading::new(call).check(&addresses)?;
        }
    }
    if let Some(ipam) = &config.ipam {
        ipam.check(call)?;
    }
    Ok(())
}

fn check_bridge(config: &Config, previous: &Outcome, host: &mut Router) -> Result<Link, Error> {
    let name = &config.bridge;
    let bridge = find(host, name)?.ok_or_else(|| Error::mismatch(format!("the bridge {name} is gone")))?;
    if !bridge.is_bridge() {
        return Err(Error::mismatch(format!("{name} is not a bridge")));
    }
    // The configuration may call it by another name of its.
    let before = previous.interfaces.iter().find(|one| one.name == bridge.name && one.sandbox.is_empty());
    let before = before.ok_or_else(|| Error::mismatch(format!("\"prevResult\" has no bridge {name}")))?;
    // A bridge without a fixed address takes the least of its ports', which may come and go: only a gateway's, which is
    // fixed, must still be the same.
    if config.gateway && !before.mac.is_empty() {
        same_mac(&bridge, &before.mac)?;
    }
    // It may be promiscuous for others: an administrator, a capture, a port's own need.
    if config.promiscuous && !bridge.promiscuous {
        return Err(Error::mismatch(format!("the bridge {name} is not promiscuous")));
    }
    Ok(bridge)
}

/// The host's end: ours by its alias, the reference's by the name it answered.
fn host_end(config: &Config, call: &Call, previous: &Outcome, host: &mut Router) -> Result<Link, Error> {
    let alias = identity::alias(&call.network, &call.attachment);
    let names = (0..NAMES).map(|turn| identity::host_name(&call.network, &call.attachment, turn));
    for answer in host.exchange(names.map(|name| Link::get(&name)).collect())? {
        if let Some(link) = present(answer)?.filter(|link| link.alias == alias) {
            return Ok(link);
        }
    }
    let others = previous.interfaces.iter().filter(|one| one.sandbox.is_empty() && one.name != config.bridge);
    for before in others {
        if let Some(link) = find(host, &before.name)?.filter(Link::is_veth) {
            if !before.mac.is_empty() {
                same_mac(&link, &before.mac)?;
            }
            return Ok(link);
        }
    }
    Err(Error::mismatch(format!("the host's end of {} is gone", call.attachment.interface)))
}

fn check_port(config: &Config, bridge: &Link, host_end: &Link) -> Result<(), Error> {
    let name = &host_end.name;
    if host_end.master != Some(bridge.index) {
        return Err(Error::mismatch(format!("{name} is no port of the bridge {}", bridge.name)));
    }
    if !host_end.up {
        return Err(Error::mismatch(format!("{name} is down")));
    }
    if let Some(mtu) = config.mtu.filter(|mtu| host_end.mtu != *mtu) {
        return Err(Error::mismatch(format!("{name} has the MTU {}, and was made with {mtu}", host_end.mtu)));
    }
    let wanted =
        |found: PortSettings| PortSettings { hairpin: config.hairpin, isolated: config.isolated, ..found };
    if host_end.port.is_some_and(|found| found != wanted(found)) {
        return Err(Error::mismatch(format!(
            "{name} has other settings of hairpin or isolation than configured"
        )));
    }
    Ok(())
}

fn check_pod(
    config: &Config,
    before: &Interface,
    (bridge, host_end): (&Link, &Link),
    inside: &mut Router,
) -> Result<(), Error> {
    let name = &before.name;
    let link = find(inside, name)?.ok_or_else(|| Error::mismatch(format!("{name} is gone from the pod")))?;
    if !before.mac.is_empty() {
        same_mac(&link, &before.mac)?;
    }
    // The pod's end may have been renamed: its index proves that it is in this pod.
    let peer = host_end.peer.ok_or_else(|| Error::mismatch(format!("{} has no other end", host_end.name)))?;
    let shown = inside.exchange(vec![Link::get_index(peer)])?.into_iter().next().map(present).transpose()?;
    let pod_end = shown.flatten().filter(Link::is_veth).filter(|end| end.peer == Some(host_end.index));
    let pod_end = pod_end
        .ok_or_else(|| Error::mismatch(format!("the other end of {} is not in this pod", host_end.name)))?;
    // A later plugin of the chain may have changed the MTU; its result then has it. Results of old versions have no MTU.
    if let Some(mtu) = before.mtu.filter(|mtu| config.mtu.is_some() && pod_end.mtu != *mtu) {
        return Err(Error::mismatch(format!("{} has the MTU {}, and had {mtu}", pod_end.name, pod_end.mtu)));
    }
    if pod_end.mtu > bridge.mtu {
        return Err(Error::mismatch(larger_mtu(&bridge.name, bridge.mtu, &pod_end.name, pod_end.mtu)));
    }
    if !config.pod_end_down && !pod_end.up {
        return Err(Error::mismatch(format!("{} is down", pod_end.name)));
    }
    Ok(())
}

/// The addresses of this attachment among those of the whole chain; addresses without an interface count as this one's.
fn given<'a>(previous: &'a Outcome, pod_end: &Interface) -> Vec<&'a IpConfig> {
    let index = previous.interfaces.iter().position(|one| one == pod_end);
    previous.ips.iter().filter(|ip| ip.interface.is_none() || ip.interface == index).collect()
}

fn check_addresses(name: &str, given: &[&IpConfig], inside: &mut Router) -> Result<(), Error> {
    let link = find(inside, name)?.ok_or_else(|| Error::mismatch(format!("{name} is gone from the pod")))?;
    let mut addresses = Address::all(&inside.ask(Address::list(None))?);
    addresses.retain(|address| address.link == link.index);
    for wanted in given {
        if !addresses.iter().any(|address| address.network == wanted.address) {
            return Err(Error::mismatch(format!("{name} has lost the address {}", wanted.address)));
        }
        if addresses.iter().any(|address| address.network == wanted.address && address.duplicate) {
            return Err(Error::mismatch(format!("{} of {name} is in use by another host", wanted.address)));
        }
    }
    Ok(())
}

/// The gateway of a default route may be another one by now: a later plugin of the chain may have its own.
fn check_routes(previous: &Outcome, inside: &mut Router) -> Result<(), Error> {
    if previous.routes.is_empty() {
        return Ok(());
    }
    let routes = KernelRoute::all(&inside.ask(KernelRoute::list())?);
    for wanted in &previous.routes {
        let there = routes.iter().any(|route| {
            let by = wanted.gateway.is_none()
                || wanted.destination.prefix_len() == 0
                || route.gateway == wanted.gateway;
            let table = wanted.table.is_none_or(|table| table == route.table);
            route.destination == wanted.destination.trunc() && by && table
        });
        if !there {
            let by = wanted.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
            return Err(Error::mismatch(format!(
                "the route to {}{by} is gone from the pod",
                wanted.destination
            )));
        }
    }
    Ok(())
}

/// Without its address the bridge is nobody's gateway.
fn check_gateway(config: &Config, given: &[&IpConfig], host: &mut Router) -> Result<(), Error> {
    if !config.gateway {
        return Ok(());
    }
    let name = gateway_link(config).unwrap_or_else(|| config.bridge.clone());
    let link =
        find(host, &name)?.ok_or_else(|| Error::mismatch(format!("the gateway's link {name} is gone")))?;
    // Where this is refused, all addresses are listed.
    let _ = host.strict();
    let addresses = Address::all(&host.ask(Address::list(Some(link.index)))?);
    for gateway in given.iter().filter_map(|ip| ip.gateway) {
        if !addresses.iter().any(|one| one.link == link.index && one.network.addr() == gateway) {
            return Err(Error::mismatch(format!("{name} has lost the gateway's address {gateway}")));
        }
    }
    Ok(())
}

fn same_mac(link: &Link, before: &str) -> Result<(), Error> {
    let now = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if now.eq_ignore_ascii_case(before) {
        return Ok(());
    }
    let message = format!("{} has the Ethernet address {now}, and had {before}", link.name);
    Err(Error::new(Kind::Mismatch, message))
}
