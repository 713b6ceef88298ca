//! The network of guests that name no other: a bridge of ours behind the machine's address, as a CNI configuration. Its
//! subnet is the first of a list that none of the machine's routes overlaps, and stays while a guest has an address of it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use link::Namespace;
use link::netlink::{KernelRoute, Link, Router};
use serde_json::json;

use super::Configuration;
use crate::error::{Error, Kind};

/// The network's name.
pub(super) const NAME: &str = "ferrovirt";
/// Its bridge.
pub(super) const BRIDGE: &str = "fv0";
/// Subnets in the order they are taken, none of them usual with Docker, libvirt or Kubernetes.
const SUBNETS: [&str; 4] = ["10.234.0.0/16", "172.29.128.0/18", "192.168.234.0/24", "100.100.0.0/16"];
/// The MTU without an uplink.
const MTU: u32 = 1500;

/// The requested pod network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodNetwork {
    /// Its subnet; none: the first free one of a list.
    pub subnet: Option<Ipv4Net>,
    /// Its subnet of IPv6; none: guests have no IPv6 on it.
    pub subnet6: Option<Ipv6Net>,
}

/// Facts about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    /// Routes but those of the pod network's bridge, and its default routes' largest packet.
    pub(super) routes: Vec<IpNet>,
    pub(super) mtu: Option<u32>,
    /// The subnet that the bridge has already.
    pub(super) taken: Option<Ipv4Net>,
}

impl PodNetwork {
    /// Its configuration on this machine; `state` is the folder of [`super::Places`].
    ///
    /// # Errors
    /// The subnet that is asked for, or all of the list, overlap routes of the machine.
    pub fn configuration(&self, state: &Path) -> Result<Configuration, Error> {
        let host = observe()?;
        let subnet = subnet(self.subnet, &host).map_err(|said| Error::new(Kind::Content, said))?;
        generated(subnet, self.subnet6, host.mtu.unwrap_or(MTU), state)
    }
}

/// The subnet: what is asked for, what the bridge has, the first free one.
fn subnet(asked: Option<Ipv4Net>, host: &Host) -> Result<Ipv4Net, String> {
    let overlaps = |net: &Ipv4Net| {
        // A default route overlaps everything and means nothing.
        host.routes.iter().find(|route| match route {
            IpNet::V4(route) => {
                route.prefix_len() > 0 && (route.contains(&net.network()) || net.contains(&route.network()))
            }
            IpNet::V6(_) => false,
        })
    };
    if let Some(asked) = asked {
        let asked = asked.trunc();
        if asked.prefix_len() > 29 {
            return Err(format!(
                "the subnet {asked} of guests is too small; give one of /29 or larger: --pod-network SUBNET"
            ));
        }
        if let Some(taken) = host.taken.map(|net| net.trunc()).filter(|taken| *taken != asked) {
            return Err(format!(
                "guests have addresses of {taken}; their subnet can be {asked} when the last of them is gone"
            ));
        }
        return match overlaps(&asked) {
            None => Ok(asked),
            Some(route) => Err(format!(
                "the subnet {asked} of guests overlaps this machine's route to {route}; give another one: --pod-network SUBNET"
            )),
        };
    }
    if let Some(taken) = host.taken {
        return Ok(taken.trunc());
    }
    let all = SUBNETS.iter().filter_map(|text| text.parse::<Ipv4Net>().ok());
    all.into_iter().find(|net| overlaps(net).is_none()).ok_or_else(|| {
        format!(
            "each of {} overlaps a route of this machine; give a subnet for guests: --pod-network SUBNET",
            SUBNETS.join(", ")
        )
    })
}

fn generated(v4: Ipv4Net, v6: Option<Ipv6Net>, mtu: u32, state: &Path) -> Result<Configuration, Error> {
    let mut ranges = vec![json!([{"subnet": v4.to_string()}])];
    ranges.extend(v6.map(|net| json!([{"subnet": net.trunc().to_string()}])));
    let document = json!({
        "cniVersion": "1.1.0",
        "name": NAME,
        "plugins": [{
            "type": "bridge",
            "bridge": BRIDGE,
            "isDefaultGateway": true,
            "ipMasq": true,
            "ipMasqBackend": "nftables",
            "mtu": mtu,
            // VMs reach the gateway and what lies behind it, not each other, and send with their own addresses only.
            "portIsolation": true,
            "macspoofchk": true,
            "ipspoofchk": true,
            "anyLinkLocal": true,
            "capabilities": {"ips": true, "mac": true},
            "ipam": {"type": "host-local", "dataDir": addresses(state), "ranges": ranges},
        }],
    });
    Configuration::read(&document.to_string(), NAME).map_err(|said| Error::new(Kind::System, said))
}

/// The records of the addresses that a state directory gives: those of `host-local`.
pub(super) fn addresses(state: &Path) -> PathBuf {
    state.join("addresses")
}

