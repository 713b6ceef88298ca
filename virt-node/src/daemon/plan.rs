//! What is decided about machines and their runs: pure, from what is wanted and what was found to the steps that lead
//! there. Each step can be cut short anywhere; the next look finds what is left to do.
//!
//! ```text
//! machine (VirtualMachine)          : when there is a run, by its strategy, requests and back-off
//! run (VirtualMachineInstance)      : from volumes that are ready over a launcher to its end and nothing
//! ```

use api::launcher::{Exit, State};

/// A run that lasted so long was no crash at its start, in seconds.
const LONG: u64 = 300;
/// Longest wait before a run is tried again, in seconds.
const WAIT_MAX: u64 = 300;

/// When a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    Always,
    Halted,
    Manual,
    RerunOnFailure,
    Once,
}

impl Strategy {
    /// What `runStrategy` or `running` means.
    pub(super) fn of(running: Option<bool>, strategy: Option<&str>) -> Self {
        match (running, strategy) {
            (Some(true), _) | (None, Some("Always")) => Self::Always,
            (None, Some("Manual")) => Self::Manual,
            (None, Some("RerunOnFailure")) => Self::RerunOnFailure,
            (None, Some("Once")) => Self::Once,
            (Some(false), _) | (None, _) => Self::Halted,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Halted => "Halted",
            Self::Manual => "Manual",
            Self::RerunOnFailure => "RerunOnFailure",
            Self::Once => "Once",
        }
    }
}

/// The run of a machine, as the machine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunOf {
    /// It is being ended.
    pub(super) deleting: bool,
    /// It ended; whether it failed.
    pub(super) failed: Option<bool>,
}

/// A machine, as it was found.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) strategy: Strategy,
    /// The strategy that was followed last.
    pub(super) followed: Option<Strategy>,
    pub(super) deleting: bool,
    /// A run was asked for.
    pub(super) start: bool,
    pub(super) run: Option<RunOf>,
    /// Its volumes are all made (not: filled).
    pub(super) templates: bool,
    /// Some of its volumes are there.
    pub(super) owns: bool,
    /// Something of its networks is left, and nobody else takes it away.
    pub(super) networks: bool,
    /// Its volumes are filled.
    pub(super) ready: bool,
    /// When it may be tried again, in seconds since 1970.
    pub(super) retry: Option<u64>,
    pub(super) now: u64,
}

/// A step of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Make what `dataVolumeTemplates` says.
    MakeVolumes,
    /// Make a run.
    MakeRun,
    /// End the run, and take it away.
    EndRun,
    /// What was asked for is done.
    DropStart,
    /// Remember the strategy that is followed.
    Follow,
    /// Take what is left of its networks away.
    RemoveNetworks,
    /// Take its volumes away.
    RemoveVolumes,
    /// Nothing is left of it.
    Remove,
    /// Look again at this time.
    Wait(u64),
}

/// What is to be done for a machine.
pub(super) fn machine(found: &Machine) -> Vec<Step> {
    let end = |run: &RunOf| if run.deleting { Vec::new() } else { vec![Step::EndRun] };
    if found.deleting {
        return match (&found.run, found.networks, found.owns) {
            (Some(run), _, _) => end(run),
            (None, true, _) => vec![Step::RemoveNetworks],
            (None, false, true) => vec![Step::RemoveVolumes],
            (None, false, false) => vec![Step::Remove],
        };
    }
    if !found.templates {
        return vec![Step::MakeVolumes];
    }
    match &found.run {
        Some(run) if run.deleting => Vec::new(),
        Some(run) => with_run(found, run),
        None => without_run(found),
    }
}

fn with_run(found: &Machine, run: &RunOf) -> Vec<Step> {
    let again = match (found.strategy, run.failed) {
        (Strategy::Halted, _) | (Strategy::Always, Some(_)) | (Strategy::RerunOnFailure, Some(true)) => true,
        (Strategy::Manual | Strategy::RerunOnFailure, Some(_)) => found.start,
        (Strategy::Once, Some(_)) => false,
        (Strategy::Always | Strategy::Manual | Strategy::RerunOnFailure | Strategy::Once, None) => false,
    };
    match (again, found.start && run.failed.is_none(), found.followed == Some(found.strategy)) {
        (true, _, _) => vec![Step::EndRun],
        (false, true, _) => vec![Step::DropStart],
        (false, false, false) => vec![Step::Follow],
        (false, false, true) => Vec::new(),
    }
}

fn without_run(found: &Machine) -> Vec<Step> {
    let fresh = found.followed != Some(found.strategy);
    let wanted = match found.strategy {
        Strategy::Always => true,
        Strategy::Halted => false,
        Strategy::Manual => found.start,
        Strategy::RerunOnFailure => found.start || fresh,
        Strategy::Once => fresh,
    };
    match (wanted, found.ready, found.retry) {
        (false, _, _) if fresh => vec![Step::Follow],
        (false, _, _) | (true, false, _) => Vec::new(),
        (true, true, Some(time)) if time > found.now => vec![Step::Wait(time)],
        (true, true, _) => vec![Step::MakeRun, Step::DropStart, Step::Follow],
    }
}

