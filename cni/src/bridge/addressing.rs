//! Decides on layer 3: what IPAM gave becomes addresses and routes of the pod and, for a gateway, addresses of the
//! bridge. Pure, like `plan`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::bridge::config::Config;
use crate::error::Error;
use crate::ipam::first_host;
use crate::netlink::Address;
use crate::protocol::{Dns, IpConfig, Outcome, Route};

/// Where the pod's end is among the interfaces of a result: after the bridge and the host's end.
const POD_END: usize = 2;

/// RT_SCOPE_LINK of linux/rtnetlink.h: what is reached without a gateway.
const LINK_SCOPE: u8 = 253;

/// RFC 8200, section 5. Below it the kernel takes IPv6 from a link.
const IPV6_MTU: u32 = 1280;

/// Layer 3 of an attachment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Addressing {
    /// As they are answered.
    pub(super) ips: Vec<IpConfig>,
    /// As they are answered.
    pub(super) routes: Vec<Route>,
    /// As they are answered.
    pub(super) dns: Dns,
    /// Addresses that make the bridge the gateway; empty if it is none.
    pub(super) gateways: Vec<IpNet>,
}

impl Addressing {
    /// Decides. `before` is what earlier plugins of a chain answered.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] when a gateway cannot be one, or the MTU is too small for an address.
    pub(super) fn make(config: &Config, lease: &Outcome, before: &Outcome) -> Result<Self, Error> {
        let mut addressing = Self {
            routes: lease.routes.clone(),
            dns: if config.dns.is_empty() { lease.dns.clone() } else { config.dns.clone() },
            ..Self::default()
        };
        if let Some(mtu) = config.mtu.filter(|mtu| *mtu < IPV6_MTU)
            && let Some(ip) = lease.ips.iter().find(|ip| ip.address.addr().is_ipv6())
        {
            let address = ip.address;
            return Err(Error::config(format!(
                "\"mtu\": {mtu} leaves no room for {address}: IPv6 needs an MTU of at least {IPV6_MTU}"
            )));
        }
        for ip in &lease.ips {
            let four = ip.address.addr().is_ipv4();
            let mut gateway = ip.gateway;
            if config.gateway {
                let address = gateway.unwrap_or_else(|| first_host(ip.address));
                let network = gateway_network(ip.address, address)?;
                if !addressing.gateways.contains(&network) {
                    addressing.gateways.push(network);
                }
                gateway = Some(address);
            }
            if config.default_gateway {
                let is_default = |route: &&Route| {
                    route.destination.prefix_len() == 0 && route.destination.addr().is_ipv4() == four
                };
                let given = addressing.routes.iter().find(is_default);
                let earlier = before.routes.iter().filter(|route| route.gateway.is_some()).find(is_default);
                if given.is_none() && earlier.is_none() {
                    let everything = IpNet::new(if four { [0; 4].into() } else { [0; 16].into() }, 0);
                    let everything = everything.map_err(|_| Error::config("no default route"))?;
                    addressing.routes.push(Route::new(everything, gateway));
                }
            }
            let interface = Some(before.interfaces.len() + POD_END);
            addressing.ips.push(IpConfig { interface, address: ip.address, gateway });
        }
        Ok(addressing)
    }

    /// The routes as the kernel gets them: one without a gateway goes through the family's first, unless its scope needs
    /// none.
    pub(super) fn kernel_routes(&self) -> Vec<Route> {
        let through = |route: &Route| {
            let four = route.destination.addr().is_ipv4();
            let gateways = self.ips.iter().filter_map(|ip| ip.gateway);
            if route.scope.is_some_and(|scope| scope >= LINK_SCOPE) {
                return route.gateway;
            }
            route.gateway.or_else(|| gateways.into_iter().find(|gateway| gateway.is_ipv4() == four))
        };
        self.routes.iter().map(|route| Route { gateway: through(route), ..route.clone() }).collect()
    }

    /// Whether there is an address of IPv6.
    pub(super) fn has_ipv6(&self) -> bool {
        self.ips.iter().any(|ip| ip.address.addr().is_ipv6())
    }
}

/// The gateway's address with the prefix of the pod's.
fn gateway_network(pod: IpNet, gateway: IpAddr) -> Result<IpNet, Error> {
    if gateway == pod.addr() {
        return Err(Error::config(format!("{gateway} is the gateway's address and cannot be the pod's too")));
    }
    if gateway.is_ipv4() != pod.addr().is_ipv4() {
        return Err(Error::config(format!("{gateway} cannot be the gateway of {pod}: another family")));
    }
    IpNet::new(gateway, pod.prefix_len())
        .map_err(|_| Error::config(format!("{gateway} cannot be the gateway of {pod}")))
}

/// The steps after which a link has a gateway's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GatewayStep {
    /// It has it.
    Keep,
    /// It gets it, and these go before: they would leave the pods two ways to the same network.
    Add { remove: Vec<IpNet> },
}

