//! The expressions rules are made of: a packet's bytes go into a register, are compared there, and a verdict follows. They
//! are written as `nft` compiles its own text, so that it shows ours as that text.
//!
//! Numbers are of `linux/netfilter/nf_tables.h`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::nft::attribute::{self, Attributes};

/// The register of 16 bytes that all comparisons use.
const REGISTER: u32 = 1;
/// The one after it: both together are the key of a set.
const SECOND_REGISTER: u32 = 2;
/// The verdict's register.
const VERDICT: u32 = 0;
/// `NF_DROP` and `NFT_CONTINUE`, which let no later rule miss a packet that passes.
const DROP: u32 = 0;
const CONTINUE: u32 = u32::MAX;

/// `NFTA_LIST_ELEM`.
const ELEMENT: u16 = 1;
const NAME: u16 = 1;
const DATA: u16 = 2;

/// Metadata of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// The type of what is in the Ethernet frame.
    Ethertype = 1,
    /// The name of the link it came through.
    Input = 6,
    /// The name of the link it leaves by.
    Output = 7,
    /// IPv4 or IPv6, in tables of the family inet.
    Protocol = 15,
    /// Protocol inside the IP packet.
    Transport = 16,
}

/// Where in a packet an offset counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The Ethernet header.
    Link = 0,
    /// The IP header, or the ARP message.
    Network = 1,
    /// The header after the IP headers.
    Transport = 2,
}

/// How a register is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// The same.
    Equal = 0,
    /// Not the same.
    Different = 1,
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads a fact.
    Meta(Meta),
    /// Loads bytes of the packet.
    Payload {
        /// The base of the offset.
        layer: Layer,
        /// In bytes.
        offset: u32,
        /// In bytes.
        length: u32,
    },
    /// Loads bytes of the packet next to those loaded last: both together are a key.
    Beside {
        /// The base of the offset.
        layer: Layer,
        /// In bytes.
        offset: u32,
        /// In bytes.
        length: u32,
    },
    /// Goes on only if what was loaded is in the set, or not.
    Lookup(Is, &'static str),
    /// Keeps only these bits.
    Mask(Vec<u8>),
    /// Goes on only if the register compares so.
    Compare(Is, Vec<u8>),
    /// Goes on only if the register is not below the first value and not above the second.
    Range(Vec<u8>, Vec<u8>),
    /// Throws the packet away.
    Drop,
    /// Back to the chain that jumped here.
    Return,
    /// Into another chain, and back.
    Jump(String),
    /// Into another chain for good.
    Goto(String),
    /// The packet leaves with the address of the link it leaves by.
    Masquerade,
    /// Loads bytes that are no packet's.
    Load(Vec<u8>),
    /// The packet goes to the address that was loaded, which is of this family (`NFPROTO_…`).
    Redirect(u8),
}

impl Expression {
    /// Came through the link of this name.
    pub fn input(link: &str) -> [Self; 2] {
        [Self::Meta(Meta::Input), Self::Compare(Is::Equal, padded(link))]
    }

    /// Leaves by the link of this name.
    pub fn output(link: &str) -> [Self; 2] {
        [Self::Meta(Meta::Output), Self::Compare(Is::Equal, padded(link))]
    }

    /// Goes to a port of TCP (6) or UDP (17) from the first to the last.
    pub fn ports(protocol: u8, first: u16, last: u16) -> [Self; 4] {
        let [from, to] = [first, last].map(|port| port.to_be_bytes().to_vec());
        [
            Self::Meta(Meta::Transport),
            Self::Compare(Is::Equal, vec![protocol]),
            Self::Payload { layer: Layer::Transport, offset: 2, length: 2 },
            if first == last { Self::Compare(Is::Equal, from) } else { Self::Range(from, to) },
        ]
    }

    /// Goes to this address instead.
    pub fn redirect(to: IpAddr) -> [Self; 2] {
        let (family, bytes) = match to {
            IpAddr::V4(address) => (2, address.octets().to_vec()),
            IpAddr::V6(address) => (10, address.octets().to_vec()),
        };
        [Self::Load(bytes), Self::Redirect(family)]
    }

    /// Bears this Ethernet address as its source.
    pub fn ether_source(address: [u8; 6]) -> [Self; 2] {
        let load = Self::Payload { layer: Layer::Link, offset: 6, length: 6 };
        [load, Self::Compare(Is::Equal, address.to_vec())]
    }

    /// Is of the address's family; then the following can be asked.
    pub fn family(address: IpAddr) -> [Self; 2] {
        // NFPROTO_IPV4 and NFPROTO_IPV6.
        let family = if address.is_ipv4() { 2 } else { 10 };
        [Self::Meta(Meta::Protocol), Self::Compare(Is::Equal, vec![family])]
    }

