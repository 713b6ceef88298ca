//! Runs of VMs: the step of [`virt::run`] as actions, and the end of a run in its status and its VM's.

use api::kubevirt::{StartFailure, VirtualMachine, VirtualMachineInstance};
use api::launcher::{Cause, Exit, State};

use super::{Action, Attempt, Object, RunAction};
use crate::daemon::claim::Filled;
use crate::daemon::metadata::is_owned;
use crate::daemon::object::Stored;
use virt::live;
use virt::machine::{self, FINAL, Strategy, phase, request_start};
use virt::resolve;
use virt::run::{self, LauncherState, Run, RunStep};
use virt::{status, time};

/// Seconds after a guest's grace in which its launcher must have ended it.
const END_MARGIN: u64 = 30;

/// The facts about a run.
#[derive(Clone, Debug)]
pub(in crate::daemon) struct Observed<'a> {
    pub(in crate::daemon) run: &'a VirtualMachineInstance,
    /// The VM of its name.
    pub(in crate::daemon) machine: Option<&'a VirtualMachine>,
    /// How its claims stand, the worst first.
    pub(in crate::daemon) stand: Filled,
    /// Something of its networks is left after a boot.
    pub(in crate::daemon) networks: bool,
    /// Its guest was asked to end.
    pub(in crate::daemon) asked: bool,
    /// Its launcher and guest.
    pub(in crate::daemon) seen: LauncherState,
    pub(in crate::daemon) attempt: Attempt,
}

impl Observed<'_> {
    fn found(&self) -> Run {
        let Self { run, attempt, .. } = self;
        Run {
            deleting: run.is_deleting(),
            over: FINAL.contains(&phase(run)),
            begun: ["Scheduled", "Running"].contains(&phase(run)),
            ready: self.stand == Filled::Ready,
            // A machine's are taken away with it, so that its next run has the same addresses.
            networks: run.is_deleting() && run.metadata.owner_references.is_empty() && self.networks,
            busy: attempt.busy,
            asked: self.asked,
            overdue: overdue(run),
            retry: attempt.retry,
            now: attempt.now,
            seen: self.seen.clone(),
        }
    }
}

/// When a run that is being deleted is killed without its launcher.
fn overdue(run: &VirtualMachineInstance) -> Option<u64> {
    let asked = run.metadata.deletion_timestamp.as_deref().and_then(time::seconds)?;
    let own = run.spec.termination_grace_period_seconds.unwrap_or(resolve::GRACE_SECONDS);
    let grace = run.metadata.deletion_grace_period_seconds.unwrap_or(own);
    Some(asked.saturating_add(grace).saturating_add(END_MARGIN))
}

/// The actions that bring a run towards its spec, or its end.
pub(in crate::daemon) fn reconcile(observed: &Observed<'_>) -> Vec<Action> {
    let found = observed.found();
    let mut run = observed.run.clone();
    let mut actions = Vec::new();
    if !found.over && !found.begun && resolve::claims_of(&run.spec).next().is_some() {
        status::volumes(&mut run.status.get_or_insert_default().conditions, found.ready);
        actions.push(put(&run));
    }
    let Some(step) = run::run(&found) else {
        let there = matches!(found.seen, LauncherState::Guest(State::Running | State::Paused));
        if there && !found.deleting && !found.busy {
            actions.push(Action::Run(RunAction::MoveDevices));
        }
        return actions;
    };
    match step {
        // One that failed just now is tried again later.
        RunStep::Adopt | RunStep::Clear if !observed.attempt.may_begin(&mut actions) => {}
        RunStep::Start | RunStep::Adopt => {
            if phase(&run) == "Pending" {
                status::phase(run.status.get_or_insert_default(), "Scheduling");
                actions.push(put(&run));
            }
            actions.push(Action::Run(RunAction::Start { launch: step == RunStep::Start }));
        }
        RunStep::Shutdown => actions.push(Action::Run(RunAction::ShutDown)),
        RunStep::Kill => actions.push(Action::Run(RunAction::Kill)),
        RunStep::Finish(exit) => actions.extend(finish(run, observed, exit.as_ref())),
        RunStep::Clear => actions.push(Action::Run(RunAction::Clear)),
        RunStep::Remove => actions.push(Action::Run(RunAction::Remove)),
        RunStep::Wait(time) => actions.push(Action::Look(time)),
    }
    actions
}

