//! The next step of filling a claim. Pure: what is there decides, not what was done before.
//!
//! ```text
//!  populator:     prime ─► pod ─► annotations … ─► annotations: Succeeded, rebind ─► (bound) delete prime
//!  no populator:  (bound, unused) pod ─► annotations … ─► annotations: Succeeded ─► delete pod
//! ```

use std::collections::BTreeMap;

use serde_json::Value;

use super::mirror::{self, Changes};
use super::prime;
use super::task::Task;
use crate::storage::action::{About, Action, Event, Kind};
use crate::storage::datavolume::{Obstacle, QUOTA};
use crate::storage::names;
use crate::storage::seen::claim::Phase;
use crate::storage::seen::{Claim, Class, Source, Volume, Worker};

/// Reason when the API server refuses a claim that helps to fill another one.
pub const NOT_MADE: &str = "ErrCreatingPVCPrime";
/// Reason while a clone is made by the storage.
pub const POPULATING: &str = "Populator is running";
/// Progress of a populator that has succeeded.
pub const COMPLETE: &str = "100.0%";
/// Reason when the API server refuses a worker's pod.
pub const NOT_STARTED: &str = "ErrStartingPod";

/// The observation.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The claim to fill.
    pub target: &'a Claim,
    /// Its prime claim.
    pub prime: Option<&'a Claim>,
    /// The pod that works.
    pub worker: Option<&'a Worker>,
    /// The prime claim's volume; only needed when [`needs_volume`] returns true.
    pub volume: Option<&'a Volume>,
    /// The claim's class.
    pub class: Option<&'a Class>,
    /// The content to fill it with.
    pub task: &'a Task,
    /// Whether claims of classes with WaitForFirstConsumer wait for a pod of the user.
    pub honors_first_consumer: bool,
    /// Name of a pod that uses the target; only observed before the worker is made that writes to the target itself.
    pub user: Option<&'a str>,
    /// Whether the claim does not report that the worker starts: its pod was made at most five seconds ago, and most have
    /// started by the time it would; or its DataVolume shows it ([`shows_start`]).
    pub young: bool,
}

impl Observed<'_> {
    /// Whether the worker starts as usual and is not reported until it has.
    pub fn is_starting(&self) -> bool {
        let upload = self.task.source == Source::Upload;
        self.young && self.worker.is_some_and(|worker| mirror::is_starting(worker, upload))
    }
}

/// The steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order.
    pub actions: Vec<Action>,
    /// The obstacle between the claim and its worker.
    pub trouble: Option<Obstacle>,
    /// The worker's pod is to be made; it belongs to this claim.
    pub start: Option<Start>,
}

/// The claim that a worker writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// The prime claim.
    Prime,
    /// The target itself.
    Target,
}

impl Plan {
    fn act(actions: Vec<Action>) -> Self {
        Self { actions, ..Self::default() }
    }

    fn start(start: Start) -> Self {
        Self { start: Some(start), ..Self::default() }
    }

    fn troubled(reason: &'static str, message: String) -> Self {
        Self { trouble: Some(Obstacle { reason, message }), ..Self::default() }
    }
}

/// Whether the plan depends on the prime claim's volume.
pub fn needs_volume(target: &Claim, prime: Option<&Claim>, worker: Option<&Worker>) -> bool {
    let over = worker.is_none_or(mirror::is_over);
    target.phase == Phase::Pending && over && prime.is_some_and(|prime| prime.phase != Phase::Pending)
}

/// Decides for a claim with a `dataSourceRef` to one of our sources.
pub fn populator(o: &Observed<'_>) -> Plan {
    if o.target.meta.deleting || o.target.phase == Phase::Lost {
        return Plan::default();
    }
    if o.target.phase == Phase::Bound {
        return bound(o);
    }
    let Some(class) = o.class else {
        let named = o.target.class.as_deref().unwrap_or_default();
        return Plan::troubled(
            "StorageClassMissing",
            format!("StorageClass {named:?} does not exist: create it"),
        );
    };
    let annotation = |name| o.target.meta.annotation(name).is_some();
    if class.waits_for_consumer && !annotation(names::SELECTED_NODE) && !annotation(names::IMMEDIATE) {
        return Plan::default();
    }
    let Some(prime) = o.prime else {
        let done = Event::normal(
            About::claim(&o.target.meta),
            "CreatedPVCPrimeSuccessfully",
            "PVC Prime created successfully",
        );
        return Plan::act(vec![Action::Create(prime::claim(o.target, o.task)), Action::Report(done)]);
    };
    if prime.meta.deleting || o.target.meta.says(names::FATAL, "true") {
        return Plan::default();
    }
    match o.worker {
        Some(worker) => work(o, prime, worker),
        None => unworked(o, prime, class),
    }
}

