//! Ranges of addresses in `host-local`'s format: the configuration, validated, and the order in which addresses are tried.
//! Pure: the caller knows the reserved addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::error::Error;
use crate::protocol::{Json, Object, address_at, network};

/// Addresses from `first` to `last`, both included, of one subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    subnet: IpNet,
    first: IpAddr,
    last: IpAddr,
    /// Never given away, in the range or not.
    gateway: IpAddr,
}

/// Ranges of one family, of which an attachment gets one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range>);

/// An address that may be given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The address with its subnet's prefix.
    pub(super) address: IpNet,
    pub(super) gateway: IpAddr,
}

impl Range {
    /// Reads `subnet`, `rangeStart`, `rangeEnd` and `gateway`; none without a subnet.
    ///
    /// # Errors
    /// [`crate::Kind::Config`], naming the key.
    pub(super) fn parse(keys: &Object) -> Result<Option<Self>, Error> {
        if keys.text("subnet")?.unwrap_or_default().is_empty() {
            return Ok(None);
        }
        let subnet = plain_network(network(keys, "subnet")?);
        if subnet.addr() != subnet.network() {
            return Err(Error::config(format!(
                "\"subnet\": {subnet} has host bits set; the network is {}",
                subnet.trunc()
            )));
        }
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
            return Err(Error::config(format!("\"subnet\": {subnet} is too small to assign addresses from")));
        }
        let at = |key| Ok::<_, Error>(address_at(keys, key)?.map(|address| address.to_canonical()));
        let inside = |key: &str, address: IpAddr| {
            if subnet.contains(&address) {
                return Ok(address);
            }
            Err(Error::config(format!("\"{key}\": {address} is not in {subnet}")))
        };
        let following = number(subnet.network()).saturating_add(1);
        let first = match at("rangeStart")? {
            Some(address) => inside("rangeStart", address)?,
            None => address(following, subnet),
        };
        let last = match at("rangeEnd")? {
            Some(address) => inside("rangeEnd", address)?,
            None if subnet.addr().is_ipv4() => address(number(subnet.broadcast()).saturating_sub(1), subnet),
            None => subnet.broadcast(),
        };
        if number(first) > number(last) {
            return Err(Error::config(format!("\"rangeStart\" {first} is above \"rangeEnd\" {last}")));
        }
        let gateway = at("gateway")?.unwrap_or_else(|| address(following, subnet));
        Ok(Some(Self { subnet, first, last, gateway }))
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.first.is_ipv4()
            && (number(self.first)..=number(self.last)).contains(&number(address))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first.is_ipv4() == other.first.is_ipv4()
            && number(self.first) <= number(other.last)
            && number(other.first) <= number(self.last)
    }

    fn candidate(&self, number: u128) -> Candidate {
        let address = address(number, self.subnet);
        let prefix = self.subnet.prefix_len();
        Candidate { address: IpNet::new(address, prefix).unwrap_or(self.subnet), gateway: self.gateway }
    }

    fn words(&self) -> String {
        format!("{}-{}", self.first, self.last)
    }

    /// How many addresses can be given away.
    fn size(&self) -> u128 {
        let all = (number(self.last) - number(self.first)).saturating_add(1);
        all - u128::from(self.contains(self.gateway))
    }
}

impl RangeSet {
    /// Reads an array of ranges.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] when a range is invalid, when two overlap or are of different families.
    pub(super) fn parse(list: &Json) -> Result<Self, Error> {
        let Json::List(list) = list else {
            return Err(Error::config("an element of the ranges is an array of ranges"));
        };
        let mut ranges = Vec::new();
        for element in list.iter().filter(|element| **element != Json::Null) {
            let range = match element {
                Json::Object(keys) => Range::parse(keys)?,
                Json::Boolean(_)
                | Json::Fraction(_)
                | Json::Integer(_)
                | Json::List(_)
                | Json::Null
                | Json::Text(_) => None,
            };
            ranges.push(range.ok_or_else(|| Error::config("a range has no \"subnet\""))?);
        }
        Self::of(ranges)
    }

