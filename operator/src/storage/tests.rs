//! Transfers from DataVolume to Succeeded over a model of the cluster: provisioner, scheduler, kubelet and the volume
//! controller as far as claims see them. The plans, and nothing else of the operator, decide. Each case is also played
//! with an operator that dies between any two writes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::action::{Action, Kind};
use super::class::Classes;
use super::clone::authorize::Origin;
use super::datavolume::claim::ClusterStorage;
use super::datavolume::{plan as volumes, status};
use super::names;
use super::populate::plan::{self as filling, Observed, Start};
use super::populate::task::{Named, task};
use super::profile::{Driver, Overrides, Profile, SnapshotClass};
use super::seen::{Claim, Class, DataVolume, Volume, Worker};
use super::settings::Settings;
use super::worker::{Images, importer};

/// How a claim gets its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    /// The class binds at once.
    Immediate,
    /// The class waits for a pod, and the user's comes after a while.
    Consumer,
    /// The class waits for a pod, and the DataVolume asks not to.
    Forced,
}

/// The small number by default, the large one with `FERROVIRT_SOAK=1`.
fn count(small: u64, full: u64) -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some_and(|value| value == "1") { full } else { small }
}

/// A small generator of choices (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

struct Model {
    volume: Value,
    claims: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    persistent: BTreeMap<String, Value>,
    classes: Classes,
    settings: Settings,
    clock: u64,
    consumer: bool,
    /// How the importer ends: its termination message.
    end: &'static str,
    writes: usize,
    /// An Available volume of the class that Kubernetes binds to the DataVolume's claim in this round.
    stray_in: Option<u64>,
    phases: Vec<String>,
    events: Vec<String>,
    /// Uids of claims that an importer has run on.
    imported: BTreeSet<String>,
    /// Whether the operator dies before the next write.
    mortal: bool,
    dice: Dice,
}

/// The operator died.
struct Death;

impl Model {
    fn new(source: &Value, block: bool, binding: Binding, driver: bool, seed: u64) -> Self {
        let mut class = Class { provisioner: "driver".into(), ..Class::default() };
        class.meta.name = "fast".into();
        class.waits_for_consumer = binding != Binding::Immediate;
        let annotations = if binding == Binding::Forced { json!({names::IMMEDIATE: ""}) } else { json!({}) };
        Self {
            volume: json!({
                "metadata": {"name": "disk", "namespace": "n", "uid": "volume-uid", "annotations": annotations},
                "spec": {"source": source, "pvc": {
                    "accessModes": ["ReadWriteOnce"], "volumeMode": if block { "Block" } else { "Filesystem" },
                    "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast",
                }},
            }),
            claims: BTreeMap::new(),
            pods: BTreeMap::new(),
            persistent: BTreeMap::new(),
            classes: Classes {
                classes: vec![class],
                drivers: driver.then(|| "driver".to_owned()).into_iter().collect(),
            },
            settings: Settings::default(),
            clock: 0,
            consumer: false,
            end: r#"{"message":"Import Complete"}"#,
            writes: 0,
            stray_in: None,
            phases: Vec::new(),
            events: Vec::new(),
            imported: BTreeSet::new(),
            mortal: false,
            dice: Dice(seed),
        }
    }

    fn write(&mut self) -> Result<(), Death> {
        if self.mortal && self.dice.roll(3) == 0 {
            return Err(Death);
        }
        self.writes += 1;
        self.clock += 1;
        Ok(())
    }

