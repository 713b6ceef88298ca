//! Metrics as Prometheus reads them: its text format, version 0.0.4, and a histogram of times. Not here: any metric's
//! name.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The media type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page in the making.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

/// Type of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up only.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, sum and count, which the caller writes.
    Histogram,
}

impl Page {
    /// Begins a metric; its samples follow.
    pub fn begin(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _infallible = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// One value of the metric that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (index, (label, of)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _infallible = write!(self.text, "{label}=\"{of}\"");
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _infallible = writeln!(self.text, " {value}");
    }

    /// A metric of one value without labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.begin(name, kind, help);
        self.sample(name, &[], value);
    }

    /// A histogram.
    pub fn times(&mut self, name: &str, help: &str, times: &Times) {
        self.begin(name, Kind::Histogram, help);
        let bucket = format!("{name}_bucket");
        let mut sum = 0;
        for (count, (_, shown)) in times.counts.iter().zip(BOUNDS) {
            sum += count.load(Ordering::Relaxed);
            self.sample(&bucket, &[("le", shown)], sum);
        }
        let nanoseconds = Duration::from_nanos(times.nanoseconds.load(Ordering::Relaxed));
        self.sample(&format!("{name}_sum"), &[], nanoseconds.as_secs_f64());
        self.sample(&format!("{name}_count"), &[], sum);
    }

    /// The page's text.
    pub fn text(self) -> String {
        self.text
    }
}

/// Upper bounds of the buckets: nanoseconds, and seconds as they are written.
const BOUNDS: [(u64, &str); 9] = [
    (100_000, "0.0001"),
    (300_000, "0.0003"),
    (1_000_000, "0.001"),
    (3_000_000, "0.003"),
    (10_000_000, "0.01"),
    (100_000_000, "0.1"),
    (1_000_000_000, "1"),
    (10_000_000_000, "10"),
    (u64::MAX, "+Inf"),
];

/// Durations of repeated operations, as a histogram; counted without a lock.
#[derive(Debug, Default)]
pub struct Times {
    counts: [AtomicU64; BOUNDS.len()],
    nanoseconds: AtomicU64,
}

impl Times {
    /// Nothing was counted yet.
    pub const fn new() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BOUNDS.len()], nanoseconds: AtomicU64::new(0) }
    }

    /// Counts one time.
    pub fn add(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) =
            BOUNDS.iter().position(|(bound, _)| took <= *bound).and_then(|at| self.counts.get(at))
        {
            count.fetch_add(1, Ordering::Relaxed);
            self.nanoseconds.fetch_add(took, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.begin("a", Kind::Gauge, "what");
        page.sample("a", &[("x", "q\"\\\n"), ("y", "z")], 5);
        page.single("b_total", Kind::Counter, "how many", 2);
        assert_eq!(
            page.text(),
            "# HELP a what\n# TYPE a gauge\na{x=\"q\\\"\\\\\\n\",y=\"z\"} 5\n\
             # HELP b_total how many\n# TYPE b_total counter\nb_total 2\n"
        );
    }

    #[test]
    fn times_fall_into_buckets_that_add_up() {
        let times = Times::new();
        for micros in [50, 100, 101, 2_000, 60_000_000] {
            times.add(Duration::from_micros(micros));
        }
        let mut page = Page::default();
        page.times("t_seconds", "how long", &times);
        let text = page.text();
        for line in [
            "# TYPE t_seconds histogram",
            "t_seconds_bucket{le=\"0.0001\"} 2",
            "t_seconds_bucket{le=\"0.0003\"} 3",
            "t_seconds_bucket{le=\"0.003\"} 4",
            "t_seconds_bucket{le=\"10\"} 4",
            "t_seconds_bucket{le=\"+Inf\"} 5",
            "t_seconds_sum 60.002251",
            "t_seconds_count 5",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
    }
}
