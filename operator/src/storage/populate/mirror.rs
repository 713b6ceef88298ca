//! The worker's state as annotations of a claim: all that a DataVolume's status, virtctl and the upload proxy see of it.

use std::collections::BTreeMap;

use api::import::Outcome;

use crate::storage::names;
use crate::storage::seen::worker::{Ended, State};
use crate::storage::seen::{Claim, Worker};

/// Annotations to set (`Some`) and remove (`None`).
pub type Changes = BTreeMap<String, Option<String>>;

/// Reason of a running worker.
const IS_RUNNING: &str = "Pod is running";
/// The importer's text for an image that it cannot get.
const PULL_FAILED: &str = "failed to pull image";
/// The importer's text for unexpected bytes.
const MISMATCH: &str = "checksum mismatch";
/// The importers' texts for a disk that does not fit; users get one sentence for all of them.
const TOO_SMALL: [&str; 4] = [
    "is larger than the reported available",
    "no space left on device",
    "file largest block is bigger than maxblock",
    "disk quota exceeded",
];

/// Reasons of events that tell why a pod does not start.
pub const HINDRANCES: [&str; 4] =
    ["FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox"];

/// The meaning of a worker's state for its claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// Annotations that the claim should have.
    pub annotations: Changes,
    /// Labels that the claim should have.
    pub labels: BTreeMap<String, String>,
    /// Whether the worker has succeeded.
    pub succeeded: bool,
    /// Whether trying again is of no use.
    pub fatal: bool,
    /// Whether an upload server ended because no upload came: another one takes its place.
    pub expired: bool,
}

impl Mirror {
    /// Only what differs from the claim.
    pub fn changes(&self, claim: &Claim) -> (Changes, BTreeMap<String, String>) {
        let annotations =
            self.annotations.iter().filter(|(name, value)| claim.meta.annotation(name) != value.as_deref());
        let labels = self.labels.iter().filter(|(name, _)| !claim.meta.labels.contains_key(*name));
        (
            annotations.map(|(name, value)| (name.clone(), value.clone())).collect(),
            labels.map(|(name, value)| (name.clone(), value.clone())).collect(),
        )
    }
}

/// Reads a worker. `upload`: readiness matters.
pub fn of(worker: &Worker, claim: &Claim, upload: bool) -> Mirror {
    let end = ended(worker);
    let outcome = end.and_then(|end| Outcome::from_line(end.message.trim()));
    let expired =
        is_over(worker) && outcome.as_ref().is_some_and(|outcome| outcome.deadline_passed == Some(true));
    let succeeded = is_over(worker) && !expired;
    let fatal = succeeded && outcome.as_ref().is_some_and(|outcome| text(outcome).contains(MISMATCH));
    let mut mirror = Mirror { succeeded: succeeded && !fatal, fatal, expired, ..Mirror::default() };
    let mut set = |name: &str, value: Option<&str>| {
        mirror.annotations.insert(name.to_owned(), value.map(str::to_owned));
    };
    let phase = match worker.phase.as_str() {
        _ if fatal => "Failed",
        _ if succeeded => "Succeeded",
        _ if expired => "Pending",
        "" | "Unknown" => "Pending",
        phase => phase,
    };
    set(names::POD_PHASE, Some(phase));
    let known = claim.meta.annotation(names::POD_RESTARTS).and_then(|text| text.parse().ok()).unwrap_or(0);
    set(names::POD_RESTARTS, Some(&worker.restarts.max(known).to_string()));
    if upload {
        // A server that is being deleted still answers its probe: uploads wait for its successor.
        let ready = worker.ready && !worker.meta.deleting && !is_over(worker);
        set(names::POD_READY, Some(if ready { "true" } else { "false" }));
    }
    let (running, mut reason, mut message) = running(worker, outcome.as_ref(), fatal);
    if is_preparing(worker) && worker.hindrance.is_none() {
        // It was looked for earlier; until the worker's state changes it is true.
        let known = |name| claim.meta.annotation(name).unwrap_or_default().to_owned();
        if HINDRANCES.contains(&known(names::RUNNING_REASON).as_str()) {
            (reason, message) = (known(names::RUNNING_REASON), known(names::RUNNING_MESSAGE));
        }
    }
    set(names::RUNNING, Some(if running { "true" } else { "false" }));
    set(names::RUNNING_REASON, Some(&reason));
    set(names::RUNNING_MESSAGE, Some(&message));
    let schedulable = worker.unschedulable.as_ref().map(|_| "false");
    if schedulable.is_some() || claim.meta.annotation(names::POD_SCHEDULABLE).is_some() {
        set(names::POD_SCHEDULABLE, Some(schedulable.unwrap_or("true")));
    }
    if fatal {
        set(names::FATAL, Some("true"));
    }
    if let Some(outcome) = outcome.filter(|_| mirror.succeeded) {
        if outcome.preallocation_applied == Some(true) {
            mirror.annotations.insert(names::PREALLOCATION.to_owned(), Some("true".to_owned()));
        }
        mirror.labels = outcome.labels;
    }
    mirror
}

