//! Interim answers (1xx), which hyper's server has none of but 100: bytes that go out before its answer does, while it
//! waits for the rest of a request. Not here: when there may be one.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that bytes can be put into.
#[derive(Debug)]
pub(crate) struct Interim<S> {
    stream: S,
    queue: Queue,
}

/// The bytes that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Who reads the connection.
    reader: Option<Waker>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an interim answer. Only to be used before any answer was begun.
    pub(crate) fn push(&self, answer: &str) {
        let mut waiting = self.lock();
        waiting.bytes.extend_from_slice(answer.as_bytes());
        if let Some(reader) = waiting.reader.take() {
            reader.wake();
        }
    }
}

impl<S> Interim<S> {
    /// `stream`, and where to put bytes.
    pub(crate) fn new(stream: S) -> (Self, Queue) {
        let queue = Queue::default();
        (Self { stream, queue: queue.clone() }, queue)
    }
}

impl<S: AsyncWrite + Unpin> Interim<S> {
    fn poll_queue(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let queue = &mut self.queue.lock().bytes;
        if queue.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !queue.is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, queue) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => drop(queue.drain(..written)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Interim<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.queue.lock().reader = Some(context.waker().clone());
        // A client that does not read still is read.
        if let Poll::Ready(Err(error)) = self.poll_queue(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Interim<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.poll_queue(context) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.stream).poll_write(context, bytes),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
