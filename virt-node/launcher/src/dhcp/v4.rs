//! Answers to DHCPv4 (RFC 2131): pure. Only the guest's Ethernet address is answered, and only with its own address.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use api::launch::{Dhcp, DhcpOptions, Lease4};
use dhcproto::v4::{DhcpOption, HType, Message, MessageType, Opcode, OptionCode, UnknownOption};
use dhcproto::{Decodable, Decoder, Encodable, Name};
use ipnet::Ipv4Net;
use link::Mac;

/// Where servers are asked.
pub(super) const SERVER: u16 = 67;
/// Where clients are answered.
const CLIENT: u16 = 68;
/// Seconds that stand for ever.
const FOR_EVER: u32 = u32::MAX;
/// Shortest packet that every client takes (RFC 951).
const SHORTEST: usize = 300;
/// Options that are looked at, and their lengths: an address that is asked for, the message's type, a server's name.
const KEPT: [(u8, u8); 3] = [(50, 4), (53, 1), (54, 4)];
const END: u8 = 255;
/// The length of a packet before its options, and the offset of its client's Ethernet address.
const HEADER: usize = 240;
const CLIENT_ADDRESS: std::ops::Range<usize> = 28..34;

/// The answer to a packet, and its destination; `None` for packets without an answer.
pub(super) fn answer(dhcp: &Dhcp, mac: Mac, mtu: u32, packet: &[u8]) -> Option<(Vec<u8>, SocketAddrV4)> {
    let lease = dhcp.v4.as_ref()?;
    // A request over Ethernet, from the guest itself. Looked at before the library does, which trusts the length.
    let ours = packet.len() >= HEADER && packet.starts_with(&[1, 1, 6]);
    if !ours || packet.get(CLIENT_ADDRESS) != Some(&mac.0[..]) {
        return None;
    }
    let asked = Message::decode(&mut Decoder::new(&sifted(packet)?)).ok()?;
    if !asked.giaddr().is_unspecified() {
        return None;
    }
    let option = |code: OptionCode| match asked.opts().get(code) {
        Some(DhcpOption::RequestedIpAddress(address) | DhcpOption::ServerIdentifier(address)) => {
            Some(*address)
        }
        Some(_) | None => None,
    };
    if option(OptionCode::ServerIdentifier).is_some_and(|server| server != lease.server) {
        return None;
    }
    let wants = option(OptionCode::RequestedIpAddress)
        .or_else(|| Some(asked.ciaddr()).filter(|address| !address.is_unspecified()));
    let kind = asked.opts().msg_type()?;
    let kind = if kind == MessageType::Discover {
        MessageType::Offer
    } else if kind == MessageType::Request && wants.is_some_and(|address| address != lease.address) {
        MessageType::Nak
    } else if kind == MessageType::Request || kind == MessageType::Inform {
        MessageType::Ack
    } else {
        return None;
    };
    let mut reply = Message::default();
    reply
        .set_opcode(Opcode::BootReply)
        .set_htype(HType::Eth)
        .set_xid(asked.xid())
        .set_flags(asked.flags())
        .set_chaddr(&mac.0);
    let informed = asked.opts().msg_type() == Some(MessageType::Inform);
    let options = reply.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(lease.server));
    if kind != MessageType::Nak {
        if !informed {
            options.insert(DhcpOption::AddressLeaseTime(FOR_EVER));
        }
        for option in network_options(dhcp, lease, mtu) {
            options.insert(option);
        }
        reply.set_ciaddr(asked.ciaddr());
        if !informed {
            reply.set_yiaddr(lease.address);
        }
    }
    let mut bytes = reply.to_vec().ok()?;
    bytes.resize(bytes.len().max(SHORTEST), 0);
    // A configured client gets the answer at its address; all others by broadcast.
    let to = if asked.ciaddr() == lease.address && kind != MessageType::Nak {
        lease.address
    } else {
        Ipv4Addr::BROADCAST
    };
    Some((bytes, SocketAddrV4::new(to, CLIENT)))
}

/// The packet without options that are nothing to us: of those the library's reader makes what it likes.
fn sifted(packet: &[u8]) -> Option<Vec<u8>> {
    let (header, mut options) = packet.split_at_checked(HEADER)?;
    let mut kept = header.to_vec();
    loop {
        options = match options {
            [] | [END, ..] => break,
            [0, rest @ ..] => rest,
            [code, length, rest @ ..] => {
                let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
                if KEPT.contains(&(*code, *length)) {
                    kept.extend([*code, *length]);
                    kept.extend(value);
                }
                rest
            }
            [_] => break,
        };
    }
    kept.push(END);
    Some(kept)
}

