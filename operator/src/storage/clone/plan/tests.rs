//! The steps of a clone, one after the other.

use serde_json::{Value, json};

use super::*;
use crate::storage::action::{Action, Kind};
use crate::storage::clone::authorize::Origin;
use crate::storage::names;
use crate::storage::profile::{CloneStrategy, Driver, Overrides, Profile, SnapshotClass};
use crate::storage::seen::worker::State;
use crate::storage::seen::{Class, Snapshot, Volume, Worker};

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

/// Changes by a test; the rest is as for a claim in the same namespace.
struct Case<'a> {
    target: &'a Claim,
    source: Option<&'a Claim>,
    writer: Option<&'a str>,
    user: Option<&'a str>,
    of_snapshot: Option<&'a Snapshot>,
    temporary: Option<&'a Claim>,
    volume: Option<&'a Volume>,
    snapshot: Option<&'a Snapshot>,
    restored: Option<&'a Claim>,
    server: Option<&'a Worker>,
    sender: Option<&'a Worker>,
    namespace: &'a str,
    forced: Option<CloneStrategy>,
    direct: bool,
}

impl<'a> Case<'a> {
    fn new(target: &'a Claim, source: Option<&'a Claim>) -> Self {
        Self {
            target,
            source,
            writer: None,
            user: None,
            of_snapshot: None,
            temporary: None,
            volume: None,
            snapshot: None,
            restored: None,
            server: None,
            sender: None,
            namespace: "n",
            forced: None,
            direct: false,
        }
    }

