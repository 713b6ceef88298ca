//! The part of a network's result that a guest needs: read from a plugin's result of ADD, or from the kernel. Pure. Results
//! since version 0.3.0 have lists, older ones one address for each family.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use link::{Mac, interface_mac};
use serde_json::{Value, json};

/// Most addresses, routes, resolvers that are looked at.
const MOST: usize = 64;

/// The result of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniResult {
    /// Addresses of the interface, with their gateways.
    pub addresses: Vec<(IpNet, Option<IpAddr>)>,
    /// Routes.
    pub routes: Vec<(IpNet, Option<IpAddr>)>,
    /// The interface's Ethernet address, if the result has it.
    pub mac: Option<Mac>,
    /// The DNS resolvers.
    pub resolvers: Vec<IpAddr>,
    /// Domains that names are looked for in.
    pub search: Vec<String>,
}

impl CniResult {
    /// Reads a result; `interface` is the link's name in the namespace. Invalid parts are left out: the plugin has reported
    /// success.
    pub fn read(answer: &Value, interface: &str) -> Self {
        let list = |of: &Value, key: &str| -> Vec<Value> {
            of.get(key)
                .and_then(Value::as_array)
                .map(|all| all.iter().take(MOST).cloned().collect())
                .unwrap_or_default()
        };
        let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
        let address = |of: &Value, key: &str| text(of, key).and_then(|text| text.parse().ok());
        let network = |of: &Value, key: &str| text(of, key).and_then(|text| text.parse::<IpNet>().ok());
        let interfaces = list(answer, "interfaces");
        let ours = |one: &Value| {
            one.get("name").and_then(Value::as_str) == Some(interface)
                && text(one, "sandbox").is_some_and(|sandbox| !sandbox.is_empty())
        };
        let mut outcome = Self::default();
        let found = interfaces.iter().find(|one| ours(one)).and_then(|one| text(one, "mac"));
        outcome.mac = found.and_then(|mac| interface_mac(&mac).ok());
        for ip in list(answer, "ips") {
            let index = ip.get("interface").and_then(Value::as_u64).and_then(|at| usize::try_from(at).ok());
            if index.and_then(|index| interfaces.get(index)).is_some_and(|one| !ours(one)) {
                continue;
            }
            outcome.addresses.extend(network(&ip, "address").map(|net| (net, address(&ip, "gateway"))));
        }
        let mut routes = list(answer, "routes");
        for family in ["ip4", "ip6"] {
            let Some(one) = answer.get(family) else { continue };
            outcome.addresses.extend(network(one, "ip").map(|net| (net, address(one, "gateway"))));
            routes.extend(list(one, "routes"));
        }
        let route = |route: &Value| Some((network(route, "dst")?, address(route, "gw")));
        outcome.routes = routes.iter().filter_map(route).collect();
        if let Some(dns) = answer.get("dns") {
            let texts = |key: &str| {
                list(dns, key).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
            };
            outcome.resolvers = texts("nameservers").iter().filter_map(|text| text.parse().ok()).collect();
            outcome.search = texts("search");
            if outcome.search.is_empty() {
                outcome.search.extend(text(dns, "domain").filter(|domain| !domain.is_empty()));
            }
        }
        outcome
    }

    /// The outcome of an interface that another program made: the kernel's addresses and routes. A route to an own network
    /// is left out, since an address implies it. A route without a gateway has the gateway 0.0.0.0, which means in DHCP (RFC
    /// 3442) that its destination is on the link; such routes come first, because gateways may be among them.
    pub(crate) fn observed(
        mac: Option<Mac>,
        addresses: &[IpNet],
        routes: impl IntoIterator<Item = (IpNet, Option<IpAddr>)>,
    ) -> Self {
        let implied = |to: &IpNet| addresses.iter().any(|own| own.trunc() == *to);
        let link_local = |to: &IpNet| matches!(to, IpNet::V6(to) if to.addr().is_unicast_link_local());
        let mut routes: Vec<_> = routes
            .into_iter()
            .filter(|(to, gateway)| !link_local(to) && (gateway.is_some() || !implied(to)))
            .map(|(to, gateway)| match to {
                IpNet::V4(net) if net.prefix_len() > 0 => {
                    (to, Some(gateway.unwrap_or(Ipv4Addr::UNSPECIFIED.into())))
                }
                IpNet::V4(_) | IpNet::V6(_) => (to, gateway),
            })
            .collect();
        routes.sort_by_key(|(_, gateway)| gateway.is_some_and(|gateway| !gateway.is_unspecified()));
        routes.truncate(MOST);
        let gateway = |own: &IpNet| {
            let default = |(to, _): &&(IpNet, Option<IpAddr>)| {
                to.prefix_len() == 0 && to.addr().is_ipv4() == own.addr().is_ipv4()
            };
            routes.iter().find(default).and_then(|(_, gateway)| *gateway)
        };
        let addresses = addresses.iter().take(MOST).map(|own| (*own, gateway(own))).collect();
        Self { addresses, routes, mac, ..Self::default() }
    }