/// The prime claim has no worker.
fn unworked(o: &Observed<'_>, prime: &Claim, class: &Class) -> Plan {
    if let Some(volume) = o.volume {
        // The worker was done, and its pod is gone: only the rebind was cut short.
        if volume.claim_uid == o.target.meta.uid {
            return Plan::default();
        }
        if o.target.meta.says(names::POD_PHASE, "Succeeded") {
            return rebind(o, prime, Vec::new());
        }
    }
    if prime.phase == Phase::Lost {
        let message = format!(
            "PVC {} lost its PersistentVolume: delete PVC {} (or its DataVolume) and create it again",
            prime.meta.name, o.target.meta.name
        );
        return Plan::troubled("ErrClaimLost", message);
    }
    // A pod is what makes the scheduler choose a node; where none has to be chosen, it waits for the volume.
    if class.waits_for_consumer || prime.phase == Phase::Bound {
        return Plan::start(Start::Prime);
    }
    Plan::default()
}

/// The prime claim has a worker.
fn work(o: &Observed<'_>, prime: &Claim, worker: &Worker) -> Plan {
    let upload = o.task.source == Source::Upload;
    let mirror = mirror::of(worker, o.target, upload);
    let (mut changes, labels) = mirror.changes(o.target);
    let named = (names::PRIME, prime.meta.name.as_str());
    if o.target.meta.annotation(named.0) != Some(named.1) {
        changes.insert(named.0.to_owned(), Some(named.1.to_owned()));
    }
    if mirror.succeeded && !o.target.meta.says(names::PROGRESS, COMPLETE) {
        changes.insert(names::PROGRESS.to_owned(), Some(COMPLETE.to_owned()));
    }
    let mut actions = Vec::new();
    // Until the prime claim is bound the worker only waits for its node, which is the user's business when that is not
    // found.
    let early = (prime.phase == Phase::Pending && worker.unschedulable.is_none()) || o.is_starting();
    let differs = !changes.is_empty() || !labels.is_empty();
    if differs && !early {
        actions.extend(failure(o, worker));
        actions.push(annotate(o.target, changes, labels));
    }
    if upload && !early {
        // The upload proxy reads readiness from the claim that the server has.
        let (changes, _) = mirror.changes(prime);
        if !changes.is_empty() {
            actions.push(annotate(prime, changes, BTreeMap::new()));
        }
    }
    if mirror.fatal || mirror.expired || worker.phase == "Failed" {
        actions.push(delete_pod(worker));
        actions.extend(release(o, prime));
    } else if mirror.succeeded {
        return rebind(o, prime, actions);
    }
    Plan::act(actions)
}

/// Whether one of our populators fills the claim.
pub fn is_populated(claim: &Claim) -> bool {
    is_populated_by(claim, &[names::IMPORT_SOURCE, names::UPLOAD_SOURCE, names::CLONE_SOURCE])
}

/// Whether our populator of one of these kinds of sources fills the claim.
pub fn is_populated_by(claim: &Claim, kinds: &[&str]) -> bool {
    claim
        .source
        .as_ref()
        .is_some_and(|source| source.group == names::GROUP && kinds.contains(&source.kind.as_str()))
}

/// Whether a bound claim has the volume that was filled for it. Kubernetes may bind any Available PV of the class to a
/// claim that a populator has not finished yet; such a claim counts for nothing. `filler` is the prime claim, or a clone's
/// temporary claim, and is deleted only after its volume is the target's.
pub fn is_filled(target: &Claim, filler: Option<&Claim>) -> bool {
    let annotation = |name| target.meta.annotation(name).is_some();
    // A clone reports its end after this was decided, the others before their volume takes its place.
    if annotation(names::POPULATED_FOR) || target.meta.says(names::CLONE_PHASE, "Succeeded") {
        return true;
    }
    match filler {
        Some(filler) => !filler.volume.is_empty() && filler.volume == target.volume,
        None => target.meta.says(names::POD_PHASE, "Succeeded"),
    }
}

