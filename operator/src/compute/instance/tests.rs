//! An instance's life against its pod, its volumes and its node: phases, conditions, steps and writes.

use cluster::JsonPatch;
use serde_json::{Value, json};

use super::event;
use super::patch::{Patch, patch};
use super::plan::{FINALIZER, MACHINE_FINALIZER, Observed, Phase, Plan, Step, plan};
use super::status::{CreateError, status};
use crate::compute::launcher;
use crate::compute::volumes::Volume;
use crate::view::{Claim, DataVolume, Instance, Node, Pod, condition, is_false};

pub(super) const NOW: u64 = 1_000_000;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(super) fn instance(phase: &str) -> Value {
    json!({
        "metadata": {"name": "vm", "namespace": "n", "uid": "u", "resourceVersion": "5", "finalizers": [FINALIZER]},
        "spec": {"networks": [{"name": "default", "pod": {}}]},
        "status": {"phase": phase, "nodeName": "node-1"},
    })
}

pub(super) fn deleted(phase: &str) -> Value {
    let mut instance = instance(phase);
    instance["metadata"]["deletionTimestamp"] = json!(crate::compute::clock::text(NOW - 5));
    instance
}

pub(super) fn pod(phase: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": "virt-launcher-vm-aaaaa", "namespace": "n", "uid": "p"},
        "spec": {"nodeName": "node-1", "containers": [
            {"name": "guest-console-log", "image": "other"}, {"name": "compute", "image": "launcher:1"}]},
        "status": {
            "phase": phase, "qosClass": "Burstable", "podIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}],
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            "containerStatuses": [{"name": "compute", "ready": ready, "image": "sha256:1"}],
        },
    })
}

fn ended(phase: &str, seconds_ago: u64) -> Value {
    let mut pod = pod(phase, false);
    let time = crate::compute::clock::text(NOW - seconds_ago);
    pod["status"]["containerStatuses"][0]["state"] =
        json!({"terminated": {"exitCode": 0, "finishedAt": time}});
    pod
}

/// The observation, as JSON.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) instance: Value,
    pub(super) pods: Vec<Value>,
    pub(super) attachments: Vec<Value>,
    pub(super) claim: Option<Value>,
    pub(super) data_volume: Option<Value>,
    pub(super) named_data_volume: bool,
    pub(super) has_volume: bool,
    /// Claims that are labelled for the guest.
    pub(super) states: Vec<Value>,
    pub(super) confirmed: bool,
    pub(super) owner_exists: bool,
    pub(super) heartbeat: u64,
}

impl Scene {
    pub(super) fn new(instance: Value, pods: &[Value]) -> Self {
        Self {
            instance,
            pods: pods.to_vec(),
            attachments: Vec::new(),
            claim: None,
            data_volume: None,
            named_data_volume: false,
            has_volume: false,
            states: Vec::new(),
            confirmed: true,
            owner_exists: true,
            heartbeat: NOW - 10,
        }
    }

    /// The same with a DataVolume in this phase.
    fn on(self, phase: &str) -> Self {
        let claim = json!({"metadata": {"name": "root", "namespace": "n"}, "status": {"phase": "Bound"}});
        let data_volume = json!({"metadata": {"name": "root", "namespace": "n"}, "status": {"phase": phase}});
        Self { claim: Some(claim), data_volume: Some(data_volume), has_volume: true, ..self }
    }

