//! Routes: which handler answers a method and path; request bodies with a bound.
//!
//! ```
//! use serve::route::{Call, Router, text};
//! use http::{Method, StatusCode};
//!
//! let router = Router::new()
//!     .get("/healthz", |_| async { text(StatusCode::OK, "ok") })
//!     .route(Method::PUT, "/v1/{namespace}/{name}/pause", |mut call: Call| async move {
//!         match call.bytes(64 << 10).await {
//!             Ok(body) => text(StatusCode::OK, format!("{}: {} bytes", call.parameter("name"), body.len())),
//!             Err(refusal) => refusal.answer(),
//!         }
//!     });
//! ```
//!
//! Not here: connections ([`crate::server`]), authentication.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use percent_encoding::percent_decode_str;

use crate::BoxError;
use crate::server::{Busy, Connection, Service};

/// Longest wait for a request body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// An answer.
pub type Answer = Response<Body>;

type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;
type Handler = Arc<dyn Fn(Call) -> Answering + Send + Sync>;
type Refusing = Arc<dyn Fn(&Parts, &Refusal) -> Answer + Send + Sync>;

/// A table of routes, a [`Service`].
#[derive(Clone)]
pub struct Router {
    routes: Vec<Route>,
    refusing: Refusing,
}

#[derive(Clone)]
struct Route {
    method: Method,
    pattern: Vec<Segment>,
    handler: Handler,
}

/// A part of a pattern between slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// `{name}`: one segment that is not empty.
    One(String),
    /// `{name...}`: the rest of the path, which may be empty.
    Rest(String),
}

/// A request on its way to a handler.
pub struct Call {
    /// Method, URI, headers.
    pub head: Parts,
    body: Option<Incoming>,
    connection: Arc<Connection>,
    parameters: Vec<(String, String)>,
    busy: Option<Busy>,
}

/// Why a request does not reach a handler, or its body is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// 404: no route has this path.
    NotFound,
    /// 405: the routes of this path have these methods.
    Method(Vec<Method>),
    /// 413: the body is longer than this.
    TooLarge(usize),
    /// 400: the connection broke within the body.
    Incomplete,
    /// 408: the body did not arrive in time.
    TimedOut,
    /// 400: the request is not the upgrade that the path needs; the reason.
    Upgrade(&'static str),
}

impl Refusal {
    /// The status of its answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Incomplete | Self::Upgrade(_) => StatusCode::BAD_REQUEST,
            Self::TimedOut => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// Its answer as text. A connection with an unread body is closed.
    pub fn answer(&self) -> Answer {
        self.complete(text(self.status(), format!("{self}\n")))
    }

