//! Steps of a VirtualMachineInstance, from what was observed. Pure; each step can be repeated.
//!
//! ```text
//!            CreatePod                 pod is ready             virt-agent
//! Pending ───────────────► Scheduling ─────────────► Scheduled ───────────► Running ──► Succeeded
//!    │                         │                         │                     │
//!    └──── DataVolume failed ──┴─────────── pod ended or is gone ──────────────┴──────► Failed
//! ```
//! The controller owns the phases up to Scheduled and records an end that virt-agent cannot. Not here: conditions.

use virt::status::pod::UNPAUSED;

use super::super::volumes::{Readiness, Volume};
use crate::compute::launcher::State;
use crate::compute::{clock, nodes};
use crate::storage::names::PROVISIONS;
use crate::view::{Instance, Node, Pod, is_true};

/// Finalizer that holds an instance until its pods are gone.
pub(in crate::compute) const FINALIZER: &str = virt::admission::FINALIZER;
/// Finalizer that holds it until its VM has seen its end.
pub(super) const MACHINE_FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
/// Seconds that virt-agent has to record how a guest ended after its pod did.
const AGENT_REPORTS: u64 = 5;
/// Seconds beyond the grace period of a deleted instance that virt-agent has to record its end.
const AGENT_STOPS: u64 = 15;
/// Seconds that the launcher of a guest that ended has to end by itself.
const LAUNCHER_ENDS: u64 = 30;
/// Seconds until it is looked again whether the claim for a guest's state is there, or gone.
const STATE_COMES: u64 = 5;
/// Grace period where an instance gives none, in seconds.
const GRACE: u64 = 30;

/// An instance and what belongs to it.
#[derive(Clone)]
pub(in crate::compute) struct Observed<'a> {
    pub(in crate::compute) instance: &'a Instance,
    /// Its launcher pods.
    pub(in crate::compute) pods: Vec<&'a Pod>,
    /// Its attachment pods.
    pub(in crate::compute) attachments: Vec<&'a Pod>,
    /// The pods were listed at the API server after the instance was observed: a missing one does not exist.
    pub(in crate::compute) pods_confirmed: bool,
    /// Volumes that are on claims.
    pub(in crate::compute) volumes: Vec<Volume<'a>>,
    /// The claim for what the guest keeps besides its disks.
    pub(in crate::compute) state: State<'a>,
    /// Filesystem overhead of claims, by StorageClass.
    pub(in crate::compute) overhead: &'a (dyn Fn(Option<&str>) -> Option<String> + Sync),
    /// Bytes that are requested for its launcher in addition to the guest's memory, where that is known.
    pub(in crate::compute) memory_overhead: Option<u64>,
    /// The VM that controls it exists.
    pub(in crate::compute) owner_exists: bool,
    /// The node that it was placed on.
    pub(in crate::compute) node: Option<&'a Node>,
    /// Seconds since 1970.
    pub(in crate::compute) now: u64,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the claim for what the guest keeps besides its disks.
    CreateState,
    /// Create the launcher pod.
    CreatePod,
    /// Create the pod that only makes the volumes be placed and filled.
    CreateProvisioner,
    /// Delete a pod.
    DeletePod { name: String, uid: String },
    /// Create the attachment pod of a volume.
    CreateAttachment { volume: String, claim: String, pod: String },
    /// Delete the attachment pod of a volume.
    DeleteAttachment { name: String, uid: String, volume: String },
    /// Open or close the readiness gate of a pod: it is the condition at this place, or a new one.
    Gate { pod: String, uid: String, place: Option<usize>, open: bool },
    /// Write the networks of a pod, which are as they were read.
    Networks { pod: String, uid: String, before: String, after: String },
    /// List the pods at the API server and plan again.
    ConfirmPods,
    /// Remove these finalizers.
    Release(Vec<&'static str>),
    /// Look again at this time, in seconds since 1970.
    Wait(u64),
}

/// A phase that the controller decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// As it is.
    Kept,
    Pending,
    Scheduling,
    Scheduled,
    Succeeded,
    Failed,
}

/// Steps in their order, and the phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) phase: Phase,
    /// `status.reason` of a phase Failed.
    pub(super) reason: Option<&'static str>,
    pub(super) steps: Vec<Step>,
}

/// The obstacle between a pending instance and its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// Nothing.
    Usable,
    /// DataVolumes that are filled once the launcher pod uses them.
    Consumable,
    /// DataVolumes that need another pod to be filled.
    NeedsProvisioner,
    /// DataVolumes that are being filled.
    Waits,
    /// This claim does not exist.
    Missing(String),
    /// This DataVolume failed.
    Failed(String),
}