    pub(super) fn with<R>(&self, read_it: impl FnOnce(&Observed<'_>, &Plan) -> R) -> R {
        let instance: Instance = read(self.instance.clone());
        let pods: Vec<Pod> = self.pods.iter().map(|pod| read(pod.clone())).collect();
        let attachments: Vec<Pod> = self.attachments.iter().map(|pod| read(pod.clone())).collect();
        let claim: Option<Claim> = self.claim.clone().map(read);
        let data_volume: Option<DataVolume> = self.data_volume.clone().map(read);
        let heartbeat = crate::compute::clock::text(self.heartbeat);
        let node: Node = read(
            json!({"metadata": {"name": "node-1", "annotations": {"kubevirt.io/heartbeat": heartbeat}}}),
        );
        let volume = Volume {
            claim_name: "root",
            named_data_volume: self.named_data_volume,
            claim: claim.as_ref(),
            data_volume: data_volume.as_ref(),
        };
        let states: Vec<Claim> = self.states.iter().map(|claim| read(claim.clone())).collect();
        let overhead = |class: Option<&str>| class.map(|_| "0.1".to_owned());
        let observed = Observed {
            state: launcher::state(&instance, states.iter()),
            overhead: &overhead,
            memory_overhead: instance.spec.overhead,
            instance: &instance,
            pods: pods.iter().collect(),
            attachments: attachments.iter().collect(),
            pods_confirmed: self.confirmed,
            volumes: if self.has_volume { vec![volume] } else { Vec::new() },
            owner_exists: self.owner_exists,
            node: Some(&node),
            now: NOW,
        };
        let planned = plan(&observed);
        read_it(&observed, &planned)
    }

    fn plan(&self) -> Plan {
        self.with(|_, plan| plan.clone())
    }

    /// The plan with the steps for hotplugged volumes, and the changes of their entries.
    fn hotplug(&self) -> (Plan, Vec<super::hotplug::Change>) {
        self.with(|observed, plan| {
            let mut plan = plan.clone();
            let changes = super::hotplug::extend(observed, &mut plan);
            (plan, changes)
        })
    }

    fn volume(mut self, claim: Option<Value>, data_volume: Option<&str>) -> Self {
        self.has_volume = true;
        self.claim = claim;
        self.named_data_volume = data_volume.is_some();
        self.data_volume = data_volume.map(|phase| json!({"status": {"phase": phase}}));
        self
    }
}

#[test]
fn a_guest_that_keeps_state_gets_a_claim_for_it_before_its_pod() {
    let mut keeps = instance("Pending");
    keeps["spec"]["domain"] = json!({"devices": {"tpm": {"persistent": true}}});
    let mut scene = Scene::new(keeps, &[]);
    let waits = Step::Wait(NOW + 5);
    let planned = scene.plan();
    assert_eq!((planned.phase, planned.steps), (Phase::Pending, vec![Step::CreateState, waits.clone()]));
    let claim = |owner: &str| {
        json!({"metadata": {"name": "persistent-state-for-vm",
            "ownerReferences": [{"kind": "VirtualMachineInstance", "uid": owner, "controller": true}]}})
    };
    scene.states = vec![claim("an earlier instance")];
    assert_eq!(scene.plan().steps, [waits]);
    scene.states = vec![claim("u")];
    let planned = scene.plan();
    assert_eq!((planned.phase, planned.steps), (Phase::Scheduling, vec![Step::CreatePod]));
    let names = scene.with(|observed, _| super::volumes::status(observed));
    assert_eq!(names[0].name, "persistent-state-for-vm");
}

fn delete_pod() -> Step {
    Step::DeletePod { name: "virt-launcher-vm-aaaaa".into(), uid: "p".into() }
}

#[test]
fn phases_follow_the_pod() {
    use Phase::{Failed, Kept, Scheduled, Scheduling, Succeeded};
    let deleting_pod = || {
        let mut pod = pod("Running", true);
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod
    };
    for (name, scene, phase, steps) in [
        ("new", Scene::new(instance(""), &[]), Scheduling, vec![Step::CreatePod]),
        ("pending", Scene::new(instance("Pending"), &[]), Scheduling, vec![Step::CreatePod]),
        ("created before", Scene::new(instance("Pending"), &[pod("Pending", false)]), Scheduling, vec![]),
        ("pod pends", Scene::new(instance("Scheduling"), &[pod("Pending", false)]), Kept, vec![]),
        ("pod starts", Scene::new(instance("Scheduling"), &[pod("Running", false)]), Kept, vec![]),
        ("pod is ready", Scene::new(instance("Scheduling"), &[pod("Running", true)]), Scheduled, vec![]),
        (
            "ready pod on a filled volume",
            Scene::new(instance("Scheduling"), &[pod("Running", true)]).on("Succeeded"),
            Scheduled,
            vec![],
        ),
        (
            "ready pod on a volume of others",
            Scene::new(instance("Scheduling"), &[pod("Running", true)]).on("PVCBound"),
            Kept,
            vec![],
        ),
        ("ready pod is deleted", Scene::new(instance("Scheduling"), &[deleting_pod()]), Kept, vec![]),
        ("pod fails", Scene::new(instance("Scheduling"), &[pod("Failed", false)]), Failed, vec![]),
        ("pod is gone", Scene::new(instance("Scheduling"), &[]), Failed, vec![]),
        ("runs", Scene::new(instance("Running"), &[pod("Running", true)]), Kept, vec![]),
        ("running pod is gone", Scene::new(instance("Running"), &[]), Failed, vec![]),
        (
            "pod ended just now",
            Scene::new(instance("Running"), &[ended("Succeeded", 2)]),
            Kept,
            vec![Step::Wait(NOW + 3)],
        ),
        ("pod ended well", Scene::new(instance("Running"), &[ended("Succeeded", 6)]), Succeeded, vec![]),
        ("pod ended badly", Scene::new(instance("Running"), &[ended("Failed", 6)]), Failed, vec![]),
        (
            "launcher ended unused",
            Scene::new(instance("Scheduled"), &[ended("Succeeded", 6)]),
            Failed,
            vec![],
        ),
        ("over", Scene::new(instance("Succeeded"), &[ended("Succeeded", 60)]), Kept, vec![]),
        ("over without pod", Scene::new(instance("Failed"), &[]), Kept, vec![]),
    ] {
        let plan = scene.plan();
        assert_eq!((plan.phase, plan.steps), (phase, steps), "{name}");
    }
}

#[test]
fn missing_pod_is_confirmed_before_the_instance_fails() {
    let mut scene = Scene::new(instance("Running"), &[]);
    scene.confirmed = false;
    let plan = scene.plan();
    assert_eq!((plan.phase, plan.steps), (Phase::Kept, vec![Step::ConfirmPods]));
}

#[test]
fn volumes_decide_when_the_pod_is_created() {
    use Phase::{Failed, Pending, Scheduling};
    let claim = || Some(json!({"status": {"phase": "Pending"}}));
    let new = || Scene::new(instance("Pending"), &[]);
    for (name, scene, phase, steps) in [
        ("claim is missing", new().volume(None, None), Pending, vec![]),
        ("claim is unbound", new().volume(claim(), None), Scheduling, vec![Step::CreatePod]),
        ("DataVolume has no claim", new().volume(None, Some("Pending")), Pending, vec![]),
        ("import runs", new().volume(claim(), Some("ImportInProgress")), Pending, vec![]),
        ("import is done", new().volume(claim(), Some("Succeeded")), Scheduling, vec![Step::CreatePod]),
        ("import failed", new().volume(claim(), Some("Failed")), Failed, vec![]),
        (
            "populator waits for the launcher pod",
            new().volume(claim(), Some("PendingPopulation")),
            Scheduling,
            vec![Step::CreatePod],
        ),
        (
            "claim would be bound empty",
            new().volume(claim(), Some("WaitForFirstConsumer")),
            Pending,
            vec![Step::CreateProvisioner],
        ),
    ] {
        let plan = scene.plan();
        assert_eq!((plan.phase, plan.steps), (phase, steps), "{name}");
    }
}

#[test]
fn provisioning_pod_goes_when_it_has_done_its_work() {
    let provisioner = |phase: &str| {
        let mut pod = pod(phase, false);
        pod["metadata"]["annotations"] = json!({"kubevirt.io/ephemeral-provisioning": "true"});
        pod
    };
    let claim = || Some(json!({"status": {"phase": "Bound"}}));
    let scene = |phase: &str, volume| {
        Scene::new(instance("Pending"), &[provisioner(phase)]).volume(claim(), Some(volume))
    };
    assert_eq!(scene("Running", "WaitForFirstConsumer").plan().steps, []);
    assert_eq!(scene("Succeeded", "ImportInProgress").plan().steps, [delete_pod()]);
    let done = scene("Succeeded", "Succeeded").plan();
    assert_eq!((done.phase, done.steps), (Phase::Scheduling, vec![Step::CreatePod, delete_pod()]));
}

#[test]
fn deletion_stops_the_guest_then_the_pod_then_the_instance() {
    let running = || pod("Running", true);
    let mut terminating = running();
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let late = |mut instance: Value| {
        instance["metadata"]["deletionTimestamp"] = json!(crate::compute::clock::text(NOW - 45));
        instance
    };
    let release = vec![Step::Release(vec![FINALIZER])];
    for (name, scene, steps) in [
        ("agent stops the guest", Scene::new(deleted("Running"), &[running()]), vec![Step::Wait(NOW + 40)]),
        ("agent did not", Scene::new(late(deleted("Running")), &[running()]), vec![delete_pod()]),
        (
            "agent is silent",
            Scene { heartbeat: 0, ..Scene::new(deleted("Running"), &[running()]) },
            vec![delete_pod()],
        ),
        ("guest has stopped", Scene::new(deleted("Succeeded"), &[running()]), vec![delete_pod()]),
        ("guest never ran", Scene::new(deleted("Scheduling"), &[pod("Pending", false)]), vec![delete_pod()]),
        ("pod is being deleted", Scene::new(deleted("Succeeded"), &[terminating]), vec![]),
        ("pod is gone", Scene::new(deleted("Succeeded"), &[]), release.clone()),
        ("there never was one", Scene::new(deleted("Pending"), &[]), release),
        (
            "pod may be there",
            Scene { confirmed: false, ..Scene::new(deleted("Succeeded"), &[]) },
            vec![Step::ConfirmPods],
        ),
    ] {
        assert_eq!(scene.plan().steps, steps, "{name}");
    }
}

#[test]
fn instance_without_a_machine_is_let_go_of_its_finalizer_too() {
    let mut instance = deleted("Succeeded");
    instance["metadata"]["finalizers"] = json!([FINALIZER, MACHINE_FINALIZER]);
    let scene = Scene { owner_exists: false, ..Scene::new(instance, &[]) };
    assert_eq!(scene.plan().steps, [Step::Release(vec![FINALIZER, MACHINE_FINALIZER])]);
}

#[test]
fn launcher_that_outlives_its_guest_is_deleted() {
    let over = |seconds: u64| {
        let mut instance = instance("Failed");
        let time = crate::compute::clock::text(NOW - seconds);
        instance["status"]["phaseTransitionTimestamps"] =
            json!([{"phase": "Failed", "phaseTransitionTimestamp": time}]);
        Scene::new(instance, &[pod("Running", true)]).plan().steps
    };
    assert_eq!(over(10), [Step::Wait(NOW + 20)]);
    assert_eq!(over(31), [delete_pod()]);
}

#[test]
fn silent_node_fails_an_instance_only_without_a_pod() {
    let silent =
        |pods: &[Value]| Scene { heartbeat: NOW - 301, ..Scene::new(instance("Running"), pods) }.plan();
    assert_eq!(silent(&[pod("Running", true)]).phase, Phase::Kept);
    let gone = silent(&[]);
    assert_eq!((gone.phase, gone.reason), (Phase::Failed, Some("NodeUnresponsive")));
    let down = silent(&[ended("Failed", 1)]);
    assert_eq!((down.phase, down.reason), (Phase::Failed, Some("NodeUnresponsive")));
}

/// Conditions after a reconciliation, as `type=status/reason`.
fn conditions(scene: &Scene, error: Option<&CreateError>) -> Vec<String> {
    scene.with(|observed, plan| {
        let desired = status(observed, plan, error);
        desired
            .conditions
            .iter()
            .map(|one| format!("{}={}/{}", one.kind, one.status, one.reason.as_deref().unwrap_or_default()))
            .collect()
    })
}

#[test]
fn conditions_report_why_an_instance_waits() {
    let claim = || Some(json!({"status": {"phase": "Pending"}}));
    let waiting = |reason: &str| {
        let mut pod = pod("Pending", false);
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": reason, "message": "no such image"}});
        Scene::new(instance("Scheduling"), &[pod])
    };
    let mut unschedulable = pod("Pending", false);
    unschedulable["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]);
    let new = || Scene::new(instance("Pending"), &[]);
    let (no_pod, no_guest) = ("Ready=False/PodNotExists", "Ready=False/GuestNotRunning");
    for (name, scene, wanted) in [
        ("new", new(), vec![no_guest]),
        (
            "claim is missing",
            new().volume(None, None),
            vec!["PodScheduled=False/Unschedulable", "Synchronized=False/FailedPvcNotFound", no_pod],
        ),
        (
            "import runs",
            new().volume(claim(), Some("ImportInProgress")),
            vec!["DataVolumesReady=False/NotAllDVsReady", no_pod],
        ),
        (
            "first consumer",
            new().volume(claim(), Some("PendingPopulation")),
            vec!["DataVolumesReady=False/NotAllDVsReady", "Provisioning=True/", no_guest],
        ),
        (
            "filled",
            new().volume(claim(), Some("Succeeded")),
            vec!["DataVolumesReady=True/AllDVsReady", no_guest],
        ),
        ("image", waiting("ErrImagePull"), vec!["Synchronized=False/ErrImagePull", no_guest]),
        ("image again", waiting("ImagePullBackOff"), vec!["Synchronized=False/ImagePullBackOff", no_guest]),
        (
            "no node",
            Scene::new(instance("Scheduling"), &[unschedulable]),
            vec!["PodScheduled=False/Unschedulable", no_guest],
        ),
        ("running", Scene::new(instance("Running"), &[pod("Running", true)]), vec!["Ready=True/"]),
        ("not ready", Scene::new(instance("Running"), &[pod("Running", false)]), vec!["Ready=False/"]),
        ("over", Scene::new(instance("Succeeded"), &[ended("Succeeded", 60)]), vec![no_pod]),
    ] {
        assert_eq!(conditions(&scene, None), wanted, "{name}");
    }
    let error = CreateError { reason: "FailedCreate", message: "exceeded quota".into(), attachment: false };
    assert_eq!(conditions(&new(), Some(&error)), ["Synchronized=False/FailedCreate", no_pod]);
}

#[test]
fn paused_guest_is_not_ready() {
    let mut instance = instance("Running");
    instance["status"]["conditions"] =
        json!([{"type": "Paused", "status": "True", "reason": "PausedByUser"}]);
    let scene = Scene::new(instance, &[pod("Running", true)]);
    assert_eq!(conditions(&scene, None), ["Paused=True/PausedByUser", "Ready=False/ReadinessGatesNotReady"]);
}

#[test]
fn problem_that_is_solved_is_removed() {
    let mut instance = instance("Scheduling");
    instance["status"]["conditions"] = json!([
        {"type": "Synchronized", "status": "False", "reason": "ErrImagePull"},
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
        {"type": "AgentConnected", "status": "True"},
    ]);
    let scene = Scene::new(instance, &[pod("Running", true)]);
    assert_eq!(conditions(&scene, None), ["AgentConnected=True/", "Ready=False/GuestNotRunning"]);
}

#[test]
fn image_of_a_launcher_is_the_one_that_its_pod_names() {
    Scene::new(instance("Scheduling"), &[pod("Running", true)]).with(|observed, plan| {
        let placement = status(observed, plan, None).placement.unwrap();
        assert_eq!(placement.image.as_deref(), Some("launcher:1"));
    });
}

#[test]
fn failed_creation_keeps_the_phase() {
    let error = CreateError { reason: "FailedCreate", message: "no".into(), attachment: false };
    Scene::new(instance("Pending"), &[]).with(|observed, plan| {
        assert_eq!(status(observed, plan, Some(&error)).phase, "Pending");
        assert_eq!(status(observed, plan, None).phase, "Scheduling");
    });
}

#[test]
fn a_start_takes_two_writes_before_the_agent_and_one_after() {
    let mut current = instance("Pending");
    current["spec"]["domain"] = json!({"memory": {"guest": "1Gi"}, "devices": {}});
    let mut writes = 0;
    let mut pods: Vec<Value> = Vec::new();
    let pending = || pod("Pending", false);
    let stages =
        [vec![], vec![pending()], vec![pending()], vec![pod("Running", false)], vec![pod("Running", true)]];
    for (number, stage) in stages.into_iter().enumerate() {
        pods = stage;
        // The pod appears before the instance is looked at a second time.
        for _ in 0..1 + 2 * number.min(1) {
            let write = Scene::new(current.clone(), &pods)
                .with(|observed, plan| patch(observed.instance, &status(observed, plan, None), &[]));
            let Some(Patch::Merge(write)) = write else { break };
            writes += 1;
            assert_eq!(write["metadata"]["resourceVersion"], "5");
            for (field, value) in write["status"].as_object().unwrap() {
                current["status"][field] = value.clone();
            }
        }
    }
    assert_eq!(writes, 2, "Scheduling and Scheduled; the first is made with the pod");
    assert_eq!(current["status"]["phase"], "Scheduled");
    assert_eq!(current["status"]["activePods"], json!({"p": "node-1"}));
    assert_eq!(current["status"]["interfaces"][0]["ipAddresses"], json!(["10.0.0.5", "fd00::5"]));
    assert_eq!(current["status"]["runtimeUser"], 107);
    assert_eq!(current["status"]["memory"], json!({"memoryOverhead": "164Mi"}));
    current["status"]["phase"] = json!("Running");
    let write = Scene::new(current, &pods)
        .with(|observed, plan| patch(observed.instance, &status(observed, plan, None), &[]));
    let Some(Patch::Json(made)) = write else { panic!("no JSON patch: {write:?}") };
    let kinds: Vec<&str> = made.operations().iter().map(|one| one["op"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["test", "test", "replace"], "{made:?}");
}

#[test]
fn placed_instance_describes_its_claims() {
    let mut scheduling = instance("Scheduling");
    scheduling["spec"]["volumes"] = json!([
        {"name": "root", "persistentVolumeClaim": {"claimName": "root"}},
        {"name": "init", "cloudInitNoCloud": {}},
    ]);
    let claim = |mode: &str| {
        json!({
            "metadata": {"name": "root", "annotations": {"cdi.kubevirt.io/storage.preallocation": "true"}},
            "spec": {
                "volumeMode": mode, "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
        })
    };
    for (mode, overhead) in [("Filesystem", "0.1"), ("Block", "0")] {
        let scene = Scene::new(scheduling.clone(), &[pod("Running", true)]).volume(Some(claim(mode)), None);
        let write = scene.with(|observed, plan| patch(observed.instance, &status(observed, plan, None), &[]));
        let Some(Patch::Merge(write)) = write else { panic!("no merge patch: {write:?}") };
        let info = json!({
            "claimName": "root", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
            "requests": {"storage": "1Gi"}, "volumeMode": mode, "preallocated": true,
            "filesystemOverhead": overhead,
        });
        let volumes = json!([
            {"name": "init", "target": ""},
            {"name": "root", "target": "", "persistentVolumeClaimInfo": info},
        ]);
        assert_eq!(write["status"]["volumeStatus"], volumes);
    }
}

#[test]
fn finalizers_are_removed_by_their_place() {
    let mut instance = deleted("Succeeded");
    instance["metadata"]["finalizers"] = json!(["other", FINALIZER]);
    let scene = Scene::new(instance, &[]);
    let write = scene.with(|observed, plan| {
        let mut desired = status(observed, plan, None);
        desired.conditions = observed.instance.status.conditions.clone();
        patch(observed.instance, &desired, &[FINALIZER])
    });
    let place = "/metadata/finalizers/1";
    assert_eq!(write, Some(Patch::Json(JsonPatch::new().test(place, FINALIZER).remove(place))));
}

#[test]
fn guarded_patch_changes_only_what_the_agent_left() {
    let mut current = instance("Running");
    current["status"]["conditions"] = json!([
        {"type": "AgentConnected", "status": "True"},
        {"type": "Ready", "status": "False", "reason": "GuestNotRunning"},
    ]);
    let scene = Scene::new(current, &[pod("Running", true)]);
    scene.with(|observed, plan| {
        let desired = status(observed, plan, None);
        assert!(is_false(&observed.instance.status.conditions, "Ready").is_some());
        assert!(condition(&desired.conditions, "AgentConnected").is_some());
        let Some(Patch::Json(made)) = patch(observed.instance, &desired, &[]) else { panic!("no patch") };
        let operations = made.operations();
        assert_eq!(
            operations[0],
            json!({"op": "test", "path": "/status/conditions/1/type", "value": "Ready"})
        );
        assert_eq!(operations[2]["path"], "/status/conditions/1");
        assert_eq!(operations.len(), 3);
    });
}

#[test]
fn readiness_gate_is_open_unless_the_guest_is_paused() {
    const UNPAUSED: &str = virt::status::pod::UNPAUSED;
    let gated = |status: Option<&str>| {
        let mut pod = pod("Running", true);
        pod["spec"]["readinessGates"] = json!([{"conditionType": UNPAUSED}]);
        if let Some(status) = status {
            let all = pod["status"]["conditions"].as_array_mut().unwrap();
            all.push(json!({"type": UNPAUSED, "status": status}));
        }
        pod
    };
    let gate =
        |place, open| vec![Step::Gate { pod: "virt-launcher-vm-aaaaa".into(), uid: "p".into(), place, open }];
    let bare = {
        let mut pod = gated(None);
        pod["status"]["conditions"] = json!([]);
        pod
    };
    for (case, phase, strategy, paused, pod, steps) in [
        ("new", "Scheduling", None, false, gated(None), gate(None, true)),
        ("not seen by the scheduler", "Scheduling", None, false, bare, vec![]),
        ("runs", "Running", None, false, gated(Some("True")), vec![]),
        ("is paused", "Running", None, true, gated(Some("True")), gate(Some(1), false)),
        ("stays paused", "Running", None, true, gated(Some("False")), vec![]),
        ("is unpaused", "Running", None, false, gated(Some("False")), gate(Some(1), true)),
        ("starts paused", "Scheduling", Some("Paused"), false, gated(None), vec![]),
        ("started paused", "Running", Some("Paused"), true, gated(None), vec![]),
        ("started paused and unpaused", "Running", Some("Paused"), false, gated(None), gate(None, true)),
        ("of an earlier release", "Running", None, true, pod("Running", true), vec![]),
        ("ended", "Failed", None, false, gated(Some("False")), vec![]),
    ] {
        let mut instance = instance(phase);
        instance["spec"]["startStrategy"] = json!(strategy);
        if paused {
            instance["status"]["conditions"] = json!([{"type": "Paused", "status": "True"}]);
        }
        let plan = Scene::new(instance, &[pod]).plan();
        let found: Vec<Step> =
            plan.steps.into_iter().filter(|step| matches!(step, Step::Gate { .. })).collect();
        assert_eq!(found, steps, "{case}");
    }
}

/// A running instance with a hotplugged volume on the claim `root`.
fn plugged(volumes: &Value, status: Value) -> Scene {
    let mut instance = instance("Running");
    instance["spec"]["volumes"] = volumes.clone();
    instance["status"]["volumeStatus"] = status;
    Scene::new(instance, &[pod("Running", true)]).volume(Some(json!({"status": {"phase": "Bound"}})), None)
}

fn attachment(name: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n", "uid": "h", "annotations": {"ferrovirt.io/volume": "data"}},
        "status": {"phase": if ready { "Running" } else { "Pending" },
            "containerStatuses": [{"name": "hotplug-disk", "ready": ready}]},
    })
}

#[test]
fn volume_comes_by_a_pod_of_its_own_and_goes_with_it() {
    let name = crate::compute::launcher::attachment_name("u", "data", "root");
    let volumes =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "root", "hotpluggable": true}}]);
    let none = json!([]);
    let entry = |phase: &str| {
        json!([{"name": "data", "phase": phase, "hotplugVolume": {"attachPodName": name, "attachPodUID": "h"},
            "persistentVolumeClaimInfo": {"claimName": "root"}}])
    };
    let create = || Step::CreateAttachment { volume: "data".into(), claim: "root".into(), pod: name.clone() };
    let remove = || Step::DeleteAttachment { name: name.clone(), uid: "h".into(), volume: "data".into() };
    // Spec, status, whether its pod exists and is ready; steps, operations of the patch, phase that is written.
    for (case, spec, status, pods, steps, phase) in [
        ("new", &volumes, json!([]), None, vec![create()], Some("Bound")),
        ("pod starts", &volumes, entry("Bound"), Some(false), vec![], Some("Bound")),
        ("pod runs", &volumes, entry("Bound"), Some(true), vec![], Some("AttachedToNode")),
        ("agent has it", &volumes, entry("Ready"), Some(true), vec![], None),
        ("pod was lost", &volumes, entry("Ready"), None, vec![create()], Some("Ready")),
        ("goes", &none, entry("Ready"), Some(true), vec![], Some("Detaching")),
        ("agent lets it go", &none, entry("Detaching"), Some(true), vec![], None),
        ("is gone from the guest", &none, entry("UnMountedFromPod"), Some(true), vec![remove()], None),
        ("pod is gone", &none, entry("UnMountedFromPod"), None, vec![], Some("")),
        ("never came", &none, entry("Pending"), Some(false), vec![remove()], None),
    ] {
        let mut scene = plugged(spec, status.clone());
        scene.attachments = pods.map(|ready| attachment(&name, ready)).into_iter().collect();
        let (plan, changes) = scene.hotplug();
        assert_eq!(plan.steps, steps, "{case}");
        let patch = super::hotplug::patch(&changes, &read(scene.instance.clone()));
        let written = patch.operations().iter().find_map(|one| match one["op"].as_str().unwrap() {
            "remove" => Some(String::new()),
            "add" if one["path"] == "/status/volumeStatus" => {
                one["value"][0]["phase"].as_str().map(str::to_owned)
            }
            "add" if one["path"] == "/status/volumeStatus/0/phase" => {
                one["value"].as_str().map(str::to_owned)
            }
            _ => None,
        });
        assert_eq!(written.as_deref(), phase, "{case}: {patch:?}");
    }
}

