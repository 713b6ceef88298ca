//! Run strategies against starts, stops, crashes and shutdowns, over whole lives of an instance: what users see in
//! printableStatus, phases and events, in order. virt-agent and the instance controller are played by the tests.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::event::{done, imports, without_source};
use super::plan::{Observed, Step, plan};
use super::status::{Outcome, status};
use super::{plan as machine_plan, render};
use crate::compute::volumes::Volume;
use crate::storage::clone::authorize::Origin;
use crate::view::{DataVolume, Instance, Machine};
use virt::instancetype::Which;

const VM_UID: &str = "11111111-1111-1111-1111-111111111111";

/// A VM and its instance in a cluster that does what is asked for at once.
struct World {
    machine: Value,
    instance: Option<Value>,
    data_volume: Option<Value>,
    /// Names of the revisions of starts.
    revisions: BTreeSet<String>,
    now: u64,
    starts: u32,
    /// Words of printableStatus and events, in order.
    log: Vec<String>,
    wait: Option<u64>,
}

impl World {
    fn new(strategy: &str) -> Self {
        let machine = json!({
            "metadata": {"name": "vm", "namespace": "n", "uid": VM_UID, "generation": 1},
            "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {}}}},
            "status": {},
        });
        let mut world = Self {
            machine,
            instance: None,
            data_volume: None,
            revisions: BTreeSet::new(),
            now: 1000,
            starts: 0,
            log: Vec::new(),
            wait: None,
        };
        world.settle();
        world
    }

    /// Reconciles until nothing changes.
    fn settle(&mut self) {
        for _ in 0..20 {
            if !self.reconcile() {
                return;
            }
        }
        panic!("the controller does not come to rest: {:?}", self.log);
    }

