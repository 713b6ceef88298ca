//! Ethernet addresses.

use std::fmt;

use crate::error::{Error, Kind};

/// An Ethernet address of 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(
    /// Its bytes.
    pub [u8; 6],
);

fn invalid(message: String) -> Error {
    Error::new(Kind::Invalid, message)
}

impl Mac {
    /// Reads `aa:bb:cc:dd:ee:ff`, the same with dashes, or `aabb.ccdd.eeff`, as Go does.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when the text is something else, or no address an interface can have: a group address
    /// or only zeroes.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = || invalid(format!("\"{}\" is not an Ethernet address", text.escape_debug()));
        let (separator, digits) = if text.contains('.') { ('.', 4) } else { (':', 2) };
        let separator = if text.contains('-') { '-' } else { separator };
        let parts: Vec<&str> = text.split(separator).collect();
        let hexadecimal =
            |part: &&str| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        if parts.len() * digits != 12 || !parts.iter().all(hexadecimal) {
            return Err(bad());
        }
        let mut bytes = [0; 6];
        let joined = parts.concat();
        for (byte, at) in bytes.iter_mut().zip((0..12).step_by(2)) {
            *byte = u8::from_str_radix(&joined[at..at + 2], 16).map_err(|_| bad())?;
        }
        if bytes == [0; 6] || bytes[0] & 1 == 1 {
            return Err(invalid(format!("{text} is not the address of one interface")));
        }
        Ok(Self(bytes))
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
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::Mac;

    #[test]
    fn the_three_ways_to_write_one() {
        for text in ["02:00:00:00:ab:CD", "02-00-00-00-ab-CD", "0200.0000.abCD"] {
            assert_eq!(Mac::parse(text).unwrap().to_string(), "02:00:00:00:ab:cd", "{text}");
        }
    }

    #[test]
    fn rejects_invalid_addresses() {
        for text in [
            "",
            "02:00:00:00:ab",
            "02:00:00:00:ab:cd:ef",
            "2:0:0:0:ab:cd",
            "02:00:00-00:ab:cd",
            "0g:00:00:00:ab:cd",
            "01:00:00:00:00:00",
            "00:00:00:00:00:00",
            "ff:ff:ff:ff:ff:ff",
            "+2:00:00:00:00:00",
            "0é:00:00:00:00:0",
        ] {
            assert!(Mac::parse(text).is_err(), "{text}");
        }
    }
}
