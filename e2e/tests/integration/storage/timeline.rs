//! When a watcher saw what of the DataVolumes and pods of a namespace.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use kube::api::{WatchEvent, WatchParams};
use kube::core::DynamicObject;
use serde_json::Value;
use tokio::sync::watch;

use crate::storage::setup::CLUSTER;
use crate::storage::space::{Space, api};

/// Kind, name, and state: `made`, each phase of a DataVolume, or `done` of a pod with a container that succeeded. For
/// the conditions of a DataVolume the kind is their type, and the state is status and reason; for each report of its
/// progress the kind is `Progress`.
type TimelineStep = (&'static str, String, String);

/// The state of an object that exists.
const MADE: &str = "made";
/// Types of the conditions of a DataVolume.
const CONDITIONS: [&str; 3] = ["Ready", "Bound", "Running"];

/// Follows DataVolumes and pods until it is dropped.
pub(crate) struct Timeline {
    seen: Arc<Mutex<Vec<(TimelineStep, Instant)>>>,
    _stop: watch::Sender<()>,
}

impl Timeline {
    pub(crate) fn start(space: &Space) -> Self {
        let (stop, stopped) = watch::channel(());
        let seen = Arc::default();
        for kind in ["DataVolume", "Pod"] {
            let (namespace, seen, mut stopped) = (space.0.clone(), Arc::clone(&seen), stopped.clone());
            thread::spawn(move || {
                CLUSTER.run(async {
                    tokio::select! {
                        _ = stopped.changed() => {}
                        () = follow(kind, &namespace, &seen) => {}
                    }
                });
            });
        }
        Self { seen, _stop: stop }
    }

    /// When this was seen first; waits a moment for the watcher.
    #[track_caller]
    pub(crate) fn at(&self, kind: &str, name: &str, state: &str) -> Instant {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let seen = self.seen.lock().unwrap();
            let found = seen.iter().find(|(one, _)| (one.0, &*one.1, &*one.2) == (kind, name, state));
            if let Some((_, at)) = found {
                return *at;
            }
            assert!(Instant::now() < deadline, "{kind} {name} was never seen {state}: {seen:?}");
            drop(seen);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Phases of a DataVolume, in the order in which they were seen.
    pub(crate) fn phases(&self, name: &str) -> Vec<String> {
        self.states("DataVolume", name)
    }

    /// States of an object, or of a condition of a DataVolume, in the order in which they were seen.
    pub(crate) fn states(&self, kind: &str, name: &str) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        let own = seen.iter().filter(|(one, _)| (one.0, &*one.1) == (kind, name) && one.2 != MADE);
        own.map(|(one, _)| one.2.clone()).collect()
    }
}

/// Whether a state follows another one of the same object, in contrast to its making.
fn is_alike(one: &TimelineStep, other: &TimelineStep) -> bool {
    (one.0, &one.1, one.2 == MADE) == (other.0, &other.1, other.2 == MADE)
}

async fn follow(kind: &'static str, namespace: &str, seen: &Mutex<Vec<(TimelineStep, Instant)>>) {
    let mut version = "0".to_owned();
    loop {
        let Ok(stream) = api(kind, namespace).watch(&WatchParams::default(), &version).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut stream = stream.boxed();
        while let Some(Ok(event)) = stream.next().await {
            if let WatchEvent::Error(_) = event {
                version = "0".to_owned();
            }
            let object = match event {
                // A pod's end may come with its deletion.
                WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
                    object
                }
                WatchEvent::Bookmark(_) | WatchEvent::Error(_) => continue,
            };
            let now = Instant::now();
            version = object.metadata.resource_version.clone().unwrap_or_default();
            let mut seen = seen.lock().unwrap();
            for one in steps(kind, &object) {
                // A state that comes back is another one.
                let last = seen.iter().rfind(|(other, _)| is_alike(other, &one));
                if last.is_none_or(|(last, _)| *last != one) {
                    seen.push((one, now));
                }
            }
        }
    }
}

/// The steps that an object has reached.
fn steps(kind: &'static str, object: &DynamicObject) -> Vec<TimelineStep> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let status = &object.data["status"];
    let mut steps = vec![(kind, name.clone(), MADE.to_owned())];
    if kind == "Pod" {
        let ended: &Value = &status["containerStatuses"][0]["state"]["terminated"];
        steps.extend((ended["exitCode"] == 0).then(|| (kind, name, "done".to_owned())));
        return steps;
    }
    let phase = status["phase"].as_str().filter(|phase| !phase.is_empty());
    steps.extend(phase.map(|phase| (kind, name.clone(), phase.to_owned())));
    let progress = status["progress"].as_str().filter(|progress| !["", "N/A", "100.0%"].contains(progress));
    steps.extend(progress.map(|progress| ("Progress", name.clone(), progress.to_owned())));
    for condition in status["conditions"].as_array().into_iter().flatten() {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        let state = format!("{} {}", text("status"), text("reason")).trim_end().to_owned();
        let known = CONDITIONS.into_iter().find(|one| *one == text("type"));
        steps.extend(known.map(|one| (one, name.clone(), state)));
    }
    steps
}

/// The middle one.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
