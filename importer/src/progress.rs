//! Progress of an import in three forms: a bar on a terminal, plain lines elsewhere, a metric for the controller.
//! Not here: counting (`disk_image::volume::Meter`), the final report.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::names;
use disk_image::volume::Meter;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use serve::http::Route;
use serve::metrics::{Kind, Page};
use serve::tls::Identity;

use crate::config::Show;
use crate::report::size;

/// How often the bar is drawn.
const FRAME: Duration = Duration::from_millis(200);
/// How often a plain line is written.
const LINE: Duration = Duration::from_secs(10);

/// The metrics page. The controller finds the progress by a regular expression: one label, one space, a plain
/// decimal.
fn metrics(meter: &Meter, owner_uid: &str) -> String {
    let mut page = Page::default();
    page.begin(names::IMPORT_PROGRESS, Kind::Counter, "The import progress in percentage");
    let owner = [(names::OWNER_LABEL, owner_uid)];
    page.sample(names::IMPORT_PROGRESS, &owner, meter.percent_text());
    for (name, help, value) in [
        ("ferrovirt_import_read_bytes_total", "Bytes read from the source", meter.transfer.read()),
        (
            "ferrovirt_import_written_bytes_total",
            "Bytes of data written to the target",
            meter.transfer.written(),
        ),
    ] {
        page.single(name, Kind::Counter, help, value);
    }
    if let Some(engine) = meter.current_engine() {
        let name = "ferrovirt_import_engine_info";
        page.begin(name, Kind::Gauge, "How the target is written");
        let direct = engine.direct.to_string();
        page.sample(name, &[("engine", engine.kind.name()), ("direct", &direct)], 1);
    }
    page.text()
}

/// Serves the metrics. A failure is a warning: an import works without them.
pub(crate) fn serve(meter: &Meter, owner_uid: &str, address: SocketAddr) {
    let (meter, owner) = (meter.clone(), owner_uid.to_owned());
    let routes = vec![
        Route { path: names::METRICS_PATH, body: Box::new(move || Ok(metrics(&meter, &owner))) },
        Route { path: names::HEALTH_PATH, body: Box::new(|| Ok("ok\n".to_owned())) },
    ];
    let served = serve::http::serve(address, Some(&Identity::self_signed()), None, routes);
    match served {
        Ok(local) => tracing::info!(%local, "serving metrics"),
        Err(error) => tracing::warn!(error = crate::error::chain(&error), "metrics are not served"),
    }
}

/// Shows progress until it is dropped.
#[derive(Debug)]
pub(crate) struct Shown {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Shown {
    /// Starts showing.
    pub(crate) fn start(meter: &Meter, show: Show) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (meter, end) = (meter.clone(), ended.clone());
        let thread = match show {
            Show::None => None,
            // A thread that cannot be started only means that nothing is shown.
            Show::Bar => {
                std::thread::Builder::new().name("progress".into()).spawn(move || bar(&meter, &end)).ok()
            }
            Show::Lines => std::thread::Builder::new()
                .name("progress".into())
                .spawn(move || percentages(&meter, &end))
                .ok(),
            Show::Plain => {
                std::thread::Builder::new().name("progress".into()).spawn(move || lines(&meter, &end)).ok()
            }
        };
        Self { ended, thread }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            drop(thread.join());
        }
    }
}

/// Recent speed and what it means for the time that is left.
struct Pace {
    started: Instant,
    last: (Instant, u64),
    rate: f64,
}

impl Pace {
    fn new() -> Self {
        let now = Instant::now();
        Self { started: now, last: (now, 0), rate: 0.0 }
    }

    /// Bytes per second, smoothed over a few seconds.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    fn rate(&mut self, bytes: u64) -> f64 {
        let past = self.last.0.elapsed().as_secs_f64();
        if past > 0.05 {
            let now = bytes.saturating_sub(self.last.1) as f64 / past;
            let weight = if self.rate == 0.0 { 1.0 } else { (past / 3.0).min(1.0) };
            self.rate += (now - self.rate) * weight;
            self.last = (Instant::now(), bytes);
        }
        self.rate
    }

    fn remaining(&self, percent: f64) -> Option<Duration> {
        let seconds = self.started.elapsed().as_secs_f64() / percent * (100.0 - percent);
        (percent >= 1.0).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
    }

    /// "12.0 MiB/s, 1:05 left".
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate for people, never negative"
    )]
    fn words(&mut self, meter: &Meter) -> String {
        let rate = self.rate(meter.transfer.read());
        let mut words = format!("{}/s", size(rate as u64));
        if let Some(left) = self.remaining(meter.percent()) {
            let seconds = left.as_secs();
            let _infallible = write!(words, ", {}:{:02} left", seconds / 60, seconds % 60);
        }
        words
    }
}

/// The percentage, whenever it is another one.
fn percentages(meter: &Meter, end: &AtomicBool) {
    let mut last = String::new();
    while !end.load(Ordering::Relaxed) {
        let percent = meter.percent_text();
        if percent != last {
            // The reader may be gone; the import continues.
            drop(writeln!(std::io::stdout().lock(), "{percent}"));
            last = percent;
        }
        std::thread::park_timeout(FRAME);
    }
}

fn bar(meter: &Meter, end: &AtomicBool) {
    let bar = ProgressBar::with_draw_target(Some(10_000), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{prefix:<10} [{bar:30}] {percent:>3}%  {msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let shown = bar.clone();
    serve::logs::write_inside(Box::new(move |write| shown.suspend(write)));
    let mut pace = Pace::new();
    while !end.load(Ordering::Relaxed) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 10 000")]
        bar.set_position((meter.percent() * 100.0) as u64);
        bar.set_prefix(meter.current_phase());
        bar.set_message(pace.words(meter));
        std::thread::park_timeout(FRAME);
    }
    bar.finish_and_clear();
}

fn lines(meter: &Meter, end: &AtomicBool) {
    let mut pace = Pace::new();
    let mut phase = "";
    let mut written = Instant::now();
    while !end.load(Ordering::Relaxed) {
        let now = meter.current_phase();
        if now != phase || written.elapsed() >= LINE {
            let line = format!(
                "{now}: {:.0}%, {} read, {}\n",
                meter.percent(),
                size(meter.transfer.read()),
                pace.words(meter)
            );
            // A closed stderr is not an error.
            drop(std::io::stderr().lock().write_all(line.as_bytes()));
            (phase, written) = (now, Instant::now());
        }
        std::thread::park_timeout(FRAME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_is_what_the_controller_looks_for() {
        let meter = Meter::default();
        let line = |meter: &Meter| {
            metrics(meter, "1-2-3")
                .lines()
                .find(|l| l.starts_with(names::IMPORT_PROGRESS))
                .unwrap()
                .to_owned()
        };
        assert_eq!(line(&meter), r#"kubevirt_cdi_import_progress_total{ownerUID="1-2-3"} 0"#);
        meter.complete();
        assert_eq!(line(&meter), r#"kubevirt_cdi_import_progress_total{ownerUID="1-2-3"} 100"#);
        assert!(metrics(&meter, "a\"\\\n").contains(r#"{ownerUID="a\"\\\n"} "#));
    }
}