/// Whether a worker has ended well: the pod's phase follows its container's end some time later.
pub fn is_over(worker: &Worker) -> bool {
    worker.phase == "Succeeded" || matches!(&worker.state, State::Ended(end) if end.status == 0)
}

/// Whether the kubelet prepares a worker.
pub fn is_preparing(worker: &Worker) -> bool {
    let waits = match &worker.state {
        State::Unreported => true,
        State::Waiting { reason, .. } => reason == "ContainerCreating" || reason == "PodInitializing",
        State::Running | State::Ended(_) => false,
    };
    waits && worker.unschedulable.is_none() && !worker.meta.deleting && worker.phase != "Failed"
}

/// Whether a worker has not worked yet, and nothing keeps it from it that is known. An upload server works when it is
/// ready.
pub fn is_starting(worker: &Worker, upload: bool) -> bool {
    let late = upload && worker.state == State::Running && !worker.ready && !worker.meta.deleting;
    (is_preparing(worker) || late)
        && worker.last.is_none()
        && worker.restarts == 0
        && worker.hindrance.is_none()
}

/// How the working container ended, now or in its last run.
fn ended(worker: &Worker) -> Option<&Ended> {
    match &worker.state {
        State::Ended(ended) => Some(ended),
        State::Waiting { .. } | State::Running | State::Unreported => worker.last.as_ref(),
    }
}

fn text(outcome: &Outcome) -> &str {
    outcome.message.as_deref().unwrap_or_default()
}

/// Whether it runs, with reason and message.
fn running(worker: &Worker, outcome: Option<&Outcome>, fatal: bool) -> (bool, String, String) {
    if let Some(why) = &worker.unschedulable {
        let server = worker.meta.labels.get(names::WORKER).is_some_and(|one| one == names::UPLOAD_SERVER);
        let which = if server { "Upload server" } else { "Importer" };
        let message = format!("{which} pod cannot be scheduled: {}", simple(why));
        return (false, "Unschedulable".to_owned(), message);
    }
    let of_end = |end: &Ended| {
        let said = outcome.map_or(end.message.as_str(), text);
        let reason = match () {
            () if fatal => "ChecksumError",
            () if end.message.contains(PULL_FAILED) => "ImagePullFailed",
            () => &end.reason,
        };
        (false, reason.to_owned(), simple(said))
    };
    let works = matches!(&worker.state, State::Running) || is_preparing(worker);
    if let Some(hindrance) = worker.hindrance.as_ref().filter(|_| works) {
        return (false, hindrance.reason.clone(), simple(&hindrance.message));
    }
    match (&worker.state, &worker.last) {
        (State::Running, _) => (true, IS_RUNNING.to_owned(), String::new()),
        (State::Ended(end), _) => of_end(end),
        // Between two tries: why the last one failed matters.
        (State::Waiting { reason, .. }, Some(end)) if reason == "CrashLoopBackOff" => of_end(end),
        (State::Waiting { reason, message }, _) => (false, reason.clone(), simple(message)),
        (State::Unreported, _) if worker.phase == "Failed" => (false, worker.reason.clone(), String::new()),
        // The first state that the kubelet will report.
        (State::Unreported, _) => (false, "ContainerCreating".to_owned(), String::new()),
    }
}

