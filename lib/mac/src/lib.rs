//! Ethernet addresses: their bytes, their number, the ways to write them.
//!
//! Not here: ranges and pools of them (`api::net`), interfaces that have them (`link`).

use std::fmt;

/// The bit of a group address, as a number.
const GROUP: u64 = 1 << 40;
/// One more than the highest number.
const END: u64 = 1 << 48;

/// An Ethernet address of 48 bits. Ordered as numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(
    /// Its bytes.
    pub [u8; 6],
);

impl Mac {
    /// The address of these 48 bits; `None` for more.
    pub fn new(bits: u64) -> Option<Self> {
        let [_, _, a, b, c, d, e, g] = bits.to_be_bytes();
        (bits < END).then_some(Self([a, b, c, d, e, g]))
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

    /// The address in `bytes`, if they are as many as an Ethernet address has.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// A locally administered address out of random bytes.
    pub fn local(mut random: [u8; 6]) -> Self {
        random[0] = random[0] & !1 | 2;
        Self(random)
    }

    /// As a number.
    pub fn bits(self) -> u64 {
        let [a, b, c, d, e, g] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, g])
    }

    /// Whether an interface can have it: it is neither zero nor a group address (IEEE 802: the lowest bit of the first octet).
    pub fn is_usable(self) -> bool {
        self.bits() != 0 && self.bits() & GROUP == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_go_reads_them() {
        for text in ["02:00:00:00:ab:CD", "02-00-00-00-ab-CD", "0200.0000.abCD"] {
            let mac = Mac::parse(text);
            assert_eq!(mac.map(|mac| mac.to_string()).as_deref(), Some("02:00:00:00:ab:cd"), "{text}");
            assert_eq!(mac, Some(Mac([2, 0, 0, 0, 0xab, 0xcd])));
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
            assert_eq!(Mac::parse(text).map(Mac::is_usable), Some(false), "{text}");
        }
    }

    #[test]
    fn numbers_bytes_and_order_agree() {
        let numbers = [0, 1, 0xff, 0x100, GROUP, 0x0200_0000_00ff, END - 1];
        let all: Vec<Mac> = numbers.into_iter().filter_map(Mac::new).collect();
        assert_eq!(all.iter().map(|mac| mac.bits()).collect::<Vec<_>>(), numbers);
        assert!(all.is_sorted() && all.iter().all(|mac| Mac::from_bytes(&mac.0) == Some(*mac)));
        assert_eq!((Mac::new(END), Mac::from_bytes(&[0; 5])), (None, None));
        assert_eq!(Mac::local([0xff; 6]), Mac([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]));
    }
}
