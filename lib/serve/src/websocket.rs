//! WebSocket (RFC 6455) on the server: the handshake, subprotocols, and bytes or datagrams in binary messages. Not here: what
//! the bytes are.

use std::io;

use futures_util::{SinkExt, StreamExt};
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
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

/// Copies between a WebSocket's messages and a stream until one side ends, then closes the other. The end of the stream is
/// reported to the client as a normal closure.
///
/// # Errors
/// When a side breaks; not when a client leaves without closing.
pub async fn pipe(socket: Socket, stream: impl AsyncRead + AsyncWrite, messages: Messages) -> io::Result<()> {
    let (mut send, mut receive) = socket.split();
    let (mut read, mut write) = tokio::io::split(stream);
    let (pong, mut pongs) = tokio::sync::mpsc::channel::<()>(1);
    let to_client = async {
        let mut source = Source::new(messages);
        loop {
            tokio::select! {
                content = source.next(&mut read) => match content? {
                    Some(content) => send.send(Message::Binary(content.into())).await.map_err(broken)?,
                    None => break,
                },
                // An answer to a ping is queued by the library and sent with the next flush.
                Some(()) = pongs.recv() => send.flush().await.map_err(broken)?,
            }
        }
        let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        drop(send.send(Message::Close(Some(close))).await);
        Ok::<_, io::Error>(())
    };
    let from_client = async {
        while let Some(message) = receive.next().await {
            match message {
                Ok(content @ (Message::Binary(_) | Message::Text(_))) => {
                    let content = content.into_data();
                    match messages {
                        Messages::Bytes => write.write_all(&content).await?,
                        Messages::Datagrams => datagrams::write(&mut write, &content).await?,
                    }
                }
                Ok(Message::Ping(_)) => drop(pong.try_send(())),
                Ok(Message::Pong(_) | Message::Frame(_)) => {}
                Ok(Message::Close(_)) => break,
                Err(error) => return ended(error),
            }
        }
        write.shutdown().await
    };
    tokio::select! {
        ended = to_client => ended,
        ended = from_client => ended,
    }
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
