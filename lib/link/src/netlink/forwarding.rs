//! Entries of a bridge's forwarding database: which port has an Ethernet address.

use netlink_packet_core::DefaultNla;
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::Request;
use mac::Mac;

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Index of the port.
    pub port: u32,
    /// The address.
    pub mac: Option<Mac>,
    /// The VLAN; none on a bridge that does not filter them.
    pub vlan: Option<u16>,
    /// Made by an administrator or the kernel itself, not learned from a frame.
    pub fixed: bool,
    /// Frames of other ports do not move it.
    pub sticky: bool,
}

/// Attribute of a request that removes many entries: the flags that decide which. From linux/neighbour.h.
const NDA_NDM_FLAGS_MASK: u16 = 17;

impl Forwarding {
    /// Reads a message; none when it is not of an entry.
    pub fn read(message: &RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
        let header = &message.header;
        if header.family != AddressFamily::Bridge {
            return None;
        }
        let fixed = matches!(header.state, NeighbourState::Noarp | NeighbourState::Permanent);
        let sticky = header.flags.contains(NeighbourFlags::Sticky);
        let mut entry = Self { port: header.ifindex, mac: None, vlan: None, fixed, sticky };
        for attribute in &message.attributes {
            if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute {
                entry.mac = Mac::from_bytes(bytes);
            } else if let NeighbourAttribute::Vlan(vlan) = attribute {
                entry.vlan = Some(*vlan);
            }
        }
        Some(entry)
    }

    /// Asks for the entry of an address on the bridge that the link `port` is a port of. There may be none (ENOENT).
    pub fn get(port: u32, mac: Mac, vlan: Option<u16>) -> Request {
        let message = RouteNetlinkMessage::GetNeighbour(message(port, mac, vlan));
        Request::new(message, format!("show which port of the bridge has {mac}{}", of(vlan)))
    }

    /// Asks for all entries of the bridge of an index. The socket must be strict.
    pub fn list(bridge: u32) -> Request {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.attributes.push(NeighbourAttribute::Controller(bridge));
        Request::dump(RouteNetlinkMessage::GetNeighbour(message), "list the forwarding entries of a bridge")
    }

    /// Removes the sticky entries that a port has in a VLAN, which it need not be in: there the kernel does not remove one by its
    /// address. Needs Linux 5.19.
    pub fn release(port: u32, vlan: u16) -> Request {
        let sticky = NeighbourFlags::Sticky;
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = port;
        message.header.flags = NeighbourFlags::Controller | sticky;
        message.attributes.push(NeighbourAttribute::Vlan(vlan));
        let mask = DefaultNla::new(NDA_NDM_FLAGS_MASK, vec![sticky.bits()]);
        message.attributes.push(NeighbourAttribute::Other(mask));
        let what = format!("remove the fixed forwarding entries of a port in VLAN {vlan}");
        Request::bulk(RouteNetlinkMessage::DelNeighbour(message), what)
    }

    /// Fixes an address to a port: frames of other ports with that address do not move it. Without a VLAN: in all that the
    /// port is in, and without one. The entry goes with the port.
    ///
    /// `replace`: what the bridge has learned of the address is forgotten; otherwise there must be no entry (EEXIST).
    pub fn fix(port: u32, mac: Mac, vlan: Option<u16>, replace: bool) -> Request {
        let mut message = message(port, mac, vlan);
        message.header.state = NeighbourState::Noarp;
        message.header.flags |= NeighbourFlags::Sticky;
        let (message, what) =
            (RouteNetlinkMessage::NewNeighbour(message), format!("fix {mac}{} to its port", of(vlan)));
        if replace { Request::replace(message, what) } else { Request::create(message, what) }
    }
}

fn message(port: u32, mac: Mac, vlan: Option<u16>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = port;
    message.header.flags = NeighbourFlags::Controller;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    message.attributes.extend(vlan.map(NeighbourAttribute::Vlan));
    message
}

fn of(vlan: Option<u16>) -> String {
    vlan.map(|vlan| format!(" in VLAN {vlan}")).unwrap_or_default()
}