    /// Comes from the address.
    pub fn source(address: IpAddr) -> [Self; 2] {
        let (offset, bytes) = match address {
            IpAddr::V4(address) => (12, address.octets().to_vec()),
            IpAddr::V6(address) => (8, address.octets().to_vec()),
        };
        [Self::load(offset, bytes.len()), Self::Compare(Is::Equal, bytes)]
    }

    /// Goes into the network, or not. Of a prefix of whole bytes only those are loaded.
    pub fn destination(is: Is, network: IpNet) -> Vec<Self> {
        let (offset, bytes, mask) = match network {
            IpNet::V4(net) => (16, net.network().octets().to_vec(), net.netmask().octets().to_vec()),
            IpNet::V6(net) => (24, net.network().octets().to_vec(), net.netmask().octets().to_vec()),
        };
        let whole = usize::from(network.prefix_len() / 8);
        match bytes.get(..whole) {
            Some(front) if network.prefix_len().is_multiple_of(8) && whole > 0 => {
                vec![Self::load(offset, whole), Self::Compare(is, front.to_vec())]
            }
            Some(_) | None => {
                vec![Self::load(offset, bytes.len()), Self::Mask(mask), Self::Compare(is, bytes)]
            }
        }
    }

    fn load(offset: u32, length: usize) -> Self {
        // An address has at most 16 bytes.
        let length = u32::try_from(length).unwrap_or(0);
        Self::Payload { layer: Layer::Network, offset, length }
    }

    /// As an element of `NFTA_RULE_EXPRESSIONS`.
    pub fn encode(&self, list: Attributes) -> Attributes {
        let new = Attributes::default;
        let (name, data) = match self {
            Self::Meta(meta) => ("meta", new().number(2, *meta as u32).number(1, REGISTER)),
            Self::Payload { layer, offset, length } => payload(REGISTER, *layer, *offset, *length),
            Self::Beside { layer, offset, length } => payload(SECOND_REGISTER, *layer, *offset, *length),
            Self::Lookup(is, set) => ("lookup", new().text(1, set).number(2, REGISTER).number(5, *is as u32)),
            Self::Mask(mask) => {
                let length = u32::try_from(mask.len()).unwrap_or(0);
                let zero = vec![0; mask.len()];
                let data = new().number(1, REGISTER).number(2, REGISTER).number(3, length).number(6, 0);
                ("bitwise", data.nest(4, &new().bytes(1, mask)).nest(5, &new().bytes(1, &zero)))
            }
            Self::Compare(is, value) => {
                ("cmp", new().number(1, REGISTER).number(2, *is as u32).nest(3, &new().bytes(1, value)))
            }
            // NFTA_RANGE_OP: NFT_RANGE_EQ.
            Self::Range(from, to) => {
                let data = new().number(1, REGISTER).number(2, 0);
                ("range", data.nest(3, &new().bytes(1, from)).nest(4, &new().bytes(1, to)))
            }
            Self::Drop => ("immediate", verdict(0, None)),
            Self::Return => ("immediate", verdict(-5, None)),
            Self::Jump(chain) => ("immediate", verdict(-3, Some(chain))),
            Self::Goto(chain) => ("immediate", verdict(-4, Some(chain))),
            Self::Masquerade => ("masq", new()),
            Self::Load(bytes) => ("immediate", new().number(1, REGISTER).nest(2, &new().bytes(1, bytes))),
            // NFTA_NAT_TYPE, _FAMILY and _REG_ADDR_MIN.
            Self::Redirect(family) => {
                ("nat", new().number(1, 1).number(2, u32::from(*family)).number(3, REGISTER))
            }
        };
        list.nest(ELEMENT, &new().text(NAME, name).nest(DATA, &data))
    }
}

/// A link's name as it is compared.
fn padded(link: &str) -> Vec<u8> {
    let mut name = link.as_bytes().to_vec();
    name.resize(16, 0);
    name
}

fn payload(register: u32, layer: Layer, offset: u32, length: u32) -> (&'static str, Attributes) {
    let data = Attributes::default().number(1, register).number(2, layer as u32);
    ("payload", data.number(3, offset).number(4, length))
}

fn verdict(code: i32, chain: Option<&str>) -> Attributes {
    let mut inner = Attributes::default().number(1, code.cast_unsigned());
    if let Some(chain) = chain {
        inner = inner.text(2, chain);
    }
    let data = Attributes::default().nest(2, &inner);
    Attributes::default().number(1, VERDICT).nest(2, &data)
}

/// The chain that a rule with these expressions jumps or goes to, if it does.
pub fn target(expressions: &[u8]) -> Option<String> {
    elements(expressions).find_map(|(name, data)| {
        let verdict = (name == "immediate").then(|| attribute::find(attribute::find(data, 2)?, 2))??;
        attribute::find(verdict, 2).map(attribute::text)
    })
}

