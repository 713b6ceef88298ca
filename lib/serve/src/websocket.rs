//! WebSocket (RFC 6455) on the server: the handshake, subprotocols, and bytes or datagrams in binary messages. Not here: what
//! the bytes are.

use std::io;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::datagrams;
use crate::route::{Answer, Call, Refusal, whole};
use crate::server::Busy;
use crate::upgrade::{self, Stream, has_token};

/// Longest message that is taken.
const MESSAGE_MAX: usize = 4 << 20;
/// Bytes that are sent in one message.
const PIECE: usize = 32 << 10;
/// Content of pings: upstream's.
const PING: &[u8] = b"keep alive";
/// Longest reason of a closure in bytes (RFC 6455, 5.5).
const REASON_MAX: usize = 123;
/// How long a client has to take the closure and confirm it.
const CLOSING: Duration = Duration::from_secs(2);

/// A WebSocket on the server's side.
pub type Socket = WebSocketStream<Stream>;

/// A WebSocket that exists once the answer is sent.
#[derive(Debug)]
pub struct Pending {
    stream: upgrade::Pending,
    /// The subprotocol that was agreed on.
    pub protocol: Option<&'static str>,
}

impl Pending {
    /// Waits until the answer is sent and the connection is a WebSocket. The guard keeps it from being evicted.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn socket(self) -> hyper::Result<(Socket, Busy)> {
        let (stream, busy) = self.stream.stream().await?;
        let config =
            WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
        Ok((WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await, busy))
    }
}

/// Whether a request asks for a WebSocket.
pub fn is_asked_for(call: &Call) -> bool {
    has_token(&call.head.headers, UPGRADE.as_str(), "websocket")
}

/// Accepts a WebSocket. Of the subprotocols that the client offers, the first of `protocols` is chosen; a client that offers
/// none gets none, and one that offers only others is refused. The answer (101) must be returned by the handler; the socket
/// exists after that, so it is to be awaited by another task.
///
/// # Errors
/// [`Refusal::Upgrade`] when the request is no WebSocket handshake of version 13, or no subprotocol is known.
pub fn accept(call: &mut Call, protocols: &[&'static str]) -> Result<(Answer, Pending), Refusal> {
    let headers = &call.head.headers;
    let version = headers.get(SEC_WEBSOCKET_VERSION).map(HeaderValue::as_bytes);
    if call.head.method != Method::GET
        || !is_asked_for(call)
        || !has_token(headers, CONNECTION.as_str(), "upgrade")
        || version != Some(b"13")
    {
        return Err(Refusal::Upgrade("this path needs a WebSocket request of version 13"));
    }
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Refusal::Upgrade("the request has no Sec-WebSocket-Key"));
    };
    let accepted = derive_accept_key(key.as_bytes());
    let known = |name: &&&str| has_token(headers, SEC_WEBSOCKET_PROTOCOL.as_str(), name);
    let protocol = protocols.iter().find(known).copied();
    if protocol.is_none() && headers.contains_key(SEC_WEBSOCKET_PROTOCOL) {
        return Err(Refusal::Upgrade("none of the offered WebSocket subprotocols is supported"));
    }
    let stream = upgrade::pending(call)?;
    let mut answer = Response::new(whole(""));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accepted) = HeaderValue::try_from(accepted) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    }
    if let Some(protocol) = protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok((answer, Pending { stream, protocol }))
}

/// What a WebSocket's messages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Messages {
    /// Pieces of a stream, cut anywhere.
    Bytes,
    /// Each is a datagram; the stream has them with their lengths ([`datagrams`]).
    Datagrams,
}

/// What the stream sends next, for a message.
#[derive(Debug)]
enum Source {
    Bytes(Vec<u8>),
    Datagrams(datagrams::Reader),
}

impl Source {
    fn new(messages: Messages) -> Self {
        match messages {
            Messages::Bytes => Self::Bytes(vec![0; PIECE]),
            Messages::Datagrams => Self::Datagrams(datagrams::Reader::default()),
        }
    }

    /// The content of the next message; `None` at the end of the stream. Cancel safe.
    async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Bytes(piece) => {
                let size = stream.read(piece).await?;
                Ok(piece.get(..size).filter(|bytes| !bytes.is_empty()).map(<[u8]>::to_vec))
            }
            Self::Datagrams(reader) => reader.next(stream).await,
        }
    }
}

