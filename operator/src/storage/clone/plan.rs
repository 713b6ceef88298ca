//! The next step of a clone. Pure: what is there decides, with the way that was chosen at the beginning and stands on the
//! claim.
//!
//! ```text
//!  csi-clone  target ─► temporary claim with the source as its data source ────────────────┐
//!  snapshot   target ─► temporary snapshot ─► temporary claim with the snapshot ────────────┼─► grown ─► rebound ─► cleaned up
//!  copy       target ─► temporary claim ─► upload server ─► sender ─► both have ended well ─┘
//! ```
//! Temporary claims and snapshots are in the source's namespace, where the driver can read the source; the receiving side
//! of a copy is in the target's.
//!
//! Not here: which way is taken ([`super::choose`]), who may clone ([`super::authorize`]).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::authorize::Origin;
use super::choose::{self, Given, Wanted};
use super::sender;
use crate::storage::action::{About, Action, Event, Kind};
use crate::storage::datavolume::Trouble;
use crate::storage::names;
use crate::storage::populate::mirror::{self, Changes};
use crate::storage::profile::{CloneStrategy, Profile};
use crate::storage::seen::claim::Phase;
use crate::storage::seen::worker::State;
use crate::storage::seen::{Claim, Class, Snapshot, Volume, Worker};

/// What is cloned.
#[derive(Clone, Copy, Debug)]
pub enum From<'a> {
    /// It does not exist.
    Missing,
    /// A claim, its volume, and a pod that writes to it.
    Claim(&'a Claim, Option<&'a Volume>, Option<&'a str>),
    /// A snapshot and its driver.
    Snapshot(&'a Snapshot, &'a str),
}

/// What is there.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The claim to fill.
    pub target: &'a Claim,
    /// Name of what is cloned.
    pub origin: &'a Origin,
    /// What is cloned.
    pub from: From<'a>,
    /// The temporary claim.
    pub temporary: Option<&'a Claim>,
    /// Its volume, once it is bound.
    pub volume: Option<&'a Volume>,
    /// The temporary snapshot.
    pub snapshot: Option<&'a Snapshot>,
    /// The upload server on the temporary claim.
    pub server: Option<&'a Worker>,
    /// The sending pod.
    pub sender: Option<&'a Worker>,
    /// The target's class.
    pub class: Option<&'a Class>,
    /// Its profile.
    pub profile: Option<&'a Profile>,
    /// CDI's `cloneStrategyOverride`.
    pub forced: Option<CloneStrategy>,
}

/// A worker that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The upload server on the temporary claim.
    Server,
    /// The sending pod.
    Sender,
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order.
    pub actions: Vec<Action>,
    /// What keeps the clone from going on.
    pub trouble: Option<Trouble>,
    /// A worker to make.
    pub start: Option<Start>,
    /// Whether to look again soon: snapshots are not watched.
    pub again: bool,
}

impl Plan {
    fn act(actions: Vec<Action>) -> Self {
        Self { actions, ..Self::default() }
    }

    fn troubled(reason: &'static str, message: String) -> Self {
        Self { trouble: Some(Trouble { reason, message }), ..Self::default() }
    }

    fn before(mut self, mut actions: Vec<Action>) -> Self {
        actions.append(&mut self.actions);
        Self { actions, ..self }
    }
}

/// Name of the temporary claim of a target.
pub fn temporary(target_uid: &str) -> String {
    format!("tmp-pvc-{target_uid}")
}

/// Name of the temporary snapshot of a target.
pub fn snapshot(target_uid: &str) -> String {
    format!("tmp-snapshot-{target_uid}")
}

/// The way that was chosen for a target.
pub fn chosen(target: &Claim) -> Option<CloneStrategy> {
    CloneStrategy::of_word(target.meta.annotation(names::CLONE_TYPE)?)
}

/// Namespace of the temporary claim.
pub fn namespace<'a>(target: &'a Claim, origin: &'a Origin) -> &'a str {
    match chosen(target) {
        Some(CloneStrategy::Copy) => &target.meta.namespace,
        Some(CloneStrategy::CsiClone | CloneStrategy::Snapshot) | None => &origin.namespace,
    }
}

/// Whether the clone is over and nothing of it is left.
pub fn is_over(target: &Claim) -> bool {
    target.phase == Phase::Bound
        && target.meta.says(names::CLONE_PHASE, "Succeeded")
        && !has_finalizer(target)
}

fn has_finalizer(target: &Claim) -> bool {
    target.meta.finalizers.iter().any(|one| one == names::CLONE_FINALIZER)
}

