//! `macspoofchk` by the bridge itself: the port is locked, and the forwarding database has the pod's address for it. A frame
//! from another address is thrown away at the port, and the address cannot be taken over through another one.
//!
//! ```text
//!  port locked, not learning          frame from the pod ─► is its source in the database, at this port? ─► else dropped
//!  entry per VLAN, static, sticky     frame of another port with that source: no change of the entry
//! ```
//!
//! Both end with the link: DEL has nothing to remove. When the port joins or leaves VLANs later, the node agent has the entries
//! follow ([`link::locked`]). Needs Linux 5.18; an older kernel passes over the lock, and the rules
//! of [`crate::nft::SpoofCheck`] take its place.
//!
//! Not here: the decision which of the two, and in which VLANs.

use crate::error::{Error, Kind};
use crate::netlink::{Link, Router, VlanRange};
use crate::protocol::{Interface, Mac};
use link::locked;

/// First release of Linux with locked ports.
const RELEASE: (u32, u32) = (5, 18);

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

/// Fixes the pod's address to its port, in these VLANs, or on a bridge that does not filter them. A port in no VLAN gets the
/// entry without one, from which the node agent takes the address when the port joins a VLAN.
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
        None | Some([]) => vec![None],
        Some(ranges) => ranges.iter().flat_map(|one| one.first..=one.last).map(Some).collect(),
    };
    let Some(taken) = locked::fix(port.index, mac, &all, host)?.into_iter().next() else { return Ok(()) };
    let message = format!(
        "the Ethernet address {mac} belongs to the port {} of the bridge; detach it there, or give one of the \
         two another address",
        taken.port
    );
    Err(Error::new(Kind::Mismatch, message))
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
    let found = locked::entry(port.index, mac, first.map(|one| one.first), host)?;
    if found.is_some_and(|entry| entry.fixed && entry.port == port.index) {
        return Ok(());
    }
    Err(Error::mismatch(format!(
        "{mac} is not fixed to {} any more: frames from there are dropped",
        port.name
    )))
}
