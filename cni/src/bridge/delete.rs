//! DEL: takes an attachment away, found from the host by its alias, and in the pod by its name. Goes on after a failure
//! and tells all of them; says nothing when there was nothing to do.

use std::path::Path;

use crate::bridge::apply::{find, present};
use crate::bridge::identity::{self, NAMES};
use crate::error::Error;
use crate::ipam::Ipam;
use crate::namespace::Namespace;
use crate::netlink::{Link, Router};
use crate::nft::{Filter, Masquerading, SpoofCheck};
use crate::protocol::{Call, Outcome, is_interface_name};

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
        try_all(from_the_pod(call, path));
    }
    // After the link: until it is gone its frames are checked.
    try_all(from_the_packet_filter(call));
    match Ipam::parse(&call.config) {
        Ok(None) => {}
        Ok(Some(ipam)) => try_all(ipam.release(call)),
        Err(error) => try_all(Err(error)),
    }
    Error::all(errors)
}

/// Removes the link that bears the attachment's alias. With it goes the other end, wherever it is by now.
fn from_the_host(call: &Call, host: &mut Router) -> Result<(), Error> {
    let alias = identity::alias(&call.network, &call.attachment);
    let names = (0..NAMES).map(|turn| identity::host_name(&call.network, &call.attachment, turn));
    for answer in host.exchange(names.map(|name| Link::get(&name)).collect())? {
        if let Some(link) = present(answer)?.filter(|link| link.alias == alias) {
            remove(host, &link)?;
        }
    }
    Ok(())
}

/// Removes what bears the attachment's name in the pod: an end that the reference made, or what KubeVirt put in the place
/// of ours.
fn from_the_pod(call: &Call, path: &Path) -> Result<(), Error> {
    let Some(pod) = Namespace::find(path)? else { return Ok(()) };
    let home = Namespace::ours()?;
    if pod.is(&home) && !call.namespace_may_be_ours {
        // The pod is gone and its process number is another's: a link of that name here is not the pod's.
        return Ok(());
    }
    let mut inside = Router::open_in(&pod, &home)?;
    if let Some(link) = find(&mut inside, &call.attachment.interface)? {
        remove(&mut inside, &link)?;
    }
    if let Some(name) = renamed(call)
        && let Some(link) = find(&mut inside, &name)?.filter(Link::is_veth)
    {
        remove(&mut inside, &link)?;
    }
    Ok(())
}

/// Removes the rules that the configuration's keys ask for. They bear the attachment's name: neither its pod nor its
/// addresses need be known.
fn from_the_packet_filter(call: &Call) -> Result<(), Error> {
    let mut errors = Vec::new();
    // A key that no ADD would take counts as asked for.
    let asked = |key| call.config.boolean(key).unwrap_or(true);
    if asked("macspoofchk") {
        let check = SpoofCheck::new(&call.network, &call.attachment);
        errors.extend(Filter::open().and_then(|mut filter| check.tear_down(&mut filter)).err());
    }
    if asked("ipMasq") {
        errors.extend(Masquerading::new(call).tear_down().err());
    }
    Error::all(errors)
}

/// What KubeVirt calls the pod's end after it took its place, if this attachment ever was one of its.
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