    fn apply(&mut self, action: &Action) -> Result<(), Death> {
        if let Action::Report(event) = action {
            self.events.push(event.reason.clone());
            return Ok(());
        }
        self.write()?;
        match action {
            Action::Create(object) => {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                let mut object = object.clone();
                object["metadata"]["uid"] = json!(format!("{name}-uid-{}", self.clock));
                let all = if object["kind"] == "Pod" { &mut self.pods } else { &mut self.claims };
                all.entry(name).or_insert(object);
            }
            Action::Annotate { claim, annotations, labels, .. } => {
                let meta = &mut self.claims.get_mut(&claim.1).unwrap()["metadata"];
                for (name, value) in annotations {
                    meta["annotations"][name] = json!(value);
                }
                for (name, value) in labels {
                    meta["labels"][name] = json!(value);
                }
            }
            Action::Rebind { volume, claim, .. } => {
                self.persistent.get_mut(volume).unwrap()["spec"]["claimRef"] =
                    json!({"namespace": claim.0, "name": claim.1, "uid": claim.2});
            }
            Action::Delete { kind: Kind::Claim, key, .. } => {
                let gone = self.claims.remove(&key.1).unwrap();
                self.pods
                    .retain(|_, pod| pod["metadata"]["ownerReferences"][0]["uid"] != gone["metadata"]["uid"]);
            }
            Action::Delete { key, .. } => {
                self.pods.remove(&key.1).unwrap();
            }
            Action::Mark { annotations, .. } => {
                for (name, value) in annotations {
                    self.volume["metadata"]["annotations"][name] = json!(value);
                }
            }
            Action::Adopt { claim, owners, annotations, .. } => {
                let meta = &mut self.claims.get_mut(&claim.1).unwrap()["metadata"];
                meta["ownerReferences"] = owners.clone();
                for (name, value) in annotations {
                    meta["annotations"][name] = json!(value);
                }
            }
            Action::Report(_) | Action::Release { .. } => {}
            Action::Expand { .. } | Action::Finalize { .. } | Action::Forget { .. } => {
                unreachable!("only clones need them")
            }
        }
        Ok(())
    }

    fn claim(&self, name: &str) -> Option<Claim> {
        self.claims.get(name).map(Claim::from)
    }

    /// The DataVolume controller.
    fn reconcile_volume(&mut self) -> Result<(), Death> {
        let mut volume = DataVolume::from(&self.volume);
        let (classes, settings) = (self.classes.clone(), self.settings.clone());
        let profiles: Vec<Profile> = classes
            .classes
            .iter()
            .map(|class| {
                Profile::of(class, &Overrides::default(), Some(Driver::default()), &[] as &[SnapshotClass])
            })
            .collect();
        let offer = ClusterStorage { classes: &classes, profiles: &profiles, settings: &settings };
        let plan = volumes::plan(&volume, self.claim("disk").as_ref(), offer, None);
        for action in &plan.actions {
            self.apply(action)?;
        }
        let claim = self.claim("disk");
        let claim = claim.filter(|claim| claim.meta.owners.iter().any(|owner| owner.uid == "volume-uid"));
        let prime = claim.as_ref().and_then(|claim| self.claim(&names::prime(&claim.meta.uid)));
        let facts = claim.as_ref().map(|claim| volumes::facts(&volume, claim, prime.as_ref(), offer));
        let facts = facts.unwrap_or_default();
        loop {
            let report = status::report(&volume, claim.as_ref(), facts, plan.trouble.as_ref(), "now");
            if !report.differs(&volume) {
                return Ok(());
            }
            self.write()?;
            self.volume["status"] = status::document(&report.status, "now");
            if self.phases.last() != Some(&report.status.phase) {
                self.phases.push(report.status.phase.clone());
            }
            self.events.extend(report.events.into_iter().map(|event| event.reason));
            volume.status = report.status;
            assert_eq!(DataVolume::from(&self.volume).status, volume.status, "the status reads back");
        }
    }

    /// The controller of claims.
    fn reconcile_claim(&mut self) -> Result<(), Death> {
        let Some(target) = self.claim("disk") else { return Ok(()) };
        let volume = DataVolume::from(&self.volume);
        let Ok(Some(task)) = task(&target, Some(&volume), &Named::NotNeeded) else { return Ok(()) };
        let populated = filling::is_populated(&target);
        let prime = self.claim(&names::prime(&target.meta.uid));
        let written = if populated { names::prime(&target.meta.uid) } else { "disk".to_owned() };
        let worker = self.pods.get(&names::importer_pod(&written)).map(Worker::from);
        let needed = filling::needs_volume(&target, prime.as_ref(), worker.as_ref());
        let persistent =
            prime.as_ref().filter(|_| needed).and_then(|prime| self.persistent.get(&prime.volume));
        let persistent = persistent.map(Volume::from);
        let classes = self.classes.clone();
        let observed = Observed {
            target: &target,
            prime: prime.as_ref(),
            worker: worker.as_ref(),
            volume: persistent.as_ref(),
            class: classes.named("fast"),
            task: &task,
            honors_first_consumer: true,
            user: None,
            young: false,
        };
        let plan = if populated { filling::populator(&observed) } else { filling::direct(&observed) };
        for action in &plan.actions {
            self.apply(action)?;
        }
        if let Some(trouble) = &plan.trouble {
            assert_eq!(trouble.reason, "ErrUnexpectedClaim");
            filling::report(&target, Some(trouble)).map_or(Ok(()), |action| self.apply(&action))?;
        }
        if let Some(start) = plan.start {
            let written = if start == Start::Prime { prime.as_ref().unwrap() } else { &target };
            let owner = filling::pod_owner(start, &target, prime.as_ref()).unwrap();
            let (settings, images) = (Settings::default(), Images::default());
            let import = importer::Import {
                target: &target,
                written,
                owner: &owner,
                task: &task,
                settings: &settings,
                images: &images,
            };
            self.apply(&Action::Create(importer::pod(&import).unwrap()))?;
        }
        Ok(())
    }

