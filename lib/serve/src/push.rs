//! The client's side of an upload: a file is sent to an upload proxy or server, and continued where it stopped when the
//! connection breaks (draft-ietf-httpbis-resumable-upload). Servers that do not know the draft get the whole file again.
//!
//! ```text
//!             POST ────────────── 200 ─────────────────────────────────────────────► done
//!   start ──►  │ 104: where to continue                                                ▲
//!              └─ broken ─► HEAD: how far? ─► PATCH from there ─► 200 ──────────────────┤
//!                             ▲                 │ broken                                │
//!                             └─────────────────┘        all of it there: wait ─────────┘
//! ```
//!
//! Not here: where the token comes from, the file's bytes ([`crate::body`]), how progress is shown.

use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::upload::RESOURCES;
use api::upload::resume::{COMPLETE_HEADER, OFFSET_HEADER, PARTIAL, VERSION, VERSION_HEADER};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, LOCATION};
use http::request::Builder;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Either, Empty, Limited};
use rustls::ClientConfig;

use crate::body::{self, Made};
use crate::peer;

/// Longest wait for the answer to a question.
const QUESTION: Duration = Duration::from_secs(60);
/// Between two looks whether everything is sent.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before the next attempt, and between two questions whether a server has finished.
const PAUSE: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 64 << 10;

/// Why an upload failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The URL or the token cannot be sent.
    Usage,
    /// The server cannot be reached.
    Unreachable,
    /// The server refuses the upload.
    Refused,
}

/// Why an upload failed.
pub type Error = error::Error<Kind>;
type Result<T> = std::result::Result<T, Error>;

/// Where tokens come from.
pub trait Tokens: Sync {
    /// A token for the next request.
    fn token(&self) -> impl Future<Output = Result<String>> + Send;
    /// Whether a refused token can be followed by another one.
    fn is_renewable(&self) -> bool;
}

/// Bytes that were sent.
#[derive(Clone, Debug, Default)]
pub struct Sent(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    now: AtomicU64,
    furthest: AtomicU64,
}

impl Sent {
    /// Where the current attempt is.
    pub fn now(&self) -> u64 {
        self.0.now.load(Ordering::Relaxed)
    }

    /// Where the attempt that got furthest was.
    pub fn furthest(&self) -> u64 {
        self.0.furthest.load(Ordering::Relaxed)
    }

    fn body(&self, file: Arc<File>, range: Range<u64>) -> Made {
        let (counters, mut at) = (Arc::clone(&self.0), range.start);
        counters.now.store(at, Ordering::Relaxed);
        body::of_file(file, range, move |taken| {
            at += taken;
            counters.now.store(at, Ordering::Relaxed);
            counters.furthest.fetch_max(at, Ordering::Relaxed);
        })
    }
}

/// A proxy or server, and how it is spoken to.
pub struct Site<T> {
    /// Host and port.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS with the authorities of accepted certificates.
    pub tls: Arc<ClientConfig>,
    /// The path of the first request, such as `/v1beta1/upload`.
    pub path: String,
    /// Tokens.
    pub tokens: T,
    /// Longest wait for the answer once everything is sent ([`peer::answer_timeout`]).
    pub answer_timeout: Duration,
}

/// Where an upload is.
struct Session {
    /// The path by which it can be continued.
    location: Option<String>,
    /// Attempts since the last one that made progress.
    fruitless: u32,
    furthest: u64,
}

/// How an attempt ended.
enum AttemptEnd {
    Done,
    /// Another attempt may succeed.
    Again(Error),
}

