//! VMs: the steps of [`virt::machine`] as actions, the status, and what of the template reaches a run that goes on.

use std::sync::Arc;

use api::cdi::DataVolume;
use api::kind::Kind;
use api::kubevirt::{
    StateChangeRequest, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceStatus,
};
use api::resource::ObjectMeta;

use super::{Action, Attempt, Object};
use crate::daemon::claim::Filled;
use crate::daemon::metadata::owner;
use crate::daemon::object::Stored;
use crate::daemon::start_request::{ONCE, PAUSED, is_asked, set_strategy};
use virt::live::{self, needs_restart};
use virt::machine::{self, FINAL, Machine, RunOf, Step, Strategy, phase, request_start};
use virt::printable::{self, Facts, Instance};
use virt::{status, time};

/// Condition of a VM with another template than its run, and the reason of its event.
const RESTART: &str = "RestartRequired";
/// Annotation of a run that was started once, without regard to the strategy of its VM.
const STARTED_ONCE: &str = "ferrovirt.io/started-once";

/// The facts about a VM.
#[derive(Clone, Debug)]
pub(in crate::daemon) struct Observed<'a> {
    pub(in crate::daemon) machine: &'a VirtualMachine,
    /// Its own run.
    pub(in crate::daemon) run: Option<&'a VirtualMachineInstance>,
    /// DataVolumes that it owns.
    pub(in crate::daemon) volumes: &'a [Arc<DataVolume>],
    /// Names of its templates without a DataVolume.
    pub(in crate::daemon) missing: Vec<String>,
    /// How the claims of its template stand, the worst first.
    pub(in crate::daemon) stand: Filled,
    /// Something of its networks is left.
    pub(in crate::daemon) networks: bool,
    pub(in crate::daemon) attempt: Attempt,
}

impl Observed<'_> {
    fn found(&self) -> Machine {
        let Self { machine, run, .. } = self;
        let before = machine.status.clone().unwrap_or_default();
        let retry = before.start_failure.as_ref().and_then(|one| one.retry_after_timestamp.as_deref());
        Machine {
            strategy: Strategy::of_machine(machine),
            followed: before.run_strategy.as_deref().map(|word| Strategy::of(None, Some(word))),
            deleting: machine.is_deleting(),
            start: machine::wants_start(&before.state_change_requests),
            once: is_asked(&before.state_change_requests, ONCE),
            stop: false,
            run: run.map(|run| RunOf {
                deleting: run.is_deleting(),
                failed: FINAL.contains(&phase(run)).then(|| phase(run) == "Failed"),
                once: run.metadata.annotations.contains_key(STARTED_ONCE),
            }),
            templates: self.missing.is_empty(),
            owns: !self.volumes.is_empty(),
            networks: machine.is_deleting() && run.is_none() && self.networks,
            ready: self.stand == Filled::Ready,
            retry: retry.and_then(time::seconds),
            now: self.attempt.now,
        }
    }
}

/// The actions that bring a VM towards its spec.
pub(in crate::daemon) fn reconcile(observed: &Observed<'_>) -> Vec<Action> {
    let found = observed.found();
    let steps = machine::machine(&found);
    if steps.contains(&Step::Remove) {
        return vec![Action::event("Deleted", "nothing of it is left"), Action::RemoveMachine];
    }
    let mut machine = observed.machine.clone();
    let mut actions = Vec::new();
    for step in &steps {
        apply_step(step, observed, &mut machine, &mut actions);
    }
    let wanted = (!matches!(found.strategy, Strategy::Halted) || found.once)
        && (found.start || steps.contains(&Step::MakeRun) || matches!(found.strategy, Strategy::Always));
    let backing_off = found.retry.is_some_and(|time| time > found.now);
    let changed = note(&mut machine, observed.run, observed.stand, wanted || backing_off, backing_off);
    actions.extend(changed);
    let follows = !machine.is_deleting() && !steps.contains(&Step::EndRun);
    let followed = observed.run.filter(|_| follows).map(|run| follow(&machine, run)).unwrap_or_default();
    actions.push(Action::Put(Object::Machine(Box::new(machine))));
    actions.extend(followed);
    actions
}

