//! Steps of a VirtualMachine, from what is wanted and what was observed. Pure; each step can be repeated.
//!
//! ```text
//! no instance ──CreateInstance──► instance ──DeleteInstance──► deleting ──DropRevision, ReleaseInstance──► no instance
//! ```
//! When there is an instance is decided by [`virt::machine`], for the single machine too. Here: finalizers, what is
//! refused, and DataVolumes one by one. Not here: the status.

use std::collections::BTreeSet;

use super::super::volumes::{Readiness, Volume};
use crate::compute::clock;
use crate::view::{Instance, Machine};
use api::kubevirt::StateChangeRequest;
use virt::instancetype::Which;
use virt::machine::{self, RunOf, Strategy};

/// Finalizer of VMs and of their instances that the VM controller removes.
pub(super) const FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";
/// Annotation of a VM: `"false"` delays its DataVolumes until it is started.
const IMMEDIATE_DATA_VOLUMES: &str = "kubevirt.io/immediate-data-volume-creation";
/// Finalizer that `kubectl delete --cascade=orphan` sets.
const ORPHAN: &str = "orphan";

/// A VM and what belongs to it.
#[derive(Clone, Debug)]
pub(in crate::compute) struct Observed<'a> {
    pub(in crate::compute) machine: &'a Machine,
    /// The instance of its name.
    pub(in crate::compute) instance: Option<&'a Instance>,
    /// Volumes of its template that are on claims.
    pub(in crate::compute) volumes: Vec<Volume<'a>>,
    /// Volumes that `dataVolumeTemplates` asks for.
    pub(in crate::compute) templates: Vec<Volume<'a>>,
    /// Storage classes with volumes that can be snapshotted.
    pub(in crate::compute) snapshot_classes: BTreeSet<String>,
    /// VMs have no references to instance types and preferences, but their values.
    pub(in crate::compute) expand_all: bool,
    /// Seconds since 1970.
    pub(in crate::compute) now: u64,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Hold the VM until its instance is gone.
    AddFinalizer,
    /// Let the VM go.
    RemoveFinalizer,
    /// Create the DataVolume of this template.
    CreateDataVolume(String),
    /// Store the instance type or preference in a ControllerRevision and name that in the status.
    KeepFlavor(Which),
    /// Write instance type and preference into the template, in place of the references.
    Expand,
    /// Store the template in a ControllerRevision and create the instance.
    CreateInstance { paused: bool },
    /// Delete the instance.
    DeleteInstance,
    /// Delete the ControllerRevision of this name, which an instance that ended was started from.
    DropRevision(String),
    /// Remove the VM's finalizer from the instance.
    ReleaseInstance,
    /// Append a start request to the status.
    QueueStart,
    /// Change the run strategy from Halted to Always.
    RunAlways,
    /// Attach the claim that the guest's memory is dumped to.
    AttachDump(String),
    /// Detach it, and write on it what it holds.
    DetachDump { claim: String, note: Option<String> },
    /// Look again at this time, in seconds since 1970.
    Wait(u64),
}

/// The reason why a VM is not acted on, for its condition Failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Steps in their order, and what stands in the way of more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) failure: Option<Failure>,
}

