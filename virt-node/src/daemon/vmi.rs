//! Runs of VMs: observed, reconciled, and their launchers started, asked and cleared. Not here: the decisions
//! ([`super::reconcile`]), the results ([`super::job_results`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use api::core::PersistentVolumeClaim;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::launcher::Request;

use super::apply::{self, Start};
use super::controller::{Controller, Message, Outcome, Work};
use super::ids;
use super::kept;
use super::networks;
use super::reconcile;
use super::store::Stored;
use super::watch::News;
use crate::error::Error;
use virt::resolve::{self, Guest};
use virt::status;
use virt::time;

/// The owner of a run: its VM, or itself.
pub(super) fn owner_uid(instance: &VirtualMachineInstance) -> String {
    let owner = instance.metadata.owner_references.first();
    let uid = owner.and_then(|owner| owner.get("uid")).and_then(|uid| uid.as_str());
    uid.unwrap_or_else(|| instance.uid()).to_owned()
}

/// Seconds between two tries to kill what is left of a guest.
const KILL_INTERVAL: u64 = 10;

impl Controller {
    /// Brings a run towards its spec, or its end.
    pub(super) fn instance(&mut self, run: &VirtualMachineInstance) -> Result<(), Error> {
        let key = run.key();
        let machine = self.store.get::<VirtualMachine>(&key.namespace, &key.name);
        let observed = reconcile::instance::Observed {
            run,
            machine: machine.as_ref(),
            stand: self.claims_stand(&key.namespace, &run.spec),
            networks: run.is_deleting() && networks::kept(&self.state, run.uid()),
            asked: self.memory(run.uid()).asked,
            seen: self.launcher_state(run.uid()),
            attempt: self.attempt(run.uid()),
        };
        let actions = reconcile::instance::reconcile(&observed);
        self.execute(run, actions)
    }

    /// Has what was made for a run removed.
    pub(super) fn clear_run(&mut self, run: &VirtualMachineInstance) {
        let (state, folder, owner) = (Arc::clone(&self.state), self.state.run(run.uid()), owner_uid(run));
        self.services.forget(&owner);
        self.job(run.uid(), Work::Clear, move |_, _| {
            apply::clear(&state, &folder, &owner).map(|()| Outcome::Done)
        });
    }

    /// Removes a run of which nothing is left.
    pub(super) fn remove_run(&mut self, run: &VirtualMachineInstance) -> Result<(), Error> {
        let uid = run.uid();
        let own = run.metadata.owner_references.is_empty();
        self.memory.retain(|of, _| of.split('/').next() != Some(uid));
        if own {
            kept::remove(&self.state.guest(uid))?;
            self.state.ids().free(&ids::vm(uid))?;
        }
        self.store.remove(&run.key())?;
        self.addresses.forget(&run.key());
        if own {
            self.sweep_images();
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

    /// Has a run's guest started, or its launcher only.
    pub(super) fn start(&mut self, run: &VirtualMachineInstance, launch: bool) {
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
    pub(super) fn move_devices(&mut self, run: &VirtualMachineInstance) -> Result<(), Error> {
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

    /// Asks a run's guest to end.
    pub(super) fn shut_down(&mut self, run: &VirtualMachineInstance) {
        let uid = run.uid().to_owned();
        self.memory(&uid).asked = true;
        let grace_seconds = run.metadata.deletion_grace_period_seconds;
        self.events.add(&run.key(), false, "ShuttingDown", "Signaled Graceful Shutdown");
        let (sender, told, folder) = (self.sender(), uid.clone(), self.state.run(&uid));
        self.ask(&uid, Request::Shutdown { grace_seconds }, move |answer| {
            if answer.is_err() {
                // It ended just now, or its worker did: the next observation shows which, and it is asked again.
                std::thread::sleep(std::time::Duration::from_millis(500));
                let news = News::Observed(apply::inspect(&folder), None);
                drop(sender.send(Message::News(told, news)));
            }
        });
    }

    /// Kills the remains of a guest whose launcher does not end it, also during another job.
    pub(super) fn kill(&mut self, run: &VirtualMachineInstance) {
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
            drop(sender.send(Message::News(told, News::Observed(seen, None))));
        };
        // Without a thread it is tried again.
        drop(std::thread::Builder::new().name("kill".to_owned()).spawn(work));
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
