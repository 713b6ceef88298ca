//! Informational answers (1xx) other than 100, which hyper's server does not have: bytes that are sent before the answer,
//! while the rest of the request is awaited. Also reads as much at once as there is: TLS hands over one record at a time.
//!
//! They go between answers only: hyper flushes an answer when all of it is written, and until then nothing is put into the
//! connection. So the second request of a connection may have them, too, while the first one's answer waits for the client.
//!
//! Not here: when an informational answer may be sent.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection into which bytes can be put.
#[derive(Debug)]
pub(super) struct Informational<S> {
    stream: S,
    queue: Queue,
    /// Bytes of an answer were written since the last flush: more of it may follow.
    answering: bool,
    /// The error that ended reading, reported after the bytes that were read before it.
    broken: Option<io::Error>,
}

/// Where informational answers of a connection go.
#[derive(Clone, Debug, Default)]
pub struct Queue(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Wakes the task that reads the connection.
    reader: Option<Waker>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an informational answer: its status line, headers and the empty line. To be called before the answer to its
    /// request is begun.
    pub fn push(&self, answer: &str) {
        let mut waiting = self.lock();
        waiting.bytes.extend_from_slice(answer.as_bytes());
        if let Some(reader) = waiting.reader.take() {
            reader.wake();
        }
    }
}

impl<S> Informational<S> {
    /// The connection over `stream`, and where its informational answers go.
    pub(super) fn new(stream: S) -> (Self, Queue) {
        let queue = Queue::default();
        (Self { stream, queue: queue.clone(), answering: false, broken: None }, queue)
    }
}

impl<S: AsyncWrite + Unpin> Informational<S> {
    /// Sends what is queued; not while an answer is being written.
    fn poll_queue(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.answering {
            return Poll::Ready(Ok(()));
        }
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Informational<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.queue.lock().reader = Some(context.waker().clone());
        // Requests are read even if the client does not read informational answers.
        if let Poll::Ready(Err(error)) = self.poll_queue(context) {
            return Poll::Ready(Err(error));
        }
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        loop {
            let had = buffer.filled().len();
            let read = Pin::new(&mut self.stream).poll_read(context, buffer);
            let (came, more) = (buffer.filled().len() > before, buffer.filled().len() > had);
            match read {
                Poll::Ready(Ok(())) if more && buffer.remaining() > 0 => {}
                Poll::Ready(Err(error)) if came => {
                    self.broken = Some(error);
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending if came => return Poll::Ready(Ok(())),
                Poll::Ready(_) | Poll::Pending => return read,
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Informational<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.poll_queue(context) {
            Poll::Ready(Ok(())) => {
                self.answering = true;
                Pin::new(&mut self.stream).poll_write(context, bytes)
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.answering = false;
        self.poll_queue(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt;

    use super::*;

    /// Hands out one record at a time.
    struct Records(VecDeque<Poll<io::Result<&'static [u8]>>>);

    impl AsyncRead for Records {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.0.pop_front() {
                Some(Poll::Ready(record)) => Poll::Ready(record.map(|record| buffer.put_slice(record))),
                Some(Poll::Pending) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                None => Poll::Ready(Ok(())),
            }
        }
    }

    impl AsyncWrite for Records {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn reads_take_all_there_is_and_an_error_comes_last() {
        let given = |bytes| Poll::Ready(Ok::<&'static [u8], _>(bytes));
        let records = [
            given(b"ab"),
            given(b"cd"),
            Poll::Pending,
            given(b"ef"),
            Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        ];
        let (mut stream, _queue) = Informational::new(Records(records.into()));
        let mut buffer = [0; 16];
        for expected in [&b"abcd"[..], b"ef"] {
            let read = stream.read(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..read], expected);
        }
        assert_eq!(stream.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 0);
        // Never more than the buffer has room for.
        let (mut stream, _queue) = Informational::new(Records([given(b"ab"), given(b"cd")].into()));
        assert_eq!(stream.read(&mut buffer[..2]).await.unwrap(), 2);
        assert_eq!(stream.read(&mut buffer[..2]).await.unwrap(), 2);
    }
}