impl Observed<'_> {
    /// The instance, if it is this VM's.
    pub(in crate::compute) fn own_instance(&self) -> Option<&Instance> {
        self.instance.filter(|instance| self.owns(instance))
    }

    fn owns(&self, instance: &Instance) -> bool {
        instance.metadata.controller().is_some_and(|owner| owner.uid == self.machine.metadata.uid)
    }

    /// Requests that are not fulfilled: a stop while its instance exists, a start until an instance lives.
    pub(super) fn requests(&self) -> Vec<StateChangeRequest> {
        let mut left = self.machine.status.state_change_requests.clone();
        let instance = self.own_instance();
        machine::drop_fulfilled(&mut left, instance.map(|instance| instance.metadata.uid.as_str()));
        let lives = |instance: &Instance| !instance.metadata.deleting() && !instance.is_final();
        if instance.is_some_and(lives) && !left.iter().any(|request| request.action == "Stop") {
            left.retain(|request| request.action != "Start");
        }
        left
    }

    /// As the rules for all VMs need it.
    fn found(&self) -> machine::Machine {
        let requests = self.requests();
        let status = &self.machine.status;
        let run = self.own_instance().map(|instance| RunOf {
            deleting: instance.metadata.deleting(),
            failed: instance.is_final().then(|| instance.status.phase == "Failed"),
            once: false,
        });
        let ready = |volume: &Volume<'_>| match volume.readiness() {
            Readiness::Usable | Readiness::Consumable | Readiness::ConsumableEmpty => true,
            Readiness::Waits | Readiness::Missing | Readiness::Failed => false,
        };
        machine::Machine {
            strategy: self.strategy(),
            followed: Strategy::ALL.into_iter().find(|one| one.word() == status.run_strategy),
            deleting: self.machine.metadata.deleting(),
            start: machine::wants_start(&requests),
            once: false,
            stop: self.own_instance().is_some_and(|one| machine::wants_stop(&requests, &one.metadata.uid)),
            run,
            templates: self.missing_templates().next().is_none(),
            owns: false,
            networks: false,
            ready: self.templates.iter().all(ready),
            retry: status.start_failure.as_ref().and_then(|one| clock::seconds(&one.retry_after_timestamp)),
            now: self.now,
        }
    }

    /// The strategy that the spec asks for.
    pub(super) fn strategy(&self) -> Strategy {
        Strategy::of(self.machine.spec.running, self.machine.spec.run_strategy.as_deref())
    }

    /// Whether the strategy and the requests ask for an instance where there is none.
    pub(super) fn start_wanted(&self) -> bool {
        let able = machine::Machine { run: None, templates: true, ready: true, retry: None, ..self.found() };
        machine::machine(&able).contains(&machine::Step::MakeRun)
    }

    /// Templates without a DataVolume. A claim without one was filled before, or by another controller.
    fn missing_templates(&self) -> impl Iterator<Item = &Volume<'_>> {
        self.templates.iter().filter(|volume| volume.data_volume.is_none() && volume.claim.is_none())
    }
}

/// The steps of a VM.
pub(super) fn plan(observed: &Observed<'_>) -> Plan {
    let machine = observed.machine;
    if machine.metadata.deleting() {
        return Plan { steps: deletion(observed), failure: None };
    }
    let mut steps = Vec::new();
    if !machine.metadata.has_finalizer(FINALIZER) {
        steps.push(Step::AddFinalizer);
    }
    if let Some(failure) = refusal(observed) {
        return Plan { steps, failure: Some(failure) };
    }
    let unkept: Vec<Step> =
        Which::BOTH.into_iter().filter(|which| !is_kept(machine, *which)).map(Step::KeepFlavor).collect();
    if !unkept.is_empty() {
        // Everything else depends on them, and a VM keeps the revisions that it has seen first.
        steps.extend(unkept);
        return Plan { steps, failure: None };
    }
    let mut found = observed.found();
    let delayed = machine.metadata.annotation(IMMEDIATE_DATA_VOLUMES) == Some("false");
    if delayed && found.run.is_none() && !observed.start_wanted() {
        found.templates = true;
    }
    for step in machine::machine(&found) {
        match step {
            machine::Step::MakeVolumes => {
                let missing = observed.missing_templates();
                steps.extend(missing.map(|volume| Step::CreateDataVolume(volume.claim_name.to_owned())));
            }
            machine::Step::MakeRun => steps.push(Step::CreateInstance { paused: paused(observed) }),
            // A failed start is counted in the status before its instance goes.
            machine::Step::EndRun | machine::Step::QueueStart if uncounted(observed) => {}
            machine::Step::EndRun => steps.push(Step::DeleteInstance),
            machine::Step::SwitchOn => steps.push(Step::RunAlways),
            machine::Step::QueueStart => steps.push(Step::QueueStart),
            machine::Step::Wait(time) => steps.push(Step::Wait(time)),
            // The status reports these once their effect is seen; garbage collection does the others.
            machine::Step::DropStart
            | machine::Step::Follow
            | machine::Step::RemoveNetworks
            | machine::Step::RemoveVolumes
            | machine::Step::Remove => {}
        }
    }
    if let Some(instance) = observed.own_instance().filter(|instance| instance.metadata.deleting()) {
        steps.extend(release(observed, instance));
    }
    if observed.expand_all && Which::BOTH.into_iter().any(|which| machine.flavor(which).0.is_some()) {
        // First of what needs the template; an instance is stopped also where its type cannot be read.
        let of_template =
            |step: &Step| matches!(step, Step::CreateDataVolume(_) | Step::CreateInstance { .. });
        let at = steps.iter().position(of_template).unwrap_or(steps.len());
        steps.insert(at, Step::Expand);
    }
    Plan { steps, failure: None }
}

