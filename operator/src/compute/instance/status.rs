//! The status of a VirtualMachineInstance, as far as the controller decides on it. Pure.

use std::collections::BTreeMap;

use api::kubevirt::VolumeStatus;
use api::quantity;
use api::resource::Quantity;
use virt::status::pod as gate;

use super::plan::{Observed, Phase, Plan, Storage};
use super::volumes;
use crate::compute::{clock, conditions};
use crate::view::{Condition, InterfaceStatus, PhaseTransition, Pod, condition, is_false, is_true};

/// Reasons of Synchronized=False that the controller sets, and removes when they no longer hold.
const OWN_REASONS: [&str; 9] = [
    "FailedCreate",
    "FailedHotplugSync",
    "FailedBackendStorageCreate",
    "FailedPvcNotFound",
    "ErrImagePull",
    "ImagePullBackOff",
    "FailedDataVolume",
    "FailedVolume",
    NOT_GUARANTEED,
];
/// Reason of Synchronized=False, and of an event, while a guest with dedicated CPUs has a pod that is not Guaranteed.
pub(super) const NOT_GUARANTEED: &str = "FailedGuaranteeResources";
/// User that a guest runs as.
const RUNTIME_USER: u32 = 107;

/// Why no launcher pod, or no claim that it needs, could be created, or no attachment pod created or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreateError {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// It is about the attachment pod of a guest that runs.
    pub(super) attachment: bool,
}

/// The part of a status that the controller decides on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Desired {
    pub(super) phase: String,
    pub(super) reason: Option<String>,
    pub(super) conditions: Vec<Condition>,
    pub(super) phase_transition_timestamps: Vec<PhaseTransition>,
    /// Set when the instance is handed to the agent of a node.
    pub(super) placement: Option<Placement>,
}

/// Where an instance runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placement {
    pub(super) node: String,
    /// uid of the pod to name of the node.
    pub(super) active_pods: BTreeMap<String, String>,
    pub(super) interfaces: Vec<InterfaceStatus>,
    pub(super) volumes: Vec<VolumeStatus>,
    pub(super) image: Option<String>,
    pub(super) qos_class: Option<String>,
    pub(super) memory_overhead: Option<Quantity>,
    pub(super) runtime_user: u32,
}

/// The status that follows from a plan. `error`: the pod could not be created.
pub(super) fn status(observed: &Observed<'_>, plan: &Plan, error: Option<&CreateError>) -> Desired {
    let before = &observed.instance.status;
    let phase = match (plan.phase, error) {
        (Phase::Scheduling, Some(_)) => "Pending",
        (Phase::Kept, _) if before.phase.is_empty() => "Pending",
        (Phase::Kept, _) => &before.phase,
        (Phase::Pending, _) => "Pending",
        (Phase::Scheduling, None) => "Scheduling",
        (Phase::Scheduled, _) => "Scheduled",
        (Phase::Succeeded, _) => "Succeeded",
        (Phase::Failed, _) => "Failed",
    };
    let mut transitions = before.phase_transition_timestamps.clone();
    if phase != before.phase {
        transitions.push(PhaseTransition {
            phase: phase.to_owned(),
            phase_transition_timestamp: clock::text(observed.now),
        });
    }
    let placement =
        (plan.phase == Phase::Scheduled).then(|| observed.launcher().map(|pod| place(observed, pod)));
    Desired {
        phase: phase.to_owned(),
        reason: plan.reason.map(str::to_owned).or_else(|| before.reason.clone()),
        conditions: all_conditions(observed, phase, error),
        phase_transition_timestamps: transitions,
        placement: placement.flatten(),
    }
}

fn place(observed: &Observed<'_>, pod: &Pod) -> Placement {
    let node = pod.spec.node_name.clone();
    let addresses: Vec<String> = pod.status.pod_ips.iter().map(|one| one.ip.clone()).collect();
    let on_pod_network = observed.instance.spec.networks.iter().find(|network| network.pod.is_some());
    let interfaces = match (on_pod_network, addresses.first()) {
        (Some(network), Some(first)) => vec![InterfaceStatus {
            name: network.name.clone(),
            ip_address: first.clone(),
            ip_addresses: addresses.clone(),
            pod_interface_name: "eth0".to_owned(),
        }],
        _ => Vec::new(),
    };
    Placement {
        active_pods: BTreeMap::from([(pod.metadata.uid.clone(), node.clone())]),
        node,
        interfaces,
        volumes: volumes::status(observed),
        image: Some(pod.spec.compute_image.clone()).filter(|image| !image.is_empty()),
        memory_overhead: observed.memory_overhead.map(|bytes| Quantity(quantity::text(bytes))),
        qos_class: Some(pod.status.qos_class.clone()).filter(|class| !class.is_empty()),
        runtime_user: RUNTIME_USER,
    }
}