/// The remark of a rule that iptables wrote: it is a match of its own there, and not in the rule's user data.
pub fn comment(expressions: &[u8]) -> Option<String> {
    elements(expressions).find_map(|(name, data)| {
        let remark = name == "match" && attribute::text(attribute::find(data, 1)?) == "comment";
        remark.then(|| attribute::find(data, 3).map(attribute::text))?
    })
}

/// Whether a rule with these expressions can keep a packet from the rules after it without dropping it: by a verdict of its
/// own or of a map, by a queue, or by a target of iptables, which this does not read.
pub fn diverts(expressions: &[u8]) -> bool {
    elements(expressions).any(|(name, data)| match name.as_str() {
        "immediate" => {
            let verdict = attribute::find(data, 2).and_then(|value| attribute::find(value, 2));
            let code = verdict.and_then(|verdict| attribute::find(verdict, 1)).and_then(attribute::number);
            code.is_some_and(|code| ![DROP, CONTINUE].contains(&code))
        }
        "lookup" => attribute::find(data, 3).and_then(attribute::number) == Some(VERDICT),
        "queue" | "target" => true,
        _ => false,
    })
}

/// The link that a rule with these expressions is about, if it compares the name of one.
pub fn input(expressions: &[u8]) -> Option<String> {
    let mut loaded = false;
    for (name, data) in elements(expressions) {
        if name == "cmp" && loaded {
            let name = attribute::find(attribute::find(data, 3)?, 1)?;
            // All other links, or those whose names begin so.
            let is_one = attribute::find(data, 2).and_then(attribute::number) == Some(Is::Equal as u32)
                && name.contains(&0);
            return is_one.then(|| attribute::text(name));
        }
        let key = attribute::find(data, 2).and_then(attribute::number);
        loaded = name == "meta" && key == Some(Meta::Input as u32);
    }
    None
}

fn elements(expressions: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    attribute::read(expressions).filter_map(|(_, element)| {
        let name = attribute::text(attribute::find(element, NAME)?);
        Some((name, attribute::find(element, DATA).unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_and_links_of_rules() {
        let rule = |list: &[Expression]| list.iter().fold(Attributes::default(), |all, one| one.encode(all));
        let diverts = |one: Expression| diverts(rule(&[one]).as_bytes());
        assert!(diverts(Expression::Return) && diverts(Expression::Jump("a".into())));
        assert!(!diverts(Expression::Drop) && !diverts(Expression::Lookup(Is::Equal, "a")));
        let map = Attributes::default().text(1, "a").number(2, REGISTER).number(3, VERDICT);
        let map = Attributes::default().text(NAME, "lookup").nest(DATA, &map);
        assert!(super::diverts(Attributes::default().nest(ELEMENT, &map).as_bytes()));

        let input = |is, name: &[u8]| {
            let compared = [Expression::Meta(Meta::Input), Expression::Compare(is, name.to_vec())];
            super::input(rule(&compared).as_bytes())
        };
        assert_eq!(input(Is::Equal, b"eth0\0"), Some("eth0".to_owned()));
        assert_eq!(input(Is::Different, b"eth0\0"), None);
        assert_eq!(input(Is::Equal, b"eth"), None);
    }

    #[test]
    fn a_prefix_of_whole_bytes_is_compared_as_such() {
        let of = |text: &str| Expression::destination(Is::Different, text.parse().unwrap());
        let load = |offset, length| Expression::Payload { layer: Layer::Network, offset, length };
        assert_eq!(of("10.1.2.3/24"), [load(16, 3), Expression::Compare(Is::Different, vec![10, 1, 2])]);
        assert_eq!(of("10.1.2.3/32"), [load(16, 4), Expression::Compare(Is::Different, vec![10, 1, 2, 3])]);
        assert_eq!(
            of("10.1.2.131/25"),
            [
                load(16, 4),
                Expression::Mask(vec![255, 255, 255, 128]),
                Expression::Compare(Is::Different, vec![10, 1, 2, 128])
            ]
        );
        assert_eq!(of("0.0.0.0/0").len(), 3);
        assert_eq!(of("fd00::1/64")[0], load(24, 8));
    }

    #[test]
    fn a_rules_link_and_target_are_read_back() {
        let [meta, compare] = Expression::input("veth0");
        let rule = [meta, compare, Expression::Jump("there".into())];
        let list = rule.iter().fold(Attributes::default(), |list, one| one.encode(list));
        assert_eq!(input(list.as_bytes()).as_deref(), Some("veth0"));
        assert_eq!(target(list.as_bytes()).as_deref(), Some("there"));
        let drop = Expression::Drop.encode(Attributes::default());
        assert_eq!((input(drop.as_bytes()), target(drop.as_bytes())), (None, None));
    }
}
