//! The guest's DHCP configuration, from its network's result: pure.

use std::net::{IpAddr, Ipv4Addr};

use api::launch::{Dhcp, DhcpOptions, Lease4, Route4};
use ipnet::IpNet;

use super::cni_result::CniResult;
use super::{Binding, Interface, Resolvers, WantedNetworks, plan};

/// Most resolvers, and most domains.
const MOST: usize = 6;

/// The guest's DHCP configuration; `None` where the network gave no address.
pub(crate) fn dhcp_config(
    wanted: &WantedNetworks,
    one: &Interface,
    outcome: &CniResult,
    number: u8,
) -> Option<Dhcp> {
    let given = outcome.v4();
    let (v4, v6) = match &one.binding {
        Binding::Masquerade { v4, v6, .. } => {
            let (gateway, address) = plan::pair(*v4);
            let lease = Lease4 {
                address,
                prefix: v4.prefix_len(),
                server: gateway,
                gateway: Some(gateway),
                routes: Vec::new(),
            };
            (Some(lease), outcome.v6().map(|_| plan::pair6(*v6).1))
        }
        Binding::Bridge => {
            let (address, gateway) = given?;
            let default = |(net, gateway): &(IpNet, Option<IpAddr>)| match (net, gateway) {
                (IpNet::V4(net), Some(IpAddr::V4(gateway))) if net.prefix_len() == 0 => Some(*gateway),
                (IpNet::V4(_) | IpNet::V6(_), _) => None,
            };
            let route = |(net, via): &(IpNet, Option<IpAddr>)| match (net, via) {
                (IpNet::V4(net), via) if net.prefix_len() > 0 => {
                    let gateway = match via {
                        Some(IpAddr::V4(via)) => *via,
                        Some(IpAddr::V6(_)) => return None,
                        None => gateway.unwrap_or(Ipv4Addr::UNSPECIFIED),
                    };
                    Some(Route4 { network: net.network(), prefix: net.prefix_len(), gateway })
                }
                (IpNet::V4(_) | IpNet::V6(_), _) => None,
            };
            let lease = Lease4 {
                address: address.addr(),
                prefix: address.prefix_len(),
                server: plan::responder(number),
                // Without a default route the network is no way out.
                gateway: outcome.routes.iter().find_map(default),
                routes: outcome.routes.iter().filter_map(route).collect(),
            };
            (Some(lease), None)
        }
    };
    let Resolvers { addresses, search, .. } = &wanted.resolvers;
    let mut resolvers =
        if outcome.resolvers.is_empty() { addresses.clone() } else { outcome.resolvers.clone() };
    if resolvers.is_empty() {
        // Names are forwarded there.
        resolvers.extend(given.and_then(|(_, gateway)| gateway).map(IpAddr::V4));
    }
    resolvers.truncate(MOST);
    let search = if outcome.search.is_empty() { search } else { &outcome.search };
    let search = search.iter().filter(|name| is_domain(name)).take(MOST).cloned().collect();
    let host_name = wanted.name.split('.').next().unwrap_or_default().chars().take(63).collect();
    let options = DhcpOptions::default();
    Some(Dhcp { link: one.names.bridge.clone(), v4, v6, resolvers, search, host_name, options })
}

fn is_domain(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        })
}