    fn reconcile(&mut self) -> bool {
        let machine: Machine = serde_json::from_value(self.machine.clone()).unwrap();
        let instance: Option<Instance> =
            self.instance.clone().map(|one| serde_json::from_value(one).unwrap());
        let data_volume: Option<DataVolume> =
            self.data_volume.clone().map(|one| serde_json::from_value(one).unwrap());
        let templates = machine.spec.data_volume_templates.iter().map(|template| Volume {
            claim_name: &template.metadata.name,
            named_data_volume: true,
            claim: None,
            data_volume: data_volume.as_ref(),
        });
        let observed = Observed {
            machine: &machine,
            instance: instance.as_ref(),
            volumes: Vec::new(),
            templates: templates.collect(),
            snapshot_classes: BTreeSet::new(),
            expand_all: false,
            now: self.now,
        };
        let planned = plan(&observed);
        let mut outcome = Outcome { failure: planned.failure.clone(), ..Outcome::default() };
        let mut acted = false;
        self.wait = None;
        let mut events = Vec::new();
        for step in &planned.steps {
            events.extend(done(step, &observed).map(|event| format!("{}: {}", event.reason, event.message)));
            if let Step::Wait(time) = step {
                self.wait = Some(*time);
            } else if *step == Step::QueueStart {
                outcome.queue_start = true;
            } else {
                acted = true;
            }
            self.apply(step);
        }
        // A status is computed from what was observed; the effect of a step is observed in the next round.
        let after = status(&observed, &outcome);
        let changed = after != machine.status;
        if !acted || outcome.queue_start {
            let word = after.printable_status.clone();
            if changed && word != machine.status.printable_status {
                self.log.push(word);
            }
            self.machine["status"] = serde_json::to_value(&after).unwrap();
        }
        self.log.extend(events);
        acted || changed
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::AddFinalizer => self.machine["metadata"]["finalizers"] = json!([machine_plan::FINALIZER]),
            Step::RemoveFinalizer => self.machine["metadata"]["finalizers"] = json!([]),
            Step::CreateDataVolume(name) => {
                let machine = json!({"metadata": self.machine["metadata"], "spec": self.machine["spec"]});
                self.data_volume = render::data_volume(&machine, name);
            }
            Step::CreateInstance { paused } => {
                self.starts += 1;
                let revision = render::revision(&self.machine);
                self.revisions.insert(revision["metadata"]["name"].as_str().unwrap().to_owned());
                let mut instance = render::instance(&self.machine, *paused);
                instance["metadata"]["uid"] = json!(format!("instance-{}", self.starts));
                instance["status"] = json!({"phase": "Pending"});
                self.instance = Some(instance);
            }
            Step::DeleteInstance => {
                let instance = self.instance.as_mut().unwrap();
                instance["metadata"]["deletionTimestamp"] = json!(crate::compute::clock::text(self.now));
            }
            Step::KeepFlavor(which) => {
                let reference = &self.machine["spec"][which.field()];
                self.machine["status"][format!("{}Ref", which.field())] = json!({
                    "name": reference["name"],
                    "controllerRevisionRef": {"name": format!("vm-{}", reference["name"].as_str().unwrap())},
                });
            }
            Step::Expand => {
                for which in Which::BOTH {
                    self.machine["spec"].as_object_mut().unwrap().remove(which.field());
                }
            }
            Step::DropRevision(name) => {
                assert!(self.revisions.remove(name), "{name} of {:?}", self.revisions)
            }
            // The instance controller has removed its own finalizer.
            Step::ReleaseInstance => self.instance = None,
            Step::RunAlways => self.machine["spec"]["runStrategy"] = json!("Always"),
            Step::QueueStart | Step::AttachDump(_) | Step::DetachDump { .. } | Step::Wait(_) => {}
        }
    }

    /// virt-agent or the instance controller reports a phase.
    fn phase(&mut self, phase: &str) -> &mut Self {
        self.now += 10;
        let time = crate::compute::clock::text(self.now);
        let instance = self.instance.as_mut().expect("an instance");
        let mut transitions =
            instance["status"]["phaseTransitionTimestamps"].as_array().cloned().unwrap_or_default();
        transitions.push(json!({"phase": phase, "phaseTransitionTimestamp": time}));
        instance["status"]["phaseTransitionTimestamps"] = json!(transitions);
        instance["status"]["phase"] = json!(phase);
        let ready = if phase == "Running" { "True" } else { "False" };
        instance["status"]["conditions"] = json!([{"type": "Ready", "status": ready}]);
        self.settle();
        self
    }

    fn run(&mut self) -> &mut Self {
        self.phase("Scheduling").phase("Scheduled").phase("Running")
    }

    fn request(&mut self, requests: Value) -> &mut Self {
        self.machine["status"]["stateChangeRequests"] = requests;
        self.settle();
        self
    }

    fn strategy(&mut self, strategy: &str) -> &mut Self {
        self.machine["spec"]["runStrategy"] = json!(strategy);
        self.settle();
        self
    }

    fn later(&mut self, seconds: u64) -> &mut Self {
        self.now += seconds;
        self.settle();
        self
    }

    fn delete(&mut self) -> &mut Self {
        self.machine["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:20:00Z");
        self.settle();
        self
    }

    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn uid(&self) -> String {
        self.instance.as_ref().unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
    }
}

fn created() -> String {
    "SuccessfulCreate: Started the virtual machine by creating the new virtual machine instance vm".to_owned()
}

