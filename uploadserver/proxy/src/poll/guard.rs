//! Addresses that a poll may reach. Pure. Refused: loopback, link-local, unspecified, multicast and Services' addresses,
//! unless they are allowed by configuration.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// Networks that decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Guard {
    services: Vec<IpNet>,
    allowed: Vec<IpNet>,
}

impl Guard {
    /// The guard of a request's networks.
    ///
    /// # Errors
    /// The text that is no network.
    pub(super) fn new(services: &[String], allowed: &[String]) -> Result<Self, String> {
        Ok(Self { services: networks(services)?, allowed: networks(allowed)? })
    }

    /// Why an address is not reached; `None` when it may be.
    pub(super) fn refusal(&self, address: IpAddr) -> Option<&'static str> {
        let within = |networks: &[IpNet], address: &IpAddr| networks.iter().any(|one| one.contains(address));
        let address = embedded(address);
        if within(&self.allowed, &address) {
            return None;
        }
        let link_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        match () {
            () if address.is_loopback() || address.is_unspecified() => Some("a loopback address"),
            () if link_local => Some("a link-local address"),
            () if address.is_multicast() || broadcast => Some("not the address of a host"),
            () if within(&self.services, &address) => Some("an address of the cluster's Services"),
            () => None,
        }
    }
}

/// The IPv4 address that an IPv6 address stands for (RFC 4291 2.5.5, RFC 6052), else the address.
fn embedded(address: IpAddr) -> IpAddr {
    /// 64:ff9b::/96.
    const TRANSLATED: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
    let IpAddr::V6(address) = address.to_canonical() else { return address.to_canonical() };
    let segments = address.segments();
    let compatible = segments.starts_with(&[0; 6]) && !is_small(address);
    if segments.starts_with(&TRANSLATED) || compatible {
        let [.., a, b, c, d] = address.octets();
        return IpAddr::from([a, b, c, d]);
    }
    IpAddr::V6(address)
}

/// `::` and `::1`, which stand for themselves.
fn is_small(address: Ipv6Addr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

/// Networks, or single addresses.
fn networks(texts: &[String]) -> Result<Vec<IpNet>, String> {
    let parse = |text: &String| {
        let text = text.trim();
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map_err(|_| format!("{text:?} is not a network such as 10.0.0.0/8"))
    };
    texts.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        Guard::new(&texts(&["10.96.0.0/12", "fd00:10:96::/112"]), &texts(allowed)).unwrap()
    }

    #[test]
    fn only_addresses_beyond_node_and_services_are_reached() {
        for (address, reached) in [
            ("192.0.2.7", true),
            ("10.0.0.1", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("127.255.0.3", false),
            ("0.0.0.0", false),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("10.96.0.1", false),
            ("10.111.255.255", false),
            ("10.112.0.0", true),
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("fd00:10:96::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.96.0.1", false),
            ("::169.254.169.254", false),
            ("64:ff9b::7f00:1", false),
            ("64:ff9b::c000:207", true),
        ] {
            let refusal = guard(&[]).refusal(address.parse().unwrap());
            assert_eq!(refusal.is_none(), reached, "{address}: {refusal:?}");
        }
    }

    #[test]
    fn allowed_networks_are_reached() {
        let guard = guard(&["10.96.7.7", "127.0.0.0/8"]);
        for (address, reached) in [("10.96.7.7", true), ("10.96.7.8", false), ("127.0.0.1", true)] {
            assert_eq!(guard.refusal(address.parse().unwrap()).is_none(), reached, "{address}");
        }
        assert!(Guard::new(&["x".to_owned()], &[]).is_err());
    }
}
