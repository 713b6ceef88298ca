//! The table for people and the same figures as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{compare::Comparison, run::Outcome, size::Size};

/// Everything one run found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Bytes of data in the disk.
    pub data_bytes: u64,
    /// Bytes of the deflate-compressed image of it.
    pub deflate_bytes: u64,
    /// The rows that ran.
    pub rows: Vec<Outcome>,
    /// The rows about calls, of CNI plugins and of the CSI driver.
    pub calls: Vec<Comparison>,
    /// Rows that could not be measured, and why.
    pub failed: Vec<(String, String)>,
    /// Sizes of the programs.
    pub sizes: Vec<Size>,
}

/// The heading of the table.
pub const HEADING: &str = "row                               ours s   CPU s  RSS MiB (bar)   peer (fastest variant)             peer s   CPU s   ratio (bar)    kept";

/// The lines of one row, one for each peer.
pub fn lines(outcome: &Outcome) -> String {
    let mut text = String::new();
    let ours = &outcome.ours;
    let memory = format!("{:.0} ({:.0})", ours.peak_mib, outcome.memory_mib);
    let first = format!("{:<32} {:>7.2} {:>7.2}  {memory:<14}", outcome.row, ours.wall, ours.cpu);
    let kept = |kept: bool| if kept { "yes" } else { "NO" };
    if outcome.against.is_empty() {
        _ = writeln!(
            text,
            "{first}  {:<34} {:>7} {:>7} {:>7} {:<9} {}",
            "",
            "",
            "",
            "",
            "",
            kept(outcome.memory_kept)
        );
    }
    for (index, one) in outcome.against.iter().enumerate() {
        let left = if index == 0 { first.as_str() } else { "" };
        let bar = format!("({:.2}{})", one.bar, if one.cpu_counts { ", CPU" } else { "" });
        let all = kept(one.kept && outcome.memory_kept);
        _ = writeln!(
            text,
            "{left:<65}  {:<34} {:>6.2} {:>7.2} {:>7.2} {bar:<11} {all}",
            one.peer, one.cost.wall, one.cost.cpu, one.ratio
        );
    }
    text
}

impl Report {
    /// Whether every row ran and met its bars.
    pub fn kept(&self) -> bool {
        self.failed.is_empty() && self.rows.iter().all(Outcome::kept) && self.calls.iter().all(|one| one.kept)
    }
}
