//! `ipspoofchk`, ours: what comes from a pod must bear the addresses that IPAM gave it. The reference has no such thing, so
//! the layout is ours too, and costs the same however many pods there are: one rule each kind of frame, and sets.
//!
//! ```text
//!  table bridge cni_address_pins
//!    ports                 <host's end>
//!    pins4, pins6          <host's end> and address
//!    mac_ports, macs       <host's end> where `macspoofchk` is on; <host's end> and Ethernet address
//!    any_link_local        <host's end> where `anyLinkLocal` is on
//!    prerouting            not of ports ─► return
//!                          ARP of mac_ports from a sender not in macs ─► drop
//!                          ARP from an address of pins4, or from none asking whether it is taken ─► return
//!                          IPv4 from an address of pins4; DHCP from none ─► return
//!                          IPv6 router advertisements and redirects ─► drop
//!                          IPv6 neighbour advertisements ─► advertised: of what is not pinned ─► drop
//!                          IPv6 from an address of pins6 ─► return
//!                          IPv6 from none: asks whether an address of pins6 is taken, or for routers; MLD ─► return
//!                          else ─► drop
//! ```
//!
//! Among the addresses is the link-local one that the kernel makes of the pod's Ethernet address. With `any_link_local` all
//! of fe80::/10 is as good as pinned. Elements bear a mark of their attachment, as rules do.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use rustix::io::Errno;

use crate::error::Error;
use crate::nft::tag;
use crate::protocol::{Attachment, Mac};
use link::nft::Filter;
use link::nft::batch::{BRIDGE, Batch, Element, Hook, NewRule, Set, Table};
use link::nft::expression::{Expression, Is, Layer, Meta};

const TABLE: Table = Table { family: BRIDGE, name: "cni_address_pins" };
const CHAIN: &str = "prerouting";
/// NF_BR_PRE_ROUTING; after the Ethernet address was checked.
const HOOK: Hook = Hook { kind: "filter", number: 0, priority: -299 };
const ADVERTISED: &str = "advertised";

/// `nft`'s numbers of types: a link's name, and joined to an address of either family or of Ethernet.
const PORTS: Set = Set { name: "ports", key_type: 41, key_length: 16 };
const PINS4: Set = Set { name: "pins4", key_type: 41 << 6 | 7, key_length: 20 };
const PINS6: Set = Set { name: "pins6", key_type: 41 << 6 | 8, key_length: 32 };
const MAC_PORTS: Set = Set { name: "mac_ports", ..PORTS };
const MACS: Set = Set { name: "macs", key_type: 41 << 6 | 9, key_length: 24 };
const ANY_LINK_LOCAL: Set = Set { name: "any_link_local", ..PORTS };
const SETS: [Set; 6] = [PORTS, PINS4, PINS6, MAC_PORTS, MACS, ANY_LINK_LOCAL];

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Types of ICMPv6.
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Reports and leavings of multicast groups, versions 1 and 2: RFC 3590 lets them come from no address.
const MULTICAST_LISTENER: [u8; 3] = [131, 132, 143];

/// The longest comment `nft` takes, in bytes.
const COMMENT_LIMIT: usize = 128;

/// Attempts when another process changes the rules between listing and change.
const TURNS: u8 = 5;

/// How many elements go in one transaction.
const AT_ONCE: usize = 256;

/// The addresses that frames of an attachment may bear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// As IPAM gave them.
    pub(crate) addresses: Vec<IpAddr>,
    /// The pod's; none when it is not known, by a CHECK.
    pub(crate) mac: Option<Mac>,
    /// Whether ARP must bear it: the frame's own is `macspoofchk`'s to check.
    pub(crate) mac_checked: bool,
    /// `anyLinkLocal`.
    pub(crate) any_link_local: bool,
}

/// The pins of one attachment.
#[derive(Clone, Debug)]
pub(crate) struct AddressPins {
    comment: String,
    tag: Vec<u8>,
}

impl AddressPins {
    /// Those of `attachment` to `network`.
    pub(crate) fn new(network: &str, attachment: &Attachment) -> Self {
        let Attachment { container, interface } = attachment;
        let id = format!("{container}-{interface}");
        let tag = tag::of(network, &id);
        Self { comment: if id.len() <= COMMENT_LIMIT { id } else { String::new() }, tag }
    }

