//! Links: what is read of them, and the requests that make, change and remove them.

use std::os::fd::RawFd;

use netlink_packet_core::DefaultNla;
use netlink_packet_route::link::{
    AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridge, InfoBridgePort, InfoData, InfoKind,
    InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage,
    Prop, State,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::Request;
use mac::Mac;

/// A link as the kernel describes it; absent attributes are zero, empty or none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// Number of the link in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// A user's note on it.
    pub alias: String,
    /// Its Ethernet address.
    pub mac: Option<Mac>,
    /// In bytes.
    pub mtu: u32,
    /// Index of the bridge it is a port of.
    pub master: Option<u32>,
    /// Index of its other end, in the other end's namespace.
    pub peer: Option<u32>,
    /// Number that this namespace gives to the one of its other end; none when it is the same.
    pub peer_namespace: Option<i32>,
    /// The one that a namespace is born with.
    pub loopback: bool,
    /// Administratively up.
    pub up: bool,
    /// Operationally up: it carries frames.
    pub carries: bool,
    /// Set promiscuous: the count of users that need it is not zero.
    pub promiscuous: bool,
    /// Number of the link group, zero for the default one.
    pub group: u32,
    /// Set promiscuous by an administrator: IFF_PROMISC is among its flags.
    pub promiscuous_flag: bool,
    /// Takes frames to every group.
    pub all_multicast: bool,
    /// Length of its queue of frames to be sent.
    pub transmit_queue: u32,
    /// Kind of the link; none for hardware.
    pub kind: Option<InfoKind>,
    /// Attributes of bridges.
    pub bridge: Option<BridgeFacts>,
    /// Attributes of bridge ports.
    pub port: Option<PortSettings>,
    /// The VLANs it is in as a port; only in answers to [`Link::list_vlans`].
    pub vlans: Vec<VlanRange>,
}

/// Facts of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeFacts {
    /// Frames are separated by their VLAN.
    pub vlan_filtering: bool,
    /// The VLAN a new port gets from the kernel; zero for none.
    pub default_vlan: u16,
}

/// Settings of a bridge's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSettings {
    /// Frames may leave by the port they came through.
    pub hairpin: bool,
    /// Frames go to ports only that are not isolated.
    pub isolated: bool,
    /// Frames come through only from addresses that the forwarding database has for this port, and none is learned. Kernels
    /// before Linux 5.18 pass over it, and describe the port without it.
    pub locked: bool,
}

/// VLANs from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanRange {
    /// The first one.
    pub first: u16,
    /// The last one.
    pub last: u16,
    /// The VLAN of frames without a tag, both ways. Only for a range of one.
    pub native: bool,
}

/// A bridge to be made. It comes up at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBridge {
    /// Its name.
    pub name: String,
    /// An Ethernet address that it keeps; if none, the kernel's choice, which ports change.
    pub mac: Option<Mac>,
    /// In bytes; the kernel's choice if none.
    pub mtu: Option<u32>,
    /// Separate frames by their VLAN.
    pub vlan_filtering: bool,
    /// Accept frames to any address.
    pub promiscuous: bool,
}

/// A pair of links to be made: one end here, one in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VethPair {
    /// Name of the end here.
    pub host_name: String,
    /// Ethernet address of the end here.
    pub host_mac: Mac,
    /// Name of the end in the pod.
    pub pod_name: String,
    /// Ethernet address of the end in the pod.
    pub pod_mac: Mac,
    /// The pod end comes up at once; the host end stays down in any case, as the kernel demands of a peer.
    pub pod_up: bool,
    /// In bytes, for both ends; the kernel's choice if none.
    pub mtu: Option<u32>,
}

/// Settings that can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Administratively up.
    Up,
    /// Accepts frames to any address.
    Promiscuous,
    /// Takes frames to every group.
    AllMulticast,
}

impl Link {
    /// Reads a message; none when it is not of a link.
    pub fn read(message: &RouteNetlinkMessage) -> Option<Self> {
        let (RouteNetlinkMessage::NewLink(message) | RouteNetlinkMessage::DelLink(message)) = message else {
            return None;
        };
        let mut link = Self {
            index: message.header.index,
            loopback: message.header.flags.contains(LinkFlags::Loopback),
            up: message.header.flags.contains(LinkFlags::Up),
            promiscuous_flag: message.header.flags.contains(LinkFlags::Promisc),
            all_multicast: message.header.flags.contains(LinkFlags::Allmulti),
            ..Self::default()
        };
        for attribute in &message.attributes {
            link.apply(attribute);
        }
        Some(link)
    }

