//! Decides what an ADD does to the host as it was found. Pure: nothing here asks or changes anything.

use crate::bridge::config::{Config, Vlans};
use crate::bridge::identity::{self, NAMES};
use crate::error::{Error, Kind};
use crate::netlink::{Link, NewBridge, PortSettings, VethPair, VlanRange};
use crate::protocol::{Call, Mac, is_interface_name};

/// The VLAN the kernel puts ports of a new bridge into.
const KERNEL_DEFAULT_VLAN: u16 = 1;

/// The first byte of a host end's Ethernet address: high, so that the bridge does not take it for its own while it has a
/// real interface; as libvirt does.
pub(super) const HOST_END: u8 = 0xfe;

/// The host as it was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostLinks {
    /// The link that has the bridge's name.
    pub(crate) bridge: Option<Link>,
    /// The links that have the names we may use, in the order of [`identity::host_name`].
    pub(crate) candidates: Vec<Option<Link>>,
}

/// The steps of an ADD.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) bridge: BridgeStep,
    pub(crate) pair: VethPair,
    pub(crate) alias: String,
    /// Of the host's end.
    pub(crate) second_name: String,
    /// None for what the kernel gives a new port.
    pub(crate) port: Option<PortSettings>,
    pub(crate) leave: Vec<VlanRange>,
    pub(crate) join: Vec<VlanRange>,
    /// The VLANs that a locked port's address is fixed in; `None`: the bridge does not filter VLANs.
    pub(crate) fixed_in: Option<Vec<VlanRange>>,
    /// Where the gateway's addresses go instead of the bridge.
    pub(crate) vlan_gateway: Option<VlanGateway>,
}

/// The link that carries a gateway's addresses in a VLAN, and what becomes of its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VlanGateway {
    pub(crate) name: String,
    pub(crate) leave: Vec<VlanRange>,
    pub(crate) join: Vec<VlanRange>,
}

/// The step about the bridge.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BridgeStep {
    /// It is not there.
    Create(NewBridge),
    /// It is there; what has to change before a port joins.
    Use { bridge: Link, raise: bool, make_promiscuous: bool, filter_vlans: bool },
}

impl Plan {
    /// Decides. `random` is what the Ethernet addresses are made of where none is asked for: six bytes for the pod's
    /// end, six for the host's.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] when the host's links do not allow it.
    pub(crate) fn make(
        config: &Config,
        call: &Call,
        found: &HostLinks,
        random: [u8; 12],
    ) -> Result<Self, Error> {
        let alias = identity::alias(&call.network, &call.attachment);
        let host_name = free_name(call, found, &alias)?;
        let [a, b, c, d, e, f, rest @ ..] = random;
        let [g, h, i, j, k, _] = rest;
        let pair = VethPair {
            host_name,
            host_mac: Mac([HOST_END, g, h, i, j, k]),
            pod_name: call.attachment.interface.clone(),
            pod_mac: config.mac.unwrap_or(Mac::local([a, b, c, d, e, f])),
            // With addresses it comes up after them.
            pod_up: config.ipam.is_none() && !config.pod_end_down,
            mtu: config.mtu,
        };
        let settings =
            PortSettings { hairpin: config.hairpin, isolated: config.isolated, locked: config.lock_port };
        let bridge = bridge_step(config, found.bridge.as_ref())?;
        let (leave, join) = vlans(config, &bridge);
        let fixed_in = fixed_in(config, &bridge, &leave, &join);
        let port = (settings != PortSettings::default()).then_some(settings);
        let vlan_gateway = vlan_gateway(config, &bridge)?;
        let second_name = identity::second_name(&call.network, &call.attachment);
        Ok(Self { bridge, pair, alias, second_name, port, leave, join, fixed_in, vlan_gateway })
    }
}