/// The trouble of a claim that is bound to a volume that was not filled for it.
pub fn misbound(target: &Claim) -> Obstacle {
    let (volume, claim) = (&target.volume, &target.meta.name);
    Obstacle {
        reason: "ErrUnexpectedClaim",
        message: format!(
            "PV {volume} bound to unexpected claim {claim}: the claim's source was not written to it; save PV {volume} \
             (persistentVolumeReclaimPolicy Retain) if it is needed, delete PVC {claim}, and keep the PV from the class {:?} \
             before the claim is created again",
            target.class.as_deref().unwrap_or_default()
        ),
    }
}

/// The target has a volume.
fn bound(o: &Observed<'_>) -> Plan {
    if !is_filled(o.target, o.prime) {
        return stray(o);
    }
    let mut changes = Changes::new();
    let mut labels = BTreeMap::new();
    match o.worker {
        Some(worker) if mirror::is_over(worker) => {
            (changes, labels) =
                mirror::of(worker, o.target, o.task.source == Source::Upload).changes(o.target);
        }
        Some(_) | None => {}
    }
    if !o.target.meta.says(names::POD_PHASE, "Succeeded") {
        changes.insert(names::POD_PHASE.to_owned(), Some("Succeeded".to_owned()));
        changes.insert(names::RUNNING.to_owned(), Some("false".to_owned()));
        changes.insert(names::RUNNING_REASON.to_owned(), Some("Completed".to_owned()));
    }
    if !(changes.is_empty() && labels.is_empty()) {
        return Plan::act(vec![annotate(o.target, changes, labels)]);
    }
    let retained = o.target.meta.says(names::RETAIN, "true");
    match o.prime {
        Some(prime) if !retained && !prime.meta.deleting => Plan::act(vec![delete_claim(prime)]),
        Some(_) | None => Plan::default(),
    }
}

/// The target has a volume that was not filled for it: the transfer ends.
fn stray(o: &Observed<'_>) -> Plan {
    let trouble = Some(misbound(o.target));
    let mut actions = Vec::new();
    if o.target.meta.says(names::POD_PHASE, "Succeeded") {
        // Before the prime claim goes: without one this would count as filled.
        let taken = [names::POD_PHASE, names::PROGRESS].map(|name| (name.to_owned(), None));
        actions.push(annotate(o.target, taken.into(), BTreeMap::new()));
    } else if let Some(prime) = o.prime.filter(|prime| !prime.meta.deleting) {
        actions.push(delete_claim(prime));
    }
    Plan { actions, trouble, start: None }
}

/// Points the prime claim's volume at the target.
fn rebind(o: &Observed<'_>, prime: &Claim, mut actions: Vec<Action>) -> Plan {
    let Some(volume) = o.volume else { return Plan::act(actions) };
    if volume.claim_uid == o.target.meta.uid {
        return Plan::act(actions);
    }
    if volume.claim_uid != prime.meta.uid {
        let message = format!(
            "PV {} bound to unexpected claim {}: delete PVC {} (or its DataVolume) and create it again",
            volume.meta.name, volume.claim_name, o.target.meta.name
        );
        return Plan { actions, ..Plan::troubled("ErrUnexpectedClaim", message) };
    }
    actions.push(Action::Rebind {
        volume: volume.meta.name.clone(),
        version: volume.meta.version.clone(),
        claim: (o.target.meta.namespace.clone(), o.target.meta.name.clone(), o.target.meta.uid.clone()),
    });
    if o.target.meta.says(names::RETAIN, "true") {
        let about = About::claim(&o.target.meta);
        actions.push(Action::Report(Event::normal(about, "RetainedPVCPrime", "PVC Prime retained")));
    }
    Plan::act(actions)
}

/// Decides for a claim without a `dataSourceRef`: the worker writes to the claim itself.
pub fn direct(o: &Observed<'_>) -> Plan {
    let target = o.target;
    if target.meta.deleting || target.phase == Phase::Lost {
        return Plan::default();
    }
    let complete = target.meta.says(names::POD_PHASE, "Succeeded");
    let over = complete || target.meta.says(names::FATAL, "true");
    let Some(worker) = o.worker else {
        let consumer_free = !o.honors_first_consumer || target.meta.annotation(names::IMMEDIATE).is_some();
        let consumes = o.class.is_some_and(|class| class.waits_for_consumer) && consumer_free;
        let populated = target.meta.annotation(names::POPULATED_FOR).is_some();
        if over || populated || !(target.phase == Phase::Bound || consumes) {
            return Plan::default();
        }
        let Some(user) = o.user else { return Plan::start(Start::Target) };
        let (report, trouble) = in_use(target, user, o.task.source == Source::Upload);
        return Plan { trouble: Some(trouble), ..Plan::act(vec![report]) };
    };
    let mirror = mirror::of(worker, target, o.task.source == Source::Upload);
    let (changes, labels) = mirror.changes(target);
    let mut actions = Vec::new();
    let differs = !changes.is_empty() || !labels.is_empty();
    if differs && !complete && !o.is_starting() {
        actions.extend(failure(o, worker));
        actions.push(annotate(target, changes, labels));
    }
    let retained = mirror.succeeded && target.meta.says(names::RETAIN, "true");
    let ended = mirror.succeeded || mirror.fatal || mirror.expired || worker.phase == "Failed";
    if ended && !retained && !worker.meta.deleting {
        actions.push(delete_pod(worker));
        actions.extend(release(o, target));
    }
    Plan::act(actions)
}