    /// The same as an answer to ADD of version 1.0.0, for a file: [`Self::read`] reads it.
    pub fn answer(&self, interface: &str) -> Value {
        let text = |address: &Option<IpAddr>| address.map(|address| address.to_string());
        let ip = |(network, gateway): &(IpNet, Option<IpAddr>)| json!({"interface": 0, "address": network.to_string(), "gateway": text(gateway)});
        let route =
            |(to, gateway): &(IpNet, Option<IpAddr>)| json!({"dst": to.to_string(), "gw": text(gateway)});
        json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": interface, "mac": self.mac.map(|mac| mac.to_string()), "sandbox": "pod"}],
            "ips": self.addresses.iter().map(ip).collect::<Vec<_>>(),
            "routes": self.routes.iter().map(route).collect::<Vec<_>>(),
            "dns": {"nameservers": self.resolvers, "search": self.search},
        })
    }

    /// The first address of IPv4 and its gateway.
    pub fn v4(&self) -> Option<(ipnet::Ipv4Net, Option<std::net::Ipv4Addr>)> {
        self.addresses.iter().find_map(|(net, gateway)| match (net, gateway) {
            (IpNet::V4(net), Some(IpAddr::V4(gateway))) => Some((*net, Some(*gateway))),
            (IpNet::V4(net), _) => Some((*net, None)),
            (IpNet::V6(_), _) => None,
        })
    }

    /// The first address of IPv6.
    pub fn v6(&self) -> Option<ipnet::Ipv6Net> {
        self.addresses.iter().find_map(|(net, _)| match net {
            IpNet::V6(net) => Some(*net),
            IpNet::V4(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn answers_of_all_versions() {
        let new = json!({
            "cniVersion": "1.1.0",
            "interfaces": [
                {"name": "fv0", "mac": "02:00:00:00:00:01"},
                {"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/run/netns/a"},
            ],
            "ips": [
                {"address": "10.1.0.2/16", "gateway": "10.1.0.1", "interface": 1},
                {"address": "10.1.0.1/16", "interface": 0},
                {"address": "fd00::2/64"},
                {"address": "nonsense"},
            ],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "10.9.0.0/16"}],
            "dns": {"nameservers": ["192.0.2.53", "x"], "domain": "example.org"},
        });
        let read = CniResult::read(&new, "eth0");
        let v4 = Some(("10.1.0.2/16".parse().unwrap(), Some("10.1.0.1".parse().unwrap())));
        assert_eq!(read.v4(), v4);
        assert_eq!(read.v6(), Some("fd00::2/64".parse().unwrap()));
        assert_eq!(read.mac.unwrap().to_string(), "02:00:00:00:00:02");
        assert_eq!((read.addresses.len(), read.routes.len()), (2, 2));
        assert_eq!((read.resolvers.len(), read.search), (1, vec!["example.org".to_owned()]));
        let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/16", "gateway": "10.1.0.1"}});
        assert_eq!(CniResult::read(&old, "eth0").v4(), v4);
        assert_eq!(CniResult::read(&json!(7), "eth0"), CniResult::default());
    }

    #[test]
    fn the_kernels_addresses_become_the_dhcp_configuration() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let via = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        // As Calico leaves it: no network of its own, and a gateway that is on the link.
        let routes =
            [(net("0.0.0.0/0"), via("169.254.1.1")), (net("169.254.1.1/32"), None), (net("fe80::/64"), None)];
        let mac = Mac::parse("02:00:00:00:00:02");
        let calico = CniResult::observed(mac, &[net("10.1.0.2/32")], routes);
        assert_eq!(calico.addresses, [(net("10.1.0.2/32"), via("169.254.1.1"))]);
        assert_eq!(
            calico.routes,
            [(net("169.254.1.1/32"), via("0.0.0.0")), (net("0.0.0.0/0"), via("169.254.1.1"))]
        );
        // As the plugin bridge leaves it: the network's own route is implied by the address.
        let own = [net("10.1.0.2/24"), net("fd00::2/64")];
        let routes = [
            (net("10.1.0.0/24"), None),
            (net("10.0.0.0/8"), via("10.1.0.1")),
            (net("fd00::/64"), None),
            (net("::/0"), via("fd00::1")),
        ];
        let bridge = CniResult::observed(mac, &own, routes);
        assert_eq!(bridge.addresses, [(own[0], None), (own[1], via("fd00::1"))]);
        assert_eq!(bridge.routes, [(net("10.0.0.0/8"), via("10.1.0.1")), (net("::/0"), via("fd00::1"))]);
        for outcome in [calico, bridge, CniResult::default()] {
            assert_eq!(CniResult::read(&outcome.answer("eth0"), "eth0"), outcome);
        }
    }
}
