//! Headers and answers of draft-ietf-httpbis-resumable-upload. Pure. Not here: uploads.

use api::upload::resume::{
    COMPLETE_HEADER, LENGTH_HEADER, LIMIT_HEADER, OFFSET_HEADER, PARTIAL, VERSION, VERSION_HEADER,
};
use disk_image::volume::Error;
use http::header::{CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Of older drafts: `?1` when the request does not carry the end of the upload.
const INCOMPLETE_HEADER: &str = "upload-incomplete";

/// A POST that begins an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    /// The body is the rest of the upload: here, all of it.
    pub(crate) complete: bool,
    /// Bytes of the whole upload.
    pub(crate) length: Option<u64>,
}

/// A PATCH that resumes an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Append {
    /// Bytes before this request's.
    pub(crate) offset: u64,
    /// The body is the rest of the upload.
    pub(crate) complete: bool,
    /// Bytes of the whole upload.
    pub(crate) length: Option<u64>,
}

/// That the body of a POST begins an upload, and is not a part of one in another way (ranges, older drafts), which would be
/// taken for a whole image.
///
/// # Errors
/// Headers by which it is a part.
pub(crate) fn from_the_start(headers: &HeaderMap) -> Result<(), Error> {
    let part = |name: &str, present: bool| match present {
        true => {
            let what = format!(
                "the header {name} declares the body a part of an upload; send it whole, or as a resumable upload of version {VERSION} ({VERSION_HEADER})"
            );
            Err(Error::usage(what))
        }
        false => Ok(()),
    };
    part("content-range", headers.contains_key(CONTENT_RANGE))?;
    part(INCOMPLETE_HEADER, headers.get(INCOMPLETE_HEADER).is_some_and(|value| value != "?0"))?;
    part(OFFSET_HEADER, headers.get(OFFSET_HEADER).is_some_and(|value| value != "0"))
}

/// Whether a POST wants to be resumable; `None` for a plain one.
///
/// # Errors
/// Malformed headers, and a part of an upload in an unsupported version.
pub(crate) fn begin(headers: &HeaderMap, content_length: Option<u64>) -> Result<Option<Begin>, Error> {
    let Some(complete) = boolean(headers)? else { return Ok(None) };
    if headers.get(VERSION_HEADER).is_none_or(|version| version != VERSION) {
        return match complete {
            // All of it comes: a plain upload.
            true => Ok(None),
            false => Err(Error::usage(format!(
                "only version {VERSION} of resumable uploads is supported (header {VERSION_HEADER})"
            ))),
        };
    }
    Ok(Some(Begin { complete, length: length(headers, 0, complete, content_length)? }))
}

/// The headers of a PATCH.
///
/// # Errors
/// Headers that are missing or malformed.
pub(crate) fn append(headers: &HeaderMap, content_length: Option<u64>) -> Result<Append, Error> {
    let missing = |name| Error::usage(format!("the header {name} is missing"));
    let offset = number(headers, OFFSET_HEADER)?.ok_or_else(|| missing(OFFSET_HEADER))?;
    let complete = boolean(headers)?.ok_or_else(|| missing(COMPLETE_HEADER))?;
    Ok(Append { offset, complete, length: length(headers, offset, complete, content_length)? })
}

/// Whether a PATCH has the content type of one.
pub(crate) fn is_partial(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    // Clients add parameters without being asked (RFC 9110, 8.3.1).
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(PARTIAL))
}

/// The length of the upload: as the header states it, and as it follows from a body that is the rest.
fn length(
    headers: &HeaderMap,
    offset: u64,
    complete: bool,
    content_length: Option<u64>,
) -> Result<Option<u64>, Error> {
    let said = number(headers, LENGTH_HEADER)?;
    let wrong =
        || Error::usage("the length of the body and the header of the upload's length contradict each other");
    let follows = match content_length.filter(|_| complete) {
        Some(rest) => Some(offset.checked_add(rest).ok_or_else(wrong)?),
        None => None,
    };
    match (said, follows) {
        (Some(said), Some(follows)) if said != follows => Err(wrong()),
        (said, follows) => Ok(said.or(follows)),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Error> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map(HeaderValue::to_str).transpose();
    match (value, values.next()) {
        (Ok(value), None) => Ok(value.map(str::trim)),
        _ => Err(Error::usage(format!("the header {name} is malformed or given twice"))),
    }
}

/// A boolean of structured fields (RFC 9651).
fn boolean(headers: &HeaderMap) -> Result<Option<bool>, Error> {
    match text(headers, COMPLETE_HEADER)? {
        None => Ok(None),
        Some("?1") => Ok(Some(true)),
        Some("?0") => Ok(Some(false)),
        Some(_) => Err(Error::usage(format!("the header {COMPLETE_HEADER} must be ?1 or ?0"))),
    }
}

/// A number of structured fields: at most fifteen digits.
fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, Error> {
    let Some(text) = text(headers, name)? else { return Ok(None) };
    let digits = (1..=15).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => Ok(Some(number)),
        _ => Err(Error::usage(format!("the header {name} must be a number of at most 15 digits"))),
    }
}

