//! The name in a client's certificate: the common name of its subject (X.520), as DER (X.690) has it. Not here: whether
//! the certificate is good, which TLS has found out before.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const OBJECT_IDENTIFIER: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// UTF8String, PrintableString, IA5String; others are not in use for names of machines.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// The common name of `certificate`; `None` when it has none, more than one, or one that is no text.
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    name_in(certificate.subject())
}

/// The common name in the sets of a subject.
fn name_in(mut subject: &[u8]) -> Option<String> {
    let mut found = None;
    while !subject.is_empty() {
        let mut set = value(&mut subject, &[SET])?;
        while !set.is_empty() {
            let mut pair = value(&mut set, &[SEQUENCE])?;
            if value(&mut pair, &[OBJECT_IDENTIFIER])? != COMMON_NAME {
                continue;
            }
            let text = std::str::from_utf8(value(&mut pair, &TEXTS)?).ok()?;
            if found.replace(text.to_owned()).is_some() {
                return None;
            }
        }
    }
    found
}

/// Takes the next value off `input`, which must have one of these tags.
fn value<'a>(input: &mut &'a [u8], tags: &[u8]) -> Option<&'a [u8]> {
    let (tag, rest) = input.split_first()?;
    if !tags.contains(tag) {
        return None;
    }
    let (&first, rest) = rest.split_first()?;
    // Below 128 the length itself, else the number of its bytes; names are shorter than 64 KiB.
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => rest.split_first().map(|(&len, rest)| (usize::from(len), rest))?,
        0x82 => rest.split_first_chunk().map(|(len, rest)| (usize::from(u16::from_be_bytes(*len)), rest))?,
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(len)?;
    *input = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[&str]) -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["dns".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "org");
        for name in names {
            params.distinguished_name.push(rcgen::DnType::CommonName, *name);
        }
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn names_of_certificates() {
        let long = "x".repeat(300);
        for name in ["client.upload-server.cdi.kubevirt.io", "a/b-c/d", "ä", &long] {
            assert_eq!(common_name(&certificate(&[name])).as_deref(), Some(name));
        }
        assert_eq!(common_name(&certificate(&[])), None);
        assert_eq!(common_name(&CertificateDer::from(vec![0x30, 0])), None);
    }

    #[test]
    fn odd_subjects_have_no_name() {
        let pair = |name: &[u8]| {
            let mut pair = vec![6, 3, 0x55, 4, 3, 0x0c, u8::try_from(name.len()).unwrap()];
            pair.extend_from_slice(name);
            let mut sequence = vec![0x30, u8::try_from(pair.len()).unwrap()];
            sequence.extend(pair);
            let mut set = vec![0x31, u8::try_from(sequence.len()).unwrap()];
            set.extend(sequence);
            set
        };
        assert_eq!(name_in(&pair(b"one")).as_deref(), Some("one"));
        assert_eq!(name_in(&[pair(b"one"), pair(b"two")].concat()), None);
        assert_eq!(name_in(&pair(&[0xff])), None);
        let whole = pair(b"name");
        for len in 1..whole.len() {
            assert_eq!(name_in(&whole[..len]), None, "{len} bytes of it");
        }
    }
}
