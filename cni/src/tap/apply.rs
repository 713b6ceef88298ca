//! Makes, checks and removes tap devices. A device bears the same alias as a port of the plugin `bridge`, so that GC knows
//! those in the host's namespace.

use std::collections::BTreeSet;
use std::fs::OpenOptions;

use netlink_packet_route::link::LinkAttribute;
use rustix::io::Errno;

use crate::bridge::identity;
use crate::error::{Error, Kind};
use crate::ipam;
use crate::namespace;
use crate::netlink::{Flag, Link, Request, Router};
use crate::protocol::{Call, Interface, Outcome};
use crate::tap::config::Config;
use link::tap::create;

const TUN: &str = "/dev/net/tun";

/// Attaches.
///
/// # Errors
/// Everything that was done is undone; what could not be is in the details.
pub(super) fn add(config: &Config, call: &Call) -> Result<Outcome, Error> {
    refuse_addresses(config)?;
    Outcome::refuse_without_addresses(call.version)?;
    let (home, pod) = namespace::of_call(call)?;
    let link = pod.inside(&home, || {
        let mut router = Router::open()?;
        let bridge = config.bridge.as_deref().map(|name| bridge(name, &mut router)).transpose()?;
        make(config, call)?;
        set_up(config, call, bridge.as_ref(), &mut router).map_err(|error| {
            let undone = remove(call, &mut router);
            Error::all([Some(error), undone.err()].into_iter().flatten().collect()).err().unwrap_or_else(odd)
        })
    })?;
    let interface = Interface {
        name: link.name,
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: Some(link.mtu),
        sandbox: pod.path().display().to_string(),
        ..Interface::default()
    };
    Ok(Outcome { interfaces: vec![interface], dns: config.dns.clone(), ..Outcome::default() })
}

/// Detaches. Removes only a tap device that this plugin created.
///
/// # Errors
/// Every failure, after all was tried.
pub(super) fn delete(call: &Call) -> Result<(), Error> {
    let mut errors = Vec::new();
    match namespace::of_deletion(call) {
        Ok(None) => {}
        Ok(Some((home, pod))) => {
            errors.extend(pod.inside(&home, || remove(call, &mut Router::open()?)).err());
        }
        Err(error) => errors.push(error),
    }
    errors.extend(ipam::release(call).err());
    Error::all(errors)
}

/// Checks.
///
/// # Errors
/// [`Kind::Mismatch`] with what differs.
pub(super) fn check(config: &Config, call: &Call) -> Result<(), Error> {
    let previous = Outcome::previous(&call.config, call.version)?
        .ok_or_else(|| Error::config("CHECK needs \"prevResult\""))?;
    let (home, pod) = namespace::of_call(call)?;
    let name = &call.attachment.interface;
    let sandbox = pod.path().display().to_string();
    let before = previous.interfaces.iter().find(|one| one.name == *name && one.sandbox == sandbox);
    let before =
        before.ok_or_else(|| Error::mismatch(format!("\"prevResult\" has no {name} in {sandbox}")))?;
    let mut inside = Router::open_in(&pod, &home)?;
    let link = find(name, &mut inside)?.ok_or_else(|| Error::mismatch(format!("{name} is gone")))?;
    if !link.is_tun() {
        return Err(Error::mismatch(format!("{name} is no tap device")));
    }
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if !before.mac.is_empty() && !before.mac.eq_ignore_ascii_case(&mac) {
        let had = &before.mac;
        return Err(Error::mismatch(format!("{name} has the Ethernet address {mac}, and had {had}")));
    }
    if !link.up {
        return Err(Error::mismatch(format!("{name} is down")));
    }
    if let Some(wanted) = &config.bridge {
        let bridge = bridge(wanted, &mut inside)?;
        if link.master != Some(bridge.index) {
            return Err(Error::mismatch(format!("{name} is no port of the bridge {wanted}")));
        }
    }
    Ok(())
}

/// Removes the devices in this namespace that bear this network's alias and belong to no valid attachment.
///
/// # Errors
/// Every failure, after all was tried. Nothing is removed when the valid attachments are not understood.
pub(super) fn collect(call: &Call) -> Result<(), Error> {
    let valid = call.valid_attachments()?;
    let keep: BTreeSet<String> = valid.iter().map(|one| identity::alias(&call.network, one)).collect();
    let mut router = Router::open()?;
    let links = Link::all(&router.ask(Link::list(None))?);
    let stale = links
        .iter()
        .filter(|link| link.is_tun() && identity::is_of(&link.alias, &call.network))
        .filter(|link| !keep.contains(&link.alias));
    let mut errors = Vec::new();
    for link in stale {
        errors.extend(delete_link(link, &mut router).err());
    }
    errors.extend(ipam::collect(call).err());
    Error::all(errors)
}

