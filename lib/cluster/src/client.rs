//! Raw requests to an API server: at most 64 at once, `Retry-After` honoured, answers bounded in size and time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
#[cfg(feature = "websocket")]
use rustls::ClientConfig;
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::credentials::Credentials;
use crate::error::{Error, Kind, Result};
use crate::transport::{self, Http};

/// An answer longer than this is not read. The largest are pages of 500 objects.
const MOST_ANSWER: usize = 256 << 20;
/// A refusal longer than this is not read.
const MOST_REFUSAL: usize = 1 << 20;
/// An event of a watch, one line, longer than this ends the watch. etcd holds objects up to 1.5 MiB by default.
const MOST_LINE: usize = 32 << 20;
/// A request that the API server puts off is repeated so often, and for so long, at most.
const RETRIES: u32 = 10;
const RETRY_TIME: Duration = Duration::from_secs(60);
/// Wait when the API server gives no time.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A client of one API server; clones share its connection and limits.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: Http,
    server: String,
    namespace: String,
    credentials: Credentials,
    agent: HeaderValue,
    places: Semaphore,
    timeout: Duration,
    counts: Counters,
    #[cfg(feature = "websocket")]
    tls: Arc<ClientConfig>,
    #[cfg(feature = "websocket")]
    server_name: Option<String>,
}

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    retries: AtomicU64,
    watches: AtomicU64,
    failures: AtomicU64,
}

/// Counters since the client's start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests sent, watches and repetitions included.
    pub requests: u64,
    /// Repetitions because the API server asked to come later.
    pub retries: u64,
    /// Watches opened.
    pub watches: u64,
    /// Requests that failed without an answer.
    pub failures: u64,
}

/// A request with a body that fits in memory.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Bytes,
    timeout: Option<Duration>,
    retry: bool,
}

impl Call {
    /// A request without body.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        let (content_type, body) = ("application/json", Bytes::new());
        Self { method, path: path.into(), content_type, body, timeout: None, retry: true }
    }

    /// Its method, and its path without the query, for messages.
    fn what(&self) -> String {
        format!("{} {}", self.method, bare(&self.path))
    }

    /// With a JSON body.
    #[must_use]
    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.content_type = content_type;
        self.body = body.into();
        self
    }

    /// With another time limit for each attempt than the client's.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// 429 is the answer, not a request to come later: evictions.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.retry = false;
        self
    }
}

impl Client {
    /// A client for `program`, which the API server's logs show as `ferrovirt/<program>`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Kind::Config`] for certificates, keys or names that cannot be used.
    pub fn new(config: &Config, program: &str) -> Result<Self> {
        let server = config.server.trim_end_matches('/').to_owned();
        let uri: http::Uri = server.parse().map_err(|error| {
            Error::caused(Kind::Config, format!("the API server's address {server} is not a URL"), error)
        })?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(Error::new(
                Kind::Config,
                format!("the API server's address {server} is not an https URL"),
            ));
        }
        let agent = HeaderValue::try_from(format!("ferrovirt/{program}")).map_err(|error| {
            Error::caused(Kind::Config, "the program's name cannot be a user agent", error)
        })?;
        let inner = Inner {
            http: transport::prepare(config)?,
            server,
            namespace: config.namespace.clone(),
            credentials: config.credentials.clone(),
            agent,
            places: Semaphore::new(config.in_flight),
            timeout: config.timeout,
            counts: Counters::default(),
            #[cfg(feature = "websocket")]
            tls: Arc::new(transport::tls(config)?),
            #[cfg(feature = "websocket")]
            server_name: config.server_name.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The namespace of the configuration: the pod's own in a cluster.
    pub fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    /// Counters since the start.
    pub fn counts(&self) -> Counts {
        let counts = &self.inner.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            requests: read(&counts.requests),
            retries: read(&counts.retries),
            watches: read(&counts.watches),
            failures: read(&counts.failures),
        }
    }

    /// Sends a request and gives the text of its answer. 429, and 5xx with `Retry-After`, are repeated up to 10 times
    /// and 60 s; a refused token is renewed once.
    ///
    /// # Errors
    /// By the answer's status, [`Kind::Unreachable`], [`Kind::Timeout`].
    pub async fn call(&self, call: &Call) -> Result<Vec<u8>> {
        let begun = tokio::time::Instant::now();
        let mut renewed = false;
        let mut attempt = 0;
        loop {
            let failed = match self.attempt(call, renewed && attempt == 0).await {
                Ok(text) => return Ok(text),
                Err(failed) => failed,
            };
            if failed.error.kind() == Kind::Unauthorized && !renewed && self.inner.credentials.renewable() {
                renewed = true;
                continue;
            }
            let Some(wait) = failed.wait.filter(|_| call.retry) else { return Err(failed.error) };
            if attempt >= RETRIES || begun.elapsed() + wait > RETRY_TIME {
                return Err(failed.error);
            }
            attempt += 1;
            self.inner.counts.retries.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(path = call.path, ?wait, "the API server asks to come later");
            tokio::time::sleep(wait.mul_f64(1.0 + fastrand::f64() / 10.0)).await;
        }
    }