/// The text about a pod that uses a claim.
pub fn usage(claim: (&str, &str), pod: &str) -> String {
    let (namespace, name) = claim;
    format!("pod {namespace}/{pod} using PersistentVolumeClaim {name}")
}

/// The event and the trouble of a claim that cannot be written to because a pod uses it. `receives`: it gets its content
/// from an upload server.
pub fn in_use(target: &Claim, pod: &str, receives: bool) -> (Action, Obstacle) {
    let (reason, work) = match receives {
        true => ("UploadTargetInUse", "upload server"),
        false => ("ImportTargetInUse", "import"),
    };
    let text = usage((&target.meta.namespace, &target.meta.name), pod);
    let message =
        format!("{text}: the {work} waits until the pod ends; stop its workload, or delete the pod");
    let event = Event::warning(About::claim(&target.meta), reason, text);
    (Action::Report(event), Obstacle { reason, message })
}

/// The event of another failed try.
fn failure(o: &Observed<'_>, worker: &Worker) -> Option<Action> {
    let known = o.target.meta.annotation(names::POD_RESTARTS).and_then(|text| text.parse().ok()).unwrap_or(0);
    let last = worker.last.as_ref().filter(|end| end.status != 0)?;
    let reason = if o.task.source == Source::Upload { "UploadFailed" } else { "ErrImportFailed" };
    (worker.restarts > known)
        .then(|| Action::Report(Event::warning(About::claim(&o.target.meta), reason, last.message.trim())))
}

fn annotate(claim: &Claim, annotations: Changes, labels: BTreeMap<String, String>) -> Action {
    Action::Annotate {
        claim: (claim.meta.namespace.clone(), claim.meta.name.clone()),
        uid: claim.meta.uid.clone(),
        annotations,
        labels,
    }
}

fn delete_claim(claim: &Claim) -> Action {
    Action::Delete {
        kind: Kind::Claim,
        key: (claim.meta.namespace.clone(), claim.meta.name.clone()),
        uid: claim.meta.uid.clone(),
    }
}

fn delete_pod(worker: &Worker) -> Action {
    Action::Delete {
        kind: Kind::Pod,
        key: (worker.meta.namespace.clone(), worker.meta.name.clone()),
        uid: worker.meta.uid.clone(),
    }
}

/// Ends the work on a claim that is being deleted: Kubernetes keeps a claim while a pod uses it, and would delete the pod only
/// after the claim. Pods that are over do not use it, or will not as soon as the kubelet reports their end.
pub fn abandon<'a>(claim: &Claim, workers: impl IntoIterator<Item = &'a Worker>) -> Vec<Action> {
    if !claim.meta.deleting {
        return Vec::new();
    }
    let works = |worker: &&Worker| {
        let theirs =
            worker.meta.namespace == claim.meta.namespace && worker.claims.contains(&claim.meta.name);
        theirs
            && worker.meta.is_controlled_by(&claim.meta.uid)
            && !worker.meta.deleting
            && worker.phase != "Failed"
            && !mirror::is_over(worker)
    };
    workers.into_iter().filter(works).map(delete_pod).collect()
}

/// Takes an upload server's Service away, and with it the certificate: a server that follows gets another one.
fn release(o: &Observed<'_>, written: &Claim) -> Option<Action> {
    (o.task.source == Source::Upload).then(|| Action::Release {
        service: (written.meta.namespace.clone(), api::upload::service_name(&written.meta.name)),
        claim: written.meta.uid.clone(),
    })
}

/// Puts the priority class that the source object names on the claim, from which workers get it.
pub fn prioritize(target: &Claim, task: &Task) -> Option<Action> {
    let wanted = !task.priority.is_empty() && target.meta.annotation(names::PRIORITY_CLASS).is_none();
    let change = (names::PRIORITY_CLASS.to_owned(), Some(task.priority.clone()));
    wanted.then(|| annotate(target, [change].into(), BTreeMap::new()))
}

