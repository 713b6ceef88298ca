//! How long instances take from phase to phase, counted as the API server reports their changes.
//!
//! Times are those that the instances' statuses have, in seconds. Not here: when a phase changes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serve::metrics::{Kind, Page};

use crate::compute::clock;
use crate::view::Instance;

/// Upper bounds of the buckets, in seconds; upstream's.
const BOUNDS: [u64; 14] = [1, 2, 5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 300, 600];

/// The histograms: name, help.
const HISTOGRAMS: [(&str, &str); 3] = [
    (
        "kubevirt_vmi_phase_transition_time_seconds",
        "Histogram of VM phase transitions duration between different phases in seconds.",
    ),
    (
        "kubevirt_vmi_phase_transition_time_from_creation_seconds",
        "Histogram of VM phase transitions duration from creation time in seconds.",
    ),
    (
        "kubevirt_vmi_phase_transition_time_from_deletion_seconds",
        "Histogram of VM phase transitions duration from deletion time in seconds.",
    ),
];

/// Counts of one series.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Of each bucket, without those of the buckets before.
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: u64,
}

/// Labels of a series.
type Labels = Vec<(&'static str, String)>;

/// Durations of changes since the start of the process.
#[derive(Debug, Default)]
pub(in crate::compute) struct Transitions(Mutex<[BTreeMap<Labels, Counts>; HISTOGRAMS.len()]>);

impl Transitions {
    /// Counts a change of an instance's phase.
    pub(in crate::compute) fn observe(&self, before: &Instance, after: &Instance) {
        let (from, to) = (before.status.phase.as_str(), after.status.phase.as_str());
        if from == to || before.metadata.uid != after.metadata.uid {
            return;
        }
        let entered = |phase: &str| {
            let stamp = after.status.phase_transition_timestamps.iter().find(|one| one.phase == phase)?;
            clock::seconds(&stamp.phase_transition_timestamp)
        };
        let meta = &after.metadata;
        let since = |at: Option<&str>| at.and_then(clock::seconds);
        let Some(now) = entered(to) else { return };
        let created = since(meta.creation_timestamp.as_deref());
        let of_phase = || vec![("phase", to.to_owned())];
        let mut between = of_phase();
        between.push(("last_phase", from.to_owned()));
        // An instance without a phase waits since it was created.
        self.add(0, between, if from.is_empty() { created } else { entered(from) }, now);
        self.add(1, of_phase(), created, now);
        if after.is_final() {
            self.add(2, of_phase(), since(meta.deletion_timestamp.as_deref()), now);
        }
    }

    fn add(&self, histogram: usize, labels: Labels, from: Option<u64>, to: u64) {
        let Some(from) = from else { return };
        let seconds = to.saturating_sub(from);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(series) = all.get_mut(histogram) else { return };
        let counts = series.entry(labels).or_default();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound);
        if let Some(count) = bucket.and_then(|at| counts.buckets.get_mut(at)) {
            *count += 1;
        }
        counts.count += 1;
        counts.sum = counts.sum.saturating_add(seconds);
    }

    /// Adds the histograms.
    pub(in crate::compute) fn write(&self, page: &mut Page) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for ((name, help), series) in HISTOGRAMS.iter().zip(all.iter()) {
            page.begin(name, Kind::Histogram, help);
            let bucket = format!("{name}_bucket");
            for (labels, counts) in series {
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(label, value)| (*label, value.as_str())).collect();
                let mut sum = 0;
                for (bound, count) in BOUNDS.iter().zip(counts.buckets) {
                    sum += count;
                    page.sample(&bucket, &[&labels[..], &[("le", bound.to_string().as_str())]].concat(), sum);
                }
                page.sample(&bucket, &[&labels[..], &[("le", "+Inf")]].concat(), counts.count);
                page.sample(&format!("{name}_sum"), &labels, counts.sum);
                page.sample(&format!("{name}_count"), &labels, counts.count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(phase: &str, deleted: Option<&str>) -> Instance {
        let stamp = |phase: &str, second: u64| -> Value {
            json!({"phase": phase, "phaseTransitionTimestamp": format!("1970-01-01T00:00:{second:02}Z")})
        };
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "creationTimestamp": "1970-01-01T00:00:10Z",
                "deletionTimestamp": deleted},
            "status": {"phase": phase, "phaseTransitionTimestamps": [
                stamp("Pending", 11), stamp("Running", 14), stamp("Succeeded", 50)]},
        }))
        .unwrap()
    }

    #[test]
    fn changes_of_phases_are_counted_from_creation_and_deletion() {
        let transitions = Transitions::default();
        transitions.observe(&instance("Pending", None), &instance("Running", None));
        transitions.observe(&instance("Running", None), &instance("Running", None));
        let deleted = Some("1970-01-01T00:00:48Z");
        transitions.observe(&instance("Running", deleted), &instance("Succeeded", deleted));
        let mut page = Page::default();
        transitions.write(&mut page);
        let text = page.text();
        for line in [
            r#"kubevirt_vmi_phase_transition_time_seconds_sum{phase="Running",last_phase="Pending"} 3"#,
            r#"kubevirt_vmi_phase_transition_time_from_creation_seconds_bucket{phase="Running",le="2"} 0"#,
            r#"kubevirt_vmi_phase_transition_time_from_creation_seconds_bucket{phase="Running",le="5"} 1"#,
            r#"kubevirt_vmi_phase_transition_time_from_creation_seconds_bucket{phase="Running",le="+Inf"} 1"#,
            r#"kubevirt_vmi_phase_transition_time_from_creation_seconds_count{phase="Running"} 1"#,
            r#"kubevirt_vmi_phase_transition_time_from_deletion_seconds_sum{phase="Succeeded"} 2"#,
            "# TYPE kubevirt_vmi_phase_transition_time_from_deletion_seconds histogram",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }
}
