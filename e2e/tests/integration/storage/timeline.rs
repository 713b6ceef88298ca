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

/// Kind, name, and state: `made`, each phase of a DataVolume, or `done` of a pod with a container that succeeded.
type TimelineStep = (&'static str, String, String);

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
        let seen = self.seen.lock().unwrap();
        let own = seen.iter().filter(|(one, _)| is_phase_of(one, name));
        own.map(|(one, _)| one.2.clone()).collect()
    }
}

fn is_phase_of(one: &TimelineStep, name: &str) -> bool {
    one.0 == "DataVolume" && one.1 == name && one.2 != "made"
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
            let name = object.metadata.name.clone().unwrap_or_default();
            let mut seen = seen.lock().unwrap();
            for state in ["made".to_owned()].into_iter().chain(state(kind, &object)) {
                let one = (kind, name.clone(), state);
                let phase = kind == "DataVolume" && one.2 != "made";
                let known = match phase {
                    // A phase that comes back is another one.
                    true => seen
                        .iter()
                        .rfind(|(other, _)| is_phase_of(other, &name))
                        .is_some_and(|(last, _)| *last == one),
                    false => seen.iter().any(|(other, _)| *other == one),
                };
                if !known {
                    seen.push((one, now));
                }
            }
        }
    }
}

fn state(kind: &str, object: &DynamicObject) -> Option<String> {
    let status = &object.data["status"];
    if kind == "DataVolume" {
        return Some(status["phase"].as_str()?.to_owned()).filter(|phase| !phase.is_empty());
    }
    let ended: &Value = &status["containerStatuses"][0]["state"]["terminated"];
    (ended["exitCode"] == 0).then(|| "done".to_owned())
}

/// The middle one.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
