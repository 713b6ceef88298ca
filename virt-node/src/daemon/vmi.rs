//! Runs of VMs: each goes from ready volumes over a launcher to its end, by the plan's steps. [`super::job_results`] stores the
//! observations.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::core::PersistentVolumeClaim;
use api::kubevirt::{StartFailure, VirtualMachine, VirtualMachineInstance};
use api::launcher::{Cause, Exit, Request, State as Doing};

use super::apply::{self, Start};
use super::controller::{Controller, Message, Outcome, Work};
use super::ids;
use super::kept;
use super::networks;
use super::store::Stored;
use super::volumes::{Filled, is_owned};
use super::watch::News;
use crate::error::Error;
use virt::live;
use virt::machine::{self, FINAL, Strategy, phase, request_start};
use virt::resolve::{self, Guest};
use virt::run::{self, Run, RunStep, Seen};
use virt::status;
use virt::time;

/// The owner of a run: its VM, or itself.
pub(super) fn owner_uid(instance: &VirtualMachineInstance) -> String {
    let owner = instance.metadata.owner_references.first();
    let uid = owner.and_then(|owner| owner.get("uid")).and_then(|uid| uid.as_str());
    uid.unwrap_or_else(|| instance.uid()).to_owned()
}

/// Seconds after a guest's grace in which its launcher must have ended it.
const END_MARGIN: u64 = 30;
/// Seconds between two tries to kill what is left of a guest.
const KILL_INTERVAL: u64 = 10;

/// When a run that is being deleted is killed without its launcher.
fn overdue(run: &VirtualMachineInstance) -> Option<u64> {
    let asked = run.metadata.deletion_timestamp.as_deref().and_then(time::seconds)?;
    let own = run.spec.termination_grace_period_seconds.unwrap_or(resolve::GRACE_SECONDS);
    let grace = run.metadata.deletion_grace_period_seconds.unwrap_or(own);
    Some(asked.saturating_add(grace).saturating_add(END_MARGIN))
}

impl Controller {
    pub(super) fn instance(&mut self, mut run: VirtualMachineInstance) -> Result<(), Error> {
        let uid = run.uid().to_owned();
        let namespace = run.metadata.namespace.clone().unwrap_or_default();
        let stand = self.claims_stand(&namespace, &run.spec);
        let found = Run {
            deleting: run.is_deleting(),
            over: FINAL.contains(&phase(&run)),
            begun: ["Scheduled", "Running"].contains(&phase(&run)),
            ready: stand == Filled::Ready,
            // A machine's are taken away with it, so that its next run has the same addresses.
            networks: run.is_deleting()
                && run.metadata.owner_references.is_empty()
                && networks::kept(&self.state, &uid),
            busy: self.is_busy(&uid),
            asked: self.memory(&uid).asked,
            overdue: overdue(&run),
            retry: self.memory(&uid).retry,
            now: time::now(),
            seen: self.seen(&uid),
        };
        if !found.over && !found.begun && resolve::claims_of(&run.spec).next().is_some() {
            status::volumes(&mut run.status.get_or_insert_default().conditions, found.ready);
            self.store.put(&run)?;
        }
        let Some(step) = run::run(&found) else {
            let there = matches!(found.seen, Seen::Guest(Doing::Running | Doing::Paused));
            return if there && !found.deleting && !found.busy { self.move_devices(&run) } else { Ok(()) };
        };
        match step {
            // One that failed just now is tried again later.
            RunStep::Adopt | RunStep::Clear if !self.may_try(&uid) => {}
            RunStep::Start | RunStep::Adopt => {
                let launch = step == RunStep::Start;
                if phase(&run) == "Pending" {
                    status::phase(run.status.get_or_insert_default(), "Scheduling");
                    self.store.put(&run)?;
                }
                self.start(&run, launch);
            }
            RunStep::Shutdown => self.shut_down(&run),
            RunStep::Kill => self.kill(&run),
            RunStep::Finish(exit) => return self.finish(run, exit.as_ref()),
            RunStep::Clear => {
                let (state, folder, owner) = (Arc::clone(&self.state), self.state.run(&uid), owner_uid(&run));
                self.services.forget(&owner);
                self.job(&uid, Work::Clear, move |_, _| {
                    apply::clear(&state, &folder, &owner).map(|()| Outcome::Done)
                });
            }
            RunStep::Remove => {
                self.memory.retain(|of, _| of.split('/').next() != Some(&uid));
                if run.metadata.owner_references.is_empty() {
                    let kept = kept::remove(&self.state.guest(&uid));
                    kept.and_then(|()| self.state.ids().free(&ids::vm(&uid)))?;
                }
                self.store.remove(&run.key())?;
                self.addresses.forget(&run.key());
                if run.metadata.owner_references.is_empty() {
                    self.sweep_images();
                }
            }
            RunStep::Wait(time) => self.look_at(time),
        }
        Ok(())
    }

