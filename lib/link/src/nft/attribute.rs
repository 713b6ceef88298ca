//! Netlink attributes of nf_tables: written one after the other or nested, and read. Numbers are big-endian there, unlike
//! in other netlink families.

use std::fmt;

/// Attributes in the making.
#[derive(Clone, Default)]
pub struct Attributes(Vec<u8>);

/// An attribute that holds attributes, `linux/netlink.h`.
const NLA_F_NESTED: u16 = 1 << 15;
/// A kind without its flags.
const NLA_TYPE_MASK: u16 = 0x3fff;

impl Attributes {
    /// Adds plain bytes. Callers bound what they pass to some hundred bytes; the kernel refuses a length that is too small.
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len().saturating_add(4)).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a string with its end.
    pub fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Adds a number of 32 bits.
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a number of 64 bits.
    pub fn long(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds attributes inside one.
    pub fn nest(self, kind: u16, inner: &Attributes) -> Self {
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }

    /// As they go into a message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of attributes", self.0.len())
    }
}

/// The attributes in `bytes`, kind and value; what follows a malformed one is left out.
pub fn read(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of a kind.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    read(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A string without its end.
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

/// A number of 32 bits.
pub fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

/// A number of 64 bits.
pub fn long(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_a_round_trip() {
        let inner = Attributes::default().text(1, "abc").long(2, 7);
        let all = Attributes::default().number(3, 5).nest(4, &inner);
        assert_eq!(find(all.as_bytes(), 3).and_then(number), Some(5));
        let nested = find(all.as_bytes(), 4).unwrap();
        assert_eq!(text(find(nested, 1).unwrap()), "abc");
        assert_eq!(find(nested, 2).and_then(long), Some(7));
        assert_eq!(find(all.as_bytes(), 5), None);
    }

    #[test]
    fn nonsense_ends_the_reading() {
        for bytes in [&[][..], &[1], &[3, 0, 1, 0], &[0, 0, 1, 0], &[9, 0, 1, 0, 0]] {
            assert_eq!(read(bytes).count(), 0, "{bytes:?}");
        }
    }
}
