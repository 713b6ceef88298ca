//! The body of a request that a thread makes, a few pieces ahead of the network: what a file holds, or what is written.
//! Not here: content and recipients.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// Bytes of a piece, and pieces that wait.
const PIECE: usize = 256 << 10;
const AHEAD: usize = 4;

/// Some bytes, or the end of all of them: a dropped sender has not reached it.
type Piece = io::Result<Option<Bytes>>;

/// The body of a request.
pub struct Made {
    pieces: mpsc::Receiver<Piece>,
    /// Bytes that are still to come, where their number is known.
    left: Option<u64>,
    ended: bool,
    /// Hears how many bytes were taken with each piece.
    taken: Box<dyn FnMut(u64) + Send>,
}

/// Where a thread writes a body.
#[derive(Debug)]
pub struct Pieces {
    sender: mpsc::Sender<Piece>,
    piece: Vec<u8>,
}

/// A body of what is written by a thread, both ends of it. Without [`Pieces::end`] it is a broken one.
pub fn written() -> (Pieces, Made) {
    let (sender, pieces) = mpsc::channel(AHEAD);
    (Pieces { sender, piece: Vec::new() }, Made { pieces, left: None, ended: false, taken: Box::new(|_| {}) })
}

/// A body of the bytes of `range` of a file, read by a thread of the runtime that this is called in. `taken` hears how many
/// bytes went out with each piece.
pub fn of_file(file: Arc<File>, range: Range<u64>, taken: impl FnMut(u64) + Send + 'static) -> Made {
    let (sender, pieces) = mpsc::channel(AHEAD);
    let left = range.end.saturating_sub(range.start);
    tokio::task::spawn_blocking(move || {
        let mut at = range.start;
        while at < range.end {
            let piece = read(&file, at..range.end);
            at += piece.as_ref().map_or(0, |piece| piece.len() as u64);
            let broken = piece.is_err();
            if sender.blocking_send(piece.map(Some)).is_err() || broken {
                return;
            }
        }
        // The counter does not wait for it.
        let _unneeded = sender.blocking_send(Ok(None));
    });
    Made { pieces, left: Some(left), ended: left == 0, taken: Box::new(taken) }
}

fn read(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let size = usize::try_from(range.end - range.start).unwrap_or(PIECE).min(PIECE);
    let mut piece = vec![0; size];
    file.read_exact_at(&mut piece, range.start)?;
    Ok(piece.into())
}

impl Pieces {
    fn send(&mut self, piece: Piece) -> io::Result<()> {
        self.sender.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Everything was written.
    ///
    /// # Errors
    /// `BrokenPipe` when the receiver is gone.
    pub fn end(mut self) -> io::Result<()> {
        self.flush()?;
        self.send(Ok(None))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.capacity() == 0 {
            self.piece.reserve(PIECE);
        }
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
        let piece = std::mem::take(&mut self.piece);
        self.send(Ok(Some(piece.into())))
    }
}

impl Body for Made {
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
            Some(Ok(Some(piece))) => {
                let size = piece.len() as u64;
                self.left = self.left.map(|left| left.saturating_sub(size));
                self.ended = self.left == Some(0);
                (self.taken)(size);
                Some(Ok(Frame::data(piece)))
            }
            Some(Ok(None)) => {
                self.ended = true;
                None
            }
            Some(Err(error)) => Some(Err(error)),
            // Without an explicit end the body is incomplete: the receiver must not take it as whole.
            None => Some(Err(io::Error::other("the body ended before it was complete"))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").field("left", &self.left).field("ended", &self.ended).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_file_from_anywhere_to_anywhere() {
        let bytes: Vec<u8> = (0..3 * PIECE + 7).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, &bytes).unwrap();
        let file = Arc::new(File::open(path).unwrap());
        for range in [0..bytes.len(), 5..5, 7..PIECE + 7, PIECE..bytes.len()] {
            let sent = Arc::new(AtomicU64::new(0));
            let told = sent.clone();
            let within = range.start as u64..range.end as u64;
            let body = of_file(file.clone(), within.clone(), move |taken| {
                told.fetch_add(taken, Ordering::Relaxed);
            });
            assert_eq!(body.size_hint().exact(), Some(within.end - within.start));
            assert_eq!(body.is_end_stream(), range.is_empty());
            assert!(body.collect().await.unwrap().to_bytes() == bytes[range.clone()], "{range:?}");
            assert_eq!(sent.load(Ordering::Relaxed), within.end - within.start);
        }
        // It is shorter than was thought.
        let long = of_file(file, 0..bytes.len() as u64 + 1, |_| {});
        assert_eq!(long.collect().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_written_body_ends_only_where_its_end_is_marked() {
        for (size, said) in [(0, true), (5, true), (2 * PIECE + 5, true), (5, false)] {
            let (mut pieces, body) = written();
            let writing = std::thread::spawn(move || {
                pieces.write_all(&vec![7; size])?;
                if said { pieces.end() } else { pieces.flush() }
            });
            assert_eq!(body.size_hint().exact(), None);
            let read = body.collect().await;
            writing.join().unwrap().unwrap();
            match read {
                Ok(read) => assert!(said && read.to_bytes() == vec![7; size]),
                Err(_) => assert!(!said, "{size} bytes"),
            }
        }
        let (mut pieces, body) = written();
        drop(body);
        let writing = std::thread::spawn(move || pieces.write_all(&[0; PIECE]));
        assert_eq!(writing.join().unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
