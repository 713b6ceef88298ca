//! Read-ahead: a thread that reads a source while its consumer decodes.
//!
//! ```text
//!  reader ──► thread ──full (3)──► ReadAhead ──► decoder
//!               ▲                    │
//!               └──────empty (3)─────┘
//! ```
//!
//! Three buffers of 256 KiB go round; the thread waits when all are full. Dropping [`ReadAhead`] closes both queues, so
//! the thread ends at once, or when its current read returns; no caller waits for it.
//!
//! Local files go this way too: it costs them no measurable time, and a cold disk gains as a network does.

use std::io::{self, BufRead, Read};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};

/// Bytes per buffer.
const BUFFER: usize = 256 << 10;

/// Buffers that go round.
const BUFFERS: usize = 3;

/// Bytes read ahead of `reader`, which moves to a thread of its own.
///
/// # Errors
/// When no thread can be started.
pub fn read(reader: Box<dyn Read + Send>) -> io::Result<Box<dyn BufRead + Send>> {
    let (full_in, full) = bounded(BUFFERS);
    let (empty, empty_out) = bounded(BUFFERS);
    for _ in 0..BUFFERS {
        // Room for all: this cannot fail.
        let _ = empty.send(Vec::new());
    }
    thread::Builder::new().name("read-ahead".into()).spawn(move || pump(reader, &empty_out, &full_in))?;
    Ok(Box::new(ReadAhead { full, empty, current: Vec::new(), at: 0, ended: false }))
}

/// Reads until the end, an error, or the consumer's leaving. The end is an empty buffer.
fn pump(mut reader: Box<dyn Read + Send>, empty: &Receiver<Vec<u8>>, full: &Sender<io::Result<Vec<u8>>>) {
    for mut buffer in empty {
        buffer.resize(BUFFER, 0);
        // One read, not a full buffer: what has arrived is decoded while the next bytes travel.
        let result = loop {
            match reader.read(&mut buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let last = !matches!(result, Ok(1..));
        let item = result.map(|n| {
            buffer.truncate(n);
            buffer
        });
        if full.send(item).is_err() || last {
            return;
        }
    }
}

/// The consumer's end.
struct ReadAhead {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: Sender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
    ended: bool,
}

impl BufRead for ReadAhead {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.current.len() && !self.ended {
            let spent = std::mem::take(&mut self.current);
            self.at = 0;
            if spent.capacity() > 0 {
                // Fails when the thread has read everything, which is fine.
                let _ = self.empty.send(spent);
            }
            match self.full.recv() {
                Ok(Ok(buffer)) => {
                    self.ended = buffer.is_empty();
                    self.current = buffer;
                }
                Ok(Err(e)) => return Err(e),
                Err(_) => return Err(io::Error::other("the source failed before its end")),
            }
        }
        Ok(&self.current[self.at..])
    }

    fn consume(&mut self, n: usize) {
        self.at = (self.at + n).min(self.current.len());
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buf)?;
        self.consume(n);
        Ok(n)
    }
}