/// Shows the progress of the worker on a claim that has no DataVolume to show it, until the end is reported.
pub fn progressed(target: &Claim, progress: Option<String>) -> Option<Action> {
    let shown = !target.is_of_data_volume() && is_populated(target) && !target.meta.deleting;
    let over = target.meta.says(names::PROGRESS, COMPLETE);
    let progress =
        progress.filter(|progress| shown && !over && !target.meta.says(names::PROGRESS, progress))?;
    Some(annotate(target, [(names::PROGRESS.to_owned(), Some(progress))].into(), BTreeMap::new()))
}

/// Namespace of the object that a step makes or enlarges, which quotas and policies may refuse.
pub fn made_in(action: &Action) -> Option<&str> {
    match action {
        Action::Create(object) => object["metadata"]["namespace"].as_str(),
        Action::Expand { claim: (namespace, _), .. } => Some(namespace),
        Action::Annotate { .. }
        | Action::Mark { .. }
        | Action::Rebind { .. }
        | Action::Adopt { .. }
        | Action::Delete { .. }
        | Action::Release { .. }
        | Action::Finalize { .. }
        | Action::Forget { .. }
        | Action::Report(_) => None,
    }
}

/// The obstacle of a claim when the API server refuses such a step in a namespace with this text.
pub fn refusal(namespace: &str, said: &str) -> Obstacle {
    let obstacle = Obstacle::of_refusal(&format!("{said} (in namespace {namespace})"), NOT_MADE);
    match obstacle.is_quota() {
        true => {
            let message = format!("{}: raise the quota, or delete what counts against it", obstacle.message);
            Obstacle { message, ..obstacle }
        }
        false => obstacle,
    }
}

/// Ends the report of a refusal when the step is taken after all: a clone goes on, else the worker reports next.
pub fn resumed(target: &Claim, action: &Action) -> Option<Action> {
    let reason = target.meta.annotation(names::RUNNING_REASON)?;
    if made_in(action).is_none() || ![QUOTA, NOT_MADE].contains(&reason) {
        return None;
    }
    let cloned = target.meta.annotation(names::CLONE_TYPE).is_some();
    let values = if cloned { ["true", POPULATING, ""].map(Some) } else { [None; 3] };
    let changes = RUNNING.into_iter().zip(values);
    let changes = changes.map(|(name, value)| (name.to_owned(), value.map(str::to_owned))).collect();
    Some(annotate(target, changes, BTreeMap::new()))
}

/// Annotations of a claim about its worker: whether it runs, reason, message.
const RUNNING: [&str; 3] = [names::RUNNING, names::RUNNING_REASON, names::RUNNING_MESSAGE];
/// The same about the sending worker of a clone.
const SOURCE_RUNNING: [&str; 3] =
    [names::SOURCE_RUNNING, names::SOURCE_RUNNING_REASON, names::SOURCE_RUNNING_MESSAGE];