/// Decides.
pub fn plan(o: &Observed<'_>) -> Plan {
    let target = o.target;
    if target.meta.deleting {
        return if has_finalizer(target) { clean(o) } else { Plan::default() };
    }
    if target.phase == Phase::Lost {
        return Plan::default();
    }
    if target.phase == Phase::Bound {
        return bound(o);
    }
    match chosen(target) {
        Some(way) => advance(o, way),
        None => begin(o),
    }
}

/// Chooses the way, and writes it down before anything is made.
fn begin(o: &Observed<'_>) -> Plan {
    let target = o.target;
    let given = match given(o) {
        Ok(given) => given,
        Err(plan) => return plan,
    };
    let (Some(class), Some(profile)) = (o.class, o.profile) else {
        let named = target.class.as_deref().unwrap_or_default();
        return Plan::troubled(
            "StorageClassMissing",
            format!("StorageClass {named:?} does not exist: create it"),
        );
    };
    let annotation = |name| target.meta.annotation(name).is_some();
    if class.waits_for_consumer && !annotation(names::SELECTED_NODE) && !annotation(names::IMMEDIATE) {
        return Plan::default();
    }
    let wanted = Wanted {
        driver: class.provisioner.clone(),
        block: target.block,
        size: target.size,
        expands: class.expands,
        strategy: profile.clone,
        has_snapshot_class: !profile.snapshot_class.is_empty(),
    };
    let (way, fallback) = choose::choose(&given, &wanted, o.forced);
    if way == CloneStrategy::Copy {
        match o.from {
            From::Claim(_, _, Some(pod)) => {
                let Origin { namespace, name, .. } = o.origin;
                let message = format!(
                    "pod {namespace}/{pod} using PersistentVolumeClaim {name}: the clone waits until it ends"
                );
                return Plan::troubled("CloneSourceInUse", message).before(vec![warning(
                    o,
                    "CloneSourceInUse",
                    &format!("pod {namespace}/{pod} using PersistentVolumeClaim {name}"),
                )]);
            }
            From::Snapshot(..) => {
                let why = fallback.map(choose::Fallback::reason).unwrap_or_default();
                let message = format!(
                    "VolumeSnapshot {} cannot be restored into StorageClass {} ({why}): restore it into a claim and clone \
                     that",
                    o.origin.name, class.meta.name
                );
                return Plan::troubled("CloneNotSupported", message);
            }
            From::Claim(..) | From::Missing => {}
        }
    }
    let mut actions = Vec::new();
    if o.origin.namespace != target.meta.namespace && !has_finalizer(target) {
        let mut finalizers = target.meta.finalizers.clone();
        finalizers.push(names::CLONE_FINALIZER.to_owned());
        actions.push(finalize(target, finalizers));
    }
    let mut changes = vec![
        (names::CLONE_PHASE, first_phase(o, way)),
        (names::CLONE_TYPE, way.word()),
        (names::RUNNING, "true"),
        (names::RUNNING_REASON, "Populator is running"),
        (names::RUNNING_MESSAGE, ""),
    ];
    changes.extend(fallback.map(|fallback| (names::CLONE_FALLBACK, fallback.reason())));
    actions.push(annotate(target, &changes, content_labels(o)));
    advance(o, way).before(actions)
}

