//! A file on its way: read by a thread a few pieces ahead of the network, counted, shown. Not here: to whom it goes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

/// Bytes that are read at once, and pieces that wait.
const PIECE: usize = 256 << 10;
const AHEAD: usize = 4;
/// How often the bar is drawn, and how often a line is written where there is none.
const FRAME: Duration = Duration::from_millis(200);
const LINE: Duration = Duration::from_secs(10);

/// The end of a file, as a body.
pub(crate) struct FileBody {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
    at: u64,
    reached: Arc<Reached>,
}

#[derive(Debug, Default)]
struct Reached {
    now: AtomicU64,
    furthest: AtomicU64,
}

impl FileBody {
    /// What `file` holds from `offset` to `length`.
    pub(crate) fn new(file: Arc<File>, offset: u64, length: u64, progress: &Progress) -> Self {
        let (sender, pieces) = mpsc::channel(AHEAD);
        tokio::task::spawn_blocking(move || {
            let mut at = offset;
            while at < length {
                let piece = read(&file, at, length);
                at += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                let ended = piece.is_err();
                if sender.blocking_send(piece).is_err() || ended {
                    return;
                }
            }
        });
        progress.reached.now.store(offset, Ordering::Relaxed);
        Self { pieces, left: length - offset, at: offset, reached: progress.reached.clone() }
    }
}

fn read(file: &File, at: u64, length: u64) -> io::Result<Bytes> {
    let size = usize::try_from(length - at).unwrap_or(PIECE).min(PIECE);
    let mut piece = vec![0; size];
    file.read_exact_at(&mut piece, at)?;
    Ok(piece.into())
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        Poll::Ready(piece.map(|piece| {
            piece.map(|piece| {
                let size = piece.len() as u64;
                (self.left, self.at) = (self.left.saturating_sub(size), self.at + size);
                self.reached.now.store(self.at, Ordering::Relaxed);
                self.reached.furthest.fetch_max(self.at, Ordering::Relaxed);
                Frame::data(piece)
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// How far it is, as a bar on a terminal or lines elsewhere.
pub(crate) struct Progress {
    reached: Arc<Reached>,
    bar: ProgressBar,
    shown: tokio::task::JoinHandle<()>,
}

impl Progress {
    /// Of `length` bytes.
    pub(crate) fn start(length: u64) -> Self {
        let bar = ProgressBar::new(length);
        let style = "{wide_bar} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let over = bar.clone();
        serve::logs::write_inside(Box::new(move |write| over.suspend(write)));
        let reached = Arc::new(Reached::default());
        let (drawn, read) = (bar.clone(), reached.clone());
        let shown = tokio::spawn(async move {
            let mut said = tokio::time::Instant::now();
            loop {
                tokio::time::sleep(FRAME).await;
                let now = read.now.load(Ordering::Relaxed);
                drawn.set_position(now);
                if drawn.is_hidden() && said.elapsed() >= LINE {
                    said = tokio::time::Instant::now();
                    tracing::info!(sent = now, of = length, "uploading");
                }
            }
        });
        Self { reached, bar, shown }
    }

    /// The most bytes that were sent.
    pub(crate) fn furthest(&self) -> u64 {
        self.reached.furthest.load(Ordering::Relaxed)
    }

    /// It is done.
    pub(crate) fn done(&self) {
        self.bar.set_position(self.reached.furthest.load(Ordering::Relaxed));
        self.bar.finish();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shown.abort();
        if !self.bar.is_finished() {
            self.bar.abandon();
        }
    }
}
