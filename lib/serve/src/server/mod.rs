//! One HTTP server for all programs: connections and their limits, over TLS or plain.
//!
//! ```text
//!  accept ─► handshake: few at once, 5 s, the oldest is evicted ─► connection: idle ◄─► busy ─► graceful end
//!                                                                     └ evicted when the limit is reached
//! ```
//!
//! Any client may open connections and send nothing, part of a head, or an unwanted body. Each costs a slot, until
//! the next connection evicts it; clients that finish their requests are served. A connection is idle until its service
//! calls [`Connection::busy`], which it should do once it knows the client or has the whole request.
//!
//! A request with `Transfer-Encoding` is answered with `Connection: close`: hyper reads it by its chunks and hides a
//! `Content-Length` next to them, which RFC 9112 (6.1) allows if the connection is closed then. So bytes behind such a
//! request, which a proxy might have seen as part of it, are never taken for another request. A coding other than
//! `chunked` gets 501: hyper reads such a body by its chunks and would pass compressed bytes on as content.
//!
//! Not here: routes ([`crate::route`]), certificates ([`crate::tls`]).

mod connection;
mod informational;
mod intake;
mod limit;
mod listen;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::BoxError;
use crate::tls::Current;

pub use connection::{Client, Connection};
pub use informational::Queue as Informational;
pub use limit::{Busy, Limit, Slot};
pub use listen::{listen, tune};

use informational::Informational as WithInformational;
use intake::{Intake, Shared};

/// The wait after the system had no descriptor for a connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once, after their handshakes.
    pub connections: usize,
    /// TLS handshakes at once.
    pub handshakes: usize,
    /// Longest TLS handshake.
    pub handshake_time: Duration,
    /// Bytes of a request's head (431 beyond).
    pub head: usize,
    /// Longest wait for the head of a request, and so longest time without a request.
    pub idle_time: Duration,
    /// Bytes of a body that are read at once; at least 8 KiB.
    pub buffer: usize,
    /// Bytes taken from a socket at once after [`Connection::read_ahead`].
    pub read_ahead: usize,
    /// How long, after the stop, clients may still use the connections that they keep, and open new ones; each answer over
    /// HTTP/1 then ends its connection. A client that sends a request over an idle connection just as the server closes it
    /// gets no answer, and may not repeat it (RFC 9112, 9.3.1). Zero: idle connections end at once.
    pub withdrawal: Duration,
    /// How long requests that run at the end are waited for.
    pub closing: Duration,
}

impl Default for Limits {
    /// 256 connections, 64 handshakes of 5 s, heads of 16 KiB, 30 s without a request, bodies by 32 KiB, no withdrawal, 10 s
    /// to end.
    fn default() -> Self {
        Self {
            connections: 256,
            handshakes: 64,
            handshake_time: Duration::from_secs(5),
            head: 16 << 10,
            idle_time: Duration::from_secs(30),
            buffer: 32 << 10,
            read_ahead: 64 << 10,
            withdrawal: Duration::ZERO,
            closing: Duration::from_secs(10),
        }
    }
}

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// Body of an answer.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;

    /// The answer to a request.
    fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Answers requests on `listener` until `closing` is true or its sender is gone, and for [`Limits::withdrawal`] after that;
