//! A small HTTP server, over TLS or plain: metrics and probes, for pollers.
//!
//! It runs on a thread of its own, holds at most [`CONNECTIONS`] connections and gives each [`PATIENCE`]; a client
//! that is slow or hostile costs one of these places and nothing else.
//!
//! Not here: certificates ([`crate::tls`]), client certificates.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::tls::{Identity, TlsError};

/// Connections at once; more wait in the kernel's backlog.
pub const CONNECTIONS: usize = 16;
/// Bytes of a connection that are held at once: a whole head.
const BUFFER: usize = 64 << 10;
/// Longest life of a connection without a request, and of a handshake.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A path and what answers a GET of it, as plain text.
pub struct Route {
    /// The whole path.
    pub path: &'static str,
    /// The body of the answer, made anew for each request on a thread where waiting is allowed. `Err` is answered with
    /// 500.
    pub body: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is answered.
    Granted,
    /// 401: nobody knows who asks.
    Unknown,
    /// 403: he may not.
    Refused,
    /// 503: it cannot be found out now.
    Unavailable,
}

/// Judges a request by its bearer token (RFC 6750, 2.1), on a thread where waiting is allowed.
pub type Guard = Box<dyn Fn(Option<&str>) -> Verdict + Send + Sync>;

/// What is served, and to whom.
struct Site {
    routes: Vec<Route>,
    guard: Option<Guard>,
}

/// Why a server does not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on, or the thread not started.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// There is no certificate to serve with.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
}

/// Serves `routes` on `address` until the process ends, over TLS if there is an identity; gives the address in use
/// (another than asked for when the port was 0). `[::]` means all addresses, also where the kernel has no IPv6. With a
/// guard, each request of one of the paths is judged first.
///
/// # Errors
/// When the address is taken, or certificate or thread cannot be made.
pub fn serve(
    address: SocketAddr,
    identity: Option<&Identity>,
    guard: Option<Guard>,
    routes: Vec<Route>,
) -> Result<SocketAddr, ServeError> {
    let acceptor = match identity {
        None => None,
        Some(identity) => Some(TlsAcceptor::from(Arc::new(identity.config()?))),
    };
    let failed = |e| ServeError::Listen(address, e);
    let mut bound = TcpListener::bind(address);
    if bound.is_err() && address.ip() == Ipv6Addr::UNSPECIFIED {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()));
    }
    let listener = bound.map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let site = Arc::new(Site { routes, guard });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    thread::Builder::new()
        .name("http".into())
        .spawn(move || {
            if let Err(error) = runtime.block_on(accept(listener, acceptor, site)) {
                tracing::warn!(%error, %local, "nothing is served any more");
            }
        })
        .map_err(failed)?;
    Ok(local)
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, site: Arc<Site>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, say: the next one may succeed.
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, site) = (acceptor.clone(), site.clone());
        tokio::spawn(async move {
            let _place = place;
            match acceptor {
                None => converse(stream, site).await,
                Some(acceptor) => {
                    if let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
                        converse(stream, site).await;
                    }
                }
            }
        });
    }
}

/// Answers what comes over one connection.
async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, site: Arc<Site>) {
    let answer = service_fn(move |request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(respond(site, &request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn respond(site: Arc<Site>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, body) = match site.routes.iter().position(|route| route.path == request.uri().path()) {
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
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}

/// The token that a request brings.
fn bearer(request: &Request<Incoming>) -> Option<&str> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The answer of a route to who brings this token.
fn answer(site: &Site, index: usize, token: Option<&str>) -> (StatusCode, String) {
    let verdict = site.guard.as_ref().map_or(Verdict::Granted, |guard| guard(token));
    match verdict {
        Verdict::Granted => match site.routes.get(index).map(|route| (route.body)()) {
            Some(Ok(body)) => (StatusCode::OK, body),
            Some(Err(why)) => (StatusCode::INTERNAL_SERVER_ERROR, why),
            None => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        },
        Verdict::Unknown => (StatusCode::UNAUTHORIZED, "a bearer token is needed\n".to_owned()),
        Verdict::Refused => (StatusCode::FORBIDDEN, "this is not for you\n".to_owned()),
        Verdict::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "ask again later\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

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
    fn a_plain_server_answers_and_tells_failures() {
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
