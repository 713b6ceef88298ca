//! `macspoofchk` by the bridge itself: the port is locked, and the forwarding database has the pod's address for it. A frame
//! from another address is thrown away at the port, and the address cannot be taken over through another one.
//!
//! ```text
//!  port locked, not learning          frame from the pod ─► is its source in the database, at this port? ─► else dropped
//!  entry per VLAN, static, sticky     frame of another port with that source: no change of the entry
//! ```
//!
//! Both end with the link: DEL has nothing to remove. Needs Linux 5.18; an older kernel passes over the lock, and the rules
//! of [`crate::nft::SpoofCheck`] take its place.
//!
//! Not here: the decision which of the two, and in which VLANs.

use rustix::io::Errno;

use crate::error::{Error, Kind};
use crate::netlink::{Link, Router, VlanRange};
use crate::protocol::{Interface, Mac};
use link::netlink::Forwarding;

/// First release of Linux with locked ports.
const RELEASE: (u32, u32) = (5, 18);
/// Requests in one system call.
const AT_ONCE: usize = 256;

/// Whether a port is locked, as the kernel describes it.
pub(super) fn is_locked(port: &Link) -> bool {
    port.port.is_some_and(|settings| settings.locked)
}

/// Whether this kernel has locked ports, by its release.
pub(super) fn offered() -> bool {
    let release = rustix::system::uname();
    let mut numbers = release.release().to_str().unwrap_or_default().split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= RELEASE,
        _ => false,
    }
}

/// Fixes the pod's address to its port, in these VLANs, or on a bridge that does not filter them.
///
/// # Errors
/// [`Kind::Mismatch`] when another port has it for good; [`Kind::Kernel`].
pub(super) fn fix(
    port: &Link,
    mac: Mac,
    vlans: Option<&[VlanRange]>,
    host: &mut Router,
) -> Result<(), Error> {
    let all: Vec<Option<u16>> = match vlans {
        None => vec![None],
        Some(ranges) => ranges.iter().flat_map(|one| one.first..=one.last).map(Some).collect(),
    };
    for some in all.chunks(AT_ONCE) {
        let requests = some.iter().map(|vlan| Forwarding::fix(port.index, mac, *vlan, false));
        for (answer, vlan) in host.exchange(requests.collect())?.into_iter().zip(some) {
            if answer.refusal().is_some_and(|refusal| refusal.errno == Errno::EXIST) {
                claim(port, mac, *vlan, host)?;
            } else {
                answer.done()?;
            }
        }
    }
    Ok(())
}

/// Takes over what the bridge has learned of an address: where the guest was before, on another node for one.
fn claim(port: &Link, mac: Mac, vlan: Option<u16>, host: &mut Router) -> Result<(), Error> {
    let entry = entry(port, mac, vlan, host)?;
    if let Some(entry) = entry.filter(|entry| entry.fixed && entry.port != port.index) {
        let shown = host.ask(Link::get_index(entry.port)).map(|messages| Link::all(&messages));
        let name = shown.ok().and_then(|mut links| links.pop()).map(|link| link.name).unwrap_or_default();
        let message = format!(
            "the Ethernet address {mac} belongs to the port {name} of the bridge; end what is attached there, or give one of \
             them another address"
        );
        return Err(Error::new(Kind::Mismatch, message));
    }
    host.ask(Forwarding::fix(port.index, mac, vlan, true))?;
    Ok(())
}

fn entry(port: &Link, mac: Mac, vlan: Option<u16>, host: &mut Router) -> Result<Option<Forwarding>, Error> {
    let Some(answer) = host.exchange(vec![Forwarding::get(port.index, mac, vlan)])?.pop() else {
        return Ok(None);
    };
    if answer.refusal().is_some_and(|refusal| refusal.errno == Errno::NOENT) {
        return Ok(None);
    }
    Ok(answer.done()?.iter().find_map(Forwarding::read))
}

/// Whether the locked port still has the pod's address, in the VLAN of frames without a tag or on a bridge that does not
/// filter them.
///
/// # Errors
/// [`Kind::Mismatch`] when it has not; [`Kind::Kernel`].
pub(super) fn check(
    port: &Link,
    pod_end: &Interface,
    vlans: Option<&[VlanRange]>,
    host: &mut Router,
) -> Result<(), Error> {
    let Ok(mac) = link::interface_mac(&pod_end.mac) else { return Ok(()) };
    let first = vlans.and_then(|ranges| ranges.iter().find(|one| one.native).or(ranges.first()));
    if vlans.is_some() && first.is_none() {
        return Ok(());
    }
    let found = entry(port, mac, first.map(|one| one.first), host)?;
    if found.is_some_and(|entry| entry.fixed && entry.port == port.index) {
        return Ok(());
    }
    Err(Error::mismatch(format!(
        "{mac} is not fixed to {} any more: frames from there are dropped",
        port.name
    )))
}