    /// Everything that is not ours: one round.
    fn surroundings(&mut self) {
        self.clock += 1;
        let waits = self.classes.classes[0].waits_for_consumer;
        if self.consumer
            && waits
            && let Some(claim) = self.claims.get_mut("disk")
        {
            claim["metadata"]["annotations"][names::SELECTED_NODE] = json!("node1");
        }
        let used: BTreeSet<String> = self.pods.values().flat_map(|pod| Worker::from(pod).claims).collect();
        for (name, object) in &mut self.claims {
            let claim = Claim::from(&*object);
            match claim.phase {
                super::seen::claim::Phase::Pending => {
                    let node = claim.meta.annotation(names::SELECTED_NODE).is_some() || used.contains(name);
                    if claim.source.is_none() && (!waits || node) {
                        let volume = format!("pv-{}", claim.meta.uid);
                        let reference = json!({"namespace": "n", "name": name, "uid": claim.meta.uid});
                        let made = json!({"metadata": {"name": volume}, "spec": {"claimRef": reference}});
                        self.persistent.entry(volume).or_insert(made);
                    }
                    let mine = self
                        .persistent
                        .iter()
                        .find(|(_, one)| one["spec"]["claimRef"]["uid"] == *claim.meta.uid);
                    if let Some((volume, _)) = mine {
                        object["spec"]["volumeName"] = json!(volume);
                        object["status"]["phase"] = json!("Bound");
                    }
                }
                super::seen::claim::Phase::Bound => {
                    let volume = &self.persistent[&claim.volume];
                    if volume["spec"]["claimRef"]["uid"] != *claim.meta.uid {
                        object["status"]["phase"] = json!("Lost");
                    }
                }
                super::seen::claim::Phase::Lost => {}
            }
        }
        for pod in self.pods.values_mut() {
            let worker = Worker::from(&*pod);
            let claim = &self.claims[&worker.claims[0]];
            if claim["status"]["phase"] != "Bound" {
                continue;
            }
            let (phase, state) = match worker.phase.as_str() {
                "" => ("Pending", json!({"waiting": {"reason": "ContainerCreating"}})),
                "Pending" => ("Running", json!({"running": {}})),
                "Running" => {
                    let uid = claim["metadata"]["uid"].as_str().unwrap().to_owned();
                    assert!(self.imported.insert(uid), "a claim is imported once");
                    (
                        "Succeeded",
                        json!({"terminated": {"exitCode": 0, "reason": "Completed", "message": self.end}}),
                    )
                }
                _ => continue,
            };
            pod["status"] =
                json!({"phase": phase, "containerStatuses": [{"name": "importer", "state": state}]});
        }
    }

    /// Kubernetes binds an Available volume of the class to the DataVolume's claim.
    fn bind_stray(&mut self) {
        let Some(claim) = self.claims.get_mut("disk").filter(|claim| claim["status"]["phase"].is_null())
        else {
            return;
        };
        let reference = json!({"namespace": "n", "name": "disk", "uid": claim["metadata"]["uid"]});
        let spec = json!({"storageClassName": "fast", "claimRef": reference});
        self.persistent.insert("stray".into(), json!({"metadata": {"name": "stray"}, "spec": spec}));
        claim["spec"]["volumeName"] = json!("stray");
        claim["status"]["phase"] = json!("Bound");
        self.stray_in = None;
    }