    /// Restricts frames through `host_end` to `allowed`. The link need not exist yet. Rules that were removed by others are
    /// restored.
    ///
    /// # Errors
    /// [`crate::Kind::Mismatch`] when the table is dormant; [`crate::Kind::Kernel`].
    pub(crate) fn set_up(&self, filter: &mut Filter, host_end: &str, allowed: &Allowed) -> Result<(), Error> {
        check_hooks(filter)?;
        let elements = self.elements(host_end, allowed);
        // The shared part mostly exists. Rewriting it each time would cost a grace period when the socket is closed.
        if is_whole(filter)? {
            let committed = filter.commit(&adding(&elements))?;
            if !committed.because(Errno::NOENT) {
                return Ok(committed.done()?);
            }
        }
        let mut whole = common();
        whole.append(adding(&elements));
        Ok(filter.commit(&whole)?.done()?)
    }

    /// The elements of each set.
    fn elements(&self, host_end: &str, allowed: &Allowed) -> [Vec<Element>; 6] {
        let element = |bytes: &[u8]| {
            let mut key = host_end.as_bytes().to_vec();
            key.resize(16, 0);
            key.extend(bytes);
            key.resize(key.len().next_multiple_of(4), 0);
            Element { key, comment: self.comment.clone(), tag: self.tag.clone() }
        };
        let port = |there: bool| if there { vec![element(&[])] } else { Vec::new() };
        let (mut four, mut six) = (Vec::new(), Vec::new());
        let of_mac = allowed.mac.map(|mac| IpAddr::V6(link_local(mac)));
        // IPAM may have given it too.
        let of_mac = of_mac.filter(|address| !allowed.addresses.contains(address));
        for address in allowed.addresses.iter().copied().chain(of_mac) {
            match address {
                IpAddr::V4(address) => four.push(element(&address.octets())),
                IpAddr::V6(address) => six.push(element(&address.octets())),
            }
        }
        let mac = allowed.mac.filter(|_| allowed.mac_checked);
        let macs = mac.iter().map(|mac| element(&mac.0)).collect();
        [port(true), four, six, port(allowed.mac_checked), macs, port(allowed.any_link_local)]
    }

    /// Removes the pins; nothing when there are none. Neither the link nor the addresses need be known.
    ///
    /// # Errors
    /// [`crate::Kind::Kernel`].
    pub(crate) fn tear_down(&self, filter: &mut Filter) -> Result<(), Error> {
        remove(filter, |tag| tag == self.tag)
    }

    /// Checks that frames through `host_end` are restricted to `allowed`.
    ///
    /// # Errors
    /// [`crate::Kind::Mismatch`] when it need not; [`crate::Kind::Kernel`].
    pub(crate) fn check(&self, filter: &mut Filter, host_end: &str, allowed: &Allowed) -> Result<(), Error> {
        check_hooks(filter)?;
        let whole = is_whole(filter)?;
        for (set, wanted) in SETS.into_iter().zip(self.elements(host_end, allowed)) {
            let found = filter.elements(TABLE, set)?;
            let missing = |wanted: &&Element| !found.iter().any(|found| found.key == wanted.key);
            if !whole || wanted.iter().any(|wanted| missing(&wanted)) {
                let message = format!("the addresses of frames from {host_end} are no longer checked");
                return Err(Error::mismatch(message));
            }
        }
        Ok(())
    }
}

/// Whether this node's kernel can pin.
///
/// # Errors
/// [`crate::Kind::Kernel`] with what it lacks; [`crate::Kind::Mismatch`] when the table is dormant.
pub(crate) fn offered() -> Result<(), Error> {
    let mut filter = Filter::open()?;
    check_hooks(&mut filter)?;
    Ok(filter.rehearse(common(), TABLE)?)
}

