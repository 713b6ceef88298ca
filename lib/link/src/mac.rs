//! Ethernet addresses that an interface can have, as text.

use mac::Mac;

use crate::error::{Error, Kind};

/// Reads the address of one interface, in each form that [`Mac::parse`] knows.
///
/// # Errors
/// [`Kind::Invalid`] when the text is something else, or an address that no interface can have: a group address or only
/// zeroes.
pub fn interface_mac(text: &str) -> Result<Mac, Error> {
    let invalid = |message: String| Error::new(Kind::Invalid, message);
    let Some(mac) = Mac::parse(text) else {
        return Err(invalid(format!("\"{}\" is not an Ethernet address", text.escape_debug())));
    };
    match mac.is_usable() {
        true => Ok(mac),
        false => Err(invalid(format!("{text} is not the address of one interface"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_interface_can_have_are_refused() {
        assert_eq!(interface_mac("0200.0000.abCD").unwrap().to_string(), "02:00:00:00:ab:cd");
        for (text, why) in [
            ("01:00:00:00:00:00", "one interface"),
            ("00:00:00:00:00:00", "one interface"),
            ("ff:ff:ff:ff:ff:ff", "one interface"),
            ("02:00:00:00:ab", "not an Ethernet address"),
            ("\n", "\"\\n\" is not an Ethernet address"),
        ] {
            let error = interface_mac(text).unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.to_string().contains(why), "{text}: {error}");
        }
    }
}
