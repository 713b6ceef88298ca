//! The status of a VirtualMachine, computed whole. Pure.

use super::dump;
use super::plan::{Failure, Observed, fails_start};
use super::printable::printable;
use super::snapshots;
use crate::compute::{clock, conditions};
use crate::view::{Condition, Instance, Machine, MachineStatus, StartFailure, condition, is_true};
use api::kubevirt::FlavorStatus;
use virt::instancetype::Which;
use virt::machine::{Strategy, spread};

/// Conditions that the VM controller decides on; all others are the instance's.
const OWN: [&str; 4] = ["Ready", "Failure", "RestartRequired", "ManualRecoveryRequired"];

/// Inputs of the status other than the observation.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// The failure of the last step, or the reason why there is none.
    pub(super) failure: Option<Failure>,
    /// An instance was created that was not observed.
    pub(super) creating: bool,
    /// A start request is appended.
    pub(super) queue_start: bool,
    /// Whether the template differs from the running instance in a field that needs a restart; `None` if that was not
    /// compared.
    pub(super) restart_required: Option<bool>,
}

/// The status.
pub(super) fn status(observed: &Observed<'_>, outcome: &Outcome) -> MachineStatus {
    let machine = observed.machine;
    let instance = observed.own_instance();
    let start_failure = start_failure(observed, instance);
    let failures = start_failure.as_ref().map_or(0, |failure| failure.consecutive_fail_count);
    let mut requests = observed.requests();
    if outcome.queue_start {
        virt::machine::request_start(&mut requests);
    }
    MachineStatus {
        printable_status: printable(observed, failures, outcome.creating).to_owned(),
        created: instance.is_some(),
        ready: instance.is_some_and(|instance| is_true(&instance.status.conditions, "Ready").is_some()),
        run_strategy: followed(observed),
        conditions: all_conditions(observed, outcome),
        state_change_requests: requests,
        start_failure,
        observed_generation: instance
            .and_then(Instance::generation_of_machine)
            .unwrap_or(machine.metadata.generation),
        desired_generation: machine.metadata.generation,
        instancetype_ref: kept(machine, Which::Instancetype),
        preference_ref: kept(machine, Which::Preference),
        volume_snapshot_statuses: snapshots::statuses(
            &machine.spec.template.spec.volumes,
            &observed.volumes,
            &observed.snapshot_classes,
        ),
        memory_dump_request: dump::request(observed),
    }
}

/// The revision that the VM keeps, while it refers to the object.
fn kept(machine: &Machine, which: Which) -> Option<FlavorStatus> {
    let (reference, status) = machine.flavor(which);
    reference.and(status).cloned()
}

/// The strategy that is followed. RerunOnFailure and Once start a VM once when they are chosen: they are followed when
/// the instance of that start exists.
fn followed(observed: &Observed<'_>) -> String {
    let strategy = observed.strategy();
    match strategy {
        Strategy::RerunOnFailure | Strategy::Once if observed.own_instance().is_none() => {
            observed.machine.status.run_strategy.clone()
        }
        Strategy::Always
        | Strategy::Halted
        | Strategy::Manual
        | Strategy::RerunOnFailure
        | Strategy::Once => strategy.word().to_owned(),
    }
}

/// Starts that failed in a row. An instance is counted once. One that ran clears the count, and so does a strategy that does
/// not start a failed instance again: the next start is a user's.
fn start_failure(observed: &Observed<'_>, instance: Option<&Instance>) -> Option<StartFailure> {
    if !observed.strategy().restarts() {
        return None;
    }
    let before = observed.machine.status.start_failure.clone();
    let Some(instance) = instance else { return before };
    if instance.has_run() {
        return None;
    }
    let uid = &instance.metadata.uid;
    if !fails_start(instance) || before.as_ref().is_some_and(|before| before.last_failed_uid == *uid) {
        return before;
    }
    let count = before.map_or(0, |before| before.consecutive_fail_count).saturating_add(1);
    // VMs that failed together are spread by their instances' uids.
    let chance = uid.bytes().fold(0_u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(u16::from(byte)));
    let retry = observed.now.saturating_add(spread(count, chance));
    Some(StartFailure {
        consecutive_fail_count: count,
        last_failed_uid: uid.clone(),
        retry_after_timestamp: clock::text(retry),
    })
}

fn all_conditions(observed: &Observed<'_>, outcome: &Outcome) -> Vec<Condition> {
    let mut all = observed.machine.status.conditions.clone();
    let now = observed.now;
    match observed.own_instance() {
        Some(instance) => {
            let of_instance = &instance.status.conditions;
            all.retain(|one| OWN.contains(&one.kind.as_str()) || condition(of_instance, &one.kind).is_some());
            for one in
                of_instance.iter().filter(|one| one.kind == "Ready" || !OWN.contains(&one.kind.as_str()))
            {
                conditions::copy(&mut all, one);
            }
            if condition(of_instance, "Ready").is_none() {
                let message = "virt-launcher pod has not yet been scheduled";
                conditions::set(&mut all, "Ready", "False", "PodNotExists", message, now);
            }
        }
        None => conditions::set(&mut all, "Ready", "False", "VMINotExists", "VMI does not exist", now),
    }
    match &outcome.failure {
        Some(failure) => conditions::set(&mut all, "Failure", "True", failure.reason, &failure.message, now),
        None => conditions::remove(&mut all, "Failure"),
    }
    match (observed.own_instance(), outcome.restart_required) {
        (Some(_), Some(true)) => {
            let message = "a non-live-updatable field was changed in the template spec";
            conditions::set(&mut all, "RestartRequired", "True", "RestartRequired", message, now);
        }
        (Some(_), None) => {}
        (Some(_), Some(false)) | (None, _) => conditions::remove(&mut all, "RestartRequired"),
    }
    all
}
