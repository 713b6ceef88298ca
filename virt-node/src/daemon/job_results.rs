//! Stores the results of jobs and launchers in the objects that they concern. Not here: the jobs (`jobs`).

use api::kind::Kind;
use api::kubevirt::{MachineStatus, VirtualMachineInstance, VirtualMachineInstanceStatus};
use api::launch::Accelerator;
use api::launcher::{Event, Status};

use super::apply::{self, Started};
use super::controller::{Controller, Message, Outcome, Work};
use super::store::Stored;
use super::vmi::owner_uid;
use super::watch::News;
use super::{agent, kept, networks};
use crate::error::Error;
use crate::network::Attached;
use virt::machine::{FINAL, phase};
use virt::run::LauncherState;
use virt::{live, status};

impl Controller {
    /// Notes what became of a job.
    pub(super) fn ended(&mut self, uid: &str, work: Work, outcome: Result<Outcome, Error>) {
        let noted = match (work, outcome) {
            (Work::Driver, Ok(_)) => Ok(()),
            (Work::Driver, Err(error)) => {
                self.failed("driver");
                let driver = super::store::Key::daemon("hpp-csi");
                self.events.add(&driver, true, "DriverFailed", &error.chain());
                Ok(())
            }
            (Work::Make | Work::Fill | Work::Receive | Work::Remove | Work::Grow, outcome) => {
                self.volume_ended(uid, work, outcome)
            }
            (Work::Start, Ok(Outcome::Started(started))) => {
                let memory = self.memory(uid);
                (memory.failures, memory.retry, memory.asked) = (0, None, false);
                memory.accelerator = None;
                memory.seen = Some(if started.guest {
                    LauncherState::Guest(api::launcher::State::Starting)
                } else {
                    LauncherState::Waiting
                });
                self.watch(uid);
                if started.guest { self.note_start(uid, *started) } else { Ok(()) }
            }
            (Work::Start, Err(error)) => {
                // Its launcher may have recorded an end in between, and starts no guest again then.
                self.memory(uid).seen = Some(apply::recorded_state(&self.state.run(uid)));
                self.start_failed(uid, &error);
                Ok(())
            }
            (Work::Start, Ok(_)) => Ok(()),
            (Work::Mend, Ok(Outcome::Mended(Some(attached)))) => self.note_mended(uid, &attached),
            (Work::Mend, Ok(_)) => Ok(()),
            (Work::Mend, Err(error)) => {
                self.failed(uid);
                self.memory(uid).mend = true;
                let key = self.run_called(uid).map(|run| run.key());
                key.into_iter()
                    .for_each(|key| self.events.add(&key, true, "NetworksNotMended", &error.chain()));
                Ok(())
            }
            (Work::RemoveNetworks, Ok(_)) => Ok(()),
            (Work::RemoveNetworks, Err(error)) => {
                self.failed(uid);
                Err(error)
            }
            (Work::Attach | Work::Detach, outcome) => self.volume_moved(uid, work, outcome),
            (Work::Enlarge, outcome) => self.enlarged(uid, outcome),
            (Work::Clear, outcome) => {
                // Its launcher may have recorded an end in between, and starts no guest again then.
                self.memory(uid).seen = Some(apply::recorded_state(&self.state.run(uid)));
                match outcome {
                    Ok(_) => Ok(()),
                    Err(error) => {
                        self.failed(uid);
                        Err(error)
                    }
                }
            }
        };
        self.noted(uid, noted);
    }

    /// Logs a result that could not be stored.
    fn noted(&mut self, uid: &str, noted: Result<(), Error>) {
        if let Err(error) = noted {
            let key = super::store::Key::new(Kind::VirtualMachineInstance, "", uid);
            self.events.add(&key, true, "StateFailed", &error.chain());
        }
    }

    /// Notes what a run was started with.
    fn note_start(&mut self, uid: &str, started: Started) -> Result<(), Error> {
        let run = self.run_called(uid);
        let Some(mut run) = run else { return Ok(()) };
        let key = run.key();
        let status = run.status.get_or_insert_default();
        if status.phase.as_deref() != Some("Running") {
            if let Some(attached) = &started.attached {
                self.events.add(&key, false, "NetworksAttached", &networks::text(attached));
            }
            status::phase(status, "Scheduled");
            status.volume_status = live::attached(&run.spec);
            self.events.add(&key, false, "Started", "VirtualMachineInstance started.");
        }
        status.machine = Some(MachineStatus { kind: started.machine });
        if let Some((cpu, memory)) = &started.size {
            status::size(status, cpu, memory);
            live::keep_room(&mut run.spec, cpu, memory);
        }
        status.node_name = Some("this".to_owned());
        status.runtime_user = Some(started.user);
        status.reason = None;
        status::condition(&mut status.conditions, "Synchronized", true, "", "");
        if let Some(attached) = &started.attached {
            self.note_networks(&mut run, attached);
        }
        self.store.put(&run)
    }

    /// The run of this UID.
    pub(super) fn run_called(&self, uid: &str) -> Option<VirtualMachineInstance> {
        self.store.called(uid)
    }

    /// Notes what a run that goes on is attached to.
    fn note_mended(&mut self, uid: &str, attached: &Attached) -> Result<(), Error> {
        let memory = self.memory(uid);
        (memory.failures, memory.retry) = (0, None);
        let Some(mut run) = self.run_called(uid) else { return Ok(()) };
        self.note_networks(&mut run, attached);
        self.store.put(&run)
    }