fn first_phase(o: &Observed<'_>, way: CloneStrategy) -> &'static str {
    match (way, o.from) {
        (CloneStrategy::CsiClone, _) => "CSIClone",
        (CloneStrategy::Snapshot, From::Snapshot(..)) => "SnapshotClone",
        (CloneStrategy::Snapshot, _) => "Snapshot",
        (CloneStrategy::Copy, _) => "HostClone",
    }
}

/// Labels that follow the content from source to target.
fn content_labels(o: &Observed<'_>) -> BTreeMap<String, String> {
    let labels = match o.from {
        From::Claim(claim, ..) => &claim.meta.labels,
        From::Snapshot(snapshot, _) => &snapshot.meta.labels,
        From::Missing => return BTreeMap::new(),
    };
    let following = labels.iter().filter(|(name, _)| names::follows_content(name));
    following
        .filter(|(name, _)| !o.target.meta.labels.contains_key(*name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The source, when it can be cloned now.
fn given(o: &Observed<'_>) -> Result<Given, Plan> {
    let name = &o.origin.name;
    match o.from {
        From::Missing => {
            let kind = if o.origin.snapshot { "VolumeSnapshot" } else { "PersistentVolumeClaim" };
            let message = format!("The source {kind} {name} doesn't exist");
            let event = warning(o, "CloneWithoutSource", &message);
            Err(Plan::troubled("CloneWithoutSource", message).before(vec![event]))
        }
        From::Claim(source, volume, _) => {
            let says = |annotation| source.meta.annotation(annotation).is_none_or(|one| one == "Succeeded");
            let filled = says(names::POD_PHASE) && says(names::CLONE_PHASE);
            if source.phase != Phase::Bound || source.meta.deleting || !filled {
                let message = format!("PVC {name} is not filled yet: the clone waits for it");
                return Err(Plan::troubled("CloneSourceNotReady", message));
            }
            Ok(Given {
                driver: volume.map(|volume| volume.driver.clone()).unwrap_or_default(),
                block: Some(source.block),
                size: source.capacity,
                snapshot: false,
            })
        }
        From::Snapshot(snapshot, driver) => {
            if !snapshot.ready || snapshot.meta.deleting {
                let why =
                    if snapshot.error.is_empty() { String::new() } else { format!(" ({})", snapshot.error) };
                let message =
                    format!("VolumeSnapshot {name} is not ready to use{why}: the clone waits for it");
                return Err(Plan::troubled("SnapshotNotReady", message));
            }
            Ok(Given {
                driver: driver.to_owned(),
                block: snapshot.block,
                size: snapshot.size,
                snapshot: true,
            })
        }
    }
}

/// The next step of the chosen way.
fn advance(o: &Observed<'_>, way: CloneStrategy) -> Plan {
    match (way, o.temporary) {
        (CloneStrategy::Copy, None) => Plan::act(vec![Action::Create(empty(o))]),
        (CloneStrategy::Copy, Some(temporary)) => copy(o, temporary),
        (_, Some(temporary)) => settle(o, temporary),
        (CloneStrategy::CsiClone, None) => match o.from {
            From::Claim(source, ..) => {
                let data = json!({"kind": "PersistentVolumeClaim", "name": source.meta.name});
                Plan::act(vec![Action::Create(filled(o, source.capacity, &data))])
            }
            From::Snapshot(..) | From::Missing => given(o).err().unwrap_or_default(),
        },
        (CloneStrategy::Snapshot, None) => restore(o),
    }
}

/// Takes a snapshot, if the source is none, and restores it.
fn restore(o: &Observed<'_>) -> Plan {
    let data = |snapshot: &Snapshot| json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot.meta.name});
    let snapshot = match (o.from, o.snapshot) {
        (From::Snapshot(source, _), _) => {
            return Plan::act(vec![Action::Create(filled(o, source.size, &data(source)))]);
        }
        (_, Some(snapshot)) => snapshot,
        (From::Claim(source, ..), None) => {
            let create = Action::Create(taken(o, source));
            return Plan { again: true, ..Plan::act(vec![create]) };
        }
        (From::Missing, None) => return given(o).err().unwrap_or_default(),
    };
    if !snapshot.error.is_empty() && !snapshot.ready {
        let message = format!("snapshot {}: {}", snapshot.meta.name, snapshot.error);
        return Plan { again: true, ..Plan::troubled("SnapshotNotReady", message) };
    }
    if !snapshot.ready {
        return Plan { again: true, ..Plan::default() };
    }
    let size = match o.from {
        From::Claim(source, ..) => source.capacity.max(snapshot.size),
        From::Snapshot(..) | From::Missing => snapshot.size,
    };
    let create = Action::Create(filled(o, size, &data(snapshot)));
    Plan::act(vec![annotate(o.target, &[(names::CLONE_PHASE, "SnapshotClone")], BTreeMap::new()), create])
}

/// The temporary snapshot.
fn taken(o: &Observed<'_>, source: &Claim) -> Value {
    let class = o.profile.map(|profile| profile.snapshot_class.as_str()).unwrap_or_default();
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": sender::metadata(&snapshot(&o.target.meta.uid), &o.origin.namespace, o.target),
        "spec": {"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": source.meta.name}},
    })
}

/// The temporary claim that the driver fills: of the source's size where it can grow.
fn filled(o: &Observed<'_>, size: u64, data: &Value) -> Value {
    let expands = o.class.is_some_and(|class| class.expands);
    let size = if expands && size > 0 { size } else { o.target.size.max(size) };
    let mut claim = shape(o, &o.origin.namespace, size);
    claim["spec"]["dataSource"] = data.clone();
    claim
}

/// The temporary claim that a sender's bytes are put into.
fn empty(o: &Observed<'_>) -> Value {
    let mut claim = shape(o, &o.target.meta.namespace, o.target.size);
    claim["metadata"]["annotations"][names::UPLOAD_TARGET] = json!("");
    claim
}

