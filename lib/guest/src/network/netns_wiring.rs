//! Links, addresses, rules and settings in a guest's namespace, between CNI's interface and the tap device: inspected,
//! changed according to [`plan`], and restored.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use api::launch::Tap;
use ipnet::IpNet;
use link::netlink::{Address, Flag, KernelRoute, Link, NewBridge, Request, Router};
use link::{Mac, Namespace};
use rustix::io::Errno;
use serde_json::Value;

use super::cni_result::CniResult;
use super::dhcp_config::dhcp_config;
use super::names::{self, Names};
use super::plan::{self, Change, Facts, Links, ObservedLink};
use super::{Attached, Binding, Interface, Nic, WantedNetworks, rules, runtime};
use crate::error::{Error, Kind};

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// The links of the namespace this thread is in.
fn links(router: &mut Router) -> Result<Links, Error> {
    let links = Link::all(&router.ask(Link::list(None))?);
    let addresses = Address::all(&router.ask(Address::list(None))?);
    let name = |index: u32| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    let one = |link: &Link| {
        let own = addresses.iter().filter(|one| one.link == link.index && !one.link_local);
        let found = ObservedLink {
            mac: link.mac,
            mtu: link.mtu,
            master: link.master.and_then(name),
            up: link.up,
            dummy: link.is_dummy(),
            addresses: own.map(|one| one.network).collect(),
        };
        (link.name.clone(), found)
    };
    Ok(links.iter().map(one).collect())
}

/// The kernel's main table of routes.
const MAIN_TABLE: u32 = 254;

/// An interface that CNI attached, as it is wired or to be wired.
struct Wiring<'a> {
    one: &'a Interface,
    /// Its number among the guest's.
    number: u8,
    outcome: CniResult,
    spare: [Mac; 2],
}

