//! GC and STATUS. GC takes away what bears this network's alias and belongs to no valid attachment: all of it moves into
//! a link group of its own and goes in one sweep, which costs the kernel one wait instead of one per link.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink_packet_route::link::LinkAttribute;

use crate::bridge::apply::find;
use crate::bridge::config::Config;
use crate::bridge::{config, identity, plan};
use crate::error::{Error, Kind};
use crate::ipam::Ipam;
use crate::netlink::{Address, Link, Router};
use crate::nft::{Filter, SpoofChecks, sweep_masquerading};
use crate::protocol::{Attachment, Call};

/// Removes what no valid attachment owns.
///
/// # Errors
/// Every failure, after all was tried. Nothing is removed when the valid attachments are not understood.
pub(crate) fn collect(call: &Call) -> Result<(), Error> {
    let valid = call.valid_attachments()?;
    let leases = leases(call);
    let mut errors = Vec::new();
    let checks = checks(call, &mut errors);
    errors.extend(Router::open().and_then(|mut host| sweep(call, &valid, &leases, &checks, &mut host)).err());
    // After the links: until they are gone their frames are checked.
    if errors.is_empty() {
        sweep_rules(call, &valid, &leases, &checks, &mut errors);
    }
    match Ipam::parse(&call.config) {
        Ok(None) => {}
        Ok(Some(ipam)) => errors.extend(ipam.collect(call).err()),
        Err(error) => errors.push(error),
    }
    Error::all(errors)
}

/// Whether an ADD could succeed.
///
/// # Errors
/// [`Kind::Unavailable`] with what keeps it from succeeding, or what IPAM says.
pub(crate) fn status(config: &Config, call: &Call) -> Result<(), Error> {
    let mut host = Router::open()?;
    let bridge = find(&mut host, &config.bridge)?;
    plan::bridge_step(config, bridge.as_ref()).map_err(|error| {
        let message = format!("network {} cannot be attached to", call.network);
        Error::with(Kind::Unavailable, message, error)
    })?;
    match &config.ipam {
        None => Ok(()),
        Some(ipam) => ipam.status(call),
    }
}

/// The attachments that have an address of this network by host-local's files, whoever made them. Best effort: what
/// cannot be read proves nothing, and stays.
fn leases(call: &Call) -> BTreeSet<Attachment> {
    let noted = Ipam::parse(&call.config).ok().flatten().and_then(|ipam| ipam.reservations(call).ok());
    let noted = noted.unwrap_or_default().into_iter().map(|(_, attachment)| attachment);
    noted.filter(|attachment| !attachment.interface.is_empty()).collect()
}

/// Whether a rule that cannot be listed or removed is worth an error: a kernel without a packet filter has none.
fn filters(call: &Call) -> bool {
    ["macspoofchk", "ipMasq"].into_iter().any(|key| call.config.boolean(key).unwrap_or(true))
}

fn checks(call: &Call, errors: &mut Vec<Error>) -> SpoofChecks {
    let listed = Filter::open().and_then(|mut filter| SpoofChecks::list(&mut filter));
    listed.unwrap_or_else(|error| {
        errors.extend(filters(call).then_some(error));
        SpoofChecks::default()
    })
}

fn sweep_rules(
    call: &Call,
    valid: &BTreeSet<Attachment>,
    leases: &BTreeSet<Attachment>,
    checks: &SpoofChecks,
    errors: &mut Vec<Error>,
) {
    let network = call.network.as_str();
    let swept = |filter: &mut Filter| {
        let masquerading = sweep_masquerading(filter, network, valid);
        checks.sweep(filter, network, valid, leases).and(masquerading)
    };
    if let Err(error) = Filter::open().and_then(|mut filter| swept(&mut filter)) {
        errors.extend(filters(call).then_some(error));
    }
}

