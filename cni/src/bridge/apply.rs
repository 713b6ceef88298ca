//! Carries an ADD out: three system calls to netlink where nothing unusual is asked. Every step that changed something is
//! noted, and all are undone in reverse if a later one fails.

use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::io::Errno;

use crate::bridge::addressing::Addressing;
use crate::bridge::config::Config;
use crate::bridge::identity::{self, NAMES};
use crate::bridge::plan::{BridgeStep, HostLinks, Plan};
use crate::bridge::undo::{Step, Undo, find, present};
use crate::bridge::{container_ns, gateway, lock, status};
use crate::error::{Error, Kind};
use crate::ipam::Ipam;
use crate::log_error;
use crate::netlink::{Event, Flag, Link, NewBridge, Request, Router};
use crate::nft::{AddressPins, Allowed, Backend, Masquerading, SpoofCheck};
use crate::protocol::{Call, Interface, IpConfig, Mac, Outcome};
use link::Namespace;
use link::nft::Filter;

/// How long a port may take to come up: what the reference waits in all.
const PORT_TIMEOUT: Duration = Duration::from_millis(2550);

/// Poll interval for changes without an event.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How often an ADD starts over when another process took away or made what it had just looked up.
const TURNS: u8 = 3;

/// Attaches.
///
/// # Errors
/// Everything that was done is undone; what could not be is in the details.
pub(crate) fn add(config: &Config, call: &Call) -> Result<Outcome, Error> {
    match &config.ipam {
        None => Outcome::refuse_without_addresses(call.version)?,
        Some(ipam) => ipam.locate(call)?,
    }
    // Its absence would be found out at the end only.
    if config.masquerade == Some(Backend::Iptables) {
        Backend::Iptables.offered()?;
    }
    let home = Namespace::ours()?;
    let pod = Namespace::open(call.namespace.as_deref().unwrap_or_else(|| "".as_ref()))?;
    if pod.is(&home) && !call.namespace_may_be_ours {
        let message = format!("{} is the namespace the plugin runs in", pod.path().display());
        return Err(Error::new(Kind::Namespace, message));
    }
    let before = Outcome::previous(&call.config, call.version)?.unwrap_or_default();
    let mut host = Router::open()?;
    let mut lease = None;
    let mut turn = 1;
    loop {
        let mut undo = Undo::default();
        let sides = Sides { pod: &pod, home: &home };
        match attach(config, call, &before, &sides, &mut host, &mut lease, &mut undo) {
            Ok(outcome) => return Ok(outcome),
            Err(failure) => {
                let mut errors = vec![failure.error];
                errors.extend(undo.run(&mut host));
                if failure.again && errors.len() == 1 && turn < TURNS {
                    turn += 1;
                    continue;
                }
                if let (Some(ipam), Some(_)) = (&config.ipam, &lease) {
                    errors.extend(ipam.release(call).err());
                }
                return Error::all(errors).map(|()| Outcome::default());
            }
        }
    }
}

/// Why an attempt failed, and whether another one may succeed.
struct Failure {
    error: Error,
    again: bool,
}

impl From<link::Error> for Failure {
    fn from(error: link::Error) -> Self {
        Error::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, again: false }
    }
}

/// The namespaces of both ends.
struct Sides<'a> {
    pod: &'a Namespace,
    home: &'a Namespace,
}