fn shape(o: &Observed<'_>, namespace: &str, size: u64) -> Value {
    let mut metadata = sender::metadata(&temporary(&o.target.meta.uid), namespace, o.target);
    metadata["annotations"][names::IMMEDIATE] = json!("");
    let of_source = match o.from {
        From::Claim(source, volume, _) if namespace == o.origin.namespace => {
            let chosen = source.meta.annotation(names::SELECTED_NODE).map(str::to_owned);
            chosen.or_else(|| volume.and_then(|volume| volume.node.clone()))
        }
        From::Claim(..) | From::Snapshot(..) | From::Missing => None,
    };
    let chosen = o.target.meta.annotation(names::SELECTED_NODE).map(str::to_owned);
    if let Some(node) = chosen.or(of_source) {
        metadata["annotations"][names::SELECTED_NODE] = json!(node);
    }
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {
            "accessModes": o.target.modes,
            "volumeMode": if o.target.block { "Block" } else { "Filesystem" },
            "storageClassName": o.target.class,
            "resources": {"requests": {"storage": size.to_string()}},
        },
    })
}

/// Copies: the server first, then the sender; both are reported.
fn copy(o: &Observed<'_>, temporary: &Claim) -> Plan {
    if o.volume.is_some_and(|volume| volume.claim_uid == o.target.meta.uid) {
        return Plan::default();
    }
    let Some(server) = o.server else {
        if o.target.meta.says(names::POD_PHASE, "Succeeded") {
            return settle(o, temporary);
        }
        // A pod is what makes the scheduler choose a node; where none has to be chosen, it waits for the volume.
        let consumed = o.class.is_some_and(|class| class.waits_for_consumer);
        let start = (consumed || temporary.phase == Phase::Bound).then_some(Start::Server);
        return Plan { start, ..Plan::default() };
    };
    let mirror = mirror::of(server, o.target, true);
    let mut wanted = mirror.annotations.clone();
    wanted.remove(names::POD_READY);
    if let Some(sender) = o.sender {
        let (running, reason, message) = mirror::running_now(sender);
        wanted.insert(names::SOURCE_RUNNING.to_owned(), Some(running.to_string()));
        wanted.insert(names::SOURCE_RUNNING_REASON.to_owned(), Some(reason));
        wanted.insert(names::SOURCE_RUNNING_MESSAGE.to_owned(), Some(message));
    }
    let changes: Changes = wanted
        .into_iter()
        .filter(|(name, value)| o.target.meta.annotation(name) != value.as_deref())
        .collect();
    let early = temporary.phase == Phase::Pending && server.unschedulable.is_none();
    let mut actions = Vec::new();
    if !changes.is_empty() && !early {
        actions.push(Action::Annotate {
            claim: key(o.target),
            uid: o.target.meta.uid.clone(),
            annotations: changes,
            labels: BTreeMap::new(),
        });
    }
    if mirror.succeeded {
        return settle(o, temporary).before(actions);
    }
    if mirror.expired || server.phase == "Failed" {
        actions.push(delete(Kind::Pod, &server.meta));
        actions.push(Action::Release {
            service: (temporary.meta.namespace.clone(), api::upload::service_name(&temporary.meta.name)),
            claim: temporary.meta.uid.clone(),
        });
        return Plan::act(actions);
    }
    match o.sender {
        None if server.ready && !server.address.is_empty() => {
            Plan { start: Some(Start::Sender), ..Plan::act(actions) }
        }
        // It ended, or it knows an address that is not the server's any more.
        Some(sender)
            if !sender.meta.deleting
                && (sender.phase == "Failed"
                    || (server.ready && server.meta.created > sender.meta.created)
                    || (sender.phase == "Succeeded"
                        && !matches!(server.state, State::Ended(_))
                        && server.restarts > 0)) =>
        {
            actions.push(delete(Kind::Pod, &sender.meta));
            Plan::act(actions)
        }
        Some(_) | None => Plan::act(actions),
    }
}

