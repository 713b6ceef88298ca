//! How far a file is on its way: counted, shown as a bar or in lines. Not here: to whom it goes.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serve::body::{self, Made};

/// How often the bar is drawn, and how often a line is written where there is none.
const FRAME: Duration = Duration::from_millis(200);
const LINE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Reached {
    now: AtomicU64,
    furthest: AtomicU64,
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

    /// What `file` holds in `range`, as a body.
    pub(crate) fn body(&self, file: Arc<File>, range: Range<u64>) -> Made {
        let (reached, mut at) = (self.reached.clone(), range.start);
        reached.now.store(at, Ordering::Relaxed);
        body::of_file(file, range, move |taken| {
            at += taken;
            reached.now.store(at, Ordering::Relaxed);
            reached.furthest.fetch_max(at, Ordering::Relaxed);
        })
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
