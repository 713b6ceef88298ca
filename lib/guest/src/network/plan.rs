//! Decides the changes from the wanted and the found state: pure. [`steps`] about attachments, [`wire`] and [`unwire`] about
//! the links between CNI's interface and the tap device.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use link::Mac;

use super::cni_result::CniResult;
use super::names::Names;
use super::{Binding, Interface, Port};

/// Of the bridge behind masquerade: the guest's gateway, so that it is the same wherever it goes.
const GATEWAY: Mac = Mac([2, 0, 0, 0, 0, 0]);

/// An attachment that was found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAttachment {
    /// The link's name in the namespace.
    pub link: String,
    /// Whether ADD came to its end.
    pub done: bool,
}

/// A step about attachments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes the attachment of this number (of what is noted) away.
    Detach(usize),
    /// Makes the namespace.
    Namespace,
    /// Attaches the wanted interface of this number; `again`: with the addresses of the noted one of this number.
    Attach {
        /// Number of the interface.
        wanted: usize,
        /// Number of the entry.
        again: Option<usize>,
    },
}

/// The steps to what is wanted, by the links' names. Without its namespace nothing is attached any more, whatever is noted:
/// the machine was rebooted.
pub fn steps(wanted: &[&str], noted: &[RecordedAttachment], namespace: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    let stays = |one: &RecordedAttachment| namespace && one.done && wanted.contains(&one.link.as_str());
    // The last one first, as they came.
    steps.extend((0..noted.len()).rev().filter(|at| !stays(&noted[*at])).map(Step::Detach));
    if !namespace {
        steps.push(Step::Namespace);
    }
    for (index, link) in wanted.iter().enumerate() {
        let found = noted.iter().position(|one| one.link == *link);
        if !found.is_some_and(|at| stays(&noted[at])) {
            let again = found.filter(|at| noted[*at].done);
            steps.push(Step::Attach { wanted: index, again });
        }
    }
    steps
}

/// A link as it was found in the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedLink {
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: u32,
    /// The bridge it is a port of.
    pub(crate) master: Option<String>,
    pub(crate) up: bool,
    pub(crate) dummy: bool,
    pub(crate) addresses: Vec<IpNet>,
}

/// Links of a namespace, by name.
pub(crate) type Links = BTreeMap<String, ObservedLink>;

/// A change in the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Bridge {
        name: String,
        mac: Mac,
        mtu: u32,
    },
    Tap {
        name: String,
        many_queues: bool,
    },
    /// Left out where the kernel has none.
    Dummy {
        name: String,
        mac: Mac,
        addresses: Vec<IpNet>,
    },
    Rename {
        from: String,
        to: String,
    },
    Mac {
        link: String,
        mac: Mac,
    },
    Mtu {
        link: String,
        mtu: u32,
    },
    Port {
        link: String,
        bridge: String,
    },
    NoLearning {
        link: String,
    },
    Address {
        link: String,
        network: IpNet,
    },
    NoAddress {
        link: String,
        network: IpNet,
    },
    Up {
        link: String,
        up: bool,
    },
    Delete {
        link: String,
    },
    Sysctl {
        name: String,
        value: &'static str,
    },
    Rules {
        interface: String,
        guests: Vec<IpAddr>,
        ports: Vec<Port>,
    },
    NoRules,
}

/// The difference that the change removes.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge { name, .. } | Self::Tap { name, .. } | Self::Dummy { name, .. } => {
                write!(f, "{name} is missing")
            }
            Self::Rename { from, to } => write!(f, "{from} is not renamed to {to}"),
            Self::Mac { link, mac } => write!(f, "{link} has another MAC address than {mac}"),
            Self::Mtu { link, mtu } => write!(f, "{link} has another MTU than {mtu}"),
            Self::Port { link, bridge } => write!(f, "{link} is not a port of the bridge {bridge}"),
            Self::NoLearning { link } => write!(f, "the bridge port {link} learns addresses"),
            Self::Address { link, network } => write!(f, "{link} lacks the address {network}"),
            Self::NoAddress { link, network } => write!(f, "{link} has the address {network}"),
            Self::Up { link, up: true } => write!(f, "{link} is down"),
            Self::Up { link, up: false } => write!(f, "{link} is up"),
            Self::Delete { link } => write!(f, "there is an unexpected link {link}"),
            Self::Sysctl { name, value } => write!(f, "{name} is not {value}"),
            Self::Rules { interface, .. } => write!(f, "the rules of {interface} are missing"),
            Self::NoRules => f.write_str("there are unexpected rules"),
        }
    }
}

