//! Answers to requests (RFC 9110): the disk, whole or one range of it, and the environment. Not here: connections.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use api::import::node::{DISK_PATH, INFO_PATH};
use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, IF_RANGE,
    LAST_MODIFIED, RANGE,
};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

use crate::image::{Image, Open, Refusal};

/// Bytes read from the disk at once.
const CHUNK: u64 = 256 << 10;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The offered file.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) image: Image,
    /// The body of /info.
    pub(crate) info: Bytes,
}

/// Answers `request`, whatever its body.
pub(crate) async fn answer<B>(request: &Request<B>, offer: &Served) -> Result<Response<Body>, Infallible> {
    let head = match *request.method() {
        Method::GET => false,
        Method::HEAD => true,
        _ => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET or HEAD\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Ok(response);
        }
    };
    let path = request.uri().path();
    if path == INFO_PATH {
        return Ok(with_type(full(StatusCode::OK, offer.info.clone()), "application/json"));
    }
    if path != DISK_PATH && !names(path, offer.image.name().as_bytes()) {
        return Ok(plain(StatusCode::NOT_FOUND, "not found: /disk.img and /info are served\n"));
    }
    Ok(match offer.image.open() {
        Ok(open) => disk(open, head, request.headers()),
        Err(Refusal::Forbidden) => plain(
            StatusCode::FORBIDDEN,
            "the image's file cannot be opened: it must be a regular file that the user of this container may read\n",
        ),
        Err(Refusal::Missing) => plain(StatusCode::NOT_FOUND, "the image's file was removed\n"),
        Err(Refusal::Failed) => {
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the image's file cannot be opened\n")
        }
    })
}

/// Whether the path of a request is that of `name`.
fn names(path: &str, name: &[u8]) -> bool {
    path.strip_prefix('/')
        .is_some_and(|path| percent_encoding::percent_decode_str(path).eq(name.iter().copied()))
}

/// A parsed request for a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Selection {
    Whole,
    Part(Range<u64>),
    /// A range that has nothing.
    Outside,
}

fn disk(open: Open, head: bool, asked: &HeaderMap) -> Response<Body> {
    let Open { file, len, etag, modified } = open;
    // RFC 9110, 14.2: ranges are GET's alone. 13.1.5: with another version than the one meant, the whole is sent.
    let text = |name: &HeaderName| asked.get(name).and_then(|value| value.to_str().ok());
    let meant = !asked.contains_key(IF_RANGE)
        || text(&IF_RANGE).is_some_and(|mark| mark == etag || Some(mark) == modified.as_deref());
    let range = if head || !meant || asked.get_all(RANGE).iter().count() > 1 { None } else { text(&RANGE) };
    let (status, part, content_range) = match range.map_or(Selection::Whole, |range| wanted(range, len)) {
        Selection::Whole => (StatusCode::OK, 0..len, None),
        Selection::Part(part) => {
            let shown = format!("bytes {}-{}/{len}", part.start, part.end - 1);
            (StatusCode::PARTIAL_CONTENT, part, Some(shown))
        }
        Selection::Outside => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0, Some(format!("bytes */{len}"))),
    };
    let length = part.end - part.start;
    let body = if head { empty() } else { bytes_of(Arc::new(file), part) };
    let mut response = with_type(Response::new(body), "application/octet-stream");
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    for (name, value) in [(ETAG, Some(etag)), (LAST_MODIFIED, modified), (CONTENT_RANGE, content_range)] {
        // All are made of digits, letters and plain punctuation.
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(name, value);
        }
    }
    response
}