    /// Plays until nothing changes any more.
    fn play(&mut self, consumer_after: u64) {
        for round in 0..100u64 {
            self.consumer = round >= consumer_after;
            if self.stray_in.is_some_and(|first| round >= first) {
                self.bind_stray();
            }
            // Several reconciles between two rounds of the others, in any order.
            for _ in 0..self.dice.roll(4) {
                let result =
                    if self.dice.roll(2) == 0 { self.reconcile_volume() } else { self.reconcile_claim() };
                // The next one starts from what is there.
                let _died = result.is_err();
            }
            if self.dice.roll(2) == 0 {
                self.surroundings();
            }
        }
        self.mortal = false;
        for _ in 0..10 {
            let _alive = self.reconcile_volume().is_ok() && self.reconcile_claim().is_ok();
            self.surroundings();
        }
    }
}

/// The phases of an import.
fn expected(binding: Binding, driver: bool) -> Vec<&'static str> {
    let before: &[&str] = match (binding, driver) {
        (Binding::Consumer, true) => &["PendingPopulation"],
        (Binding::Consumer, false) => &["WaitForFirstConsumer", "PVCBound"],
        (Binding::Immediate | Binding::Forced, true) => &["Pending"],
        (Binding::Immediate | Binding::Forced, false) => &["Pending", "PVCBound"],
    };
    [before, &["ImportScheduled", "ImportInProgress", "Succeeded"]].concat()
}

fn cases() -> Vec<(Value, bool, Binding, bool)> {
    let sources = [
        json!({"http": {"url": "http://a"}}),
        json!({"registry": {"url": "docker://a"}}),
        json!({"blank": {}}),
    ];
    let mut cases = Vec::new();
    for source in sources {
        for block in [false, true] {
            for binding in [Binding::Immediate, Binding::Consumer, Binding::Forced] {
                for driver in [true, false] {
                    cases.push((source.clone(), block, binding, driver));
                }
            }
        }
    }
    cases
}