/// Facts about an interface that CNI made.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) interface: &'a Interface,
    pub(crate) outcome: &'a CniResult,
    /// Its number among the guest's, from 0.
    pub(crate) number: u8,
    /// Ethernet address of the interface as CNI made it.
    pub(crate) mac: Mac,
    /// Largest packet in bytes.
    pub(crate) mtu: u32,
    /// Made up, for what takes the place of an address that the guest has.
    pub(crate) spare: [Mac; 2],
}

/// The address of the bridge on which a guest with the network's own addresses is answered.
pub(crate) fn responder(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(169, 254, 75, 10_u8.saturating_add(number))
}

/// The first and second address of a network: the gateway's and the guest's.
pub(crate) fn pair(network: Ipv4Net) -> (Ipv4Addr, Ipv4Addr) {
    let first = u32::from(network.network()).saturating_add(1);
    (Ipv4Addr::from(first), Ipv4Addr::from(first.saturating_add(1)))
}

/// The same of IPv6.
pub(crate) fn pair6(network: ipnet::Ipv6Net) -> (std::net::Ipv6Addr, std::net::Ipv6Addr) {
    let first = u128::from(network.network()).saturating_add(1);
    (first.into(), first.saturating_add(1).into())
}

/// Changes that lead from CNI's interface to the tap device; none where all is done.
pub(crate) fn wire(facts: &Facts<'_>, links: &Links) -> Vec<Change> {
    let names = &facts.interface.names;
    let mut changes = Vec::new();
    // Guests are reached by ports from 67 on, without additional privileges for any process.
    sysctl(&mut changes, "net/ipv4/ip_unprivileged_port_start", "67");
    match &facts.interface.binding {
        Binding::Masquerade { v4, v6, ports } => {
            bridge(&mut changes, facts, links, GATEWAY);
            let (gateway, guest) = pair(*v4);
            let mut own = vec![IpNet::V4(Ipv4Net::new_assert(gateway, v4.prefix_len()))];
            let mut guests = vec![IpAddr::V4(guest)];
            sysctl(&mut changes, "net/ipv4/ip_forward", "1");
            if facts.outcome.v6().is_some() {
                let (gateway, guest) = pair6(*v6);
                own.push(IpNet::V6(ipnet::Ipv6Net::new_assert(gateway, v6.prefix_len())));
                guests.push(IpAddr::V6(guest));
                sysctl(&mut changes, "net/ipv6/conf/all/forwarding", "1");
                sysctl(&mut changes, &format!("net/ipv6/conf/{}/accept_dad", names.bridge), "0");
            }
            addresses(&mut changes, links, &names.bridge, &own);
            tap(&mut changes, facts, links);
            up(&mut changes, links, &names.bridge);
            changes.push(Change::Rules { interface: names.pod.clone(), guests, ports: ports.clone() });
        }
        Binding::Bridge => {
            let taken = take_over(&mut changes, facts, links);
            bridge(&mut changes, facts, links, facts.spare[1]);
            // The namespace itself has no address on the guest's network.
            for link in [&names.bridge, &names.port] {
                sysctl(&mut changes, &format!("net/ipv6/conf/{link}/disable_ipv6"), "1");
            }
            sysctl(&mut changes, "net/ipv4/conf/all/arp_ignore", "1");
            if facts.outcome.v4().is_some() {
                let own = IpNet::V4(Ipv4Net::new_assert(responder(facts.number), 32));
                addresses(&mut changes, links, &names.bridge, &[own]);
            }
            let port = if taken { None } else { links.get(&names.port) };
            if port.and_then(|port| port.master.as_ref()) != Some(&names.bridge) {
                changes.push(Change::Port { link: names.port.clone(), bridge: names.bridge.clone() });
                changes.push(Change::NoLearning { link: names.port.clone() });
            }
            if !port.is_some_and(|port| port.up) {
                changes.push(Change::Up { link: names.port.clone(), up: true });
            }
            tap(&mut changes, facts, links);
            up(&mut changes, links, &names.bridge);
            let dummy = links.get(&names.pod).is_some_and(|link| link.dummy);
            let own: Vec<IpNet> = facts.outcome.addresses.iter().map(|(network, _)| *network).collect();
            if dummy {
                addresses(&mut changes, links, &names.pod, &own);
            } else if !own.is_empty() {
                changes.push(Change::Dummy { name: names.pod.clone(), mac: facts.mac, addresses: own });
            }
        }
    }
    changes
}