/// An agent writes entries too: a new one that is added twice would be two disks.
#[test]
fn entry_is_added_to_the_list_that_lacks_it_only() {
    let volumes =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "root", "hotpluggable": true}}]);
    let mut scene = plugged(&volumes, json!([{"name": "other"}]));
    scene.instance["metadata"]["resourceVersion"] = json!("7");
    let patch = super::hotplug::patch(&scene.hotplug().1, &read(scene.instance.clone()));
    let places: Vec<_> =
        patch.operations().iter().map(|one| (one["op"].clone(), one["path"].clone())).collect();
    let wanted = [("test", "/metadata/resourceVersion"), ("add", "/status/volumeStatus/-")];
    assert_eq!(places, wanted.map(|(op, path)| (json!(op), json!(path))), "{patch:?}");
    assert_eq!(patch.operations()[0]["value"], "7");
}

/// The guest's own readiness probe fails until the guest runs.
#[test]
fn instance_is_handed_over_when_its_launcher_runs() {
    for (state, scheduled) in
        [(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}), true), (json!({}), false)]
    {
        let mut pod = pod("Running", false);
        pod["status"]["containerStatuses"][0]["state"] = state;
        let plan = Scene::new(instance("Scheduling"), &[pod]).plan();
        assert_eq!(plan.phase == Phase::Scheduled, scheduled);
    }
}