/// A Range header (RFC 9110, 14.1.2) held against a length. What is malformed, of another unit, or several ranges, is
/// ignored, as 14.2 allows.
fn wanted(range: &str, len: u64) -> Selection {
    let number = |text: &str| {
        // Too large a number is as good as the largest; a sign is no digit.
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let unit = range.get(..6).is_some_and(|unit| unit.eq_ignore_ascii_case("bytes="));
    let Some((first, last)) = range.get(6..).filter(|_| unit).and_then(|rest| rest.trim().split_once('-'))
    else {
        return Selection::Whole;
    };
    let part = match (first, last) {
        ("", suffix) => match number(suffix) {
            Some(suffix) => len.saturating_sub(suffix)..len,
            None => return Selection::Whole,
        },
        (first, "") => match number(first) {
            Some(first) => first..len,
            None => return Selection::Whole,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(len),
            (Some(_) | None, Some(_) | None) => return Selection::Whole,
        },
    };
    if part.is_empty() { Selection::Outside } else { Selection::Part(part) }
}

/// Bytes of `file`, read on threads that may wait for the disk.
fn bytes_of(file: Arc<File>, part: Range<u64>) -> Body {
    let chunks = stream::try_unfold(part, move |part| {
        let file = file.clone();
        async move {
            if part.is_empty() {
                return Ok(None);
            }
            let from = part.start;
            let read = tokio::task::spawn_blocking(move || chunk(&file, part.start..part.end));
            let chunk = read.await.map_err(io::Error::other)??;
            let next = from + chunk.len() as u64..part.end;
            Ok::<_, io::Error>(Some((Frame::data(chunk), next)))
        }
    });
    StreamBody::new(chunks).boxed_unsync()
}

/// The first bytes of `part`.
fn chunk(file: &File, part: Range<u64>) -> io::Result<Bytes> {
    let len = usize::try_from((part.end - part.start).min(CHUNK)).map_err(io::Error::other)?;
    let mut buffer = vec![0; len];
    let read = loop {
        match file.read_at(&mut buffer, part.start) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    if read == 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the image's file was truncated while it was sent",
        ));
    }
    buffer.truncate(read);
    Ok(buffer.into())
}

fn empty() -> Body {
    full_body(Bytes::new())
}

fn full_body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

fn full(status: StatusCode, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(full_body(bytes));
    *response.status_mut() = status;
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    with_type(full(status, Bytes::from_static(text.as_bytes())), "text/plain; charset=utf-8")
}

fn with_type(mut response: Response<Body>, kind: &'static str) -> Response<Body> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let part = |range| Selection::Part(range);
        #[rustfmt::skip]
        let table = [
            ("bytes=0-0",       10, part(0..1)),
            ("bytes=0-",        10, part(0..10)),
            ("Bytes=3-5",       10, part(3..6)),
            ("bytes=3-99",      10, part(3..10)),
            ("bytes=9-18446744073709551615", 10, part(9..10)),
            ("bytes=9-99999999999999999999", 10, part(9..10)),
            ("bytes=-3",        10, part(7..10)),
            ("bytes=-99",       10, part(0..10)),
            ("bytes=10-",       10, Selection::Outside),
            ("bytes=10-20",     10, Selection::Outside),
            ("bytes=99999999999999999999-", 10, Selection::Outside),
            ("bytes=-0",        10, Selection::Outside),
            ("bytes=0-0",        0, Selection::Outside),
            ("bytes=-1",         0, Selection::Outside),
            ("bytes=5-4",       10, Selection::Whole),
            ("bytes=0-1,3-4",   10, Selection::Whole),
            ("bytes=-",         10, Selection::Whole),
            ("bytes=--1",       10, Selection::Whole),
            ("bytes=+1-2",      10, Selection::Whole),
            ("bytes=a-b",       10, Selection::Whole),
            ("bytes",           10, Selection::Whole),
            ("lines=0-1",       10, Selection::Whole),
            ("",                10, Selection::Whole),
        ];
        for (range, len, want) in table {
            assert_eq!(wanted(range, len), want, "{range} of {len}");
        }
    }

    #[test]
    fn paths() {
        assert!(names("/a.qcow2", b"a.qcow2") && names("/a%20b", b"a b") && names("/%ff", b"\xff"));
        for other in ["/", "a.qcow2", "//a.qcow2", "/./a.qcow2", "/../a.qcow2", "/a.qcow2/", "/%2fa.qcow2"] {
            assert!(!names(other, b"a.qcow2"), "{other}");
        }
    }
}
