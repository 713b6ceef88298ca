//! `http://` and `https://` sources: ranges when the server has them, one stream read again when it has not.
//!
//! The server's first answer (length, ETag, Last-Modified) is compared with every later one; see [`remote`] for the time of
//! retries. Redirects are followed by hand, because only so can secrets stay with the host they are for. Sources: RFC 9110
//! (ranges 14, conditions 13, redirects 15.4), and the reference on the habits of users of the stock importer. Not here:
//! trust ([`tls`]), decompression (never on the wire: it breaks ranges).
//!
//! [`remote`]: super::remote

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE, ETAG,
    HeaderMap, HeaderName, HeaderValue, IF_RANGE, LAST_MODIFIED, LOCATION, PROXY_AUTHORIZATION, RANGE,
    RETRY_AFTER, TRANSFER_ENCODING,
};
use http::{Method, StatusCode};
use reqwest::Response;
use rustls::ClientConfig;
use url::Url;

use super::blocking::Net;
use super::remote::{self, Failure, Lane, Mark, Part, Reach, Remote, RemoteSource, Want};
use super::retry::Cause;
use super::tls::{self, Proxies};
use crate::error::{Error, Kind};

pub use super::remote::Changed;

/// The User-Agent of the stock importer; some servers let only that in.
pub const USER_AGENT: &str = "cdi-golang-importer";

/// Redirects followed for one request.
const REDIRECTS: usize = 10;

/// How long a HEAD may take; the answer is a convenience.
const HEAD_TIME: Duration = Duration::from_secs(20);

/// One header line to send.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Never shown, and not sent to another host after a redirect. Authorization, Cookie and Proxy-Authorization are
    /// treated so regardless of this value.
    pub secret: bool,
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.secret { "…" } else { &self.value };
        f.debug_struct("Header").field("name", &self.name).field("value", &value).finish()
    }
}

/// Address and options.
#[derive(Clone)]
pub struct Options {
    /// `http://` or `https://`; a user and password in it apply when no others are given.
    pub url: String,
    /// Headers sent with every request.
    pub headers: Vec<Header>,
    /// For basic authentication.
    pub user: Option<String>,
    /// For basic authentication.
    pub password: Option<String>,
    /// The User-Agent header.
    pub user_agent: String,
    /// How the server is reached.
    pub reach: Reach,
}

impl Options {
    /// The defaults for `url`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: Vec::new(),
            user: None,
            password: None,
            user_agent: USER_AGENT.to_owned(),
            reach: Reach::default(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = Url::parse(&self.url).map_or_else(|_| "…".to_owned(), |url| redacted(&url));
        f.debug_struct("Options")
            .field("url", &url)
            .field("headers", &self.headers)
            .field("user", &self.user.is_some())
            .field("proxies", &self.reach.proxies)
            .finish_non_exhaustive()
    }
}

/// Opens: HEAD for the length, then a GET of the first byte, which shows whether ranges work. A server that forbids
/// HEAD is asked by GET alone.
///
/// # Errors
/// [`Kind::Usage`] for an invalid address or header, [`Kind::Connect`] when the server cannot be reached in the time of
/// [`Policy::first`] or refuses, [`Kind::Stopped`].
pub fn open(net: &Net, options: Options) -> Result<RemoteSource, Error> {
    let reach = options.reach.clone();
    let http = Http::new(options)?;
    let lane = Lane::new(net, &http)?;
    let head = lane.block_on(async {
        tokio::time::timeout(HEAD_TIME.min(reach.stall), http.head(lane.client())).await.ok().flatten()
    })?;
    let mut part = remote::first(&lane, &http, &reach)?;
    let head_length = head.as_ref().and_then(|head| head.length);
    if head.as_ref().is_some_and(|head| head.no_ranges) && !part.whole {
        // The server declines ranges, yet answered with one: it is not reliable.
        let whole = Want { from: 0, end: None, ranges: false };
        drop(part);
        part = remote::first_of(&lane, &http, &reach, whole)?;
    }
    if let (Some(head), Some(get)) = (head_length, part.total)
        && head != get
    {
        tracing::warn!(source = http.name(), head, get, "HEAD and GET give different lengths; GET's is used");
    }
    let size = part.total.or(head_length);
    if size.is_none() {
        tracing::warn!(
            source = http.name(),
            "the server gives no length: an answer cut short may go unnoticed"
        );
    }
    http.remember(&part.mark);
    Ok(RemoteSource::new(http, net, reach, size, lane, part))
}