    async fn attempt(&self, call: &Call, stale: bool) -> std::result::Result<Vec<u8>, Failed> {
        // The semaphore is never closed.
        let _place = self.inner.places.acquire().await;
        let timeout = call.timeout.unwrap_or(self.inner.timeout);
        let answer = async {
            let mut answer = self.answer(call, stale).await?;
            collect(answer.body_mut(), MOST_ANSWER, &call.what()).await.map_err(Failed::from)
        };
        tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| {
            self.inner.counts.failures.fetch_add(1, Ordering::Relaxed);
            let text = format!("{}: no complete answer in {timeout:?}", call.what());
            Err(Error::new(Kind::Timeout, text).into())
        })
    }

    /// Sends a request; a status that is not a success is an error.
    async fn answer(&self, call: &Call, stale: bool) -> std::result::Result<Response<Incoming>, Failed> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.inner.server, call.path))
            .header(USER_AGENT, self.inner.agent.clone())
            .header(ACCEPT, "application/json");
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, call.content_type);
        }
        if let Some(token) = self.inner.credentials.header(stale).await? {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::new(call.body.clone()));
        let request = request.map_err(|error| Error::caused(Kind::Input, call.what(), error))?;
        self.inner.counts.requests.fetch_add(1, Ordering::Relaxed);
        let mut answer = self.inner.http.request(request).await.map_err(|error| {
            self.inner.counts.failures.fetch_add(1, Ordering::Relaxed);
            Error::caused(Kind::Unreachable, format!("{}: cannot reach the API server", call.what()), error)
        })?;
        let code = answer.status();
        if code.is_success() {
            return Ok(answer);
        }
        let header = answer.headers().get(RETRY_AFTER).map(|value| {
            let seconds = value.to_str().ok().and_then(|text| text.parse().ok());
            seconds.map_or(RETRY_PAUSE, Duration::from_secs)
        });
        let body = collect(answer.body_mut(), MOST_REFUSAL, &call.what()).await.unwrap_or_default();
        let error = Error::refused(&call.what(), code, &body);
        let wait = match code {
            StatusCode::TOO_MANY_REQUESTS => Some(header.or(error.retry_after()).unwrap_or(RETRY_PAUSE)),
            code if code.is_server_error() => header,
            _ => None,
        };
        Err(Failed { error, wait })
    }

    /// Opens a stream of lines: a watch. It is not counted among the requests in flight.
    pub(crate) async fn lines(&self, path: String) -> Result<Lines> {
        let call = Call::new(Method::GET, path);
        self.inner.counts.watches.fetch_add(1, Ordering::Relaxed);
        let open = async {
            match self.answer(&call, false).await {
                Err(failed)
                    if failed.error.kind() == Kind::Unauthorized && self.inner.credentials.renewable() =>
                {
                    self.answer(&call, true).await
                }
                answer => answer,
            }
        };
        let timeout = self.inner.timeout;
        match tokio::time::timeout(timeout, open).await {
            Ok(Ok(answer)) => {
                Ok(Lines { what: call.what(), body: answer.into_body(), held: Vec::new(), given: 0 })
            }
            Ok(Err(failed)) => {
                if let Some(wait) = failed.wait {
                    tokio::time::sleep(wait.min(RETRY_TIME)).await;
                }
                Err(failed.error)
            }
            Err(_) => Err(Error::new(Kind::Timeout, format!("{}: no answer in {timeout:?}", call.what()))),
        }
    }
}

/// Parameters of a connection other than the shared one.
#[cfg(feature = "websocket")]
impl Client {
    pub(crate) fn server(&self) -> &str {
        &self.inner.server
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.inner.credentials
    }

    pub(crate) fn agent(&self) -> &HeaderValue {
        &self.inner.agent
    }

    pub(crate) fn tls(&self) -> &Arc<ClientConfig> {
        &self.inner.tls
    }

    pub(crate) fn server_name(&self) -> Option<&str> {
        self.inner.server_name.as_deref()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.inner.server).finish_non_exhaustive()
    }
}

/// A failed attempt, and after how long it may be repeated.
struct Failed {
    error: Error,
    wait: Option<Duration>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, wait: None }
    }
}

/// A path without its query, for messages.
fn bare(path: &str) -> &str {
    path.split('?').next().unwrap_or(path)
}

/// `what`: the method and path of the request.
fn torn(what: &str, error: hyper::Error) -> Error {
    let text = format!("{what}: the connection to the API server broke within an answer");
    Error::caused(Kind::Unreachable, text, error)
}

async fn collect(body: &mut Incoming, most: usize, what: &str) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(mut data) = frame.map_err(|error| torn(what, error))?.into_data() else { continue };
        if text.len() + data.remaining() > most {
            return Err(Error::new(
                Kind::Unreadable,
                format!("{what}: an answer of the API server is longer than the limit of {most} bytes"),
            ));
        }
        text.extend_from_slice(&data);
        data.advance(data.remaining());
    }
    Ok(text)
}

/// Lines of a stream.
pub(crate) struct Lines {
    /// The method and path of the request.
    what: String,
    body: Incoming,
    held: Vec<u8>,
    /// How much of `held` was given as the last line.
    given: usize,
}

impl Lines {
    /// The next line without its end; `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<&[u8]>> {
        self.held.drain(..self.given);
        self.given = 0;
        if self.held.is_empty() && self.held.capacity() > 256 << 10 {
            self.held = Vec::new();
        }
        let mut searched = 0;
        loop {
            if let Some(end) = self.held[searched..].iter().position(|byte| *byte == b'\n') {
                let end = searched + end;
                self.given = end + 1;
                return Ok(Some(&self.held[..end]));
            }
            searched = self.held.len();
            if searched > MOST_LINE {
                let text = format!(
                    "{}: an event of a watch is longer than the limit of {MOST_LINE} bytes",
                    self.what
                );
                return Err(Error::new(Kind::Unreadable, text));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame.map_err(|error| torn(&self.what, error))?.into_data() {
                self.held.extend_from_slice(&data);
            }
        }
    }
}