    /// The links in an answer.
    pub fn all(messages: &[RouteNetlinkMessage]) -> Vec<Self> {
        messages.iter().filter_map(Self::read).collect()
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a link has a hundred attributes, and most are not used here"
    )]
    fn apply(&mut self, attribute: &LinkAttribute) {
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
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|info| self.apply_info(info)),
            LinkAttribute::AfSpecBridge(infos) => self.vlans = ranges(infos),
            _ => {}
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "data of every other kind of link")]
    fn apply_info(&mut self, info: &LinkInfo) {
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
                        InfoBridgePort::Locked(on) => settings.locked = *on,
                        _ => {}
                    }
                }
                self.port = Some(settings);
            }
            _ => {}
        }
    }

    /// Whether it is a bridge.
    pub fn is_bridge(&self) -> bool {
        self.kind == Some(InfoKind::Bridge)
    }

    /// Whether it carries nothing.
    pub fn is_dummy(&self) -> bool {
        self.kind == Some(InfoKind::Dummy)
    }

    /// Whether it is an end of a veth pair.
    pub fn is_veth(&self) -> bool {
        self.kind == Some(InfoKind::Veth)
    }

    /// Whether it takes what is redirected to it.
    pub fn is_ifb(&self) -> bool {
        self.kind == Some(InfoKind::Ifb)
    }

    /// Whether it is a tap or a tun device.
    pub fn is_tun(&self) -> bool {
        self.kind == Some(InfoKind::Tun)
    }

    /// Asks for the link of a name.
    pub fn get(name: &str) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        Request::new(RouteNetlinkMessage::GetLink(message), format!("show the link {name}"))
    }

    /// Asks for the link of an index.
    pub fn get_index(index: u32) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        Request::new(RouteNetlinkMessage::GetLink(message), format!("show the link {index}"))
    }

    /// Asks for all links, or the ports of one bridge.
    pub fn list(master: Option<u32>) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        if let Some(master) = master {
            message.attributes.push(LinkAttribute::Controller(master));
        }
        Request::dump(RouteNetlinkMessage::GetLink(message), "list the links")
    }

    /// Asks for the ports of all bridges, and for the bridges. Nothing else of a port is in the answer but its settings.
    pub fn list_ports() -> Request {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        Request::dump(RouteNetlinkMessage::GetLink(message), "list the ports of bridges")
    }

    /// Asks for the ports of all bridges and their VLANs. Nothing else of a port is in the answer but its names and its bridge.
    pub fn list_vlans() -> Request {
        let mut message = LinkMessage::default();
        message.header.interface_family = AddressFamily::Bridge;
        message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]));
        Request::dump(RouteNetlinkMessage::GetLink(message), "list the VLANs of ports")
    }

    /// Makes a bridge that is up.
    pub fn create_bridge(bridge: &NewBridge) -> Request {
        let mut message = LinkMessage::default();
        set(&mut message, Flag::Up, true);
        if bridge.promiscuous {
            set(&mut message, Flag::Promiscuous, true);
        }
        message.attributes.push(LinkAttribute::IfName(bridge.name.clone()));
        if let Some(mac) = bridge.mac {
            message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        }
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

    /// Makes a veth pair with the pod end born in the namespace of the descriptor.
    pub fn create_veth(pair: &VethPair, pod: RawFd) -> Request {
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
    pub fn enslave(name: &str, bridge: u32, alias: &str) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::Controller(bridge));
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        Request::new(RouteNetlinkMessage::SetLink(message), format!("make {name} a port of the bridge"))
    }

    /// Gives a link a second name, by which [`Link::get`] finds it whatever becomes of its first. Kernels before Linux 5.5
    /// refuse.
    pub fn add_name(name: &str, second: &str) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::PropList(vec![Prop::AltIfName(second.to_owned())]));
        Request::create(
            RouteNetlinkMessage::NewLinkProp(message),
            format!("add the alternative name {second} to {name}"),
        )
    }

    /// Changes settings of a port. One that is locked is not unlocked.
    pub fn set_port(name: &str, settings: PortSettings) -> Request {
        let mut data =
            vec![InfoBridgePort::HairpinMode(settings.hairpin), InfoBridgePort::Isolated(settings.isolated)];
        if settings.locked {
            data.extend([InfoBridgePort::Locked(true), InfoBridgePort::Learning(false)]);
        }
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(data)),
        ]));
        // RTM_SETLINK ignores a port's data; RTM_NEWLINK without the flag to create changes what is there.
        Request::new(
            RouteNetlinkMessage::NewLink(message),
            format!("set hairpin, isolation and lock of {name}"),
        )
    }

    /// Switches VLAN filtering of a bridge.
    pub fn filter_vlans(bridge: &Link, on: bool) -> Request {
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
    pub fn switch(index: u32, flag: Flag, on: bool, what: impl Into<String>) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        set(&mut message, flag, on);
        Request::new(RouteNetlinkMessage::SetLink(message), what)
    }

    /// Changes an attribute of the link of an index.
    pub fn change(index: u32, attribute: LinkAttribute, what: impl Into<String>) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(attribute);
        Request::new(RouteNetlinkMessage::SetLink(message), what)
    }

    /// Gives the link of an index another name. It must be down.
    pub fn rename(index: u32, from: &str, to: &str) -> Request {
        Self::change(index, LinkAttribute::IfName(to.to_owned()), format!("rename {from} to {to}"))
    }

    /// Names a link as ours.
    pub fn set_alias(index: u32, alias: &str, name: &str) -> Request {
        Self::change(index, LinkAttribute::IfAlias(alias.to_owned()), format!("write an alias of {name}"))
    }

    /// Gives a link another Ethernet address.
    pub fn set_mac(index: u32, mac: Mac, name: &str) -> Request {
        let what = format!("set the Ethernet address of {name} to {mac}");
        Self::change(index, LinkAttribute::Address(mac.0.to_vec()), what)
    }

    /// Sets a link's largest packet, in bytes.
    pub fn set_mtu(index: u32, mtu: u32, name: &str) -> Request {
        Self::change(index, LinkAttribute::Mtu(mtu), format!("set the MTU of {name} to {mtu}"))
    }

    /// Makes a link a port of a bridge.
    pub fn set_master(index: u32, bridge: u32, name: &str) -> Request {
        let what = format!("make {name} a port of its bridge");
        Self::change(index, LinkAttribute::Controller(bridge), what)
    }

    /// Has the bridge learn nothing from what comes through a port.
    pub fn stop_learning(index: u32, name: &str) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::Learning(false)])),
        ]));
        Request::new(
            RouteNetlinkMessage::NewLink(message),
            format!("turn off learning on the bridge port {name}"),
        )
    }

    /// Makes a link that is up, of the kind `ifb`: what is redirected to it comes in where it was redirected.
    pub fn create_ifb(name: &str, mtu: u32) -> Request {
        let mut message = LinkMessage::default();
        set(&mut message, Flag::Up, true);
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::Mtu(mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Ifb)]));
        Request::create(
            RouteNetlinkMessage::NewLink(message),
            format!("create the link {name} of the kind ifb"),
        )
    }

    /// Makes a link that carries nothing, of the kind `dummy`.
    pub fn create_dummy(name: &str, mac: Mac) -> Request {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Dummy)]));
        Request::create(RouteNetlinkMessage::NewLink(message), format!("create the dummy {name}"))
    }

    /// Has a link announce its addresses to neighbours when they are assigned: `arp_notify`. On the way to its file in /proc
    /// the kernel compares folders of every namespace that was ever looked into: a millisecond on a full node.
    pub fn notify_by_arp(index: u32, name: &str) -> Request {
        // IFLA_AF_SPEC holds AF_INET, that holds IFLA_INET_CONF, and that a number for each IPV4_DEVCONF_….
        const ARP_NOTIFY: u16 = 22;
        let nested = |kind: u16, inner: &[u8]| {
            // Some bytes.
            let length = u16::try_from(inner.len().saturating_add(4)).unwrap_or(u16::MAX);
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes()[..], inner].concat()
        };
        let settings = nested(1, &nested(ARP_NOTIFY, &1_u32.to_ne_bytes()));
        let attribute = LinkAttribute::Other(DefaultNla::new(26, nested(2, &settings)));
        Self::change(index, attribute, format!("set arp_notify of {name}"))
    }

    /// Puts a port into VLANs.
    pub fn join_vlans(index: u32, ranges: &[VlanRange], what: impl Into<String>) -> Request {
        Request::new(RouteNetlinkMessage::SetLink(vlans(index, ranges)), what)
    }

    /// Takes a port out of VLANs.
    pub fn leave_vlans(index: u32, ranges: &[VlanRange], what: impl Into<String>) -> Request {
        Request::new(RouteNetlinkMessage::DelLink(vlans(index, ranges)), what)
    }

    /// Removes the link of an index.
    pub fn delete(index: u32, name: &str) -> Request {
        let mut message = LinkMessage::default();
        message.header.index = index;
        Request::new(RouteNetlinkMessage::DelLink(message), format!("delete the link {name}"))
    }

    /// Removes all links of a group at once.
    pub fn delete_group(group: u32) -> Request {
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

/// The VLANs of a port, as the kernel lists them.
fn ranges(infos: &[AfSpecBridge]) -> Vec<VlanRange> {
    let mut first = None;
    let mut ranges = Vec::new();
    for info in infos {
        let AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid }) = info else { continue };
        if flags.contains(BridgeVlanInfoFlags::RangeBegin) {
            first = Some(*vid);
        } else {
            let native = flags.contains(BridgeVlanInfoFlags::Pvid);
            ranges.push(VlanRange { first: first.take().unwrap_or(*vid), last: *vid, native });
        }
    }
    ranges
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