/// Whether the status names a revision of what the VM refers to.
pub(super) fn is_kept(machine: &Machine, which: Which) -> bool {
    let (reference, status) = machine.flavor(which);
    let Some(reference) = reference else { return true };
    status.is_some_and(|status| {
        status.name == reference.name
            && status.kind == reference.kind
            && status.controller_revision_ref.as_ref().is_some_and(|revision| revision.name.is_some())
    })
}

/// Whether the start request asks for a paused guest.
fn paused(observed: &Observed<'_>) -> bool {
    let requests = observed.requests();
    let start = requests.iter().find(|request| request.action == "Start");
    start.is_some_and(|request| request.data.get("paused").is_some_and(|value| value == "true"))
}

/// Features of a VM that this release does not support.
fn refusal(observed: &Observed<'_>) -> Option<Failure> {
    let machine = observed.machine;
    let failure = |reason, message: String| Some(Failure { reason, message });
    if let Some(instance) = observed.instance.filter(|instance| !observed.owns(instance)) {
        let message = format!(
            "VirtualMachineInstance {} exists and does not belong to this VirtualMachine: delete it or rename the \
             VirtualMachine",
            instance.metadata.name
        );
        return failure("FailedCreate", message);
    }
    if machine.spec.run_strategy.as_deref() == Some("WaitAsReceiver") {
        let message = "spec.runStrategy: WaitAsReceiver is not supported: use Always, RerunOnFailure, Manual, Halted or \
                       Once";
        return failure("UnsupportedRunStrategy", message.to_owned());
    }
    None
}

fn deletion(observed: &Observed<'_>) -> Vec<Step> {
    let machine = observed.machine;
    if machine.metadata.has_finalizer(ORPHAN) {
        let release = observed.own_instance().filter(|instance| instance.metadata.has_finalizer(FINALIZER));
        return release
            .map(|_| Step::ReleaseInstance)
            .into_iter()
            .chain(machine.metadata.has_finalizer(FINALIZER).then_some(Step::RemoveFinalizer))
            .collect();
    }
    match observed.own_instance() {
        Some(instance) if instance.metadata.deleting() => release(observed, instance),
        Some(_) => vec![Step::DeleteInstance],
        None if machine.metadata.has_finalizer(FINALIZER) => vec![Step::RemoveFinalizer],
        None => Vec::new(),
    }
}

/// Name of the revision that a start is from.
pub(super) fn revision_name(uid: &str, generation: u64) -> String {
    format!("revision-start-vm-{uid}-{generation}")
}

/// An instance that ended is let go, after the revision of its start. Those of a deleted VM are garbage collected.
fn release(observed: &Observed<'_>, instance: &Instance) -> Vec<Step> {
    let machine = &observed.machine.metadata;
    let ready = instance.metadata.has_finalizer(FINALIZER)
        && instance.is_final()
        && (!uncounted(observed) || machine.deleting());
    if !ready {
        return Vec::new();
    }
    let started = instance.generation_of_machine().filter(|_| !machine.deleting());
    let revision = started.map(|generation| Step::DropRevision(revision_name(&machine.uid, generation)));
    revision.into_iter().chain([Step::ReleaseInstance]).collect()
}

/// Whether the instance is a failed start that the status is to count and does not count yet.
fn uncounted(observed: &Observed<'_>) -> bool {
    let last = observed.machine.status.start_failure.as_ref().map(|failure| failure.last_failed_uid.as_str());
    let new = |instance: &Instance| fails_start(instance) && last != Some(&instance.metadata.uid);
    observed.strategy().restarts() && observed.own_instance().is_some_and(new)
}

/// Whether an instance failed before its guest ran. One that was deleted before is stopped, not failed.
pub(super) fn fails_start(instance: &Instance) -> bool {
    let failed = instance.status.phase_transition_timestamps.iter().find(|one| one.phase == "Failed");
    let failed = failed.map(|one| one.phase_transition_timestamp.as_str());
    let stopped =
        instance.metadata.deletion_timestamp.as_deref().is_some_and(|deleted| Some(deleted) <= failed);
    instance.status.phase == "Failed" && !instance.has_run() && !stopped
}