fn sweep(
    call: &Call,
    valid: &BTreeSet<Attachment>,
    leases: &BTreeSet<Attachment>,
    checks: &SpoofChecks,
    host: &mut Router,
) -> Result<(), Error> {
    // What the reference made bears no alias; its address tells its network, and its spoof check its link.
    let theirs: BTreeSet<&str> = leases.difference(valid).filter_map(|one| checks.link(one)).collect();
    let keep: BTreeSet<String> = valid.iter().map(|one| identity::alias(&call.network, one)).collect();
    let links = Link::all(&host.ask(Link::list(None))?);
    let mut stale: Vec<&Link> = links
        .iter()
        .filter(|link| link.is_veth())
        .filter(|link| {
            let ours = identity::is_of(&link.alias, &call.network) && !keep.contains(&link.alias);
            ours || link.alias.is_empty() && theirs.contains(link.name.as_str())
        })
        .collect();
    stale.extend(nameless(call, valid, &links)?);
    stale.sort_by_key(|link| link.index);
    stale.dedup_by_key(|link| link.index);
    if stale.is_empty() {
        return Ok(());
    }
    let group = unused_group(&links)?;
    let moves = stale.iter().map(|link| {
        Link::change(link.index, LinkAttribute::Group(group), format!("move {} to a group", link.name))
    });
    let mut moved = 0;
    let mut errors = Vec::new();
    for answer in host.exchange(moves.collect())? {
        match answer.refusal().map(|refusal| refusal.errno) {
            // Gone meanwhile.
            Some(rustix::io::Errno::NODEV) => {}
            Some(_) => errors.extend(answer.done().err()),
            None => moved += 1,
        }
    }
    if moved > 0 {
        errors.extend(host.ask(Link::delete_group(group)).err());
    }
    Error::all(errors)
}

/// Stale attachments of the reference, whose links bear no alias: ports of the network's bridge whose other end has an
/// address that `host-local` noted for this network, and for nobody valid. Another network's attachment may have the
/// same address on the same bridge; where its files say so, the link stays.
fn nameless<'a>(
    call: &Call,
    valid: &BTreeSet<Attachment>,
    links: &'a [Link],
) -> Result<Vec<&'a Link>, Error> {
    let Some(ipam) = Ipam::parse(&call.config)? else { return Ok(Vec::new()) };
    let bridge = config::bridge_name(&call.config)?;
    let Some(bridge) = links.iter().find(|link| link.name == bridge && link.is_bridge()) else {
        return Ok(Vec::new());
    };
    let ports: Vec<&Link> = links
        .iter()
        .filter(|link| link.is_veth() && link.master == Some(bridge.index) && link.alias.is_empty())
        .collect();
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    // Files of old versions name the container alone: any of its interfaces keeps them.
    let is_valid = |noted: &Attachment| {
        valid.iter().any(|one| {
            one.container == noted.container
                && (noted.interface.is_empty() || one.interface == noted.interface)
        })
    };
    let stale: BTreeSet<IpAddr> = ipam
        .reservations(call)?
        .into_iter()
        .filter(|(_, noted)| !is_valid(noted))
        .map(|(address, _)| address)
        .collect();
    if stale.is_empty() {
        return Ok(Vec::new());
    }
    let mut elsewhere = Router::open()?;
    elsewhere.strict()?;
    let mut found = Vec::new();
    for port in ports {
        let (Some(peer), Some(namespace)) = (port.peer, port.peer_namespace) else { continue };
        let answers = elsewhere.exchange(vec![Address::list_elsewhere(peer, namespace)])?;
        for answer in answers {
            // The namespace may be gone by now, and the link with it.
            let Ok(messages) = answer.done() else { continue };
            let mut addresses = Address::all(&messages).into_iter().filter(|address| address.link == peer);
            if let Some(address) = addresses.find(|address| stale.contains(&address.network.addr()))
                && !ipam.is_reserved_elsewhere(address.network.addr(), call)?
            {
                found.push(port);
            }
        }
    }
    Ok(found)
}

/// A group number that no link has.
fn unused_group(links: &[Link]) -> Result<u32, Error> {
    let taken: BTreeSet<u32> = links.iter().map(|link| link.group).collect();
    let mut bytes = [0; 4];
    for _ in 0..8 {
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::with(Kind::Internal, "the kernel gave no random bytes", errno))?;
        // High, where no administrator's group is.
        let group = u32::from_ne_bytes(bytes) | 1 << 30;
        if !taken.contains(&group) {
            return Ok(group);
        }
    }
    Err(Error::new(Kind::Internal, "no link group is free"))
}
