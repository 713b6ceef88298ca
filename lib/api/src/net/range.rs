//! Ranges of Ethernet addresses. A range has usable ends; the group addresses between them are not counted as its own.

use std::fmt;

use mac::Mac;
use thiserror::Error;

/// The bit of a group address.
const GROUP: u64 = 1 << 40;

/// Why two texts are no range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RangeError {
    /// An end that is no address an interface can have: its name in the ConfigMap, the text, what is wrong with it.
    #[error("{0} \"{1}\" {2}")]
    End(&'static str, String, &'static str),
    /// The start is above the end.
    #[error("RANGE_START {0} is greater than RANGE_END {1}")]
    Order(Mac, Mac),
}

/// Addresses from one to another, both included, both usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: Mac,
    last: Mac,
}

impl Range {
    /// Reads the two ends as the ConfigMap and the environment have them.
    ///
    /// # Errors
    /// When an end is no address or not usable, or they are in the wrong order.
    pub fn parse(start: &str, end: &str) -> Result<Self, RangeError> {
        let read = |name: &'static str, text: &str| {
            let bad = |what| Err(RangeError::End(name, text.escape_debug().to_string(), what));
            match Mac::parse(text.trim()) {
                None => bad("is not a MAC address"),
                Some(mac) if !mac.is_usable() => bad("is zero or a multicast address"),
                Some(mac) => Ok(mac),
            }
        };
        let (first, last) = (read("RANGE_START", start)?, read("RANGE_END", end)?);
        if first > last {
            return Err(RangeError::Order(first, last));
        }
        Ok(Self { first, last })
    }

    /// Whether it has the address: a usable one between its ends.
    pub fn contains(&self, mac: Mac) -> bool {
        mac.is_usable() && self.first <= mac && mac <= self.last
    }

    /// Its lowest address.
    pub fn first(&self) -> Mac {
        self.first
    }

    /// Its highest address.
    pub fn last(&self) -> Mac {
        self.last
    }

    /// How many addresses it has.
    pub fn size(&self) -> u64 {
        self.count(self.first.bits(), self.last.bits())
    }

    /// How many addresses it has between these two numbers, both included.
    pub fn count(&self, from: u64, to: u64) -> u64 {
        let (from, to) = (from.max(self.first.bits()), to.min(self.last.bits()));
        if from > to { 0 } else { usable_below(to + 1) - usable_below(from) }
    }

    /// Its lowest address from this number on.
    pub fn next(&self, from: u64) -> Option<Mac> {
        let from = from.max(self.first.bits());
        // Past the group addresses of one first octet come usable ones.
        let from = if from & GROUP == 0 { from } else { ((from >> 40) + 1) << 40 };
        Mac::new(from).filter(|mac| *mac <= self.last)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// How many usable addresses are below a number.
fn usable_below(number: u64) -> u64 {
    let pairs = number >> 41;
    let rest = number & ((GROUP << 1) - 1);
    let with_zero = (pairs << 40) + rest.min(GROUP);
    with_zero.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: &str, end: &str) -> Range {
        Range::parse(start, end).unwrap()
    }

    #[test]
    fn ranges_that_are_none() {
        for (start, end, why) in [
            ("", "02:00:00:00:00:01", "not a MAC"),
            ("02:00:00:00:00:00", "x", "RANGE_END"),
            ("01:00:00:00:00:00", "02:00:00:00:00:00", "multicast"),
            ("02:00:00:00:00:00", "03:ff:ff:ff:ff:ff", "multicast"),
            ("00:00:00:00:00:00", "02:00:00:00:00:00", "zero"),
            ("02:00:00:00:00:01", "02:00:00:00:00:00", "greater"),
            // Upstream's check compares octet by octet and takes this.
            ("06:00:00:00:00:00", "02:ff:ff:ff:ff:ff", "greater"),
        ] {
            let error = Range::parse(start, end).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn sizes_count_usable_addresses() {
        for (start, end, size) in [
            ("02:00:00:00:00:00", "02:00:00:00:00:00", 1),
            ("02:00:00:00:00:00", "02:00:00:00:00:01", 2),
            ("00:00:00:00:00:01", "00:00:00:00:00:0a", 10),
            ("02:00:00:00:00:f0", "02:00:00:00:01:0f", 32),
            ("02:00:00:00:00:00", "02:ff:ff:ff:ff:ff", 1 << 40),
            ("02:ff:ff:ff:ff:ff", "04:00:00:00:00:00", 2),
            ("02:00:00:00:00:00", "fe:ff:ff:ff:ff:ff", 127 << 40),
            ("00:00:00:00:00:01", "fe:ff:ff:ff:ff:ff", (128 << 40) - 1),
        ] {
            assert_eq!(range(start, end).size(), size, "{start} {end}");
        }
    }

    #[test]
    fn the_next_address_carries_and_leaves_group_addresses_out() {
        let all = range("02:00:00:00:00:05", "06:00:00:00:00:00");
        let next = |from: &str| all.next(Mac::parse(from).unwrap().bits() + 1).map(|mac| mac.to_string());
        for (from, then) in [
            ("00:00:00:00:00:00", Some("02:00:00:00:00:05")),
            ("02:00:00:00:00:05", Some("02:00:00:00:00:06")),
            ("02:00:00:00:00:ff", Some("02:00:00:00:01:00")),
            ("02:00:ff:ff:ff:ff", Some("02:01:00:00:00:00")),
            ("02:ff:ff:ff:ff:ff", Some("04:00:00:00:00:00")),
            ("03:00:00:00:00:00", Some("04:00:00:00:00:00")),
            ("06:00:00:00:00:00", None),
            ("ff:ff:ff:ff:ff:ff", None),
        ] {
            assert_eq!(next(from).as_deref(), then, "{from}");
        }
        assert!(all.contains(all.first()) && all.contains(all.last()));
        assert!(!all.contains(Mac::parse("03:00:00:00:00:00").unwrap()));
    }
}
