//! Carries an ADD out, a DEL, and a GC. The link of what comes from the pod bears the attachment's alias.

use std::collections::BTreeSet;

use rustix::io::Errno;
use sha2::{Digest, Sha512};

use crate::bandwidth::config::{Config, Limit, ticks};
use crate::bridge::{identity, present};
use crate::error::{Error, Kind};
use crate::namespace;
use crate::netlink::{Link, Request, Router};
use crate::protocol::{Call, Interface, Outcome};
use link::netlink::{Bucket, leave_out, redirect, take_in};

/// The prefix of such a link's name.
const PREFIX: &str = "bwp";
/// Length of the name, in bytes.
const LENGTH: usize = 15;

/// Limits.
///
/// # Errors
/// Everything that was done is undone; what could not be is in the details.
pub(super) fn add(config: &Config, call: &Call) -> Result<Outcome, Error> {
    let mut outcome = previous(call)?;
    outcome.render(call.version)?;
    if config.ingress.is_none() && config.egress.is_none() {
        return Ok(outcome);
    }
    let mut host = Router::open()?;
    let port = host_end(call, &outcome, &mut host)?;
    let mut undo = Vec::new();
    match limit(config, call, &port, &mut host, &mut undo) {
        Ok(made) => {
            outcome.interfaces.extend(made);
            Ok(outcome)
        }
        Err(error) => {
            let mut errors = vec![error];
            let undone = undo.into_iter().rev().map(|request| host.ask(request));
            errors.extend(undone.filter_map(|one| one.err().map(Error::from)));
            Error::all(errors).map(|()| Outcome::default())
        }
    }
}

fn limit(
    config: &Config,
    call: &Call,
    port: &Link,
    host: &mut Router,
    undo: &mut Vec<Request>,
) -> Result<Option<Interface>, Error> {
    let ticks = ticks();
    if let Some(limit) = config.ingress {
        host.ask(limit.bucket(ticks).create(port.index, &port.name))?;
        undo.push(Bucket::remove(port.index, &port.name));
    }
    match config.egress {
        None => Ok(None),
        Some(limit) => from_the_pod(limit, ticks, call, port, host, undo).map(Some),
    }
}

fn from_the_pod(
    limit: Limit,
    ticks: f64,
    call: &Call,
    port: &Link,
    host: &mut Router,
    undo: &mut Vec<Request>,
) -> Result<Interface, Error> {
    let name = link_name(call);
    let alias = identity::alias(&call.network, &call.attachment);
    let made = host.exchange(vec![Link::create_ifb(&name, port.mtu)])?.pop().ok_or_else(odd)?;
    if made.refusal().is_some_and(|refusal| refusal.errno == Errno::EXIST) {
        let message = format!(
            "the link {name} exists already: it limits the rate of another interface of the container in network {}",
            call.network
        );
        return Err(Error::new(Kind::Mismatch, message));
    }
    made.done()?;
    let link = Link::all(&host.ask(Link::get(&name))?).pop().ok_or_else(odd)?;
    undo.push(Link::delete(link.index, &name));
    host.ask(Link::set_alias(link.index, &alias, &name))?;
    host.ask(limit.bucket(ticks).create(link.index, &name))?;
    host.ask(take_in(port.index, &port.name))?;
    undo.push(leave_out(port.index, &port.name));
    host.ask(redirect(port.index, link.index, &port.name))?;
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Ok(Interface { name, mac, ..Interface::default() })
}

/// Removes the link of what comes from the pod; all else goes with the pod's own link.
///
/// # Errors
/// [`Kind::Kernel`].
pub(super) fn delete(call: &Call) -> Result<(), Error> {
    let mut host = Router::open()?;
    let Some(link) = find(&mut host, &link_name(call))?.filter(Link::is_ifb) else { return Ok(()) };
    remove(&mut host, &link)
}

/// Removes the network's links of attachments that are not valid. Links of the reference plugin have no alias and stay.
///
/// # Errors
/// Every failure, after all was tried.
pub(super) fn collect(call: &Call) -> Result<(), Error> {
    let valid = call.valid_attachments()?;
    let keep: BTreeSet<String> = valid.iter().map(|one| identity::alias(&call.network, one)).collect();
    let mut host = Router::open()?;
    let links = Link::all(&host.ask(Link::list(None))?);
    let stale = links.iter().filter(|link| {
        link.is_ifb() && identity::is_of(&link.alias, &call.network) && !keep.contains(&link.alias)
    });
    Error::all(stale.filter_map(|link| remove(&mut host, link).err()).collect())
}

/// Removes a link that may be gone by now.
fn remove(host: &mut Router, link: &Link) -> Result<(), Error> {
    for answer in host.exchange(vec![Link::delete(link.index, &link.name)])? {
        if !answer.refusal().is_some_and(|refusal| refusal.errno == Errno::NODEV) {
            answer.done()?;
        }
    }
    Ok(())
}

/// The result so far.
///
/// # Errors
/// [`Kind::Config`] when there is none.
pub(super) fn previous(call: &Call) -> Result<Outcome, Error> {
    Outcome::previous(&call.config, call.version)?.ok_or_else(|| {
        Error::config(
            "\"prevResult\" is missing: bandwidth limits an interface that an earlier plugin of the chain has made",
        )
    })
}

/// The host's end of the attachment's veth pair, which the result names: by its other end in the pod, or, where that has
/// another name by now, by its alias.
///
/// # Errors
/// [`Kind::Mismatch`] when there is none.
pub(super) fn host_end(call: &Call, outcome: &Outcome, host: &mut Router) -> Result<Link, Error> {
    let name = &call.attachment.interface;
    let (home, pod) = namespace::of_call(call)?;
    let mut inside = Router::open_in(&pod, &home)?;
    let peer = find(&mut inside, name)?.filter(Link::is_veth).and_then(|link| link.peer);
    let alias = identity::alias(&call.network, &call.attachment);
    for one in outcome.interfaces.iter().filter(|one| one.sandbox.is_empty()) {
        let Some(link) = find(host, &one.name)?.filter(Link::is_veth) else { continue };
        if peer.map_or(link.alias == alias, |peer| peer == link.index) {
            return Ok(link);
        }
    }
    Err(Error::mismatch(format!(
        "\"prevResult\" names no link of the node that is the peer of {name} in the container"
    )))
}

pub(super) fn find(router: &mut Router, name: &str) -> Result<Option<Link>, Error> {
    let answer = router.exchange(vec![Link::get(name)])?.pop();
    Ok(answer.map(present).transpose()?.flatten())
}

/// The name of the link of what comes from the pod: the reference's.
pub(super) fn link_name(call: &Call) -> String {
    let digest = Sha512::digest(format!("{}{}", call.network, call.attachment.container));
    let digits: String = digest.iter().take(LENGTH).map(|byte| format!("{byte:02x}")).collect();
    let mut name = format!("{PREFIX}{digits}");
    name.truncate(LENGTH);
    name
}

fn odd() -> Error {
    Error::new(Kind::Kernel, "the kernel's netlink answer is incomplete")
}
