//! The keys of a `bridge` configuration, and what they mean together. DEL and GC read the few keys they need for
//! themselves: what no ADD would take must not keep a pod from going away.

use crate::error::Error;
use crate::ipam::Ipam;
use crate::netlink::VlanRange;
use crate::nft::Backend;
use crate::protocol::{Call, Dns, Mac, Object, is_interface_name};

/// The bridge's name if none is given.
const DEFAULT_BRIDGE: &str = "cni0";

/// The requested attachment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// `bridge`.
    pub(crate) bridge: String,
    /// `mtu`, in bytes; the kernel's choice if none.
    pub(crate) mtu: Option<u32>,
    /// `hairpinMode`: the bridge sends frames back through the port they came from.
    pub(crate) hairpin: bool,
    /// `promiscMode`, of the bridge.
    pub(crate) promiscuous: bool,
    /// `portIsolation`: the port speaks with ports that are not isolated only.
    pub(crate) isolated: bool,
    /// `disableContainerInterface`: the pod's end stays down.
    pub(crate) pod_end_down: bool,
    /// `macspoofchk`.
    pub(crate) spoof_check: bool,
    /// `spoofchkBackend`, ours: `bridge` where the kernel can, unless it is `nftables`.
    pub(crate) lock_port: bool,
    /// `ipspoofchk`, ours: what comes from the pod must bear the addresses that IPAM gave it.
    pub(crate) pin_addresses: bool,
    /// `anyLinkLocal`, ours: with `ipspoofchk`, any address of fe80::/10 too.
    pub(crate) any_link_local: bool,
    /// `vlan` and `vlanTrunk`, if any was given.
    pub(crate) vlans: Option<Vlans>,
    /// `isGateway`, implied by `isDefaultGateway`.
    pub(crate) gateway: bool,
    /// `isDefaultGateway`.
    pub(crate) default_gateway: bool,
    /// `forceAddress`.
    pub(crate) force_address: bool,
    /// `ipMasq`, with the backend if one was named.
    pub(crate) masquerade: Option<Backend>,
    /// `enabledad`: duplicate address detection in the pod.
    pub(crate) detect_duplicates: bool,
    /// The pod's Ethernet address, if it was asked for.
    pub(crate) mac: Option<Mac>,
    /// The IPAM plugin, if any.
    pub(crate) ipam: Option<Ipam>,
    /// `dns`; overrides the IPAM plugin's unless empty.
    pub(crate) dns: Dns,
}

/// The VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Vlans {
    /// `vlan`: the one of frames without a tag; none for zero.
    pub(crate) access: Option<u16>,
    /// `vlanTrunk`: those of frames with a tag, without gaps where there are none, in order.
    pub(crate) trunk: Vec<VlanRange>,
    /// `preserveDefaultVlan`: the port also stays in the VLAN that the kernel put it into.
    pub(crate) keep_default: bool,
    /// `enableVlanFiltering`, ours: a bridge that does not filter is made to, instead of being refused.
    pub(crate) enable_filtering: bool,
}

impl Config {
    /// Reads and checks all keys.
    ///
    /// # Errors
    /// [`crate::Kind::Config`], naming the key.
    pub(crate) fn parse(call: &Call) -> Result<Self, Error> {
        let keys = &call.config;
        let bridge = bridge_name(keys)?;
        let default_gateway = keys.boolean("isDefaultGateway")?;
        let config = Self {
            bridge,
            mtu: mtu(keys)?,
            hairpin: keys.boolean("hairpinMode")?,
            promiscuous: keys.boolean("promiscMode")?,
            isolated: keys.boolean("portIsolation")?,
            pod_end_down: keys.boolean("disableContainerInterface")?,
            spoof_check: keys.boolean("macspoofchk")?,
            lock_port: lock_port(keys)?,
            pin_addresses: keys.boolean("ipspoofchk")?,
            any_link_local: keys.boolean("anyLinkLocal")?,
            vlans: Vlans::parse(keys)?,
            gateway: default_gateway || keys.boolean("isGateway")?,
            default_gateway,
            force_address: keys.boolean("forceAddress")?,
            masquerade: masquerade(keys)?,
            detect_duplicates: keys.boolean("enabledad")?,
            mac: mac(call)?,
            ipam: Ipam::parse(keys)?,
            dns: Dns::parse(keys)?,
        };
        config.refuse_contradictions()?;
        Ok(config)
    }

    fn refuse_contradictions(&self) -> Result<(), Error> {
        if self.hairpin && self.promiscuous {
            return Err(Error::config("\"hairpinMode\" and \"promiscMode\" cannot both be true"));
        }
        if self.pin_addresses && self.ipam.is_none() {
            return Err(Error::config(
                "\"ipspoofchk\" needs \"ipam\": it checks the addresses that IPAM gives",
            ));
        }
        if self.pod_end_down && self.ipam.is_some() {
            return Err(Error::config("\"disableContainerInterface\" leaves no use for \"ipam\""));
        }
        Ok(())
    }
}