fn stopped(annotations: [&str; 3], trouble: &Obstacle) -> [(String, String); 3] {
    let [running, reason, message] = annotations;
    [(running, "false"), (reason, trouble.reason), (message, trouble.message.as_str())]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// The annotations of a claim with a trouble.
pub fn waiting(trouble: &Obstacle) -> [(String, String); 3] {
    stopped(RUNNING, trouble)
}

/// Whether the DataVolume of a claim shows that its importer starts, without annotations of the claim: a write less. A claim
/// with a report keeps reporting on itself.
pub fn shows_start(target: &Claim) -> bool {
    target.is_of_data_volume() && target.meta.annotation(names::RUNNING).is_none()
}

/// The annotations that the DataVolume of a claim takes from its importer while that one starts.
pub fn starting(worker: &Worker, target: &Claim) -> Vec<(String, String)> {
    let all = mirror::of(worker, target, false).annotations;
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The obstacle that keeps a worker from starting, of those that events report.
pub fn hindrance(worker: &Worker) -> Option<Obstacle> {
    worker.hindrance.as_ref()?;
    let (_, reason, message) = mirror::running_now(worker);
    let reason = mirror::HINDRANCES.into_iter().find(|known| *known == reason)?;
    Some(Obstacle { reason, message })
}

/// Whether an obstacle is such a one.
pub fn is_hindrance(obstacle: &Obstacle) -> bool {
    mirror::HINDRANCES.contains(&obstacle.reason)
}

/// Annotations that report a trouble on the claim, if they differ from those it has.
pub fn report(target: &Claim, trouble: Option<&Obstacle>) -> Option<Action> {
    differing(target, waiting(trouble?))
}

/// The same for a clone, whose claim has the message in an annotation of its own as well.
pub fn report_clone(target: &Claim, trouble: &Obstacle) -> Option<Action> {
    differing(target, waiting(trouble).into_iter().chain([clone_error(trouble)]))
}

fn clone_error(trouble: &Obstacle) -> (String, String) {
    (names::CLONE_ERROR.to_owned(), trouble.message.clone())
}

/// The same for a trouble of the sending worker.
pub fn report_sender(target: &Claim, trouble: &Obstacle) -> Option<Action> {
    differing(target, stopped(SOURCE_RUNNING, trouble).into_iter().chain([clone_error(trouble)]))
}

fn differing(target: &Claim, wanted: impl IntoIterator<Item = (String, String)>) -> Option<Action> {
    let changes: Changes = wanted
        .into_iter()
        .filter(|(name, value)| !target.meta.says(name, value))
        .map(|(name, value)| (name, Some(value)))
        .collect();
    (!changes.is_empty()).then(|| annotate(target, changes, BTreeMap::new()))
}

/// The owner reference of a worker's pod.
pub fn pod_owner(start: Start, target: &Claim, prime: Option<&Claim>) -> Option<Value> {
    match start {
        Start::Prime => prime.map(prime::owner),
        Start::Target => Some(prime::owner(target)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::storage::seen::worker::{Ended, Hindrance, State};

    fn worker(name: &str, owner: &str, claim: &str, phase: &str) -> Worker {
        Worker::from(&json!({
            "metadata": {"name": name, "namespace": "n", "uid": name,
                "ownerReferences": [{"kind": "PersistentVolumeClaim", "uid": owner, "controller": true}]},
            "spec": {"containers": [{"name": "w"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
            "status": {"phase": phase},
        }))
    }

    #[test]
    fn the_priority_class_of_the_source_object_is_put_on_the_claim_once() {
        let task = |priority: &str| Task {
            source: Source::Blank,
            archive: false,
            preallocation: false,
            owner_uid: String::new(),
            priority: priority.to_owned(),
        };
        let mut target = Claim::default();
        assert_eq!(prioritize(&target, &task("")), None);
        let Some(Action::Annotate { annotations, .. }) = prioritize(&target, &task("high")) else { panic!() };
        assert_eq!(annotations[names::PRIORITY_CLASS].as_deref(), Some("high"));
        target.meta.annotations.insert(names::PRIORITY_CLASS.to_owned(), "low".to_owned());
        assert_eq!(prioritize(&target, &task("high")), None);
    }

    #[test]
    fn a_claim_without_a_data_volume_shows_the_progress_until_it_is_complete() {
        let claim = |kind: &str, owner: &str, annotations: &Value| {
            Claim::from(&json!({
                "metadata": {"name": "disk", "namespace": "n", "uid": "c", "annotations": annotations,
                    "ownerReferences": [{"kind": owner, "uid": "o", "controller": true}]},
                "spec": {"dataSourceRef": {"apiGroup": names::GROUP, "kind": kind, "name": "s"}},
            }))
        };
        let progress = |text: &str| json!({names::PROGRESS: text});
        let (import, clone) = (names::IMPORT_SOURCE, names::CLONE_SOURCE);
        for (claim, progress, shown) in [
            (claim(import, "Backup", &json!({})), Some("7.00%"), Some("7.00%")),
            (claim(clone, "Backup", &progress("7.00%")), Some("18.00%"), Some("18.00%")),
            (claim(import, "Backup", &progress("7.00%")), Some("7.00%"), None),
            (claim(import, "Backup", &progress("7.00%")), None, None),
            (claim(import, "Backup", &progress("100.0%")), Some("93.00%"), None),
            (claim(import, "DataVolume", &json!({})), Some("7.00%"), None),
            (claim("Sample", "Backup", &json!({})), Some("7.00%"), None),
        ] {
            let written = progressed(&claim, progress.map(str::to_owned)).map(|action| {
                let Action::Annotate { annotations, .. } = action else { panic!("{action:?}") };
                annotations[names::PROGRESS].clone().unwrap()
            });
            assert_eq!(written.as_deref(), shown, "{claim:?}");
        }
    }

    #[test]
    fn a_refused_step_is_reported_until_it_is_taken() {
        let target = |annotations: &Value| {
            Claim::from(
                &json!({"metadata": {"name": "disk", "namespace": "n", "uid": "c", "annotations": annotations}}),
            )
        };
        let made = json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "golden"}});
        let made = Action::Create(made);
        assert_eq!(made_in(&made), Some("golden"));
        let grown = Action::Expand { claim: ("n".into(), "tmp".into()), uid: String::new(), size: 1 };
        assert_eq!(made_in(&grown), Some("n"));
        let said = "persistentvolumeclaims \"prime\" is forbidden: exceeded quota: claims";
        let quota = refusal("golden", said);
        assert_eq!(quota.reason, "ErrExceededQuota");
        assert!(quota.message.starts_with(said) && quota.message.contains("in namespace golden"));
        let policy = refusal("n", "denied the request");
        assert_eq!(
            (policy.reason, policy.message.as_str()),
            (NOT_MADE, "denied the request (in namespace n)")
        );
        // Reported once, and no more when the step is taken.
        let none = target(&json!({}));
        let report = report(&none, Some(&quota));
        let Some(Action::Annotate { annotations, .. }) = report else { panic!("{report:?}") };
        let told = target(&json!(annotations));
        assert_eq!(super::report(&told, Some(&quota)), None);
        let resumes = |claim: &Claim| match resumed(claim, &made) {
            Some(Action::Annotate { annotations, .. }) => annotations.get(names::RUNNING).cloned(),
            _ => None,
        };
        assert_eq!(resumes(&none), None);
        assert_eq!(resumes(&told), Some(None));
        let mut clone = told;
        clone.meta.annotations.insert(names::CLONE_TYPE.to_owned(), "csi-clone".to_owned());
        assert_eq!(resumes(&clone), Some(Some("true".to_owned())));
        assert_eq!(resumed(&clone, &delete_claim(&clone)), None);
        // The sender's trouble leaves that of the server alone.
        let trouble = Obstacle { reason: NOT_STARTED, message: "no pods".into() };
        let report = report_sender(&none, &trouble);
        let Some(Action::Annotate { annotations, .. }) = report else { panic!("{report:?}") };
        assert_eq!(annotations[names::SOURCE_RUNNING_REASON].as_deref(), Some(NOT_STARTED));
        assert_eq!(annotations[names::CLONE_ERROR].as_deref(), Some("no pods"));
        assert!(!annotations.contains_key(names::RUNNING));
    }

    #[test]
    fn a_claim_that_a_pod_uses_gets_no_worker_of_its_own() {
        let claim = |phase: &str, annotations: &Value| {
            Claim::from(&json!({
                "metadata": {"name": "disk", "namespace": "n", "uid": "c", "annotations": annotations},
                "status": {"phase": phase},
            }))
        };
        let (none, done) = (json!({}), json!({names::POD_PHASE: "Succeeded"}));
        let works = worker("importer-disk", "c", "disk", "Running");
        let (import, upload) = (Some("ImportTargetInUse"), Some("UploadTargetInUse"));
        for (source, claim, worker, user, starts, waits) in [
            (Source::Blank, claim("Bound", &none), None, None, true, None),
            (Source::Blank, claim("Bound", &none), None, Some("web"), false, import),
            (Source::Upload, claim("Bound", &none), None, Some("web"), false, upload),
            (Source::Blank, claim("Pending", &none), None, Some("web"), false, None),
            (Source::Blank, claim("Bound", &done), None, Some("web"), false, None),
            (Source::Blank, claim("Bound", &none), Some(&works), Some("web"), false, None),
        ] {
            let task = Task {
                source,
                archive: false,
                preallocation: false,
                owner_uid: String::new(),
                priority: String::new(),
            };
            let plan = direct(&Observed {
                target: &claim,
                prime: None,
                worker,
                volume: None,
                class: None,
                task: &task,
                honors_first_consumer: true,
                user,
                young: false,
            });
            assert_eq!(plan.start == Some(Start::Target), starts, "{plan:?}");
            assert_eq!(plan.trouble.as_ref().map(|trouble| trouble.reason), waits, "{plan:?}");
            let event = plan.actions.iter().find_map(|action| {
                let Action::Report(event) = action else { return None };
                Some((event.warning, event.reason.as_str(), event.message.as_str()))
            });
            let text = "pod n/web using PersistentVolumeClaim disk";
            assert_eq!(event, waits.map(|reason| (true, reason, text)));
            if let Some(trouble) = plan.trouble {
                assert!(trouble.message.starts_with(text) && trouble.message.contains("delete the pod"));
            }
        }
    }

    #[test]
    fn a_worker_on_the_claim_itself_is_retained_after_its_success() {
        let task = Task {
            source: Source::Blank,
            archive: false,
            preallocation: false,
            owner_uid: String::new(),
            priority: String::new(),
        };
        let retained = json!({names::RETAIN: "true"});
        let over = json!({names::RETAIN: "true", names::POD_PHASE: "Succeeded"});
        for (annotations, phase, deleted) in [
            (&json!({}), "Succeeded", true),
            (&retained, "Succeeded", false),
            (&over, "Succeeded", false),
            (&retained, "Failed", true),
        ] {
            let claim = Claim::from(&json!({
                "metadata": {"name": "disk", "namespace": "n", "uid": "c", "annotations": annotations},
                "status": {"phase": "Bound"},
            }));
            let worker = worker("importer-disk", "c", "disk", phase);
            let plan = direct(&Observed {
                target: &claim,
                prime: None,
                worker: Some(&worker),
                volume: None,
                class: None,
                task: &task,
                honors_first_consumer: true,
                user: None,
                young: false,
            });
            assert_eq!(
                plan.actions.contains(&delete_pod(&worker)),
                deleted,
                "{annotations} {phase}: {plan:?}"
            );
        }
    }

    #[test]
    fn a_mount_that_fails_is_an_obstacle_and_an_image_that_is_missing_is_the_workers_state() {
        let hindered = |reason: &str| Worker {
            phase: "Pending".to_owned(),
            hindrance: Some(Hindrance { reason: reason.to_owned(), message: "no ConfigMap".to_owned() }),
            ..Worker::default()
        };
        let obstacle = hindrance(&hindered("FailedMount")).unwrap();
        assert_eq!((obstacle.reason, obstacle.message.as_str()), ("FailedMount", "no ConfigMap"));
        assert!(is_hindrance(&obstacle));
        assert_eq!(hindrance(&hindered("ErrImagePull")), None);
        assert_eq!(hindrance(&Worker::default()), None);
        assert!(!is_hindrance(&Obstacle { reason: "Provisioning", message: String::new() }));
    }

    #[test]
    fn a_data_volume_shows_the_start_of_its_importer_without_annotations_of_the_claim() {
        let claim = |owner: &str, annotations: &Value| {
            Claim::from(&json!({"metadata": {
                "name": "disk", "namespace": "n", "uid": "c", "annotations": annotations,
                "ownerReferences": [{"kind": owner, "uid": "v", "controller": true}],
            }}))
        };
        let (none, refused) = (json!({}), json!({names::RUNNING: "false"}));
        assert!(shows_start(&claim("DataVolume", &none)));
        assert!(!shows_start(&claim("DataVolume", &refused)), "the annotation would stay as it is");
        assert!(!shows_start(&claim("VirtualMachine", &none)), "nothing else shows it");
        let pod = Worker { phase: "Pending".to_owned(), ..Worker::default() };
        let shown: BTreeMap<String, String> =
            starting(&pod, &claim("DataVolume", &none)).into_iter().collect();
        let wanted = [
            (names::POD_PHASE, "Pending"),
            (names::POD_RESTARTS, "0"),
            (names::RUNNING, "false"),
            (names::RUNNING_REASON, "ContainerCreating"),
            (names::RUNNING_MESSAGE, ""),
        ];
        assert_eq!(shown, BTreeMap::from(wanted.map(|(name, value)| (name.to_owned(), value.to_owned()))));
    }

    #[test]
    fn only_the_work_on_a_deleted_claim_ends() {
        let claim = |deleted: Option<&str>| {
            Claim::from(&json!({
                "metadata": {"name": "disk", "namespace": "n", "uid": "c", "deletionTimestamp": deleted},
            }))
        };
        let ended = State::Ended(Ended { status: 0, reason: "Completed".to_owned(), message: String::new() });
        let workers = [
            worker("works", "c", "disk", "Running"),
            worker("starts", "c", "disk", "Pending"),
            worker("over", "c", "disk", "Succeeded"),
            worker("failed", "c", "disk", "Failed"),
            Worker { state: ended, ..worker("ended", "c", "disk", "Running") },
            worker("of-another", "x", "disk", "Running"),
            worker("reads-another", "c", "source", "Running"),
        ];
        assert_eq!(abandon(&claim(None), &workers), []);
        let ended = abandon(&claim(Some("2026-01-01T00:00:00Z")), &workers);
        let wanted = [&workers[0], &workers[1]].map(delete_pod);
        assert_eq!(ended, wanted);
    }
}