    /// Stores the networks of a run, and updates the network services of the daemon.
    fn note_networks(&mut self, run: &mut VirtualMachineInstance, attached: &Attached) {
        let key = run.key();
        let status = run.status.get_or_insert_default();
        status.interfaces = networks::statuses(attached);
        let kind = "NetworkNotes";
        if attached.notes.is_empty() {
            status::without(&mut status.conditions, kind);
        } else {
            status::condition(&mut status.conditions, kind, true, "Noted", &attached.notes.join("; "));
        }
        if let Err(error) = self.services.advertise(&owner_uid(run), attached) {
            self.events.add(&key, true, "RouterNotAdvertised", &error.chain());
        }
        self.forward_names();
    }

    /// Notes what was seen of a run.
    pub(super) fn handle_news(&mut self, uid: &str, news: News) {
        let run = self.run_called(uid);
        let Some(mut run) = run else { return };
        let noted = match news {
            News::Event(event) => {
                self.note_event(&mut run, event);
                self.store.put(&run)
            }
            News::Observed(seen, status) => {
                // A worker that was killed has forgotten that it was asked; a request that is made twice only shortens.
                if seen != LauncherState::Guest(api::launcher::State::Stopping) {
                    self.memory(uid).asked = false;
                }
                self.memory(uid).seen = Some(seen.clone());
                match (seen, status) {
                    (LauncherState::Guest(_), Some(seen)) => self.note_status(&mut run, &seen),
                    (_, _) => Ok(()),
                }
            }
            News::Os(info) => {
                run.status.get_or_insert_default().guest_os_info = Some(*info);
                self.store.put(&run)
            }
        };
        self.noted(uid, noted);
        self.ask_what_it_is(uid);
    }

    /// Asks the agent of a guest what that is, once it is there.
    fn ask_what_it_is(&mut self, uid: &str) {
        let Some(status) = self.run_called(uid).and_then(|run| run.status) else { return };
        let there = status::holds(&status.conditions, "AgentConnected").is_some();
        let before = std::mem::replace(&mut self.memory(uid).known, there);
        if !there || before || status.guest_os_info.is_some() {
            return;
        }
        let (run, sender, told) = (self.state.run(uid), self.sender(), uid.to_owned());
        let work = move || {
            // An agent that does not know is asked again when it comes the next time.
            if let Some(info) = agent::what_it_is(&run) {
                drop(sender.send(Message::News(told, News::Os(Box::new(info)))));
            }
        };
        drop(std::thread::Builder::new().name("agent".to_owned()).spawn(work));
    }

    /// The accelerator of a run's guest, and why.
    fn accelerator_of(&mut self, run: &VirtualMachineInstance) -> (Accelerator, String) {
        let (keep, decided) = (self.state.guest(&owner_uid(run)), self.accelerator);
        let memory = self.memory(run.uid());
        if let Some(known) = &memory.accelerator {
            return known.clone();
        }
        let Ok(kept) = kept::read(&keep) else { return (decided.unwrap_or(Accelerator::Tcg), String::new()) };
        let accelerator = kept.accelerator.or(decided).unwrap_or(Accelerator::Tcg);
        memory.accelerator.insert((accelerator, kept.why)).clone()
    }

    pub(super) fn note_status(
        &mut self,
        run: &mut VirtualMachineInstance,
        seen: &Status,
    ) -> Result<(), Error> {
        let (accelerator, why) = self.accelerator_of(run);
        if FINAL.contains(&phase(run)) {
            return Ok(());
        }
        let status: &mut VirtualMachineInstanceStatus = run.status.get_or_insert_default();
        let before = status::holds(&status.conditions, "Paused").is_some();
        status::doing(status, seen, accelerator);
        if accelerator == Accelerator::Tcg && !why.is_empty() {
            let text = format!("the guest runs in software, many times slower: {why}");
            status::condition(&mut status.conditions, "SoftwareEmulation", true, "NoKVM", &text);
        }
        live::note_size(status, &run.spec);
        let now = status::holds(&status.conditions, "Paused").cloned();
        let key = run.key();
        match (before, now) {
            (false, Some(condition)) => {
                let reason = condition.reason.unwrap_or_default();
                let bad = reason == "PausedIOError";
                self.events.add(&key, bad, "Paused", &condition.message.unwrap_or_default());
            }
            (true, None) => self.events.add(&key, false, "Unpaused", "the guest goes on"),
            (true, Some(_)) | (false, None) => {}
        }
        self.store.put(run)
    }

    fn note_event(&mut self, run: &mut VirtualMachineInstance, event: Event) {
        let key = run.key();
        let conditions = &mut run.status.get_or_insert_default().conditions;
        match event {
            Event::Rebooted => self.events.add(&key, false, "Rebooted", "the guest rebooted"),
            Event::Watchdog => self.events.add(&key, true, "Watchdog", "the guest's watchdog expired"),
            Event::IoError { disk, reason } => {
                let text = format!("{disk} failed: {reason}; the guest waits for you to unpause it");
                self.events.add(&key, true, "IOerror", &text);
            }
            Event::Detached { device } => self.device_gone(run, &device),
            Event::Agent { connected: true } => status::condition(conditions, "AgentConnected", true, "", ""),
            Event::Agent { connected: false } => status::without(conditions, "AgentConnected"),
            Event::Status(_) => {}
        }
    }

    /// Notes how far a volume's job is.
    pub(super) fn progress(&mut self, uid: &str, percent: f64) {
        let noted = self.volume_progress(uid, percent);
        self.noted(uid, noted);
    }

    /// Records an intermediate event of a run's job.
    pub(super) fn record_event(&mut self, uid: &str, reason: &str, text: &str) {
        if let Some(run) = self.run_called(uid) {
            self.events.add(&run.key(), false, reason, text);
        }
    }
}