    /// Adds to another answer the headers that this refusal needs.
    pub fn complete(&self, mut answer: Answer) -> Answer {
        match self {
            Self::Method(methods) => {
                let methods = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
                if let Ok(methods) = HeaderValue::try_from(methods) {
                    answer.headers_mut().insert(ALLOW, methods);
                }
            }
            Self::TooLarge(_) | Self::Incomplete | Self::TimedOut => {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Self::NotFound | Self::Upgrade(_) => {}
        }
        answer
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("not found"),
            Self::Method(_) => f.write_str("method not allowed"),
            Self::TooLarge(most) => write!(f, "the request body is longer than {most} bytes"),
            Self::Incomplete => f.write_str("the request body ended early"),
            Self::TimedOut => f.write_str("the request body did not arrive in time"),
            Self::Upgrade(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Refusal {}

/// An answer of text.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    with_type(status, "text/plain; charset=utf-8", text.into())
}

/// An answer of JSON that is already serialised.
pub fn json(status: StatusCode, json: impl Into<Bytes>) -> Answer {
    with_type(status, "application/json", json.into())
}

/// An answer of bytes with their media type.
pub fn with_type(status: StatusCode, media: &'static str, bytes: Bytes) -> Answer {
    let mut answer = Response::new(whole(bytes));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    answer
}

/// A body of these bytes.
pub fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

impl Default for Router {
    fn default() -> Self {
        Self::new()
    }
}

impl Router {
    /// No route: every request is answered with 404.
    pub fn new() -> Self {
        Self { routes: Vec::new(), refusing: Arc::new(|_, refusal| refusal.answer()) }
    }

    /// Adds a route; of several that match, the first one added answers. The pattern is a path whose segments are literal,
    /// `{name}` (one segment) or, last, `{name...}` (the rest). GET routes answer HEAD, too.
    #[must_use]
    pub fn route<F>(
        mut self,
        method: Method,
        pattern: &str,
        handler: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |call| Box::pin(handler(call)));
        self.routes.push(Route { method, pattern: segments(pattern), handler });
        self
    }

    /// [`Router::route`] for GET.
    #[must_use]
    pub fn get<F>(self, pattern: &str, handler: impl Fn(Call) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        self.route(Method::GET, pattern, handler)
    }

    /// Answers requests without a route by this function, in the form of the program's protocol; text otherwise.
    #[must_use]
    pub fn refuse_with(
        mut self,
        refusing: impl Fn(&Parts, &Refusal) -> Answer + Send + Sync + 'static,
    ) -> Self {
        self.refusing = Arc::new(refusing);
        self
    }

    fn find(&self, method: &Method, path: &str) -> Result<(Handler, Vec<(String, String)>), Refusal> {
        let mut methods = Vec::new();
        for route in &self.routes {
            let Some(parameters) = matched(&route.pattern, path) else { continue };
            if route.method == *method || (route.method == Method::GET && *method == Method::HEAD) {
                return Ok((route.handler.clone(), parameters));
            }
            if !methods.contains(&route.method) {
                methods.push(route.method.clone());
            }
        }
        Err(if methods.is_empty() { Refusal::NotFound } else { Refusal::Method(methods) })
    }
}

fn segments(pattern: &str) -> Vec<Segment> {
    let segment = |text: &str| match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        None => Segment::Literal(text.to_owned()),
        Some(name) => match name.strip_suffix("...") {
            Some(name) => Segment::Rest(name.to_owned()),
            None => Segment::One(name.to_owned()),
        },
    };
    pattern.trim_start_matches('/').split('/').map(segment).collect()
}

/// The parameters of a path that matches; percent-encoding is undone in them.
fn matched(pattern: &[Segment], path: &str) -> Option<Vec<(String, String)>> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned());
    let mut rest = Some(path.strip_prefix('/')?);
    let mut parameters = Vec::new();
    for segment in pattern {
        if let Segment::Rest(name) = segment {
            parameters.push((name.clone(), decoded(rest.unwrap_or_default())?));
            return Some(parameters);
        }
        let (part, behind) = match rest?.split_once('/') {
            Some((part, behind)) => (part, Some(behind)),
            None => (rest?, None),
        };
        match segment {
            Segment::Literal(text) if text == part => {}
            Segment::One(name) if !part.is_empty() => parameters.push((name.clone(), decoded(part)?)),
            Segment::Literal(_) | Segment::One(_) | Segment::Rest(_) => return None,
        }
        rest = behind;
    }
    rest.is_none().then_some(parameters)
}

impl Service for Router {
    type Body = Body;