/// The temporary claim has the content, or will have: it grows to the target's size, then its volume is rebound.
fn settle(o: &Observed<'_>, temporary: &Claim) -> Plan {
    let Some(volume) = o.volume else { return Plan::default() };
    if volume.claim_uid == o.target.meta.uid {
        return Plan::default();
    }
    if volume.claim_uid != temporary.meta.uid {
        let message = format!("PV {} bound to unexpected claim {}", volume.meta.name, volume.claim_name);
        return Plan::troubled("ErrUnexpectedClaim", message);
    }
    if temporary.size < o.target.size {
        let changes = [(names::CLONE_PHASE, "PrepClaim")];
        return Plan::act(vec![
            annotate(o.target, &changes, BTreeMap::new()),
            Action::Expand { claim: key(temporary), uid: temporary.meta.uid.clone(), size: o.target.size },
        ]);
    }
    // A filesystem that the node has still to grow grows when the target is mounted.
    if temporary.capacity < o.target.size && !temporary.grows_when_mounted {
        return Plan::default();
    }
    let mut actions = Vec::new();
    if !o.target.meta.says(names::CLONE_PHASE, "Rebind") {
        actions.push(annotate(o.target, &[(names::CLONE_PHASE, "Rebind")], BTreeMap::new()));
    }
    let (namespace, name) = key(o.target);
    actions.push(Action::Rebind {
        volume: volume.meta.name.clone(),
        version: volume.meta.version.clone(),
        claim: (namespace, name, o.target.meta.uid.clone()),
    });
    Plan::act(actions)
}

/// The target has its volume.
fn bound(o: &Observed<'_>) -> Plan {
    if !o.target.meta.says(names::CLONE_PHASE, "Succeeded") {
        let mut changes: Changes = [
            (names::CLONE_PHASE, "Succeeded"),
            (names::RUNNING, "false"),
            (names::RUNNING_REASON, "Completed"),
            (names::RUNNING_MESSAGE, "Clone Complete"),
        ]
        .map(|(name, value)| (name.to_owned(), Some(value.to_owned())))
        .into();
        for name in [names::SOURCE_RUNNING, names::SOURCE_RUNNING_REASON, names::SOURCE_RUNNING_MESSAGE] {
            if o.target.meta.annotation(name).is_some() {
                changes.insert(name.to_owned(), None);
            }
        }
        return Plan::act(vec![Action::Annotate {
            claim: key(o.target),
            uid: o.target.meta.uid.clone(),
            annotations: changes,
            labels: BTreeMap::new(),
        }]);
    }
    clean(o)
}

/// Removes what helped, then the finalizer.
fn clean(o: &Observed<'_>) -> Plan {
    let mut actions = Vec::new();
    if let Some(sender) = o.sender.filter(|sender| !sender.meta.deleting) {
        actions.push(delete(Kind::Pod, &sender.meta));
    }
    if o.sender.is_some() || (has_finalizer(o.target) && chosen(o.target) == Some(CloneStrategy::Copy)) {
        actions.push(Action::Forget {
            kind: Kind::Secret,
            key: (o.origin.namespace.clone(), sender::name(&o.target.meta.uid)),
        });
    }
    if let Some(snapshot) = o.snapshot.filter(|snapshot| !snapshot.meta.deleting) {
        actions.push(delete(Kind::Snapshot, &snapshot.meta));
    }
    if let Some(temporary) = o.temporary.filter(|temporary| !temporary.meta.deleting) {
        actions.push(delete(Kind::Claim, &temporary.meta));
    }
    let left = o.sender.is_some() || o.temporary.is_some() || o.snapshot.is_some();
    if has_finalizer(o.target) && !left {
        let others = o.target.meta.finalizers.iter().filter(|one| *one != names::CLONE_FINALIZER);
        actions.push(finalize(o.target, others.cloned().collect()));
    }
    Plan { again: left && has_finalizer(o.target), ..Plan::act(actions) }
}

fn key(claim: &Claim) -> (String, String) {
    (claim.meta.namespace.clone(), claim.meta.name.clone())
}

fn delete(kind: Kind, meta: &crate::storage::seen::Meta) -> Action {
    Action::Delete { kind, key: (meta.namespace.clone(), meta.name.clone()), uid: meta.uid.clone() }
}

fn finalize(target: &Claim, finalizers: Vec<String>) -> Action {
    Action::Finalize { claim: key(target), version: target.meta.version.clone(), finalizers }
}

fn warning(o: &Observed<'_>, reason: &str, message: &str) -> Action {
    Action::Report(Event::warning(About::claim(&o.target.meta), reason, message))
}