/// Decides for one of the addresses that are `wanted`. A bridge has one address of IPv4 unless the same network has
/// several; of IPv6 those that do not overlap.
///
/// # Errors
/// [`crate::Kind::Mismatch`] when another one is there and `forceAddress` is not set.
pub(super) fn gateway_step(
    name: &str,
    found: &[Address],
    address: IpNet,
    wanted: &[IpNet],
    force: bool,
) -> Result<GatewayStep, Error> {
    if found.iter().any(|found| found.network == address) {
        return Ok(GatewayStep::Keep);
    }
    let collides = |other: &IpNet| match (other, &address) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(_), IpNet::V6(_)) => other.contains(&address.addr()) || address.contains(&other.addr()),
        (IpNet::V4(_), IpNet::V6(_)) | (IpNet::V6(_), IpNet::V4(_)) => false,
    };
    let others = found.iter().map(|found| found.network);
    let remove: Vec<IpNet> = others.filter(|other| !wanted.contains(other)).filter(collides).collect();
    match remove.first() {
        Some(other) if !force => Err(Error::mismatch(format!(
            "{name} already has an IP address different from {address}: {other}; \"forceAddress\": true replaces it"
        ))),
        Some(_) | None => Ok(GatewayStep::Add { remove }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Call, Interface};

    fn config(keys: &str) -> Config {
        Config::parse(&Call::adding(keys)).unwrap()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn lease(ips: &[(&str, Option<&str>)], routes: &[(&str, Option<&str>)]) -> Outcome {
        Outcome {
            ips: ips
                .iter()
                .map(|(address, gateway)| IpConfig {
                    interface: None,
                    address: net(address),
                    gateway: gateway.map(|gateway| gateway.parse().unwrap()),
                })
                .collect(),
            routes: routes
                .iter()
                .map(|(to, by)| Route::new(net(to), by.map(|by| by.parse().unwrap())))
                .collect(),
            ..Outcome::default()
        }
    }

    fn words(routes: &[Route]) -> Vec<String> {
        let by = |route: &Route| route.gateway.map(|by| by.to_string()).unwrap_or_default();
        routes.iter().map(|route| format!("{} {}", route.destination, by(route))).collect()
    }

    /// Keys, addresses with gateways, routes of IPAM; gateways of the bridge, routes answered, routes of the kernel.
    #[test]
    fn gateways_and_routes() {
        type Pairs<'a> = &'a [(&'a str, Option<&'a str>)];
        type Row<'a> = (&'a str, Pairs<'a>, Pairs<'a>, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
        let four: Pairs<'_> = &[("10.1.2.3/24", Some("10.1.2.1"))];
        let bare: Pairs<'_> = &[("10.1.2.3/24", None), ("fd00::3/64", None)];
        let many: Pairs<'_> = &[
            ("10.1.2.3/24", Some("10.1.2.1")),
            ("fd00::3/64", Some("fd00::1")),
            ("fd01::3/64", Some("fd01::1")),
        ];
        let rows: [Row<'_>; 9] = [
            ("", four, &[], &[], &[], &[]),
            ("", four, &[("0.0.0.0/0", None)], &[], &["0.0.0.0/0 "], &["0.0.0.0/0 10.1.2.1"]),
            (
                "",
                four,
                &[("192.0.2.0/24", Some("10.1.2.9")), ("::/0", None)],
                &[],
                &["192.0.2.0/24 10.1.2.9", "::/0 "],
                &["192.0.2.0/24 10.1.2.9", "::/0 "],
            ),
            (r#""isGateway": true,"#, four, &[], &["10.1.2.1/24"], &[], &[]),
            (r#""isGateway": true,"#, bare, &[], &["10.1.2.1/24", "fd00::1/64"], &[], &[]),
            (
                r#""isDefaultGateway": true,"#,
                bare,
                &[],
                &["10.1.2.1/24", "fd00::1/64"],
                &["0.0.0.0/0 10.1.2.1", "::/0 fd00::1"],
                &["0.0.0.0/0 10.1.2.1", "::/0 fd00::1"],
            ),
            (
                r#""isDefaultGateway": true,"#,
                many,
                &[],
                &["10.1.2.1/24", "fd00::1/64", "fd01::1/64"],
                &["0.0.0.0/0 10.1.2.1", "::/0 fd00::1"],
                &["0.0.0.0/0 10.1.2.1", "::/0 fd00::1"],
            ),
            (
                r#""isDefaultGateway": true,"#,
                four,
                &[("0.0.0.0/0", Some("10.1.2.254"))],
                &["10.1.2.1/24"],
                &["0.0.0.0/0 10.1.2.254"],
                &["0.0.0.0/0 10.1.2.254"],
            ),
            // The same way twice would be refused by the kernel.
            (
                r#""isDefaultGateway": true,"#,
                four,
                &[("0.0.0.0/0", None)],
                &["10.1.2.1/24"],
                &["0.0.0.0/0 "],
                &["0.0.0.0/0 10.1.2.1"],
            ),
        ];
        for (keys, ips, routes, gateways, answered, kernel) in rows {
            let made = Addressing::make(&config(keys), &lease(ips, routes), &Outcome::default()).unwrap();
            let told: Vec<String> = made.gateways.iter().map(IpNet::to_string).collect();
            assert_eq!(told, gateways, "{keys} {ips:?} {routes:?}");
            assert_eq!(words(&made.routes), answered, "{keys} {ips:?} {routes:?}");
            assert_eq!(words(&made.kernel_routes()), kernel, "{keys} {ips:?} {routes:?}");
            assert!(made.ips.iter().all(|ip| ip.interface == Some(2)));
        }
    }

    #[test]
    fn after_other_plugins_of_a_chain() {
        let before = Outcome {
            interfaces: vec![Interface::default(); 2],
            routes: vec![Route::new(net("0.0.0.0/0"), Some("192.0.2.1".parse().unwrap()))],
            ..Outcome::default()
        };
        let ips = [("10.1.2.3/24", Some("10.1.2.1")), ("fd00::3/64", None)];
        let config = config(r#""isDefaultGateway": true,"#);
        let made = Addressing::make(&config, &lease(&ips, &[]), &before).unwrap();
        assert_eq!(made.ips[0].interface, Some(4));
        assert_eq!(words(&made.routes), ["::/0 fd00::1"]);
    }

    #[test]
    fn a_gateway_that_cannot_be_one() {
        let config = config(r#""isGateway": true,"#);
        for ip in [("10.1.2.1/24", None), ("10.1.2.3/24", Some("10.1.2.3")), ("10.1.2.3/24", Some("fd00::1"))]
        {
            assert!(Addressing::make(&config, &lease(&[ip], &[]), &Outcome::default()).is_err(), "{ip:?}");
        }
    }

    #[test]
    fn ipv6_needs_room() {
        let (four, six) = ([("10.1.2.3/24", None)], [("10.1.2.3/24", None), ("fd00::3/64", None)]);
        for (mtu, refused) in [(68, true), (1279, true), (1280, false), (0, false)] {
            let config = config(&format!(r#""mtu": {mtu},"#));
            let make = |ips| Addressing::make(&config, &lease(ips, &[]), &Outcome::default());
            assert!(make(&four).is_ok());
            assert_eq!(make(&six).is_err(), refused, "{mtu}");
        }
    }

    #[test]
    fn name_servers_of_the_configuration_win() {
        let mut given = lease(&[("10.1.2.3/24", None)], &[]);
        given.dns.domain = "ipam".to_owned();
        let make = |keys: &str| Addressing::make(&config(keys), &given, &Outcome::default()).unwrap().dns;
        assert_eq!(make("").domain, "ipam");
        let ours = make(r#""dns": {"nameservers": ["192.0.2.1"]},"#);
        assert_eq!((ours.domain.as_str(), ours.nameservers.len()), ("", 1));
    }

    #[test]
    fn addresses_a_bridge_has_already() {
        let found = |list: &[&str]| -> Vec<Address> {
            let one = |text: &&str| Address {
                link: 1,
                network: net(text),
                link_local: false,
                tentative: false,
                duplicate: false,
            };
            list.iter().map(one).collect()
        };
        // Found, asked for, further ones asked for; what goes, nothing to do if none, refused without force if any.
        type Row<'a> = (&'a [&'a str], &'a str, &'a [&'a str], Option<&'a [&'a str]>);
        let rows: [Row<'_>; 10] = [
            (&[], "10.1.2.1/24", &[], Some(&[])),
            (&["10.1.2.1/24"], "10.1.2.1/24", &[], None),
            (&["10.9.9.9/24", "10.1.2.1/24"], "10.1.2.1/24", &[], None),
            (&["10.1.2.1/16"], "10.1.2.1/24", &[], Some(&["10.1.2.1/16"])),
            (&["10.9.9.9/24"], "10.1.2.1/24", &[], Some(&["10.9.9.9/24"])),
            (&["10.9.9.9/24"], "10.1.2.1/24", &["10.9.9.9/24"], Some(&[])),
            (&["fe80::1/64", "fd01::1/64"], "fd00::1/64", &[], Some(&[])),
            (&["fd00::2/64"], "fd00::1/64", &[], Some(&["fd00::2/64"])),
            (&["fd00::2/48"], "fd00::1/64", &[], Some(&["fd00::2/48"])),
            (&["fd00::1/64"], "10.1.2.1/24", &[], Some(&[])),
        ];
        for (there, asked, others, gone) in rows {
            let wanted: Vec<IpNet> = others.iter().copied().chain([asked]).map(net).collect();
            let step = |force| gateway_step("br0", &found(there), net(asked), &wanted, force);
            match gone {
                None => assert_eq!(step(false).unwrap(), GatewayStep::Keep, "{there:?} {asked}"),
                Some(gone) => {
                    let remove = gone.iter().copied().map(net).collect();
                    assert_eq!(step(true).unwrap(), GatewayStep::Add { remove }, "{there:?} {asked}");
                    assert_eq!(step(false).is_err(), !gone.is_empty(), "{there:?} {asked}");
                }
            }
        }
    }
}