impl<T: Tokens> Site<T> {
    /// Sends the first `length` bytes of a file. `again` hears why an attempt failed that is followed by another one; after
    /// `retries` attempts in a row that brought nothing, the last reason is the error.
    ///
    /// # Errors
    /// The server refuses the upload, or cannot be reached.
    pub async fn push(
        &self,
        file: &Arc<File>,
        length: u64,
        retries: u32,
        sent: &Sent,
        mut again: impl FnMut(&Error),
    ) -> Result<()> {
        let mut session = Session { location: None, fruitless: 0, furthest: 0 };
        loop {
            let why = match self.attempt(&mut session, file, length, sent).await? {
                AttemptEnd::Done => return Ok(()),
                AttemptEnd::Again(why) => why,
            };
            // An attempt with progress does not count.
            session.fruitless = if sent.furthest() > session.furthest { 0 } else { session.fruitless + 1 };
            session.furthest = sent.furthest();
            if session.fruitless > retries {
                return Err(why);
            }
            again(&why);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks whether a path exists: HEAD is answered with success.
    ///
    /// # Errors
    /// The server cannot be reached, or there is no token.
    pub async fn has(&self, path: &str) -> Result<bool> {
        let token = self.tokens.token().await?;
        let request = self.request(&Method::HEAD, path, &token);
        let answer = self.ask(request.body(Either::Right(Empty::new())).map_err(nonsense)?).await?;
        Ok(answer.status.is_success())
    }

    /// Begins the upload, or continues it.
    async fn attempt(
        &self,
        session: &mut Session,
        file: &Arc<File>,
        length: u64,
        sent: &Sent,
    ) -> Result<AttemptEnd> {
        let token = match self.tokens.token().await {
            Ok(token) => token,
            Err(error) => return Ok(AttemptEnd::Again(error)),
        };
        let (method, path, offset) = match session.location.clone() {
            None => (Method::POST, self.path.clone(), 0),
            Some(path) => match self.offset(&path, &token).await? {
                UploadState::At(offset) if offset <= length => (Method::PATCH, path, offset),
                UploadState::At(_) => {
                    return Err(Error::new(
                        Kind::Refused,
                        "the server has more bytes than the file holds: the file changed; start over with a new claim",
                    ));
                }
                UploadState::Whole => {
                    return Ok(AttemptEnd::Again(Error::new(
                        Kind::Refused,
                        "the server has not finished the upload yet",
                    )));
                }
                UploadState::Done => return filled(sent, length),
                UploadState::Lost(why) => {
                    session.location = None;
                    return Ok(AttemptEnd::Again(why));
                }
                UploadState::Unknown(why) => return Ok(AttemptEnd::Again(why)),
            },
        };
        let mut request = self
            .request(&method, &path, &token)
            .header(VERSION_HEADER, VERSION)
            .header(COMPLETE_HEADER, "?1");
        request = match method {
            Method::PATCH => request.header(OFFSET_HEADER, offset).header(CONTENT_TYPE, PARTIAL),
            _ => request.header(CONTENT_TYPE, "application/octet-stream"),
        };
        let body = sent.body(file.clone(), offset..length);
        let mut request = request.body(Either::Left(body)).map_err(nonsense)?;
        let told = Arc::new(Mutex::new(None));
        let hear = Arc::clone(&told);
        hyper::ext::on_informational(&mut request, move |answer| {
            if let Some(path) = location(answer.headers()) {
                *hear.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
            }
        });
        let whole = async {
            while sent.now() < length {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let answer = self.send(request);
        let answer = peer::answer(answer, whole, self.answer_timeout, &self.host, "--answer-timeout");
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error) => Err(failed(error)),
        };
        if let Some(path) = told.lock().unwrap_or_else(PoisonError::into_inner).take() {
            session.location = Some(path);
        }
        match answer {
            Err(error) => Ok(AttemptEnd::Again(error)),
            Ok(answer) if answer.is_finished() && session.location.is_some() => filled(sent, length),
            Ok(answer) => self.judge(session, &answer),
        }
    }

    /// Judges an answer to POST or PATCH.
    fn judge(&self, session: &mut Session, answer: &Answer) -> Result<AttemptEnd> {
        let refused = Error::new(Kind::Refused, format!("the server answers {}", answer.words()));
        match answer.status {
            StatusCode::OK => Ok(AttemptEnd::Done),
            // The token may have expired.
            StatusCode::UNAUTHORIZED if self.tokens.is_renewable() => Ok(AttemptEnd::Again(refused)),
            // The server is not ready, busy or gone.
            StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::BAD_GATEWAY
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS => match answer.is_finished() {
                true => Err(refused),
                false => Ok(AttemptEnd::Again(refused)),
            },
            // It has more or less than expected, or nothing is left of it.
            StatusCode::CONFLICT if session.location.is_some() => Ok(AttemptEnd::Again(refused)),
            StatusCode::NOT_FOUND if session.location.is_some() => {
                session.location = None;
                Ok(AttemptEnd::Again(refused))
            }
            _ => Err(refused),
        }
    }

    /// How far the upload at `path` is.
    async fn offset(&self, path: &str, token: &str) -> Result<UploadState> {
        let request = self.request(&Method::HEAD, path, token).header(VERSION_HEADER, VERSION);
        let answer = match self.ask(request.body(Either::Right(Empty::new())).map_err(nonsense)?).await {
            Ok(answer) => answer,
            Err(error) => return Ok(UploadState::Unknown(error)),
        };
        if answer.status.is_success() {
            let text = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
            let offset = text(OFFSET_HEADER).and_then(|offset| offset.parse().ok());
            return Ok(match (text(COMPLETE_HEADER), offset) {
                (Some("?1"), _) => UploadState::Whole,
                (_, Some(offset)) => UploadState::At(offset),
                (_, None) => UploadState::Unknown(Error::new(
                    Kind::Refused,
                    "the server did not report the offset of the upload",
                )),
            });
        }
        // An answer to HEAD has no text: ask the proxy again with GET.
        let request = self.request(&Method::GET, &self.path, token);
        let why = match self.ask(request.body(Either::Right(Empty::new())).map_err(nonsense)?).await {
            Ok(found) if found.is_finished() => return Ok(UploadState::Done),
            Ok(found) => Error::new(
                Kind::Refused,
                format!("the server answers {} and {}", answer.status, found.words()),
            ),
            Err(error) => error,
        };
        Ok(match answer.status {
            StatusCode::NOT_FOUND => UploadState::Lost(why),
            StatusCode::UNAUTHORIZED if !self.tokens.is_renewable() => return Err(why),
            _ => UploadState::Unknown(why),
        })
    }

    fn request(&self, method: &Method, path: &str, token: &str) -> Builder {
        let host = match self.port {
            443 => self.host.clone(),
            port => format!("{}:{port}", self.host),
        };
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(AUTHORIZATION, format!("Bearer {token}"))
    }

    /// Sends a request without a body, which is answered soon.
    async fn ask(&self, request: Request<Either<Made, Empty<Bytes>>>) -> Result<Answer> {
        peer::reply(self.send(request), QUESTION, &self.host).await.map_err(failed)?
    }

    /// Sends a request over a connection of its own.
    async fn send(&self, request: Request<Either<Made, Empty<Bytes>>>) -> Result<Answer> {
        let name = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = peer::dial(name, self.port).await.map_err(failed)?;
        let stream = peer::secure(stream, name, Arc::clone(&self.tls)).await.map_err(failed)?;
        let broke = |e| Error::with(Kind::Unreachable, "the connection to the upload proxy broke", e);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(broke)?;
        let connection = tokio::spawn(connection);
        let answered = async {
            let (head, body) = sender.send_request(request).await.map_err(broke)?.into_parts();
            let body = Limited::new(body, ANSWER_MAX).collect().await;
            // A text that does not arrive whole is left out.
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                text: String::from_utf8_lossy(&body).trim().to_owned(),
            })
        };
        let answered = answered.await;
        connection.abort();
        answered
    }
}