impl Observed<'_> {
    /// The pod of the guest: one that has not ended, else the last one.
    pub(super) fn launcher(&self) -> Option<&Pod> {
        let launchers = || self.pods.iter().copied().filter(|pod| !is_provisioner(pod));
        launchers().find(|pod| !pod.is_down()).or_else(|| launchers().next_back())
    }

    /// The most advanced obstacle of all volumes.
    pub(super) fn storage(&self) -> Storage {
        let mut worst = Storage::Usable;
        for volume in &self.volumes {
            let name = || volume.claim_name.to_owned();
            worst = match (volume.readiness(), worst) {
                (_, Storage::Failed(name)) => Storage::Failed(name),
                (Readiness::Failed, _) => Storage::Failed(name()),
                (_, Storage::Missing(name)) => Storage::Missing(name),
                (Readiness::Missing, _) => Storage::Missing(name()),
                (Readiness::Waits, _) | (_, Storage::Waits) => Storage::Waits,
                (Readiness::ConsumableEmpty, _) | (_, Storage::NeedsProvisioner) => Storage::NeedsProvisioner,
                (Readiness::Consumable, _) | (_, Storage::Consumable) => Storage::Consumable,
                (Readiness::Usable, Storage::Usable) => Storage::Usable,
            };
        }
        worst
    }

    /// Whether the guest needs CPUs of the node to itself, and its pod runs without being Guaranteed: the kubelet's CPU manager
    /// gives it none.
    pub(super) fn lacks_guarantee(&self) -> bool {
        let lacks = |pod: &Pod| pod.compute_runs() && pod.status.qos_class != "Guaranteed";
        self.instance.spec.is_dedicated && self.launcher().is_some_and(lacks)
    }

    /// Whether the agent of the instance's node has stopped reporting.
    pub(super) fn node_unresponsive(&self) -> bool {
        self.node.is_some_and(|node| nodes::plan::is_unresponsive(node, self.now))
    }
}

/// Whether a pod only makes volumes be filled.
pub(super) fn is_provisioner(pod: &Pod) -> bool {
    pod.metadata.annotation(PROVISIONS).is_some()
}

/// The step after which the readiness gate of the launcher pod is open unless the guest is paused, as in KubeVirt.
fn gate(observed: &Observed<'_>) -> Option<Step> {
    let pod = observed.launcher().filter(|pod| !pod.is_down() && !pod.metadata.deleting())?;
    // The API server makes no empty list of conditions: the scheduler writes the first.
    let gates = !pod.status.conditions.is_empty()
        && pod.spec.readiness_gates.iter().any(|gate| gate.condition_type == UNPAUSED);
    let instance = observed.instance;
    let waits = instance.spec.starts_paused && instance.status.phase != "Running";
    let open = !waits && is_true(&instance.status.conditions, "Paused").is_none();
    let place = pod.status.conditions.iter().position(|condition| condition.kind == UNPAUSED);
    let is_open = place.is_some_and(|place| pod.status.conditions[place].status == "True");
    (gates && open != is_open).then(|| Step::Gate {
        pod: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        place,
        open,
    })
}

/// The steps of an instance.
pub(super) fn plan(observed: &Observed<'_>) -> Plan {
    let mut steps = Vec::new();
    let (phase, reason) = next_phase(observed, &mut steps);
    let ends = matches!(phase, Phase::Succeeded | Phase::Failed) || observed.instance.is_final();
    if observed.instance.metadata.deleting() {
        stop(observed, ends, &mut steps);
    } else if ends {
        clean(observed, &mut steps);
    } else {
        steps.extend(gate(observed));
    }
    for pod in observed.pods.iter().filter(|pod| is_provisioner(pod) && !pod.metadata.deleting()) {
        let unused = ends || pod.is_down() || observed.storage() != Storage::NeedsProvisioner;
        if unused {
            steps.push(delete(pod));
        }
    }
    Plan { phase, reason, steps }
}

fn next_phase(observed: &Observed<'_>, steps: &mut Vec<Step>) -> (Phase, Option<&'static str>) {
    let instance = observed.instance;
    let launcher = observed.launcher();
    match instance.status.phase.as_str() {
        "" | "Pending" => (pending(observed, launcher, steps), None),
        "Scheduling" => match launcher {
            None => gone(observed, steps),
            Some(pod) if pod.is_down() => (Phase::Failed, None),
            Some(pod)
                if pod.compute_runs()
                    && !pod.metadata.deleting()
                    && is_filled(observed)
                    && !observed.lacks_guarantee() =>
            {
                (Phase::Scheduled, None)
            }
            Some(_) => (Phase::Kept, None),
        },
        "Succeeded" | "Failed" => (Phase::Kept, None),
        _ => match launcher {
            None => gone(observed, steps),
            Some(pod) if pod.is_down() => down(observed, pod, steps),
            Some(_) => (Phase::Kept, None),
        },
    }
}

/// Whether every volume has its content. A claim that the launcher pod consumes may be bound before its DataVolume is done:
/// to a volume that was not filled for it.
fn is_filled(observed: &Observed<'_>) -> bool {
    matches!(observed.storage(), Storage::Usable | Storage::Missing(_))
}