    fn plan(&self) -> Plan {
        let class = class();
        let snapshots = [SnapshotClass { name: "s".into(), driver: "driver".into(), is_default: true }];
        let profile = Profile::of(&class, &Overrides::default(), Some(Driver::default()), &snapshots);
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
        let decide = if self.direct { direct } else { plan };
        decide(&Observed {
            target: self.target,
            origin: &origin,
            from,
            temporary: self.temporary,
            volume: self.volume,
            snapshot: self.snapshot,
            restored: self.restored,
            restores: Some(&class),
            server: self.server,
            sender: self.sender,
            class: Some(&class),
            profile: Some(&profile),
            forced: self.forced,
            honors_first_consumer: true,
            user: self.user,
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
    let forced = target("Pending", &json!({names::CLONE_TYPE: "csi-clone", names::CLONE_PHASE: "CSIClone"}));
    assert_eq!(decide(&forced, Some(&ready), Some(&temporary), None), Plan::default(), "the driver clones");
    let cloned = decide(&forced, Some(&ready), Some(&temporary), Some(&volume("pv", "tmp")));
    assert!(
        matches!(cloned.actions.as_slice(), [Action::Annotate { .. }, Action::Rebind { .. }]),
        "{cloned:?}"
    );
    assert_eq!(decide(&forced, Some(&ready), Some(&temporary), Some(&volume("pv", "t"))), Plan::default());
    temporary.volume = "pv".into();
    let mut bound = target("Bound", &json!({names::CLONE_PHASE: "Rebind"}));
    for other in ["stray", ""] {
        bound.volume = other.into();
        for temporary in [Some(&temporary), None] {
            let plan = decide(&bound, None, temporary, None);
            assert_eq!(plan.trouble.unwrap().reason, "ErrUnexpectedClaim", "{other} {temporary:?}");
            assert!(plan.actions.is_empty());
        }
    }
    bound.volume = "pv".into();
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
fn the_temporary_claim_has_the_targets_attributes_class() {
    let ready = source("Bound", "Succeeded");
    let mut forced = target("Pending", &json!({names::IMMEDIATE: ""}));
    for class in ["", "gold"] {
        forced.attributes_class = class.to_owned();
        for way in [CloneStrategy::CsiClone, CloneStrategy::Copy] {
            let begun = Case { forced: Some(way), ..Case::new(&forced, Some(&ready)) }.plan();
            let [Action::Annotate { .. }, Action::Create(claim)] = begun.actions.as_slice() else {
                panic!("{begun:?}")
            };
            assert_eq!(Claim::from(claim).attributes_class, class, "{way:?}");
        }
    }
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
    let going = target("Pending", &json!({names::CLONE_TYPE: "snapshot", names::CLONE_PHASE: "Snapshot"}));
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
    let [Action::Annotate { annotations, .. }] = working.actions.as_slice() else { panic!("{working:?}") };
    assert_eq!(annotations[names::SOURCE_RUNNING].as_deref(), Some("true"));
    server.phase = "Succeeded".into();
    temporary.capacity = temporary.size;
    let volume = volume("pv", "tmp");
    let over = of(&case, &temporary, Some(&server), Some(&sender), Some(&volume));
    assert!(matches!(over.actions.last(), Some(Action::Rebind { .. })), "{over:?}");
}

#[test]
fn without_a_populator_the_copy_is_put_into_the_bound_target() {
    let ready = source("Bound", "Succeeded");
    let at = |phase: &str, annotations: Value| target(phase, &annotations);
    let of = |target: &Claim, server: Option<&Worker>, sender: Option<&Worker>| {
        Case { server, sender, direct: true, ..Case::new(target, Some(&ready)) }.plan()
    };
    assert_eq!(of(&at("Pending", json!({})), None, None), Plan::default(), "it is bound first");
    let forced = of(&at("Pending", json!({names::IMMEDIATE: ""})), None, None);
    assert_eq!(forced.start, Some(Start::Server), "its server is the consumer: {forced:?}");
    let bound = at("Bound", json!({}));
    let used = Case { writer: Some("vm"), direct: true, ..Case::new(&bound, Some(&ready)) }.plan();
    assert_eq!(used.trouble.unwrap().reason, "CloneSourceInUse");
    let begun = of(&bound, None, None);
    let [Action::Annotate { annotations, .. }] = begun.actions.as_slice() else { panic!("{begun:?}") };
    assert_eq!(
        (annotations[names::CLONE_PHASE].as_deref(), annotations[names::CLONE_TYPE].as_deref()),
        (Some("Pending"), Some("copy"))
    );
    assert_eq!(begun.start, Some(Start::Server));
    let going = at("Bound", json!({names::CLONE_TYPE: "copy", names::CLONE_PHASE: "Pending"}));
    for target in [&bound, &going] {
        let used = Case { user: Some("web"), direct: true, ..Case::new(target, Some(&ready)) }.plan();
        assert_eq!(used.start, None, "{used:?}");
        let trouble = used.trouble.unwrap();
        assert_eq!(trouble.reason, "UploadTargetInUse");
        assert!(trouble.message.contains("pod n/web using PersistentVolumeClaim clone"), "{trouble:?}");
    }
    let mut server =
        Worker { phase: "Running".into(), state: State::Running, ready: true, ..Worker::default() };
    server.address = "10.0.0.1".into();
    assert_eq!(of(&going, Some(&server), None).start, Some(Start::Sender));
    let sender = Worker { phase: "Running".into(), state: State::Running, ..Worker::default() };
    let working = of(&going, Some(&server), Some(&sender));
    let [Action::Annotate { annotations, .. }] = working.actions.as_slice() else { panic!("{working:?}") };
    assert_eq!(annotations[names::CLONE_PHASE].as_deref(), Some("HostClone"));
    server.phase = "Succeeded".into();
    let over = of(&going, Some(&server), Some(&sender));
    let [Action::Annotate { annotations, .. }] = over.actions.as_slice() else { panic!("{over:?}") };
    assert_eq!(annotations[names::POD_PHASE].as_deref(), Some("Succeeded"));
    let copied = at("Bound", json!({names::CLONE_TYPE: "copy", names::POD_PHASE: "Succeeded"}));
    let told = of(&copied, Some(&server), Some(&sender));
    let [Action::Annotate { annotations, .. }] = told.actions.as_slice() else { panic!("{told:?}") };
    assert_eq!(annotations[names::CLONE_PHASE].as_deref(), Some("Succeeded"));
    assert_eq!(annotations[names::PROGRESS].as_deref(), Some("100.0%"));
    let done = at("Bound", json!({names::CLONE_TYPE: "copy", names::CLONE_PHASE: "Succeeded"}));
    let cleaned = of(&done, Some(&server), Some(&sender));
    assert!(
        matches!(
            cleaned.actions.as_slice(),
            [
                Action::Release { .. },
                Action::Delete { kind: Kind::Pod, .. },
                Action::Delete { kind: Kind::Pod, .. },
                Action::Forget { kind: Kind::Secret, .. }
            ]
        ),
        "{cleaned:?}"
    );
    assert_eq!(of(&done, None, None), Plan::default());
    // A backup tool restored it with its content.
    assert_eq!(of(&at("Bound", json!({names::POPULATED_FOR: "clone"})), None, None), Plan::default());
}

#[test]
fn a_claim_without_a_populator_is_no_source_before_it_is_filled() {
    let forced = target("Pending", &json!({names::IMMEDIATE: ""}));
    let of = |annotations: Value| {
        let mut source = source("Bound", "Succeeded");
        source.meta.annotations.clear();
        for (name, value) in annotations.as_object().unwrap() {
            source.meta.annotations.insert(name.clone(), value.as_str().unwrap().into());
        }
        decide(&forced, Some(&source), None, None).trouble.map(|trouble| trouble.reason)
    };
    assert_eq!(of(json!({names::CREATED_FOR: "u"})), Some("CloneSourceNotReady"));
    assert_eq!(of(json!({names::CREATED_FOR: "u", names::POD_PHASE: "Succeeded"})), None);
    assert_eq!(of(json!({names::CREATED_FOR: "u", names::POPULATED_FOR: "golden"})), None);
    assert_eq!(of(json!({})), None, "a user's own claim");
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
fn a_snapshot_that_cannot_become_the_target_is_copied_from_a_temporary_claim() {
    let taken = Snapshot {
        ready: true,
        size: 512 << 20,
        block: Some(true),
        node: Some("node1".into()),
        ..Snapshot::default()
    };
    for direct in [false, true] {
        let fresh = target(if direct { "Bound" } else { "Pending" }, &json!({names::IMMEDIATE: ""}));
        let case = |target| Case {
            of_snapshot: Some(&taken),
            namespace: "golden",
            direct,
            ..Case::new(target, None)
        };
        let begun = case(&fresh).plan();
        let written = begun.actions.iter().find_map(|action| {
            let Action::Annotate { annotations, .. } = action else { return None };
            Some(annotations.clone())
        });
        assert_eq!(written.unwrap()[names::CLONE_TYPE].as_deref(), Some("copy"));
        let under_way = target(
            if direct { "Bound" } else { "Pending" },
            &json!({names::CLONE_TYPE: "copy", names::CLONE_PHASE: "SnapshotClone"}),
        );
        let empty = Claim::default();
        let temporary = (!direct).then_some(&empty);
        let plan = Case { temporary, ..case(&under_way) }.plan();
        let [Action::Create(made)] = plan.actions.as_slice() else { panic!("{plan:?}") };
        assert_eq!(made["metadata"]["name"], "tmp-source-pvc-t");
        assert_eq!(made["metadata"]["namespace"], "golden");
        assert_eq!(made["spec"]["volumeMode"], "Block", "as the snapshot's volume");
        assert_eq!(made["metadata"]["annotations"][names::SELECTED_NODE], "node1");
        assert_eq!(made["spec"]["resources"]["requests"]["storage"], (512_u64 << 20).to_string());
        assert_eq!(made["spec"]["dataSource"]["kind"], "VolumeSnapshot");

        let restored = Claim::from(made);
        let plan = Case { temporary, restored: Some(&restored), ..case(&under_way) }.plan();
        assert_eq!((plan.actions.as_slice(), plan.start), (&[] as &[_], Some(Start::Server)));

        let over = target("Bound", &json!({names::CLONE_TYPE: "copy", names::CLONE_PHASE: "Succeeded"}));
        let plan = Case { restored: Some(&restored), ..case(&over) }.plan();
        assert!(matches!(plan.actions.as_slice(), [Action::Delete { kind: Kind::Claim, .. }]), "{plan:?}");
    }
}

#[test]
fn a_clone_without_a_node_for_its_driver_is_copied() {
    let fresh = target("Pending", &json!({names::IMMEDIATE: ""}));
    for (node, word) in [(Some("node1"), "snapshot"), (None, "copy")] {
        let node = node.map(str::to_owned);
        let taken = Snapshot { ready: true, size: 1 << 30, block: Some(false), node, ..Snapshot::default() };
        let begun = Case { of_snapshot: Some(&taken), ..Case::new(&fresh, None) }.plan();
        let Some(Action::Annotate { annotations, .. }) = begun.actions.first() else { panic!("{begun:?}") };
        assert_eq!(annotations[names::CLONE_TYPE].as_deref(), Some(word));
    }
}

#[test]
fn clones_that_are_not_possible_have_a_reason() {
    let forced = target("Pending", &json!({names::IMMEDIATE: ""}));
    let reason = |source: Option<&Claim>| decide(&forced, source, None, None).trouble.unwrap().reason;
    assert_eq!(reason(None), "CloneWithoutSource");
    assert_eq!(reason(Some(&source("Pending", "Succeeded"))), "CloneSourceNotReady");
    assert_eq!(reason(Some(&source("Bound", "Running"))), "CloneSourceNotReady");
    let unready = Snapshot::default();
    let case = Case { of_snapshot: Some(&unready), ..Case::new(&forced, None) };
    assert_eq!(case.plan().trouble.unwrap().reason, "SnapshotNotReady");
    // That it waits is written once.
    let [Action::Annotate { annotations, .. }] = &case.plan().actions[..] else {
        panic!("{:?}", case.plan())
    };
    assert_eq!(annotations[names::CLONE_PHASE].as_deref(), Some("Pending"));
    let waits = target("Pending", &json!({names::IMMEDIATE: "", names::CLONE_PHASE: "Pending"}));
    let case = Case { of_snapshot: Some(&unready), ..Case::new(&waits, None) };
    assert!(case.plan().actions.is_empty());
}

#[test]
fn the_error_of_a_clone_is_removed_when_it_continues() {
    let ready = source("Bound", "Succeeded");
    let taken_off = |plan: &Plan| {
        plan.actions.iter().any(|action| {
            matches!(action, Action::Annotate { annotations, .. }
                if annotations.get(names::CLONE_ERROR) == Some(&None))
        })
    };
    let failed = |phase: &str, more: Value| {
        let mut failed = target(phase, &more);
        failed.meta.annotations.insert(names::CLONE_ERROR.to_owned(), "no source".to_owned());
        failed
    };
    let forced = failed("Pending", json!({names::IMMEDIATE: ""}));
    assert!(!taken_off(&decide(&forced, None, None, None)), "it still waits");
    let begun = decide(&forced, Some(&ready), None, None);
    assert!(matches!(begun.actions.as_slice(), [_, Action::Create(_), _]) && taken_off(&begun), "{begun:?}");
    let without = decide(&target("Pending", &json!({names::IMMEDIATE: ""})), Some(&ready), None, None);
    assert!(!taken_off(&without), "{without:?}");
    // The server's pod may be refused again.
    let bound = failed("Bound", json!({}));
    let case = Case { direct: true, ..Case::new(&bound, Some(&ready)) };
    assert_eq!(case.plan().start, Some(Start::Server));
    assert!(!taken_off(&case.plan()), "{:?}", case.plan());
    let server = Worker { phase: "Running".into(), state: State::Running, ..Worker::default() };
    let served = Case { server: Some(&server), ..case }.plan();
    assert!(taken_off(&served), "{served:?}");
}

#[test]
fn a_clone_that_does_not_fit_its_source_is_refused_with_an_event() {
    let claim = |size: &str, block: bool, annotations: Value| {
        Claim::from(&json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "t", "annotations": annotations},
            "spec": {"storageClassName": "fast", "volumeMode": if block { "Block" } else { "Filesystem" },
                "resources": {"requests": {"storage": size}}},
            "status": {"phase": "Bound", "capacity": {"storage": size}},
        }))
    };
    let of = |content: &str| json!({names::CONTENT_TYPE: content});
    let small = "target resources requests storage size is smaller than the source 1073741824 < 2147483648";
    for (source, target, wanted) in [
        (("1Gi", false, json!({})), ("1Gi", false, json!({})), None),
        (("1Gi", false, json!({})), ("2Gi", false, json!({})), None),
        (("2Gi", false, json!({})), ("1Gi", false, json!({})), Some(small)),
        (("2Gi", true, json!({})), ("1Gi", true, json!({})), Some(small)),
        (("2Gi", true, json!({})), ("1Gi", true, json!({names::PERMISSIVE_CLONE: "true"})), None),
        // The filesystem has more than the disk.
        (("2Gi", false, json!({})), ("1Gi", true, json!({})), None),
        (
            ("1Gi", false, of("archive")),
            ("1Gi", false, of("kubevirt")),
            Some("source contentType (archive) and target contentType (kubevirt) do not match"),
        ),
        (
            ("1Gi", false, json!({})),
            ("1Gi", false, of("archive")),
            Some("source contentType (kubevirt) and target contentType (archive) do not match"),
        ),
        (("1Gi", false, of("archive")), ("1Gi", false, json!({})), None),
        (
            ("1Gi", false, of("archive")),
            ("1Gi", true, of("archive")),
            Some(
                "source volumeMode (Filesystem) and target volumeMode (Block) do not match, and the content is no disk",
            ),
        ),
    ] {
        let source = claim(source.0, source.1, source.2);
        let mut target = claim(target.0, target.1, target.2);
        let mut answers = vec![Case { direct: true, ..Case::new(&target, Some(&source)) }.plan()];
        target.phase = Phase::Pending;
        target.meta.annotations.insert(names::IMMEDIATE.to_owned(), String::new());
        answers.push(Case::new(&target, Some(&source)).plan());
        for plan in answers {
            let reported = plan.actions.iter().any(
                |action| matches!(action, Action::Report(event) if event.reason == "CloneValidationFailed"),
            );
            assert_eq!(reported, wanted.is_some(), "{plan:?}");
            let wanted =
                wanted.map(|text| format!("The clone doesn't meet the validation requirements: {text}"));
            let trouble = plan.trouble.filter(|one| one.reason == "CloneValidationFailed");
            assert_eq!(trouble.map(|one| one.message), wanted);
        }
    }
}