/// One step as actions; those that concern the machine alone change it.
fn apply_step(step: &Step, observed: &Observed<'_>, machine: &mut VirtualMachine, actions: &mut Vec<Action>) {
    match step {
        Step::MakeVolumes => {
            let templates = machine.spec.data_volume_templates.iter();
            let missing = templates.filter(|one| observed.missing.contains(&one.metadata.name));
            actions.extend(missing.map(|template| {
                Action::Create(Object::DataVolume(Box::new(DataVolume {
                    api_version: Kind::DataVolume.api_version().to_owned(),
                    kind: Kind::DataVolume.name().to_owned(),
                    metadata: ObjectMeta {
                        owner_references: vec![owner(machine)],
                        ..template.metadata.clone()
                    },
                    spec: template.spec.clone(),
                    ..DataVolume::default()
                })))
            }));
        }
        Step::MakeRun => {
            let requests = machine.status.as_ref().map_or(&[][..], |status| &status.state_change_requests);
            let run = instance_of(machine, requests);
            actions.push(Action::event("SuccessfulCreate", "Started the virtual machine"));
            actions.push(Action::Create(Object::Instance(Box::new(run))));
        }
        Step::EndRun => actions.extend(observed.run.map(|run| Action::EndRun(Box::new(run.clone())))),
        Step::DropStart => {
            let requests = &mut machine.status.get_or_insert_default().state_change_requests;
            requests.retain(|request| request.action != "Start");
        }
        Step::SwitchOn => set_strategy(machine, Strategy::Always),
        Step::QueueStart => {
            request_start(&mut machine.status.get_or_insert_default().state_change_requests);
        }
        Step::Follow => {
            let word = Strategy::of_machine(machine).word().to_owned();
            machine.status.get_or_insert_default().run_strategy = Some(word);
        }
        Step::RemoveVolumes => {
            let there = observed.volumes.iter().filter(|volume| !volume.is_deleting());
            actions.extend(there.map(|volume| {
                let mut volume = DataVolume::clone(volume);
                volume.metadata.deletion_timestamp = Some(time::text(observed.attempt.now));
                Action::Put(Object::DataVolume(Box::new(volume)))
            }));
        }
        Step::Wait(time) => actions.push(Action::Look(*time)),
        Step::RemoveNetworks => {
            if observed.attempt.may_begin(actions) {
                actions.push(Action::RemoveNetworks);
            }
        }
        Step::Remove => {}
    }
}

/// Brings what may change of a run that goes on from the template to it.
fn follow(machine: &VirtualMachine, run: &VirtualMachineInstance) -> Vec<Action> {
    if run.is_deleting() || phase(run) != "Running" {
        return Vec::new();
    }
    let template = &machine.spec.template.spec;
    let there = run.status.as_ref().map_or(&[][..], |status| &status.volume_status);
    let mut spec = live::follow_volumes(template, &run.spec, there);
    let larger = live::follow_size(template, &spec);
    if !needs_restart(template, &larger) {
        spec = larger;
    }
    let interfaces = live::follow_interfaces(template, &spec);
    let mends = interfaces.is_some();
    let spec = interfaces.unwrap_or(spec);
    let mut actions = Vec::new();
    if mends {
        actions.push(Action::MendLater { run: run.uid().to_owned() });
    }
    if spec != run.spec {
        let run = VirtualMachineInstance { spec, ..run.clone() };
        actions.push(Action::Put(Object::Instance(Box::new(run))));
    }
    actions
}