/// CNI's interface gets another name and Ethernet address and loses its addresses: they are the guest's now. Whether it was
/// found as CNI made it.
fn take_over(changes: &mut Vec<Change>, facts: &Facts<'_>, links: &Links) -> bool {
    let Names { pod, port, .. } = &facts.interface.names;
    let fresh = links.get(pod).filter(|link| !link.dummy && !links.contains_key(port));
    if let Some(found) = fresh {
        changes.push(Change::Up { link: pod.clone(), up: false });
        changes.extend(
            found.addresses.iter().map(|network| Change::NoAddress { link: pod.clone(), network: *network }),
        );
        changes.push(Change::Rename { from: pod.clone(), to: port.clone() });
        changes.push(Change::Mac { link: port.clone(), mac: facts.spare[0] });
    } else if let Some(found) = links.get(port) {
        changes.extend(
            found.addresses.iter().map(|network| Change::NoAddress { link: port.clone(), network: *network }),
        );
        if found.mac != Some(facts.spare[0]) {
            changes.push(Change::Mac { link: port.clone(), mac: facts.spare[0] });
        }
    }
    fresh.is_some()
}

fn sysctl(changes: &mut Vec<Change>, name: &str, value: &'static str) {
    changes.push(Change::Sysctl { name: name.to_owned(), value });
}

fn bridge(changes: &mut Vec<Change>, facts: &Facts<'_>, links: &Links, mac: Mac) {
    let name = &facts.interface.names.bridge;
    match links.get(name) {
        None => changes.push(Change::Bridge { name: name.clone(), mac, mtu: facts.mtu }),
        Some(found) => {
            if found.mac != Some(mac) {
                changes.push(Change::Mac { link: name.clone(), mac });
            }
        }
    }
}

fn tap(changes: &mut Vec<Change>, facts: &Facts<'_>, links: &Links) {
    let Names { tap, bridge, .. } = &facts.interface.names;
    let found = links.get(tap);
    if found.is_none() {
        changes.push(Change::Tap { name: tap.clone(), many_queues: facts.interface.many_queues });
    }
    if found.is_none_or(|found| found.mtu != facts.mtu) {
        changes.push(Change::Mtu { link: tap.clone(), mtu: facts.mtu });
    }
    if found.and_then(|found| found.master.as_ref()) != Some(bridge) {
        // The bridge's largest packet is its ports' smallest, of which this was one.
        sysctl(changes, &format!("net/ipv6/conf/{tap}/disable_ipv6"), "1");
        changes.push(Change::Port { link: tap.clone(), bridge: bridge.clone() });
    }
    up(changes, links, tap);
}

fn up(changes: &mut Vec<Change>, links: &Links, name: &str) {
    if !links.get(name).is_some_and(|found| found.up) {
        changes.push(Change::Up { link: name.to_owned(), up: true });
    }
}