    /// Has a run ended, within this grace or its own; a later word may only shorten it.
    pub(super) fn end_run(&mut self, run: &VirtualMachineInstance, grace: Option<u64>) -> Result<(), Error> {
        let mut run = run.clone();
        let before = run.metadata.deletion_grace_period_seconds;
        let shorter = match (before, grace) {
            (Some(before), Some(grace)) => Some(before.min(grace)),
            (before, grace) => grace.or(before),
        };
        if run.is_deleting() && shorter == before {
            return Ok(());
        }
        run.metadata.deletion_grace_period_seconds = shorter;
        if !run.is_deleting() {
            run.metadata.deletion_timestamp = Some(time::text(time::now()));
        }
        let uid = run.uid().to_owned();
        self.memory(&uid).asked = false;
        self.cancel(&uid);
        self.store.put(&run)
    }

    fn start(&mut self, run: &VirtualMachineInstance, launch: bool) {
        let uid = run.uid().to_owned();
        let key = run.key();
        let mut start = self.start_of(run, launch);
        self.events.add(&key, false, "Starting", "preparing disks and the launcher");
        self.job(&uid.clone(), Work::Start, move |stop, sender| {
            start.stop = Arc::clone(stop);
            // The receiver is gone when the daemon ends.
            let told = |reason, text| drop(sender.send(Message::Told(uid.clone(), reason, text)));
            let born = |child| drop(sender.send(Message::Born(child)));
            apply::start(&start, told, born).map(|started| Outcome::Started(Box::new(started)))
        });
    }

    /// Has something done for the devices of a guest that runs: one thing after the other, as each changes where they are.
    fn move_devices(&mut self, run: &VirtualMachineInstance) -> Result<(), Error> {
        if self.is_moving(run.uid()) || self.mend(run)? || self.enlarge(run)? {
            Ok(())
        } else {
            self.move_volumes(run)
        }
    }

    /// The inputs of an operation on a run.
    pub(super) fn start_of(&self, run: &VirtualMachineInstance, launch: bool) -> Start {
        let key = run.key();
        let claims: BTreeMap<_, _> = resolve::claims_of(&run.spec)
            .filter_map(|name| self.store.get::<PersistentVolumeClaim>(&key.namespace, name))
            .map(|claim| (claim.metadata.name.clone(), self.volume(&claim)))
            .collect();
        let (uid, owner) = (run.uid().to_owned(), owner_uid(run));
        Start {
            state: Arc::clone(&self.state),
            driver: self.driver.clone(),
            accelerator: self.accelerator,
            instance: run.clone(),
            guest: Guest {
                metadata: run.metadata.clone(),
                uid,
                smbios_uuid: owner.clone(),
                smbios_serial: owner.clone(),
            },
            owner,
            objects: self.objects(&key.namespace),
            networks: self.networks(),
            host_disks: self.host_disks.clone(),
            claims,
            stop: Arc::default(),
            launch,
        }
    }

    fn shut_down(&mut self, run: &VirtualMachineInstance) {
        let uid = run.uid().to_owned();
        self.memory(&uid).asked = true;
        let grace_seconds = run.metadata.deletion_grace_period_seconds;
        self.events.add(&run.key(), false, "ShuttingDown", "Signaled Graceful Shutdown");
        let (sender, told, folder) = (self.sender(), uid.clone(), self.state.run(&uid));
        self.ask(&uid, Request::Shutdown { grace_seconds }, move |answer| {
            if answer.is_err() {
                // It ended just now, or its worker did: the next observation shows which, and it is asked again.
                std::thread::sleep(std::time::Duration::from_millis(500));
                let news = News::Seen(apply::look(&folder), None);
                drop(sender.send(Message::News(told, news)));
            }
        });
    }

