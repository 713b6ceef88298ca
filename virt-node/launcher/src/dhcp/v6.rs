//! Answers to DHCPv6 (RFC 8415): pure. The one address, for whichever identity the client names.

use std::net::{IpAddr, Ipv6Addr};

use api::launch::Dhcp;
use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, Message, MessageType, OptionCode, Status, StatusCode,
};
use dhcproto::{Decodable, Decoder, Encodable};
use link::Mac;

use super::v4::names;

/// Where servers are asked.
pub(super) const SERVER: u16 = 547;
/// The length of a packet before its options.
const HEADER: usize = 4;
/// Options that are looked at, by number, and how long they are.
const CLIENT: u16 = 1;
const SERVER_NAME: u16 = 2;
const IDENTITY: u16 = 3;
const ADDRESS: u16 = 5;
const QUICK: u16 = 14;
const DUID_MAX: usize = 130;
const IDENTITY_LENGTH: usize = 12;
const ADDRESS_LENGTH: usize = 24;
/// Seconds that stand for ever.
const FOR_EVER: u32 = u32::MAX;

/// The answer to a packet, sent to its source; `None` for packets without an answer.
pub(super) fn answer(dhcp: &Dhcp, mac: Mac, packet: &[u8]) -> Option<Vec<u8>> {
    let address = dhcp.v6?;
    let asked = Message::decode(&mut Decoder::new(&sifted(packet)?)).ok()?;
    let server = server(mac);
    let options = asked.opts();
    if let Some(DhcpOption::ServerId(wanted)) = options.get(OptionCode::ServerId)
        && *wanted != server
    {
        return None;
    }
    let quick = options.get(OptionCode::RapidCommit).is_some();
    let question = asked.msg_type();
    let gives = matches!(
        question,
        MessageType::Solicit | MessageType::Request | MessageType::Renew | MessageType::Rebind
    );
    let informs = matches!(
        question,
        MessageType::Confirm | MessageType::Release | MessageType::Decline | MessageType::InformationRequest
    );
    if !gives && !informs {
        return None;
    }
    let offers = question == MessageType::Solicit && !quick;
    let kind = if offers { MessageType::Advertise } else { MessageType::Reply };
    let mut reply = Message::new_with_id(kind, asked.xid());
    let told = reply.opts_mut();
    told.insert(DhcpOption::ServerId(server));
    // Without its own identifier a client cannot recognise its answer.
    match options.get(OptionCode::ClientId) {
        Some(client) => told.insert(client.clone()),
        None if asked.msg_type() == MessageType::InformationRequest => {}
        None => return None,
    }
    if kind == MessageType::Reply && asked.msg_type() == MessageType::Solicit {
        told.insert(DhcpOption::RapidCommit);
    }
    if gives {
        for identity in options.get_all(OptionCode::IANA).unwrap_or_default().iter().take(4) {
            if let DhcpOption::IANA(identity) = identity {
                told.insert(lease(identity.id, address));
            }
        }
    } else if asked.msg_type() != MessageType::InformationRequest {
        let here = holds(options, address);
        let status = if asked.msg_type() == MessageType::Confirm && !here {
            Status::NotOnLink
        } else {
            Status::Success
        };
        told.insert(DhcpOption::StatusCode(StatusCode { status, msg: String::new() }));
    }
    let v6 = |address: &IpAddr| match address {
        IpAddr::V6(address) => Some(*address),
        IpAddr::V4(_) => None,
    };
    let resolvers: Vec<Ipv6Addr> = dhcp.resolvers.iter().filter_map(v6).collect();
    if !resolvers.is_empty() {
        told.insert(DhcpOption::DomainNameServers(resolvers));
    }
    let search = names(dhcp);
    if !search.is_empty() {
        told.insert(DhcpOption::DomainSearchList(search));
    }
    reply.to_vec().ok()
}

/// The packet without options that are nothing to us: of those the library's reader makes what it likes, panics included.
fn sifted(packet: &[u8]) -> Option<Vec<u8>> {
    let (header, options) = packet.split_at_checked(HEADER)?;
    let mut kept = header.to_vec();
    for (code, value) in each(options) {
        match code {
            CLIENT | SERVER_NAME if (1..=DUID_MAX).contains(&value.len()) => put(&mut kept, code, value),
            QUICK => put(&mut kept, code, &[]),
            IDENTITY => {
                let Some((identity, inner)) = value.split_at_checked(IDENTITY_LENGTH) else { continue };
                let mut identity = identity.to_vec();
                for (code, value) in each(inner).filter(|(code, _)| *code == ADDRESS) {
                    value.get(..ADDRESS_LENGTH).into_iter().for_each(|value| put(&mut identity, code, value));
                }
                put(&mut kept, code, &identity);
            }
            _ => {}
        }
    }
    Some(kept)
}

/// Options, code and value, up to one that is cut short.
fn each(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let number = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let (code, length) = (number(0)?, usize::from(number(2)?));
        let value = bytes.get(4..4 + length)?;
        bytes = bytes.get(4 + length..)?;
        Some((code, value))
    })
}

fn put(into: &mut Vec<u8>, code: u16, value: &[u8]) {
    into.extend(code.to_be_bytes());
    // A value read from one packet is never longer than that.
    into.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
    into.extend(value);
}