fn attach(
    config: &Config,
    call: &Call,
    before: &Outcome,
    sides: &Sides<'_>,
    host: &mut Router,
    lease: &mut Option<Outcome>,
    undo: &mut Undo,
) -> Result<Outcome, Failure> {
    let plan = Plan::make(config, call, &observe(config, call, host)?, random()?)?;
    let mut addressing = None;
    if let Some(ipam) = config.ipam.as_ref().filter(|ipam| !ipam.wants_the_link(call)) {
        addressing = Some(leased(config, ipam, call, before, lease)?);
    }
    // Before there is a link, so that no frame passes unchecked.
    if config.spoof_check && !config.lock_port {
        check_spoofing(&plan, call, host, undo)?;
    }
    if let Some(addressing) = addressing.as_ref().filter(|_| config.pin_addresses) {
        pin(config, &plan, call, &addressing.ips, undo)?;
    }
    let fixed_mac = (config.gateway && plan.vlan_gateway.is_none())
        .then(|| gateway::derived_mac(&config.bridge, sides.home));
    let bridge = prepare_bridge(&plan.bridge, fixed_mac, host, undo)?;
    // Ports may change it from now on.
    let mac_before = bridge.mac;
    let wired = wire(&plan, &bridge, sides.pod, host, undo)?;
    if config.lock_port && !lock::is_locked(&wired) {
        // An old kernel passed over it. The port is still down.
        check_spoofing(&plan, call, host, undo)?;
    }
    let (name, pod_index) = (&plan.pair.pod_name, wired.peer);
    let configure = |addressing: &Addressing| {
        let index = pod_index.ok_or_else(odd)?;
        Ok::<_, Error>((
            index,
            container_ns::configure(config, addressing, name, index, sides.pod, sides.home)?,
        ))
    };
    let mut inside = addressing.as_ref().map(configure).transpose()?;
    let (mut host_end, mut bridge) = finish(&plan, &wired, &bridge, host)?;
    if let Some(ipam) = config.ipam.as_ref().filter(|_| addressing.is_none()) {
        let late = leased(config, ipam, call, before, lease)?;
        if config.pin_addresses {
            pin(config, &plan, call, &late.ips, undo)?;
        }
        inside = Some(configure(&late)?);
        addressing = Some(late);
    }
    let mut in_vlan = None;
    if let Some(addressing) = addressing.as_ref().filter(|addressing| !addressing.gateways.is_empty()) {
        let vlan = plan.vlan_gateway.as_ref();
        let links = gateway::Ends { bridge: &bridge, mac_before, host_end: &host_end };
        in_vlan = gateway::provide(config, addressing, vlan, links, sides.home, host, undo)?;
        (host_end, bridge) = show(&host_end, &bridge, Vec::new(), host)?;
    }
    if let Some(addressing) = &addressing {
        masquerade(config, call, &addressing.ips, undo)?;
    }
    if !host_end.carries && !config.pod_end_down {
        host_end = wait_until_it_carries(host_end.index, host)?;
    }
    if let (Some(addressing), Some((index, inside))) = (&addressing, &mut inside)
        && addressing.has_ipv6()
    {
        container_ns::settle(name, *index, sides.pod, sides.home, inside)?;
    }
    if host_end.mtu > bridge.mtu {
        log_error(&larger_mtu(&config.bridge, bridge.mtu, name, host_end.mtu));
    }
    let made = Made { bridge, host_end, in_vlan };
    // A configuration can have name servers without addresses.
    let addressing =
        addressing.unwrap_or_else(|| Addressing { dns: config.dns.clone(), ..Addressing::default() });
    Ok(outcome(&plan, call, &made, addressing, before))
}

/// The defect of a pod whose frames may be larger than its bridge lets pass.
pub(super) fn larger_mtu(bridge: &str, its: u32, pod_end: &str, mtu: u32) -> String {
    format!("{pod_end} has the MTU {mtu} and the bridge {bridge} {its}: larger frames get lost")
}

/// The result of the IPAM plugin, which is called at most once, and only after the other checks passed.
fn leased(
    config: &Config,
    ipam: &Ipam,
    call: &Call,
    before: &Outcome,
    lease: &mut Option<Outcome>,
) -> Result<Addressing, Error> {
    let given = match lease.take() {
        Some(given) => given,
        None => ipam.lease(call)?,
    };
    Addressing::make(config, lease.insert(given), before)
}

/// Reads the links that the plan depends on, in one exchange.
fn observe(config: &Config, call: &Call, host: &mut Router) -> Result<HostLinks, Error> {
    let mut requests = vec![Link::get(&config.bridge)];
    let names = (0..NAMES).map(|turn| identity::host_name(&call.network, &call.attachment, turn));
    requests.extend(names.map(|name| Link::get(&name)));
    let mut answers = host.exchange(requests)?.into_iter().map(present);
    Ok(HostLinks {
        bridge: answers.next().transpose()?.flatten(),
        candidates: answers.collect::<Result<_, _>>()?,
    })
}

fn random() -> Result<[u8; 12], Error> {
    let mut bytes = [0; 12];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(12) => Ok(bytes),
        Ok(_) => Err(Error::new(Kind::Internal, "the kernel gave too few random bytes")),
        Err(errno) => Err(Error::with(Kind::Internal, "the kernel gave no random bytes", errno)),
    }
}

/// Lets no frame of the pod pass that bears another Ethernet address than the pod's.
fn check_spoofing(plan: &Plan, call: &Call, host: &mut Router, undo: &mut Undo) -> Result<(), Error> {
    let check = SpoofCheck::new(&call.network, &call.attachment);
    let exists = |link: &str| Ok(find(host, link)?.is_some());
    check.set_up(&mut Filter::open()?, &plan.pair.host_name, plan.pair.pod_mac, exists)?;
    undo.note(Step::SpoofCheck(check));
    Ok(())
}

