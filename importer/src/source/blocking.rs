//! The bridge from async clients to plain threads: every reader of a source is a plain [`Read`], whatever client is
//! below it.
//!
//! Two forms of one type. [`Net::new`] has a thread of its own and may be shared by readers on several threads.
//! [`Net::lane`] has none: the thread that reads drives the connection too, so a chunk costs no wake-up of another
//! thread. A lane serves one reader at a time, and nothing moves on it between two calls, which is the back-pressure.

use std::future::Future;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use disk_image::Stop;
use futures_util::{Stream, StreamExt};

/// How often a waiting thread looks whether it was asked to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A runtime for network clients, and the request to stop. Clones share both.
#[derive(Clone, Debug)]
pub struct Net {
    runtime: Arc<Runtime>,
    stop: Stop,
}

/// A tokio runtime that does not wait for its helper threads (for example a name lookup) when it is dropped.
#[derive(Debug)]
struct Runtime(Option<tokio::runtime::Runtime>);

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Net {
    /// Starts a runtime with one thread.
    ///
    /// # Errors
    /// When the thread or its poller cannot be made.
    pub fn new(stop: Stop) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("net")
            .enable_all()
            .build()?;
        Ok(Self { runtime: Arc::new(Runtime(Some(runtime))), stop })
    }

    /// A runtime without a thread, for one reader at a time; it stops with this one. Connections made on it move only
    /// while a thread is in [`Net::block_on`] or reads.
    ///
    /// # Errors
    /// When its poller cannot be made.
    pub fn lane(&self) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime: Arc::new(Runtime(Some(runtime))), stop: self.stop.clone() })
    }

    /// Runs `future` to its end on the calling (plain) thread.
    ///
    /// # Errors
    /// [`disk_image::Kind::Stopped`] inside when a stop was requested in between; seen within 200 ms.
    pub fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output> {
        let Some(runtime) = &self.runtime.0 else {
            return Err(io::Error::other("the network runtime is gone"));
        };
        runtime.block_on(async {
            let mut future = std::pin::pin!(future);
            loop {
                match tokio::time::timeout(POLL_INTERVAL, future.as_mut()).await {
                    Ok(output) => return Ok(output),
                    Err(_) => self.stop.check()?,
                }
            }
        })
    }

    /// The request to stop.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// A plain reader over a stream of chunks.
    pub fn reader<S>(&self, stream: S) -> BodyReader<S>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
    {
        BodyReader { net: self.clone(), stream, chunk: Bytes::new() }
    }
}

/// A plain reader over an async stream of chunks.
#[derive(Debug)]
pub struct BodyReader<S> {
    net: Net,
    stream: S,
    chunk: Bytes,
}

impl<S> Read for BodyReader<S>
where
    S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
{
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.net.block_on(self.stream.next())? {
                Some(chunk) => self.chunk = chunk?,
                None => return Ok(0),
            }
        }
        let n = buf.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buf[..n]);
        Ok(n)
    }
}