fn free_name(call: &Call, found: &HostLinks, alias: &str) -> Result<String, Error> {
    if let Some(mine) = found.candidates.iter().flatten().find(|link| link.alias == alias) {
        let container = &call.attachment.container;
        let interface = &call.attachment.interface;
        return Err(Error::mismatch(format!(
            "{interface} of container {container} is attached to network {} already, by {}",
            call.network, mine.name
        )));
    }
    (0..NAMES)
        .zip(&found.candidates)
        .find(|(_, taken)| taken.is_none())
        .map(|(turn, _)| identity::host_name(&call.network, &call.attachment, turn))
        .ok_or_else(|| Error::new(Kind::Internal, "all names for the host's end of the veth pair are taken; remove veth links of ended pods (GC)"))
}

/// Decides about the link that has the bridge's name, if there is one.
///
/// # Errors
/// [`Kind::Mismatch`] when it is no bridge, or none that could do what is asked.
pub(crate) fn bridge_step(config: &Config, found: Option<&Link>) -> Result<BridgeStep, Error> {
    let name = &config.bridge;
    let Some(bridge) = found else {
        return Ok(BridgeStep::Create(NewBridge {
            name: name.clone(),
            mac: None,
            mtu: config.mtu,
            vlan_filtering: config.vlans.is_some(),
            promiscuous: config.promiscuous,
        }));
    };
    if !bridge.is_bridge() {
        return Err(Error::mismatch(format!(
            "the link {name} exists already and is not a bridge; name another one, or remove it"
        )));
    }
    let filters = bridge.bridge.unwrap_or_default().vlan_filtering;
    let wants = config.vlans.as_ref().filter(|vlans| vlans.any());
    if !filters && wants.is_some_and(|vlans| !vlans.enable_filtering) {
        return Err(Error::mismatch(format!(
            "the bridge {name} does not filter VLANs, so \"vlan\" and \"vlanTrunk\" would separate nothing; switch it on \
             (ip link set {name} type bridge vlan_filtering 1) or set \"enableVlanFiltering\": true"
        )));
    }
    Ok(BridgeStep::Use {
        bridge: bridge.clone(),
        raise: !bridge.up,
        make_promiscuous: config.promiscuous && !bridge.promiscuous_flag,
        filter_vlans: !filters && wants.is_some(),
    })
}

/// The VLANs a port leaves, and those it joins.
fn vlans(config: &Config, bridge: &BridgeStep) -> (Vec<VlanRange>, Vec<VlanRange>) {
    let Some(vlans) = config.vlans.as_ref().filter(|vlans| vlans.any()) else {
        return (Vec::new(), Vec::new());
    };
    // A trunk without "vlan" takes frames without a tag as VLAN 1: so it has always been, and users rely on it.
    let native = vlans.access.unwrap_or(KERNEL_DEFAULT_VLAN);
    let leave = left_by_default(vlans, bridge);
    let mut join = Vec::new();
    for range in &vlans.trunk {
        // The native one must not be joined as a tagged one: the kernel would take the later word for it.
        if range.first < native {
            join.push(VlanRange { last: range.last.min(native - 1), ..*range });
        }
        if range.last > native {
            join.push(VlanRange { first: range.first.max(native + 1), ..*range });
        }
    }
    join.push(VlanRange { first: native, last: native, native: true });
    (leave, join)
}

/// The VLANs that the address of a locked port is fixed in, for the bridge as it is now; `None`: it does not filter them.
pub(super) fn locked_in(config: &Config, bridge: &Link) -> Option<Vec<VlanRange>> {
    let bridge = BridgeStep::Use {
        bridge: bridge.clone(),
        raise: false,
        make_promiscuous: false,
        filter_vlans: false,
    };
    let (leave, join) = vlans(config, &bridge);
    fixed_in(config, &bridge, &leave, &join)
}

