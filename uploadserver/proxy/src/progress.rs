//! Progress of an upload, as a bar or in log lines. Not here: the upload.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serve::push::Sent;

/// How often the bar is drawn, and how often a line is written where there is none.
const FRAME: Duration = Duration::from_millis(200);
const LINE: Duration = Duration::from_secs(10);

/// How far it is, as a bar on a terminal or lines elsewhere.
pub(crate) struct Progress {
    sent: Sent,
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
        let sent = Sent::default();
        let (drawn, read) = (bar.clone(), sent.clone());
        let shown = tokio::spawn(async move {
            let mut said = tokio::time::Instant::now();
            loop {
                tokio::time::sleep(FRAME).await;
                let now = read.now();
                drawn.set_position(now);
                if drawn.is_hidden() && said.elapsed() >= LINE {
                    said = tokio::time::Instant::now();
                    tracing::info!(sent = now, of = length, "uploading");
                }
            }
        });
        Self { sent, bar, shown }
    }

    /// The counter that the bar follows.
    pub(crate) fn sent(&self) -> &Sent {
        &self.sent
    }

    /// It is done.
    pub(crate) fn done(&self) {
        self.bar.set_position(self.sent.furthest());
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
