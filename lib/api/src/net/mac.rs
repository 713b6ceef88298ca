//! Ethernet addresses as 48-bit integers, and ranges of them.
//!
//! An address is *usable* by an interface when it is neither zero nor a group address (IEEE 802: the lowest bit of the
//! first octet). A range has usable ends; the group addresses between them are not counted as its own.

use std::fmt;

use thiserror::Error;

/// The bit of a group address.
const GROUP: u64 = 1 << 40;
/// One more than the highest address.
const END: u64 = 1 << 48;

/// An Ethernet address. Ordered as numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(u64);

impl Mac {
    /// The address of these 48 bits; `None` for more.
    pub fn new(bits: u64) -> Option<Self> {
        (bits < END).then_some(Self(bits))
    }

    /// Reads `aa:bb:cc:dd:ee:ff`, the same with dashes, or `aabb.ccdd.eeff`, in either case, as Go's `net.ParseMAC`
    /// does; an address that is not usable too. Longer addresses (EUI-64, InfiniBand) are none here.
    pub fn parse(text: &str) -> Option<Self> {
        let (separator, digits) = if text.contains('.') { ('.', 4) } else { (':', 2) };
        let separator = if text.contains('-') { '-' } else { separator };
        let mut bits = 0;
        let mut parts = 0;
        for part in text.split(separator) {
            parts += 1;
            if parts * digits > 12 || part.len() != digits || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            bits = bits << (4 * digits) | u64::from_str_radix(part, 16).ok()?;
        }
        if parts * digits == 12 { Self::new(bits) } else { None }
    }

    /// As a number.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether an interface can have it.
    pub fn is_usable(self) -> bool {
        self.0 != 0 && self.0 & GROUP == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, a, b, c, d, e, g] = self.0.to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

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
        self.count(self.first.0, self.last.0)
    }

    /// How many addresses it has between these two numbers, both included.
    pub fn count(&self, from: u64, to: u64) -> u64 {
        let (from, to) = (from.max(self.first.0), to.min(self.last.0));
        if from > to { 0 } else { usable_below(to + 1) - usable_below(from) }
    }

    /// Its lowest address from this number on.
    pub fn next(&self, from: u64) -> Option<Mac> {
        let from = from.max(self.first.0);
        // Past the group addresses of one first octet come usable ones.
        let from = if from & GROUP == 0 { from } else { ((from >> 40) + 1) << 40 };
        (from <= self.last.0).then_some(Mac(from))
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
    fn addresses_are_read_as_go_reads_them() {
        for text in ["02:00:00:00:ab:CD", "02-00-00-00-ab-CD", "0200.0000.abCD"] {
            assert_eq!(Mac::parse(text).unwrap().to_string(), "02:00:00:00:ab:cd", "{text}");
        }
        for text in [
            "",
            "02:00:00:00:ab",
            "02:00:00:00:ab:cd:ef",
            "02:00:00:00:ab:cd:ef:01",
            "2:0:0:0:ab:cd",
            "02:00:00-00:ab:cd",
            "0g:00:00:00:ab:cd",
            "+2:00:00:00:00:00",
            "0é:00:00:00:00:0",
            "02000000abcd",
            " 02:00:00:00:ab:cd",
        ] {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
        for text in ["00:00:00:00:00:00", "01:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "03:00:00:00:00:01"] {
            assert!(!Mac::parse(text).unwrap().is_usable(), "{text}");
        }
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