fn addresses(changes: &mut Vec<Change>, links: &Links, name: &str, wanted: &[IpNet]) {
    let has = links.get(name).map(|found| found.addresses.as_slice()).unwrap_or_default();
    changes.extend(
        wanted
            .iter()
            .filter(|network| !has.contains(network))
            .map(|network| Change::Address { link: name.to_owned(), network: *network }),
    );
}

/// Changes that leave CNI's interface as it was made, but for its addresses. `mac` is the one it was made with.
pub(crate) fn unwire(names: &Names, mac: Option<Mac>, links: &Links) -> Vec<Change> {
    let mut changes = Vec::new();
    if names.pod == Names::primary().pod {
        changes.push(Change::NoRules);
    }
    let has = |name: &String| links.contains_key(name);
    let dummy = links.get(&names.pod).filter(|link| link.dummy).map(|_| &names.pod);
    let ours = [&names.tap, &names.bridge].into_iter().filter(|name| has(name)).chain(dummy);
    changes.extend(ours.map(|name| Change::Delete { link: name.clone() }));
    if has(&names.port) && (dummy.is_some() || !has(&names.pod)) {
        changes.push(Change::Up { link: names.port.clone(), up: false });
        changes.extend(mac.map(|mac| Change::Mac { link: names.port.clone(), mac }));
        changes.push(Change::Rename { from: names.port.clone(), to: names.pod.clone() });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::super::Configuration;
    use super::*;

    fn noted(link: &str, done: bool) -> RecordedAttachment {
        RecordedAttachment { link: link.to_owned(), done }
    }

    #[test]
    fn steps_lead_from_what_is_noted_to_what_is_wanted() {
        use Step::{Attach, Detach};
        let new = |wanted| Attach { wanted, again: None };
        let none: &[RecordedAttachment] = &[];
        for (wanted, found, namespace, expected) in [
            (&["eth0", "pod1"][..], none, false, vec![Step::Namespace, new(0), new(1)]),
            (&["eth0"], &[noted("eth0", true)], true, vec![]),
            // Killed in the middle of ADD.
            (&["eth0"], &[noted("eth0", false)], true, vec![Detach(0), new(0)]),
            (&["eth0"], &[noted("eth0", true), noted("pod1", true)], true, vec![Detach(1)]),
            (&["eth0", "pod1"], &[noted("eth0", true)], true, vec![new(1)]),
            // Rebooted: the addresses are asked for again, but for what never came to its end.
            (
                &["eth0", "pod1"],
                &[noted("eth0", true), noted("pod1", false)],
                false,
                vec![Detach(1), Detach(0), Step::Namespace, Attach { wanted: 0, again: Some(0) }, new(1)],
            ),
            (&[], &[noted("eth0", true)], true, vec![Detach(0)]),
        ] {
            assert_eq!(steps(wanted, found, namespace), expected, "{wanted:?} {found:?} {namespace}");
        }
    }

    fn interface(binding: Binding) -> Interface {
        Interface {
            name: "default".to_owned(),
            names: Names::primary(),
            network: Configuration::read(r#"{"cniVersion": "1.0.0", "type": "x"}"#, "net").unwrap(),
            binding,
            mac: Mac([2, 0, 0, 0, 0, 9]),
            many_queues: false,
        }
    }

    /// The links as the changes leave them.
    fn carried_out(changes: &[Change], before: &Links) -> Links {
        let mut links = before.clone();
        for change in changes {
            match change {
                Change::Bridge { name, mac, mtu } => {
                    let made = ObservedLink { mac: Some(*mac), mtu: *mtu, ..ObservedLink::default() };
                    assert!(links.insert(name.clone(), made).is_none(), "{name} is there");
                }
                Change::Tap { name, .. } => {
                    assert!(
                        links
                            .insert(name.clone(), ObservedLink { mtu: 1500, ..ObservedLink::default() })
                            .is_none()
                    );
                }
                Change::Dummy { name, mac, addresses } => {
                    let addresses = addresses.clone();
                    let made =
                        ObservedLink { mac: Some(*mac), dummy: true, addresses, ..ObservedLink::default() };
                    assert!(links.insert(name.clone(), made).is_none(), "{name} is there");
                }
                Change::Rename { from, to } => {
                    let link = links.remove(from).unwrap();
                    assert!(!link.up && links.insert(to.clone(), link).is_none());
                }
                Change::Mac { link, mac } => links.get_mut(link).unwrap().mac = Some(*mac),
                Change::Mtu { link, mtu } => links.get_mut(link).unwrap().mtu = *mtu,
                Change::Port { link, bridge } => {
                    assert!(links.contains_key(bridge));
                    links.get_mut(link).unwrap().master = Some(bridge.clone());
                }
                Change::NoLearning { link } => assert!(links[link].master.is_some()),
                Change::Address { link, network } => links.get_mut(link).unwrap().addresses.push(*network),
                Change::NoAddress { link, network } => {
                    links.get_mut(link).unwrap().addresses.retain(|one| one != network);
                }
                Change::Up { link, up } => links.get_mut(link).unwrap().up = *up,
                Change::Delete { link } => drop(links.remove(link).unwrap()),
                Change::Sysctl { .. } | Change::Rules { .. } | Change::NoRules => {}
            }
        }
        links
    }

    /// Cut off after any change and begun again, the end is the same; done again, only what cannot be seen is.
    #[test]
    fn wiring_converges_from_wherever_it_was_cut_off() {
        let address: IpNet = "192.0.2.7/24".parse().unwrap();
        let own = Mac([2, 0, 0, 0, 0, 1]);
        let eth0 = ObservedLink {
            mac: Some(own),
            mtu: 1400,
            up: true,
            addresses: vec![address],
            ..ObservedLink::default()
        };
        let made = Links::from([("eth0".to_owned(), eth0)]);
        let masquerade = Binding::Masquerade {
            v4: "10.0.2.0/24".parse().unwrap(),
            v6: "fd10:0:2::/120".parse().unwrap(),
            ports: Vec::new(),
        };
        for binding in [masquerade, Binding::Bridge] {
            let interface = interface(binding);
            let outcome =
                CniResult { addresses: vec![(address, None)], mac: Some(own), ..CniResult::default() };
            let spare = [Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 3])];
            let facts =
                Facts { interface: &interface, outcome: &outcome, number: 0, mac: own, mtu: 1400, spare };
            let all = wire(&facts, &made);
            let end = carried_out(&all, &made);
            for cut in 0..all.len() {
                let half = carried_out(&all[..cut], &made);
                assert_eq!(carried_out(&wire(&facts, &half), &half), end, "cut after {cut} of {all:#?}");
                let back = carried_out(&unwire(&interface.names, Some(own), &half), &half);
                assert_eq!(back.keys().collect::<Vec<_>>(), ["eth0"], "undone after {cut} of {all:#?}");
                assert_eq!(back["eth0"].mac, Some(own));
            }
            let again = wire(&facts, &end);
            let unseen = |one: &Change| matches!(one, Change::Sysctl { .. } | Change::Rules { .. });
            assert!(again.iter().all(unseen), "{again:#?}");
            let tap = &end["tap0"];
            assert_eq!((tap.mtu, tap.up, tap.master.as_deref()), (1400, true, Some("k6t-eth0")));
            assert!(end["k6t-eth0"].up);
            if interface.binding == Binding::Bridge {
                let port = &end["eth0-nic"];
                assert!(port.mac == Some(spare[0]) && port.addresses.is_empty() && port.up);
                assert!(end["eth0"].dummy && end["eth0"].mac == Some(own));
                assert_eq!(end["k6t-eth0"].addresses, ["169.254.75.10/32".parse::<IpNet>().unwrap()]);
            } else {
                assert_eq!(end["k6t-eth0"].addresses, ["10.0.2.1/24".parse::<IpNet>().unwrap()]);
                assert_eq!(end["eth0"], made["eth0"]);
            }
        }
    }
}