fn deleted(number: u32) -> String {
    format!(
        "SuccessfulDelete: Stopped the virtual machine by deleting the virtual machine instance instance-{number}"
    )
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn strategies_start_a_new_machine_or_leave_it() {
    for (strategy, starts) in
        [("Always", 1), ("RerunOnFailure", 1), ("Once", 1), ("Manual", 0), ("Halted", 0)]
    {
        let mut world = World::new(strategy);
        assert_eq!(world.starts, starts, "{strategy}");
        let expected = if starts == 1 { vec![created(), "Starting".to_owned()] } else { words(&["Stopped"]) };
        assert_eq!(world.log(), expected, "{strategy}");
        if starts == 1 {
            world.run();
            assert_eq!(world.log(), words(&["Running"]), "{strategy}");
            assert_eq!(world.machine["status"]["ready"], true);
            assert_eq!(world.machine["status"]["runStrategy"], strategy);
        }
    }
}

#[test]
fn guest_shutdown_restarts_always_only() {
    for (strategy, restarts) in
        [("Always", true), ("RerunOnFailure", false), ("Once", false), ("Manual", false)]
    {
        let mut world = World::new(strategy);
        if strategy == "Manual" {
            world.request(json!([{"action": "Start"}]));
        }
        world.run().log();
        world.phase("Succeeded");
        if restarts {
            let expected = [deleted(1), "Stopped".into(), created(), "Starting".into()];
            let log = world.log();
            assert_eq!(log.first(), Some(&expected[0]), "{strategy}: {log:?}");
            assert_eq!(log[log.len() - 2..], expected[2..], "{strategy}: {log:?}");
        } else {
            assert_eq!(world.log(), words(&["Stopped"]), "{strategy}");
        }
        assert_eq!(world.starts, 1 + u32::from(restarts), "{strategy}");
    }
}

#[test]
fn crash_of_a_running_guest_restarts_at_once_under_such_a_strategy() {
    for (strategy, restarts) in
        [("Always", true), ("RerunOnFailure", true), ("Once", false), ("Manual", false)]
    {
        let mut world = World::new(strategy);
        if strategy == "Manual" {
            world.request(json!([{"action": "Start"}]));
        }
        world.run().log();
        world.phase("Failed");
        assert_eq!(world.starts, 1 + u32::from(restarts), "{strategy}");
        assert_eq!(world.wait, None, "a guest that ran is not a failed start");
        let word = world.machine["status"]["printableStatus"].clone();
        assert_eq!(word, if restarts { "Starting" } else { "Stopped" }, "{strategy}");
        assert_eq!(world.machine["status"]["stateChangeRequests"], json!([]), "{strategy}");
    }
}

#[test]
fn starts_that_fail_wait_longer_each_time() {
    let mut world = World::new("Always");
    let mut waits = Vec::new();
    for round in 1..=4 {
        world.phase("Scheduling").phase("Failed");
        let failure = world.machine["status"]["startFailure"].clone();
        assert_eq!(failure["consecutiveFailCount"], round);
        assert_eq!(world.machine["status"]["printableStatus"], "CrashLoopBackOff");
        let wait = world.wait.expect("a start is tried again") - world.now;
        waits.push(wait);
        world.later(wait);
        assert_eq!(world.starts, round + 1);
    }
    let bounds = [(10, 15), (40, 60), (90, 135), (160, 240)];
    assert!(waits.iter().zip(bounds).all(|(wait, (least, most))| (least..=most).contains(wait)), "{waits:?}");
    world.run();
    assert_eq!(world.machine["status"]["startFailure"], Value::Null);
}

#[test]
fn strategy_that_restarts_nothing_forgets_failed_starts() {
    let mut world = World::new("Always");
    world.phase("Scheduling").phase("Failed");
    assert_eq!(world.machine["status"]["printableStatus"], "CrashLoopBackOff");
    world.strategy("Halted");
    assert_eq!(world.machine["status"]["printableStatus"], "Stopped");
    assert_eq!(world.machine["status"]["startFailure"], Value::Null);
    world.strategy("Always");
    assert_eq!((world.starts, world.wait), (2, None));
    let mut manual = World::new("Manual");
    manual.request(json!([{"action": "Start"}])).phase("Scheduling").phase("Failed");
    assert_eq!(manual.machine["status"]["printableStatus"], "Stopped");
    assert_eq!(manual.machine["status"]["startFailure"], Value::Null);
    manual.request(json!([{"action": "Start"}]));
    assert_eq!((manual.starts, manual.wait), (2, None));
}

#[test]
fn manual_machine_follows_requests() {
    let mut world = World::new("Manual");
    world.log();
    world.request(json!([{"action": "Start"}]));
    assert_eq!(world.log(), [created(), "Starting".into()]);
    assert_eq!(world.machine["status"]["stateChangeRequests"], json!([]), "the start is fulfilled");
    world.run().log();
    let uid = world.uid();
    world.request(json!([{"action": "Stop", "uid": uid}]));
    assert_eq!(world.log(), [deleted(1), "Stopping".into()]);
    world.phase("Succeeded");
    assert_eq!(world.log(), words(&["Stopped"]));
    assert_eq!(world.machine["status"]["stateChangeRequests"], json!([]), "the stop is fulfilled");
    world.request(json!([{"action": "Start", "data": {"paused": "true"}}]));
    assert_eq!(world.instance.as_ref().unwrap()["spec"]["startStrategy"], "Paused");
}

#[test]
fn restart_request_makes_one_new_instance() {
    for strategy in ["Always", "RerunOnFailure", "Manual"] {
        let mut world = World::new(strategy);
        if strategy == "Manual" {
            world.request(json!([{"action": "Start"}]));
        }
        world.run().log();
        let uid = world.uid();
        world.request(json!([{"action": "Stop", "uid": uid}, {"action": "Start"}]));
        assert_eq!(world.log(), [deleted(1), "Stopping".into()], "{strategy}");
        world.phase("Succeeded");
        assert_eq!(world.starts, 2, "{strategy}");
        assert_eq!(world.machine["status"]["stateChangeRequests"], json!([]), "{strategy}");
        world.run();
        assert_eq!(world.starts, 2, "{strategy}");
    }
}

#[test]
fn halting_and_starting_again_keeps_one_instance_at_a_time() {
    let mut world = World::new("Always");
    world.run().log();
    world.strategy("Halted");
    assert_eq!(world.log(), [deleted(1), "Stopping".into()]);
    world.phase("Succeeded");
    assert_eq!(world.log(), words(&["Stopped"]));
    assert_eq!(world.machine["status"]["created"], false);
    world.request(json!([{"action": "Start", "data": {"paused": "true"}}]));
    assert_eq!(world.machine["spec"]["runStrategy"], "Always");
    assert_eq!(world.starts, 2);
    assert_eq!(world.instance.as_ref().unwrap()["spec"]["startStrategy"], "Paused");
}

#[test]
fn revision_of_a_start_lives_as_long_as_its_instance() {
    let mut world = World::new("Always");
    let name = |generation: u64| machine_plan::revision_name(VM_UID, generation);
    for cycle in 1..=3 {
        world.run();
        assert_eq!(world.revisions, BTreeSet::from([name(2 * cycle - 1)]));
        world.machine["metadata"]["generation"] = json!(2 * cycle);
        world.strategy("Halted");
        assert_eq!(world.revisions, BTreeSet::from([name(2 * cycle - 1)]), "the guest is being shut down");
        world.phase("Succeeded");
        assert_eq!(world.revisions, BTreeSet::new());
        world.machine["metadata"]["generation"] = json!(2 * cycle + 1);
        world.strategy("Always");
    }
    // A restart of the same generation stores it again.
    world.run().phase("Succeeded");
    assert_eq!((world.starts, &world.revisions), (5, &BTreeSet::from([name(7)])));
    // Those of a deleted VM are garbage collected.
    world.run().delete().phase("Succeeded");
    assert!(world.instance.is_none());
    assert_eq!(world.revisions, BTreeSet::from([name(7)]));
}

#[test]
fn stop_before_the_guest_runs_is_no_failed_start() {
    let mut world = World::new("Always");
    world.phase("Scheduling");
    world.strategy("Halted");
    world.now += 300;
    world.phase("Failed");
    assert!(world.instance.is_none());
    assert_eq!(world.machine["status"]["startFailure"], Value::Null);
    assert_eq!(world.machine["status"]["printableStatus"], "Stopped");
}

#[test]
fn deletion_waits_for_the_instance() {
    let mut world = World::new("Always");
    world.run().log();
    world.delete();
    assert_eq!(world.log(), [deleted(1), "Terminating".into()]);
    assert_eq!(world.machine["metadata"]["finalizers"], json!([machine_plan::FINALIZER]));
    world.phase("Succeeded");
    assert!(world.instance.is_none());
    assert_eq!(world.machine["metadata"]["finalizers"], json!([]));
    assert_eq!(world.starts, 1);
}

#[test]
fn orphaning_deletion_leaves_the_instance_running() {
    let machine: Machine = serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "n", "uid": VM_UID, "deletionTimestamp": "1970-01-01T00:20:00Z",
            "finalizers": ["orphan", machine_plan::FINALIZER]},
        "spec": {"runStrategy": "Always"},
    }))
    .unwrap();
    let instance: Instance = serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "n", "uid": "i", "finalizers": [machine_plan::FINALIZER],
            "ownerReferences": [{"kind": "VirtualMachine", "name": "vm", "uid": VM_UID, "controller": true}]},
        "status": {"phase": "Running"},
    }))
    .unwrap();
    let observed = Observed {
        machine: &machine,
        instance: Some(&instance),
        volumes: Vec::new(),
        templates: Vec::new(),
        snapshot_classes: BTreeSet::new(),
        expand_all: false,
        now: 0,
    };
    assert_eq!(plan(&observed).steps, [Step::ReleaseInstance, Step::RemoveFinalizer]);
}