/// Our name: DUID-LL (RFC 8415, section 11.4) of the guest's Ethernet address, so that it stays.
fn server(mac: Mac) -> Vec<u8> {
    [&[0, 3, 0, 1][..], &mac.0].concat()
}

fn lease(id: u32, address: Ipv6Addr) -> DhcpOption {
    let mut opts = DhcpOptions::new();
    let address =
        IAAddr { addr: address, preferred_life: FOR_EVER, valid_life: FOR_EVER, opts: DhcpOptions::new() };
    opts.insert(DhcpOption::IAAddr(address));
    DhcpOption::IANA(IANA { id, t1: FOR_EVER, t2: FOR_EVER, opts })
}

/// Whether the address is the only one that the client names.
fn holds(options: &DhcpOptions, address: Ipv6Addr) -> bool {
    let identities = options.get_all(OptionCode::IANA).unwrap_or_default().iter();
    let inner = |one: &DhcpOption| {
        let DhcpOption::IANA(identity) = one else { return Vec::new() };
        identity.opts.get_all(OptionCode::IAAddr).unwrap_or_default().to_vec()
    };
    let named = |one: DhcpOption| if let DhcpOption::IAAddr(one) = one { Some(one.addr) } else { None };
    let mut addresses = identities.flat_map(inner).filter_map(named);
    addresses.all(|one| one == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
    const OWN: Ipv6Addr = Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 2);

    fn dhcp() -> Dhcp {
        Dhcp {
            link: "k6t-eth0".to_owned(),
            v4: None,
            v6: Some(OWN),
            resolvers: vec!["2001:db8::53".parse().unwrap()],
            search: Vec::new(),
            host_name: "vm".to_owned(),
            options: api::launch::DhcpOptions::default(),
        }
    }

    fn packet(kind: MessageType, options: Vec<DhcpOption>) -> Vec<u8> {
        let mut message = Message::new_with_id(kind, [1, 2, 3]);
        message.opts_mut().insert(DhcpOption::ClientId(vec![0, 1, 2]));
        options.into_iter().for_each(|option| message.opts_mut().insert(option));
        message.to_vec().unwrap()
    }

    fn reply_to(packet: &[u8]) -> Option<Message> {
        Some(Message::decode(&mut Decoder::new(&answer(&dhcp(), MAC, packet)?)).unwrap())
    }

    fn asks(address: Option<Ipv6Addr>) -> DhcpOption {
        match address {
            None => DhcpOption::IANA(IANA { id: 5, t1: 0, t2: 0, opts: DhcpOptions::new() }),
            Some(address) => lease(5, address),
        }
    }

    #[test]
    fn a_guest_is_given_its_address() {
        for (kind, options, answered) in [
            (MessageType::Solicit, vec![asks(None)], MessageType::Advertise),
            (MessageType::Solicit, vec![asks(None), DhcpOption::RapidCommit], MessageType::Reply),
            (MessageType::Request, vec![asks(None), DhcpOption::ServerId(server(MAC))], MessageType::Reply),
            (MessageType::Rebind, vec![asks(None)], MessageType::Reply),
        ] {
            let reply = reply_to(&packet(kind, options)).unwrap();
            assert_eq!((reply.msg_type(), reply.xid()), (answered, [1, 2, 3]), "{kind:?}");
            let Some(DhcpOption::IANA(identity)) = reply.opts().get(OptionCode::IANA) else {
                panic!("{reply:?}")
            };
            let Some(DhcpOption::IAAddr(address)) = identity.opts.get(OptionCode::IAAddr) else {
                panic!("{reply:?}")
            };
            assert_eq!((identity.id, address.addr, address.valid_life), (5, OWN, FOR_EVER));
            assert!(reply.opts().get(OptionCode::ClientId).is_some());
            assert!(reply.opts().get(OptionCode::DomainNameServers).is_some());
        }
    }

    #[test]
    fn foreign_requests_are_refused_or_ignored() {
        let status = |address| {
            let reply = reply_to(&packet(MessageType::Confirm, vec![asks(Some(address))])).unwrap();
            match reply.opts().get(OptionCode::StatusCode) {
                Some(DhcpOption::StatusCode(status)) => status.status,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((status(OWN), status(Ipv6Addr::LOCALHOST)), (Status::Success, Status::NotOnLink));
        let other = DhcpOption::ServerId(vec![0, 3, 0, 1, 9, 9, 9, 9, 9, 9]);
        assert!(reply_to(&packet(MessageType::Request, vec![asks(None), other])).is_none());
        assert!(reply_to(&packet(MessageType::Reply, vec![asks(None)])).is_none());
        assert!(reply_to(&Message::new(MessageType::Solicit).to_vec().unwrap()).is_none());
    }

    #[test]
    fn nonsense_is_survived() {
        let whole = packet(MessageType::Solicit, vec![asks(Some(OWN)), DhcpOption::RapidCommit]);
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap()
        };
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + next() % 4 {
                let at = next() % bytes.len();
                bytes[at] = u8::try_from(next() % 256).unwrap();
            }
            bytes.truncate(1 + next() % whole.len());
            _ = answer(&dhcp(), MAC, &bytes);
        }
    }
}
