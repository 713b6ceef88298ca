//! Machines: looks at what is found of each, asks the plan, and has its steps done. Their runs are [`super::vmi`]'s.

use std::sync::Arc;

use api::cdi::DataVolume;
use api::kind::Kind;
use api::kubevirt::{
    StateChangeRequest, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceStatus,
};
use api::resource::ObjectMeta;

use super::controller::{Controller, Outcome, Work};
use super::requests::{ONCE, PAUSED};
use super::store::{Key, Stored};
use super::volumes::{Filled, is_owned, made, owner};
use super::{ids, images, kept, networks};
use crate::error::Error;
use virt::live::{self, needs_restart};
use virt::machine::{self, FINAL, Machine, RunOf, Step, Strategy, phase, request_start};
use virt::printable::{self, Facts, Instance};
use virt::time;
use virt::{resolve, status};

/// Condition of a VM whose run has another template, and the reason of its event.
const RESTART: &str = "RestartRequired";
/// Annotation of a run that was started once, without regard to the strategy of its VM.
const STARTED_ONCE: &str = "ferrovirt.io/started-once";

/// Whether a start is requested with this word in its data.
fn is_asked(requests: &[StateChangeRequest], word: &str) -> bool {
    let mut starts = requests.iter().filter(|request| request.action == "Start");
    starts.any(|request| request.data.get(word).is_some_and(|value| value == "true"))
}

impl Controller {
    /// How the claims of a guest stand, the worst first.
    pub(super) fn claims_stand(
        &self,
        namespace: &str,
        instance: &api::kubevirt::VirtualMachineInstanceSpec,
    ) -> Filled {
        let all = resolve::claims_of(instance).map(|name| self.filled(namespace, name));
        let rank = |filled: &Filled| match filled {
            Filled::Missing => 0,
            Filled::Broken => 1,
            Filled::NotYet => 2,
            Filled::Ready => 3,
        };
        all.min_by_key(rank).unwrap_or(Filled::Ready)
    }

    /// The run of a machine.
    pub(super) fn run_of(&self, machine: &VirtualMachine) -> Option<VirtualMachineInstance> {
        let key = machine.key();
        let run = self.store.get::<VirtualMachineInstance>(&key.namespace, &key.name);
        run.filter(|run| is_owned(&run.metadata, machine.uid()))
    }