/// Pings of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Period of pings.
    pub ping: Duration,
    /// Longest time without a message of the client, which answers pings; none: a client may be silent.
    pub silence: Option<Duration>,
}

impl Default for KeepAlive {
    /// A ping each second to a client that may be silent.
    fn default() -> Self {
        Self { ping: Duration::from_secs(1), silence: None }
    }
}

/// Why the server closes a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closure {
    code: CloseCode,
    reason: String,
}

impl Closure {
    /// 1000: the stream is over.
    pub fn normal(reason: &str) -> Self {
        Self { code: CloseCode::Normal, reason: reason.to_owned() }
    }

    /// 1008: the client may not have the stream any longer.
    pub fn policy(reason: &str) -> Self {
        Self { code: CloseCode::Policy, reason: reason.to_owned() }
    }

    fn frame(self) -> CloseFrame {
        let Self { code, mut reason } = self;
        reason.truncate(reason.floor_char_boundary(REASON_MAX));
        CloseFrame { code, reason: reason.into() }
    }
}

/// Copies between a WebSocket's messages and a stream until one side or `over` ends, then closes the other. The end of the
/// stream is reported to the client as a normal closure, that of `over` with its reason, also to a client that does not
/// read.
///
/// # Errors
/// When a side breaks; not when a client leaves without closing.
pub async fn pipe(
    socket: Socket,
    stream: impl AsyncRead + AsyncWrite,
    messages: Messages,
    keep: KeepAlive,
    over: impl Future<Output = Closure>,
) -> io::Result<()> {
    let (mut send, mut receive) = socket.split();
    let (mut read, mut write) = tokio::io::split(stream);
    let (pong, mut pongs) = tokio::sync::mpsc::channel::<()>(1);
    let to_client = async {
        let mut source = Source::new(messages);
        let mut pings = interval_at(Instant::now() + keep.ping, keep.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                content = source.next(&mut read) => match content? {
                    Some(content) => send.send(Message::Binary(content.into())).await.map_err(broken)?,
                    None => break,
                },
                // An answer to a ping is queued by the library and sent with the next flush.
                Some(()) = pongs.recv() => send.flush().await.map_err(broken)?,
                _ = pings.tick() => send.send(Message::Ping(PING.into())).await.map_err(broken)?,
            }
        }
        Ok::<_, io::Error>(Some(Closure::normal("")))
    };
    let from_client = async {
        loop {
            let next = match keep.silence {
                None => receive.next().await,
                Some(silence) => match timeout(silence, receive.next()).await {
                    Ok(next) => next,
                    Err(_) => {
                        let text = format!("no answer to pings for {} seconds", silence.as_secs_f32());
                        return Ok(Some(Closure::policy(&text)));
                    }
                },
            };
            match next {
                Some(Ok(content @ (Message::Binary(_) | Message::Text(_)))) => {
                    let content = content.into_data();
                    match messages {
                        Messages::Bytes => write.write_all(&content).await?,
                        Messages::Datagrams => datagrams::write(&mut write, &content).await?,
                    }
                }
                Some(Ok(Message::Ping(_))) => drop(pong.try_send(())),
                Some(Ok(Message::Pong(_) | Message::Frame(_))) => {}
                None | Some(Ok(Message::Close(_))) => break,
                Some(Err(error)) => return ended(error).map(|()| None),
            }
        }
        write.shutdown().await.map(|()| None)
    };
    let closure = tokio::select! {
        ended = to_client => ended?,
        ended = from_client => ended?,
        closure = over => Some(closure),
    };
    if let Some(closure) = closure {
        let farewell = async {
            send.send(Message::Close(Some(closure.frame()))).await?;
            // Closing a socket with unread bytes resets the connection, and the client may lose the closure.
            while receive.next().await.is_some_and(|message| message.is_ok()) {}
            Ok::<_, tungstenite::Error>(())
        };
        // A client that is gone or does not read loses the connection without it.
        drop(timeout(CLOSING, farewell).await);
    }
    Ok(())
}

/// A client that goes away without a closing handshake is an end, not an error.
fn ended(error: tungstenite::Error) -> io::Result<()> {
    use tungstenite::error::ProtocolError;
    if matches!(
        error,
        tungstenite::Error::ConnectionClosed
            | tungstenite::Error::AlreadyClosed
            | tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)
    ) {
        return Ok(());
    }
    Err(broken(error))
}

fn broken(error: tungstenite::Error) -> io::Error {
    if let tungstenite::Error::Io(error) = error {
        return error;
    }
    io::Error::other(error)
}
