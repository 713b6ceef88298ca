//! A small HTTP server for probes and metrics, over TLS or plain, on a thread of its own.
//!
//! Programs without an async runtime use it, and those that must answer probes while their runtime is busy. Slow and
//! hostile clients cost a slot until the next client needs it ([`crate::server`]).
//!
//! Not here: certificates ([`crate::tls`]), client certificates, servers with more than probes ([`crate::route`]).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use thiserror::Error;
use tokio::sync::watch;

use crate::server::{self, Connection, Limits, Service};
use crate::tls::{Current, Identity, Reloading, TlsError};

/// Connections at once.
const CONNECTIONS: usize = 32;
/// TLS handshakes at once.
const HANDSHAKES: usize = 16;
/// Longest life of a connection without a request.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// A path and what answers a GET of it, as plain text.
pub struct Route {
    /// The whole path.
    pub path: &'static str,
    /// Makes the body of the answer, for each request, on a thread that may block. `Err` is answered with 500.
    pub body: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is answered.
    Granted,
    /// 401: no valid credentials.
    Unknown,
    /// 403: the user may not read this.
    Refused,
    /// 503: the decision cannot be made now.
    Unavailable,
}

/// Decides about a request by its bearer token (RFC 6750, 2.1), on a thread that may block.
pub type Guard = Box<dyn Fn(Option<&str>) -> Verdict + Send + Sync>;

/// The routes and their guard.
struct Site {
    routes: Vec<Route>,
    guard: Option<Guard>,
}

/// Why a server does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be used, or the thread not started.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The certificate cannot be used.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
}

/// Serves `routes` on `address` until the process ends, over TLS if there is an identity; returns the address in use (with
/// the port that the kernel chose for port 0). `[::]` means all addresses, also where the kernel has no IPv6. A guard decides
/// about every request of a route first.
///
/// # Errors
/// When the address is in use, or certificate or thread cannot be made.
pub fn serve(
    address: SocketAddr,
    identity: Option<&Identity>,
    guard: Option<Guard>,
    routes: Vec<Route>,
) -> Result<SocketAddr, ServeError> {
    let tls = match identity {
        None => None,
        Some(identity) => Some(Reloading::new(identity.clone(), None, false)? as Arc<dyn Current>),
    };
    let failed = |e| ServeError::Listen(address, e);
    let listener = server::listen(address).map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let site = Arc::new(Site { routes, guard });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    thread::Builder::new()
        .name("http".into())
        .spawn(move || {
            if let Err(error) = runtime.block_on(accept(listener, tls, site)) {
                tracing::warn!(%error, %local, "the HTTP server has ended");
            }
        })
        .map_err(failed)?;
    Ok(local)
}

async fn accept(
    listener: std::net::TcpListener,
    tls: Option<Arc<dyn Current>>,
    site: Arc<Site>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let limits = Limits {
        connections: CONNECTIONS,
        handshakes: HANDSHAKES,
        idle_time: IDLE_TIME,
        buffer: 16 << 10,
        ..Limits::default()
    };
    // Served until the process ends.
    let (_open, closing) = watch::channel(false);
    server::serve(listener, tls, limits, Arc::new(Probes(site)), closing).await;
    Ok(())
}

/// A site as a service.
struct Probes(Arc<Site>);

impl Service for Probes {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Incoming>, connection: &Arc<Connection>) -> Response<Self::Body> {
        let _busy = connection.busy();
        respond(self.0.clone(), &request).await
    }
}

async fn respond(site: Arc<Site>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let route = site.routes.iter().position(|route| route.path == request.uri().path());
    let (status, body) = match route {
        None => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        Some(_) if request.method() != Method::GET && request.method() != Method::HEAD => {
            (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned())
        }
        Some(index) => {
            let token = bearer(request).map(str::to_owned);
            let made = tokio::task::spawn_blocking(move || answer(&site, index, token.as_deref()));
            made.await.unwrap_or_else(|_| (StatusCode::INTERNAL_SERVER_ERROR, "no answer\n".to_owned()))
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(crate::metrics::CONTENT_TYPE));
    response
}

/// The token that a request brings.
fn bearer(request: &Request<Incoming>) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The answer of a route to the bearer of this token.
fn answer(site: &Site, index: usize, token: Option<&str>) -> (StatusCode, String) {
    let verdict = site.guard.as_ref().map_or(Verdict::Granted, |guard| guard(token));
    match verdict {
        Verdict::Granted => match site.routes.get(index).map(|route| (route.body)()) {
            Some(Ok(body)) => (StatusCode::OK, body),
            Some(Err(why)) => (StatusCode::INTERNAL_SERVER_ERROR, why),
            None => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        },
        Verdict::Unknown => (StatusCode::UNAUTHORIZED, "a bearer token is required\n".to_owned()),
        Verdict::Refused => {
            (StatusCode::FORBIDDEN, "forbidden: the token's user may not read this\n".to_owned())
        }
        Verdict::Unavailable => {
            (StatusCode::SERVICE_UNAVAILABLE, "the token cannot be checked now; retry\n".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    fn get(address: SocketAddr, path: &str) -> String {
        get_with(address, path, "")
    }

    fn get_with(address: SocketAddr, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_plain_server_answers_and_reports_failures() {
        let routes = vec![
            Route { path: "/well", body: Box::new(|| Ok("fine".to_owned())) },
            Route { path: "/ill", body: Box::new(|| Err("why".to_owned())) },
        ];
        let address = serve((Ipv4Addr::LOCALHOST, 0).into(), None, None, routes).unwrap();
        let well = get(address, "/well");
        assert!(well.starts_with("HTTP/1.1 200") && well.ends_with("fine"), "{well}");
        let ill = get(address, "/ill");
        assert!(ill.starts_with("HTTP/1.1 500") && ill.ends_with("why"), "{ill}");
        assert!(get(address, "/other").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn a_guard_judges_by_the_bearer_token() {
        let guard: Guard = Box::new(|token| match token {
            Some("good") => Verdict::Granted,
            Some("other") => Verdict::Refused,
            Some(_) => Verdict::Unavailable,
            None => Verdict::Unknown,
        });
        let routes = vec![Route { path: "/x", body: Box::new(|| Ok("fine".to_owned())) }];
        let address = serve((Ipv4Addr::LOCALHOST, 0).into(), None, Some(guard), routes).unwrap();
        for (headers, status) in [
            ("Authorization: Bearer good\r\n", "200"),
            ("authorization: bearer  good\r\n", "200"),
            ("Authorization: Bearer other\r\n", "403"),
            ("Authorization: Bearer late\r\n", "503"),
            ("Authorization: Basic good\r\n", "401"),
            ("", "401"),
        ] {
            let answer = get_with(address, "/x", headers);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{headers:?}: {answer}");
            assert_eq!(answer.ends_with("fine"), status == "200");
        }
    }
}
