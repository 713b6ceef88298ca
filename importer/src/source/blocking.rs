//! The bridge from async clients to plain threads: every reader of a source is a plain [`Read`], whatever client is
//! below it. One small runtime serves all connections of the process.

use std::future::Future;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use disk_image::Stop;
use futures_util::{Stream, StreamExt};

/// The runtime all network sources share. Clones share it.
#[derive(Clone, Debug)]
pub struct Net {
    runtime: Arc<tokio::runtime::Runtime>,
    stop: Stop,
}

impl Net {
    /// Starts the runtime: one thread.
    ///
    /// # Errors
    /// When the thread or its poller cannot be made.
    pub fn new(stop: Stop) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("net")
            .enable_all()
            .build()?;
        Ok(Self { runtime: Arc::new(runtime), stop })
    }

    /// Runs `future` to its end on the calling (plain) thread.
    ///
    /// # Errors
    /// [`disk_image::Kind::Stopped`] inside when stopping was asked for meanwhile; seen within 200 ms.
    pub fn block_on<F: Future>(&self, future: F) -> io::Result<F::Output> {
        self.runtime.block_on(async {
            let mut future = std::pin::pin!(future);
            loop {
                match tokio::time::timeout(Duration::from_millis(200), future.as_mut()).await {
                    Ok(output) => return Ok(output),
                    Err(_) => self.stop.check()?,
                }
            }
        })
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