/// The agent grows the disk of a claim by this.
#[test]
fn claim_that_grew_is_described_again_while_the_guest_runs() {
    let info = |size: &str| json!({"claimName": "root", "requests": {"storage": size}, "capacity": {"storage": size}});
    let claim = || {
        Some(json!({
            "metadata": {"name": "root"},
            "spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
        }))
    };
    let name = crate::compute::launcher::attachment_name("u", "data", "root");
    for (hotpluggable, phase, before, written) in [
        (false, "Running", "1Gi", true),
        (false, "Running", "2Gi", false),
        (false, "Failed", "1Gi", false),
        (true, "Running", "1Gi", true),
        (true, "Running", "2Gi", false),
    ] {
        let mut instance = instance(phase);
        let source = json!({"claimName": "root", "hotpluggable": hotpluggable});
        instance["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": source}]);
        let mut entry = json!({"name": "data", "persistentVolumeClaimInfo": info(before)});
        if hotpluggable {
            entry["phase"] = json!("Ready");
            entry["hotplugVolume"] = json!({"attachPodName": name, "attachPodUID": "h"});
        }
        instance["status"]["volumeStatus"] = json!([entry]);
        let mut scene = Scene::new(instance, &[pod("Running", true)]).volume(claim(), None);
        scene.attachments = hotpluggable.then(|| attachment(&name, true)).into_iter().collect();
        let patch = super::hotplug::patch(&scene.hotplug().1, &read(scene.instance.clone()));
        let found = patch
            .operations()
            .iter()
            .find(|one| one["path"] == "/status/volumeStatus/0/persistentVolumeClaimInfo");
        let capacity = found.map(|one| one["value"]["capacity"]["storage"].clone());
        let case = format!("{hotpluggable} {phase} {before}: {patch:?}");
        assert_eq!(capacity, written.then(|| json!("2Gi")), "{case}");
        assert!(found.is_none_or(|one| one["value"]["filesystemOverhead"] == "0.055"), "{case}");
    }
}

