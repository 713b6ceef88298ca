//! Digests that a client sends with the bytes: `Repr-Digest`, `Content-Digest` (RFC 9530) and the older `Digest` (RFC 3230).
//! Pure. Not here: hashing (`disk_image::volume`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use disk_image::volume::{Checksum, Error};
use http::HeaderMap;

/// The strongest checksum that the headers give; those of unknown algorithms are left aside, as the RFCs want it.
/// `Content-Digest` is of one request's body, and so of the upload only when that is `whole`.
///
/// # Errors
/// A value of a known algorithm that is none, and two that differ.
pub(crate) fn of_headers(headers: &HeaderMap, whole: bool) -> Result<Option<Checksum>, Error> {
    let mut found = Vec::new();
    for (header, counts) in [("repr-digest", true), ("content-digest", whole), ("digest", true)] {
        for value in headers.get_all(header).iter().filter(|_| counts) {
            let text =
                value.to_str().map_err(|_| Error::usage(format!("the header {header} is not text")))?;
            for item in text.split(',') {
                found.extend(item_of(header, item.trim())?);
            }
        }
    }
    found.sort_by_key(|(strength, _)| *strength);
    let Some(strongest) = found.pop() else { return Ok(None) };
    if found.last().is_some_and(|other| other.0 == strongest.0 && other.1 != strongest.1) {
        return Err(Error::usage("the digest headers of the upload contradict each other; send one"));
    }
    Ok(Some(strongest.1))
}

/// One `algorithm=value`, with its strength; a structured field has colons around the value.
fn item_of(header: &str, item: &str) -> Result<Option<(usize, Checksum)>, Error> {
    let Some((name, value)) = item.split_once('=') else { return Ok(None) };
    let name = name.trim().to_ascii_lowercase();
    let known = ["md5", "sha", "sha-256", "sha-512"];
    let Some(strength) = known.iter().position(|known| *known == name) else { return Ok(None) };
    let algorithm = ["md5", "sha1", "sha256", "sha512"][strength];
    let value = value.trim();
    let value = value.strip_prefix(':').and_then(|value| value.strip_suffix(':')).unwrap_or(value);
    let wrong =
        || Error::usage(format!("the value of {name} in the header {header} is not a digest in base64"));
    let bytes = STANDARD.decode(value).map_err(|_| wrong())?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{algorithm}:{hex}").parse().map(|checksum| Some((strength, checksum))).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_256: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
    const EMPTY_MD5: &str = "1B2M2Y8AsgTpgAmY7PhCfg==";

    fn read(header: &'static str, value: &str, whole: bool) -> Result<Option<String>, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(header, value.parse().unwrap());
        Ok(of_headers(&headers, whole)?.map(|checksum| checksum.to_string()))
    }

    #[test]
    fn headers_of_three_kinds() {
        let sha256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for (header, value, whole, expected) in [
            ("repr-digest", format!("sha-256=:{EMPTY_256}:"), true, Some(sha256)),
            ("repr-digest", format!("unknown=:AA==:, sha-256=:{EMPTY_256}:"), false, Some(sha256)),
            ("content-digest", format!("sha-256=:{EMPTY_256}:"), true, Some(sha256)),
            ("content-digest", format!("sha-256=:{EMPTY_256}:"), false, None),
            ("digest", format!("SHA-256={EMPTY_256},md5={EMPTY_MD5}"), true, Some(sha256)),
            ("digest", format!("MD5={EMPTY_MD5}"), true, Some("md5:d41d8cd98f00b204e9800998ecf8427e")),
            (
                "digest",
                format!("md5={EMPTY_MD5},MD5={EMPTY_MD5}"),
                true,
                Some("md5:d41d8cd98f00b204e9800998ecf8427e"),
            ),
            ("digest", "crc32c=AA==".to_owned(), true, None),
        ] {
            assert_eq!(read(header, &value, whole).unwrap().as_deref(), expected, "{header}: {value}");
        }
        for (header, value) in [
            ("repr-digest", "sha-256=:AA==:"),
            ("repr-digest", "sha-256=:not base64:"),
            ("digest", "md5=abc"),
            ("digest", "md5=1B2M2Y8AsgTpgAmY7PhCfg==,md5=AAAAAAAAAAAAAAAAAAAAAA=="),
        ] {
            assert!(read(header, value, true).is_err(), "{header}: {value}");
        }
    }
}
