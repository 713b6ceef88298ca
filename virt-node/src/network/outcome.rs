//! What a plugin answered to ADD, as far as a guest is told of it: pure. Versions since 0.3.0 have lists, those before one
//! address for each family.

use std::net::IpAddr;

use ipnet::IpNet;
use link::Mac;
use serde_json::Value;

/// Most addresses, routes, resolvers that are looked at.
const MOST: usize = 64;

/// What the network gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Addresses of the interface, with their gateways.
    pub(super) addresses: Vec<(IpNet, Option<IpAddr>)>,
    /// Routes.
    pub(super) routes: Vec<(IpNet, Option<IpAddr>)>,
    /// The interface's Ethernet address, where it was told.
    pub(super) mac: Option<Mac>,
    /// Who resolves names.
    pub(super) resolvers: Vec<IpAddr>,
    /// Domains that names are looked for in.
    pub(super) search: Vec<String>,
}

impl Outcome {
    /// Reads an answer; `interface` is the link's name in the namespace. What makes no sense is left out: the plugin said it
    /// was done.
    pub(super) fn read(answer: &Value, interface: &str) -> Self {
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
        outcome.mac = found.and_then(|mac| Mac::parse(&mac).ok());
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

    /// The first address of IPv4 and its gateway.
    pub(super) fn v4(&self) -> Option<(ipnet::Ipv4Net, Option<std::net::Ipv4Addr>)> {
        self.addresses.iter().find_map(|(net, gateway)| match (net, gateway) {
            (IpNet::V4(net), Some(IpAddr::V4(gateway))) => Some((*net, Some(*gateway))),
            (IpNet::V4(net), _) => Some((*net, None)),
            (IpNet::V6(_), _) => None,
        })
    }

    /// The first address of IPv6.
    pub(super) fn v6(&self) -> Option<ipnet::Ipv6Net> {
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
        let read = Outcome::read(&new, "eth0");
        let v4 = Some(("10.1.0.2/16".parse().unwrap(), Some("10.1.0.1".parse().unwrap())));
        assert_eq!(read.v4(), v4);
        assert_eq!(read.v6(), Some("fd00::2/64".parse().unwrap()));
        assert_eq!(read.mac.unwrap().to_string(), "02:00:00:00:00:02");
        assert_eq!((read.addresses.len(), read.routes.len()), (2, 2));
        assert_eq!((read.resolvers.len(), read.search), (1, vec!["example.org".to_owned()]));
        let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/16", "gateway": "10.1.0.1"}});
        assert_eq!(Outcome::read(&old, "eth0").v4(), v4);
        assert_eq!(Outcome::read(&json!(7), "eth0"), Outcome::default());
    }
}
