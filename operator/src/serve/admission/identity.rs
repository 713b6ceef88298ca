//! The SMBIOS identity of new guests.

use rustls::crypto::aws_lc_rs;
use virt::admission::Identity;

/// The identity of a new guest; `None` if the system gives no random numbers.
pub(super) fn identity() -> Option<Identity> {
    Some(Identity { uuid: uuid()?, serial: uuid()? })
}

/// A random UUID (version 4).
fn uuid() -> Option<String> {
    let mut bytes = [0; 16];
    aws_lc_rs::default_provider().secure_random.fill(&mut bytes).ok()?;
    let mut number = u128::from_be_bytes(bytes);
    number = (number & !(0xf << 76)) | (4 << 76);
    number = (number & !(0x3 << 62)) | (2 << 62);
    let text = format!("{number:032x}");
    Some(format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_random_and_of_version_four() {
        let one = uuid().unwrap();
        assert_ne!(one, uuid().unwrap());
        let parts: Vec<&str> = one.split('-').collect();
        assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']), "{one}");
    }
}