/// What a run's launcher was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// There is no folder of the run.
    Nothing,
    /// There is, and no launcher; the guest may run without one.
    Down,
    /// The launcher waits for its guest.
    Waiting,
    /// There is a guest.
    Guest(State),
    /// The guest ended.
    Ended(Exit),
}

/// A run, as it was found.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) deleting: bool,
    /// Its end is in its status.
    pub(super) over: bool,
    /// Its launcher was to be started before.
    pub(super) begun: bool,
    /// Its volumes are filled.
    pub(super) ready: bool,
    /// Something of its networks is left after a boot, and nobody else takes it away.
    pub(super) networks: bool,
    /// Something is being done for it.
    pub(super) busy: bool,
    /// It was asked to end.
    pub(super) asked: bool,
    /// When it may be tried again.
    pub(super) retry: Option<u64>,
    pub(super) now: u64,
    pub(super) seen: Seen,
}

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RunStep {
    /// Make what it needs, its launcher, its guest: whatever of it is not there.
    Start,
    /// Have its launcher look after a guest that may be there, and start none.
    Adopt,
    /// Ask the guest to end.
    Shutdown,
    /// Note how it ended; `None`: nobody saw it.
    Finish(Option<Exit>),
    /// Take away what was made for it.
    Clear,
    /// Nothing is left of it.
    Remove,
    /// Look again at this time.
    Wait(u64),
}

/// What is to be done for a run.
pub(super) fn run(found: &Run) -> Option<RunStep> {
    if found.busy {
        return None;
    }
    if found.over {
        return match (&found.seen, found.deleting) {
            (Seen::Nothing, true) if found.networks => Some(RunStep::Clear),
            (Seen::Nothing, true) => Some(RunStep::Remove),
            (Seen::Nothing, false) => None,
            (Seen::Down | Seen::Waiting | Seen::Guest(_) | Seen::Ended(_), _) => Some(RunStep::Clear),
        };
    }
    let start = || match found.retry {
        Some(time) if time > found.now => Some(RunStep::Wait(time)),
        Some(_) | None => Some(RunStep::Start),
    };
    match (&found.seen, found.deleting) {
        (Seen::Ended(exit), _) => Some(RunStep::Finish(Some(exit.clone()))),
        // Its launcher was there, and then the machine was switched off.
        (Seen::Nothing, _) if found.begun => Some(RunStep::Finish(None)),
        (Seen::Nothing, true) if found.networks => Some(RunStep::Clear),
        (Seen::Nothing, true) => Some(RunStep::Remove),
        (Seen::Nothing, false) => {
            if found.ready {
                start()
            } else {
                None
            }
        }
        (Seen::Down, true) => Some(RunStep::Adopt),
        (Seen::Waiting, true) => Some(RunStep::Clear),
        (Seen::Down | Seen::Waiting, false) => start(),
        (Seen::Guest(_), true) => (!found.asked).then_some(RunStep::Shutdown),
        (Seen::Guest(_), false) => None,
    }
}

/// How long after the `failures`th crash in a row a machine is tried again, in seconds: upstream's rule.
pub(super) fn back_off(failures: u32) -> u64 {
    let failures = u64::from(failures);
    failures.saturating_mul(failures).saturating_mul(10).min(WAIT_MAX)
}