    pub(super) fn machine(&mut self, mut machine: VirtualMachine) -> Result<(), Error> {
        let key = machine.key();
        let run = self.run_of(&machine);
        let owned: Vec<Arc<DataVolume>> = self.store.owned(machine.uid()).collect();
        let before = machine.status.clone().unwrap_or_default();
        let stand = self.claims_stand(&key.namespace, &machine.spec.template.spec);
        let retry = before.start_failure.as_ref().and_then(|one| one.retry_after_timestamp.as_deref());
        let found = Machine {
            strategy: Strategy::of_machine(&machine),
            followed: before.run_strategy.as_deref().map(|word| Strategy::of(None, Some(word))),
            deleting: machine.is_deleting(),
            start: machine::wants_start(&before.state_change_requests),
            once: is_asked(&before.state_change_requests, ONCE),
            stop: false,
            run: run.as_ref().map(|run| RunOf {
                deleting: run.is_deleting(),
                failed: FINAL.contains(&phase(run)).then(|| phase(run) == "Failed"),
                once: run.metadata.annotations.contains_key(STARTED_ONCE),
            }),
            templates: machine.spec.data_volume_templates.iter().all(|template| {
                let volume = Key::new(Kind::DataVolume, &key.namespace, &template.metadata.name);
                self.store.value(&volume).is_some()
            }),
            owns: !owned.is_empty(),
            networks: machine.is_deleting() && run.is_none() && networks::kept(&self.state, machine.uid()),
            ready: stand == Filled::Ready,
            retry: retry.and_then(time::seconds),
            now: time::now(),
        };
        let steps = machine::machine(&found);
        for step in &steps {
            if *step == Step::Remove {
                self.memory.remove(machine.uid());
                return self.forget(&machine);
            }
            self.machine_step(step, &mut machine, run.as_ref(), &owned)?;
        }
        let wanted = (!matches!(found.strategy, Strategy::Halted) || found.once)
            && (found.start || steps.contains(&Step::MakeRun) || matches!(found.strategy, Strategy::Always));
        let backing_off = found.retry.is_some_and(|time| time > found.now);
        self.note_machine(&mut machine, run.as_ref(), stand, wanted || backing_off, backing_off);
        self.store.put(&machine)?;
        match self.run_of(&machine) {
            Some(run) if !machine.is_deleting() => {
                self.follow_volumes(&machine, &run)?;
                self.follow_size(&machine)?;
                self.follow_interfaces(&machine)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Nothing is left of a machine.
    fn forget(&mut self, machine: &VirtualMachine) -> Result<(), Error> {
        kept::remove(&self.state.guest(machine.uid()))?;
        self.state.ids().free(&ids::vm(machine.uid()))?;
        self.events.add(&machine.key(), false, "Deleted", "nothing of it is left");
        self.store.remove(&machine.key())?;
        self.addresses.forget(&machine.key());
        self.sweep_images();
        Ok(())
    }

    /// Takes away the images that no guest names any more.
    pub(super) fn sweep_images(&self) {
        let machines: Vec<_> = self.store.all::<VirtualMachine>().collect();
        let runs: Vec<_> = self.store.all::<VirtualMachineInstance>().collect();
        let specs = machines.iter().map(|machine| &machine.spec.template.spec);
        images::sweep(
            &self.state.path("images"),
            self.state.ids(),
            specs.chain(runs.iter().map(|run| &run.spec)),
        );
    }

    fn machine_step(
        &mut self,
        step: &Step,
        machine: &mut VirtualMachine,
        run: Option<&VirtualMachineInstance>,
        owned: &[Arc<DataVolume>],
    ) -> Result<(), Error> {
        let key = machine.key();
        let followed = Strategy::of_machine(machine);
        match step {
            Step::MakeVolumes => {
                for template in machine.spec.data_volume_templates.clone() {
                    let name = &template.metadata.name;
                    if self.store.get::<DataVolume>(&key.namespace, name).is_none() {
                        let volume = DataVolume {
                            api_version: Kind::DataVolume.api_version().to_owned(),
                            kind: Kind::DataVolume.name().to_owned(),
                            metadata: ObjectMeta {
                                owner_references: vec![owner(machine)],
                                ..made(&template.metadata, &key.namespace)?
                            },
                            spec: template.spec.clone(),
                            ..DataVolume::default()
                        };
                        self.store.put(&volume)?;
                    }
                }
                Ok(())
            }
            Step::MakeRun => {
                let requests =
                    machine.status.as_ref().map_or(&[][..], |status| &status.state_change_requests);
                let mut run = instance_of(machine, &key.namespace, is_asked(requests, PAUSED))?;
                if is_asked(requests, ONCE) {
                    run.metadata.annotations.insert(STARTED_ONCE.to_owned(), "true".to_owned());
                }
                self.events.add(&key, false, "SuccessfulCreate", "Started the virtual machine");
                self.store.put(&run)
            }
            Step::EndRun => run.map_or(Ok(()), |run| self.end_run(run, None)),
            Step::DropStart => {
                let requests = &mut machine.status.get_or_insert_default().state_change_requests;
                requests.retain(|request| request.action != "Start");
                Ok(())
            }
            Step::SwitchOn => {
                super::requests::set_strategy(machine, Strategy::Always);
                Ok(())
            }
            Step::QueueStart => {
                request_start(&mut machine.status.get_or_insert_default().state_change_requests);
                Ok(())
            }
            Step::Follow => {
                machine.status.get_or_insert_default().run_strategy = Some(followed.word().to_owned());
                Ok(())
            }
            Step::RemoveVolumes => {
                for volume in owned.iter().filter(|volume| !volume.is_deleting()) {
                    let mut volume = DataVolume::clone(volume);
                    volume.metadata.deletion_timestamp = Some(time::text(time::now()));
                    self.store.put(&volume)?;
                }
                Ok(())
            }
            Step::Wait(time) => {
                self.look_at(*time);
                Ok(())
            }
            Step::RemoveNetworks => {
                if self.may_try(machine.uid()) {
                    let (state, uid) = (Arc::clone(&self.state), machine.uid().to_owned());
                    self.job(machine.uid(), Work::RemoveNetworks, move |_, _| {
                        networks::detach(&state, &uid).map(|()| Outcome::Done)
                    });
                }
                Ok(())
            }
            Step::Remove => Ok(()),
        }
    }

    /// Updates the status of a VM.
    fn note_machine(
        &mut self,
        machine: &mut VirtualMachine,
        run: Option<&VirtualMachineInstance>,
        stand: Filled,
        wanted: bool,
        backing_off: bool,
    ) {
        let (key, deleting) = (machine.key(), machine.is_deleting());
        let strategy = Strategy::of_machine(machine);
        let run_status = run.and_then(|run| run.status.clone()).unwrap_or_default();
        let problem = run_status.reason.clone();
        let restart =
            run.is_some_and(|run| !deleting && needs_restart(&machine.spec.template.spec, &run.spec));
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
        conditions.extend(
            of_run.filter(|one| !["Ready", "FieldsWithoutEffect"].contains(&one.kind.as_str())).cloned(),
        );
        if restart {
            let text = "the template has changed since the run began; restart it to follow";
            if status::holds(conditions, RESTART).is_none() {
                self.events.add(&key, false, RESTART, text);
            }
            status::condition(conditions, RESTART, true, "TemplateChanged", text);
        } else {
            status::without(conditions, RESTART);
        }
    }
}

/// A new run of a machine.
fn instance_of(
    machine: &VirtualMachine,
    namespace: &str,
    paused: bool,
) -> Result<VirtualMachineInstance, Error> {
    let template = &machine.spec.template;
    let named = ObjectMeta { name: machine.metadata.name.clone(), ..template.metadata.clone() };
    let mut metadata = made(&named, namespace)?;
    metadata.owner_references = vec![owner(machine)];
    let mut spec = template.spec.clone();
    if paused {
        spec.start_strategy = Some("Paused".to_owned());
    }
    let mut status = VirtualMachineInstanceStatus::default();
    status::phase(&mut status, "Pending");
    Ok(VirtualMachineInstance {
        api_version: Kind::VirtualMachineInstance.api_version().to_owned(),
        kind: Kind::VirtualMachineInstance.name().to_owned(),
        metadata,
        spec,
        status: Some(status),
    })
}
