//! DEL: removes an attachment, found on the host by its alias, and in the pod by its name. The alias is searched first among
//! the plugin's own names, and among all links only when either side is incomplete. Continues after a failure and reports
//! all failures; an attachment that is gone already is a success.

use std::path::Path;

use crate::bridge::apply::{find, present};
use crate::bridge::identity::{self, NAMES};
use crate::error::Error;
use crate::ipam;
use crate::netlink::{Link, Router};
use crate::nft::{AddressPins, Masquerading, SpoofCheck};
use crate::protocol::{Call, Outcome, is_interface_name};
use link::Namespace;
use link::nft::Filter;

/// Detaches.
///
/// # Errors
/// Every failure, after all was tried.
pub(crate) fn delete(call: &Call) -> Result<(), Error> {
    let mut errors = Vec::new();
    let mut host = Router::open()?;
    let mut removed = false;
    let mut sides = |result: Result<bool, Error>| match result {
        Ok(was_there) => removed |= was_there,
        Err(error) => errors.push(error),
    };
    sides(from_the_host(call, &mut host));
    if let Some(path) = &call.namespace {
        sides(from_the_pod(call, path, &mut host));
    }
    let mut try_all = |result: Result<(), Error>| errors.extend(result.err());
    if !removed {
        try_all(by_the_alias(call, &mut host));
    }
    // After the link: until it is gone its frames are checked.
    try_all(from_the_packet_filter(call));
    try_all(ipam::release(call));
    Error::all(errors)
}

/// Removes the link that bears the attachment's alias and a name that is ours; false when there is none. With it goes the
/// other end, wherever it is by now.
fn from_the_host(call: &Call, host: &mut Router) -> Result<bool, Error> {
    let mut removed = false;
    let alias = identity::alias(&call.network, &call.attachment);
    let names = (0..NAMES).map(|turn| identity::host_name(&call.network, &call.attachment, turn));
    for answer in host.exchange(names.map(|name| Link::get(&name)).collect())? {
        if let Some(link) = present(answer)?.filter(|link| link.alias == alias) {
            remove(host, &link)?;
            removed = true;
        }
    }
    Ok(removed)
}

/// Removes the link that bears the attachment's alias, by whatever name.
fn by_the_alias(call: &Call, host: &mut Router) -> Result<(), Error> {
    let alias = identity::alias(&call.network, &call.attachment);
    let links = Link::all(&host.ask(Link::list(None))?);
    let mut ours = links.iter().filter(|link| link.is_veth() && link.alias == alias);
    ours.try_for_each(|link| remove(host, link))
}

/// Removes what bears the attachment's name in the pod: an end that the reference made, or what KubeVirt put in the place
/// of ours; true when an end of a veth pair was among it.
fn from_the_pod(call: &Call, path: &Path, host: &mut Router) -> Result<bool, Error> {
    let Some(pod) = Namespace::find(path)? else { return Ok(false) };
    let home = Namespace::ours()?;
    if pod.is(&home) && !call.namespace_may_be_ours {
        // The pod is gone and its process number is another's: a link of that name here is not the pod's.
        return Ok(false);
    }
    let mut removed = false;
    let mut inside = Router::open_in(&pod, &home)?;
    // The loopback's name was no ADD's.
    if let Some(link) = find(&mut inside, &call.attachment.interface)?.filter(|link| !link.loopback)
        && !is_anothers(&link, call, host)?
    {
        remove(&mut inside, &link)?;
        removed |= link.is_veth();
    }
    if let Some(name) = renamed(call)
        && let Some(link) = find(&mut inside, &name)?.filter(Link::is_veth)
    {
        remove(&mut inside, &link)?;
        removed = true;
    }
    Ok(removed)
}

/// Whether the host's end of a pod's link bears the alias of another attachment: the pod that was there is gone, and its
/// process number is another pod's.
fn is_anothers(link: &Link, call: &Call, host: &mut Router) -> Result<bool, Error> {
    let Some(peer) = link.peer.filter(|_| link.is_veth()) else { return Ok(false) };
    let shown = host.exchange(vec![Link::get_index(peer)])?.into_iter().next().map(present).transpose()?;
    let host_end = shown.flatten().filter(|end| end.is_veth() && end.peer == Some(link.index));
    let alias = identity::alias(&call.network, &call.attachment);
    Ok(host_end.is_some_and(|end| identity::is_one(&end.alias) && end.alias != alias))
}

/// Removes the rules that the configuration's keys ask for. They bear the attachment's name: neither its pod nor its
/// addresses need be known.
fn from_the_packet_filter(call: &Call) -> Result<(), Error> {
    let mut errors = Vec::new();
    // A key that no ADD would take counts as asked for.
    let asked = |key| call.config.boolean(key).unwrap_or(true);
    let filter = || Filter::open().map_err(Error::from);
    if asked("macspoofchk") {
        let check = SpoofCheck::new(&call.network, &call.attachment);
        errors.extend(filter().and_then(|mut filter| check.tear_down(&mut filter)).err());
    }
    if asked("ipspoofchk") {
        let pins = AddressPins::new(&call.network, &call.attachment);
        errors.extend(filter().and_then(|mut filter| pins.tear_down(&mut filter)).err());
    }
    if asked("ipMasq") {
        errors.extend(Masquerading::new(call).tear_down().err());
    }
    Error::all(errors)
}

/// KubeVirt's name for the pod's end after it replaced it, if this attachment is a VM's.
fn renamed(call: &Call) -> Option<String> {
    let name = format!("{}-nic", call.attachment.interface);
    let previous = Outcome::previous(&call.config, call.version).unwrap_or_default();
    previous.is_some().then_some(name).filter(|name| is_interface_name(name))
}

/// Removes a link that may be gone by now.
fn remove(router: &mut Router, link: &Link) -> Result<(), Error> {
    let gone = |errno| matches!(errno, rustix::io::Errno::NODEV | rustix::io::Errno::NXIO);
    for answer in router.exchange(vec![Link::delete(link.index, &link.name)])? {
        if !answer.refusal().is_some_and(|refusal| gone(refusal.errno)) {
            answer.done()?;
        }
    }
    Ok(())
}