/// Whether a worker runs, with reason and message.
pub fn running_now(worker: &Worker) -> (bool, String, String) {
    running(worker, None, false)
}

/// The sentence that users get: at most 1 KiB.
fn simple(message: &str) -> String {
    if TOO_SMALL.iter().any(|known| message.contains(known)) {
        return "DataVolume too small to contain image".to_owned();
    }
    message.trim().chars().take(1024).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::seen::worker::Hindrance;

    fn worker(phase: &str, state: State, last: Option<Ended>) -> Worker {
        Worker { phase: phase.into(), state, last, restarts: 1, ..Worker::default() }
    }

    #[test]
    fn a_pod_reports_its_obstacle_until_it_starts() {
        let hindrance = |reason: &str| {
            Some(Hindrance { reason: reason.into(), message: "configmap \"c\" not found".into() })
        };
        let creating = State::Waiting { reason: "ContainerCreating".into(), message: String::new() };
        let mut stuck = worker("Pending", creating.clone(), None);
        stuck.hindrance = hindrance("FailedMount");
        let (phase, running, reason, message) = mirrored(&stuck);
        assert_eq!((phase.as_str(), running.as_str(), reason.as_str()), ("Pending", "false", "FailedMount"));
        assert_eq!(message, "configmap \"c\" not found");
        let mut claim = Claim::default();
        for (name, value) in of(&stuck, &claim, false).annotations {
            claim.meta.annotations.extend(value.map(|value| (name, value)));
        }
        // Without a read of events, the reported hindrance stays.
        stuck.hindrance = None;
        assert!(of(&stuck, &claim, false).changes(&claim).0.is_empty());
        stuck.state = State::Running;
        let (changes, _) = of(&stuck, &claim, false).changes(&claim);
        assert_eq!(changes[names::RUNNING].as_deref(), Some("true"));
        // The image of a node pull is another container's.
        stuck.hindrance = hindrance("ImagePullBackOff");
        assert_eq!((mirrored(&stuck).1.as_str(), mirrored(&stuck).2.as_str()), ("false", "ImagePullBackOff"));
    }

    fn ended(status: i64, reason: &str, message: &str) -> Ended {
        Ended { status, reason: reason.into(), message: message.into() }
    }

    fn mirrored(worker: &Worker) -> (String, String, String, String) {
        let mirror = of(worker, &Claim::default(), false);
        let get = |name: &str| mirror.annotations[name].clone().unwrap();
        (get(names::POD_PHASE), get(names::RUNNING), get(names::RUNNING_REASON), get(names::RUNNING_MESSAGE))
    }

    #[test]
    fn states_become_annotations() {
        let waiting =
            |reason: &str, message: &str| State::Waiting { reason: reason.into(), message: message.into() };
        let mismatch = r#"{"message":"checksum mismatch: expected a, got b"}"#;
        for (worker, expected) in [
            (worker("", State::Unreported, None), ("Pending", "false", "ContainerCreating", "")),
            (
                worker("Pending", waiting("ImagePullBackOff", "no image"), None),
                ("Pending", "false", "ImagePullBackOff", "no image"),
            ),
            (worker("Running", State::Running, None), ("Running", "true", "Pod is running", "")),
            (
                worker(
                    "Running",
                    waiting("CrashLoopBackOff", "back-off"),
                    Some(ended(1, "Error", "Unable to connect: 404")),
                ),
                ("Running", "false", "Error", "Unable to connect: 404"),
            ),
            (
                worker("Running", State::Ended(ended(1, "Error", "x: no space left on device")), None),
                ("Running", "false", "Error", "DataVolume too small to contain image"),
            ),
            (
                worker(
                    "Running",
                    State::Ended(ended(1, "Error", "Unable to process data: failed to pull image a")),
                    None,
                ),
                ("Running", "false", "ImagePullFailed", "Unable to process data: failed to pull image a"),
            ),
            (
                worker(
                    "Succeeded",
                    State::Ended(ended(0, "Completed", r#"{"message":"Import Complete"}"#)),
                    None,
                ),
                ("Succeeded", "false", "Completed", "Import Complete"),
            ),
            (
                worker("Succeeded", State::Ended(ended(0, "Completed", mismatch)), None),
                ("Failed", "false", "ChecksumError", "checksum mismatch: expected a, got b"),
            ),
            (
                Worker { reason: "Evicted".into(), ..worker("Failed", State::Unreported, None) },
                ("Failed", "false", "Evicted", ""),
            ),
        ] {
            let shown = mirrored(&worker);
            assert_eq!(
                (shown.0.as_str(), shown.1.as_str(), shown.2.as_str(), shown.3.as_str()),
                expected,
                "{worker:?}"
            );
        }
    }

    #[test]
    fn a_wrong_checksum_is_fatal_and_a_failure_is_not() {
        let mismatch = r#"{"message":"checksum mismatch"}"#;
        let mirror = of(
            &worker("Succeeded", State::Ended(ended(0, "Completed", mismatch)), None),
            &Claim::default(),
            false,
        );
        assert!(mirror.fatal && !mirror.succeeded);
        assert_eq!(mirror.annotations[names::FATAL].as_deref(), Some("true"));
        let mirror =
            of(&worker("Running", State::Ended(ended(1, "Error", mismatch)), None), &Claim::default(), false);
        assert!(!mirror.fatal && !mirror.annotations.contains_key(names::FATAL));
    }

    #[test]
    fn reports_of_the_worker_reach_the_claim() {
        let said = r#"{"preallocationApplied":true,"labels":{"instancetype.kubevirt.io/default-instancetype":"u1"},"message":"Import Complete"}"#;
        let mirror = of(
            &worker("Succeeded", State::Ended(ended(0, "Completed", said)), None),
            &Claim::default(),
            false,
        );
        assert_eq!(mirror.annotations[names::PREALLOCATION].as_deref(), Some("true"));
        assert_eq!(mirror.labels["instancetype.kubevirt.io/default-instancetype"], "u1");
    }

    #[test]
    fn a_server_that_is_deleted_is_not_ready() {
        let ready = |deleting: bool, upload: bool| {
            let mut worker = Worker { ready: true, ..worker("Running", State::Running, None) };
            worker.meta.deleting = deleting;
            of(&worker, &Claim::default(), upload).annotations.get(names::POD_READY).cloned().flatten()
        };
        assert_eq!(ready(false, true).as_deref(), Some("true"));
        assert_eq!(ready(true, true).as_deref(), Some("false"));
        assert_eq!(ready(false, false), None);
    }

    #[test]
    fn restarts_never_go_back_and_equal_annotations_are_not_written() {
        let mut claim = Claim::default();
        claim.meta.annotations.insert(names::POD_RESTARTS.into(), "5".into());
        let worker = worker("Running", State::Running, None);
        let mirror = of(&worker, &claim, true);
        assert_eq!(mirror.annotations[names::POD_RESTARTS].as_deref(), Some("5"));
        for (name, value) in &mirror.annotations {
            claim.meta.annotations.extend(value.clone().map(|value| (name.clone(), value)));
        }
        let again = of(&worker, &claim, true);
        assert!(again.changes(&claim).0.is_empty());
    }
}
