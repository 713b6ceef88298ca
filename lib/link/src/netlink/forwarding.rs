//! Entries of a bridge's forwarding database: which port has an Ethernet address.

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
}

impl Forwarding {
    /// Reads a message; none when it is not of an entry.
    pub fn read(message: &RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
        let header = &message.header;
        if header.family != AddressFamily::Bridge {
            return None;
        }
        let fixed = matches!(header.state, NeighbourState::Noarp | NeighbourState::Permanent);
        let mut entry = Self { port: header.ifindex, mac: None, vlan: None, fixed };
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