impl<'a> Wiring<'a> {
    /// All interfaces of a guest, each with its network's result. `machine` distinguishes machines with guests of the same
    /// name.
    fn all(wanted: &'a WantedNetworks, outcomes: &[CniResult], machine: &str) -> Vec<Self> {
        let wire = |((number, one), outcome): ((u8, &'a Interface), &CniResult)| {
            let spare = |what| names::mac(machine, &[&wanted.container, &one.names.pod, what]);
            Self { one, number, outcome: outcome.clone(), spare: [spare("port"), spare("bridge")] }
        };
        (0..=u8::MAX).zip(&wanted.interfaces).zip(outcomes).map(wire).collect()
    }

    /// The missing parts in the namespace, the guest's Ethernet address and its largest packet. To be called in the
    /// namespace.
    fn changes(&self, router: &mut Router) -> Result<(Vec<Change>, Mac, u32), Error> {
        let Self { one, outcome, .. } = self;
        let found = links(router)?;
        let port = found.get(&one.names.port).or_else(|| found.get(&one.names.pod));
        let port = port.ok_or_else(|| {
            let (pod, network) = (&one.names.pod, one.network.name());
            let message = format!(
                "the network namespace has no interface {pod}: no plugin of the network {network} made it"
            );
            Error::new(Kind::System, message)
        })?;
        // Under its name is the interface as CNI made it, or the dummy with its address.
        let made = found.get(&one.names.pod).and_then(|link| link.mac);
        let mac = outcome.mac.or(made).unwrap_or(one.mac);
        let facts =
            Facts { interface: one, outcome, number: self.number, mac, mtu: port.mtu, spare: self.spare };
        Ok((plan::wire(&facts, &found), mac, port.mtu))
    }
}

/// Compares the present links with those that [`wire`] makes; the kernel may have no dummy.
///
/// # Errors
/// The differences.
pub fn check(
    wanted: &WantedNetworks,
    outcomes: &[CniResult],
    machine: &str,
    path: &Path,
) -> Result<(), Error> {
    let namespace = Namespace::open(path)?;
    for wire in Wiring::all(wanted, outcomes, machine) {
        let (changes, ..) = namespace.on_a_thread(|| wire.changes(&mut Router::open()?))?;
        let seen = |change: &&Change| {
            !matches!(change, Change::Sysctl { .. } | Change::Rules { .. } | Change::Dummy { .. })
        };
        if let Some(change) = changes.iter().find(seen) {
            let message = format!(
                "the interface {} was changed from outside: {change}; restart the guest",
                wire.one.name
            );
            return Err(Error::new(Kind::Content, message));
        }
    }
    Ok(())
}

/// The state of a pod's interface, which the cluster's CNI plugins made: its addresses, and the routes over it. To be called
/// before [`wire()`]: a guest with a bridge takes over addresses and routes, and the caller keeps the result.
///
/// # Errors
/// The namespace cannot be entered, or has no such interface.
pub fn observe(path: &Path, interface: &str) -> Result<CniResult, Error> {
    Namespace::open(path)?.on_a_thread(|| {
        let mut router = Router::open()?;
        let links = Link::all(&router.ask(Link::list(None))?);
        let link = links.iter().find(|link| link.name == interface).ok_or_else(|| {
            let message = format!(
                "the network namespace has no interface {interface}: the cluster's CNI plugin made none"
            );
            Error::new(Kind::System, message)
        })?;
        let addresses = Address::all(&router.ask(Address::list(None))?);
        let addresses = addresses.iter().filter(|one| one.link == link.index && !one.link_local);
        let addresses: Vec<IpNet> = addresses.map(|one| one.network).collect();
        let routes = KernelRoute::all(&router.ask(KernelRoute::list())?);
        let routes = routes
            .into_iter()
            .filter(|route| route.table == MAIN_TABLE && route.link == Some(link.index))
            .map(|route| (route.destination, route.gateway));
        Ok(CniResult::observed(link.mac, &addresses, routes))
    })
}

/// Whether a link of this name is in a namespace.
///
/// # Errors
/// The namespace cannot be entered.
pub fn has(path: &Path, link: &str) -> Result<bool, Error> {
    let found = Namespace::open(path)?.on_a_thread(|| links(&mut Router::open()?))?;
    Ok(found.contains_key(link))
}

/// Leaves CNI's interface as it was made, but for its addresses.
///
/// # Errors
/// A change that the kernel refuses.
pub fn unwire(path: &Path, interface: &str, result: &Value) -> Result<(), Error> {
    let Some(namespace) = Namespace::find(path)? else { return Ok(()) };
    namespace.on_a_thread(|| {
        let mut router = Router::open()?;
        let mac = CniResult::read(result, interface).mac;
        let changes = plan::unwire(&Names::of(interface), mac, &links(&mut router)?);
        changes.iter().try_for_each(|one| apply(&mut router, one, 0).map(drop))
    })
}

/// Switches the loopback of a new namespace on.
///
/// # Errors
/// The kernel refuses.
pub fn loopback(namespace: &Namespace) -> Result<(), Error> {
    namespace.on_a_thread(|| {
        let mut router = Router::open()?;
        let lo = find(&mut router, "lo")?;
        change(&mut router, Link::switch(lo.index, Flag::Up, true, "set lo up"))
    })
}

/// Makes the links between the plugins' interfaces and the tap devices; returns the guest's interfaces. `outcomes` are the
/// results of each interface's network, in the order of the interfaces ([`super::runtime::outcomes`], [`observe`]).
///
/// # Errors
/// An interface is not there, or the kernel refuses a change. Another call continues.
pub fn wire(
    wanted: &WantedNetworks,
    outcomes: &[CniResult],
    machine: &str,
    path: &Path,
) -> Result<Attached, Error> {
    let (mut nics, mut notes) = (Vec::new(), Vec::new());
    let namespace = Namespace::open(path)?;
    for wire in Wiring::all(wanted, outcomes, machine) {
        let (mac, mtu, dummy) = namespace.on_a_thread(|| {
            let mut router = Router::open()?;
            let (changes, mac, mtu) = wire.changes(&mut router)?;
            let mut dummy = true;
            for change in &changes {
                dummy &= apply(&mut router, change, wanted.user)?;
            }
            Ok::<_, Error>((mac, mtu, dummy))
        })?;
        let Wiring { one, number, outcome, .. } = &wire;
        if !dummy {
            notes.push(format!(
                "this kernel has no dummy interfaces: {} is not shown in the guest's namespace",
                one.names.pod
            ));
        }
        let mac = if one.binding == Binding::Bridge { mac } else { one.mac };
        let dhcp = dhcp_config(wanted, one, outcome, *number);
        let router = match &one.binding {
            Binding::Masquerade { v6, .. } => outcome.v6().map(|_| *v6),
            Binding::Bridge => None,
        };
        nics.push(Nic {
            name: one.name.clone(),
            tap: Tap {
                link: one.names.tap.clone(),
                mac: mac.to_string(),
                mtu,
                many_queues: one.many_queues,
                dhcp,
            },
            pod_interface: one.names.pod.clone(),
            addresses: runtime::reached(outcome),
            router,
        });
    }
    Ok(Attached { namespace: path.to_owned(), nics, notes })
}

fn find(router: &mut Router, name: &str) -> Result<Link, Error> {
    let found = Link::all(&router.ask(Link::get(name))?);
    found
        .into_iter()
        .next()
        .ok_or_else(|| Error::new(Kind::System, format!("the link {name} does not exist")))
}

fn change(router: &mut Router, request: Request) -> Result<(), Error> {
    router.ask(request)?;
    Ok(())
}

/// A change that may have been made already, taps for this user; whether it was made, which only a dummy may not be.
fn apply(router: &mut Router, one: &Change, user: u32) -> Result<bool, Error> {
    match one {
        Change::Bridge { name, mac, mtu } => {
            let new = NewBridge {
                name: name.clone(),
                mac: Some(*mac),
                mtu: Some(*mtu),
                vlan_filtering: false,
                promiscuous: false,
            };
            change(router, Link::create_bridge(&new))?;
        }
        Change::Tap { name, many_queues } => {
            let path = Path::new("/dev/net/tun");
            let tun = File::options().read(true).write(true).open(path).map_err(failed(path))?;
            let owner = Some(user);
            link::tap::create(&tun, name, *many_queues, owner, owner).map_err(|errno| {
                Error::with(Kind::System, format!("the kernel made no tap device {name}"), errno)
            })?;
        }
        Change::Dummy { name, mac, addresses } => {
            let answers = router.exchange(vec![Link::create_dummy(name, *mac)])?;
            for answer in answers {
                if answer.refusal().is_some_and(|refusal| refusal.errno == Errno::OPNOTSUPP) {
                    return Ok(false);
                }
                answer.done()?;
            }
            let found = find(router, name)?;
            for network in addresses {
                change(router, Address::add(found.index, *network, name))?;
            }
        }
        Change::Rename { from, to } => {
            let link = find(router, from)?;
            change(router, Link::rename(link.index, from, to))?;
        }
        Change::Mac { link, mac } => {
            let found = find(router, link)?;
            change(router, Link::set_mac(found.index, *mac, link))?;
        }
        Change::Mtu { link, mtu } => {
            let found = find(router, link)?;
            change(router, Link::set_mtu(found.index, *mtu, link))?;
        }
        Change::Port { link, bridge } => {
            let (found, bridge) = (find(router, link)?, find(router, bridge)?);
            change(router, Link::set_master(found.index, bridge.index, link))?;
        }
        Change::NoLearning { link } => {
            let found = find(router, link)?;
            change(router, Link::stop_learning(found.index, link))?;
        }
        Change::Address { link, network } => {
            let found = find(router, link)?;
            change(router, Address::add(found.index, *network, link))?;
        }
        Change::NoAddress { link, network } => {
            let found = find(router, link)?;
            for answer in router.exchange(vec![Address::remove(found.index, *network, link)])? {
                // One of IPv6 went when the link went down.
                if !answer.refusal().is_some_and(|refusal| refusal.errno == Errno::ADDRNOTAVAIL) {
                    answer.done()?;
                }
            }
        }
        Change::Up { link, up } => {
            let found = find(router, link)?;
            let state = if *up { "up" } else { "down" };
            change(router, Link::switch(found.index, Flag::Up, *up, format!("set {link} {state}")))?;
        }
        Change::Delete { link } => {
            let found = find(router, link)?;
            change(router, Link::delete(found.index, link))?;
        }
        Change::Sysctl { name, value } => set_sysctl(name, value)?,
        Change::Rules { interface, guests, ports } => rules::put(interface, guests, ports)?,
        Change::NoRules => rules::remove()?,
    }
    Ok(true)
}

/// Sets a sysctl of the namespace this thread is in. One of IPv6 that the kernel does not have needs no setting.
///
/// # Errors
/// The kernel refuses.
pub fn set_sysctl(name: &str, value: &str) -> Result<(), Error> {
    let path = Path::new("/proc/sys").join(name);
    if fs::read_to_string(&path).is_ok_and(|found| found.trim() == value) {
        return Ok(());
    }
    match fs::write(&path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && name.starts_with("net/ipv6/") => Ok(()),
        written => written.map_err(failed(&path)),
    }
}