#[test]
fn references_are_expanded_before_what_is_made_of_the_template() {
    let steps = |strategy: &str, runs: bool, expand_all: bool| {
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {"name": "vm", "uid": VM_UID, "finalizers": [machine_plan::FINALIZER]},
            "spec": {"runStrategy": strategy, "instancetype": {"name": "small", "kind": "K"}},
            "status": {"runStrategy": strategy, "instancetypeRef": {
                "name": "small", "kind": "K", "controllerRevisionRef": {"name": "r"}}},
        }))
        .unwrap();
        let instance: Instance = serde_json::from_value(json!({
            "metadata": {"name": "vm", "uid": "i", "ownerReferences": [
                {"kind": "VirtualMachine", "name": "vm", "uid": VM_UID, "controller": true}]},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        let observed = Observed {
            machine: &machine,
            instance: runs.then_some(&instance),
            volumes: Vec::new(),
            templates: Vec::new(),
            snapshot_classes: BTreeSet::new(),
            expand_all,
            now: 0,
        };
        plan(&observed).steps
    };
    let create = || Step::CreateInstance { paused: false };
    assert_eq!(steps("Always", false, false), [create()]);
    assert_eq!(steps("Always", false, true), [Step::Expand, create()]);
    assert!(steps("Always", true, false).is_empty());
    assert_eq!(steps("Always", true, true), [Step::Expand]);
    assert_eq!(steps("Halted", true, true), [Step::DeleteInstance, Step::Expand]);
}

#[test]
fn data_volume_is_filled_before_the_start() {
    let mut world = World::new("Halted");
    world.machine["spec"]["dataVolumeTemplates"] =
        json!([{"metadata": {"name": "root"}, "spec": {"storage": {}}}]);
    world.log();
    world.settle();
    assert_eq!(
        world.log(),
        ["SuccessfulDataVolumeCreate: Created DataVolume root".to_owned(), "Provisioning".into()]
    );
    world.strategy("Always");
    assert_eq!(world.starts, 0, "the DataVolume is not filled");
    world.data_volume.as_mut().unwrap()["status"] = json!({"phase": "Failed"});
    world.settle();
    assert_eq!(world.log(), words(&["DataVolumeError"]));
    world.data_volume.as_mut().unwrap()["status"] = json!({"phase": "PendingPopulation"});
    world.settle();
    assert_eq!(world.starts, 0, "the claim of the DataVolume does not exist");
}

#[test]
fn unsupported_features_are_refused_by_path() {
    let mut world = World::new("Halted");
    world.machine["spec"] = json!({"runStrategy": "WaitAsReceiver", "template": {"spec": {}}});
    world.settle();
    assert_eq!(world.starts, 0);
    let conditions = world.machine["status"]["conditions"].as_array().unwrap();
    let failure = conditions.iter().find(|one| one["type"] == "Failure").unwrap();
    assert_eq!(failure["reason"], "UnsupportedRunStrategy");
    assert!(failure["message"].as_str().unwrap().contains("spec.runStrategy"), "{failure}");
}

#[test]
fn revisions_are_kept_before_the_start_and_stay_until_another_name_is_chosen() {
    let mut world = World::new("Halted");
    world.machine["spec"]["instancetype"] = json!({"name": "u1.small"});
    world.settle();
    let revision = |world: &World| {
        world.machine["status"]["instancetypeRef"]["controllerRevisionRef"]["name"]
            .as_str()
            .map(str::to_owned)
    };
    assert_eq!(revision(&world).as_deref(), Some("vm-u1.small"), "a halted VM keeps its revision too");
    world.strategy("Always");
    assert_eq!(world.starts, 1);
    assert_eq!(revision(&world).as_deref(), Some("vm-u1.small"));
    world.machine["spec"]["instancetype"]["name"] = json!("u1.large");
    world.settle();
    assert_eq!(revision(&world).as_deref(), Some("vm-u1.large"));
    world.machine["spec"]["instancetype"] = Value::Null;
    world.settle();
    assert_eq!(world.machine["status"]["instancetypeRef"], Value::Null);
}

#[test]
fn instance_of_another_owner_is_left_alone() {
    let mut world = World::new("Halted");
    world.instance = Some(
        json!({"metadata": {"name": "vm", "namespace": "n", "uid": "x"}, "status": {"phase": "Running"}}),
    );
    world.strategy("Always");
    assert_eq!(world.starts, 0);
    assert_eq!(world.instance.as_ref().unwrap()["metadata"].get("deletionTimestamp"), None);
    let conditions = world.machine["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|one| one["type"] == "Failure" && one["reason"] == "FailedCreate"));
}

#[test]
fn conditions_of_the_instance_are_copied_and_the_last_ones_stay() {
    let mut world = World::new("Always");
    world.run();
    world.instance.as_mut().unwrap()["status"]["conditions"] = json!([
        {"type": "Ready", "status": "True"},
        {"type": "AgentConnected", "status": "True"},
        {"type": "Paused", "status": "True", "reason": "PausedByUser"},
    ]);
    world.settle();
    let kinds = |world: &World| -> Vec<String> {
        let all = world.machine["status"]["conditions"].as_array().unwrap();
        all.iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&world), ["Ready", "AgentConnected", "Paused"]);
    assert_eq!(world.machine["status"]["printableStatus"], "Paused");
    world.instance.as_mut().unwrap()["status"]["conditions"] = json!([
        {"type": "Ready", "status": "True"}, {"type": "AgentConnected", "status": "True"},
    ]);
    world.settle();
    assert_eq!(kinds(&world), ["Ready", "AgentConnected"]);
    world.instance = None;
    world.machine["spec"]["runStrategy"] = json!("Halted");
    world.settle();
    assert_eq!(kinds(&world), ["Ready", "AgentConnected"]);
    let ready = &world.machine["status"]["conditions"][0];
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("VMINotExists")));
}