/// Removes the pins of `network` that belong to none of `valid`.
///
/// # Errors
/// [`crate::Kind::Kernel`].
pub(crate) fn sweep(filter: &mut Filter, network: &str, valid: &BTreeSet<Attachment>) -> Result<(), Error> {
    let keep: BTreeSet<Vec<u8>> = valid.iter().map(|one| AddressPins::new(network, one).tag).collect();
    let ours = tag::of_network(network);
    remove(filter, |tag| tag.starts_with(&ours) && !keep.contains(tag))
}

fn remove(filter: &mut Filter, is_stale: impl Fn(&[u8]) -> bool) -> Result<(), Error> {
    for set in SETS {
        for turn in 1..=TURNS {
            let mut stale = filter.elements(TABLE, set)?;
            stale.retain(|element| is_stale(&element.tag));
            let mut again = false;
            for some in stale.chunks(AT_ONCE) {
                let mut batch = Batch::new();
                batch.delete_elements(TABLE, set, some);
                let committed = filter.commit(&batch)?;
                // Another process changed the rules first.
                if committed.because(Errno::NOENT) && turn < TURNS {
                    again = true;
                } else {
                    committed.done()?;
                }
            }
            if !again {
                break;
            }
        }
    }
    Ok(())
}

/// The address that the kernel makes of an Ethernet address: RFC 4291, appendix A.
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn adding(elements: &[Vec<Element>; 6]) -> Batch {
    let mut batch = Batch::new();
    for (set, elements) in SETS.into_iter().zip(elements).filter(|(_, elements)| !elements.is_empty()) {
        batch.add_elements(TABLE, set, elements);
    }
    batch
}

/// Rejects a table with rules that frames from pods do not pass.
fn check_hooks(filter: &mut Filter) -> Result<(), Error> {
    filter.reject_dormant(TABLE)?;
    filter.hooked(TABLE, CHAIN, HOOK)?;
    Ok(filter.unhooked(TABLE, ADVERTISED)?)
}