/// Result of HEAD.
struct Head {
    length: Option<u64>,
    no_ranges: bool,
}

/// Credentials that are fetched when the server asks for them, and again when they have expired.
pub(crate) trait Authorize: Send + Sync {
    /// Whether they are of a user, rather than anonymous.
    fn has_user(&self) -> bool;

    /// The Authorization header of the next request.
    fn header(&self) -> Option<HeaderValue>;

    /// Gets another header after a request with `sent` was answered by 401 and `challenge`. False when there is none.
    fn renew<'a>(
        &'a self,
        client: &'a reqwest::Client,
        sent: Option<HeaderValue>,
        challenge: HeaderMap,
    ) -> LocalBoxFuture<'a, Result<bool, Failure>>;
}

/// Requests for one address, redirects followed.
pub(crate) struct Http {
    name: String,
    url: Url,
    tls: ClientConfig,
    proxies: Proxies,
    user_agent: String,
    /// Sent to every host.
    headers: HeaderMap,
    /// Sent to the host they are for.
    secrets: HeaderMap,
    /// The same, and asked for more.
    authorize: Option<Arc<dyn Authorize>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Where the last redirect led: parts of one file should come from one mirror.
    pinned: Option<Url>,
    mark: Mark,
    /// The warning about the content's type was given.
    warned: bool,
}

impl Http {
    fn new(options: Options) -> Result<Self, Error> {
        let tls = tls::client_config(&options.reach.trust)?;
        Self::over(options, tls, None)
    }

