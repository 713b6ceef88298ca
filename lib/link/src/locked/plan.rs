//! Decides which entries of locked ports are missing and which are left over. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::netlink::{Forwarding, VlanRange};
use mac::Mac;

/// A locked port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) index: u32,
    /// Its bridge separates frames by their VLAN.
    pub(super) filters: bool,
    pub(super) vlans: Vec<VlanRange>,
}

/// The change of an address's entries at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) port: u32,
    pub(super) mac: Mac,
    /// VLANs without an entry; `None`: the entry without a VLAN.
    pub(super) fix: Vec<Option<u16>>,
    /// VLANs with an entry, which the port is not in.
    pub(super) release: Vec<u16>,
}

/// The changes after which each address that is fixed to a port has one entry in each of the port's VLANs.
///
/// A bridge that does not filter VLANs looks for the entry without one. It is also made for a port in no VLAN: the port's
/// address is known from its entries alone. It is never removed, as a bridge that filters does not look for it.
pub(super) fn plan(ports: &[Port], entries: &[Forwarding]) -> Vec<Change> {
    let mut fixed: BTreeMap<u32, BTreeMap<[u8; 6], BTreeSet<Option<u16>>>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.fixed && entry.sticky) {
        if let Some(mac) = entry.mac {
            fixed.entry(entry.port).or_default().entry(mac.0).or_default().insert(entry.vlan);
        }
    }
    let mut changes = Vec::new();
    for port in ports {
        let mut wanted: BTreeSet<Option<u16>> =
            port.vlans.iter().flat_map(|range| range.first..=range.last).map(Some).collect();
        if !port.filters || wanted.is_empty() {
            wanted.insert(None);
        }
        for (mac, found) in fixed.remove(&port.index).unwrap_or_default() {
            let fix: Vec<Option<u16>> = wanted.difference(&found).copied().collect();
            let release: Vec<u16> = found.difference(&wanted).filter_map(|vlan| *vlan).collect();
            if !(fix.is_empty() && release.is_empty()) {
                changes.push(Change { port: port.index, mac: Mac(mac), fix, release });
            }
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn range(first: u16, last: u16) -> VlanRange {
        VlanRange { first, last, native: false }
    }

    fn entry(vlan: Option<u16>) -> Forwarding {
        Forwarding { port: 7, mac: Some(MAC), vlan, fixed: true, sticky: true }
    }

    /// Whether the bridge filters, the port's VLANs, the VLANs of its entries; the entries made and removed.
    #[test]
    fn entries_follow_the_vlans_of_their_port() {
        type Row<'a> = (&'a str, bool, &'a [(u16, u16)], &'a [Option<u16>], &'a [Option<u16>], &'a [u16]);
        let rows: [Row<'_>; 11] = [
            ("as ADD leaves it", true, &[(100, 100)], &[Some(100)], &[], &[]),
            ("as ADD leaves it without filtering", false, &[(1, 1)], &[None, Some(1)], &[], &[]),
            ("without VLANs in the kernel", false, &[], &[None], &[], &[]),
            ("joined", true, &[(1, 1), (100, 102)], &[Some(1)], &[Some(100), Some(101), Some(102)], &[]),
            ("left", true, &[(1, 1)], &[Some(1), Some(100)], &[], &[100]),
            ("another one", true, &[(200, 200)], &[Some(100)], &[Some(200)], &[100]),
            ("left all", true, &[], &[Some(100)], &[None], &[100]),
            ("left all before", true, &[], &[None], &[], &[]),
            ("joined after it had left all", true, &[(5, 5)], &[None], &[Some(5)], &[]),
            ("filtering is switched off", false, &[(100, 100)], &[Some(100)], &[None], &[]),
            ("filtering is switched on", true, &[(1, 1)], &[None, Some(1)], &[], &[]),
        ];
        for (what, filters, vlans, found, fix, release) in rows {
            let vlans = vlans.iter().map(|(first, last)| range(*first, *last)).collect();
            let entries: Vec<Forwarding> = found.iter().copied().map(entry).collect();
            let change = Change { port: 7, mac: MAC, fix: fix.to_vec(), release: release.to_vec() };
            let wanted = if fix.is_empty() && release.is_empty() { vec![] } else { vec![change] };
            assert_eq!(plan(&[Port { index: 7, filters, vlans }], &entries), wanted, "{what}");
        }
    }

    #[test]
    fn entries_of_others_are_no_reason_for_a_change() {
        let port = Port { index: 7, filters: true, vlans: vec![range(1, 1)] };
        let other = entry(Some(100));
        for (what, entries) in [
            ("none at all", vec![]),
            ("learned", vec![Forwarding { fixed: false, sticky: false, ..other.clone() }]),
            ("an administrator's", vec![Forwarding { sticky: false, ..other.clone() }]),
            ("another port's", vec![Forwarding { port: 8, ..other.clone() }]),
            ("without an address", vec![Forwarding { mac: None, ..other }]),
        ] {
            assert!(plan(std::slice::from_ref(&port), &entries).is_empty(), "{what}");
        }
    }

    #[test]
    fn each_address_of_a_port_has_its_entries() {
        let port = Port { index: 7, filters: true, vlans: vec![range(1, 2)] };
        let second = Mac([2, 0, 0, 0, 0, 2]);
        let entries = [
            entry(Some(1)),
            Forwarding { mac: Some(second), ..entry(Some(2)) },
            Forwarding { mac: Some(second), ..entry(Some(3)) },
        ];
        let wanted = [
            Change { port: 7, mac: MAC, fix: vec![Some(2)], release: vec![] },
            Change { port: 7, mac: second, fix: vec![Some(1)], release: vec![3] },
        ];
        assert_eq!(plan(&[port], &entries), wanted);
    }
}
