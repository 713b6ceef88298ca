//! Labels and annotations of the Node object, from what is known: pure.

use std::collections::BTreeMap;
use std::time::Duration;

use api::nodes::{HEARTBEAT, PROCESSOR, SCHEDULABLE};
use serde_json::{Value, json};

/// A node with this label keeps the processor labels it has.
pub(crate) const SKIP: &str = "node-labeller.kubevirt.io/skip-node";
/// Upstream's rhythm: one minute, and up to as much again and a fifth.
const HEARTBEAT_MIN: Duration = Duration::from_secs(60);
const HEARTBEAT_SPREAD: Duration = Duration::from_secs(72);

/// Facts about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Launcher pods may come.
    pub(crate) schedulable: bool,
    /// Labels of the processor and of machine types, without their prefixes' meaning.
    pub(crate) labels: BTreeMap<String, String>,
}

/// Time until the next heartbeat; `random` is in `0..1`.
pub(crate) fn next_heartbeat(random: f64) -> Duration {
    HEARTBEAT_MIN + HEARTBEAT_SPREAD.mul_f64(random.clamp(0.0, 1.0))
}

/// The merge patch that makes a node's labels true and notes the heartbeat `now` (RFC 3339).
pub(crate) fn patch(facts: &Facts, found: &BTreeMap<String, String>, now: &str) -> Value {
    let mut labels = serde_json::Map::new();
    let schedulable = facts.schedulable.to_string();
    if found.get(SCHEDULABLE) != Some(&schedulable) {
        labels.insert(SCHEDULABLE.to_owned(), json!(schedulable));
    }
    if !found.contains_key(SKIP) {
        for (name, value) in &facts.labels {
            if found.get(name) != Some(value) {
                labels.insert(name.clone(), json!(value));
            }
        }
        // Nothing is known yet right after the start.
        if !facts.labels.is_empty() {
            let own = |name: &String| PROCESSOR.iter().any(|prefix| name.starts_with(prefix));
            for name in found.keys().filter(|name| own(name) && !facts.labels.contains_key(*name)) {
                labels.insert(name.clone(), Value::Null);
            }
        }
    }
    let mut metadata = json!({"annotations": {HEARTBEAT: now}});
    if !labels.is_empty() {
        metadata["labels"] = Value::Object(labels);
    }
    json!({"metadata": metadata})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_labels_that_are_not_true_are_written() {
        const VENDOR: &str = "cpu-vendor.node.kubevirt.io/Intel";
        const OLD: &str = "cpu-feature.node.kubevirt.io/old";
        let facts = |schedulable| Facts { schedulable, labels: map(&[(VENDOR, "true")]) };
        let unknown = Facts { schedulable: false, ..Facts::default() };
        for (name, facts, found, wanted) in [
            ("new", facts(true), map(&[]), json!({SCHEDULABLE: "true", VENDOR: "true"})),
            ("true already", facts(true), map(&[(SCHEDULABLE, "true"), (VENDOR, "true")]), Value::Null),
            (
                "stops",
                facts(false),
                map(&[(SCHEDULABLE, "true"), (VENDOR, "true")]),
                json!({SCHEDULABLE: "false"}),
            ),
            (
                "old feature",
                facts(true),
                map(&[(SCHEDULABLE, "true"), (VENDOR, "true"), (OLD, "true")]),
                json!({OLD: null}),
            ),
            (
                "no realtime any more",
                facts(true),
                map(&[(SCHEDULABLE, "true"), (VENDOR, "true"), ("kubevirt.io/realtime", "")]),
                json!({"kubevirt.io/realtime": null}),
            ),
            (
                "no encryption of memory any more",
                facts(true),
                map(&[
                    (SCHEDULABLE, "true"),
                    (VENDOR, "true"),
                    ("kubevirt.io/sev", ""),
                    ("kubevirt.io/sev-es", ""),
                    ("kubevirt.io/tdx", ""),
                ]),
                json!({"kubevirt.io/sev": null, "kubevirt.io/sev-es": null, "kubevirt.io/tdx": null}),
            ),
            (
                "foreign label",
                facts(true),
                map(&[(SCHEDULABLE, "true"), (VENDOR, "true"), ("zone", "a")]),
                Value::Null,
            ),
            (
                "start",
                unknown.clone(),
                map(&[(SCHEDULABLE, "true"), (OLD, "true")]),
                json!({SCHEDULABLE: "false"}),
            ),
            (
                "labels are left alone",
                facts(true),
                map(&[(SKIP, "true"), (OLD, "true")]),
                json!({SCHEDULABLE: "true"}),
            ),
        ] {
            let patch = patch(&facts, &found, "now");
            assert_eq!(patch["metadata"]["annotations"][HEARTBEAT], "now", "{name}");
            assert_eq!(patch["metadata"]["labels"], wanted, "{name}");
        }
    }

    #[test]
    fn heartbeats_are_a_minute_to_two_minutes_and_a_fifth_apart() {
        assert_eq!(next_heartbeat(0.0).as_secs(), 60);
        assert_eq!(next_heartbeat(1.0).as_secs(), 132);
    }
}