fn assert_settled(model: &Model, case: &str) {
    let status = &model.volume["status"];
    assert_eq!(status["phase"], "Succeeded", "{case} {:?} {:?}", model.phases, model.claims);
    assert_eq!((&status["progress"], &status["claimName"]), (&json!("100.0%"), &json!("disk")), "{case}");
    let condition = |kind: &str| {
        let found = status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == kind).unwrap();
        (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(condition("Ready"), ("True".into(), String::new()), "{case}");
    assert_eq!(condition("Bound"), ("True".into(), "Bound".into()), "{case}");
    assert_eq!(condition("Running"), ("False".into(), "Completed".into()), "{case}");
    assert_eq!(model.claims.keys().collect::<Vec<_>>(), ["disk"], "{case}: no claim is left over");
    let progress = model.claims["disk"]["metadata"]["annotations"][names::PROGRESS].as_str();
    let populated = !model.classes.drivers.is_empty();
    assert_eq!(progress, populated.then_some("100.0%"), "{case}");
    assert!(model.pods.is_empty(), "{case}: no pod is left over");
    assert_eq!((model.persistent.len(), model.imported.len()), (1, 1), "{case}: one volume, imported once");
}

#[test]
fn every_combination_goes_through_its_phases_once_with_at_most_twelve_writes() {
    for (source, block, binding, driver) in cases() {
        for seed in 0..count(2, 20) {
            let case = format!("{source} block={block} {binding:?} driver={driver} seed={seed}");
            let mut model = Model::new(&source, block, binding, driver, seed);
            model.play(20);
            assert_settled(&model, &case);
            assert_eq!(model.phases, expected(binding, driver), "{case}");
            assert!(model.writes <= 12, "{case}: {} writes", model.writes);
            for event in ["ImportScheduled", "ImportInProgress", "ImportSucceeded"] {
                assert_eq!(model.events.iter().filter(|one| *one == event).count(), 1, "{case}: {event}");
            }
        }
    }
}

#[test]
fn an_operator_that_dies_between_any_two_writes_finishes_and_leaves_nothing() {
    for (source, block, binding, driver) in cases() {
        for seed in 0..count(3, 40) {
            let case = format!("{source} block={block} {binding:?} driver={driver} seed={seed}");
            let mut model = Model::new(&source, block, binding, driver, seed);
            model.mortal = true;
            model.play(20);
            assert_settled(&model, &case);
            assert_eq!(model.phases, expected(binding, driver), "{case}");
        }
    }
}

#[test]
fn a_wrong_checksum_fails_for_good() {
    for driver in [true, false] {
        let mut model =
            Model::new(&json!({"http": {"url": "http://a"}}), false, Binding::Immediate, driver, 1);
        model.end = r#"{"message":"checksum mismatch: expected a, got b"}"#;
        model.play(0);
        assert_eq!(model.volume["status"]["phase"], "Failed", "{driver}");
        let running = &model.volume["status"]["conditions"][2];
        assert_eq!((&running["status"], &running["reason"]), (&json!("False"), &json!("ChecksumError")));
        assert!(model.events.contains(&"ImportFailed".to_owned()), "{:?}", model.events);
        assert!(model.pods.is_empty());
    }
}

#[test]
fn a_claim_that_kubernetes_bound_to_another_volume_is_not_filled() {
    let mut seen = 0;
    for binding in [Binding::Immediate, Binding::Consumer, Binding::Forced] {
        for round in 0..60 {
            let case = format!("{binding:?} in round {round}");
            let mut model =
                Model::new(&json!({"http": {"url": "http://a"}}), false, binding, true, round * 3 + 1);
            model.stray_in = Some(round);
            model.mortal = round % 2 == 1;
            model.play(10);
            if model.claims["disk"]["spec"]["volumeName"] != "stray" {
                assert_settled(&model, &case);
                continue;
            }
            seen += 1;
            let status = &model.volume["status"];
            assert!(!model.phases.contains(&"Succeeded".to_owned()), "{case} {:?}", model.phases);
            let running = &status["conditions"][2];
            assert_eq!(running["reason"], "ErrUnexpectedClaim", "{case}: {status}");
            let message = running["message"].as_str().unwrap();
            assert!(message.starts_with("PV stray bound to unexpected claim disk: "), "{message}");
            assert_eq!(model.claims.keys().collect::<Vec<_>>(), ["disk"], "{case}: the prime claim goes");
            assert!(model.pods.is_empty(), "{case}");
            let written = model.writes;
            model.play(0);
            assert_eq!(model.writes, written, "{case}: it is reported once");
            // The remedy of the message.
            model.claims.clear();
            model.persistent.clear();
            model.imported.clear();
            model.play(0);
            assert_settled(&model, &case);
        }
    }
    assert!(seen >= 30, "{seen}");
}

#[test]
fn a_claim_that_is_deleted_is_made_and_filled_again() {
    let mut model = Model::new(&json!({"blank": {}}), false, Binding::Immediate, true, 1);
    model.play(0);
    model.claims.clear();
    model.persistent.clear();
    model.imported.clear();
    model.phases.clear();
    model.play(0);
    assert_settled(&model, "again");
    assert_eq!(model.phases, ["Pending", "ImportScheduled", "ImportInProgress", "Succeeded"]);
}

#[test]
fn a_claim_that_a_backup_restored_is_adopted_and_not_filled() {
    let mut model = Model::new(&json!({"http": {"url": "http://a"}}), false, Binding::Immediate, true, 1);
    model.volume["metadata"]["annotations"][names::PREPOPULATED] = json!("disk");
    assert!(model.reconcile_volume().is_ok());
    assert!(model.claims.is_empty(), "the backup tool makes the claim");
    model.claims.insert(
        "disk".into(),
        json!({
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "disk", "namespace": "n", "uid": "restored",
                "annotations": {names::POPULATED_FOR: "disk", names::CREATED_FOR: "before"}},
            "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "volumeName": "old"},
            "status": {"phase": "Bound"},
        }),
    );
    model.persistent.insert(
        "old".into(),
        json!({"metadata": {"name": "old"}, "spec": {"claimRef": {"uid": "restored"}}}),
    );
    model.play(0);
    assert_eq!(model.volume["status"]["phase"], "Succeeded");
    assert!(model.imported.is_empty() && model.claims.len() == 1);
    assert_eq!(model.claims["disk"]["metadata"]["ownerReferences"][0]["uid"], "volume-uid");
}

#[test]
fn a_foreign_claim_is_left_alone() {
    let mut model = Model::new(&json!({"blank": {}}), false, Binding::Immediate, true, 1);
    let foreign = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "disk", "namespace": "n", "uid": "foreign"},
        "spec": {"storageClassName": "fast", "volumeName": "old"},
        "status": {"phase": "Bound"},
    });
    model.claims.insert("disk".into(), foreign.clone());
    model
        .persistent
        .insert("old".into(), json!({"metadata": {"name": "old"}, "spec": {"claimRef": {"uid": "foreign"}}}));
    model.play(0);
    assert_eq!(model.claims["disk"], foreign);
    let running = &model.volume["status"]["conditions"][2];
    assert_eq!(running["reason"], "ErrResourceExists");
    assert_eq!(model.volume["status"]["phase"], "Pending");
}

