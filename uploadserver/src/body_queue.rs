//! The bytes of one upload on their way from HTTP bodies to the thread that reads them: a short queue of pieces. A body
//! may break and another one go on, if the upload is resumable; the reader only sees a pause. Not here: heads of
//! requests (`routes`, `resume`), the meaning of the bytes (`decode`).

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

/// Bytes are handed to the reader in pieces of this size: to wake a thread costs as much as to decrypt a record.
const GATHERED: u64 = 1 << 20;
/// Or this many pieces, however small: each of them keeps what it was read into.
const PIECES: usize = 64;
/// Or when nothing came for this long.
const PAUSE: Duration = Duration::from_millis(5);
/// How often as much waits for the reader.
const QUEUE: usize = 2;
/// Nothing comes for this long: the client is gone (as the importer's sources).
const SILENCE: Duration = Duration::from_secs(600);
/// A client that has sent nothing for this long while we waited may be overtaken.
const STARVED: Duration = Duration::from_secs(10);

enum Pieces {
    Data(Vec<Bytes>),
    End,
}

/// The sending side.
pub(crate) struct BodyQueue {
    /// Held by the sending request.
    pieces: tokio::sync::Mutex<mpsc::Sender<Pieces>>,
    /// Counts the requests that want to send: all but the last give up.
    turn: watch::Sender<u64>,
    state: Mutex<State>,
    cancelled: watch::Sender<bool>,
}

/// How far an upload has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Bytes that were taken.
    pub(crate) offset: u64,
    /// They are all there are.
    pub(crate) complete: bool,
    /// Bytes of the whole upload, if known.
    pub(crate) length: Option<u64>,
    /// Since when no request sends, or the sending one is silent.
    waiting: Option<Instant>,
    /// A request sends, or is about to.
    sending: bool,
}

/// How the sending of a body ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// With its last byte.
    Whole,
    /// Before: the connection broke, or went silent.
    Broken(String),
    /// Another request resumes the upload.
    Overtaken,
    /// The reader wants no more.
    Unwanted,
    /// It does not begin where the upload is.
    Elsewhere(State),
    /// It is longer or shorter than the upload.
    WrongLength,
}

/// A queue for an upload of `length` bytes, if that is known.
pub(crate) fn feed(length: Option<u64>, runtime: Handle) -> (BodyQueue, Reader) {
    let (pieces, queue) = mpsc::channel(QUEUE);
    let (cancelled, watched) = watch::channel(false);
    let state = State { offset: 0, complete: false, length, waiting: Some(Instant::now()), sending: true };
    let feed = BodyQueue {
        pieces: tokio::sync::Mutex::new(pieces),
        turn: watch::Sender::new(0),
        state: Mutex::new(state),
        cancelled,
    };
    (
        feed,
        Reader {
            queue,
            cancelled: watched,
            runtime,
            taken: VecDeque::new(),
            piece: Bytes::new(),
            ended: false,
        },
    )
}

/// Marks a body as being sent until it is dropped: futures of broken connections just end.
struct Sending<'a>(&'a BodyQueue);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        (state.sending, state.waiting) = (false, Some(Instant::now()));
    }
}

impl BodyQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it has come.
    pub(crate) fn state(&self) -> State {
        *self.lock()
    }

    /// Whether a request sends over a connection that is not known to be broken.
    pub(crate) fn is_alive(&self) -> bool {
        let state = self.lock();
        state.complete || (state.sending && state.waiting.is_none_or(|since| since.elapsed() < STARVED))
    }

    /// Time without a sending request.
    pub(crate) fn idle_time(&self) -> Option<Duration> {
        let state = self.lock();
        (!state.sending && !state.complete).then(|| state.waiting.map(|since| since.elapsed())).flatten()
    }

    /// Ends the upload: its reader gets an error.
    pub(crate) fn cancel(&self) {
        self.cancelled.send_replace(true);
        self.turn.send_modify(|turn| *turn += 1);
    }

    /// The offset, once the sending request has given up.
    pub(crate) async fn settle(&self) -> State {
        self.turn.send_modify(|turn| *turn += 1);
        let _pieces = self.pieces.lock().await;
        self.state()
    }

    /// Sends `body`, which begins at `offset`; `complete` marks it as the rest. A request that sends already gives up.
    pub(crate) async fn send<B>(
        &self,
        body: &mut B,
        offset: u64,
        length: Option<u64>,
        complete: bool,
    ) -> SendOutcome
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let mut turn = self.turn.subscribe();
        self.turn.send_modify(|turn| *turn += 1);
        let mine = *turn.borrow_and_update();
        let pieces = self.pieces.lock().await;
        {
            let mut state = self.lock();
            if state.complete || state.offset != offset {
                return SendOutcome::Elsewhere(*state);
            }
            if length.is_some_and(|said| state.length.is_some_and(|known| known != said)) {
                return SendOutcome::WrongLength;
            }
            state.length = state.length.or(length);
            state.sending = true;
        }
        let _sending = Sending(self);
        let mut gathered = Vec::new();
        let mut len = 0;
        let end = loop {
            self.lock().waiting = Some(Instant::now());
            let patience = if len == 0 { SILENCE } else { PAUSE };
            let frame = tokio::select! {
                biased;
                // The gathered bytes were not taken: the client sends them again.
                _ = turn.wait_for(|now| *now > mine) => return SendOutcome::Overtaken,
                () = pieces.closed() => return SendOutcome::Unwanted,
                frame = tokio::time::timeout(patience, body.frame()) => frame,
            };
            self.lock().waiting = None;
            let end = match frame {
                Err(_) if len > 0 => None,
                Err(_) => Some(SendOutcome::Broken(format!("no data arrived for {} s", SILENCE.as_secs()))),
                Ok(Some(Err(error))) => Some(SendOutcome::Broken(error.to_string())),
                Ok(None) => Some(SendOutcome::Whole),
                Ok(Some(Ok(frame))) => {
                    // Trailers do not concern an upload.
                    let Ok(data) = frame.into_data() else { continue };
                    len += data.len() as u64;
                    let State { offset, length, .. } = self.state();
                    if length.is_some_and(|length| length < offset.saturating_add(len)) {
                        return SendOutcome::WrongLength;
                    }
                    gathered.push(data);
                    if len < GATHERED && gathered.len() < PIECES {
                        continue;
                    }
                    None
                }
            };
            if len > 0 && pieces.send(Pieces::Data(std::mem::take(&mut gathered))).await.is_err() {
                return SendOutcome::Unwanted;
            }
            self.lock().offset += std::mem::take(&mut len);
            if let Some(end) = end {
                break end;
            }
        };
        if end != SendOutcome::Whole || !complete {
            return end;
        }
        let State { offset, length, .. } = self.state();
        if length.is_some_and(|length| length != offset) {
            return SendOutcome::WrongLength;
        }
        // The reader may want no more, and the upload be good all the same.
        let taken = pieces.send(Pieces::End).await;
        let mut state = self.lock();
        (state.complete, state.length) = (true, Some(offset));
        if taken.is_ok() { SendOutcome::Whole } else { SendOutcome::Unwanted }
    }
}