/// Reads the bridge, the routes and their MTU from the kernel.
fn observe() -> Result<Host, Error> {
    let mut router = Router::open()?;
    let links = Link::all(&router.ask(Link::list(None))?);
    let ours = links.iter().find(|link| link.name == BRIDGE && link.is_bridge());
    let addresses = link::netlink::Address::all(&router.ask(link::netlink::Address::list(None))?);
    let taken = ours.and_then(|bridge| {
        addresses.iter().find_map(|one| match one.network {
            IpNet::V4(net) if one.link == bridge.index => Some(net),
            IpNet::V4(_) | IpNet::V6(_) => None,
        })
    });
    let routes = KernelRoute::all(&router.ask(KernelRoute::list())?);
    let mtu = routes.iter().filter(|route| route.destination.prefix_len() == 0).find_map(|route| {
        let gateway = route.gateway?;
        // The link with the gateway's network.
        let near = addresses.iter().find(|one| one.network.contains(&gateway))?;
        links.iter().find(|link| link.index == near.link).map(|link| link.mtu)
    });
    let own = |route: &KernelRoute| taken.is_some_and(|net| route.destination == IpNet::V4(net.trunc()));
    let routes = routes.iter().filter(|route| !own(route)).map(|route| route.destination).collect();
    Ok(Host { routes, mtu, taken })
}

/// The gateway's address in the pod network, where it is up: the address of the DNS forwarder when the machine's resolvers
/// are local.
pub fn gateway() -> Result<Option<IpAddr>, Error> {
    Ok(observe()?.taken.map(|net| IpAddr::V4(net.addr())))
}

/// Removes the bridge, unless a guest is attached to it.
pub(super) fn remove_bridge() -> Result<(), Error> {
    // In the namespace of the machine, wherever that is for this process.
    let _home = Namespace::ours()?;
    let mut router = Router::open()?;
    let links = Link::all(&router.ask(Link::list(None))?);
    let Some(bridge) = links.iter().find(|link| link.name == BRIDGE && link.is_bridge()) else {
        return Ok(());
    };
    if links.iter().any(|link| link.master == Some(bridge.index)) {
        return Ok(());
    }
    router.ask(Link::delete(bridge.index, BRIDGE))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(routes: &[&str]) -> Host {
        Host { routes: routes.iter().map(|text| text.parse().unwrap()).collect(), ..Host::default() }
    }

    #[test]
    fn the_first_subnet_that_is_free() {
        let net = |text: &str| text.parse::<Ipv4Net>().unwrap();
        for (routes, chosen) in [
            (&["0.0.0.0/0", "192.0.2.0/24"][..], SUBNETS[0]),
            (&["10.0.0.0/8"], SUBNETS[1]),
            (&["10.234.7.0/24", "fd00::/8"], SUBNETS[1]),
            (&["10.234.0.0/16", "172.16.0.0/12"], SUBNETS[2]),
        ] {
            assert_eq!(subnet(None, &host(routes)), Ok(net(chosen)), "{routes:?}");
        }
        let none = subnet(None, &host(&["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"]));
        assert!(none.unwrap_err().contains("--pod-network SUBNET"));
    }

    #[test]
    fn a_subnet_that_is_asked_for_is_taken_or_refused() {
        let asked = |text: &str| Some(text.parse().unwrap());
        assert_eq!(subnet(asked("10.1.2.3/24"), &host(&["10.2.0.0/16"])).unwrap().to_string(), "10.1.2.0/24");
        let said = subnet(asked("10.1.2.0/24"), &host(&["10.1.0.0/16"])).unwrap_err();
        assert!(said.contains("10.1.0.0/16") && said.contains("10.1.2.0/24"), "{said}");
        assert!(subnet(asked("10.1.2.0/30"), &host(&[])).is_err());
        let other = Host { taken: asked("10.9.0.1/16"), ..host(&[]) };
        assert!(subnet(asked("10.8.0.0/16"), &other).unwrap_err().contains("10.9.0.0/16"));
        assert!(subnet(asked("10.9.0.0/16"), &other).is_ok());
        // Guests keep their addresses.
        let taken = Host { taken: asked("10.9.0.1/16"), ..host(&["10.0.0.0/8"]) };
        assert_eq!(subnet(None, &taken).unwrap().to_string(), "10.9.0.0/16");
    }

    #[test]
    fn the_configuration_is_one() {
        let read = generated("10.234.0.0/16".parse().unwrap(), None, 1400, Path::new("/s")).unwrap();
        assert!(
            read.name() == NAME && read.can_check() && read.text().contains("\"mtu\":1400"),
            "{}",
            read.text()
        );
        for guard in ["portIsolation", "macspoofchk", "ipspoofchk"] {
            assert!(read.text().contains(&format!("\"{guard}\":true")), "{guard}: {}", read.text());
        }
    }
}