/// then running requests end within [`Limits::closing`]. Over TLS if `tls` is given: each connection gets the configuration
/// of its time, and none is accepted while there is no configuration.
pub async fn serve<S: Service>(
    listener: TcpListener,
    tls: Option<Arc<dyn Current>>,
    limits: Limits,
    service: Arc<S>,
    closing: watch::Receiver<bool>,
) {
    let (handshakes, connections) = (Limit::new(limits.handshakes), Limit::new(limits.connections));
    let mut over = closing.clone();
    let mut over = pin!(withdrawn(&mut over, limits.withdrawal));
    loop {
        let accepted = async {
            let accepted = listener.accept().await;
            // A handshake, or the connection itself where there is none.
            let first = if tls.is_some() { &handshakes } else { &connections };
            (accepted, first.enter().await)
        };
        let (accepted, slot) = tokio::select! {
            () = &mut over => break,
            accepted = accepted => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                drop(slot);
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        tune(&stream);
        let (service, connections, closing) = (service.clone(), connections.clone(), closing.clone());
        match &tls {
            None => {
                tokio::spawn(plain(stream, peer, slot, limits, service, closing));
            }
            Some(tls) => {
                let Some(config) = tls.current() else { continue };
                let acceptor = TlsAcceptor::from(config);
                tokio::spawn(async move {
                    let shaken = handshake(stream, acceptor, &slot, limits, &connections).await;
                    drop(slot);
                    if let Some((stream, shared, slot)) = shaken {
                        encrypted(stream, peer, (slot, shared), limits, service, closing).await;
                    }
                });
            }
        }
    }
    drop(listener);
    drop(tokio::time::timeout(limits.closing, connections.empty()).await);
}

/// A connection after its handshake, and its slot.
type Shaken = (tokio_rustls::server::TlsStream<Intake<TcpStream>>, Arc<Shared>, Arc<Slot>);

/// Has a TLS handshake and waits for a connection's slot; `None` if it fails, is evicted or takes too long.
async fn handshake(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    slot: &Slot,
    limits: Limits,
    connections: &Arc<Limit>,
) -> Option<Shaken> {
    let shared = Arc::new(Shared::default());
    let stream = Intake::new(stream, limits.read_ahead, shared.clone());
    let shaken = tokio::select! {
        () = slot.evicted() => Err("evicted by newer connections".to_owned()),
        shaken = tokio::time::timeout(limits.handshake_time, async {
            let stream = acceptor.accept(stream).await?;
            Ok::<_, io::Error>((stream, connections.enter().await))
        }) => match shaken {
            Ok(Ok(shaken)) => Ok(shaken),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("timeout".to_owned()),
        }
    };
    match shaken {
        Ok((stream, slot)) => Some((stream, shared, slot)),
        Err(reason) => {
            tracing::debug!(reason, "a TLS handshake failed");
            None
        }
    }
}

async fn plain<S: Service>(
    stream: TcpStream,
    peer: SocketAddr,
    slot: Arc<Slot>,
    limits: Limits,
    service: Arc<S>,
    closing: watch::Receiver<bool>,
) {
    let shared = Arc::new(Shared::default());
    let stream = Intake::new(stream, limits.read_ahead, shared.clone());
    let (stream, queue) = WithInformational::new(SlotStream { stream, _slot: slot.clone() });
    let connection = Connection::new(peer, None, slot.clone(), shared, Some(queue));
    until_evicted(&slot, http1(stream, connection, limits, service, closing)).await;
}

async fn encrypted<S: Service>(
    stream: tokio_rustls::server::TlsStream<Intake<TcpStream>>,
    peer: SocketAddr,
    (slot, shared): (Arc<Slot>, Arc<Shared>),
    limits: Limits,
    service: Arc<S>,
    closing: watch::Receiver<bool>,
) {
    let session = stream.get_ref().1;
    let client = session.peer_certificates().and_then(|chain| chain.first()).map(Client::new);
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let stream = SlotStream { stream, _slot: slot.clone() };
    if is_http2 {
        let connection = Connection::new(peer, client, slot.clone(), shared, None);
        until_evicted(&slot, http2(stream, connection, limits, service, closing)).await;
    } else {
        let (stream, queue) = WithInformational::new(stream);
        let connection = Connection::new(peer, client, slot.clone(), shared, Some(queue));
        until_evicted(&slot, http1(stream, connection, limits, service, closing)).await;
    }
}

async fn until_evicted(slot: &Slot, served: impl Future<Output = hyper::Result<()>>) {
    tokio::select! {
        () = slot.evicted() => tracing::debug!("an idle connection was evicted"),
        ended = served => if let Err(error) = ended {
            tracing::debug!(error = error::chain(&error), "a connection ended early");
        }
    }
}

async fn http1<S: Service>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: Arc<Connection>,
    limits: Limits,
    service: Arc<S>,
    mut closing: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_time)
        .max_header_size(limits.head)
        .max_buf_size(limits.buffer.max(limits.head))
        .serve_connection(TokioIo::new(stream), answering(connection, service, Some(closing.clone())))
        .with_upgrades();
    let mut served = pin!(served);
    tokio::select! {
        ended = served.as_mut() => return ended,
        () = withdrawn(&mut closing, limits.withdrawal) => served.as_mut().graceful_shutdown(),
    }
    served.await
}