/// The headers with an upload's offset.
pub(crate) fn state(offset: u64, complete: bool, length: Option<u64>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: HeaderValue| {
        headers.insert(HeaderName::from_static(name), value);
    };
    set(VERSION_HEADER, HeaderValue::from_static(VERSION));
    set(OFFSET_HEADER, offset.into());
    set(COMPLETE_HEADER, HeaderValue::from_static(if complete { "?1" } else { "?0" }));
    set(LIMIT_HEADER, HeaderValue::from_static("min-size=0"));
    if let Some(length) = length {
        set(LENGTH_HEADER, length.into());
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        pairs.collect()
    }

    const V: (&str, &str) = (VERSION_HEADER, VERSION);

    #[test]
    fn uploads_that_begin() {
        let begin = |pairs: &[_], length| super::begin(&headers(pairs), length).ok();
        let as_is = |complete, length| Some(Some(Begin { complete, length }));
        assert_eq!(begin(&[], Some(5)), Some(None));
        assert_eq!(begin(&[V, (COMPLETE_HEADER, "?1")], Some(5)), as_is(true, Some(5)));
        assert_eq!(begin(&[V, (COMPLETE_HEADER, "?1")], None), as_is(true, None));
        assert_eq!(begin(&[V, (COMPLETE_HEADER, "?0")], Some(5)), as_is(false, None));
        assert_eq!(
            begin(&[V, (COMPLETE_HEADER, "?0"), (LENGTH_HEADER, "9")], Some(5)),
            as_is(false, Some(9))
        );
        assert_eq!(begin(&[(COMPLETE_HEADER, "?1")], Some(5)), Some(None));
        assert_eq!(begin(&[(VERSION_HEADER, "3"), (COMPLETE_HEADER, "?1")], Some(5)), Some(None));
        for wrong in [
            &[(COMPLETE_HEADER, "?0")][..],
            &[(VERSION_HEADER, "3"), (COMPLETE_HEADER, "?0")],
            &[V, (COMPLETE_HEADER, "1")],
            &[V, (COMPLETE_HEADER, "?1"), (LENGTH_HEADER, "6")],
            &[V, (COMPLETE_HEADER, "?1"), (LENGTH_HEADER, "-5")],
            &[V, (COMPLETE_HEADER, "?1"), (LENGTH_HEADER, "1000000000000000")],
        ] {
            assert_eq!(begin(wrong, Some(5)), None, "{wrong:?}");
        }
    }

    #[test]
    fn parts_in_other_ways_are_no_uploads() {
        let whole = |name, value| from_the_start(&headers(&[(name, value)])).is_ok();
        for (name, value, expected) in [
            ("content-range", "bytes 0-4/9", false),
            ("content-range", "bytes 5-8/9", false),
            (INCOMPLETE_HEADER, "?1", false),
            (INCOMPLETE_HEADER, "?0", true),
            (OFFSET_HEADER, "5", false),
            (OFFSET_HEADER, "0", true),
            ("content-length", "5", true),
        ] {
            assert_eq!(whole(name, value), expected, "{name}: {value}");
        }
    }

    #[test]
    fn content_types_of_parts() {
        for (kind, expected) in [
            ("application/partial-upload", true),
            ("Application/Partial-Upload ; charset=utf-8", true),
            ("application/octet-stream", false),
            ("application/partial-uploads", false),
        ] {
            assert_eq!(is_partial(&headers(&[("content-type", kind)])), expected, "{kind}");
        }
        assert!(!is_partial(&HeaderMap::new()));
    }

    #[test]
    fn uploads_that_go_on() {
        let append = |pairs: &[_], length| super::append(&headers(pairs), length).ok();
        let (offset, more, rest) = ((OFFSET_HEADER, "7"), (COMPLETE_HEADER, "?0"), (COMPLETE_HEADER, "?1"));
        assert_eq!(
            append(&[offset, more], Some(5)),
            Some(Append { offset: 7, complete: false, length: None })
        );
        assert_eq!(
            append(&[offset, rest], Some(5)),
            Some(Append { offset: 7, complete: true, length: Some(12) })
        );
        for wrong in [
            &[offset][..],
            &[rest],
            &[offset, rest, (LENGTH_HEADER, "5")],
            &[(OFFSET_HEADER, "+7"), rest],
            &[(OFFSET_HEADER, ""), rest],
        ] {
            assert_eq!(append(wrong, Some(5)), None, "{wrong:?}");
        }
    }
}
