//! Comparisons of calls: least and median of ours and of the reference, the required relation between them, and the line of
//! the table.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// The heading of the table.
pub const HEADING: &str = "row                              ours min   p50 ms   beside                           min   p50 ms   compared        bar       kept";

/// Least and median of some calls, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Least.
    pub least: f64,
    /// Median.
    pub median: f64,
}

impl Figures {
    /// Of calls that took so long.
    ///
    /// # Errors
    /// There is no call.
    pub fn of(mut times: Vec<Duration>) -> Result<Self> {
        times.sort_unstable();
        let milliseconds = |time: &Duration| time.as_secs_f64() * 1e3;
        let least = times.first().map(milliseconds).context("at least one call")?;
        let median = times.get(times.len() / 2).map(milliseconds).context("at least one call")?;
        Ok(Self { least, median })
    }

    /// One figure that is neither least nor median.
    pub fn one(figure: f64) -> Self {
        Self { least: figure, median: figure }
    }
}

/// The required relation between our figure and the peer's.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum Bar {
    /// Least and median are faster by this factor.
    Faster(f64),
    /// The median takes at most so many times as long.
    Slower(f64),
    /// The least is at most so many milliseconds longer.
    Within(f64),
    /// Least and median are at most so many milliseconds longer.
    BothWithin(f64),
    /// The least is below so many milliseconds, or below the bound in the row's name.
    Below(f64),
    /// Both are the same.
    Same,
    /// Nothing: it is printed.
    None,
}

/// One comparison.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The row.
    pub row: String,
    /// Ours.
    pub ours: Figures,
    /// With what.
    pub beside: String,
    /// That.
    pub other: Figures,
    /// The requirement.
    pub bar: Bar,
    /// Whether it does.
    pub kept: bool,
}

impl Comparison {
    /// The comparison of a row.
    pub fn new(row: &str, ours: Figures, beside: &str, other: Figures, bar: Bar) -> Self {
        let kept = match bar {
            Bar::Faster(factor) => other.least / ours.least >= factor && other.median / ours.median >= factor,
            Bar::Slower(factor) => ours.median / other.median <= factor,
            Bar::Within(more) => ours.least - other.least <= more,
            Bar::BothWithin(more) => ours.least - other.least <= more && ours.median - other.median <= more,
            Bar::Same => {
                ours.least.total_cmp(&other.least).is_eq() && ours.median.total_cmp(&other.median).is_eq()
            }
            Bar::None => true,
            Bar::Below(most) => ours.least < most,
        };
        Self { row: row.to_owned(), ours, beside: beside.to_owned(), other, bar, kept }
    }

    /// Its line of the table.
    pub fn line(&self) -> String {
        let (compared, bar) = match self.bar {
            Bar::Faster(factor) => (
                format!(
                    "{:.2}× {:.2}×",
                    self.other.least / self.ours.least,
                    self.other.median / self.ours.median
                ),
                format!("≥ {factor}×"),
            ),
            Bar::Slower(factor) => {
                (format!("{:.2}×", self.ours.median / self.other.median), format!("≤ {factor}×"))
            }
            Bar::Within(more) => {
                (format!("{:+.2} ms", self.ours.least - self.other.least), format!("≤ {more} ms"))
            }
            Bar::BothWithin(more) => (
                format!(
                    "{:+.2} {:+.2} ms",
                    self.ours.least - self.other.least,
                    self.ours.median - self.other.median
                ),
                format!("≤ {more} ms"),
            ),
            Bar::Same => (String::new(), "the same".to_owned()),
            Bar::None => (format!("{:.2}×", self.ours.median / self.other.median), "-".to_owned()),
            Bar::Below(most) => (String::new(), format!("< {most}")),
        };
        let mut text = String::new();
        let kept = if self.kept { "yes" } else { "NO" };
        _ = writeln!(
            text,
            "{:<32} {:>8.2} {:>8.2}   {:<28} {:>7.2} {:>8.2}   {compared:<15} {bar:<9} {kept}",
            self.row, self.ours.least, self.ours.median, self.beside, self.other.least, self.other.median
        );
        text
    }
}