    /// With TLS as it was set up before, so that the system's certificates are read once.
    pub(crate) fn over(
        options: Options,
        tls: ClientConfig,
        authorize: Option<Arc<dyn Authorize>>,
    ) -> Result<Self, Error> {
        let mut url = Url::parse(options.url.trim())
            .map_err(|e| Error::with(Kind::Usage, "the source's address cannot be parsed", e))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(Error::usage("the source's address is not of the form http[s]://host/path"));
        }
        let (mut user, mut password) = (options.user, options.password);
        if user.is_none() && password.is_none() && (!url.username().is_empty() || url.password().is_some()) {
            user = Some(percent_decoded(url.username()));
            password = url.password().map(percent_decoded);
        }
        // Neither fails on an address that has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        let mut headers = HeaderMap::new();
        let mut secrets = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if user.is_some() || password.is_some() {
            secrets.insert(AUTHORIZATION, basic(&user.unwrap_or_default(), &password.unwrap_or_default())?);
        }
        for header in options.headers {
            let bad = || Error::usage(format!("the header {:?} is not a valid one", header.name));
            let name = HeaderName::from_bytes(header.name.trim().as_bytes()).map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(header.value.trim()).map_err(|_| bad())?;
            if [RANGE, IF_RANGE, ACCEPT_ENCODING].contains(&name) {
                return Err(Error::usage(format!(
                    "the header {name} cannot be given: the importer sets it itself; leave it out"
                )));
            }
            let secret = header.secret || [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(&name);
            value.set_sensitive(secret);
            let map = if secret { &mut secrets } else { &mut headers };
            if name == ACCEPT {
                map.insert(name, value);
            } else {
                map.append(name, value);
            }
        }
        Ok(Self {
            name: redacted(&url),
            url,
            tls,
            proxies: options.reach.proxies,
            user_agent: options.user_agent,
            headers,
            secrets,
            authorize,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends to where the last redirect led, or from the start; follows redirects.
    pub(crate) async fn send(
        &self,
        client: &reqwest::Client,
        method: &Method,
        extra: &HeaderMap,
    ) -> Result<Response, Failure> {
        let pinned = self.state().pinned.clone();
        if let Some(url) = pinned {
            match self.follow(client, method, extra, url).await {
                Ok(response) if response.status().is_success() => return Ok(response),
                // Such targets are often valid for minutes only: ask the first address again.
                Ok(_) => self.state().pinned = None,
                Err(failure) => {
                    self.state().pinned = None;
                    return Err(failure);
                }
            }
        }
        self.follow(client, method, extra, self.url.clone()).await
    }

    async fn follow(
        &self,
        client: &reqwest::Client,
        method: &Method,
        extra: &HeaderMap,
        mut url: Url,
    ) -> Result<Response, Failure> {
        let mut seen = vec![url.clone()];
        let mut renewed = false;
        loop {
            let mut headers = self.headers.clone();
            let authorize = self.authorize.as_ref().filter(|_| keeps_secrets(&self.url, &url));
            let sent = authorize.and_then(|authorize| authorize.header());
            if keeps_secrets(&self.url, &url) {
                headers.extend(self.secrets.clone());
                headers.extend(sent.clone().map(|value| (AUTHORIZATION, value)));
            }
            headers.extend(extra.clone());
            let request = client.request(method.clone(), url.clone()).headers(headers);
            let response = request.send().await.map_err(|e| self.broken(&url, e))?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED
                && !renewed
                && let Some(authorize) = authorize
                && authorize.renew(client, sent, response.headers().clone()).await?
            {
                renewed = true;
                continue;
            }
            let redirected = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(to) = response.headers().get(LOCATION).filter(|_| redirected) else {
                if status.is_success() {
                    self.state().pinned = (url != self.url).then_some(url);
                }
                return Ok(response);
            };
            let next = to.to_str().ok().and_then(|to| url.join(to).ok());
            let next = next.filter(|next| matches!(next.scheme(), "http" | "https") && next.host().is_some());
            let Some(mut next) = next else {
                return Err(self.refused(format!(
                    "{} redirects to an address that is not http or https; name the file's own address",
                    redacted(&url)
                )));
            };
            next.set_fragment(None);
            let path = || seen.iter().chain([&next]).map(redacted).collect::<Vec<_>>().join(" → ");
            if seen.contains(&next) {
                return Err(self.refused(format!(
                    "redirects lead in a circle; name the file's own address: {}",
                    path()
                )));
            }
            if seen.len() > REDIRECTS {
                return Err(self.refused(format!(
                    "more than {REDIRECTS} redirects; name the file's own address: {}",
                    path()
                )));
            }
            if keeps_secrets(&self.url, &url) && !keeps_secrets(&self.url, &next) && !self.secrets.is_empty()
            {
                tracing::info!(
                    from = redacted(&url),
                    to = redacted(&next),
                    "redirected to another origin: credentials are not sent there; use its address if they are meant for it"
                );
            }
            seen.push(next.clone());
            url = next;
        }
    }

    #[expect(clippy::unused_self, reason = "reads as the other ways to fail do")]
    fn refused(&self, what: String) -> Failure {
        Failure::Failed(Cause::Final, Error::new(Kind::Connect, what))
    }

    /// A request that got no answer.
    fn broken(&self, url: &Url, error: reqwest::Error) -> Failure {
        let error = error.without_url();
        let certificate = certificate_problem(&error);
        let plain = not_tls(&error);
        let cause = if certificate || plain || error.is_builder() { Cause::Final } else { Cause::Network };
        let through = self.proxies.through(url.as_str());
        let what = if certificate {
            format!("{} is not trusted; give its CA certificate, or switch verification off", redacted(url))
        } else if plain {
            format!("the server of {} does not speak TLS: is it http://?", redacted(url))
        } else if error.is_timeout() {
            format!("no connection to {}{through} in time", redacted(url))
        } else if error.is_connect() {
            format!("cannot connect to {}{through}", redacted(url))
        } else {
            format!("no answer from {}{through}", redacted(url))
        };
        Failure::Failed(cause, Error::connect(what, error))
    }

    /// An answer that is not the file.
    pub(crate) fn status(&self, response: &Response) -> Failure {
        let status = response.status();
        let cause = match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let after = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok());
                Cause::Busy(after.and_then(|after| after.trim().parse().ok()).map(Duration::from_secs))
            }
            _ if status.is_server_error() => Cause::Server,
            _ => Cause::Final,
        };
        let known = self.secrets.contains_key(AUTHORIZATION)
            || self.authorize.as_ref().is_some_and(|authorize| authorize.has_user());
        let hint = match status {
            StatusCode::UNAUTHORIZED if known => ": it does not accept the user and password",
            StatusCode::UNAUTHORIZED => ": give a user and password, or a header",
            StatusCode::FORBIDDEN if known => ": it forbids reading this with the credentials given",
            StatusCode::FORBIDDEN => ": it forbids reading this",
            StatusCode::NOT_FOUND | StatusCode::GONE => ": the server has no file at that path",
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
                ": the proxy requires credentials; put them into its address, http://user:password@host"
            }
            _ => "",
        };
        let through = match status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED
            | StatusCode::BAD_GATEWAY
            | StatusCode::GATEWAY_TIMEOUT => self.proxies.through(response.url().as_str()),
            _ => String::new(),
        };
        let what = format!("{} answered {status}{through}{hint}", self.name);
        Failure::Failed(cause, Error::new(Kind::Connect, what))
    }

    /// Result of HEAD, if the server supports it.
    async fn head(&self, client: &reqwest::Client) -> Option<Head> {
        let response = match self.send(client, &Method::HEAD, &HeaderMap::new()).await {
            Ok(response) => response,
            Err(failure) => {
                tracing::debug!(source = self.name, ?failure, "HEAD failed; going on with GET");
                return None;
            }
        };
        if response.status() != StatusCode::OK {
            tracing::debug!(source = self.name, status = %response.status(), "the server refuses HEAD; continuing with GET");
            return None;
        }
        let length = number(response.headers(), &CONTENT_LENGTH);
        let accepts = response.headers().get(http::header::ACCEPT_RANGES);
        let no_ranges = accepts.is_some_and(|v| v.as_bytes().trim_ascii().eq_ignore_ascii_case(b"none"));
        Some(Head { length, no_ranges })
    }
}