    /// Ranges that may stand together.
    ///
    /// # Errors
    /// See [`RangeSet::parse`].
    pub(super) fn of(ranges: Vec<Range>) -> Result<Self, Error> {
        let Some(first) = ranges.first() else { return Err(Error::config("a range set is empty")) };
        if ranges.iter().any(|range| range.first.is_ipv4() != first.first.is_ipv4()) {
            return Err(Error::config("a range set has addresses of both families"));
        }
        for (index, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges.iter().skip(index + 1).find(|other| range.overlaps(other)) {
                return Err(Error::config(format!(
                    "the ranges {} and {} overlap",
                    range.words(),
                    other.words()
                )));
            }
        }
        Ok(Self(ranges))
    }

    /// An address that may be given, if all have the same gateway: those of a set with one range.
    pub(super) fn predicted(&self) -> Option<Candidate> {
        let [range] = self.0.as_slice() else { return None };
        let address = if range.first == range.gateway { range.last } else { range.first };
        Some(range.candidate(number(address)))
    }

    /// Whether one has an address of the other.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|another| range.overlaps(another)))
    }

    /// Whether its addresses are of IPv4.
    pub(super) fn is_ipv4(&self) -> bool {
        self.0.first().is_some_and(|range| range.first.is_ipv4())
    }

    /// Whether `address` is in one of the ranges.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }

    /// `address` as one to be given away.
    ///
    /// # Errors
    /// [`crate::Kind::Config`] when it is the gateway's; none when it is in no range.
    pub(super) fn requested(&self, address: IpAddr) -> Result<Option<Candidate>, Error> {
        let Some(range) = self.0.iter().find(|range| range.contains(address)) else { return Ok(None) };
        if range.gateway == address {
            return Err(Error::config(format!("the requested address {address} is the gateway's")));
        }
        Ok(Some(range.candidate(number(address))))
    }

    /// All addresses once, those after `last` first, then round; without the gateways. This is the reference's order,
    /// which gives an address again as late as possible.
    pub(super) fn candidates(&self, last: Option<IpAddr>) -> impl Iterator<Item = Candidate> {
        let start = last.and_then(|last| {
            let index = self.0.iter().position(|range| range.contains(last))?;
            Some((index, number(last)))
        });
        let index = start.map_or(0, |(index, _)| index);
        let count = self.0.len();
        let whole = |range: &Range| (number(range.first), number(range.last));
        // The rest of the last address's range; the other ranges; that range up to the last address.
        let left = self.0.get(index).and_then(|range| match start {
            None => Some((range, whole(range))),
            Some((_, last)) if last < number(range.last) => Some((range, (last + 1, number(range.last)))),
            Some(_) => None,
        });
        let others = (1..count).filter_map(move |step| self.0.get((index + step) % count));
        let again = start.and_then(|(index, last)| Some((self.0.get(index)?, last)));
        left.into_iter()
            .chain(others.map(move |range| (range, whole(range))))
            .chain(again.map(|(range, last)| (range, (number(range.first), last))))
            .flat_map(|(range, (first, last))| (first..=last).map(move |one| range.candidate(one)))
            .filter(|candidate| candidate.address.addr() != candidate.gateway)
    }

    /// How many addresses can be given away.
    pub(super) fn size(&self) -> u128 {
        self.0.iter().fold(0, |sum, range| sum.saturating_add(range.size()))
    }

    /// Whether `address` is in it and no gateway's.
    pub(super) fn gives(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address) && range.gateway != address)
    }

    /// As people write it.
    pub(super) fn words(&self) -> String {
        self.0.iter().map(Range::words).collect::<Vec<_>>().join(",")
    }
}

/// A subnet of IPv4 written as one of IPv6 is one of IPv4.
fn plain_network(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        (IpAddr::V4(address), Some(prefix)) if network.addr().is_ipv6() => {
            IpNet::new(IpAddr::V4(address), prefix).unwrap_or(network)
        }
        (IpAddr::V4(_) | IpAddr::V6(_), _) => network,
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The address of a number that is within the subnet's family.
fn address(number: u128, like: IpNet) -> IpAddr {
    match like {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX))),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

