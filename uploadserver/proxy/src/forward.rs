//! A request on its way to an upload server and its answer on the way back: as a stream in both directions, with what is
//! for one connection only left out. Not here: to which server, and whether.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use api::upload::resume::VERSION_HEADER;
use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, StatusCode, Uri, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use serve::server::{Informational, read_to_end};
use tokio::time::{Instant, Sleep};

use crate::answer::{Answer, Refusal, Reply, Running};
use serve::peer::Stream;

/// How long a client may send nothing while the proxy reads from it.
const SILENCE: Duration = Duration::from_secs(120);
/// Longest time for which the rest of a known client's request is read after its answer.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(30);
/// Bytes of an answer's head at most, and of a body that wait to be sent.
const BUFFER: usize = 16 << 10;
/// Headers that are for one connection only (RFC 9110, 7.6.1).
const HOP: [HeaderName; 6] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, PROXY_AUTHENTICATE];
/// Headers that are for us: a server has no use for them.
const OURS: [HeaderName; 5] = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, EXPECT, HOST];

/// Sends a request to the server at the other end of `stream`, by this path, and gives the answer that comes. Answers
/// of 104 go to `informational`; `passed` counts the bytes of the body.
///
/// # Errors
/// [`Refusal::Silent`], [`Refusal::Broken`].
pub(crate) async fn forward(
    stream: Stream,
    host: &str,
    path: &str,
    request: Request<Incoming>,
    informational: Option<Informational>,
    passed: Arc<AtomicU64>,
) -> Result<Answer, Refusal> {
    let (mut head, body) = request.into_parts();
    let silent = Arc::new(AtomicBool::new(false));
    strip(&mut head.headers, &OURS);
    // Names of claims are names of hosts, and paths are ours.
    head.uri = Uri::try_from(path).map_err(|_| Refusal::NotFound)?;
    head.headers.insert(HOST, HeaderValue::try_from(host).map_err(|_| Refusal::NotFound)?);
    head.version = Version::HTTP_11;
    head.extensions.clear();
    let mut request = Request::from_parts(head, Passing::new(body, silent.clone(), passed));
    if let Some(queue) = informational {
        hyper::ext::on_informational(&mut request, move |answer| {
            if answer.status().as_u16() == 104 {
                queue.push(&resumption(answer.headers()));
            }
        });
    }
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(BUFFER)
        .handshake(stream)
        .await
        .map_err(|_| Refusal::Broken)?;
    let running = Running(tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to an upload server ended early");
        }
    }));
    let answer = sender.send_request(request).await.map_err(|error| {
        tracing::info!(%error, "an upload broke off");
        if silent.load(Ordering::Relaxed) { Refusal::Silent } else { Refusal::Broken }
    })?;
    let (mut head, body) = answer.into_parts();
    let last =
        head.headers.get(CONNECTION).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"));
    strip(&mut head.headers, &[]);
    head.version = Version::HTTP_11;
    head.extensions.clear();
    if last {
        // It does not read the rest of the request, and so nor do we for long.
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(Answer::from_parts(head, Reply::Passed { body, _running: running }))
}

/// Takes out what is for one connection, and `more`.
fn strip(headers: &mut HeaderMap, more: &[HeaderName]) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != http::header::CONTENT_LENGTH)
        .collect();
    for name in HOP.iter().chain(more).chain(&named) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// The interim answer with the resource where an upload can be resumed.
fn resumption(headers: &HeaderMap) -> String {
    let status =
        StatusCode::from_u16(104).map_or_else(|_| "104".to_owned(), |status| status.as_str().to_owned());
    let mut text = format!("HTTP/1.1 {status} Upload Resumption Supported\r\n");
    let known = [HeaderName::from_static(VERSION_HEADER), LOCATION];
    let upload =
        headers.iter().filter(|(name, _)| known.contains(name) || name.as_str().starts_with("upload-"));
    let mut seen = Vec::new();
    for (name, value) in upload {
        if let Ok(value) = value.to_str()
            && !seen.contains(&name)
        {
            seen.push(name);
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text + "\r\n"
}

/// The body of a forwarded request. When the server stops reading, the rest is drained for a while, so that the client
/// reads the answer.
#[derive(Debug)]
struct Passing {
    body: Option<Incoming>,
    /// When the next bytes must be there, while they are waited for.
    until: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    silent: Arc<AtomicBool>,
    /// Counts bytes.
    passed: Arc<AtomicU64>,
}

/// Why a body does not go on.
type Interrupted = Box<dyn std::error::Error + Send + Sync>;

impl Passing {
    fn new(body: Incoming, silent: Arc<AtomicBool>, passed: Arc<AtomicU64>) -> Self {
        Self { body: Some(body), until: None, alarm: Box::pin(tokio::time::sleep(SILENCE)), silent, passed }
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = Interrupted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Interrupted>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            this.until = None;
            let size = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
            this.passed.fetch_add(u64::try_from(size).unwrap_or_default(), Ordering::Relaxed);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let until = *this.until.get_or_insert_with(|| Instant::now() + SILENCE);
        // The alarm is reset only when it goes off: bytes come more often than that.
        while this.alarm.as_mut().poll(context).is_ready() {
            if Instant::now() >= until {
                this.silent.store(true, Ordering::Relaxed);
                return Poll::Ready(Some(Err("no data arrived for too long".into())));
            }
            this.alarm.as_mut().reset(until);
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        // Without a runtime the process is at its end.
        if let (Some(rest), Ok(_)) = (rest, tokio::runtime::Handle::try_current()) {
            tokio::spawn(tokio::time::timeout(DRAIN_TIME, read_to_end(rest)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn headers_of_one_connection_are_not_forwarded() {
        let mut found = headers(&[
            ("authorization", "Bearer x"),
            ("connection", "close, x-mine , content-length"),
            ("x-mine", "1"),
            ("x-other", "2"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "5"),
            ("expect", "100-continue"),
            ("content-length", "5"),
            ("upload-offset", "7"),
            ("host", "proxy"),
        ]);
        strip(&mut found, &OURS);
        let mut left: Vec<&str> = found.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "upload-offset", "x-other"]);
    }

    #[test]
    fn resource_of_an_upload_is_sent_in_an_interim_answer() {
        let answer = headers(&[
            ("location", "/v1beta1/uploads/a"),
            ("upload-draft-interop-version", "8"),
            ("upload-limit", "min-size=1"),
            ("set-cookie", "x"),
        ]);
        let text = resumption(&answer);
        assert!(text.starts_with("HTTP/1.1 104 Upload Resumption Supported\r\n"), "{text}");
        assert!(
            text.contains("\r\nlocation: /v1beta1/uploads/a\r\n") && text.ends_with("\r\n\r\n"),
            "{text}"
        );
        assert!(text.contains("upload-limit: min-size=1\r\n") && !text.contains("cookie"), "{text}");
    }
}