/// The VLANs that a port is in at the end, if the bridge filters them by then.
fn fixed_in(
    config: &Config,
    bridge: &BridgeStep,
    leave: &[VlanRange],
    join: &[VlanRange],
) -> Option<Vec<VlanRange>> {
    let (filters, default) = match bridge {
        BridgeStep::Create(new) => (new.vlan_filtering, KERNEL_DEFAULT_VLAN),
        BridgeStep::Use { bridge, filter_vlans, .. } => {
            let facts = bridge.bridge.unwrap_or_default();
            (facts.vlan_filtering || *filter_vlans, facts.default_vlan)
        }
    };
    if !filters || !config.lock_port {
        return None;
    }
    let mut all = join.to_vec();
    let in_all = |vlan: u16| join.iter().any(|one| (one.first..=one.last).contains(&vlan));
    if default != 0 && leave.is_empty() && !in_all(default) {
        all.push(VlanRange { first: default, last: default, native: false });
    }
    Some(all)
}

/// The VLAN that the kernel puts a new port into, unless it shall stay there.
fn left_by_default(vlans: &Vlans, bridge: &BridgeStep) -> Vec<VlanRange> {
    let default = match bridge {
        BridgeStep::Create(_) => KERNEL_DEFAULT_VLAN,
        BridgeStep::Use { bridge, .. } => bridge.bridge.unwrap_or_default().default_vlan,
    };
    if default == 0 || vlans.keep_default {
        return Vec::new();
    }
    vec![VlanRange { first: default, last: default, native: false }]
}

/// Where the gateway is when the pods are in a VLAN.
///
/// # Errors
/// [`Kind::Config`] when the link would have too long a name.
fn vlan_gateway(config: &Config, bridge: &BridgeStep) -> Result<Option<VlanGateway>, Error> {
    let Some(name) = gateway_link(config) else { return Ok(None) };
    let vlans = config.vlans.as_ref();
    let (Some(vlans), Some(vlan)) = (vlans, vlans.and_then(|vlans| vlans.access)) else { return Ok(None) };
    if !is_interface_name(&name) {
        return Err(Error::config(format!(
            "the gateway in VLAN {vlan} would be the link {name}, which is not the name of a link; give the bridge a shorter one"
        )));
    }
    Ok(Some(VlanGateway {
        name,
        leave: left_by_default(vlans, bridge),
        join: vec![VlanRange { first: vlan, last: vlan, native: true }],
    }))
}

