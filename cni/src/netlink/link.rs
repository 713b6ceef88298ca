//! Links: what is read of them, and the requests that make, change and remove them.

use std::os::fd::RawFd;

use netlink_packet_route::link::{
    AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridge, InfoBridgePort, InfoData, InfoKind,
    InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
    State,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::Request;
use crate::protocol::Mac;

/// A link as the kernel describes it; absent attributes are zero, empty or none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) alias: String,
    pub(crate) mac: Option<Mac>,
    /// In bytes.
    pub(crate) mtu: u32,
    /// Index of the bridge it is a port of.
    pub(crate) master: Option<u32>,
    /// Index of its other end, in the other end's namespace.
    pub(crate) peer: Option<u32>,
    /// Number that this namespace gives to the one of its other end; none when it is the same.
    pub(crate) peer_namespace: Option<i32>,
    /// Administratively up.
    pub(crate) up: bool,
    /// Operationally up: it carries frames.
    pub(crate) carries: bool,
    /// Set promiscuous by someone: the count of those is not zero.
    pub(crate) promiscuous: bool,
    /// Number of the link group, zero for the default one.
    pub(crate) group: u32,
    /// Set promiscuous by an administrator: IFF_PROMISC is among its flags.
    pub(crate) promiscuous_flag: bool,
    pub(crate) all_multicast: bool,
    pub(crate) transmit_queue: u32,
    pub(crate) kind: Option<InfoKind>,
    /// What only a bridge has.
    pub(crate) bridge: Option<BridgeFacts>,
    /// What only a port of a bridge has.
    pub(crate) port: Option<PortSettings>,
}

/// Facts of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BridgeFacts {
    pub(crate) vlan_filtering: bool,
    /// The VLAN a new port gets from the kernel; zero for none.
    pub(crate) default_vlan: u16,
}

/// Settings of a bridge's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortSettings {
    pub(crate) hairpin: bool,
    pub(crate) isolated: bool,
}

/// VLANs from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VlanRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    /// The VLAN of frames without a tag, both ways. Only for a range of one.
    pub(crate) native: bool,
}

/// A bridge to be made. It comes up at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewBridge {
    pub(crate) name: String,
    /// In bytes; the kernel's choice if none.
    pub(crate) mtu: Option<u32>,
    pub(crate) vlan_filtering: bool,
    pub(crate) promiscuous: bool,
}

/// A pair of links to be made: one end here, one in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VethPair {
    pub(crate) host_name: String,
    pub(crate) host_mac: Mac,
    pub(crate) pod_name: String,
    pub(crate) pod_mac: Mac,
    /// The pod end comes up at once; the host end stays down in any case, as the kernel demands of a peer.
    pub(crate) pod_up: bool,
    /// In bytes, for both ends; the kernel's choice if none.
    pub(crate) mtu: Option<u32>,
}

/// What can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Up,
    Promiscuous,
    AllMulticast,
}

impl Link {
    /// Reads a message; none when it is not of a link.
    pub(crate) fn read(message: &RouteNetlinkMessage) -> Option<Self> {
        let (RouteNetlinkMessage::NewLink(message) | RouteNetlinkMessage::DelLink(message)) = message else {
            return None;
        };
        let mut link = Self {
            index: message.header.index,
            up: message.header.flags.contains(LinkFlags::Up),
            promiscuous_flag: message.header.flags.contains(LinkFlags::Promisc),
            all_multicast: message.header.flags.contains(LinkFlags::Allmulti),
            ..Self::default()
        };
        for attribute in &message.attributes {
            link.take(attribute);
        }
        Some(link)
    }

