//! Framed JSON on Unix sockets, as both ends of a conversation with a launcher or a daemon read, write and accept it.
//! `api::launcher` defines a frame.
//!
//! Not here: the content of messages.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::launcher::{FrameError, frame, length};
use serde::Serialize;

use crate::clients::{Client, Clients};

/// Memory for a frame is taken in steps of so many bytes, as they come.
pub const STEP: usize = 1 << 20;
/// Stack of a client's thread.
const STACK: usize = 256 << 10;

/// One more, and one less when dropped.
#[derive(Debug)]
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Counts one more.
    pub fn new(count: &Arc<AtomicUsize>) -> Self {
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
///
/// # Errors
/// There is no thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop)
}

/// Accepts clients until the process ends, each on a thread of its own. When there are `most`, the one idle longest is
/// disconnected for the next ([`crate::clients`]); when all are busy, the next is closed.
///
/// # Errors
/// There is no thread.
pub fn accept(
    socket: UnixListener,
    most: usize,
    serve: impl Fn(&Client<UnixStream>) + Clone + Send + 'static,
) -> io::Result<()> {
    spawn("socket", move || {
        let mut clients = Clients::new(most);
        for stream in socket.incoming() {
            let Ok(stream) = stream else {
                // No descriptors, or no memory: others may give some back.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            let Some(client) = clients.admit(stream) else { continue };
            let serve = serve.clone();
            drop(spawn("client", move || serve(&client)));
        }
    })
}

/// Waits for the next frame and returns its length; `None`: the peer has disconnected.
///
/// # Errors
/// The socket fails.
pub fn next(mut stream: &UnixStream) -> io::Result<Option<Result<usize, FrameError>>> {
    let mut head = [0; 4];
    match stream.read_exact(&mut head) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        answer => answer.map(|()| Some(length(head))),
    }
}

/// The JSON of a frame of known length, read within a time limit.
///
/// # Errors
/// The socket fails, or the time is over.
pub fn json(stream: &UnixStream, length: usize, patience: Duration) -> io::Result<Vec<u8>> {
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
///
/// # Errors
/// The socket fails, or the message is too long.
pub fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    stream.write_all(&frame(message).map_err(io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that send nothing, and half a frame; others are answered among them.
    #[test]
    fn idle_clients_and_unfinished_frames_keep_no_client_out() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let serve = |client: &Client<UnixStream>| {
            while let Ok(Some(Ok(length))) = next(client.stream()) {
                let Ok(bytes) = json(client.stream(), length, Duration::from_secs(60)) else { return };
                let _busy = client.busy();
                drop(send(client.stream(), &bytes.len()));
            }
        };
        accept(UnixListener::bind(&path).unwrap(), 16, serve).unwrap();
        let ask = |stream: &UnixStream| -> io::Result<Vec<u8>> {
            send(stream, &"question")?;
            let length = next(stream)?.ok_or(io::ErrorKind::UnexpectedEof)?.map_err(io::Error::other)?;
            json(stream, length, Duration::from_secs(20))
        };
        let mut open = Vec::new();
        for number in 0..100 {
            let stream = UnixStream::connect(&path).unwrap();
            if number % 2 == 0 {
                (&stream).write_all(&[0, 0, 0, 9, b'"']).unwrap();
            }
            open.push(stream);
            if number % 10 == 0 {
                assert_eq!(ask(&UnixStream::connect(&path).unwrap()).unwrap(), b"10", "after {number}");
            }
        }
        assert!(ask(&open[1]).is_err(), "the first of them are disconnected");
    }
}