/// The name of the link that carries the gateway's addresses in a VLAN; `None` without a VLAN or without a gateway.
pub(crate) fn gateway_link(config: &Config) -> Option<String> {
    let vlan = config.vlans.as_ref().and_then(|vlans| vlans.access);
    vlan.filter(|_| config.gateway && config.ipam.is_some()).map(|vlan| format!("{}.{vlan}", config.bridge))
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::InfoKind;

    use super::*;
    use crate::error::Kind;
    use crate::netlink::BridgeFacts;

    const RANDOM: [u8; 12] = [0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

    fn make(keys: &str, found: &HostLinks) -> Result<Plan, Error> {
        let call = Call::adding(keys);
        Plan::make(&Config::parse(&call)?, &call, found, RANDOM)
    }

    fn nothing() -> HostLinks {
        HostLinks { bridge: None, candidates: vec![None; usize::from(NAMES)] }
    }

    fn bridge(change: impl Fn(&mut Link)) -> HostLinks {
        let facts = BridgeFacts { vlan_filtering: false, default_vlan: 1 };
        let mut link = Link {
            index: 7,
            name: "br0".into(),
            up: true,
            kind: Some(InfoKind::Bridge),
            bridge: Some(facts),
            ..Link::default()
        };
        change(&mut link);
        HostLinks { bridge: Some(link), ..nothing() }
    }

    fn filtering(default_vlan: u16) -> HostLinks {
        bridge(|link| link.bridge = Some(BridgeFacts { vlan_filtering: true, default_vlan }))
    }

    /// As people write VLANs: a star for the one without a tag.
    fn words(ranges: &[VlanRange]) -> String {
        let one = |range: &VlanRange| {
            let star = if range.native { "*" } else { "" };
            if range.first == range.last {
                format!("{}{star}", range.first)
            } else {
                format!("{}-{}{star}", range.first, range.last)
            }
        };
        ranges.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    /// Keys, the bridge as found; the VLANs a port leaves and joins.
    #[test]
    fn vlans_of_a_port() {
        let rows = [
            ("", nothing(), "", ""),
            (r#""vlan": 0,"#, nothing(), "", ""),
            (r#""vlanTrunk": [],"#, nothing(), "", ""),
            (r#""vlan": 100,"#, nothing(), "1", "100*"),
            (r#""vlan": 1,"#, nothing(), "1", "1*"),
            (r#""vlan": 100, "preserveDefaultVlan": true,"#, nothing(), "", "100*"),
            (r#""vlan": 100,"#, filtering(5), "5", "100*"),
            (r#""vlan": 100,"#, filtering(0), "", "100*"),
            (r#""vlanTrunk": [{"id": 7}, {"minID": 10, "maxID": 12}],"#, nothing(), "1", "7 10-12 1*"),
            (
                r#""vlanTrunk": [{"minID": 10, "maxID": 12}, {"id": 13}, {"id": 11}],"#,
                nothing(),
                "1",
                "10-13 1*",
            ),
            (r#""vlanTrunk": [{"minID": 1, "maxID": 4094}],"#, nothing(), "1", "2-4094 1*"),
            (r#""vlan": 11, "vlanTrunk": [{"minID": 10, "maxID": 12}],"#, nothing(), "1", "10 12 11*"),
            (r#""vlan": 10, "vlanTrunk": [{"minID": 10, "maxID": 12}],"#, nothing(), "1", "11-12 10*"),
            (r#""vlan": 4094, "vlanTrunk": [{"id": 4094}],"#, nothing(), "1", "4094*"),
        ];
        for (keys, found, leave, join) in rows {
            let plan = make(keys, &found).unwrap();
            assert_eq!((words(&plan.leave).as_str(), words(&plan.join).as_str()), (leave, join), "{keys}");
        }
    }

    /// Keys, the bridge as found; the VLANs that the pod's address is fixed in.
    #[test]
    fn a_locked_port_has_its_address_in_its_vlans() {
        let rows = [
            ("", filtering(1), None),
            (r#""macspoofchk": true, "spoofchkBackend": "nftables","#, filtering(1), None),
            (r#""macspoofchk": true,"#, bridge(|_| {}), None),
            (r#""macspoofchk": true,"#, nothing(), None),
            (r#""macspoofchk": true,"#, filtering(7), Some("7")),
            (r#""macspoofchk": true,"#, filtering(0), Some("")),
            (r#""macspoofchk": true, "vlan": 100,"#, filtering(1), Some("100*")),
            (r#""macspoofchk": true, "vlan": 100, "preserveDefaultVlan": true,"#, nothing(), Some("100* 1")),
            (
                r#""macspoofchk": true, "vlanTrunk": [{"minID": 10, "maxID": 12}],"#,
                nothing(),
                Some("10-12 1*"),
            ),
        ];
        for (keys, found, wanted) in rows {
            let plan = make(keys, &found).unwrap();
            assert_eq!(plan.fixed_in.as_deref().map(words).as_deref(), wanted, "{keys}");
            assert_eq!(
                plan.port.is_some_and(|port| port.locked),
                keys.contains("true,") && !keys.contains("nft")
            );
        }
    }

    #[test]
    fn a_bridge_is_made_or_used() {
        let created = |keys: &str| match make(keys, &nothing()).unwrap().bridge {
            BridgeStep::Create(new) => (new.mtu, new.vlan_filtering, new.promiscuous),
            step @ BridgeStep::Use { .. } => panic!("{step:?}"),
        };
        assert_eq!(created(""), (None, false, false));
        assert_eq!(created(r#""mtu": 9000, "promiscMode": true,"#), (Some(9000), false, true));
        assert_eq!(created(r#""vlanTrunk": [],"#), (None, true, false));

        let used = |keys: &str, found: &HostLinks| match make(keys, found).unwrap().bridge {
            BridgeStep::Use { raise, make_promiscuous, filter_vlans, .. } => {
                (raise, make_promiscuous, filter_vlans)
            }
            step @ BridgeStep::Create(_) => panic!("{step:?}"),
        };
        assert_eq!(used("", &bridge(|_| {})), (false, false, false));
        assert_eq!(used("", &bridge(|link| link.up = false)), (true, false, false));
        assert_eq!(used(r#""promiscMode": true,"#, &bridge(|_| {})), (false, true, false));
        let promiscuous = bridge(|link| link.promiscuous_flag = true);
        assert_eq!(used(r#""promiscMode": true,"#, &promiscuous), (false, false, false));
        let switched = r#""vlan": 5, "enableVlanFiltering": true,"#;
        assert_eq!(used(switched, &bridge(|_| {})), (false, false, true));
        assert_eq!(used(r#""vlan": 5,"#, &filtering(1)), (false, false, false));
        assert_eq!(make(r#""vlan": 5,"#, &bridge(|_| {})).unwrap_err().kind(), Kind::Mismatch);
        assert_eq!(make("", &bridge(|link| link.kind = None)).unwrap_err().kind(), Kind::Mismatch);
    }

    #[test]
    fn a_pair_has_a_name_of_its_own() {
        let plan = make("", &nothing()).unwrap();
        assert_eq!(plan.alias, "net/c1/eth0");
        assert_eq!(plan.pair.host_mac.to_string(), "fe:06:07:08:09:0a");
        assert_eq!(plan.pair.pod_mac.to_string(), "fe:01:02:03:04:05");
        assert!(plan.pair.pod_up);
        let other = Link { alias: "net/c2/eth0".into(), ..Link::default() };
        let mut found = nothing();
        found.candidates[0] = Some(other.clone());
        assert_ne!(make("", &found).unwrap().pair.host_name, plan.pair.host_name);
        // All taken; taken by itself, wherever.
        found.candidates = vec![Some(other.clone()); usize::from(NAMES)];
        assert_eq!(make("", &found).unwrap_err().kind(), Kind::Internal);
        found.candidates = vec![None, Some(Link { alias: plan.alias, ..other }), None, None];
        assert_eq!(make("", &found).unwrap_err().kind(), Kind::Mismatch);
    }

    #[test]
    fn with_addresses_the_pods_end_comes_up_first() {
        let plan = make(r#""ipam": {"type": "static"},"#, &nothing()).unwrap();
        assert!(!plan.pair.pod_up);
        let plan = make(r#""disableContainerInterface": true,"#, &nothing()).unwrap();
        assert!(!plan.pair.pod_up);
    }

    /// Keys; the link of the gateway in a VLAN, if there is one, and the VLANs of its port.
    #[test]
    fn where_a_gateway_is() {
        let with_ipam = |keys: &str| format!(r#"{keys} "ipam": {{"type": "static"}},"#);
        for (keys, wanted) in [
            (with_ipam(r#""isGateway": true,"#), None),
            (with_ipam(r#""vlan": 100,"#), None),
            (r#""isGateway": true, "vlan": 100,"#.to_owned(), None),
            (with_ipam(r#""isGateway": true, "vlanTrunk": [{"id": 5}],"#), None),
            (with_ipam(r#""isDefaultGateway": true, "vlan": 100,"#), Some(("br0.100", "1", "100*"))),
            (
                with_ipam(r#""isGateway": true, "vlan": 100, "preserveDefaultVlan": true,"#),
                Some(("br0.100", "", "100*")),
            ),
            (
                with_ipam(r#""isGateway": true, "vlan": 7, "vlanTrunk": [{"id": 5}],"#),
                Some(("br0.7", "1", "7*")),
            ),
        ] {
            let plan = make(&keys, &nothing()).unwrap();
            let found = plan.vlan_gateway.map(|vlan| (vlan.name, words(&vlan.leave), words(&vlan.join)));
            let found =
                found.as_ref().map(|(name, leave, join)| (name.as_str(), leave.as_str(), join.as_str()));
            assert_eq!(found, wanted, "{keys}");
        }
        let long = with_ipam(r#""isGateway": true, "vlan": 100, "bridge": "a23456789012",  "#);
        assert_eq!(make(&long, &nothing()).unwrap_err().kind(), Kind::Config);
    }
}
