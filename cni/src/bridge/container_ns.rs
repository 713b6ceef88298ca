//! Carries out what `addressing` decided inside the pod: kernel settings, addresses, routes. Nothing here needs undoing:
//! it goes with the link.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::bridge::addressing::Addressing;
use crate::bridge::config::Config;
use crate::error::{Error, Kind};
use crate::netlink::{Address, Event, Flag, KernelRoute, Link, Router};
use link::Namespace;

/// How long duplicate address detection may take: what the reference waits.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Gives the pod's end its addresses, sets it up, and adds the routes.
///
/// # Errors
/// [`Kind::Kernel`] or [`Kind::Namespace`] with what was refused.
pub(super) fn configure(
    config: &Config,
    addressing: &Addressing,
    name: &str,
    index: u32,
    pod: &Namespace,
    home: &Namespace,
) -> Result<Router, Error> {
    // The sysctls of a namespace are those that a process inside sees in /proc.
    let mut inside = pod.inside(home, || {
        settings(config, addressing, name)?;
        Ok::<_, Error>(Router::open()?)
    })?;
    let mut requests = vec![Link::notify_by_arp(index, name)];
    requests.extend(addressing.ips.iter().map(|ip| Address::add(index, ip.address, name)));
    requests.push(Link::switch(index, Flag::Up, true, format!("set {name} up in the pod")));
    let first_route = requests.len();
    requests.extend(addressing.kernel_routes().iter().map(|route| KernelRoute::add(index, route, name)));
    for (position, answer) in inside.exchange(requests)?.into_iter().enumerate() {
        // A route that is there already is what was asked for; the first one is best effort, as in the reference.
        let there = answer.refusal().is_some_and(|refusal| refusal.errno == Errno::EXIST);
        if position > 0 && !(position >= first_route && there) {
            answer.done()?;
        }
    }
    Ok(inside)
}

fn settings(config: &Config, addressing: &Addressing, name: &str) -> Result<(), Error> {
    // Best effort: a kernel without the setting works as well.
    if config.pin_addresses && !config.any_link_local {
        // The link-local address is made of the Ethernet address, as it is pinned, whatever the node's default.
        let _ = write("ipv6", name, "addr_gen_mode", "0");
    }
    if config.detect_duplicates {
        let _ = write("ipv6", name, "enhanced_dad", "1");
        let _ = write("ipv6", name, "accept_dad", "1");
    } else {
        let _ = write("ipv6", name, "accept_dad", "0");
    }
    if addressing.has_ipv6() {
        for link in ["lo", name] {
            required(link, "disable_ipv6", "0")?;
        }
        required(name, "keep_addr_on_down", "1")?;
    }
    Ok(())
}

/// Looked at first: it is so nearly always, and a write has to wait for the lock on all links, which the kernel does by
/// having the process write again and again.
fn required(link: &str, key: &str, value: &str) -> Result<(), Error> {
    if read("ipv6", link, key).is_ok_and(|found| found.trim_ascii() == value.as_bytes()) {
        return Ok(());
    }
    write("ipv6", link, key, value).map_err(|error| {
        let message = format!("net.ipv6.conf.{link}.{key} cannot be set to {value} in the pod");
        Error::with(Kind::Kernel, message, error)
    })
}

fn read(family: &str, link: &str, key: &str) -> std::io::Result<Vec<u8>> {
    std::fs::read(path(family, link, key))
}

fn path(family: &str, link: &str, key: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(family).join("conf").join(link).join(key)
}

fn write(family: &str, link: &str, key: &str, value: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options().write(true).open(path(family, link, key))?;
    std::io::Write::write_all(&mut file, value.as_bytes())
}

/// Waits until no address of IPv6 is tentative any more: until then nothing can be sent from it.
///
/// # Errors
/// [`Kind::Kernel`] when another host has one of them, or when duplicate address detection takes too long on a link with a
/// carrier.
pub(super) fn settle(
    name: &str,
    index: u32,
    pod: &Namespace,
    home: &Namespace,
    inside: &mut Router,
) -> Result<(), Error> {
    let deadline = Instant::now() + DETECTION_TIMEOUT;
    let mut events = None;
    // Where this is refused, all addresses are listed, and filtered below.
    let _ = inside.strict();
    loop {
        let addresses = Address::all(&inside.ask(Address::list(Some(index)))?);
        let of_link = || addresses.iter().filter(|address| address.link == index);
        if let Some(address) = of_link().find(|address| address.duplicate) {
            let message = format!("{} of {name} is in use by another host", address.network.addr());
            return Err(Error::new(Kind::Kernel, message));
        }
        if !of_link().any(|address| address.tentative) {
            return Ok(());
        }
        // Listening starts before the addresses are looked at once more, so that no change is missed.
        let Some(listener) = &mut events else {
            let mut listener = Router::open_in(pod, home)?;
            listener.listen(Event::Address6)?;
            events = Some(listener);
            continue;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !listener.wait(left)? {
            let link = Link::all(&inside.ask(Link::get_index(index))?).pop();
            if link.is_some_and(|link| link.carries) {
                let message = format!("duplicate address detection of {name} does not come to an end");
                return Err(Error::new(Kind::Kernel, message));
            }
            return Ok(());
        }
    }
}