fn all_conditions(observed: &Observed<'_>, phase: &str, error: Option<&CreateError>) -> Vec<Condition> {
    let mut all = observed.instance.status.conditions.clone();
    let now = observed.now;
    let launcher = observed.launcher();
    let early = matches!(phase, "Pending" | "Scheduling");
    if early {
        storage(observed, &mut all);
        pod_scheduled(observed, launcher, &mut all);
        synchronized(observed, launcher, error, &mut all);
    } else {
        conditions::remove(&mut all, "Provisioning");
        conditions::remove(&mut all, "PodScheduled");
        let ours = is_false(&all, "Synchronized").is_some_and(|reason| OWN_REASONS.contains(&reason));
        match error.filter(|error| error.attachment) {
            // The agent's report about the guest is more than a volume that does not come or go.
            Some(error) if ours || is_false(&all, "Synchronized").is_none() => {
                conditions::set(&mut all, "Synchronized", "False", error.reason, &error.message, now);
            }
            None if ours && matches!(phase, "Scheduled" | "Running") => {
                conditions::remove(&mut all, "Synchronized");
            }
            Some(_) | None => {}
        }
    }
    if phase == "Failed"
        && let Storage::Failed(name) = observed.storage()
        && observed.instance.status.phase != "Failed"
        && !observed.instance.has_run()
    {
        let message = format!("DataVolume {name} failed: see its conditions");
        conditions::set(&mut all, "Synchronized", "False", "FailedDataVolume", &message, now);
    }
    ready(observed, launcher.filter(|pod| !pod.is_down()), phase, &mut all);
    all
}

fn ready(observed: &Observed<'_>, launcher: Option<&Pod>, phase: &str, all: &mut Vec<Condition>) {
    let now = observed.now;
    let paused = is_true(all, "Paused").is_some();
    let mut no = |reason, message| conditions::set(all, "Ready", "False", reason, message, now);
    let Some(pod) = launcher else {
        return match phase {
            // The pod was created just now and is not in the cache.
            "Scheduling" => no("GuestNotRunning", "Guest VM is not reported as running"),
            _ => no("PodNotExists", "virt-launcher pod has not yet been scheduled"),
        };
    };
    if pod.metadata.deleting() {
        return no("PodTerminating", "virt-launcher pod is terminating");
    }
    if phase != "Running" {
        return no("GuestNotRunning", "Guest VM is not reported as running");
    }
    if paused {
        return no(gate::NOT_UNPAUSED, &gate::not_unpaused());
    }
    let Some(of_pod) = condition(&pod.status.conditions, "Ready") else {
        return no("PodConditionMissing", "virt-launcher pod is missing the Ready condition");
    };
    let reason = of_pod.reason.as_deref().unwrap_or_default();
    let message = of_pod.message.as_deref().unwrap_or_default();
    conditions::set(all, "Ready", &of_pod.status, reason, message, now);
}

fn storage(observed: &Observed<'_>, all: &mut Vec<Condition>) {
    let now = observed.now;
    if observed.volumes.iter().any(|volume| volume.named_data_volume) {
        let (status, reason, message) = if observed.storage() == Storage::Usable {
            ("True", "AllDVsReady", "All of the VMI's DVs are bound and ready")
        } else {
            ("False", "NotAllDVsReady", "Not all of the VMI's DVs are ready")
        };
        conditions::set(all, "DataVolumesReady", status, reason, message, now);
    }
    if matches!(observed.storage(), Storage::Consumable | Storage::NeedsProvisioner) {
        conditions::set(all, "Provisioning", "True", "", "", now);
    } else {
        conditions::remove(all, "Provisioning");
    }
}

fn pod_scheduled(observed: &Observed<'_>, launcher: Option<&Pod>, all: &mut Vec<Condition>) {
    const KIND: &str = "PodScheduled";
    if let Storage::Missing(name) = observed.storage() {
        let message = format!("failed to create virtual machine pod: PVC {name} not found");
        return conditions::set(all, KIND, "False", "Unschedulable", &message, observed.now);
    }
    let refused = launcher.and_then(|pod| condition(&pod.status.conditions, KIND));
    match refused.filter(|condition| condition.status == "False") {
        Some(refused) => {
            let reason = refused.reason.as_deref().unwrap_or_default();
            let message = refused.message.as_deref().unwrap_or_default();
            conditions::set(all, KIND, "False", reason, message, observed.now);
        }
        None => conditions::remove(all, KIND),
    }
}

fn synchronized(
    observed: &Observed<'_>,
    launcher: Option<&Pod>,
    error: Option<&CreateError>,
    all: &mut Vec<Condition>,
) {
    const KIND: &str = "Synchronized";
    let mut no =
        |reason: &str, message: &str| conditions::set(all, KIND, "False", reason, message, observed.now);
    if let Some(error) = error {
        return no(error.reason, &error.message);
    }
    if let Storage::Missing(name) = observed.storage() {
        return no("FailedPvcNotFound", &format!("PVC {name} not found"));
    }
    match launcher.and_then(Pod::image_problem) {
        Some(problem) if problem.reason == "ImagePullBackOff" => no("ImagePullBackOff", &problem.message),
        Some(problem) => no("ErrImagePull", &problem.message),
        None if observed.lacks_guarantee() => no(NOT_GUARANTEED, "failed to guarantee pod resources"),
        None => {
            if is_false(all, KIND).is_some_and(|reason| OWN_REASONS.contains(&reason)) {
                conditions::remove(all, KIND);
            }
        }
    }
}
