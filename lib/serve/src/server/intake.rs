//! The socket below TLS: reads ahead while a large body is received, and lingers when a connection with an unread body ends.
//!
//! TLS takes one record at a time, so that a large body costs a system call for every 16 KiB; reading ahead takes more at
//! once. The buffer exists only after [`Shared::read_ahead`], so an idle connection costs none.
//!
//! A socket that is closed while it holds unread bytes resets the connection, and the reset can overtake the answer. So
//! after the last answer, bytes are thrown away for a short while, undecrypted: at most [`LINGER_BYTES`] in
//! [`LINGER_TIME`]. Bodies of rejected requests are not read beyond that.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes thrown away at most, once the last answer is sent.
const LINGER_BYTES: usize = 8 << 20;
/// Longest wait for the peer to close its side, once the last answer is sent.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// Signals from a connection's requests to its socket.
#[derive(Debug, Default)]
pub(super) struct Shared {
    read_ahead: AtomicBool,
    /// Whether the peer is known to have sent nothing that was not read.
    is_read: AtomicBool,
}

impl Shared {
    /// From now on, bytes are read ahead.
    pub(super) fn read_ahead(&self) {
        self.read_ahead.store(true, Ordering::Relaxed);
    }

    /// Whether the request that was begun last has a body, which may be unread when the connection ends. A connection
    /// without a request may have sent one that could not be parsed.
    pub(super) fn set_has_body(&self, has_body: bool) {
        self.is_read.store(!has_body, Ordering::Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Intake<S> {
    stream: S,
    shared: Arc<Shared>,
    /// Bytes to read ahead.
    size: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    taken: usize,
    linger: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Intake<S> {
    pub(super) fn new(stream: S, size: usize, shared: Arc<Shared>) -> Self {
        Self { stream, shared, size, buffer: Vec::new(), taken: 0, linger: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Intake<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.taken == this.buffer.len() {
            this.buffer.clear();
            this.taken = 0;
            if out.remaining() >= this.size || !this.shared.read_ahead.load(Ordering::Relaxed) {
                return Pin::new(&mut this.stream).poll_read(context, out);
            }
            this.buffer.resize(this.size, 0);
            let mut filled = ReadBuf::new(&mut this.buffer);
            let read = Pin::new(&mut this.stream).poll_read(context, &mut filled);
            let size = if matches!(read, Poll::Ready(Ok(()))) { filled.filled().len() } else { 0 };
            this.buffer.truncate(size);
            ready!(read)?;
        }
        let rest = this.buffer.get(this.taken..).unwrap_or_default();
        let size = rest.len().min(out.remaining());
        out.put_slice(rest.get(..size).unwrap_or_default());
        this.taken += size;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Intake<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            if this.shared.is_read.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let (time, read) = this.linger.get_or_insert_with(|| (Box::pin(tokio::time::sleep(LINGER_TIME)), 0));
        let mut space = [0; 4096];
        while *read < LINGER_BYTES && time.as_mut().poll(context).is_pending() {
            let mut discarded = ReadBuf::new(&mut space);
            if ready!(Pin::new(&mut this.stream).poll_read(context, &mut discarded)).is_err() {
                break;
            }
            match discarded.filled().len() {
                0 => break,
                size => *read += size,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_are_read_ahead_when_asked_and_arrive_in_order() {
        let (mut peer, ours) = tokio::io::duplex(1 << 16);
        let shared = Arc::new(Shared::default());
        let mut intake = Intake::new(ours, 64, shared.clone());
        let bytes: Vec<u8> = (0..=255).collect();
        peer.write_all(&bytes).await.unwrap();
        let mut read = [0; 16];
        intake.read_exact(&mut read).await.unwrap();
        assert_eq!((&read[..], intake.buffer.capacity()), (&bytes[..16], 0));
        shared.read_ahead();
        intake.read_exact(&mut read).await.unwrap();
        assert_eq!((&read[..], intake.buffer.len()), (&bytes[16..32], 64));
        drop(peer);
        let mut rest = Vec::new();
        intake.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, &bytes[32..]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unread_body_is_discarded_for_a_bounded_time_and_size() {
        let ended = |has_body| async move {
            let (mut peer, ours) = tokio::io::duplex(1 << 10);
            let shared = Arc::new(Shared::default());
            shared.set_has_body(has_body);
            let mut intake = Intake::new(ours, 64, shared);
            let sending = tokio::spawn(async move {
                let mut sent = 0;
                while let Ok(size) = peer.write(&[0; 512]).await {
                    sent += size;
                }
                sent
            });
            let begun = tokio::time::Instant::now();
            intake.shutdown().await.unwrap();
            drop(intake);
            (sending.await.unwrap(), begun.elapsed())
        };
        let (sent, _) = ended(true).await;
        assert!((LINGER_BYTES..LINGER_BYTES + (8 << 10)).contains(&sent), "{sent}");
        let (sent, _) = ended(false).await;
        assert!(sent <= 2 << 10, "{sent}");
        // A peer that sends nothing and never closes.
        let (_peer, ours) = tokio::io::duplex(1 << 10);
        let shared = Arc::new(Shared::default());
        shared.set_has_body(true);
        let begun = tokio::time::Instant::now();
        Intake::new(ours, 64, shared).shutdown().await.unwrap();
        assert!(begun.elapsed() < LINGER_TIME * 2, "{:?}", begun.elapsed());
    }
}
