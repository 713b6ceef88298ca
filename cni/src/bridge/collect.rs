//! GC and STATUS. GC takes away what bears this network's alias and belongs to no valid attachment: all of it moves into
//! a link group of its own and goes in one sweep, which costs the kernel one wait instead of one per link.

use std::collections::BTreeSet;

use netlink_packet_route::link::LinkAttribute;

use crate::bridge::apply::find;
use crate::bridge::config::Config;
use crate::bridge::{identity, plan};
use crate::error::{Error, Kind};
use crate::ipam::Ipam;
use crate::netlink::{Link, Router};
use crate::protocol::{Attachment, Call};

/// Removes what no valid attachment owns.
///
/// # Errors
/// Every failure, after all was tried. Nothing is removed when the valid attachments are not understood.
pub(crate) fn collect(call: &Call) -> Result<(), Error> {
    let valid = call.valid_attachments()?;
    let mut errors = Vec::new();
    errors.extend(Router::open().and_then(|mut host| sweep(call, &valid, &mut host)).err());
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

fn sweep(call: &Call, valid: &BTreeSet<Attachment>, host: &mut Router) -> Result<(), Error> {
    let keep: BTreeSet<String> = valid.iter().map(|one| identity::alias(&call.network, one)).collect();
    let links = Link::all(&host.ask(Link::list(None))?);
    let stale: Vec<&Link> = links
        .iter()
        .filter(|link| link.is_veth() && identity::is_of(&link.alias, &call.network))
        .filter(|link| !keep.contains(&link.alias))
        .collect();
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