/// The reading side: a plain stream.
pub(crate) struct Reader {
    queue: mpsc::Receiver<Pieces>,
    cancelled: watch::Receiver<bool>,
    runtime: Handle,
    /// Pieces that are read next.
    taken: VecDeque<Bytes>,
    piece: Bytes,
    ended: bool,
}

impl Reader {
    /// The next pieces; `None` when the upload was ended from outside.
    fn next(&mut self) -> Option<Pieces> {
        let Self { queue, cancelled, runtime, .. } = self;
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = cancelled.wait_for(|cancelled| *cancelled) => None,
                pieces = queue.recv() => pieces,
            }
        })
    }
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended && !buf.is_empty() {
            if *self.cancelled.borrow() {
                return Err(gone());
            }
            if let Some(piece) = self.taken.pop_front() {
                self.piece = piece;
                continue;
            }
            match self.next().ok_or_else(gone)? {
                Pieces::Data(pieces) => self.taken = pieces.into(),
                Pieces::End => self.ended = true,
            }
        }
        let len = self.piece.len().min(buf.len());
        self.piece.copy_to_slice(&mut buf[..len]);
        Ok(len)
    }
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the client disconnected before the end of the upload; start over",
    )
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use http_body_util::Full;

    use super::*;

    type Plain = Full<Bytes>;

    fn body(bytes: &[u8]) -> Plain {
        Full::new(Bytes::copy_from_slice(bytes))
    }

    /// A body that never ends.
    #[derive(Default)]
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
            std::task::Poll::Pending
        }
    }

    fn read(mut reader: Reader) -> std::thread::JoinHandle<io::Result<Vec<u8>>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes)
        })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn broken_body_is_resumed() {
        let (feed, reader) = feed(None, Handle::current());
        let reading = read(reader);
        assert_eq!(feed.send(&mut body(b"one "), 0, None, false).await, SendOutcome::Whole);
        assert_eq!(feed.state().offset, 4);
        assert!(
            matches!(feed.send(&mut body(b"x"), 3, None, false).await, SendOutcome::Elsewhere(at) if at.offset == 4)
        );
        assert_eq!(feed.send(&mut body(b"two"), 4, Some(7), true).await, SendOutcome::Whole);
        assert_eq!(reading.join().unwrap().unwrap(), b"one two");
        assert!(feed.state().complete && feed.idle_time().is_none());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn last_request_gets_the_upload() {
        let (feed, reader) = feed(None, Handle::current());
        let (feed, reading) = (Arc::new(feed), read(reader));
        let first = tokio::spawn({
            let feed = feed.clone();
            async move { feed.send(&mut Silent, 0, None, true).await }
        });
        while feed.pieces.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(feed.is_alive());
        assert_eq!(feed.send(&mut body(b"whole"), 0, None, true).await, SendOutcome::Whole);
        assert_eq!(first.await.unwrap(), SendOutcome::Overtaken);
        assert_eq!(reading.join().unwrap().unwrap(), b"whole");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lengths_are_held_to() {
        for (bytes, complete) in [(&b"four"[..], true), (b"more than five", false)] {
            let (feed, _reader) = feed(Some(5), Handle::current());
            assert_eq!(feed.send(&mut body(bytes), 0, None, complete).await, SendOutcome::WrongLength);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_upload_that_is_ended_ends_its_reader() {
        let (feed, reader) = feed(None, Handle::current());
        let reading = read(reader);
        feed.send(&mut body(b"part"), 0, None, false).await;
        assert!(!feed.is_alive() && feed.idle_time().is_some());
        feed.cancel();
        assert_eq!(reading.join().unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
