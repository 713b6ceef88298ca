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
    let (purpose, result) = match name {
        "netlink" => ("everything", Router::open().map(drop).map_err(Error::from)),
        "bridge" => ("bridge", bridge("br0", false)),
        "veth" => ("bridge", veth()),
        "vlan-filtering" => ("\"vlan\", \"vlanTrunk\"", bridge("br1", true)),
        "tun" => ("tap", tun()),
        "ipv6" => ("IPv6 addresses", file("/proc/sys/net/ipv6")),
        "nft-inet" => ("\"ipMasq\"", nft::offers_inet()),
        "nft-bridge" => ("\"macspoofchk\"", SpoofCheck::offered()),
        "nft-masquerade" => ("\"ipMasq\"", Backend::Nftables.offered()),
        _ => ("\"ipMasqBackend\": \"iptables\"", Backend::Iptables.offered()),
    };
    let missing = result.err().map(|error| match error.details() {
        details if details.is_empty() => error.to_string(),
        details => format!("{error}: {details}"),
    });
    Finding { name, purpose, missing }
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