/// The network, as options.
fn network_options(dhcp: &Dhcp, lease: &Lease4, mtu: u32) -> Vec<DhcpOption> {
    let mut options = Vec::new();
    options.extend(
        Ipv4Net::new(lease.address, lease.prefix).ok().map(|net| DhcpOption::SubnetMask(net.netmask())),
    );
    options.extend(lease.gateway.map(|gateway| DhcpOption::Router(vec![gateway])));
    let v4 = |address: &IpAddr| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    };
    let resolvers: Vec<Ipv4Addr> = dhcp.resolvers.iter().filter_map(v4).collect();
    if !resolvers.is_empty() {
        options.push(DhcpOption::DomainNameServer(resolvers));
    }
    options.extend(u16::try_from(mtu).ok().map(DhcpOption::InterfaceMtu));
    options.push(DhcpOption::Hostname(dhcp.host_name.clone()));
    options.extend(dhcp.search.first().cloned().map(DhcpOption::DomainName));
    let search = names(dhcp);
    if !search.is_empty() {
        options.push(DhcpOption::DomainSearch(search));
    }
    let route = |network, prefix, gateway| Some((Ipv4Net::new(network, prefix).ok()?, gateway));
    let mut routes: Vec<(Ipv4Net, Ipv4Addr)> =
        lease.routes.iter().filter_map(|one| route(one.network, one.prefix, one.gateway)).collect();
    if !routes.is_empty() {
        // Clients that support this option ignore the gateway option (RFC 3442).
        routes.extend(lease.gateway.and_then(|gateway| route(Ipv4Addr::UNSPECIFIED, 0, gateway)));
        options.push(DhcpOption::ClasslessStaticRoute(routes));
    }
    options.extend(further_options(&dhcp.options));
    options
}

/// Those that the guest's owner adds.
fn further_options(further: &DhcpOptions) -> Vec<DhcpOption> {
    let DhcpOptions { boot_file, tftp_server, ntp_servers, private } = further;
    let mut options = Vec::new();
    options.extend(boot_file.clone().map(|name| DhcpOption::BootfileName(name.into_bytes())));
    options.extend(tftp_server.clone().map(|name| DhcpOption::TFTPServerName(name.into_bytes())));
    if !ntp_servers.is_empty() {
        options.push(DhcpOption::NtpServers(ntp_servers.clone()));
    }
    options.extend(private.iter().map(|(number, value)| {
        let value = value.clone().into_bytes();
        DhcpOption::Unknown(UnknownOption::new(OptionCode::Unknown(*number), value))
    }));
    options
}