/// The claim of a DataVolume, and the pod that fills it, or the origin of a clone.
fn made(spec: &Value) -> Result<(Value, Option<Value>), String> {
    let mut model = Model::new(&json!({}), false, Binding::Immediate, true, 0);
    let mut other = model.classes.classes[0].clone();
    other.meta.name = "other".into();
    model.classes.classes.push(other);
    model.volume["spec"] = spec.clone();
    drop(model.reconcile_volume());
    let Some(claim) = model.claims.get("disk").cloned() else {
        return Err(format!("{}", model.volume["status"]["conditions"]));
    };
    // Uploads and clones have workers of their own.
    let imported =
        ["http", "gcs", "s3", "registry", "blank"].iter().any(|kind| spec["source"][*kind].is_object());
    for _ in 0..if imported { 3 } else { 0 } {
        model.surroundings();
        drop(model.reconcile_claim());
    }
    let without_uid = |mut object: Value| {
        object["metadata"]["uid"] = Value::Null;
        object
    };
    // A clone's source is what its plans read.
    let origin = Origin::of(&DataVolume::from(&model.volume).source, "n")
        .map(|origin| json!([origin.namespace, origin.name, origin.snapshot]));
    let worker = model.pods.into_values().next().map(without_uid);
    Ok((without_uid(claim), worker.or(origin)))
}

/// Leaves of a schema.
fn leaves(schema: &Value, path: &str, found: &mut Vec<String>) {
    let inner = if schema["type"] == "array" { &schema["items"] } else { schema };
    match inner["properties"].as_object().filter(|fields| !fields.is_empty()) {
        None => found.push(path.to_owned()),
        Some(fields) => {
            let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            fields.iter().for_each(|(name, schema)| leaves(schema, &join(name), found));
        }
    }
}