/// The address after the network's own: the default gateway.
pub(crate) fn first_host(network: IpNet) -> IpAddr {
    address(number(network.network()).saturating_add(1), network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Result<RangeSet, Error> {
        let object = Object::parse(format!("{{\"it\": {text}}}").as_bytes(), "it").unwrap();
        RangeSet::parse(object.get("it").unwrap())
    }

    fn order(text: &str, last: Option<&str>) -> Vec<String> {
        let last = last.map(|last| last.parse().unwrap());
        set(text).unwrap().candidates(last).map(|one| one.address.addr().to_string()).collect()
    }

    #[test]
    fn defaults_cover_the_whole_subnet() {
        for (text, words, size) in [
            (r#"[{"subnet": "10.1.2.0/24"}]"#, "10.1.2.1-10.1.2.254", 253),
            (r#"[{"subnet": "10.1.2.0/30"}]"#, "10.1.2.1-10.1.2.2", 1),
            (r#"[{"subnet": "fd00::/120"}]"#, "fd00::1-fd00::ff", 254),
            (r#"[{"subnet": "::ffff:10.1.2.0/120"}]"#, "10.1.2.1-10.1.2.254", 253),
            (r#"[{"subnet": "10.1.2.0/24", "gateway": "10.1.3.1"}]"#, "10.1.2.1-10.1.2.254", 254),
            (
                r#"[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.5", "rangeEnd": "10.1.2.9"}]"#,
                "10.1.2.5-10.1.2.9",
                5,
            ),
        ] {
            let set = set(text).unwrap();
            assert_eq!((set.words().as_str(), set.size()), (words, size), "{text}");
        }
    }

    #[test]
    fn addresses_are_tried_after_the_last_one_and_round() {
        let small = r#"[{"subnet": "10.1.2.0/29"}]"#;
        assert_eq!(order(small, None), ["10.1.2.2", "10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"]);
        let round = ["10.1.2.5", "10.1.2.6", "10.1.2.2", "10.1.2.3", "10.1.2.4"];
        assert_eq!(order(small, Some("10.1.2.4")), round);
        assert_eq!(order(small, Some("10.1.2.6")), order(small, None));
        // A last address outside of all ranges starts over.
        assert_eq!(order(small, Some("10.9.9.9")), order(small, None));
        assert_eq!(order(small, Some("::1")), order(small, None));

        let two = r#"[{"subnet": "10.1.2.0/30"}, {"subnet": "10.1.3.0/30", "gateway": "10.1.2.1"}]"#;
        assert_eq!(order(two, None), ["10.1.2.2", "10.1.3.1", "10.1.3.2"]);
        assert_eq!(order(two, Some("10.1.3.1")), ["10.1.3.2", "10.1.2.2", "10.1.3.1"]);
    }

    #[test]
    fn the_ends_of_all_numbers_are_no_edge() {
        let high = r#"[{"subnet": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125"}]"#;
        assert_eq!(order(high, None).len(), 6);
        assert_eq!(order(high, Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")), order(high, None));
        assert_eq!(order(r#"[{"subnet": "255.255.255.248/29"}]"#, Some("255.255.255.254")).len(), 5);
        let all = set(r#"[{"subnet": "::/0"}]"#).unwrap();
        assert_eq!(all.candidates(None).take(2).count(), 2);
    }

    #[test]
    fn rejects_invalid_ranges() {
        for text in [
            "[]",
            "7",
            "[7]",
            "[{}]",
            r#"[{"subnet": "10.1.2.0"}]"#,
            r#"[{"subnet": "10.1.2.1/24"}]"#,
            r#"[{"subnet": "10.1.2.0/31"}]"#,
            r#"[{"subnet": "10.1.2.0/32"}]"#,
            r#"[{"subnet": "fd00::/127"}]"#,
            r#"[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1"}]"#,
            r#"[{"subnet": "10.1.2.0/24", "rangeEnd": "fd00::1"}]"#,
            r#"[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8"}]"#,
            r#"[{"subnet": "10.1.2.0/24", "gateway": "nonsense"}]"#,
            r#"[{"subnet": "10.1.2.0/24"}, {"subnet": "fd00::/64"}]"#,
            r#"[{"subnet": "10.1.2.0/24"}, {"subnet": "10.1.0.0/16"}]"#,
        ] {
            assert!(set(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_requested_address() {
        let set = set(r#"[{"subnet": "10.1.2.0/24"}]"#).unwrap();
        let found = set.requested("10.1.2.7".parse().unwrap()).unwrap().unwrap();
        assert_eq!(
            (found.address.to_string(), found.gateway.to_string()),
            ("10.1.2.7/24".into(), "10.1.2.1".into())
        );
        assert!(set.requested("10.1.2.1".parse().unwrap()).is_err());
        assert_eq!(set.requested("10.1.3.1".parse().unwrap()).unwrap(), None);
    }
}
