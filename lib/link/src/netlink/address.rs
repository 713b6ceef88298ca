//! Addresses of links: what is read of them, and the requests that add and remove them.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::Request;

/// An address of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of the link.
    pub link: u32,
    /// The address with its prefix.
    pub network: IpNet,
    /// Given by the kernel to every link, and of no use beyond it.
    pub link_local: bool,
    /// Duplicate address detection is not done with it yet.
    pub tentative: bool,
    /// Duplicate address detection found another owner.
    pub duplicate: bool,
}

impl Address {
    /// Reads a message; none when it is not of an address.
    pub fn read(message: &RouteNetlinkMessage) -> Option<Self> {
        let RouteNetlinkMessage::NewAddress(message) = message else { return None };
        let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
        // For a point-to-point link the one is the other end's.
        let (mut local, mut address) = (None, None);
        for attribute in &message.attributes {
            if let AddressAttribute::Local(found) = attribute {
                local = Some(*found);
            } else if let AddressAttribute::Address(found) = attribute {
                address = Some(*found);
            } else if let AddressAttribute::Flags(found) = attribute {
                flags = *found;
            }
        }
        Some(Self {
            link: message.header.index,
            network: IpNet::new(local.or(address)?, message.header.prefix_len).ok()?,
            link_local: message.header.scope == AddressScope::Link,
            tentative: flags.contains(AddressFlags::Tentative),
            duplicate: flags.contains(AddressFlags::Dadfailed),
        })
    }

    /// The addresses in an answer.
    pub fn all(messages: &[RouteNetlinkMessage]) -> Vec<Self> {
        messages.iter().filter_map(Self::read).collect()
    }

    /// Asks for the addresses of a link, or of all. Only a strict socket leaves out other links', see
    /// [`crate::netlink::Router::strict`].
    pub fn list(link: Option<u32>) -> Request {
        let mut message = AddressMessage::default();
        message.header.index = link.unwrap_or_default();
        Request::dump(RouteNetlinkMessage::GetAddress(message), "list the addresses")
    }

    /// The same in the namespace that this one knows by a number. Only a strict socket may ask.
    pub fn list_elsewhere(link: u32, namespace: i32) -> Request {
        let mut message = AddressMessage::default();
        message.header.index = link;
        message.attributes.push(AddressAttribute::TargetNetNsId(namespace));
        Request::dump(RouteNetlinkMessage::GetAddress(message), "list the addresses of a pod")
    }

    /// Gives a link an address.
    pub fn add(link: u32, network: IpNet, name: &str) -> Request {
        let what = format!("give {name} the address {network}");
        Request::create(RouteNetlinkMessage::NewAddress(message(link, network)), what)
    }

    /// Takes an address away.
    pub fn remove(link: u32, network: IpNet, name: &str) -> Request {
        let what = format!("take the address {network} from {name}");
        Request::new(RouteNetlinkMessage::DelAddress(message(link, network)), what)
    }
}

fn message(link: u32, network: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = link;
    message.header.prefix_len = network.prefix_len();
    message.header.family = family(network.addr());
    message.attributes.push(AddressAttribute::Local(network.addr()));
    message.attributes.push(AddressAttribute::Address(network.addr()));
    if let IpNet::V4(network) = network
        && network.prefix_len() < 31
    {
        message.attributes.push(AddressAttribute::Broadcast(network.broadcast()));
    }
    message
}

/// The family of an address.
pub(super) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