    /// Kills the remains of a guest whose launcher does not end it, also during another job.
    fn kill(&mut self, run: &VirtualMachineInstance) {
        let (uid, now) = (run.uid().to_owned(), time::now());
        let again = self.memory(&uid).killed.map(|before| before + KILL_INTERVAL).filter(|next| *next > now);
        self.look_at(again.unwrap_or(now + KILL_INTERVAL));
        if again.is_some() {
            return;
        }
        self.memory(&uid).killed = Some(now);
        self.events.add(
            &run.key(),
            true,
            "Killing",
            "the launcher does not end the guest; its processes are killed",
        );
        let (sender, told, state) = (self.sender(), uid.clone(), Arc::clone(&self.state));
        let work = move || {
            let seen = apply::kill(&state, &state.run(&uid));
            drop(sender.send(Message::News(told, News::Seen(seen, None))));
        };
        // Without a thread it is tried again.
        drop(std::thread::Builder::new().name("kill".to_owned()).spawn(work));
    }

    /// Notes how a run ended.
    fn finish(&mut self, mut run: VirtualMachineInstance, exit: Option<&Exit>) -> Result<(), Error> {
        let deleting = run.is_deleting();
        let status = run.status.get_or_insert_default();
        let since = status::since(status, "Running").unwrap_or_else(time::now);
        let (failed, ended, word) = match exit {
            Some(exit) => (exit.code != 0 && !deleting, exit.time, exit.cause),
            None => (!deleting, time::now(), Cause::Lost),
        };
        status::phase(status, if failed { "Failed" } else { "Succeeded" });
        status.reason = None;
        status.volume_status.clear();
        for kind in ["Ready", "Paused", "AgentConnected", live::PROCESSORS, live::MEMORY] {
            status::without(&mut status.conditions, kind);
        }
        status::condition(&mut status.conditions, "Ready", false, "PodTerminating", "the guest ended");
        let key = run.key();
        let message = match word {
            Cause::Shutdown => "The VirtualMachineInstance was shut down.",
            Cause::Rebooted => "The guest was reset, or crashed.",
            Cause::Killed => "The guest was killed as asked.",
            Cause::Crashed => "The VirtualMachineInstance crashed.",
            Cause::Lost => "The guest ended while no worker was running; the cause is unknown.",
        };
        self.events.add(&key, failed, if failed { "Crashed" } else { "Stopped" }, message);
        self.store.put(&run)?;
        let machine = self.store.get::<VirtualMachine>(&key.namespace, &key.name);
        let Some(mut machine) = machine.filter(|machine| is_owned(&run.metadata, machine.uid())) else {
            return Ok(());
        };
        let rerun = failed && Strategy::of_machine(&machine) == Strategy::RerunOnFailure;
        let status = machine.status.get_or_insert_default();
        let before = status.start_failure.as_ref().and_then(|one| one.consecutive_fail_count).unwrap_or(0);
        // A machine that was switched off is no crash of the guest.
        let crashed = failed && exit.is_some();
        let failures = machine::failures(before, crashed, ended.saturating_sub(since));
        status.start_failure = (failures > 0).then(|| StartFailure {
            consecutive_fail_count: Some(failures),
            last_failed_uid: run.metadata.uid.clone(),
            retry_after_timestamp: Some(time::text(time::now() + machine::back_off(failures))),
        });
        if rerun {
            request_start(&mut status.state_change_requests);
        }
        self.store.put(&machine)
    }

    /// Notes that a run could not be started.
    pub(super) fn start_failed(&mut self, uid: &str, error: &Error) {
        self.failed(uid);
        let run = self.store.called::<VirtualMachineInstance>(uid);
        let Some(mut run) = run.filter(|run| !run.is_deleting()) else { return };
        let text = error.chain();
        let reason = if text.starts_with("image ") { "ErrImagePull" } else { "StartFailed" };
        self.events.add(&run.key(), true, reason, &text);
        let status = run.status.get_or_insert_default();
        status.reason = Some(reason.to_owned());
        status::condition(&mut status.conditions, "Synchronized", false, reason, &text);
        if let Err(error) = self.store.put(&run) {
            self.events.add(&run.key(), true, "StateFailed", &error.chain());
        }
    }
}