/// Lets no frame of the pod pass that bears another address than the pod's.
fn pin(
    config: &Config,
    plan: &Plan,
    call: &Call,
    addresses: &[IpConfig],
    undo: &mut Undo,
) -> Result<(), Error> {
    let pins = AddressPins::new(&call.network, &call.attachment);
    let allowed = Allowed {
        addresses: addresses.iter().map(|one| one.address.addr()).collect(),
        mac: Some(plan.pair.pod_mac),
        mac_checked: config.spoof_check,
        any_link_local: config.any_link_local,
    };
    // Noted first: an answer can get lost.
    undo.note(Step::AddressPins(pins.clone()));
    pins.set_up(&mut Filter::open()?, &plan.pair.host_name, &allowed)
}

/// Masquerades what comes from the pod's addresses, if that is asked for.
fn masquerade(config: &Config, call: &Call, addresses: &[IpConfig], undo: &mut Undo) -> Result<(), Error> {
    let Some(backend) = config.masquerade else { return Ok(()) };
    let masquerading = Masquerading::new(call);
    let addresses: Vec<IpNet> = addresses.iter().map(|one| one.address).collect();
    // Noted first: half of it may be done when it fails.
    undo.note(Step::Masquerading(masquerading.clone()));
    masquerading.set_up(backend, &addresses)
}

/// Makes the bridge, or brings the one there is into shape.
fn prepare_bridge(
    step: &BridgeStep,
    fixed_mac: Option<Mac>,
    host: &mut Router,
    undo: &mut Undo,
) -> Result<Link, Failure> {
    match step {
        BridgeStep::Create(new) => {
            let new = NewBridge { mac: fixed_mac, ..new.clone() };
            let mut answers =
                host.exchange(vec![Link::create_bridge(&new), Link::get(&new.name)])?.into_iter();
            let (Some(created), Some(shown)) = (answers.next(), answers.next()) else {
                return Err(odd().into());
            };
            // Another ADD was faster: what it made may differ, so look again.
            let again = created.refusal().is_some_and(|refusal| refusal.errno == Errno::EXIST);
            created.done().map_err(|error| Failure { error: error.into(), again })?;
            undo.note(Step::Bridge { name: new.name.clone() });
            refuse_router_advertisements(&new.name);
            present(shown)?.ok_or_else(|| odd().into())
        }
        BridgeStep::Use { bridge, raise, make_promiscuous, filter_vlans } => {
            let name = &bridge.name;
            let mut requests = Vec::new();
            let mut back = Vec::new();
            if *raise {
                requests.push(Link::switch(bridge.index, Flag::Up, true, format!("set {name} up")));
                back.push(Link::switch(bridge.index, Flag::Up, false, format!("set {name} down again")));
            }
            if *make_promiscuous {
                let flag = Flag::Promiscuous;
                requests.push(Link::switch(bridge.index, flag, true, format!("make {name} promiscuous")));
                back.push(Link::switch(
                    bridge.index,
                    flag,
                    false,
                    format!("make {name} no longer promiscuous"),
                ));
            }
            if *filter_vlans {
                requests.push(Link::filter_vlans(bridge, true));
                back.push(Link::filter_vlans(bridge, false));
            }
            for (answer, back) in host.exchange(requests)?.into_iter().zip(back) {
                answer.done()?;
                undo.note(Step::Ask(back));
            }
            Ok(bridge.clone())
        }
    }
}

/// The pair and its place on the bridge, in one system call; the host's end as it is then, which is down.
fn wire(
    plan: &Plan,
    bridge: &Link,
    pod: &Namespace,
    host: &mut Router,
    undo: &mut Undo,
) -> Result<Link, Failure> {
    let name = &plan.pair.host_name;
    let mut requests =
        vec![Link::create_veth(&plan.pair, pod.raw()), Link::enslave(name, bridge.index, &plan.alias)];
    requests.extend(plan.port.map(|settings| Link::set_port(name, settings)));
    requests.push(Link::get(name));
    requests.push(Link::add_name(name, &plan.second_name));
    let mut answers = host.exchange(requests)?.into_iter();
    // Ignored: an old kernel has no second names, and a DEL needs this one only after a renaming.
    let _ = answers.next_back();
    let created = answers.next().ok_or_else(odd)?;
    if let Some(refusal) = created.refusal().filter(|refusal| refusal.errno == Errno::EXIST) {
        let message = format!("{} exists already in {}", plan.pair.pod_name, pod.path().display());
        return Err(Error::with(Kind::Mismatch, message, refusal.clone()).into());
    }
    created.done()?;
    undo.note(Step::HostEnd { name: name.clone() });
    let mut shown = Vec::new();
    for answer in answers {
        let full = answer.refusal().is_some_and(|refusal| refusal.errno == Errno::XFULL);
        // Another process took the bridge away. To become a port of what is not there is an invalid argument.
        let gone = |errno| matches!(errno, Errno::NODEV | Errno::INVAL);
        let again = answer.refusal().is_some_and(|refusal| gone(refusal.errno));
        match answer.done() {
            Ok(messages) => shown.extend(Link::all(&messages)),
            Err(error) if full => {
                return Err(Error::with(Kind::Kernel, status::full(&bridge.name), error).into());
            }
            Err(error) => return Err(Failure { error: error.into(), again }),
        }
    }
    let host_end = shown.pop().ok_or_else(odd)?;
    silence(name);
    Ok(host_end)
}

