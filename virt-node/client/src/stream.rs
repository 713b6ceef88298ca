//! Bytes between a WebSocket of a guest and a local stream, or a local program that connects to a port. Binary messages only,
//! as virtctl sends and reads them.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use cluster::websocket::Socket;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::error::{Error, Kind, Result};
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

/// Listens for a local program; gives the address with its port, too.
///
/// # Errors
/// The address is taken, or not this machine's.
pub(crate) async fn listen(here: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let taken = |error| Error::with(Kind::System, format!("cannot listen at {here}"), error);
    let listener = TcpListener::bind(here).await.map_err(taken)?;
    let bound = listener.local_addr().map_err(taken)?;
    Ok((listener, bound))
}

/// Starts a local program, without standard input and output.
///
/// # Errors
/// It cannot be started.
pub(crate) fn start<W: AsRef<OsStr>>(
    program: &OsStr,
    words: impl IntoIterator<Item = W>,
) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()
}

/// Joins the socket with the first connection to the listener, until either ends, the program does, or Ctrl-C comes. Gives how
/// the program ended if it did.
///
/// # Errors
/// The connection breaks.
pub(crate) async fn serve(
    socket: Socket,
    listener: &TcpListener,
    program: Option<Child>,
) -> Result<Option<ExitStatus>> {
    let ended = async {
        match program {
            Some(mut program) => program.wait().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = async {
            let (local, _) = listener.accept().await?;
            join(socket, local, Some(Duration::ZERO)).await
        } => served.map(|_| None).map_err(Error::from),
        status = ended => status.map(Some).map_err(Error::from),
        _ = tokio::signal::ctrl_c() => Ok(None),
    }
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