/// The domains to search.
pub(super) fn names(dhcp: &Dhcp) -> Vec<Name> {
    dhcp.search.iter().filter_map(|name| Name::from_ascii(name).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);

    fn dhcp() -> Dhcp {
        let lease = Lease4 {
            address: "10.0.2.2".parse().unwrap(),
            prefix: 24,
            server: "10.0.2.1".parse().unwrap(),
            gateway: Some("10.0.2.1".parse().unwrap()),
            routes: Vec::new(),
        };
        Dhcp {
            link: "k6t-eth0".to_owned(),
            v4: Some(lease),
            v6: Some("fd10:0:2::2".parse().unwrap()),
            resolvers: vec!["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()],
            search: vec!["a.example".to_owned()],
            host_name: "vm".to_owned(),
            options: DhcpOptions::default(),
        }
    }

    fn packet(kind: MessageType, options: &[DhcpOption]) -> Message {
        let mut message = Message::default();
        message.set_opcode(Opcode::BootRequest).set_htype(HType::Eth).set_chaddr(&MAC.0).set_xid(99);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        for option in options {
            message.opts_mut().insert(option.clone());
        }
        message
    }

    fn reply_to(message: &Message) -> Option<(Message, SocketAddrV4)> {
        let (bytes, to) = answer(&dhcp(), MAC, 1400, &message.to_vec().unwrap())?;
        assert!(bytes.len() >= SHORTEST);
        Some((Message::decode(&mut Decoder::new(&bytes)).unwrap(), to))
    }

    #[test]
    fn a_guest_is_offered_and_given_its_address() {
        let own: Ipv4Addr = "10.0.2.2".parse().unwrap();
        let wants = DhcpOption::RequestedIpAddress(own);
        for (asked, kind) in [
            (packet(MessageType::Discover, &[]), MessageType::Offer),
            (packet(MessageType::Request, &[wants]), MessageType::Ack),
        ] {
            let (reply, to) = reply_to(&asked).unwrap();
            assert_eq!((reply.opts().msg_type(), reply.xid(), reply.yiaddr()), (Some(kind), 99, own));
            assert_eq!(to.to_string(), "255.255.255.255:68");
            let has = |option: DhcpOption| reply.opts().iter().any(|(_, one)| *one == option);
            assert!(has(DhcpOption::InterfaceMtu(1400)) && has(DhcpOption::AddressLeaseTime(FOR_EVER)));
            assert!(has(DhcpOption::Router(vec!["10.0.2.1".parse().unwrap()])));
            assert!(has(DhcpOption::DomainNameServer(vec!["192.0.2.53".parse().unwrap()])));
            assert!(has(DhcpOption::SubnetMask("255.255.255.0".parse().unwrap())));
            assert!(has(DhcpOption::Hostname("vm".to_owned())));
        }
        let mut renewal = packet(MessageType::Request, &[]);
        renewal.set_ciaddr(own);
        let (reply, to) = reply_to(&renewal).unwrap();
        assert_eq!(
            (reply.opts().msg_type(), to.to_string()),
            (Some(MessageType::Ack), "10.0.2.2:68".to_owned())
        );
    }

    #[test]
    fn other_addresses_are_refused_and_others_not_answered() {
        let other = DhcpOption::RequestedIpAddress("10.0.2.9".parse().unwrap());
        let (reply, _) = reply_to(&packet(MessageType::Request, &[other])).unwrap();
        assert_eq!(reply.opts().msg_type(), Some(MessageType::Nak));
        assert!(reply.yiaddr().is_unspecified());
        let server = DhcpOption::ServerIdentifier("10.0.2.9".parse().unwrap());
        assert!(reply_to(&packet(MessageType::Request, &[server])).is_none());
        assert!(reply_to(&packet(MessageType::Release, &[])).is_none());
        let mut stranger = packet(MessageType::Discover, &[]);
        stranger.set_chaddr(&[2, 0, 0, 0, 0, 8]);
        assert!(reply_to(&stranger).is_none());
        let mut relayed = packet(MessageType::Discover, &[]);
        relayed.set_giaddr([10, 0, 0, 1]);
        assert!(reply_to(&relayed).is_none());
    }

    #[test]
    fn routes_come_with_the_default_one() {
        let mut dhcp = dhcp();
        let lease = dhcp.v4.as_mut().unwrap();
        lease.routes.push(api::launch::Route4 {
            network: "10.9.0.0".parse().unwrap(),
            prefix: 16,
            gateway: "10.0.2.9".parse().unwrap(),
        });
        let routes = network_options(&dhcp, dhcp.v4.as_ref().unwrap(), 1500);
        let routes = routes.iter().find_map(|one| {
            if let DhcpOption::ClasslessStaticRoute(routes) = one { Some(routes.len()) } else { None }
        });
        assert_eq!(routes, Some(2));
    }

    #[test]
    fn options_of_the_owner_are_sent() {
        let mut dhcp = dhcp();
        dhcp.options = DhcpOptions {
            boot_file: Some("boot.efi".to_owned()),
            tftp_server: Some("tftp.example".to_owned()),
            ntp_servers: vec!["192.0.2.123".parse().unwrap()],
            private: [(224, "first".to_owned()), (254, "z".to_owned())].into(),
        };
        let asked = packet(MessageType::Discover, &[]).to_vec().unwrap();
        let (bytes, _) = answer(&dhcp, MAC, 1400, &asked).unwrap();
        let (_, options) = bytes.split_at(HEADER);
        for option in [
            &b"\x43\x08boot.efi"[..],
            b"\x42\x0ctftp.example",
            b"\x2a\x04\xc0\x00\x02\x7b",
            b"\xe0\x05first",
            b"\xfe\x01z",
        ] {
            assert!(options.windows(option.len()).any(|part| part == option), "{option:?} in {options:?}");
        }
    }

    /// A guest may send what it likes, as often as it likes.
    #[test]
    fn nonsense_is_survived() {
        let whole = packet(MessageType::Discover, &[DhcpOption::Hostname("x".repeat(40))]).to_vec().unwrap();
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap()
        };
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + next() % 6 {
                let at = next() % bytes.len();
                bytes[at] = u8::try_from(next() % 256).unwrap();
            }
            bytes.truncate(1 + next() % whole.len());
            _ = answer(&dhcp(), MAC, 1500, &bytes);
            // The header as it must be, so that options are read.
            bytes.resize(HEADER.max(bytes.len()), 0);
            bytes[..HEADER].copy_from_slice(&whole[..HEADER]);
            _ = answer(&dhcp(), MAC, 1500, &bytes);
        }
    }
}
