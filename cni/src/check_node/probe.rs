//! The tries.

use std::fs::OpenOptions;
use std::path::Path;

use crate::check_node::{Finding, NAMES};
use crate::error::{Error, Kind};
use crate::netlink::{Link, NewBridge, Router, VethPair};
use crate::nft::{self, Backend, SpoofCheck};
use crate::protocol::Mac;
use link::Namespace;

/// Tries everything there is, in a new namespace.
///
/// # Errors
/// [`Kind::Namespace`] when there is none to try in.
pub(super) fn all() -> Result<Vec<Finding>, Error> {
    Namespace::leave()?;
    Ok(NAMES.into_iter().map(attempt).collect())
}

/// Whether a bridge could filter VLANs; tried in a new namespace, from which this process comes back.
///
/// # Errors
/// [`Kind::Kernel`] when it could not; [`Kind::Namespace`] when there is none to try in.
pub(super) fn vlan_filtering() -> Result<(), Error> {
    let home = Namespace::ours()?;
    Namespace::leave()?;
    let found = bridge("br0", true);
    home.enter()?;
    found.map_err(|error| Error::with(Kind::Kernel, "the kernel does not filter VLANs on bridges", error))
}

fn attempt(name: &'static str) -> Finding {
    let (purpose, remedy, result) = match name {
        "netlink" => {
            ("everything", "a Linux kernel with CONFIG_NET", Router::open().map(drop).map_err(Error::from))
        }
        "bridge" => ("bridge", "the kernel's CONFIG_BRIDGE (modprobe bridge)", bridge("br0", false)),
        "veth" => ("bridge", "the kernel's CONFIG_VETH (modprobe veth)", veth()),
        "vlan-filtering" => (
            "\"vlan\", \"vlanTrunk\"",
            "the kernel's CONFIG_BRIDGE_VLAN_FILTERING, which is part of every distribution's kernel",
            bridge("br1", true),
        ),
        "tun" => ("tap", "the kernel's CONFIG_TUN (modprobe tun)", tun()),
        "ipv6" => (
            "IPv6 addresses",
            "the kernel's CONFIG_IPV6, and no ipv6.disable=1 on its command line",
            file("/proc/sys/net/ipv6"),
        ),
        "nft-inet" => {
            ("\"ipMasq\"", "the kernel's CONFIG_NF_TABLES_INET (modprobe nf_tables)", nft::offers_inet())
        }
        "nft-bridge" => (
            "\"macspoofchk\"",
            "the kernel's CONFIG_NF_TABLES_BRIDGE (modprobe nf_tables)",
            SpoofCheck::offered(),
        ),
        "nft-masquerade" => (
            "\"ipMasq\"",
            "the kernel's CONFIG_NF_TABLES, CONFIG_NFT_MASQ and CONFIG_NF_NAT (modprobe nft_masq)",
            Backend::Nftables.offered(),
        ),
        _ => (
            "\"ipMasqBackend\": \"iptables\"",
            "the program iptables (package iptables), unless nftables is the backend",
            Backend::Iptables.offered(),
        ),
    };
    let missing = result.err().map(|error| match error.details() {
        details if details.is_empty() => error.to_string(),
        details => format!("{error}: {details}"),
    });
    Finding { name, purpose, missing, remedy }
}

fn bridge(name: &str, vlan_filtering: bool) -> Result<(), Error> {
    let new = NewBridge { name: name.to_owned(), mac: None, mtu: None, vlan_filtering, promiscuous: false };
    let mut router = Router::open()?;
    router.ask(Link::create_bridge(&new))?;
    Ok(())
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
    Router::open()?.ask(Link::create_veth(&pair, here.raw()))?;
    Ok(())
}

fn tun() -> Result<(), Error> {
    let failed = |error| Error::io("/dev/net/tun cannot be opened", error);
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun").map_err(failed)?;
    link::tap::create(&tun, "tap0", true, None, None)
        .map_err(|errno| Error::with(Kind::Kernel, "the kernel did not create a tap device", errno))
}

fn file(path: &str) -> Result<(), Error> {
    if Path::new(path).exists() {
        return Ok(());
    }
    Err(Error::new(Kind::Unsupported, format!("{path} does not exist")))
}