/// VLANs come before the port's first frame. Both links as they are then.
fn finish(plan: &Plan, host_end: &Link, bridge: &Link, host: &mut Router) -> Result<(Link, Link), Error> {
    let (index, name) = (host_end.index, &plan.pair.host_name);
    let is_locked = lock::is_locked(host_end);
    let mut requests = Vec::new();
    if !plan.leave.is_empty() {
        requests.push(Link::leave_vlans(index, &plan.leave, format!("take {name} out of the default VLAN")));
    }
    if !plan.join.is_empty() {
        requests.push(Link::join_vlans(index, &plan.join, format!("put {name} into its VLANs")));
    }
    if is_locked {
        // An address is fixed in VLANs that the port is in.
        for answer in host.exchange(std::mem::take(&mut requests))? {
            answer.done()?;
        }
        lock::fix(host_end, plan.pair.pod_mac, plan.fixed_in.as_deref(), host)?;
    }
    requests.push(Link::switch(index, Flag::Up, true, format!("set {name} up")));
    show(host_end, bridge, requests, host)
}

/// Both links as they are after further requests of the host's end. The bridge is asked for before them: what they set going
/// in the pod holds the lock on all links for a while.
fn show(
    host_end: &Link,
    bridge: &Link,
    changes: Vec<Request>,
    host: &mut Router,
) -> Result<(Link, Link), Error> {
    let mut requests = vec![Link::get_index(bridge.index)];
    requests.extend(changes);
    requests.push(Link::get_index(host_end.index));
    let mut shown = Vec::new();
    for answer in host.exchange(requests)? {
        shown.extend(Link::all(&answer.done()?));
    }
    match <[Link; 2]>::try_from(shown) {
        Ok([bridge, host_end]) => Ok((host_end, bridge)),
        Err(_) => Err(odd()),
    }
}

/// Subscribes to link events before it reads the link's state, so that no change is missed.
fn wait_until_it_carries(index: u32, host: &mut Router) -> Result<Link, Error> {
    let deadline = Instant::now() + PORT_TIMEOUT;
    let mut events = Router::open()?;
    events.listen(Event::Link)?;
    loop {
        let link = Link::all(&host.ask(Link::get_index(index))?).pop().ok_or_else(odd)?;
        if link.carries {
            return Ok(link);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let state = if link.up { "up, without a carrier" } else { "down" };
            let message = format!("the port {} of the bridge does not come up: it is {state}", link.name);
            return Err(Error::new(Kind::Kernel, message));
        }
        // Looked at now and then even so: an event may have been one too many for the socket.
        events.wait(left.min(LOOK_AGAIN))?;
    }
}

/// Addresses on this link are ours to give. Best effort, as in the reference: a kernel without IPv6 has no such file.
fn refuse_router_advertisements(link: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{link}/accept_ra"), "0");
}

/// A bridge's port needs no IPv6 of its own. With it, each would have a link-local address and routes on the node, through
/// which the kernel walks for every port that comes or goes. Before it comes up; best effort, as above.
fn silence(port: &str) {
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{port}/disable_ipv6"), "1");
}

/// The links of the host's side, as they are in the end.
struct Made {
    bridge: Link,
    host_end: Link,
    /// The gateway's, when it is in a VLAN.
    in_vlan: Option<Link>,
}

/// The result: that of earlier plugins of the chain, with this attachment appended.
fn outcome(plan: &Plan, call: &Call, made: &Made, addressing: Addressing, before: &Outcome) -> Outcome {
    let shown = |link: &Link| Interface {
        name: link.name.clone(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: Some(link.mtu),
        ..Interface::default()
    };
    let pod_end = Interface {
        name: plan.pair.pod_name.clone(),
        mac: plan.pair.pod_mac.to_string(),
        // Both ends were made with one MTU.
        mtu: Some(made.host_end.mtu),
        sandbox: call.namespace.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        ..Interface::default()
    };
    let mut outcome = before.clone();
    outcome.interfaces.extend([shown(&made.bridge), shown(&made.host_end), pod_end]);
    outcome.interfaces.extend(made.in_vlan.as_ref().map(shown));
    outcome.ips.extend(addressing.ips);
    outcome.routes.extend(addressing.routes);
    if !addressing.dns.is_empty() {
        outcome.dns = addressing.dns;
    }
    outcome
}

fn odd() -> Error {
    Error::new(Kind::Kernel, "the kernel's netlink answer is incomplete")
}
