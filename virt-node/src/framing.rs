//! Framed JSON on Unix sockets, as both ends of every conversation here read, write and take it: the launcher's and the
//! daemon's. What a frame is says `api::launcher`.
//!
//! Not here: what is said.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::launcher::{FrameError, frame, length};
use serde::Serialize;

/// Memory for a frame is taken in steps of so many bytes, as they come.
pub(crate) const STEP: usize = 1 << 20;
/// Stack of a client's thread.
const STACK: usize = 256 << 10;

/// One more, and one less when dropped.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A small thread with a name.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}

/// Takes clients for ever, at most `most` at once, each on a thread of its own. Whoever is not served sees the connection
/// end.
pub(crate) fn accept(
    socket: UnixListener,
    most: usize,
    serve: impl Fn(UnixStream) + Clone + Send + 'static,
) -> io::Result<()> {
    spawn("socket", move || {
        let count = Arc::new(AtomicUsize::new(0));
        for stream in socket.incoming() {
            let Ok(stream) = stream else {
                // No descriptors, or no memory: others may give some back.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if count.load(Ordering::Acquire) >= most {
                continue;
            }
            let (counted, serve) = (Counted::new(&count), serve.clone());
            drop(spawn("client", move || {
                let _counted = counted;
                serve(stream);
            }));
        }
    })
}

/// Waits for the next frame and tells its length; `None`: the other end went.
pub(crate) fn next(mut stream: &UnixStream) -> io::Result<Option<Result<usize, FrameError>>> {
    let mut head = [0; 4];
    match stream.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        answer => answer.map(|()| Some(length(head))),
    }
}

/// The JSON of a frame whose length is known, which may take that long.
pub(crate) fn json(stream: &UnixStream, length: usize, patience: Duration) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(patience))?;
    let mut json = Vec::new();
    let until = Instant::now() + patience;
    while json.len() < length {
        let part = u64::try_from((length - json.len()).min(STEP)).unwrap_or_default();
        let before = json.len();
        stream.take(part).read_to_end(&mut json)?;
        if json.len() == before || Instant::now() > until {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    stream.set_read_timeout(None)?;
    Ok(json)
}

/// Writes a message as a frame.
pub(crate) fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&frame(message).map_err(io::Error::other)?)
}
