//! A small HTTPS server with a certificate it signs itself: metrics and a probe, for pollers that do not verify.
//!
//! It runs on a thread of its own, holds at most [`CONNECTIONS`] connections and gives each [`PATIENCE`]; a client
//! that is slow or hostile costs one of these places and nothing else.
//!
//! Not here: client certificates, certificates from files.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// Connections at once; more wait in the kernel's backlog.
pub const CONNECTIONS: usize = 16;
/// Longest life of a connection without a request, and of a handshake.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A path and what answers a GET of it, as plain text.
pub struct Route {
    /// The whole path.
    pub path: &'static str,
    /// The body of the answer, made anew for each request.
    pub body: Box<dyn Fn() -> String + Send + Sync>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why a server does not run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on, or the thread not started.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The certificate cannot be made.
    #[error("cannot make a certificate")]
    Certificate(#[source] rcgen::Error),
    /// TLS refuses its configuration.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
}

/// Serves `routes` on `address` until the process ends; gives the address in use (another than asked for when the
/// port was 0).
///
/// # Errors
/// When the address is taken, or certificate or thread cannot be made.
pub fn serve(address: SocketAddr, routes: Vec<Route>) -> Result<SocketAddr, ServeError> {
    let acceptor = TlsAcceptor::from(Arc::new(self_signed()?));
    let failed = |e| ServeError::Listen(address, e);
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    thread::Builder::new()
        .name("https".into())
        .spawn(move || {
            if let Err(error) = runtime.block_on(accept(listener, acceptor, routes.into())) {
                tracing::warn!(%error, "metrics are no longer served");
            }
        })
        .map_err(failed)?;
    Ok(local)
}

/// TLS 1.2 and 1.3 with a fresh self-signed certificate.
fn self_signed() -> Result<ServerConfig, ServeError> {
    let pair =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).map_err(ServeError::Certificate)?;
    let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())
        .map_err(|e| ServeError::Tls(rustls::Error::General(e.to_owned())))?;
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(ServeError::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![pair.cert.der().clone()], key)
        .map_err(ServeError::Tls)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, routes: Arc<[Route]>) -> io::Result<()> {
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
        let (acceptor, routes) = (acceptor.clone(), routes.clone());
        tokio::spawn(async move {
            let _place = place;
            if let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
                let answer = service_fn(move |request| {
                    let routes = routes.clone();
                    async move { Ok::<_, Infallible>(respond(&routes, &request)) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(PATIENCE)
                    .serve_connection(TokioIo::new(stream), answer)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended early");
                }
            }
        });
    }
}

fn respond(routes: &[Route], request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, body) = match routes.iter().find(|route| route.path == request.uri().path()) {
        None => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        Some(_) if request.method() != Method::GET && request.method() != Method::HEAD => {
            (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned())
        }
        Some(route) => (StatusCode::OK, (route.body)()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}