#[cfg(feature = "http2")]
async fn http2<S: Service>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: Arc<Connection>,
    limits: Limits,
    service: Arc<S>,
    mut closing: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let head = u32::try_from(limits.head).unwrap_or(u32::MAX);
    let buffer = u32::try_from(limits.buffer).unwrap_or(u32::MAX).max(64 << 10);
    let served = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(head)
        .max_concurrent_streams(100)
        .initial_stream_window_size(buffer)
        .initial_connection_window_size(buffer.saturating_mul(4))
        .max_send_buf_size(limits.buffer)
        .keep_alive_interval(limits.idle_time)
        .keep_alive_timeout(limits.idle_time)
        .serve_connection(TokioIo::new(stream), answering(connection, service, None));
    let mut served = pin!(served);
    tokio::select! {
        ended = served.as_mut() => return ended,
        () = withdrawn(&mut closing, limits.withdrawal) => served.as_mut().graceful_shutdown(),
    }
    served.await
}

/// Without the feature, no server offers HTTP/2 and no client may choose it.
#[cfg(not(feature = "http2"))]
async fn http2<S: Service>(
    _: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    _: Arc<Connection>,
    _: Limits,
    _: Arc<S>,
    _: watch::Receiver<bool>,
) -> hyper::Result<()> {
    tracing::warn!("a client chose HTTP/2, which this program does not support");
    Ok(())
}

/// Requests of a connection. Over HTTP/1, `closing` is whether an answer ends the connection.
fn answering<S: Service>(
    connection: Arc<Connection>,
    service: Arc<S>,
    closing: Option<watch::Receiver<bool>>,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Either<Full<Bytes>, S::Body>>,
    Error = Infallible,
    Future: Send + 'static,
> + Clone
+ Send
+ 'static {
    service_fn(move |request: Request<Incoming>| {
        let (connection, service, closing) = (connection.clone(), service.clone(), closing.clone());
        async move {
            let is_chunked =
                request.version() <= Version::HTTP_11 && request.headers().contains_key(TRANSFER_ENCODING);
            connection.begin(!request.body().is_end_stream());
            let mut answer = match is_chunked && !is_chunked_only(request.headers()) {
                true => not_implemented().map(Either::Left),
                false => service.answer(request, &connection).await.map(Either::Right),
            };
            connection.end();
            let is_last = closing.is_some_and(|closing| *closing.borrow() || closing.has_changed().is_err());
            if is_chunked || (is_last && answer.status() != StatusCode::SWITCHING_PROTOCOLS) {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    })
}

/// Whether a body is coded as `chunked` and in no other way.
fn is_chunked_only(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(TRANSFER_ENCODING).iter();
    values.next().is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
        && values.next().is_none()
}

/// The answer to a request with a transfer coding of another name (RFC 9112, 6.1).
fn not_implemented() -> Response<Full<Bytes>> {
    let text = "the only transfer coding that is supported is chunked; compress a file before it is sent\n";
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = StatusCode::NOT_IMPLEMENTED;
    answer
}

/// The answer to an unknown client with an unwanted body: the rest of the body is not read, and the connection ends.
pub fn reject<B>(body: Incoming, mut answer: Response<B>) -> Response<B> {
    if !body.is_end_stream() {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    drop(body);
    answer
}

/// The answer to a known client with an unwanted body: it is read for at most `time`, so that a client which sends
/// everything before it reads gets the answer, and then the connection ends.
pub fn drain<B>(body: Incoming, time: Duration, mut answer: Response<B>) -> Response<B> {
    if !body.is_end_stream() {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        tokio::spawn(tokio::time::timeout(time, read_to_end(body)));
    }
    answer
}

/// Reads a body to its end and throws it away.
pub async fn read_to_end(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// Waits until the server is to close and clients had `time` to leave.
async fn withdrawn(closing: &mut watch::Receiver<bool>, time: Duration) {
    drop(closing.wait_for(|closing| *closing).await);
    tokio::time::sleep(time).await;
}

/// A stream with the slot of its connection, also after an upgrade.
struct SlotStream<S> {
    stream: S,
    _slot: Arc<Slot>,
}

impl<S: AsyncRead + Unpin> AsyncRead for SlotStream<S> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SlotStream<S> {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