/// `bridge`.
///
/// # Errors
/// [`crate::Kind::Config`] when it is not the name of a link.
pub(super) fn bridge_name(keys: &Object) -> Result<String, Error> {
    let bridge = keys.text("bridge")?.filter(|name| !name.is_empty()).unwrap_or(DEFAULT_BRIDGE).to_owned();
    if is_interface_name(&bridge) {
        return Ok(bridge);
    }
    Err(Error::config(format!("\"bridge\": \"{}\" is not the name of a link", bridge.escape_debug())))
}

fn mtu(keys: &Object) -> Result<Option<u32>, Error> {
    match keys.integer("mtu")? {
        None | Some(0) => Ok(None),
        Some(mtu) => match u32::try_from(mtu) {
            // The kernel's own bounds of a veth.
            Ok(mtu) if (68..=65_535).contains(&mtu) => Ok(Some(mtu)),
            Ok(_) | Err(_) => Err(Error::config(format!("\"mtu\" must be between 68 and 65535, not {mtu}"))),
        },
    }
}

/// nftables unless configured otherwise: it needs no program on the node.
fn masquerade(keys: &Object) -> Result<Option<Backend>, Error> {
    let backend = match keys.text("ipMasqBackend")? {
        None | Some("" | "nftables") => Backend::Nftables,
        Some("iptables") => Backend::Iptables,
        Some(other) => {
            let other = other.escape_debug();
            return Err(Error::config(format!("\"ipMasqBackend\" is nftables or iptables, not \"{other}\"")));
        }
    };
    Ok(keys.boolean("ipMasq")?.then_some(backend))
}

/// A locked port of the bridge unless the configuration chooses nftables: it costs nothing per frame of other ports.
fn lock_port(keys: &Object) -> Result<bool, Error> {
    let wanted = keys.boolean("macspoofchk")?;
    match keys.text("spoofchkBackend")? {
        None | Some("" | "bridge") => Ok(wanted),
        Some("nftables") => Ok(false),
        Some(other) => {
            let other = other.escape_debug();
            Err(Error::config(format!("\"spoofchkBackend\" is bridge or nftables, not \"{other}\"")))
        }
    }
}

/// `runtimeConfig.mac`, else `args.cni.mac`, else `MAC` of CNI_ARGS.
fn mac(call: &Call) -> Result<Option<Mac>, Error> {
    let keys = &call.config;
    // IPAM knows the other two.
    call.arguments.only(&["MAC", "IP", "GATEWAY"])?;
    let candidates = [
        keys.object("runtimeConfig")?.text("mac")?,
        keys.object("args")?.object("cni")?.text("mac")?,
        call.arguments.get("MAC"),
    ];
    match candidates.into_iter().flatten().find(|text| !text.is_empty()) {
        Some(text) => Ok(Some(link::interface_mac(text)?)),
        None => Ok(None),
    }
}

impl Vlans {
    fn parse(keys: &Object) -> Result<Option<Self>, Error> {
        let access = match keys.integer("vlan")? {
            None | Some(0) => None,
            Some(vlan) => Some(vlan_in(vlan, 0, "vlan")?),
        };
        let items = keys.objects("vlanTrunk")?;
        // Present and empty still asks for a bridge that filters, as the reference has it.
        if access.is_none() && keys.get("vlanTrunk").is_none() {
            return Ok(None);
        }
        let mut wanted = Vec::new();
        for item in items {
            let read = |key: &str| match item.integer(key)? {
                None => Ok::<_, Error>(None),
                Some(vlan) => Ok(Some(vlan_in(vlan, 1, key)?)),
            };
            let (first, last, single) = (read("minID")?, read("maxID")?, read("id")?);
            match (first, last) {
                (None, None) => {}
                (Some(first), Some(last)) if first <= last => wanted.push((first, last)),
                (Some(first), Some(last)) => {
                    return Err(Error::config(format!("\"vlanTrunk\": minID {first} is above maxID {last}")));
                }
                (Some(_), None) => return Err(Error::config("\"vlanTrunk\": minID without maxID")),
                (None, Some(_)) => return Err(Error::config("\"vlanTrunk\": maxID without minID")),
            }
            if let Some(single) = single {
                wanted.push((single, single));
            }
        }
        Ok(Some(Self {
            access,
            trunk: merged(wanted),
            keep_default: keys.boolean("preserveDefaultVlan")?,
            enable_filtering: keys.boolean("enableVlanFiltering")?,
        }))
    }

    /// Whether a port changes its VLANs at all.
    pub(crate) fn any(&self) -> bool {
        self.access.is_some() || !self.trunk.is_empty()
    }
}

fn vlan_in(vlan: i64, least: u16, key: &str) -> Result<u16, Error> {
    u16::try_from(vlan)
        .ok()
        .filter(|vlan| (least..=4094).contains(vlan))
        .ok_or_else(|| Error::config(format!("\"{key}\" must be between {least} and 4094, not {vlan}")))
}

/// Ranges in order, those that touch made one.
fn merged(mut ranges: Vec<(u16, u16)>) -> Vec<VlanRange> {
    ranges.sort_unstable();
    let mut merged: Vec<VlanRange> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.last.saturating_add(1) => before.last = before.last.max(last),
            Some(_) | None => merged.push(VlanRange { first, last, native: false }),
        }
    }
    merged
}
