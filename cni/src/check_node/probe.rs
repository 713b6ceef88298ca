//! The tries.

use std::fs::OpenOptions;
use std::path::Path;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::check_node::{Finding, NAMES, sys};
use crate::error::{Error, Kind};
use crate::namespace::Namespace;
use crate::netlink::{Link, NewBridge, Reply, Router, Socket, VethPair};
use crate::protocol::Mac;

/// Families of the packet filter, `linux/netfilter.h`.
const INET: u8 = 1;
const BRIDGE: u8 = 7;

/// Tries everything there is, in a new namespace.
///
/// # Errors
/// [`Kind::Namespace`] when there is none to try in.
pub(super) fn all() -> Result<Vec<Finding>, Error> {
    sys::leave_the_host().map_err(|errno| {
        Error::with(Kind::Namespace, "the kernel gives no network namespace; root is needed", errno)
    })?;
    Ok(NAMES.into_iter().map(attempt).collect())
}

fn attempt(name: &'static str) -> Finding {
    let (purpose, result) = match name {
        "netlink" => ("everything", Router::open().map(drop)),
        "bridge" => ("bridge", bridge("br0", false)),
        "veth" => ("bridge", veth()),
        "vlan-filtering" => ("\"vlan\", \"vlanTrunk\"", bridge("br1", true)),
        "tun" => ("tap", tun()),
        "ipv6" => ("IPv6 addresses", file("/proc/sys/net/ipv6")),
        "nft-inet" => ("\"ipMasq\"", table(INET, false)),
        "nft-bridge" => ("\"macspoofchk\"", table(BRIDGE, false)),
        "nft-masquerade" => ("\"ipMasq\"", table(INET, true)),
        _ => ("\"ipMasqBackend\": \"iptables\"", program("iptables")),
    };
    let missing = result.err().map(|error| match error.details() {
        details if details.is_empty() => error.to_string(),
        details => format!("{error}: {details}"),
    });
    Finding { name, purpose, missing }
}

fn bridge(name: &str, vlan_filtering: bool) -> Result<(), Error> {
    let new = NewBridge { name: name.to_owned(), mtu: None, vlan_filtering, promiscuous: false };
    let mut router = Router::open()?;
    router.ask(Link::create_bridge(&new)).map(drop)
}

fn veth() -> Result<(), Error> {
    let here = Namespace::ours()?;
    let pair = VethPair {
        host_name: "veth0".to_owned(),
        host_mac: Mac([2, 0, 0, 0, 0, 1]),
        pod_name: "veth1".to_owned(),
        pod_mac: Mac([2, 0, 0, 0, 0, 2]),
        pod_up: false,
        mtu: None,
    };
    Router::open()?.ask(Link::create_veth(&pair, here.raw())).map(drop)
}

fn tun() -> Result<(), Error> {
    let failed = |error| Error::io("/dev/net/tun cannot be opened", error);
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun").map_err(failed)?;
    crate::tap::create(&tun, "tap0", true, None, None)
        .map_err(|errno| Error::with(Kind::Kernel, "the kernel did not create a tap device", errno))
}

fn file(path: &str) -> Result<(), Error> {
    if Path::new(path).exists() {
        return Ok(());
    }
    Err(Error::new(Kind::Unsupported, format!("{path} is not there")))
}

fn program(name: &str) -> Result<(), Error> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&folders).any(|folder| folder.join(name).is_file()) {
        return Ok(());
    }
    Err(Error::new(Kind::Unsupported, format!("no program {name} in PATH")))
}

/// A table of a family, and in it a chain that translates addresses if `translates`; one transaction by hand, as it is
/// all that is needed of the packet filter here.
fn table(family: u8, translates: bool) -> Result<(), Error> {
    const BEGIN: u16 = 0x10;
    const END: u16 = 0x11;
    const SUBSYSTEM: u16 = 10;
    const NEW_TABLE: u16 = SUBSYSTEM << 8;
    const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
    let name = attribute(1, b"probe\0");
    let mut socket = Socket::open(NETLINK_NETFILTER)?;
    let mut frames = frame(BEGIN, 1, socket.next_sequence(), 0, SUBSYSTEM, &[]);
    let mut last = socket.next_sequence();
    frames.extend(frame(NEW_TABLE, 0x405, last, family, 0, &name));
    if translates {
        last = socket.next_sequence();
        let place = [attribute(1, &4u32.to_be_bytes()), attribute(2, &100u32.to_be_bytes())].concat();
        let parts = [name, attribute(3, b"probe\0"), attribute(4 | 0x8000, &place), attribute(7, b"nat\0")];
        frames.extend(frame(NEW_CHAIN, 0x405, last, family, 0, &parts.concat()));
    }
    frames.extend(frame(END, 1, socket.next_sequence(), 0, SUBSYSTEM, &[]));
    for reply in socket.transact(&frames, last)? {
        if let Reply::Refused { refusal, .. } = reply {
            return Err(Error::with(Kind::Unsupported, "the kernel's nf_tables does not do it", refusal));
        }
    }
    Ok(())
}

fn frame(kind: u16, flags: u16, sequence: u32, family: u8, resource: u16, body: &[u8]) -> Vec<u8> {
    // Bodies here are a few dozen bytes.
    let length = u32::try_from(20 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0, 0, 0, 0, family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(body);
    bytes
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}
