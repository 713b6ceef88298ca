//! Bytes between a WebSocket of a guest and a local stream. Binary messages only, as virtctl sends and reads them.

use std::io;
use std::time::Duration;

use cluster::websocket::Socket;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::site::Site;
use crate::target::Target;

/// The subprotocol of guests' streams.
pub(crate) const PROTOCOL: &str = "plain.kubevirt.io";
/// Bytes of one message.
const PIECE: usize = 10 << 10;

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server closed it: the guest's end of the stream is over.
    Closed,
    /// The connection went away without a close message.
    Broken,
    /// The local end is over.
    Local,
}

/// Opens a stream of a guest.
///
/// # Errors
/// The API server refuses it.
pub(crate) async fn open(site: &Site, target: &Target, verb: &str) -> cluster::Result<Socket> {
    let path = site.verb(target, verb)?;
    site.client.websocket(&path, PROTOCOL).await
}

/// Copies bytes both ways until one end is over. When the local end has sent everything, the guest's bytes are still
/// passed on until none came for `linger`; without, until the guest ends the stream.
///
/// # Errors
/// The local end breaks.
pub(crate) async fn join(
    socket: Socket,
    local: impl AsyncRead + AsyncWrite,
    linger: Option<Duration>,
) -> io::Result<End> {
    let (mut send, mut receive) = socket.split();
    let (mut read, mut write) = tokio::io::split(local);
    let mut piece = vec![0; PIECE];
    let mut open = true;
    let mut last = Instant::now();
    let ended = loop {
        let silence = async {
            match linger.filter(|_| !open) {
                Some(linger) => tokio::time::sleep_until(last + linger).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            size = read.read(&mut piece), if open => {
                let size = size?;
                last = Instant::now();
                let bytes = piece.get(..size).unwrap_or_default().to_vec();
                if size == 0 {
                    open = false;
                } else if send.send(Message::Binary(bytes.into())).await.is_err() {
                    break End::Broken;
                }
            }
            message = receive.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    last = Instant::now();
                    if write.write_all(&bytes).await.is_err() {
                        break End::Local;
                    }
                }
                // The library has queued the answer to a ping; it goes out with this flush.
                Some(Ok(Message::Ping(_))) => if send.flush().await.is_err() { break End::Broken },
                Some(Ok(Message::Text(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(frame))) => break end_of(frame.as_ref()),
                Some(Err(tungstenite::Error::ConnectionClosed)) => break End::Closed,
                None | Some(Err(_)) => break End::Broken,
            },
            () = silence => break End::Local,
        }
    };
    if ended == End::Local {
        let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        // A server that is gone needs no farewell.
        drop(send.send(Message::Close(Some(close))).await);
    }
    drop(write.shutdown().await);
    Ok(ended)
}

fn end_of(frame: Option<&CloseFrame>) -> End {
    match frame.map(|frame| frame.code) {
        None | Some(CloseCode::Normal | CloseCode::Away | CloseCode::Status) => End::Closed,
        Some(_) => End::Broken,
    }
}
