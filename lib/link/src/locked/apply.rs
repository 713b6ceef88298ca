//! Makes and removes entries of locked ports.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::plan::{Change, Port, plan};
use crate::error::Error;
use crate::netlink::{Forwarding, Link, Request, Router};
use mac::Mac;

/// Requests in one system call.
const AT_ONCE: usize = 256;

/// An address that another port of the bridge has for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// In this VLAN; none: on a bridge that does not filter them.
    pub vlan: Option<u16>,
    /// Name of that port.
    pub port: String,
}

/// Fixes an address to the port of an index, in VLANs that the port is in; `None`: in all of these and without a VLAN. A
/// learned entry is replaced: the guest was on another node, for one. Returns the VLANs in which another port keeps it.
///
/// # Errors
/// [`crate::Kind::Kernel`].
pub fn fix(port: u32, mac: Mac, vlans: &[Option<u16>], router: &mut Router) -> Result<Vec<Taken>, Error> {
    let mut taken = Vec::new();
    for some in vlans.chunks(AT_ONCE) {
        let requests = some.iter().map(|vlan| Forwarding::fix(port, mac, *vlan, false));
        for (answer, vlan) in router.exchange(requests.collect())?.into_iter().zip(some) {
            if answer.refusal().is_some_and(|refusal| refusal.errno == Errno::EXIST) {
                taken.extend(claim(port, mac, *vlan, router)?);
            } else {
                answer.done()?;
            }
        }
    }
    Ok(taken)
}

/// Takes over a learned entry.
fn claim(port: u32, mac: Mac, vlan: Option<u16>, router: &mut Router) -> Result<Option<Taken>, Error> {
    let entry = entry(port, mac, vlan, router)?;
    if let Some(entry) = entry.filter(|entry| entry.fixed && entry.port != port) {
        let shown = router.ask(Link::get_index(entry.port)).map(|messages| Link::all(&messages));
        let name = shown.ok().and_then(|mut links| links.pop()).map(|link| link.name).unwrap_or_default();
        return Ok(Some(Taken { vlan, port: name }));
    }
    router.ask(Forwarding::fix(port, mac, vlan, true))?;
    Ok(None)
}

/// The entry of an address on the bridge that has the port of an index.
///
/// # Errors
/// [`crate::Kind::Kernel`].
pub fn entry(
    port: u32,
    mac: Mac,
    vlan: Option<u16>,
    router: &mut Router,
) -> Result<Option<Forwarding>, Error> {
    let Some(answer) = router.exchange(vec![Forwarding::get(port, mac, vlan)])?.pop() else {
        return Ok(None);
    };
    if answer.refusal().is_some_and(|refusal| refusal.errno == Errno::NOENT) {
        return Ok(None);
    }
    Ok(answer.done()?.iter().find_map(Forwarding::read))
}

/// Has the entries of all locked ports among `links` follow the ports' VLANs: one in each. Returns the reasons why some could
/// not; a port that changes at the same time is one, and its change is an event. `router` is strict.
///
/// # Errors
/// [`crate::Kind::Kernel`]: ports or entries cannot be listed.
pub fn follow(links: &[Link], router: &mut Router) -> Result<Vec<String>, Error> {
    let locked: Vec<&Link> =
        links.iter().filter(|link| link.port.is_some_and(|settings| settings.locked)).collect();
    let bridges: BTreeSet<u32> = locked.iter().filter_map(|port| port.master).collect();
    // Entries before VLANs: a port joins a VLAN before it gets its entry there, so that no new entry appears left over.
    let mut entries = Vec::new();
    for bridge in &bridges {
        entries.extend(router.ask(Forwarding::list(*bridge))?.iter().filter_map(Forwarding::read));
    }
    entries.retain(|entry| entry.sticky);
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    let shown = Link::all(&router.ask(Link::list_vlans())?);
    let filters = |bridge: u32| {
        let facts = links.iter().find(|link| link.index == bridge).and_then(|bridge| bridge.bridge);
        facts.is_some_and(|facts| facts.vlan_filtering)
    };
    let ports = locked.iter().filter_map(|port| {
        let vlans = shown.iter().find(|one| one.index == port.index)?.vlans.clone();
        Some(Port { index: port.index, filters: port.master.is_some_and(filters), vlans })
    });
    let mut reasons = Vec::new();
    for change in plan(&ports.collect::<Vec<_>>(), &entries) {
        let name = links.iter().find(|link| link.index == change.port).map_or("", |link| link.name.as_str());
        match carry_out(&change, router) {
            Ok(taken) => reasons.extend(taken.into_iter().map(|taken| {
                let vlan = taken.vlan.map(|vlan| format!(" in VLAN {vlan}")).unwrap_or_default();
                let Taken { port, .. } = taken;
                format!("{}{vlan} belongs to {port}: frames of {name} with it are dropped there", change.mac)
            })),
            Err(error) => reasons.push(format!("{name}: {}", error.chain())),
        }
    }
    Ok(reasons)
}

/// Entries are made first, and none is removed while one cannot be made: as long as a port has an entry, its address is known.
fn carry_out(change: &Change, router: &mut Router) -> Result<Vec<Taken>, Error> {
    let Change { port, mac, fix: missing, release } = change;
    let taken = fix(*port, *mac, missing, router)?;
    if !taken.is_empty() {
        return Ok(taken);
    }
    for some in release.chunks(AT_ONCE) {
        let requests: Vec<Request> = some.iter().map(|vlan| Forwarding::release(*port, *vlan)).collect();
        for answer in router.exchange(requests)? {
            answer.done()?;
        }
    }
    Ok(taken)
}