    async fn answer(&self, request: Request<Incoming>, connection: &Arc<Connection>) -> Answer {
        let (head, body) = request.into_parts();
        let (handler, parameters) = match self.find(&head.method, head.uri.path()) {
            Ok(found) => found,
            Err(refusal) => {
                let mut answer = (self.refusing)(&head, &refusal);
                answer = refusal.complete(answer);
                if !body.is_end_stream() && head.version <= Version::HTTP_11 {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                return answer;
            }
        };
        let busy = body.is_end_stream().then(|| connection.busy());
        handler(Call { head, body: Some(body), connection: connection.clone(), parameters, busy }).await
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.iter().map(|route| (&route.method, &route.pattern));
        f.debug_list().entries(routes).finish()
    }
}

impl Call {
    /// The value of a parameter of the route's pattern; empty if the pattern does not have it.
    pub fn parameter(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    /// The first value of a query parameter, percent-encoding and `+` undone.
    pub fn query(&self, name: &str) -> Option<String> {
        let decoded = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8().ok().map(|text| text.into_owned())
        };
        self.head.uri.query()?.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key)? == name).then(|| decoded(value)).flatten()
        })
    }

    /// The connection, and with it the client's certificate.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Protects the connection from eviction until the call is answered. Calls without a body are protected from the start,
    /// others from the end of [`Call::bytes`].
    pub fn set_busy(&mut self) {
        self.busy.get_or_insert_with(|| self.connection.busy());
    }

    /// The whole body, if it is not longer than `most` bytes and arrives within 10 seconds. A second call gives an empty one.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`], without reading on; [`Refusal::Incomplete`]; [`Refusal::TimedOut`].
    pub async fn bytes(&mut self, most: usize) -> Result<Bytes, Refusal> {
        let Some(body) = self.body.take() else { return Ok(Bytes::new()) };
        let read = tokio::time::timeout(BODY_TIME, bounded(body, most)).await;
        let bytes = read.unwrap_or(Err(Refusal::TimedOut))?;
        self.set_busy();
        Ok(bytes)
    }

    /// The body as it arrives, for the handler to read; `None` after it was taken.
    pub fn take_body(&mut self) -> Option<Incoming> {
        self.body.take()
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers may hold secrets.
        f.debug_struct("Call")
            .field("method", &self.head.method)
            .field("path", &self.head.uri.path())
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

/// The whole body, if it is not longer than `most` bytes.
///
/// # Errors
/// [`Refusal::TooLarge`], without reading on; [`Refusal::Incomplete`].
pub async fn bounded(mut body: Incoming, most: usize) -> Result<Bytes, Refusal> {
    let announced = body.size_hint().lower();
    if announced > most as u64 {
        return Err(Refusal::TooLarge(most));
    }
    let mut first = None;
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refusal::Incomplete)?.into_data() else { continue };
        let before = first.as_ref().map_or(bytes.len(), Bytes::len);
        if before + data.len() > most {
            return Err(Refusal::TooLarge(most));
        }
        // Most bodies arrive in one piece, which is not copied.
        match first.take() {
            None if bytes.is_empty() => first = Some(data),
            None => bytes.extend_from_slice(&data),
            Some(piece) => {
                bytes.reserve(piece.len() + data.len());
                bytes.extend_from_slice(&piece);
                bytes.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| bytes.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_segments_and_capture_them() {
        let found = |pattern: &str, path: &str| {
            matched(&segments(pattern), path)
                .map(|found| found.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join("|"))
        };
        for (pattern, path, expected) in [
            ("/", "/", Some("")),
            ("/healthz", "/healthz", Some("")),
            ("/healthz", "/healthz/", None),
            ("/healthz", "/health", None),
            ("/a/{x}/b/{y}", "/a/1/b/2", Some("1|2")),
            ("/a/{x}/b/{y}", "/a/1/b/", None),
            ("/a/{x}/b/{y}", "/a/1/b/2/3", None),
            ("/a/{x}", "/a/%2e%2E%2fb", Some("../b")),
            ("/a/{x}", "/a/%ff", None),
            ("/a/{x...}", "/a/1/2/", Some("1/2/")),
            ("/a/{x...}", "/a/", Some("")),
            ("/a/{x...}", "/a", Some("")),
            ("/a/{x...}", "/b", None),
            ("/a", "*", None),
        ] {
            assert_eq!(found(pattern, path).as_deref(), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_path_with_another_method_is_not_a_missing_path() {
        let router = Router::new().get("/a", |_| async { text(StatusCode::OK, "") }).route(
            Method::PUT,
            "/a",
            |_| async { text(StatusCode::OK, "") },
        );
        let refused = |method, path| router.find(&method, path).err();
        assert_eq!(refused(Method::GET, "/a"), None);
        assert_eq!(refused(Method::HEAD, "/a"), None);
        assert_eq!(refused(Method::GET, "/b"), Some(Refusal::NotFound));
        let refusal = refused(Method::POST, "/a").unwrap();
        assert_eq!(refusal, Refusal::Method(vec![Method::GET, Method::PUT]));
        let answer = refusal.answer();
        assert_eq!((answer.status().as_u16(), &answer.headers()[ALLOW]), (405, &"GET, PUT".parse().unwrap()));
    }
}