#[test]
fn attachment_pods_go_with_the_guest() {
    let volumes =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "root", "hotpluggable": true}}]);
    let name = crate::compute::launcher::attachment_name("u", "data", "root");
    for (phase, pods, deleted) in [
        ("Running", vec![pod("Running", true)], 0),
        ("Succeeded", vec![ended("Succeeded", 60)], 1),
        ("Running", vec![ended("Failed", 60)], 1),
    ] {
        let mut instance = instance(phase);
        instance["spec"]["volumes"] = volumes.clone();
        let mut scene = Scene::new(instance, &pods).volume(Some(json!({"status": {"phase": "Bound"}})), None);
        scene.attachments = vec![attachment(&name, true)];
        let steps = scene.hotplug().0.steps;
        let count = steps.iter().filter(|step| matches!(step, Step::DeleteAttachment { .. })).count();
        assert_eq!(count, deleted, "{phase}");
    }
}

#[test]
fn pod_that_the_namespace_does_not_allow_names_the_namespace() {
    let instance: Instance = read(instance("Pending"));
    let quota = "pods \"virt-launcher-vm\" is forbidden: exceeded quota";
    let level = "pods \"virt-launcher-vm\" is forbidden: violates PodSecurity \"restricted:latest\": x";
    for (error, status, text) in [
        (quota, quota.to_owned(), format!("Error creating pod: {quota}")),
        (
            level,
            format!("failed to create pod for vmi n/vm, it needs a privileged namespace to run: {level}"),
            format!(
                "failed to render launch manifest: failed to create pod for vmi n/vm, it needs a privileged namespace \
                 to run: {level}"
            ),
        ),
    ] {
        let (refused, event) = event::refused(&Step::CreatePod, &instance, error.to_owned());
        assert_eq!((refused.message, refused.attachment), (status, false));
        assert_eq!((event.reason, event.message), ("FailedCreate", text));
    }
}