/// Crashes in a row after a run that ended: one that succeeded or lasted is no crash.
pub(super) fn failures(before: u32, failed: bool, lasted: u64) -> u32 {
    match (failed, lasted >= LONG) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => before.saturating_add(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::launcher::Cause;

    fn still(strategy: Strategy) -> Machine {
        Machine {
            strategy,
            followed: Some(strategy),
            deleting: false,
            start: false,
            run: None,
            templates: true,
            owns: false,
            networks: false,
            ready: true,
            retry: None,
            now: 100,
        }
    }

    fn running(strategy: Strategy, failed: Option<bool>) -> Machine {
        Machine { run: Some(RunOf { deleting: false, failed }), ..still(strategy) }
    }

    const MADE: [Step; 3] = [Step::MakeRun, Step::DropStart, Step::Follow];

    #[test]
    fn strategies_say_when_there_is_a_run() {
        use Strategy::{Always, Halted, Manual, Once, RerunOnFailure};
        let none: Vec<Step> = Vec::new();
        for (name, found, wanted) in [
            ("always", still(Always), MADE.to_vec()),
            ("halted", still(Halted), none.clone()),
            ("manual", still(Manual), none.clone()),
            ("once, again", still(Once), none.clone()),
            ("rerun, again", still(RerunOnFailure), none.clone()),
            ("once", Machine { followed: None, ..still(Once) }, MADE.to_vec()),
            ("rerun", Machine { followed: Some(Halted), ..still(RerunOnFailure) }, MADE.to_vec()),
            ("halted anew", Machine { followed: Some(Always), ..still(Halted) }, vec![Step::Follow]),
            ("manual, asked", Machine { start: true, ..still(Manual) }, MADE.to_vec()),
            ("rerun, asked", Machine { start: true, ..still(RerunOnFailure) }, MADE.to_vec()),
            ("not filled", Machine { ready: false, ..still(Always) }, none.clone()),
            ("not made", Machine { templates: false, ..still(Always) }, vec![Step::MakeVolumes]),
            ("backing off", Machine { retry: Some(130), ..still(Always) }, vec![Step::Wait(130)]),
            ("backed off", Machine { retry: Some(100), ..still(Always) }, MADE.to_vec()),
            ("runs", running(Always, None), none.clone()),
            ("runs, halted", running(Halted, None), vec![Step::EndRun]),
            ("runs, asked for", Machine { start: true, ..running(Manual, None) }, vec![Step::DropStart]),
            ("ended", running(Always, Some(false)), vec![Step::EndRun]),
            ("ended manual", running(Manual, Some(true)), none.clone()),
            (
                "ended manual, asked",
                Machine { start: true, ..running(Manual, Some(false)) },
                vec![Step::EndRun],
            ),
            ("failed", running(RerunOnFailure, Some(true)), vec![Step::EndRun]),
            ("succeeded", running(RerunOnFailure, Some(false)), none.clone()),
            ("ended once", running(Once, Some(true)), none),
        ] {
            assert_eq!(machine(&found), wanted, "{name}");
        }
    }

    #[test]
    fn a_deletion_takes_everything_in_its_order() {
        let deleting = |found: Machine| Machine { deleting: true, ..found };
        let found = deleting(running(Strategy::Always, None));
        assert_eq!(machine(&found), [Step::EndRun]);
        let found = Machine { owns: true, ..deleting(still(Strategy::Always)) };
        assert_eq!(machine(&found), [Step::RemoveVolumes]);
        assert_eq!(machine(&Machine { networks: true, ..found }), [Step::RemoveNetworks]);
        assert_eq!(machine(&deleting(still(Strategy::Always))), [Step::Remove]);
        let mut found = deleting(running(Strategy::Always, None));
        found.run.as_mut().unwrap().deleting = true;
        assert_eq!(machine(&found), []);
    }

    fn seen(seen: Seen) -> Run {
        Run {
            deleting: false,
            over: false,
            begun: true,
            ready: true,
            networks: false,
            busy: false,
            asked: false,
            retry: None,
            now: 100,
            seen,
        }
    }

    #[test]
    fn a_run_goes_from_nothing_to_nothing() {
        let exit = Exit { uid: "a".into(), cause: Cause::Shutdown, code: 0, time: 5 };
        let new = Run { begun: false, ..seen(Seen::Nothing) };
        let ended = || seen(Seen::Ended(exit.clone()));
        let guest = || seen(Seen::Guest(State::Running));
        for (name, found, wanted) in [
            ("new", new.clone(), Some(RunStep::Start)),
            ("busy", Run { busy: true, ..new.clone() }, None),
            ("volumes are filled", Run { ready: false, ..new.clone() }, None),
            ("tried again later", Run { retry: Some(101), ..new.clone() }, Some(RunStep::Wait(101))),
            ("deleted before", Run { deleting: true, ..new }, Some(RunStep::Remove)),
            ("switched off", seen(Seen::Nothing), Some(RunStep::Finish(None))),
            ("cut short", seen(Seen::Down), Some(RunStep::Start)),
            ("not launched", seen(Seen::Waiting), Some(RunStep::Start)),
            ("runs", guest(), None),
            ("to end", Run { deleting: true, ..guest() }, Some(RunStep::Shutdown)),
            ("ending", Run { deleting: true, asked: true, ..guest() }, None),
            ("to end unseen", Run { deleting: true, ..seen(Seen::Down) }, Some(RunStep::Adopt)),
            ("to end before", Run { deleting: true, ..seen(Seen::Waiting) }, Some(RunStep::Clear)),
            ("ended", ended(), Some(RunStep::Finish(Some(exit.clone())))),
            ("noted", Run { over: true, ..ended() }, Some(RunStep::Clear)),
            ("over", Run { over: true, ..seen(Seen::Nothing) }, None),
            ("gone", Run { over: true, deleting: true, ..seen(Seen::Nothing) }, Some(RunStep::Remove)),
            (
                "gone by a boot",
                Run { over: true, deleting: true, networks: true, ..seen(Seen::Nothing) },
                Some(RunStep::Clear),
            ),
        ] {
            assert_eq!(run(&found), wanted, "{name}");
        }
    }

    #[test]
    fn crashes_in_a_row_wait_longer_and_longer() {
        let waits: Vec<u64> = (1..=7).map(back_off).collect();
        assert_eq!(waits, [10, 40, 90, 160, 250, 300, 300]);
        assert_eq!(failures(2, true, 3), 3);
        assert_eq!(failures(2, true, 300), 1);
        assert_eq!(failures(2, false, 3), 0);
    }
}