fn annotate(claim: &Claim, changes: &[(&str, &str)], labels: BTreeMap<String, String>) -> Action {
    let annotations: Changes =
        changes.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect();
    Action::Annotate { claim: key(claim), uid: claim.meta.uid.clone(), annotations, labels }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::profile::{Overrides, SnapshotClass};

    fn target(phase: &str, annotations: &Value) -> Claim {
        Claim::from(&json!({
            "metadata": {"name": "clone", "namespace": "n", "uid": "t", "annotations": annotations},
            "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": phase},
        }))
    }

    fn source(phase: &str, pod: &str) -> Claim {
        Claim::from(&json!({
            "metadata": {"name": "golden", "namespace": "n", "annotations": {names::POD_PHASE: pod}},
            "spec": {"storageClassName": "fast"},
            "status": {"phase": phase, "capacity": {"storage": "2Gi"}},
        }))
    }

    fn volume(name: &str, claim: &str) -> Volume {
        Volume {
            meta: crate::storage::seen::Meta { name: name.into(), version: "1".into(), ..Default::default() },
            claim_uid: claim.into(),
            driver: "driver".into(),
            node: Some("node1".into()),
            ..Volume::default()
        }
    }

    fn class() -> Class {
        let mut class = Class { provisioner: "driver".into(), waits_for_consumer: true, ..Class::default() };
        class.meta.name = "fast".into();
        class.meta.annotations.insert("cdi.kubevirt.io/clone-strategy".into(), "csi-clone".into());
        class
    }

    /// What a test changes; the rest is as for a claim in the same namespace.
    struct Case<'a> {
        target: &'a Claim,
        source: Option<&'a Claim>,
        writer: Option<&'a str>,
        of_snapshot: Option<&'a Snapshot>,
        temporary: Option<&'a Claim>,
        volume: Option<&'a Volume>,
        snapshot: Option<&'a Snapshot>,
        server: Option<&'a Worker>,
        sender: Option<&'a Worker>,
        namespace: &'a str,
        forced: Option<CloneStrategy>,
    }

    impl<'a> Case<'a> {
        fn new(target: &'a Claim, source: Option<&'a Claim>) -> Self {
            Self {
                target,
                source,
                writer: None,
                of_snapshot: None,
                temporary: None,
                volume: None,
                snapshot: None,
                server: None,
                sender: None,
                namespace: "n",
                forced: None,
            }
        }

        fn plan(&self) -> Plan {
            let class = class();
            let snapshots = [SnapshotClass { name: "s".into(), driver: "driver".into(), is_default: true }];
            let profile = Profile::of(&class, &Overrides::default(), true, &snapshots);
            let golden = volume("golden-pv", "golden");
            let origin = Origin {
                namespace: self.namespace.into(),
                name: "golden".into(),
                snapshot: self.of_snapshot.is_some(),
            };
            let from = match (self.source, self.of_snapshot) {
                (Some(source), _) => From::Claim(source, Some(&golden), self.writer),
                (None, Some(snapshot)) => From::Snapshot(snapshot, "driver"),
                (None, None) => From::Missing,
            };
            plan(&Observed {
                target: self.target,
                origin: &origin,
                from,
                temporary: self.temporary,
                volume: self.volume,
                snapshot: self.snapshot,
                server: self.server,
                sender: self.sender,
                class: Some(&class),
                profile: Some(&profile),
                forced: self.forced,
            })
        }
    }

    fn decide(
        target: &Claim,
        source: Option<&Claim>,
        temporary: Option<&Claim>,
        volume: Option<&Volume>,
    ) -> Plan {
        Case { temporary, volume, ..Case::new(target, source) }.plan()
    }

    #[test]
    fn a_clone_goes_step_by_step() {
        let ready = source("Bound", "Succeeded");
        assert_eq!(
            decide(&target("Pending", &json!({})), Some(&ready), None, None),
            Plan::default(),
            "waits for a pod"
        );
        let forced = target("Pending", &json!({names::IMMEDIATE: ""}));
        let made = decide(&forced, Some(&ready), None, None);
        let [Action::Annotate { .. }, Action::Create(claim)] = made.actions.as_slice() else {
            panic!("{made:?}")
        };
        assert_eq!(claim["metadata"]["annotations"][names::SELECTED_NODE], "node1");
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], (2u64 << 30).to_string());
        assert_eq!(claim["spec"]["dataSource"]["name"], "golden");
        let mut temporary = Claim::from(claim);
        temporary.meta.uid = "tmp".into();
        temporary.capacity = temporary.size;
        let forced =
            target("Pending", &json!({names::CLONE_TYPE: "csi-clone", names::CLONE_PHASE: "CSIClone"}));
        assert_eq!(
            decide(&forced, Some(&ready), Some(&temporary), None),
            Plan::default(),
            "the driver clones"
        );
        let cloned = decide(&forced, Some(&ready), Some(&temporary), Some(&volume("pv", "tmp")));
        assert!(
            matches!(cloned.actions.as_slice(), [Action::Annotate { .. }, Action::Rebind { .. }]),
            "{cloned:?}"
        );
        assert_eq!(
            decide(&forced, Some(&ready), Some(&temporary), Some(&volume("pv", "t"))),
            Plan::default()
        );
        let bound = target("Bound", &json!({names::CLONE_PHASE: "Rebind"}));
        assert!(matches!(
            decide(&bound, None, Some(&temporary), None).actions.as_slice(),
            [Action::Annotate { .. }]
        ));
        let done = target("Bound", &json!({names::CLONE_PHASE: "Succeeded"}));
        assert!(matches!(
            decide(&done, None, Some(&temporary), None).actions.as_slice(),
            [Action::Delete { .. }]
        ));
        assert_eq!(decide(&done, None, None, None), Plan::default());
    }

    #[test]
    fn a_snapshot_is_taken_restored_and_removed() {
        let ready = source("Bound", "Succeeded");
        let forced = target("Pending", &json!({names::IMMEDIATE: ""}));
        let begun = Case { forced: Some(CloneStrategy::Snapshot), ..Case::new(&forced, Some(&ready)) }.plan();
        let [Action::Annotate { .. }, Action::Create(snapshot)] = begun.actions.as_slice() else {
            panic!("{begun:?}")
        };
        assert_eq!(snapshot["spec"]["source"]["persistentVolumeClaimName"], "golden");
        assert_eq!(snapshot["spec"]["volumeSnapshotClassName"], "s");
        let going =
            target("Pending", &json!({names::CLONE_TYPE: "snapshot", names::CLONE_PHASE: "Snapshot"}));
        let mut taken = Snapshot::from(snapshot);
        let case = Case { snapshot: Some(&taken), ..Case::new(&going, Some(&ready)) };
        assert_eq!(case.plan(), Plan { again: true, ..Plan::default() });
        taken.ready = true;
        taken.size = 1 << 30;
        let restored = Case { snapshot: Some(&taken), ..Case::new(&going, Some(&ready)) }.plan();
        let [Action::Annotate { .. }, Action::Create(claim)] = restored.actions.as_slice() else {
            panic!("{restored:?}")
        };
        assert_eq!(claim["spec"]["dataSource"]["kind"], "VolumeSnapshot");
        let done = target("Bound", &json!({names::CLONE_TYPE: "snapshot", names::CLONE_PHASE: "Succeeded"}));
        let cleaned = Case { snapshot: Some(&taken), ..Case::new(&done, None) }.plan();
        assert!(
            matches!(cleaned.actions.as_slice(), [Action::Delete { kind: Kind::Snapshot, .. }]),
            "{cleaned:?}"
        );
        // A snapshot as source is restored as it is.
        let of_snapshot = Some(&taken);
        let begun = Case { of_snapshot, ..Case::new(&forced, None) }.plan();
        assert!(
            matches!(begun.actions.as_slice(), [Action::Annotate { .. }, Action::Create(claim)] if claim["kind"] == "PersistentVolumeClaim"),
            "{begun:?}"
        );
    }

    #[test]
    fn a_copy_has_a_server_then_a_sender() {
        let ready = source("Bound", "Succeeded");
        let forced = target("Pending", &json!({names::IMMEDIATE: ""}));
        let copy = Some(CloneStrategy::Copy);
        let used = Case { forced: copy, writer: Some("vm"), ..Case::new(&forced, Some(&ready)) }.plan();
        assert_eq!(used.trouble.unwrap().reason, "CloneSourceInUse");
        let begun = Case { forced: copy, ..Case::new(&forced, Some(&ready)) }.plan();
        let [Action::Annotate { .. }, Action::Create(claim)] = begun.actions.as_slice() else {
            panic!("{begun:?}")
        };
        assert!(claim["spec"].get("dataSource").is_none());
        let mut temporary = Claim::from(claim);
        temporary.meta.uid = "tmp".into();
        let going = target("Pending", &json!({names::CLONE_TYPE: "copy", names::CLONE_PHASE: "HostClone"}));
        fn of(
            case: &Case<'_>,
            temporary: &Claim,
            server: Option<&Worker>,
            sender: Option<&Worker>,
            volume: Option<&Volume>,
        ) -> Plan {
            let temporary = Some(temporary);
            Case { temporary, server, sender, volume, ..Case::new(case.target, case.source) }.plan()
        }
        let case = Case::new(&going, Some(&ready));
        assert_eq!(of(&case, &temporary, None, None, None).start, Some(Start::Server));
        temporary.phase = Phase::Bound;
        let mut server = Worker {
            phase: "Running".into(),
            address: "10.0.0.1".into(),
            state: State::Running,
            ..Worker::default()
        };
        assert_eq!(of(&case, &temporary, Some(&server), None, None).start, None);
        server.ready = true;
        assert_eq!(of(&case, &temporary, Some(&server), None, None).start, Some(Start::Sender));
        let sender = Worker { phase: "Running".into(), state: State::Running, ..Worker::default() };
        let working = of(&case, &temporary, Some(&server), Some(&sender), None);
        assert_eq!(working.start, None);
        let [Action::Annotate { annotations, .. }] = working.actions.as_slice() else {
            panic!("{working:?}")
        };
        assert_eq!(annotations[names::SOURCE_RUNNING].as_deref(), Some("true"));
        server.phase = "Succeeded".into();
        temporary.capacity = temporary.size;
        let volume = volume("pv", "tmp");
        let over = of(&case, &temporary, Some(&server), Some(&sender), Some(&volume));
        assert!(matches!(over.actions.last(), Some(Action::Rebind { .. })), "{over:?}");
    }

    #[test]
    fn a_clone_grows_before_its_volume_is_rebound() {
        let ready = source("Bound", "Succeeded");
        let mut going =
            target("Pending", &json!({names::CLONE_TYPE: "csi-clone", names::CLONE_PHASE: "CSIClone"}));
        going.size = 3 << 30;
        let mut temporary = source("Bound", "Succeeded");
        temporary.meta.uid = "tmp".into();
        (temporary.size, temporary.capacity) = (2 << 30, 2 << 30);
        let volume = volume("pv", "tmp");
        let grow = decide(&going, Some(&ready), Some(&temporary), Some(&volume));
        assert!(
            matches!(grow.actions.as_slice(), [_, Action::Expand { size, .. }] if *size == 3 << 30),
            "{grow:?}"
        );
        temporary.size = 3 << 30;
        assert_eq!(decide(&going, Some(&ready), Some(&temporary), Some(&volume)), Plan::default());
        temporary.capacity = 3 << 30;
        let over = decide(&going, Some(&ready), Some(&temporary), Some(&volume));
        assert!(matches!(over.actions.last(), Some(Action::Rebind { .. })), "{over:?}");
    }

    #[test]
    fn helpers_in_another_namespace_go_before_the_finalizer() {
        let ready = source("Bound", "Succeeded");
        let forced = target("Pending", &json!({names::IMMEDIATE: ""}));
        let begun = Case { namespace: "golden", ..Case::new(&forced, Some(&ready)) }.plan();
        let [Action::Finalize { finalizers, .. }, Action::Annotate { .. }, Action::Create(claim)] =
            begun.actions.as_slice()
        else {
            panic!("{begun:?}")
        };
        assert_eq!(finalizers, &[names::CLONE_FINALIZER]);
        assert_eq!(claim["metadata"]["namespace"], "golden");
        assert!(claim["metadata"].get("ownerReferences").is_none());
        let temporary = Claim::from(claim);
        let mut gone = target("Pending", &json!({names::CLONE_TYPE: "csi-clone"}));
        gone.meta.deleting = true;
        gone.meta.finalizers = vec![names::CLONE_FINALIZER.to_owned(), "other".to_owned()];
        let case = Case { temporary: Some(&temporary), namespace: "golden", ..Case::new(&gone, None) };
        assert!(matches!(case.plan().actions.as_slice(), [Action::Delete { kind: Kind::Claim, .. }]));
        let last = Case { namespace: "golden", ..Case::new(&gone, None) }.plan();
        assert!(
            matches!(last.actions.as_slice(), [Action::Finalize { finalizers, .. }] if finalizers == &["other"])
        );
    }

    #[test]
    fn what_cannot_be_cloned_says_so() {
        let forced = target("Pending", &json!({names::IMMEDIATE: ""}));
        let reason = |source: Option<&Claim>| decide(&forced, source, None, None).trouble.unwrap().reason;
        assert_eq!(reason(None), "CloneWithoutSource");
        assert_eq!(reason(Some(&source("Pending", "Succeeded"))), "CloneSourceNotReady");
        assert_eq!(reason(Some(&source("Bound", "Running"))), "CloneSourceNotReady");
        let unready = Snapshot::default();
        let case = Case { of_snapshot: Some(&unready), ..Case::new(&forced, None) };
        assert_eq!(case.plan().trouble.unwrap().reason, "SnapshotNotReady");
    }
}