    /// The links in an answer.
    pub(crate) fn all(messages: &[RouteNetlinkMessage]) -> Vec<Self> {
        messages.iter().filter_map(Self::read).collect()
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a link has a hundred attributes, and most say nothing to us"
    )]
    fn take(&mut self, attribute: &LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name.clone_from(name),
            LinkAttribute::IfAlias(alias) => self.alias.clone_from(alias),
            LinkAttribute::Address(address) => self.mac = Mac::from_bytes(address),
            LinkAttribute::Mtu(mtu) => self.mtu = *mtu,
            LinkAttribute::Controller(index) => self.master = Some(*index).filter(|index| *index != 0),
            LinkAttribute::Link(index) => self.peer = Some(*index).filter(|index| *index != 0),
            LinkAttribute::LinkNetNsId(number) => self.peer_namespace = Some(*number),
            LinkAttribute::OperState(state) => self.carries = *state == State::Up,
            LinkAttribute::Promiscuity(count) => self.promiscuous = *count != 0,
            LinkAttribute::Group(group) => self.group = *group,
            LinkAttribute::TxQueueLen(length) => self.transmit_queue = *length,
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| self.take_info(info)),
            _ => {}
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "data of every other kind of link")]
    fn take_info(&mut self, info: &LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = Some(kind.clone()),
            LinkInfo::Data(InfoData::Bridge(data)) => {
                let mut facts = BridgeFacts::default();
                for one in data {
                    match one {
                        InfoBridge::VlanFiltering(on) => facts.vlan_filtering = *on,
                        InfoBridge::VlanDefaultPvid(vlan) => facts.default_vlan = *vlan,
                        _ => {}
                    }
                }
                self.bridge = Some(facts);
            }
            LinkInfo::PortData(InfoPortData::BridgePort(data)) => {
                let mut settings = PortSettings::default();
                for one in data {
                    match one {
                        InfoBridgePort::HairpinMode(on) => settings.hairpin = *on,
                        InfoBridgePort::Isolated(on) => settings.isolated = *on,
                        _ => {}
                    }
                }
                self.port = Some(settings);
            }
            _ => {}
        }
    }

    /// Whether it is a bridge.
    pub(crate) fn is_bridge(&self) -> bool {
        self.kind == Some(InfoKind::Bridge)
    }

    /// Whether it is an end of a veth pair.
    pub(crate) fn is_veth(&self) -> bool {
        self.kind == Some(InfoKind::Veth)
    }

    /// Whether it is a tap or a tun device.
    pub(crate) fn is_tun(&self) -> bool {
        self.kind == Some(InfoKind::Tun)
    }

    /// Asks for the link of a name.
    pub(crate) fn get(name: &str) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        Request::new(RouteNetlinkMessage::GetLink(message), format!("show the link {name}"))
    }

    /// Asks for the link of an index.
    pub(crate) fn get_index(index: u32) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        Request::new(RouteNetlinkMessage::GetLink(message), format!("show the link {index}"))
    }

    /// Asks for all links, or the ports of one bridge.
    pub(crate) fn list(master: Option<u32>) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        if let Some(master) = master {
            message.attributes.push(LinkAttribute::Controller(master));
        }
        Request::dump(RouteNetlinkMessage::GetLink(message), "list the links")
    }

    /// Makes a bridge that is up.
    pub(crate) fn create_bridge(bridge: &NewBridge) -> Request {
        let mut message = LinkMessage::default();
        set(&mut message, Flag::Up, true);
        if bridge.promiscuous {
            set(&mut message, Flag::Promiscuous, true);
        }
        message.attributes.push(LinkAttribute::IfName(bridge.name.clone()));
        if let Some(mtu) = bridge.mtu {
            message.attributes.push(LinkAttribute::Mtu(mtu));
        }
        let mut info = vec![LinkInfo::Kind(InfoKind::Bridge)];
        if bridge.vlan_filtering {
            info.push(LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::VlanFiltering(true)])));
        }
        message.attributes.push(LinkAttribute::LinkInfo(info));
        Request::create(RouteNetlinkMessage::NewLink(message), format!("create the bridge {}", bridge.name))
    }

    /// Makes a veth pair whose pod end is born in the namespace of the descriptor.
    pub(crate) fn create_veth(pair: &VethPair, pod: RawFd) -> Request {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(pair.host_name.clone()));
        peer.attributes.push(LinkAttribute::Address(pair.host_mac.0.to_vec()));
        let mut message = LinkMessage::default();
        if pair.pod_up {
            set(&mut message, Flag::Up, true);
        }
        message.attributes.push(LinkAttribute::IfName(pair.pod_name.clone()));
        message.attributes.push(LinkAttribute::Address(pair.pod_mac.0.to_vec()));
        message.attributes.push(LinkAttribute::NetNsFd(pod));
        if let Some(mtu) = pair.mtu {
            peer.attributes.push(LinkAttribute::Mtu(mtu));
            message.attributes.push(LinkAttribute::Mtu(mtu));
        }
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let what = format!("create {} with its other end {}", pair.pod_name, pair.host_name);
        Request::create(RouteNetlinkMessage::NewLink(message), what)
    }

    /// Makes the link of a name a port of the bridge, and names it as ours.
    pub(crate) fn enslave(name: &str, bridge: u32, alias: &str, up: bool) -> Request {
        let mut message = LinkMessage::default();
        if up {
            set(&mut message, Flag::Up, true);
        }
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::Controller(bridge));
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        Request::new(RouteNetlinkMessage::SetLink(message), format!("make {name} a port of the bridge"))
    }

    /// Changes settings of a port.
    pub(crate) fn set_port(name: &str, settings: PortSettings) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![
                InfoBridgePort::HairpinMode(settings.hairpin),
                InfoBridgePort::Isolated(settings.isolated),
            ])),
        ]));
        // RTM_SETLINK ignores a port's data; RTM_NEWLINK without the flag to create changes what is there.
        Request::new(RouteNetlinkMessage::NewLink(message), format!("set hairpin and isolation of {name}"))
    }

    /// Switches VLAN filtering of a bridge.
    pub(crate) fn filter_vlans(bridge: &Link, on: bool) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = bridge.index;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::VlanFiltering(on)])),
        ]));
        let state = if on { "on" } else { "off" };
        let what = format!("switch VLAN filtering of the bridge {} {state}", bridge.name);
        Request::new(RouteNetlinkMessage::NewLink(message), what)
    }

    /// Switches a flag of the link of an index.
    pub(crate) fn switch(index: u32, flag: Flag, on: bool, what: impl Into<String>) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        set(&mut message, flag, on);
        Request::new(RouteNetlinkMessage::SetLink(message), what)
    }

    /// Changes an attribute of the link of an index.
    pub(crate) fn change(index: u32, attribute: LinkAttribute, what: impl Into<String>) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(attribute);
        Request::new(RouteNetlinkMessage::SetLink(message), what)
    }

    /// Puts a port into VLANs.
    pub(crate) fn join_vlans(index: u32, ranges: &[VlanRange], what: impl Into<String>) -> Request {
        Request::new(RouteNetlinkMessage::SetLink(vlans(index, ranges)), what)
    }

    /// Takes a port out of VLANs.
    pub(crate) fn leave_vlans(index: u32, ranges: &[VlanRange], what: impl Into<String>) -> Request {
        Request::new(RouteNetlinkMessage::DelLink(vlans(index, ranges)), what)
    }

    /// Removes the link of an index.
    pub(crate) fn delete(index: u32, name: &str) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        Request::new(RouteNetlinkMessage::DelLink(message), format!("delete the link {name}"))
    }

    /// Removes all links of a group at once.
    pub(crate) fn delete_group(group: u32) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Group(group));
        Request::new(RouteNetlinkMessage::DelLink(message), format!("delete the links of group {group:#x}"))
    }
}

fn set(message: &mut LinkMessage, flag: Flag, on: bool) {
    let flag = match flag {
        Flag::Up => LinkFlags::Up,
        Flag::Promiscuous => LinkFlags::Promisc,
        Flag::AllMulticast => LinkFlags::Allmulti,
    };
    message.header.change_mask |= flag;
    message.header.flags.set(flag, on);
}

fn vlans(index: u32, ranges: &[VlanRange]) -> LinkMessage {
    let mut list = Vec::new();
    let mut push = |flags, vid| list.push(AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid }));
    for range in ranges {
        let flags = if range.native {
            BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged
        } else {
            BridgeVlanInfoFlags::empty()
        };
        if range.first == range.last {
            push(flags, range.first);
        } else {
            push(flags | BridgeVlanInfoFlags::RangeBegin, range.first);
            push(flags | BridgeVlanInfoFlags::RangeEnd, range.last);
        }
    }
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.header.index = index;
    message.attributes.push(LinkAttribute::AfSpecBridge(list));
    message
}