#[test]
fn volume_that_cannot_come_or_go_is_a_condition_of_a_guest_that_runs() {
    let running = |conditions: Value| {
        let mut instance = instance("Running");
        instance["status"]["conditions"] = conditions;
        Scene::new(instance, &[pod("Running", true)])
    };
    let plain: Instance = read(instance("Running"));
    let create = Step::CreateAttachment { volume: "v".into(), claim: "c".into(), pod: "p".into() };
    let delete = Step::DeleteAttachment { name: "p".into(), uid: "u".into(), volume: "v".into() };
    let refused = |step: &Step| event::refused(step, &plain, "no".to_owned());
    let (failed, event) = refused(&create);
    assert_eq!(
        (failed.reason, failed.message.as_str()),
        ("FailedCreate", "Error creating attachment pod no")
    );
    assert_eq!((event.reason, event.message.as_str()), ("FailedCreate", "Error creating attachment pod: no"));
    let ready = "Ready=True/";
    let none = || running(json!([]));
    assert_eq!(conditions(&none(), Some(&failed)), ["Synchronized=False/FailedCreate", ready]);
    let (failed, event) = refused(&delete);
    assert_eq!(
        (event.reason, event.message.as_str()),
        ("FailedHotplugSync", "failed to delete attachment pods: no")
    );
    assert_eq!(conditions(&none(), Some(&failed)), ["Synchronized=False/FailedHotplugSync", ready]);
    // A pod that is deleted with the guest is not about a volume.
    let (other, _) = refused(&Step::DeletePod { name: "p".into(), uid: "u".into() });
    assert_eq!(conditions(&none(), Some(&other)), [ready]);
    let ours = running(json!([{"type": "Synchronized", "status": "False", "reason": "FailedHotplugSync"}]));
    assert_eq!(conditions(&ours, None), [ready]);
    let agents = "Synchronizing with the Domain failed.";
    let domain = json!([{"type": "Synchronized", "status": "False", "reason": agents}]);
    let kept = [format!("Synchronized=False/{agents}"), ready.to_owned()];
    for error in [None, Some(&failed)] {
        assert_eq!(conditions(&running(domain.clone()), error), kept);
    }
}
