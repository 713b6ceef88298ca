//! Makes the bridge the pods' gateway: its addresses, a fixed Ethernet address, forwarding. With a VLAN the addresses are on
//! `<bridge>.<vlan>`, a link whose other end is a port of the bridge in that VLAN; it stays, like the bridge.

use ipnet::IpNet;
use netlink_packet_route::link::LinkAttribute;
use rustix::io::Errno;
use sha2::{Digest, Sha512};

use crate::bridge::addressing::{Addressing, GatewayStep, gateway_step};
use crate::bridge::config::Config;
use crate::bridge::identity;
use crate::bridge::plan::{HOST_END, VlanGateway};
use crate::bridge::undo::{Step, Undo, find};
use crate::error::{Error, Kind};
use crate::netlink::{Address, Flag, Link, Router, VethPair};
use crate::protocol::Mac;
use link::Namespace;

/// The links of the host's side.
pub(super) struct Ends<'a> {
    pub(super) bridge: &'a Link,
    /// The bridge's Ethernet address before it got this port.
    pub(super) mac_before: Option<Mac>,
    pub(super) host_end: &'a Link,
}

/// Gives the bridge, or its link in the VLAN, the gateway's addresses, and lets the kernel forward. The link in the VLAN,
/// if there is one.
///
/// # Errors
/// [`Kind::Mismatch`] when the link has other addresses and `forceAddress` is not set; [`Kind::Kernel`].
pub(super) fn provide(
    config: &Config,
    addressing: &Addressing,
    vlan: Option<&VlanGateway>,
    Ends { bridge, mac_before, host_end }: Ends<'_>,
    home: &Namespace,
    host: &mut Router,
    undo: &mut Undo,
) -> Result<Option<Link>, Error> {
    let in_vlan = vlan.map(|vlan| vlan_link(vlan, bridge, home, host, undo)).transpose()?;
    let link = in_vlan.as_ref().unwrap_or(bridge);
    let mac_before = mac_before.filter(|_| in_vlan.is_none());
    // Where this is refused, all addresses are listed, and filtered below.
    let _ = host.strict();
    let mut found = Address::all(&host.ask(Address::list(Some(link.index)))?);
    found.retain(|address| address.link == link.index);
    for address in &addressing.gateways {
        match gateway_step(&link.name, &found, *address, &addressing.gateways, config.force_address)? {
            GatewayStep::Keep => {}
            GatewayStep::Add { remove } => {
                for old in remove {
                    host.ask(Address::remove(link.index, old, &link.name))?;
                    undo.note(Step::Ask(Address::add(link.index, old, &link.name)));
                    found.retain(|found| found.network != old);
                }
                let mac = pinned(link, mac_before, host_end, home);
                add(*address, link, mac, bridge, host, undo)?;
            }
        }
    }
    for (path, needed) in [
        ("/proc/sys/net/ipv4/ip_forward", addressing.gateways.iter().any(|one| one.addr().is_ipv4())),
        (
            "/proc/sys/net/ipv6/conf/all/forwarding",
            addressing.gateways.iter().any(|one| one.addr().is_ipv6()),
        ),
    ] {
        if needed {
            forward(path)?;
        }
    }
    Ok(in_vlan)
}

/// The Ethernet address that the link shall keep: the one it had before it got this port, if any. Without a fixed one a
/// bridge takes the least of its ports', which come and go; and a port's own would be twice on the node.
fn pinned(link: &Link, before: Option<Mac>, host_end: &Link, home: &Namespace) -> Mac {
    let is_its_own = |mac: &Mac| *mac != Mac([0; 6]) && !is_of_a_host_end(*mac) && Some(*mac) != host_end.mac;
    let found = before.filter(is_its_own).or_else(|| link.mac.filter(is_its_own));
    found.unwrap_or_else(|| derived_mac(&link.name, home))
}

/// The Ethernet address of a link that has none of its own. ADDs that race come to the same one.
pub(super) fn derived_mac(link: &str, home: &Namespace) -> Mac {
    Mac::local(derived(link, home))
}

