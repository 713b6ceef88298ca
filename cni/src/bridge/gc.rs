//! GC: takes away what bears this network's alias and belongs to no valid attachment. Links go by way of a link group, which
//! costs the kernel one wait instead of one per link. The kernel holds its lock on all links while it removes a group, so that
//! an ADD of any network waits: a group is as large as the time that the last one took allows, and the next one starts after a
//! pause.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use netlink_packet_route::link::LinkAttribute;

use crate::bridge::{config, identity};
use crate::error::{Error, Kind};
use crate::ipam::Ipam;
use crate::netlink::{Address, Link, Router};
use crate::nft::{SpoofChecks, sweep_masquerading, sweep_pins};
use crate::protocol::{Attachment, Call};
use link::nft::Filter;

/// Links of the first group.
const FIRST_SIZE: usize = 8;
/// How long the removal of a group shall take.
const LOCKED: Duration = Duration::from_millis(60);
/// Time for other processes between two groups: some times what an ADD takes.
const PAUSE: Duration = Duration::from_millis(5);

/// Facts gathered before anything is removed.
struct Facts<'a> {
    call: &'a Call,
    valid: BTreeSet<Attachment>,
    ipam: Option<Ipam>,
    /// The addresses of this network in host-local's files, ours and the reference's.
    noted: Vec<(IpAddr, Attachment)>,
    checks: SpoofChecks,
}

/// Removes what no valid attachment owns.
///
/// # Errors
/// Every failure, after all was tried. Nothing is removed when the valid attachments are not understood.
pub(crate) fn collect(call: &Call) -> Result<(), Error> {
    let valid = call.valid_attachments()?;
    let mut errors = Vec::new();
    let ipam = Ipam::parse(&call.config).unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    // Unreadable reservations prove nothing, and stay.
    let noted = ipam.as_ref().and_then(|ipam| ipam.reservations(call).ok()).unwrap_or_default();
    let checks = checks(call, &mut errors);
    let facts = Facts { call, valid, ipam, noted, checks };
    match Router::open().map_err(Error::from).and_then(|mut host| sweep(&facts, &mut host)) {
        // After the links: until they are gone their frames are checked.
        Ok(()) => errors.extend(sweep_rules(&facts).err()),
        Err(error) => errors.push(error),
    }
    if let Some(ipam) = &facts.ipam {
        errors.extend(ipam.collect(call).err());
    }
    Error::all(errors)
}

impl Facts<'_> {
    /// The attachments that have an address of this network.
    fn proven(&self) -> BTreeSet<Attachment> {
        let attachments = self.noted.iter().map(|(_, attachment)| attachment);
        attachments.filter(|attachment| !attachment.interface.is_empty()).cloned().collect()
    }
}

/// Whether a rule that cannot be listed or removed is worth an error: a kernel without a packet filter has none.
fn filters(call: &Call) -> bool {
    ["macspoofchk", "ipspoofchk", "ipMasq"].into_iter().any(|key| call.config.boolean(key).unwrap_or(true))
}

fn checks(call: &Call, errors: &mut Vec<Error>) -> SpoofChecks {
    let listed = Filter::open().map_err(Error::from).and_then(|mut filter| SpoofChecks::list(&mut filter));
    listed.unwrap_or_else(|error| {
        errors.extend(filters(call).then_some(error));
        SpoofChecks::default()
    })
}

fn sweep_rules(facts: &Facts<'_>) -> Result<(), Error> {
    let network = facts.call.network.as_str();
    let swept = |filter: &mut Filter| {
        let masquerading = sweep_masquerading(filter, network, &facts.valid);
        let pins = sweep_pins(filter, network, &facts.valid);
        facts.checks.sweep(filter, network, &facts.valid, &facts.proven()).and(pins).and(masquerading)
    };
    match Filter::open().map_err(Error::from).and_then(|mut filter| swept(&mut filter)) {
        Err(error) if filters(facts.call) => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn sweep(facts: &Facts<'_>, host: &mut Router) -> Result<(), Error> {
    let Facts { call, valid, checks, .. } = facts;
    // Links of the reference plugin bear no alias; the address identifies the network, and the spoof check the link.
    let proven = facts.proven();
    let theirs: BTreeSet<&str> = proven.difference(valid).filter_map(|one| checks.link(one)).collect();
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
    stale.extend(nameless(facts, &links)?);
    stale.sort_by_key(|link| link.index);
    stale.dedup_by_key(|link| link.index);
    if stale.is_empty() {
        return Ok(());
    }
    let group = unused_group(&links)?;
    let mut errors = Vec::new();
    let mut rest = stale.as_slice();
    let mut size = FIRST_SIZE;
    while !rest.is_empty() {
        let (some, later) = rest.split_at(size.min(rest.len()));
        let start = Instant::now();
        errors.extend(remove(some, group, host)?);
        size = next_size(some.len(), start.elapsed());
        rest = later;
        if !rest.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
    Error::all(errors)
}

/// Removes links by way of a group; the errors of those that could not be.
fn remove(links: &[&Link], group: u32, host: &mut Router) -> Result<Vec<Error>, Error> {
    let moves = links.iter().map(|link| {
        Link::change(link.index, LinkAttribute::Group(group), format!("move {} to a group", link.name))
    });
    let mut moved = 0;
    let mut errors = Vec::new();
    for answer in host.exchange(moves.collect())? {
        match answer.refusal().map(|refusal| refusal.errno) {
            // Removed by another process in between.
            Some(rustix::io::Errno::NODEV) => {}
            Some(_) => errors.extend(answer.done().err().map(Error::from)),
            None => moved += 1,
        }
    }
    if moved > 0 {
        errors.extend(host.ask(Link::delete_group(group)).err().map(Error::from));
    }
    Ok(errors)
}

/// How many links go together after `size` of them `took` so long.
fn next_size(size: usize, took: Duration) -> usize {
    let scaled = u128::try_from(size).unwrap_or(1) * LOCKED.as_nanos() / took.as_nanos().max(1);
    // A wait for another process may have been part of it: never from many to one, or back, at once.
    usize::try_from(scaled).unwrap_or(usize::MAX).clamp(size.div_ceil(2), size.saturating_mul(2))
}

/// Stale attachments of the reference plugin, which sets no alias: ports of the network's bridge whose other end has an
/// address that `host-local` reserved for this network and for no valid attachment. Another network's attachment may have
/// the same address on the same bridge; where its reservation proves so, the link stays.
fn nameless<'a>(facts: &Facts<'_>, links: &'a [Link]) -> Result<Vec<&'a Link>, Error> {
    let Some(ipam) = &facts.ipam else { return Ok(Vec::new()) };
    let bridge = config::bridge_name(&facts.call.config)?;
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
        facts.valid.iter().any(|one| {
            one.container == noted.container
                && (noted.interface.is_empty() || one.interface == noted.interface)
        })
    };
    let stale: BTreeSet<IpAddr> =
        facts.noted.iter().filter(|(_, noted)| !is_valid(noted)).map(|(address, _)| *address).collect();
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
                && !ipam.is_reserved_elsewhere(address.network.addr(), facts.call)?
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_as_large_as_the_time_allows() {
        let next = |size, ms| next_size(size, Duration::from_millis(ms));
        assert_eq!([next(8, 60), next(8, 80), next(30, 60)], [8, 6, 30]);
        // One wait is no reason to go from many to few, and none is no reason to take all.
        assert_eq!([next(8, 4000), next(1, 4000), next(8, 0), next(8, 1)], [4, 1, 16, 16]);
    }
}