fn put(run: &VirtualMachineInstance) -> Action {
    Action::Put(Object::Instance(Box::new(run.clone())))
}

/// Records the end of a run.
fn finish(mut run: VirtualMachineInstance, observed: &Observed<'_>, exit: Option<&Exit>) -> Vec<Action> {
    let (deleting, now) = (run.is_deleting(), observed.attempt.now);
    let status = run.status.get_or_insert_default();
    let since = status::since(status, "Running").unwrap_or(now);
    let (failed, ended, cause) = match exit {
        Some(exit) => (exit.code != 0 && !deleting, exit.time, exit.cause),
        None => (!deleting, now, Cause::Lost),
    };
    status::phase(status, if failed { "Failed" } else { "Succeeded" });
    status.reason = None;
    status.volume_status.clear();
    for kind in ["Ready", "Paused", "AgentConnected", live::PROCESSORS, live::MEMORY] {
        status::without(&mut status.conditions, kind);
    }
    status::condition(&mut status.conditions, "Ready", false, "PodTerminating", "the guest ended");
    let text = match cause {
        Cause::Shutdown => "The VirtualMachineInstance was shut down.",
        Cause::Rebooted => "The guest was reset, or crashed.",
        Cause::Killed => "The guest was killed as asked.",
        Cause::Crashed => "The VirtualMachineInstance crashed.",
        Cause::Lost => "The guest ended while no worker was running; the cause is unknown.",
    };
    let event = if failed { Action::warning("Crashed", text) } else { Action::event("Stopped", text) };
    let mut actions = vec![event, put(&run)];
    let machine = observed.machine.filter(|machine| is_owned(&run.metadata, machine.uid()));
    actions.extend(machine.map(|machine| {
        // A machine that was switched off is no crash of the guest.
        let crashed = failed && exit.is_some();
        let mut machine = machine.clone();
        let rerun = failed && Strategy::of_machine(&machine) == Strategy::RerunOnFailure;
        let status = machine.status.get_or_insert_default();
        let before = status.start_failure.as_ref().and_then(|one| one.consecutive_fail_count).unwrap_or(0);
        let failures = machine::failures(before, crashed, ended.saturating_sub(since));
        status.start_failure = (failures > 0).then(|| StartFailure {
            consecutive_fail_count: Some(failures),
            last_failed_uid: run.metadata.uid.clone(),
            retry_after_timestamp: Some(time::text(now + machine::back_off(failures))),
        });
        if rerun {
            request_start(&mut status.state_change_requests);
        }
        Action::Put(Object::Machine(Box::new(machine)))
    }));
    actions
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn run(phase: &str, metadata: &Value) -> VirtualMachineInstance {
        let mut run = json!({
            "metadata": {"name": "vm", "namespace": "a", "uid": "r", "ownerReferences": [{"uid": "m"}]},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": phase},
        });
        if let (Some(all), Some(more)) = (run["metadata"].as_object_mut(), metadata.as_object()) {
            all.extend(more.clone());
        }
        serde_json::from_value(run).unwrap()
    }

    fn observed(run: &VirtualMachineInstance, seen: LauncherState) -> Observed<'_> {
        let attempt = Attempt { busy: false, retry: None, now: NOW };
        Observed { run, machine: None, stand: Filled::Ready, networks: false, asked: false, seen, attempt }
    }

    fn phases(actions: &[Action]) -> Vec<&str> {
        let stored = actions.iter().filter_map(|action| {
            let Action::Put(Object::Instance(run)) = action else { return None };
            Some(phase(run))
        });
        stored.collect()
    }

    #[test]
    fn a_run_is_started_when_its_volumes_are_filled_and_moves_devices_while_it_runs() {
        let new = run("Pending", &Value::Null);
        let waiting = Observed { stand: Filled::NotYet, ..observed(&new, LauncherState::Nothing) };
        assert_eq!(reconcile(&waiting), []);
        let actions = reconcile(&observed(&new, LauncherState::Nothing));
        assert_eq!(
            (phases(&actions), actions.last()),
            (vec!["Scheduling"], Some(&Action::Run(RunAction::Start { launch: true })))
        );
        let later = Attempt { busy: false, retry: Some(NOW + 9), now: NOW };
        let later = Observed { attempt: later, ..observed(&new, LauncherState::Nothing) };
        assert_eq!(reconcile(&later), [Action::Look(NOW + 9)]);
        let up = run("Running", &Value::Null);
        assert_eq!(
            reconcile(&observed(&up, LauncherState::Guest(State::Running))),
            [Action::Run(RunAction::MoveDevices)]
        );
        assert_eq!(reconcile(&observed(&up, LauncherState::Guest(State::Stopping))), []);
    }

    #[test]
    fn a_deleted_run_is_asked_to_end_then_killed_then_removed() {
        let old = |phase: &str, ago: u64| {
            run(phase, &json!({"deletionTimestamp": time::text(NOW - ago), "deletionGracePeriodSeconds": 10}))
        };
        let running = old("Running", 5);
        let there = observed(&running, LauncherState::Guest(State::Running));
        assert_eq!(reconcile(&there), [Action::Run(RunAction::ShutDown)]);
        assert_eq!(reconcile(&Observed { asked: true, ..there }), [Action::Look(NOW - 5 + 10 + END_MARGIN)]);
        let late = old("Running", 5 + 10 + END_MARGIN);
        assert_eq!(
            reconcile(&observed(&late, LauncherState::Guest(State::Running))),
            [Action::Run(RunAction::Kill)]
        );
        let over = old("Succeeded", 5);
        assert_eq!(reconcile(&observed(&over, LauncherState::Down)), [Action::Run(RunAction::Clear)]);
        let failed = Attempt { busy: false, retry: Some(NOW + 3), now: NOW };
        let failed = Observed { attempt: failed, ..observed(&over, LauncherState::Down) };
        assert_eq!(reconcile(&failed), [Action::Look(NOW + 3)]);
        assert_eq!(reconcile(&observed(&over, LauncherState::Nothing)), [Action::Run(RunAction::Remove)]);
    }

    #[test]
    fn a_crash_is_counted_in_its_own_machine_and_a_lost_guest_is_not() {
        let up = run("Running", &Value::Null);
        let machine = |uid: &str| -> VirtualMachine {
            serde_json::from_value(json!({
                "metadata": {"name": "vm", "namespace": "a", "uid": uid},
                "spec": {"runStrategy": "RerunOnFailure", "template": {"spec": {"domain": {"devices": {}}}}},
            }))
            .unwrap()
        };
        let exit = Exit { uid: "r".to_owned(), cause: Cause::Crashed, code: 1, time: NOW };
        let end = |machine: &VirtualMachine, seen: LauncherState| {
            let actions = reconcile(&Observed { machine: Some(machine), ..observed(&up, seen) });
            assert_eq!(phases(&actions), ["Failed"], "{actions:?}");
            actions.into_iter().find_map(|action| {
                let Action::Put(Object::Machine(machine)) = action else { return None };
                machine.status
            })
        };
        let crashed = end(&machine("m"), LauncherState::Ended(exit.clone())).unwrap();
        assert_eq!(crashed.start_failure.unwrap().consecutive_fail_count, Some(1));
        assert_eq!(crashed.state_change_requests.len(), 1, "it is to run again");
        assert!(end(&machine("m"), LauncherState::Nothing).unwrap().start_failure.is_none());
        assert!(end(&machine("another"), LauncherState::Ended(exit)).is_none());
    }
}
