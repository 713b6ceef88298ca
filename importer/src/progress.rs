//! How far the import is, told three ways: a bar on a terminal, plain lines elsewhere, a metric for the controller.
//! Not here: counting (`disk_image::transfer::Progress`), what the final report says.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::names;
use disk_image::transfer::Progress;
use disk_image::write::EngineNow;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use serve::https::Route;

use crate::config::Show;
use crate::report::size;

/// How often the bar is drawn.
const FRAME: Duration = Duration::from_millis(200);
/// How often a plain line is written.
const LINE: Duration = Duration::from_secs(10);

/// What there is to tell. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    /// The transfer's counters.
    pub(crate) transfer: Progress,
    told: Arc<Told>,
}

#[derive(Debug, Default)]
struct Told {
    phase: Mutex<&'static str>,
    engine: Mutex<Option<EngineNow>>,
    complete: AtomicBool,
    /// Bytes of the source, when reading them is all the progress there is; 0 when not known.
    expected: AtomicU64,
}

impl Meter {
    /// Progress is the share of `size` that was read: for what is no disk.
    pub(crate) fn expect_bytes(&self, size: Option<u64>) {
        self.told.expected.store(size.unwrap_or(0), Ordering::Relaxed);
    }

    /// What the import is doing now, one or two words.
    pub(crate) fn phase(&self, phase: &'static str) {
        *self.told.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        tracing::debug!(phase, "now");
    }

    /// The engine that writes.
    pub(crate) fn engine(&self, engine: EngineNow) {
        *self.told.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
    }

    /// All is done.
    pub(crate) fn complete(&self) {
        self.told.complete.store(true, Ordering::Relaxed);
    }

    fn percent(&self) -> f64 {
        if self.told.complete.load(Ordering::Relaxed) {
            return 100.0;
        }
        match self.told.expected.load(Ordering::Relaxed) {
            0 => self.transfer.percent().clamp(0.0, 100.0),
            #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
            expected => (self.transfer.read() as f64 / expected as f64 * 100.0).clamp(0.0, 100.0),
        }
    }

    fn current_phase(&self) -> &'static str {
        *self.told.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metrics page. The controller finds the progress by a regular expression: one label, one space, a plain
    /// decimal.
    pub(crate) fn metrics(&self, owner_uid: &str) -> String {
        let name = names::IMPORT_PROGRESS;
        let mut page = format!(
            "# HELP {name} The import progress in percentage\n# TYPE {name} counter\n{name}{{{}=\"{}\"}} {}\n",
            names::OWNER_LABEL,
            label(owner_uid),
            decimal(self.percent()),
        );
        for (name, help, value) in [
            ("ferrovirt_import_read_bytes_total", "Bytes read from the source", self.transfer.read()),
            (
                "ferrovirt_import_written_bytes_total",
                "Bytes of data written to the target",
                self.transfer.written(),
            ),
        ] {
            let _infallible = write!(page, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n");
        }
        if let Some(engine) = &*self.told.engine.lock().unwrap_or_else(PoisonError::into_inner) {
            let engine = engine.get();
            let name = "ferrovirt_import_engine_info";
            let _infallible = write!(
                page,
                "# HELP {name} How the target is written\n# TYPE {name} gauge\n{name}{{engine=\"{}\",direct=\"{}\"}} 1\n",
                engine.kind.name(),
                engine.direct,
            );
        }
        page
    }
}

/// At most two decimals, no exponent.
fn decimal(percent: f64) -> String {
    let text = format!("{percent:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Serves the metrics. That nobody can look is no reason not to import: failing is a warning.
pub(crate) fn serve(meter: &Meter, owner_uid: &str, address: SocketAddr) {
    let routes = || {
        let (meter, owner) = (meter.clone(), owner_uid.to_owned());
        vec![
            Route { path: names::METRICS_PATH, body: Box::new(move || meter.metrics(&owner)) },
            Route { path: names::HEALTH_PATH, body: Box::new(|| "ok\n".to_owned()) },
        ]
    };
    let mut served = serve::https::serve(address, routes());
    if served.is_err() && address.ip() == Ipv6Addr::UNSPECIFIED {
        // A kernel without IPv6.
        served = serve::https::serve(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())), routes());
    }
    match served {
        Ok(local) => tracing::info!(%local, "serving metrics"),
        Err(error) => tracing::warn!(error = crate::report::chain(&error), "metrics are not served"),
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
            // Whoever closed stderr does not want to know.
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
            meter.metrics("1-2-3").lines().find(|l| l.starts_with(names::IMPORT_PROGRESS)).unwrap().to_owned()
        };
        assert_eq!(line(&meter), r#"kubevirt_cdi_import_progress_total{ownerUID="1-2-3"} 0"#);
        meter.complete();
        assert_eq!(line(&meter), r#"kubevirt_cdi_import_progress_total{ownerUID="1-2-3"} 100"#);
        assert!(meter.metrics("a\"\\\n").contains(r#"{ownerUID="a\"\\\n"} "#));
    }

    #[test]
    fn percents_are_plain_decimals() {
        for (percent, text) in
            [(0.0, "0"), (0.0001, "0"), (12.345, "12.35"), (50.0, "50"), (99.999, "100"), (7.5, "7.5")]
        {
            assert_eq!(decimal(percent), text);
        }
    }
}
