//! The stream on its way to an upload server: pieces from a thread, a request of chunks, the answer. Not here: what the
//! stream is made of (`pack`).

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use api::names;
use api::upload::{CONTENT_TYPE_HEADER, CloneOf};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame};
use rustls::ClientConfig;
use tokio::sync::mpsc;

use super::config::Receiver;
use crate::proxy::error::{Error, Kind, Result};
use crate::proxy::peer::{Stream, dial, secure};

/// Bytes of a piece, and pieces that wait.
const PIECE: usize = 256 << 10;
const AHEAD: usize = 4;
/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 64 << 10;
/// Ports of an upload server where the URL gives none: that of a Service with an address, and its pod's, which a headless
/// Service shows.
const PORTS: [u16; 2] = [443, names::UPLOAD_PORT];
/// How long a port may take to answer before the next one is tried.
const NEXT_PORT: Duration = Duration::from_secs(3);

/// Some bytes, or the end of all of them: whoever just goes away has not come to it.
type Piece = io::Result<Option<Bytes>>;

/// Where a thread writes the stream.
pub(crate) struct Pieces {
    sender: mpsc::Sender<Piece>,
    piece: Vec<u8>,
}

/// The stream as a request's body.
pub(crate) struct Streamed {
    pieces: mpsc::Receiver<Piece>,
    ended: bool,
}

/// Both ends of a short queue.
pub(crate) fn streamed() -> (Pieces, Streamed) {
    let (sender, pieces) = mpsc::channel(AHEAD);
    (Pieces { sender, piece: Vec::with_capacity(PIECE) }, Streamed { pieces, ended: false })
}

impl Pieces {
    fn send(&mut self, piece: Piece) -> io::Result<()> {
        self.sender.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Everything was written.
    ///
    /// # Errors
    /// `BrokenPipe` when nobody wants it any more.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(Ok(None))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.send(Ok(Some(piece.into())))
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let piece = ready!(self.pieces.poll_recv(context));
        Poll::Ready(match piece {
            Some(Ok(Some(piece))) => Some(Ok(Frame::data(piece))),
            Some(Ok(None)) => {
                self.ended = true;
                None
            }
            Some(Err(error)) => Some(Err(error)),
            // An end that is not said is none: the server must not take it for one.
            None => Some(Err(io::Error::other("the volume could not be read to its end"))),
        })
    }
}

/// Sends the stream and waits until the server has made a volume of it.
///
/// # Errors
/// [`Kind::Unreachable`]; [`Kind::Refused`] with what the server says.
pub(crate) async fn send(
    to: &Receiver,
    tls: &Arc<ClientConfig>,
    kind: CloneOf,
    body: Streamed,
) -> Result<()> {
    let request = Request::post(&to.path)
        .header(HOST, &to.host)
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(CONTENT_TYPE_HEADER, kind.header())
        .body(body)
        .map_err(|e| Error::with(Kind::Usage, "UPLOAD_URL cannot be sent", e))?;
    let broke = |e| Error::with(Kind::Unreachable, "the connection broke", e);
    let stream = connect(to, tls).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(broke)?;
    let connection = tokio::spawn(connection);
    let answered = async {
        let (head, body) = sender.send_request(request).await.map_err(broke)?.into_parts();
        // Words that do not come whole are words too few.
        let words = Limited::new(body, ANSWER_MAX).collect().await;
        let words = words.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        match head.status {
            StatusCode::OK => Ok(()),
            status => {
                let what = format!("the server answers {}: {}", status.as_u16(), words.trim());
                Err(Error::new(Kind::Refused, what))
            }
        }
    };
    let answered = answered.await;
    connection.abort();
    answered
}

async fn connect(to: &Receiver, tls: &Arc<ClientConfig>) -> Result<Stream> {
    let host = to.host.as_str();
    if let Some(port) = to.port {
        return secure(dial((host, port)).await?, host, tls.clone()).await;
    }
    let mut last = None;
    for port in PORTS {
        match tokio::time::timeout(NEXT_PORT, dial((host, port))).await {
            Ok(Ok(stream)) => return secure(stream, host, tls.clone()).await,
            Ok(Err(error)) => last = Some(error),
            Err(_) => {}
        }
    }
    Err(last.unwrap_or_else(|| Error::new(Kind::Unreachable, format!("{host} does not answer"))))
}
