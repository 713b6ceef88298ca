//! Connections over TLS and their limits, for both programs: handshakes, heads, how many at once, how they end. Not here:
//! what a request leads to.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::interim::{Interim, Queue};

/// How long a handshake may take, and a request's head.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long the rest of a body is read that nobody wants, so that the client comes to read the answer.
pub(crate) const DRAIN: Duration = Duration::from_secs(30);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once; more wait in the kernel's backlog.
    pub(crate) connections: u32,
    /// Bytes of a head at most, and of a body that are read at once.
    pub(crate) read_at_once: usize,
    /// Bytes that are taken out of a socket at once, before TLS: by itself that asks for no more than a record.
    pub(crate) taken_at_once: usize,
    /// How long requests that run when everything is to end are waited for.
    pub(crate) closing: Duration,
}

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The common name in the client's certificate, which an authority of ours has signed.
    pub(crate) name: Option<String>,
    /// A request came over it before.
    used: AtomicBool,
    interim: Queue,
}

impl Connection {
    /// Where interim answers to this request go: to be asked once for each request. They are for the first one only, when
    /// no answer is on its way yet.
    pub(crate) fn interim(&self) -> Option<&Queue> {
        let first = !self.used.swap(true, Ordering::Relaxed);
        first.then_some(&self.interim)
    }
}

/// What answers requests.
pub(crate) trait Answering: Send + Sync + 'static {
    /// Body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;

    /// The answer to a request.
    fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Listens; `[::]` means all addresses, also where the kernel has no IPv6.
///
/// # Errors
/// When the address is taken.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    }
}

/// Answers until `closing` says so; then no request is begun, and those there are end.
pub(crate) async fn serve<A: Answering>(
    answering: Arc<A>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(limits.connections as usize));
    loop {
        let accepted = tokio::select! {
            _ = closing.wait_for(|closing| *closing) => break,
            accepted = async {
                let place = places.clone().acquire_owned().await;
                (place, listener.accept().await)
            } => accepted,
        };
        let (Ok(place), Ok((stream, _))) = accepted else {
            // Out of descriptors, say: the next one may succeed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (answering, acceptor, closing) = (answering.clone(), acceptor.clone(), closing.clone());
        tokio::spawn(async move {
            let _place = place;
            // Answers are small and awaited.
            let _unneeded = stream.set_nodelay(true);
            keep_alive(&stream);
            let stream = BufReader::with_capacity(limits.taken_at_once, stream);
            match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let certificates = stream.get_ref().1.peer_certificates();
                    let certificate = certificates.and_then(|chain| chain.first());
                    let name = certificate.and_then(serve::client::common_name);
                    converse(answering, stream, name, limits.read_at_once, closing).await;
                }
                Ok(Err(error)) => tracing::debug!(%error, "a handshake failed"),
                Err(_) => tracing::debug!("a handshake took too long"),
            }
        });
    }
    drop(listener);
    // All places are free when all connections have ended.
    drop(tokio::time::timeout(limits.closing, places.acquire_many(limits.connections)).await);
}

async fn converse<A: Answering>(
    answering: Arc<A>,
    stream: impl AsyncRead + AsyncWrite + Unpin,
    name: Option<String>,
    read_at_once: usize,
    mut closing: watch::Receiver<bool>,
) {
    let (stream, interim) = Interim::new(stream);
    let connection = Arc::new(Connection { name, used: AtomicBool::new(false), interim });
    let respond = service_fn(move |request| {
        let (answering, connection) = (answering.clone(), connection.clone());
        async move { Ok::<_, Infallible>(answering.answer(request, &connection).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(read_at_once)
        .serve_connection(TokioIo::new(stream), respond);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = async { drop(closing.wait_for(|closing| *closing).await) } => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Has the kernel find out within two minutes that the other end is gone, also while it is only waited for.
pub(crate) fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    // A socket that cannot is a socket all the same.
    let _unneeded = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, Duration::from_secs(60)))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15)))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, 4));
}

/// Whether a request has a length and chunks at once: whoever stands before us may see another end of it.
pub(crate) fn is_ambiguous(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH)
}

/// Answers while the rest of the request still comes; it is read for a while and thrown away, since a client that is
/// cut off while it sends may not see the answer.
pub(crate) fn leave<B>(body: Incoming, mut answer: Response<B>) -> Response<B> {
    if !body.is_end_stream() {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        throw_away(body);
    }
    answer
}

/// Reads a body for a while that nobody wants.
pub(crate) fn throw_away(mut body: Incoming) {
    tokio::spawn(async move { tokio::time::timeout(DRAIN, drain(&mut body)).await });
}

/// Reads a body to its end.
pub(crate) async fn drain(body: &mut Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}
