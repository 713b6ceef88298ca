//! Warnings about claims and workers that wait: one read of a namespace's events serves all that wait in it.
//!
//! Not here: the request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::storage::datavolume::status::NOT_PROVISIONED;
use crate::storage::populate::mirror::HINDRANCES;
use crate::storage::seen::worker::Hindrance;

/// Shortest time between two reads: each is of all events of a namespace.
pub(super) const PAUSE: Duration = Duration::from_millis(250);
/// Age up to which a read serves.
const FRESH: Duration = Duration::from_secs(1);

/// The last warning about each object, of those with the reason of a wait; by the object's uid.
#[derive(Debug, Default)]
pub(super) struct Warnings(HashMap<String, Warning>);

#[derive(Clone, Debug, Default)]
struct Warning {
    /// Of its last occurrence.
    time: String,
    /// How often warnings with such reasons occurred.
    times: u64,
    last: Hindrance,
}

impl Warnings {
    /// Takes an event into account.
    pub(super) fn add(&mut self, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let reason = text(&event["reason"]);
        if reason != NOT_PROVISIONED && !HINDRANCES.contains(&reason.as_str()) {
            return;
        }
        let (uid, time) = (text(&event["involvedObject"]["uid"]), text(&event["lastTimestamp"]));
        let warning = self.0.entry(uid).or_default();
        warning.times += event["count"].as_u64().unwrap_or(1);
        if warning.time <= time {
            warning.last = Hindrance { reason, message: text(&event["message"]) };
            warning.time = time;
        }
    }

    /// The warning about an object.
    pub(super) fn about(&self, uid: &str) -> Option<Hindrance> {
        self.0.get(uid).map(|warning| warning.last.clone())
    }

    /// The warning about an object, if one occurred more than once: what occurred once has often passed.
    pub(super) fn repeated(&self, uid: &str) -> Option<Hindrance> {
        self.0.get(uid).filter(|warning| warning.times > 1).map(|warning| warning.last.clone())
    }
}

/// Knowledge about a namespace.
#[derive(Debug)]
pub(super) enum Known {
    /// These warnings.
    Warnings(Arc<Warnings>),
    /// Nothing: its events are to be read now.
    Nothing,
    /// Nothing, and events were read within [`PAUSE`]: it is asked for later.
    Later,
}

/// Reads of events.
#[derive(Debug, Default)]
pub(super) struct Reads(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    last: Option<Instant>,
    namespaces: HashMap<String, (Instant, Arc<Warnings>)>,
}

impl Reads {
    /// The knowledge about a namespace. The read that [`Known::Nothing`] asks for counts from now on.
    pub(super) fn of(&self, namespace: &str, now: Instant) -> Known {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.namespaces.retain(|_, (read, _)| now.saturating_duration_since(*read) < FRESH);
        if let Some((_, warnings)) = recent.namespaces.get(namespace) {
            return Known::Warnings(Arc::clone(warnings));
        }
        if recent.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            return Known::Later;
        }
        recent.last = Some(now);
        Known::Nothing
    }

    /// Keeps the warnings of a namespace that was read at this time.
    pub(super) fn keep(&self, namespace: &str, read: Instant, warnings: Warnings) -> Arc<Warnings> {
        let warnings = Arc::new(warnings);
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        recent.namespaces.insert(namespace.to_owned(), (read, Arc::clone(&warnings)));
        warnings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(uid: &str, reason: &str, time: &str, message: &str) -> Value {
        json!({
            "reason": reason, "message": message, "lastTimestamp": time, "involvedObject": {"uid": uid},
        })
    }

    #[test]
    fn the_last_warning_of_each_object_counts() {
        let mut warnings = Warnings::default();
        for (uid, reason, time, message) in [
            ("claim", NOT_PROVISIONED, "2026-01-01T00:00:02Z", "second"),
            ("claim", NOT_PROVISIONED, "2026-01-01T00:00:01Z", "first"),
            ("pod", "FailedMount", "2026-01-01T00:00:01Z", "no ConfigMap"),
            ("pod", "BackOff", "2026-01-01T00:00:03Z", "restarting"),
        ] {
            warnings.add(&event(uid, reason, time, message));
        }
        let about = |uid: &str| warnings.about(uid).map(|warning| (warning.reason, warning.message));
        assert_eq!(about("claim"), Some((NOT_PROVISIONED.to_owned(), "second".to_owned())));
        assert_eq!(about("pod"), Some(("FailedMount".to_owned(), "no ConfigMap".to_owned())));
        assert_eq!(about("other"), None);
    }

    #[test]
    fn a_warning_is_repeated_when_it_occurred_twice() {
        let mut warnings = Warnings::default();
        let counted = |uid: &str, count: u64| {
            let mut event = event(uid, "FailedMount", "2026-01-01T00:00:01Z", "no ConfigMap");
            event["count"] = count.into();
            event
        };
        for event in [
            counted("once", 1),
            counted("often", 2),
            event("twice", "FailedMount", "2026-01-01T00:00:01Z", "no ConfigMap"),
            event("twice", "FailedCreatePodSandBox", "2026-01-01T00:00:03Z", "no network"),
        ] {
            warnings.add(&event);
        }
        let repeated = |uid: &str| warnings.repeated(uid).map(|warning| warning.reason);
        assert_eq!(repeated("once"), None);
        assert!(warnings.about("once").is_some());
        assert_eq!(repeated("often").as_deref(), Some("FailedMount"));
        assert_eq!(repeated("twice").as_deref(), Some("FailedCreatePodSandBox"));
        assert_eq!(repeated("other"), None);
    }

    #[test]
    fn one_read_serves_all_of_a_namespace_for_a_second() {
        let (reads, begun) = (Reads::default(), Instant::now());
        let known = |namespace: &str, after: Duration| reads.of(namespace, begun + after);
        assert!(matches!(known("a", Duration::ZERO), Known::Nothing));
        assert!(matches!(known("a", Duration::ZERO), Known::Later), "it is being read");
        let mut warnings = Warnings::default();
        warnings.add(&event("claim", NOT_PROVISIONED, "", "why"));
        reads.keep("a", begun, warnings);
        for _ in 0..200 {
            let Known::Warnings(warnings) = known("a", PAUSE / 2) else { panic!("it was read") };
            assert!(warnings.about("claim").is_some());
        }
        assert!(matches!(known("b", PAUSE / 2), Known::Later));
        assert!(matches!(known("b", PAUSE), Known::Nothing));
        assert!(matches!(known("a", FRESH), Known::Nothing), "it is read again");
    }
}