/// Updates the status of a VM; reports when it needs a restart.
fn note(
    machine: &mut VirtualMachine,
    run: Option<&VirtualMachineInstance>,
    stand: Filled,
    wanted: bool,
    backing_off: bool,
) -> Option<Action> {
    let deleting = machine.is_deleting();
    let strategy = Strategy::of_machine(machine);
    let run_status = run.and_then(|run| run.status.clone()).unwrap_or_default();
    let problem = run_status.reason.clone();
    let restart = run.is_some_and(|run| !deleting && needs_restart(&machine.spec.template.spec, &run.spec));
    let generation = machine.metadata.generation;
    let status = machine.status.get_or_insert_default();
    let ready = status::holds(&run_status.conditions, "Ready").is_some();
    let instance = run.map(|run| Instance {
        phase: phase(run),
        deleting: run.is_deleting(),
        paused: status::holds(&run_status.conditions, "Paused").is_some(),
        migrating: false,
        problem: problem.as_deref(),
        unschedulable: false,
        receiver: false,
    });
    let facts = Facts {
        deleting,
        instance,
        creating: wanted && !backing_off && stand == Filled::Ready,
        missing: stand == Filled::Missing,
        broken: stand == Filled::Broken,
        provisioning: stand == Filled::NotYet,
        unbound: false,
        failures: status.start_failure.as_ref().and_then(|one| one.consecutive_fail_count).unwrap_or(0),
        strategy,
    };
    status.printable_status = Some(printable::printable(&facts).to_owned());
    status.created = Some(run.is_some()).filter(|created| *created);
    status.ready = Some(ready).filter(|ready| *ready);
    status.observed_generation = generation;
    status.desired_generation = generation;
    let conditions = &mut status.conditions;
    let (reason, message) = if run.is_some() {
        ("GuestNotRunning", "Guest VM is not reported as running")
    } else {
        ("VMINotExists", "VMI does not exist")
    };
    if ready {
        status::condition(conditions, "Ready", true, "", "");
    } else {
        status::condition(conditions, "Ready", false, reason, message);
    }
    // Conditions that hold only while the run exists.
    let copied = [
        "Paused",
        "AgentConnected",
        "DataVolumesReady",
        "LiveMigratable",
        "SoftwareEmulation",
        "Synchronized",
        "NetworkNotes",
        live::PROCESSORS,
        live::MEMORY,
    ];
    conditions.retain(|one| !copied.contains(&one.kind.as_str()));
    let of_run = run_status.conditions.iter();
    conditions
        .extend(of_run.filter(|one| !["Ready", "FieldsWithoutEffect"].contains(&one.kind.as_str())).cloned());
    let text = "the template has changed since the run began; restart it to follow";
    let event =
        (restart && status::holds(conditions, RESTART).is_none()).then(|| Action::event(RESTART, text));
    if restart {
        status::condition(conditions, RESTART, true, "TemplateChanged", text);
    } else {
        status::without(conditions, RESTART);
    }
    event
}