fn failed(error: peer::Error) -> Error {
    error.map_kind(|kind| match kind {
        peer::Kind::Usage => Kind::Usage,
        peer::Kind::Unreachable => Kind::Unreachable,
    })
}

/// The volume is filled. Unless this client has sent everything, another one filled it.
fn filled(sent: &Sent, length: u64) -> Result<AttemptEnd> {
    match sent.furthest() >= length {
        true => Ok(AttemptEnd::Done),
        false => {
            Err(Error::new(Kind::Refused, "another client has filled the volume; upload to another claim"))
        }
    }
}

/// How far an upload is.
enum UploadState {
    At(u64),
    /// The server has all bytes and is still working.
    Whole,
    /// The volume is filled.
    Done,
    /// Nothing is left to continue.
    Lost(Error),
    /// The server may know later.
    Unknown(Error),
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn words(&self) -> String {
        format!("{}: {}", self.status.as_u16(), self.text)
    }

    /// The volume is filled already.
    fn is_finished(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE && self.text.contains("already finished uploading")
    }
}

fn nonsense(error: http::Error) -> Error {
    Error::with(Kind::Usage, "the token or the URL holds invalid characters", error)
}

/// The path of an upload in an answer; of our paths only, because the token is sent there.
fn location(headers: &HeaderMap) -> Option<String> {
    let path = headers.get(LOCATION)?.to_str().ok()?;
    path.starts_with(RESOURCES).then(|| path.to_owned())
}

/// Host and port of a URL; the scheme may be missing.
///
/// # Errors
/// It is no https URL, or has a path.
pub fn host_and_port(url: &str) -> Result<(String, u16)> {
    let nonsense =
        || Error::new(Kind::Usage, format!("{url} is not the URL of a proxy: write https://HOST[:PORT]"));
    let whole = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
    let uri: http::Uri = whole.parse().map_err(|_| nonsense())?;
    match (uri.scheme_str(), uri.host(), uri.path()) {
        (Some("https"), Some(host), "/" | "") => Ok((host.to_owned(), uri.port_u16().unwrap_or(443))),
        _ => Err(nonsense()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_proxies() {
        for (url, expected) in [
            ("proxy.example.com", Some(("proxy.example.com", 443))),
            ("https://proxy:8443", Some(("proxy", 8443))),
            ("https://10.0.0.1:1/", Some(("10.0.0.1", 1))),
            ("[::1]:443", Some(("[::1]", 443))),
            ("http://proxy", None),
            ("https://proxy/path", None),
            ("https://", None),
            ("", None),
        ] {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(host_and_port(url).ok(), expected, "{url}");
        }
    }

    #[test]
    fn tokens_go_to_paths_of_uploads_only() {
        for (value, expected) in [
            ("/v1beta1/uploads/a", true),
            ("https://elsewhere/v1beta1/uploads/a", false),
            ("//elsewhere/v1beta1/uploads/a", false),
            ("/other", false),
        ] {
            let headers = HeaderMap::from_iter([(LOCATION, value.parse().unwrap())]);
            assert_eq!(location(&headers).is_some(), expected, "{value}");
        }
    }
}