impl Remote for Http {
    type Client = reqwest::Client;

    fn name(&self) -> &str {
        &self.name
    }

    fn query(&self) -> Option<&str> {
        self.url.query()
    }

    fn remember(&self, mark: &Mark) {
        self.state().mark = mark.clone();
    }

    fn client(&self) -> Result<reqwest::Client, Error> {
        tls::client(&self.tls, &self.proxies, &self.user_agent)
    }

    async fn get(&self, client: &reqwest::Client, want: Want) -> Result<Part, Failure> {
        let mut extra = HeaderMap::new();
        if want.ranges {
            let range = match want.end {
                Some(end) => format!("bytes={}-{}", want.from, end.saturating_sub(1)),
                None => format!("bytes={}-", want.from),
            };
            let mark = self.state().mark.clone();
            if let Some(condition) = mark.strong().map(str::to_owned).or(mark.modified) {
                extra.extend(HeaderValue::from_str(&condition).ok().map(|value| (IF_RANGE, value)));
            }
            extra.extend(HeaderValue::from_str(&range).ok().map(|value| (RANGE, value)));
        }
        let response = self.send(client, &Method::GET, &extra).await?;
        let headers = response.headers();
        let mark = Mark { etag: text(headers, &ETAG), modified: text(headers, &LAST_MODIFIED) };
        let length = number(headers, &CONTENT_LENGTH).filter(|_| !headers.contains_key(TRANSFER_ENCODING));
        match response.status() {
            StatusCode::PARTIAL_CONTENT if want.ranges => {
                let range = headers.get(CONTENT_RANGE).and_then(|v| v.to_str().ok()).and_then(content_range);
                let Some(range) = range else {
                    return Err(Failure::NoRanges(
                        "the server answers 206 without a usable Content-Range".to_owned(),
                    ));
                };
                let asked = want.end.is_none_or(|end| range.end <= end);
                if range.start != want.from || !asked || length.is_some_and(|l| l != range.end - range.start)
                {
                    return Err(Failure::NoRanges(format!(
                        "asked for bytes {} to {:?} the server sent {} to {}",
                        want.from, want.end, range.start, range.end
                    )));
                }
                self.look_at_type(want, headers);
                Ok(Part {
                    start: range.start,
                    end: Some(range.end),
                    total: range.total,
                    whole: false,
                    mark,
                    body: body(response),
                })
            }
            StatusCode::OK => {
                self.look_at_type(want, headers);
                Ok(Part { start: 0, end: length, total: length, whole: true, mark, body: body(response) })
            }
            // An empty file has no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE if want.ranges => {
                Err(Failure::NoRanges("the server answered that the range is outside the file".to_owned()))
            }
            _ => Err(self.status(&response)),
        }
    }
}

impl Http {
    /// A web page instead of an image is a frequent mistake; but a type alone refuses nothing.
    fn look_at_type(&self, want: Want, headers: &HeaderMap) {
        if want.from == 0
            && let Some(kind) = text(headers, &CONTENT_TYPE).filter(|kind| kind.starts_with("text/"))
            && !std::mem::replace(&mut self.state().warned, true)
        {
            tracing::warn!(source = self.name, kind, "the server declares a text type, not an image");
        }
    }
}

fn body(response: Response) -> remote::Body {
    Box::pin(
        response.bytes_stream().map(|chunk| chunk.map_err(|e| Box::new(e.without_url()) as remote::BoxError)),
    )
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(|value| value.trim().to_owned())
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    text(headers, name).and_then(|value| value.parse().ok())
}