/// A new run of a machine.
fn instance_of(machine: &VirtualMachine, requests: &[StateChangeRequest]) -> VirtualMachineInstance {
    let template = &machine.spec.template;
    let mut metadata = ObjectMeta {
        name: machine.metadata.name.clone(),
        owner_references: vec![owner(machine)],
        ..template.metadata.clone()
    };
    if is_asked(requests, ONCE) {
        metadata.annotations.insert(STARTED_ONCE.to_owned(), "true".to_owned());
    }
    let mut spec = template.spec.clone();
    if is_asked(requests, PAUSED) {
        spec.start_strategy = Some("Paused".to_owned());
    }
    let mut status = VirtualMachineInstanceStatus::default();
    status::phase(&mut status, "Pending");
    VirtualMachineInstance {
        api_version: Kind::VirtualMachineInstance.api_version().to_owned(),
        kind: Kind::VirtualMachineInstance.name().to_owned(),
        metadata,
        spec,
        status: Some(status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn machine(metadata: &Value, status: &Value) -> VirtualMachine {
        let mut machine = json!({
            "metadata": {"name": "vm", "namespace": "a", "uid": "m"},
            "spec": {
                "runStrategy": "Always",
                "dataVolumeTemplates": [{"metadata": {"name": "disk"}, "spec": {"source": {"blank": {}}}}],
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {"devices": {}}}},
            },
            "status": status,
        });
        if let (Some(all), Some(more)) = (machine["metadata"].as_object_mut(), metadata.as_object()) {
            all.extend(more.clone());
        }
        serde_json::from_value(machine).unwrap()
    }

    fn observed(machine: &VirtualMachine) -> Observed<'_> {
        Observed {
            machine,
            run: None,
            volumes: &[],
            missing: Vec::new(),
            stand: Filled::Ready,
            networks: false,
            attempt: Attempt { busy: false, retry: None, now: NOW },
        }
    }

    fn stored(actions: &[Action]) -> VirtualMachine {
        let machine = actions.iter().find_map(|action| {
            let Action::Put(Object::Machine(machine)) = action else { return None };
            Some(VirtualMachine::clone(machine))
        });
        machine.unwrap_or_else(|| panic!("{actions:?}"))
    }

    fn created(actions: &[Action]) -> Vec<&Object> {
        let created = actions.iter().filter_map(|action| {
            let Action::Create(object) = action else { return None };
            Some(object)
        });
        created.collect()
    }

    #[test]
    fn volumes_are_made_then_a_run_when_they_are_filled() {
        let new = machine(&Value::Null, &Value::Null);
        let first = Observed { missing: vec!["disk".to_owned()], stand: Filled::Missing, ..observed(&new) };
        let actions = reconcile(&first);
        let [Object::DataVolume(volume), ..] = created(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!(volume.metadata.owner_references[0]["uid"], "m");
        let actions = reconcile(&observed(&new));
        let [Object::Instance(run)] = created(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!((run.metadata.name.as_str(), phase(run)), ("vm", "Pending"));
        assert_eq!(run.metadata.labels["a"], "b");
        assert_eq!(run.metadata.owner_references[0]["uid"], "m");
        assert_eq!(stored(&actions).status.unwrap().printable_status.as_deref(), Some("Starting"));
    }

    #[test]
    fn a_start_for_one_run_marks_that_run() {
        let requests =
            json!({"stateChangeRequests": [{"action": "Start", "data": {"once": "true", "paused": "true"}}]});
        let mut halted = machine(&Value::Null, &requests);
        halted.spec.run_strategy = Some("Halted".to_owned());
        let actions = reconcile(&observed(&halted));
        let [Object::Instance(run)] = created(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!(run.metadata.annotations[STARTED_ONCE], "true");
        assert_eq!(run.spec.start_strategy.as_deref(), Some("Paused"));
        assert_eq!(stored(&actions).spec.run_strategy.as_deref(), Some("Halted"));
    }

    #[test]
    fn another_template_is_reported_once() {
        let mut changed = machine(&Value::Null, &Value::Null);
        let Some(Object::Instance(mut run)) = created(&reconcile(&observed(&changed))).pop().cloned() else {
            panic!()
        };
        status::phase(run.status.get_or_insert_default(), "Running");
        changed.spec.template.spec.architecture = Some("arm64".to_owned());
        let actions = reconcile(&Observed { run: Some(&run), ..observed(&changed) });
        let told = |actions: &[Action]| {
            actions.iter().filter(|one| matches!(one, Action::Event { reason: RESTART, .. })).count()
        };
        assert_eq!(told(&actions), 1, "{actions:?}");
        let noted = stored(&actions);
        assert_eq!(told(&reconcile(&Observed { run: Some(&run), ..observed(&noted) })), 0);
    }

    #[test]
    fn a_deleted_machine_takes_its_run_its_volumes_and_its_networks_with_it() {
        let old = machine(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), &Value::Null);
        let new = machine(&Value::Null, &Value::Null);
        let Some(Object::Instance(run)) = created(&reconcile(&observed(&new))).pop().cloned() else {
            panic!()
        };
        let ends = reconcile(&Observed { run: Some(&run), ..observed(&old) });
        assert!(ends.contains(&Action::EndRun(run)), "{ends:?}");
        let volumes = [Arc::new(DataVolume::default())];
        let actions = reconcile(&Observed { volumes: &volumes, ..observed(&old) });
        let marks =
            |one: &Action| matches!(one, Action::Put(Object::DataVolume(volume)) if volume.is_deleting());
        assert!(actions.iter().any(marks), "{actions:?}");
        let actions = reconcile(&Observed { networks: true, ..observed(&old) });
        assert!(actions.contains(&Action::RemoveNetworks), "{actions:?}");
        let actions = reconcile(&observed(&old));
        assert_eq!(actions.last(), Some(&Action::RemoveMachine));
    }
}