/// Whether the rules that all pins share are all there.
fn is_whole(filter: &mut Filter) -> Result<bool, Error> {
    // Of the one that is jumped to, the jump counts too.
    for (chain, uses) in [(CHAIN, rules().len()), (ADVERTISED, advertised().len() + 1)] {
        let wanted = u32::try_from(uses).unwrap_or(u32::MAX);
        if filter.chain(TABLE, chain)?.is_none_or(|chain| chain.uses != wanted) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The part that all pins share.
fn common() -> Batch {
    let mut batch = Batch::new();
    batch.table(TABLE, "");
    for set in SETS {
        batch.set(TABLE, set);
    }
    batch.base_chain(TABLE, CHAIN, HOOK);
    batch.chain(TABLE, ADVERTISED, "");
    for (chain, rules) in [(CHAIN, rules()), (ADVERTISED, advertised())] {
        batch.flush_chain(TABLE, chain);
        for expressions in rules {
            batch.rule(TABLE, chain, &NewRule { expressions, ..NewRule::default() });
        }
    }
    batch
}

fn equal(bytes: impl Into<Vec<u8>>) -> Expression {
    Expression::Compare(Is::Equal, bytes.into())
}

fn load(layer: Layer, offset: u32, length: u32) -> Expression {
    Expression::Payload { layer, offset, length }
}

fn of(ethertype: u16) -> Vec<Expression> {
    vec![Expression::Meta(Meta::Ethertype), equal(ethertype.to_be_bytes())]
}

fn transport(protocol: u8) -> Vec<Expression> {
    vec![Expression::Meta(Meta::Transport), equal([protocol])]
}

/// IPv6 with ICMPv6 of a type in it.
fn icmp(kind: u8) -> Vec<Expression> {
    [of(IPV6), transport(ICMPV6), vec![load(Layer::Transport, 0, 1), equal([kind])]].concat()
}

/// Came through a port of the set, or of none.
fn port(is: Is, set: Set) -> Vec<Expression> {
    vec![Expression::Meta(Meta::Input), Expression::Lookup(is, set.name)]
}

/// Port and what is at a place are in the set, or not. What ends before that place is neither.
fn pinned(is: Is, layer: Layer, offset: u32, length: u32, set: Set) -> Vec<Expression> {
    let beside = Expression::Beside { layer, offset, length };
    vec![Expression::Meta(Meta::Input), beside, Expression::Lookup(is, set.name)]
}

/// The address at a place is of fe80::/10, and the port may have any of these.
fn any_link_local(layer: Layer, offset: u32) -> Vec<Expression> {
    let whole = |a, b| [&[a, b][..], &[0; 14]].concat();
    let of_link =
        vec![load(layer, offset, 16), Expression::Mask(whole(0xff, 0xc0)), equal(whole(0xfe, 0x80))];
    [port(Is::Equal, ANY_LINK_LOCAL), of_link].concat()
}

fn back() -> Vec<Expression> {
    vec![Expression::Return]
}

fn drop() -> Vec<Expression> {
    vec![Expression::Drop]
}

fn rules() -> Vec<Vec<Expression>> {
    let (network, inside) = (Layer::Network, Layer::Transport);
    // Of Ethernet and IPv4, or what follows is elsewhere.
    let arp = || [of(ARP), vec![load(network, 0, 6), equal([0, 1, 8, 0, 6, 4])]].concat();
    // RFC 5227: a request from no address.
    let probe = || [of(ARP), vec![load(network, 0, 8), equal([0, 1, 8, 0, 6, 4, 0, 1])]].concat();
    let from_none = |bytes: Vec<u8>, offset| {
        let length = u32::try_from(bytes.len()).unwrap_or_default();
        vec![load(network, offset, length), equal(bytes)]
    };
    // From 0.0.0.0 to 255.255.255.255, from a client's port to a server's.
    let dhcp = [
        of(IPV4),
        transport(UDP),
        from_none(vec![0, 0, 0, 0, 255, 255, 255, 255], 12),
        vec![load(inside, 0, 4), equal([0, 68, 0, 67])],
    ];
    let unspecified = |kind| [icmp(kind), from_none(vec![0; 16], 8)].concat();
    let mut rules = vec![
        [port(Is::Different, PORTS), back()].concat(),
        [arp(), port(Is::Equal, MAC_PORTS), pinned(Is::Different, network, 8, 6, MACS), drop()].concat(),
        [arp(), pinned(Is::Equal, network, 14, 4, PINS4), back()].concat(),
        [probe(), from_none(vec![0; 4], 14), pinned(Is::Equal, network, 24, 4, PINS4), back()].concat(),
        [of(IPV4), pinned(Is::Equal, network, 12, 4, PINS4), back()].concat(),
        [dhcp.concat(), back()].concat(),
        [icmp(ROUTER_ADVERTISEMENT), drop()].concat(),
        [icmp(REDIRECT), drop()].concat(),
        [icmp(NEIGHBOUR_ADVERTISEMENT), vec![Expression::Jump(ADVERTISED.to_owned())]].concat(),
        [of(IPV6), pinned(Is::Equal, network, 8, 16, PINS6), back()].concat(),
        [of(IPV6), any_link_local(network, 8), back()].concat(),
        [unspecified(NEIGHBOUR_SOLICITATION), pinned(Is::Equal, inside, 8, 16, PINS6), back()].concat(),
        [unspecified(NEIGHBOUR_SOLICITATION), any_link_local(inside, 8), back()].concat(),
    ];
    let others = std::iter::once(ROUTER_SOLICITATION).chain(MULTICAST_LISTENER);
    rules.extend(others.map(|kind| [unspecified(kind), back()].concat()));
    rules.push(drop());
    rules
}

/// The target of a neighbour advertisement, as a list of what may pass: a fragment that ends before it is dropped.
fn advertised() -> Vec<Vec<Expression>> {
    vec![
        [pinned(Is::Equal, Layer::Transport, 8, 16, PINS6), back()].concat(),
        [any_link_local(Layer::Transport, 8), back()].concat(),
        drop(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_address() {
        assert_eq!(link_local(Mac([0x02, 0, 0x5e, 0x10, 0, 1])).to_string(), "fe80::5eff:fe10:1");
        assert_eq!(link_local(Mac([0x00, 0x16, 0x3e, 1, 2, 3])).to_string(), "fe80::216:3eff:fe01:203");
    }
}