/// Whether an address is one that `plan` gives to host ends.
fn is_of_a_host_end(mac: Mac) -> bool {
    mac.0[0] == HOST_END
}

/// Bytes that differ from node to node, and from one start of it to the next.
fn derived(name: &str, home: &Namespace) -> [u8; 6] {
    let start = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut hash = Sha512::new();
    hash.update(start);
    hash.update(home.number().to_ne_bytes());
    hash.update(name.as_bytes());
    let mut bytes = [0; 6];
    bytes.iter_mut().zip(hash.finalize()).for_each(|(byte, from)| *byte = from);
    bytes
}

fn add(
    address: IpNet,
    link: &Link,
    mac: Mac,
    bridge: &Link,
    host: &mut Router,
    undo: &mut Undo,
) -> Result<(), Error> {
    let name = &link.name;
    // The Ethernet address comes first: neighbours that resolve the address then get the final one.
    let what = format!("fix the Ethernet address of {name}");
    let fix = Link::change(link.index, LinkAttribute::Address(mac.0.to_vec()), what);
    let mut answers = host.exchange(vec![fix, Address::add(link.index, address, name)])?;
    let added = answers.pop();
    for answer in answers {
        answer.done()?;
    }
    if let Some(added) = added {
        // Another ADD was faster.
        if added.refusal().is_some_and(|refusal| refusal.errno == Errno::EXIST) {
            return Ok(());
        }
        added.done()?;
        undo.note(Step::Gateway { link: link.index, name: name.clone(), address, bridge: bridge.index });
    }
    Ok(())
}

/// The link in the VLAN, made if it is not there.
fn vlan_link(
    vlan: &VlanGateway,
    bridge: &Link,
    home: &Namespace,
    host: &mut Router,
    undo: &mut Undo,
) -> Result<Link, Error> {
    if let Some(link) = find(host, &vlan.name)? {
        return Ok(link);
    }
    let port = identity::vlan_port_name(&vlan.name);
    let [_, a, b, c, d, e] = derived(&port, home);
    let pair = VethPair {
        host_name: port.clone(),
        host_mac: Mac([HOST_END, a, b, c, d, e]),
        pod_name: vlan.name.clone(),
        pod_mac: Mac::local(derived(&vlan.name, home)),
        pod_up: true,
        mtu: Some(bridge.mtu),
    };
    let made = host.exchange(vec![
        Link::create_veth(&pair, home.raw()),
        Link::enslave(&port, bridge.index, ""),
        Link::get(&port),
    ])?;
    let mut made = made.into_iter();
    let missing = || Error::new(Kind::Kernel, "the kernel's netlink answer is incomplete");
    let created = made.next().ok_or_else(missing)?;
    if created.refusal().is_some_and(|refusal| refusal.errno == Errno::EXIST) {
        // Another ADD was faster.
        return find(host, &vlan.name)?.ok_or_else(missing);
    }
    created.done()?;
    undo.note(Step::HostEnd { name: vlan.name.clone() });
    made.next().ok_or_else(missing)?.done()?;
    let shown = Link::all(&made.next().ok_or_else(missing)?.done()?).pop().ok_or_else(missing)?;
    let mut requests = Vec::new();
    if !vlan.leave.is_empty() {
        requests.push(Link::leave_vlans(
            shown.index,
            &vlan.leave,
            format!("take {port} out of the default VLAN"),
        ));
    }
    requests.push(Link::join_vlans(shown.index, &vlan.join, format!("put {port} into its VLAN")));
    requests.push(Link::switch(shown.index, Flag::Up, true, format!("set {port} up")));
    for answer in host.exchange(requests)? {
        answer.done()?;
    }
    find(host, &vlan.name)?.ok_or_else(missing)
}

/// Enables forwarding. It stays enabled: other programs may rely on it by now.
fn forward(path: &str) -> Result<(), Error> {
    if std::fs::read(path).is_ok_and(|value| value.trim_ascii() == b"1") {
        return Ok(());
    }
    std::fs::write(path, "1").map_err(|error| {
        Error::with(Kind::Kernel, format!("forwarding cannot be switched on by {path}"), error)
    })
}
