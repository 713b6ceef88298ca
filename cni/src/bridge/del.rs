//! DEL: removes an attachment, found on the host by the plugin's own names and its alias, and in the pod by its name. Never
//! lists the node's links, however many there are. Continues after a failure and reports all failures; an attachment that is
//! gone already is a success.

use std::path::Path;

use crate::bridge::identity::{self, NAMES};
use crate::bridge::undo::{find, present};
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
    let mut try_all = |result: Result<(), Error>| errors.extend(result.err());
    try_all(from_the_host(call, &mut host));
    if let Some(path) = &call.namespace {
        try_all(from_the_pod(call, path, &mut host));
    }
    // After the link: until it is gone its frames are checked.
    try_all(from_the_packet_filter(call));
    try_all(ipam::release(call));
    Error::all(errors)
}

/// Removes the link that bears the attachment's alias and a name that is ours. With it goes the other end, wherever it is by
/// now. A link that was renamed is found by its second name, which kernels before Linux 5.5 do not have: there a GC finds it.
fn from_the_host(call: &Call, host: &mut Router) -> Result<(), Error> {
    let alias = identity::alias(&call.network, &call.attachment);
    let mut names: Vec<String> =
        (0..NAMES).map(|turn| identity::host_name(&call.network, &call.attachment, turn)).collect();
    names.push(identity::second_name(&call.network, &call.attachment));
    let mut ours: Vec<Link> = Vec::new();
    for answer in host.exchange(names.iter().map(|name| Link::get(name)).collect())? {
        ours.extend(present(answer)?.filter(|link| link.is_veth() && link.alias == alias));
    }
    ours.dedup_by_key(|link| link.index);
    ours.iter().try_for_each(|link| remove(host, link))
}

/// Removes what bears the attachment's name in the pod: an end that the reference made, or what KubeVirt put in the place
/// of ours.
fn from_the_pod(call: &Call, path: &Path, host: &mut Router) -> Result<(), Error> {
    let Some(pod) = Namespace::find(path)? else { return Ok(()) };
    let home = Namespace::ours()?;
    if pod.is(&home) && !call.namespace_may_be_ours {
        // The pod is gone and its process number is another's: a link of that name here is not the pod's.
        return Ok(());
    }
    let mut inside = Router::open_in(&pod, &home)?;
    // The loopback's name was no ADD's.
    if let Some(link) = find(&mut inside, &call.attachment.interface)?.filter(|link| !link.loopback)
        && !is_anothers(&link, call, host)?
    {
        remove(&mut inside, &link)?;
    }
    if let Some(name) = renamed(call)
        && let Some(link) = find(&mut inside, &name)?.filter(Link::is_veth)
    {
        remove(&mut inside, &link)?;
    }
    Ok(())
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