/// Checks whether an ADD could succeed, as far as the host shows: the bridge may be in the pod.
///
/// # Errors
/// [`Kind::Unavailable`].
pub(super) fn status(config: &Config, call: &Call) -> Result<(), Error> {
    open_tun().and_then(|_| refuse_addresses(config)).map_err(|error| {
        let message = format!("network {} cannot be attached to", call.network);
        Error::with(Kind::Unavailable, message, error)
    })
}

fn refuse_addresses(config: &Config) -> Result<(), Error> {
    match config.ipam {
        None => Ok(()),
        Some(_) => {
            let text =
                "\"ipam\" is not supported for a tap device: the guest sets its address; remove \"ipam\"";
            Err(Error::new(Kind::Unsupported, text))
        }
    }
}

fn open_tun() -> Result<std::fs::File, Error> {
    OpenOptions::new().read(true).write(true).open(TUN).map_err(|error| {
        Error::io(format!("{TUN} cannot be opened; load the kernel's module tun (modprobe tun)"), error)
    })
}

fn make(config: &Config, call: &Call) -> Result<(), Error> {
    let name = &call.attachment.interface;
    create(&open_tun()?, name, config.many_queues, config.owner, config.group).map_err(|errno| {
        if errno == Errno::BUSY || errno == Errno::EXIST || errno == Errno::INVAL {
            return Error::with(Kind::Mismatch, format!("{name} exists already, or cannot be made"), errno);
        }
        Error::with(Kind::Kernel, format!("the kernel did not create the tap device {name}"), errno)
    })
}

fn set_up(config: &Config, call: &Call, bridge: Option<&Link>, router: &mut Router) -> Result<Link, Error> {
    let name = &call.attachment.interface;
    let index = find(name, router)?.ok_or_else(odd)?.index;
    let mut requests: Vec<Request> = Vec::new();
    let alias = LinkAttribute::IfAlias(identity::alias(&call.network, &call.attachment));
    requests.push(Link::change(index, alias, format!("set the alias of {name}")));
    requests.extend(config.mac.map(|mac| {
        let attribute = LinkAttribute::Address(mac.0.to_vec());
        Link::change(index, attribute, format!("set the Ethernet address of {name} to {mac}"))
    }));
    requests.extend(
        config.mtu.map(|mtu| {
            Link::change(index, LinkAttribute::Mtu(mtu), format!("set the MTU of {name} to {mtu}"))
        }),
    );
    requests.extend(bridge.map(|bridge| {
        let what = format!("make {name} a port of the bridge {}", bridge.name);
        Link::change(index, LinkAttribute::Controller(bridge.index), what)
    }));
    requests.push(Link::switch(index, Flag::Up, true, format!("set {name} up")));
    requests.push(Link::get_index(index));
    let mut shown = Vec::new();
    for answer in router.exchange(requests)? {
        shown.extend(Link::all(&answer.done()?));
    }
    shown.pop().ok_or_else(odd)
}

fn bridge(name: &str, router: &mut Router) -> Result<Link, Error> {
    let found = find(name, router)?;
    let bridge =
        found.ok_or_else(|| Error::mismatch(format!("the bridge {name} is not in the tap's namespace")))?;
    if !bridge.is_bridge() {
        return Err(Error::mismatch(format!("{name} is not a bridge")));
    }
    Ok(bridge)
}

/// Removes the attachment's device: what has its name, is a tap device, and bears its alias, or none, as one that the
/// reference made or an ADD that was cut short.
fn remove(call: &Call, router: &mut Router) -> Result<(), Error> {
    let alias = identity::alias(&call.network, &call.attachment);
    let ours = |link: &Link| link.is_tun() && (link.alias.is_empty() || link.alias == alias);
    match find(&call.attachment.interface, router)? {
        Some(link) if ours(&link) => delete_link(&link, router),
        Some(_) | None => Ok(()),
    }
}

fn delete_link(link: &Link, router: &mut Router) -> Result<(), Error> {
    for answer in router.exchange(vec![Link::delete(link.index, &link.name)])? {
        // It may be gone by now.
        if !answer.refusal().is_some_and(|refusal| matches!(refusal.errno, Errno::NODEV | Errno::NXIO)) {
            answer.done()?;
        }
    }
    Ok(())
}

fn find(name: &str, router: &mut Router) -> Result<Option<Link>, Error> {
    let answer = router.exchange(vec![Link::get(name)])?.into_iter().next();
    answer.map(crate::bridge::present).transpose().map(Option::flatten)
}

fn odd() -> Error {
    Error::new(Kind::Kernel, "the kernel's netlink answer is incomplete")
}