#[test]
fn every_field_of_a_data_volume_changes_its_claim_or_worker_or_is_named() {
    let claim = || json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"});
    let of = |source: Value, name: &str| json!({"source": source, name: claim()});
    let remote = |kind: &str| of(json!({kind: {"url": "https://a/b"}}), "pvc");
    let changes = [
        ("contentType", remote("http"), json!("archive")),
        ("preallocation", remote("http"), json!(true)),
        ("priorityClassName", remote("http"), json!("high")),
        ("serviceAccountName", remote("http"), json!("account")),
        ("source.http.url", remote("http"), json!("https://a/c")),
        ("source.http.certConfigMap", remote("http"), json!("map")),
        ("source.http.checksum", remote("http"), json!("sha256:00")),
        ("source.http.extraHeaders", remote("http"), json!(["A: b"])),
        ("source.http.secretExtraHeaders", remote("http"), json!(["secret"])),
        ("source.http.secretRef", remote("http"), json!("secret")),
        ("source.http.insecureSkipVerify", remote("http"), json!(true)),
        ("source.gcs.url", remote("gcs"), json!("gs://a/c")),
        ("source.gcs.secretRef", remote("gcs"), json!("secret")),
        ("source.s3.url", remote("s3"), json!("s3://a/c")),
        ("source.s3.secretRef", remote("s3"), json!("secret")),
        ("source.s3.certConfigMap", remote("s3"), json!("map")),
        (
            "source.registry.url",
            of(json!({"registry": {"url": "docker://a/b"}}), "pvc"),
            json!("docker://a/c"),
        ),
        (
            "source.registry.secretRef",
            of(json!({"registry": {"url": "docker://a/b"}}), "pvc"),
            json!("secret"),
        ),
        (
            "source.registry.certConfigMap",
            of(json!({"registry": {"url": "docker://a/b"}}), "pvc"),
            json!("map"),
        ),
        (
            "source.registry.pullMethod",
            of(json!({"registry": {"url": "docker://a/b"}}), "pvc"),
            json!("node"),
        ),
        (
            "source.registry.imageStream",
            of(json!({"registry": {"imageStream": "a", "pullMethod": "node"}}), "pvc"),
            json!("b"),
        ),
        (
            "source.registry.platform.architecture",
            of(json!({"registry": {"url": "docker://a/b"}}), "pvc"),
            json!("arm64"),
        ),
        ("source.blank", json!({"source": {"http": {"url": "https://a/b"}}, "pvc": claim()}), json!({})),
        ("source.upload", json!({"pvc": claim()}), json!({})),
        (
            "source.pvc.name",
            json!({"source": {"pvc": {"namespace": "n", "name": "a"}}, "pvc": claim()}),
            json!("b"),
        ),
        (
            "source.pvc.namespace",
            json!({"source": {"pvc": {"namespace": "n", "name": "a"}}, "pvc": claim()}),
            json!("m"),
        ),
        (
            "source.snapshot.name",
            json!({"source": {"snapshot": {"namespace": "n", "name": "a"}}, "pvc": claim()}),
            json!("b"),
        ),
        (
            "source.snapshot.namespace",
            json!({"source": {"snapshot": {"namespace": "n", "name": "a"}}, "pvc": claim()}),
            json!("m"),
        ),
    ];
    let mut silent = Vec::new();
    for (path, base, value) in &changes {
        let mut after = base.clone();
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        let steps = parent.split('.').filter(|step| !step.is_empty());
        let place = steps.fold(&mut after, |place, step| &mut place[step]);
        if ["source.blank", "source.upload"].contains(path) {
            *place = json!({});
        }
        place[name] = value.clone();
        let (before, after) = (made(base), made(&after));
        if after.is_err() || before == after {
            silent.push(format!("{path}: {after:?}"));
        }
    }
    for name in ["pvc", "storage"] {
        for (field, value) in [
            ("accessModes", json!(["ReadWriteMany"])),
            ("volumeMode", json!("Block")),
            ("resources", json!({"requests": {"storage": "2Gi"}})),
            ("storageClassName", json!("other")),
            ("selector", json!({"matchLabels": {"a": "b"}})),
            ("volumeName", json!("volume")),
            ("volumeAttributesClassName", json!("gold")),
        ] {
            let base = of(json!({"blank": {}}), name);
            let mut after = base.clone();
            after[name][field] = value;
            let (before, after) = (made(&base), made(&after));
            if after.is_err() || before == after {
                silent.push(format!("{name}.{field}: {after:?}"));
            }
        }
        // What fills the claim in place of a source.
        for field in ["dataSource", "dataSourceRef"] {
            let reference = |name: &str| json!({"apiGroup": "example.com", "kind": "Sample", "name": name});
            let [one, other] = ["a", "b"].map(|source| {
                let mut spec = json!({name: claim()});
                spec[name][field] = reference(source);
                made(&spec)
            });
            if other.is_err() || one == other {
                silent.push(format!("{name}.{field}: {other:?}"));
            }
        }
    }
    // All others are refused, or named in a warning.
    let mut all = Vec::new();
    leaves(&api::kind::Kind::DataVolume.schema()["properties"]["spec"], "", &mut all);
    let tried = |path: &str| {
        changes.iter().any(|(one, ..)| path.starts_with(one)) || {
            let field = path.split_once('.').filter(|(name, _)| ["pvc", "storage"].contains(name));
            field.is_some_and(|(_, field)| {
                let fields = [
                    "accessModes",
                    "volumeMode",
                    "resources",
                    "storageClassName",
                    "selector",
                    "volumeName",
                    "volumeAttributesClassName",
                    "dataSource",
                ];
                fields.iter().any(|one| field.starts_with(one))
            })
        }
    };
    for path in all.iter().filter(|path| !tried(path)) {
        let mut object = json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {"name": "a", "namespace": "n"}, "spec": of(json!({}), "pvc")});
        let value = path.split('.').rev().fold(json!("text"), |value, step| json!({step: value}));
        let merged = &mut object["spec"];
        let (first, rest) = value.as_object().unwrap().iter().next().unwrap();
        if merged[first].is_object() && rest.is_object() {
            let (second, rest) = rest.as_object().unwrap().iter().next().unwrap();
            merged[first][second] = rest.clone();
        } else {
            merged[first] = rest.clone();
        }
        let found =
            virt::validate::object(api::kind::Kind::DataVolume, &object, virt::fields::Place::Cluster);
        if !found
            .iter()
            .any(|one| format!("spec.{path}").starts_with(&one.path) && one.path.len() > "spec.".len())
        {
            silent.push(format!("{path}: {found:?}"));
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}