/// `bytes 0-99/1000` or `bytes 0-99/*` (RFC 9110, 14.4).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContentRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) total: Option<u64>,
}

pub(crate) fn content_range(text: &str) -> Option<ContentRange> {
    let (unit, rest) = text.trim().split_once(' ')?;
    let (range, total) = rest.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let (start, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let end = last.checked_add(1)?;
    let sane = unit.eq_ignore_ascii_case("bytes") && start < end && total.is_none_or(|total| end <= total);
    sane.then_some(ContentRange { start, end, total })
}

/// Whether secrets for `first` may be sent to `other`: only if both have the same origin (RFC 6454: scheme, host, port).
fn keeps_secrets(first: &Url, other: &Url) -> bool {
    first.origin() == other.origin()
}

/// The address as it may be shown: queries and user names can be credentials.
pub(crate) fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

pub(crate) fn basic(user: &str, password: &str) -> Result<HeaderValue, Error> {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {text}"))
        .map_err(|e| Error::with(Kind::Usage, "the user and password cannot be sent", e))?;
    value.set_sensitive(true);
    Ok(value)
}

/// `%41` is `A`; what does not decode stays as it is.
pub(crate) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = (first == b'%').then(|| after.get(..2)).flatten();
        let decoded =
            digits.and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(decoded.unwrap_or(first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether TLS was refused for what the server is, which waiting does not change.
pub(crate) fn certificate_problem(error: &(dyn std::error::Error + 'static)) -> bool {
    let tls = crate::error::below(error).find_map(|error| error.downcast_ref::<rustls::Error>());
    tls.is_some_and(|tls| {
        matches!(
            tls,
            rustls::Error::InvalidCertificate(_)
                | rustls::Error::UnsupportedNameType
                | rustls::Error::NoCertificatesPresented
                | rustls::Error::PeerIncompatible(_)
        )
    })
}

/// Whether the other end answered a TLS greeting in another protocol.
pub(crate) fn not_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let tls = crate::error::below(error).find_map(|error| error.downcast_ref::<rustls::Error>());
    matches!(
        tls,
        Some(rustls::Error::InvalidMessage(
            rustls::InvalidMessage::InvalidContentType
                | rustls::InvalidMessage::UnknownProtocolVersion
                | rustls::InvalidMessage::MessageTooLarge
        ))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        let range = |start, end, total| Some(ContentRange { start, end, total });
        #[rustfmt::skip]
        let table = [
            ("bytes 0-0/1", range(0, 1, Some(1))),
            ("bytes 5-9/10", range(5, 10, Some(10))),
            ("Bytes 5-9/*", range(5, 10, None)),
            ("bytes 5-10/10", None),
            ("bytes 6-5/10", None),
            ("bytes */10", None),
            ("bytes 0-18446744073709551615/*", None),
            ("bytes 0-9", None),
            ("lines 0-9/10", None),
            ("", None),
        ];
        for (text, want) in table {
            assert_eq!(content_range(text), want, "{text}");
        }
    }

    #[test]
    fn secrets_are_sent_to_their_origin_only() {
        #[rustfmt::skip]
        let table = [
            ("http://a/x", "http://a/y", true),
            ("http://a/x", "https://a/y", false),
            ("http://a/x", "https://a:80/y", false),
            ("https://a/x", "http://a/y", false),
            ("https://a:8443/x", "http://a:8443/x", false),
            ("http://a:8080/x", "https://a/x", false),
            ("http://a/x", "http://a:80/x", true),
            ("http://a/x", "http://a:81/x", false),
            ("http://a/x", "http://b.a/x", false),
            ("http://A/x", "http://a/x", true),
        ];
        for (first, other, want) in table {
            let (f, o) = (Url::parse(first).unwrap(), Url::parse(other).unwrap());
            assert_eq!(keeps_secrets(&f, &o), want, "{first} {other}");
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        let mut options = Options::new("https://me:hunter2@host/a/b.img?X-Signature=hunter2#hunter2");
        options.password = Some("hunter2".to_owned());
        options.headers.push(Header { name: "X-Key".to_owned(), value: "hunter2".to_owned(), secret: true });
        options.reach.proxies.http = Some("http://u:hunter2@proxy:3128".to_owned());
        assert!(!format!("{options:?}").contains("hunter2"));
        let url = Url::parse(&options.url).unwrap();
        assert_eq!(redacted(&url), "https://host/a/b.img");
        assert_eq!(percent_decoded("a%40b%zz%4"), "a@b%zz%4");
    }
}
