//! Routes: what is read of them, and the request that adds one.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::Request;
use crate::netlink::address::family;

/// A route to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Where it leads.
    pub destination: IpNet,
    /// The gateway; none: the destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// In bytes, like `advmss`; these and the following since 1.1.0.
    pub mtu: Option<u32>,
    /// Largest segment of TCP that is advertised.
    pub advmss: Option<u32>,
    /// The lower the better.
    pub priority: Option<u32>,
    /// Number of the table; none: the main one.
    pub table: Option<u32>,
    /// How far, `RT_SCOPE_…`.
    pub scope: Option<u8>,
}

impl Route {
    /// A route with nothing but its two ends.
    pub fn new(destination: IpNet, gateway: Option<IpAddr>) -> Self {
        Self { destination, gateway, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }
}

/// A route that the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Where it leads.
    pub destination: IpNet,
    /// The gateway, if any.
    pub gateway: Option<IpAddr>,
    /// Number of the table it is in.
    pub table: u32,
    /// Number of the link that packets leave by.
    pub link: Option<u32>,
}

impl KernelRoute {
    /// The routes in an answer, without those of multicast and the like.
    pub fn all(messages: &[RouteNetlinkMessage]) -> Vec<Self> {
        messages.iter().flat_map(Self::read).collect()
    }

    /// A route with several next hops is as many routes.
    fn read(message: &RouteNetlinkMessage) -> Vec<Self> {
        let RouteNetlinkMessage::NewRoute(message) = message else { return Vec::new() };
        if message.header.kind != RouteType::Unicast {
            return Vec::new();
        }
        let mut destination = if message.header.address_family == AddressFamily::Inet {
            IpAddr::from([0; 4])
        } else {
            IpAddr::from([0; 16])
        };
        let mut table = u32::from(message.header.table);
        let mut link = None;
        let mut gateways = Vec::new();
        let mut hops = Vec::new();
        for attribute in &message.attributes {
            if let RouteAttribute::Destination(address) = attribute {
                destination = plain(address).unwrap_or(destination);
            } else if let RouteAttribute::Gateway(address) = attribute {
                gateways.push(plain(address));
            } else if let RouteAttribute::Table(number) = attribute {
                table = *number;
            } else if let RouteAttribute::Oif(number) = attribute {
                link = Some(*number);
            } else if let RouteAttribute::MultiPath(all) = attribute {
                for hop in all {
                    let gateway = hop.attributes.iter().find_map(|attribute| {
                        if let RouteAttribute::Gateway(address) = attribute { plain(address) } else { None }
                    });
                    hops.push((gateway, Some(hop.interface_index)));
                }
            }
        }
        hops.extend(gateways.into_iter().map(|gateway| (gateway, link)));
        if hops.is_empty() {
            hops.push((None, link));
        }
        let Ok(destination) = IpNet::new(destination, message.header.destination_prefix_length) else {
            return Vec::new();
        };
        hops.into_iter().map(|(gateway, link)| Self { destination, gateway, table, link }).collect()
    }

    /// Asks for all routes of a namespace.
    pub fn list() -> Request {
        Request::dump(RouteNetlinkMessage::GetRoute(RouteMessage::default()), "list the routes")
    }

    /// Adds a route over a link, in addition to the same destination's routes by other gateways.
    pub fn add(link: u32, route: &Route, name: &str) -> Request {
        let mut message = RouteMessage::default();
        message.header.address_family = family(route.destination.addr());
        message.header.destination_prefix_length = route.destination.prefix_len();
        message.header.protocol = RouteProtocol::Boot;
        message.header.kind = RouteType::Unicast;
        // The kernel refuses a gateway in the scope of the link itself.
        message.header.scope = match (route.scope, route.gateway) {
            (Some(scope), _) => RouteScope::from(scope),
            (None, Some(_)) => RouteScope::Universe,
            (None, None) if route.destination.addr().is_ipv4() => RouteScope::Link,
            (None, None) => RouteScope::Universe,
        };
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Destination(route.destination.network().into()));
        attributes.push(RouteAttribute::Oif(link));
        let mut by = String::new();
        if let Some(gateway) = route.gateway {
            attributes.push(RouteAttribute::Gateway(gateway.into()));
            by = format!(" via {gateway}");
        }
        if let Some(priority) = route.priority {
            attributes.push(RouteAttribute::Priority(priority));
        }
        let metrics = [route.mtu.map(RouteMetric::Mtu), route.advmss.map(RouteMetric::Advmss)];
        let metrics: Vec<RouteMetric> = metrics.into_iter().flatten().collect();
        if !metrics.is_empty() {
            attributes.push(RouteAttribute::Metrics(metrics));
        }
        match route.table {
            Some(table) => attributes.push(RouteAttribute::Table(table)),
            None => message.header.table = RouteHeader::RT_TABLE_MAIN,
        }
        let what = format!("add the route to {}{by} over {name}", route.destination);
        Request::add(RouteNetlinkMessage::NewRoute(message), what)
    }
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    if let RouteAddress::Inet(address) = address {
        Some(IpAddr::V4(*address))
    } else if let RouteAddress::Inet6(address) = address {
        Some(IpAddr::V6(*address))
    } else {
        None
    }
}