fn pending(observed: &Observed<'_>, launcher: Option<&Pod>, steps: &mut Vec<Step>) -> Phase {
    let storage = observed.storage();
    if launcher.is_some() {
        return Phase::Scheduling;
    }
    if observed.instance.metadata.deleting() || matches!(storage, Storage::Failed(_)) {
        return Phase::Failed;
    }
    match storage {
        Storage::Usable | Storage::Consumable => match observed.state {
            State::Unneeded | State::There(_) => {
                steps.push(Step::CreatePod);
                Phase::Scheduling
            }
            State::Missing | State::Going => {
                if matches!(observed.state, State::Missing) {
                    steps.push(Step::CreateState);
                }
                steps.push(Step::Wait(observed.now.saturating_add(STATE_COMES)));
                Phase::Pending
            }
        },
        Storage::NeedsProvisioner => {
            if !observed.pods.iter().any(|pod| is_provisioner(pod)) {
                steps.push(Step::CreateProvisioner);
            }
            Phase::Pending
        }
        Storage::Waits | Storage::Missing(_) | Storage::Failed(_) => Phase::Pending,
    }
}

/// The pod of a placed instance is not in the cache.
fn gone(observed: &Observed<'_>, steps: &mut Vec<Step>) -> (Phase, Option<&'static str>) {
    if !observed.pods_confirmed {
        steps.push(Step::ConfirmPods);
        return (Phase::Kept, None);
    }
    (Phase::Failed, observed.node_unresponsive().then_some("NodeUnresponsive"))
}

/// The pod of a placed instance ended. The agent, which knows how the guest ended, is given time to report it.
fn down(observed: &Observed<'_>, pod: &Pod, steps: &mut Vec<Step>) -> (Phase, Option<&'static str>) {
    let terminated = pod.compute().and_then(|compute| compute.state.terminated.as_ref());
    let finished = terminated.and_then(|terminated| clock::seconds(terminated.finished_at.as_deref()?));
    let deadline = finished.unwrap_or(0).saturating_add(AGENT_REPORTS);
    if deadline > observed.now && !observed.node_unresponsive() {
        steps.push(Step::Wait(deadline));
        return (Phase::Kept, None);
    }
    let ran = observed.instance.status.phase == "Running";
    if ran && pod.status.phase == "Succeeded" {
        return (Phase::Succeeded, None);
    }
    (Phase::Failed, observed.node_unresponsive().then_some("NodeUnresponsive"))
}

/// An instance is being deleted: its guest is stopped by the agent, then its pods are deleted, then it is let go.
fn stop(observed: &Observed<'_>, ends: bool, steps: &mut Vec<Step>) {
    let instance = observed.instance;
    let left = observed.pods.to_vec();
    if left.is_empty() {
        if ends && observed.pods_confirmed {
            let mut finalizers = Vec::new();
            if instance.metadata.has_finalizer(FINALIZER) {
                finalizers.push(FINALIZER);
            }
            if instance.metadata.has_finalizer(MACHINE_FINALIZER) && !observed.owner_exists {
                finalizers.push(MACHINE_FINALIZER);
            }
            if !finalizers.is_empty() {
                steps.push(Step::Release(finalizers));
            }
        } else if ends && !steps.contains(&Step::ConfirmPods) && holds(observed) {
            steps.push(Step::ConfirmPods);
        }
        return;
    }
    let guest = matches!(instance.status.phase.as_str(), "Scheduled" | "Running" | "Unknown");
    let deleted = instance.metadata.deletion_timestamp.as_deref().and_then(clock::seconds).unwrap_or(0);
    let grace = instance.spec.termination_grace_period_seconds.unwrap_or(GRACE);
    let deadline = deleted.saturating_add(grace).saturating_add(AGENT_STOPS);
    if guest && !ends && deadline > observed.now && !observed.node_unresponsive() {
        steps.push(Step::Wait(deadline));
        return;
    }
    for pod in left.into_iter().filter(|pod| !pod.metadata.deleting() && !is_provisioner(pod)) {
        steps.push(delete(pod));
    }
}

/// Whether a finalizer of the controller holds the instance.
fn holds(observed: &Observed<'_>) -> bool {
    let metadata = &observed.instance.metadata;
    metadata.has_finalizer(FINALIZER) || (metadata.has_finalizer(MACHINE_FINALIZER) && !observed.owner_exists)
}

/// A guest has ended: its pod ends by itself and stays for its logs; one that does not is deleted.
fn clean(observed: &Observed<'_>, steps: &mut Vec<Step>) {
    let last = observed.instance.status.phase_transition_timestamps.last();
    let ended =
        last.and_then(|last| clock::seconds(&last.phase_transition_timestamp)).unwrap_or(observed.now);
    let deadline = ended.saturating_add(LAUNCHER_ENDS);
    for pod in &observed.pods {
        if pod.is_down() || pod.metadata.deleting() || is_provisioner(pod) {
            continue;
        }
        if deadline > observed.now {
            steps.push(Step::Wait(deadline));
        } else {
            steps.push(delete(pod));
        }
    }
}

fn delete(pod: &Pod) -> Step {
    Step::DeletePod { name: pod.metadata.name.clone(), uid: pod.metadata.uid.clone() }
}