#[test]
fn failed_import_and_missing_source_are_events_of_the_vm() {
    let data_volume: DataVolume =
        serde_json::from_value(json!({"metadata": {"name": "root"}, "status": {"phase": "Failed"}})).unwrap();
    let failed = |word: &str| {
        let machine: Machine = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "n"}, "status": {"printableStatus": word},
        }))
        .unwrap();
        let volume = Volume {
            claim_name: "root",
            named_data_volume: true,
            claim: None,
            data_volume: Some(&data_volume),
        };
        let observed = Observed {
            machine: &machine,
            instance: None,
            volumes: Vec::new(),
            templates: vec![volume],
            snapshot_classes: BTreeSet::new(),
            expand_all: false,
            now: 1000,
        };
        let events = imports(&observed).into_iter();
        events.map(|event| format!("{}: {}", event.reason, event.message)).collect::<Vec<_>>()
    };
    let text = "FailedDataVolumeImport: DataVolume root failed to import disk image";
    assert_eq!(failed("Provisioning"), [text]);
    assert!(failed("DataVolumeError").is_empty(), "the status reports it");

    let origin = |snapshot| Origin { namespace: "images".into(), name: "golden".into(), snapshot };
    let event = without_source(&origin(false), false, "root").unwrap();
    let text =
        "Source PVC golden not available: Target PVC root will remain unpopulated until source is created";
    assert_eq!((event.reason, event.message.as_str()), ("SourcePVCNotAvailabe", text));
    for (snapshot, exists) in [(false, true), (true, false), (true, true)] {
        assert!(without_source(&origin(snapshot), exists, "root").is_none(), "{snapshot} {exists}");
    }
}
