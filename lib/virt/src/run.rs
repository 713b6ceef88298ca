//! One VirtualMachineInstance with its launcher: pure, from what was found to the next step. Each step may be interrupted
//! anywhere; the next decision finds what is left to do.
//!
//! Not here: the existence of an instance ([`crate::machine`]), the execution of the steps.

use api::launcher::{Exit, State};

/// The observed state of a run's launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LauncherState {
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
pub struct Run {
    /// It is being deleted.
    pub deleting: bool,
    /// Its end is in its status.
    pub over: bool,
    /// Its launcher was to be started before.
    pub begun: bool,
    /// Its volumes are filled.
    pub ready: bool,
    /// Networks of it are left after a boot, and only this step removes them.
    pub networks: bool,
    /// Something is being done for it.
    pub busy: bool,
    /// It was asked to end.
    pub asked: bool,
    /// It is being deleted, and from this time on whatever is left of its guest is killed without its launcher.
    pub overdue: Option<u64>,
    /// When it may be tried again.
    pub retry: Option<u64>,
    /// The time, in seconds since 1970.
    pub now: u64,
    /// Its launcher and guest.
    pub seen: LauncherState,
}

/// A step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Make what it needs, its launcher, its guest: whatever of it is not there.
    Start,
    /// Have its launcher look after a guest that may be there, and start none.
    Adopt,
    /// Ask the guest to end.
    Shutdown,
    /// Kill every process of its user: its launcher did not end the guest in time.
    Kill,
    /// Record how it ended; `None`: the end was not observed.
    Finish(Option<Exit>),
    /// Take away what was made for it.
    Clear,
    /// Nothing is left of it.
    Remove,
    /// Look again at this time.
    Wait(u64),
}

/// The steps for a run.
pub fn run(found: &Run) -> Option<RunStep> {
    let late = found.deleting && !found.over && found.overdue.is_some_and(|time| time <= found.now);
    let there = matches!(found.seen, LauncherState::Down | LauncherState::Waiting | LauncherState::Guest(_));
    if late && (found.busy || there) {
        return Some(RunStep::Kill);
    }
    if found.busy {
        return found.overdue.filter(|_| found.deleting && !found.over).map(RunStep::Wait);
    }
    if found.over {
        return match (&found.seen, found.deleting) {
            (LauncherState::Nothing, true) if found.networks => Some(RunStep::Clear),
            (LauncherState::Nothing, true) => Some(RunStep::Remove),
            (LauncherState::Nothing, false) => None,
            (
                LauncherState::Down
                | LauncherState::Waiting
                | LauncherState::Guest(_)
                | LauncherState::Ended(_),
                _,
            ) => Some(RunStep::Clear),
        };
    }
    let start = || match found.retry {
        Some(time) if time > found.now => Some(RunStep::Wait(time)),
        Some(_) | None => Some(RunStep::Start),
    };
    match (&found.seen, found.deleting) {
        (LauncherState::Ended(exit), _) => Some(RunStep::Finish(Some(exit.clone()))),
        // Its launcher was there, and then the machine was switched off.
        (LauncherState::Nothing, _) if found.begun => Some(RunStep::Finish(None)),
        (LauncherState::Nothing, true) if found.networks => Some(RunStep::Clear),
        (LauncherState::Nothing, true) => Some(RunStep::Remove),
        (LauncherState::Nothing, false) => {
            if found.ready {
                start()
            } else {
                None
            }
        }
        (LauncherState::Down, true) => Some(RunStep::Adopt),
        (LauncherState::Waiting, true) => Some(RunStep::Clear),
        (LauncherState::Down | LauncherState::Waiting, false) => start(),
        (LauncherState::Guest(_), true) if found.asked => found.overdue.map(RunStep::Wait),
        (LauncherState::Guest(_), true) => Some(RunStep::Shutdown),
        (LauncherState::Guest(_), false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::launcher::Cause;

    fn run_with(seen: LauncherState) -> Run {
        Run {
            deleting: false,
            over: false,
            begun: true,
            ready: true,
            networks: false,
            busy: false,
            asked: false,
            overdue: None,
            retry: None,
            now: 100,
            seen,
        }
    }

    #[test]
    fn a_run_goes_from_nothing_to_nothing() {
        let exit = Exit { uid: "a".into(), cause: Cause::Shutdown, code: 0, time: 5 };
        let new = Run { begun: false, ..run_with(LauncherState::Nothing) };
        let ended = || run_with(LauncherState::Ended(exit.clone()));
        let guest = || run_with(LauncherState::Guest(State::Running));
        let late = |time, run| Run { deleting: true, overdue: Some(time), ..run };
        for (name, found, wanted) in [
            ("new", new.clone(), Some(RunStep::Start)),
            ("busy", Run { busy: true, ..new.clone() }, None),
            ("volumes are filled", Run { ready: false, ..new.clone() }, None),
            ("tried again later", Run { retry: Some(101), ..new.clone() }, Some(RunStep::Wait(101))),
            ("deleted before", Run { deleting: true, ..new }, Some(RunStep::Remove)),
            ("switched off", run_with(LauncherState::Nothing), Some(RunStep::Finish(None))),
            ("cut short", run_with(LauncherState::Down), Some(RunStep::Start)),
            ("not launched", run_with(LauncherState::Waiting), Some(RunStep::Start)),
            ("runs", guest(), None),
            ("to end", Run { deleting: true, ..guest() }, Some(RunStep::Shutdown)),
            ("ending", Run { deleting: true, asked: true, ..guest() }, None),
            ("waited for", Run { asked: true, ..late(101, guest()) }, Some(RunStep::Wait(101))),
            ("does not end", Run { asked: true, ..late(100, guest()) }, Some(RunStep::Kill)),
            ("cannot be asked", late(100, guest()), Some(RunStep::Kill)),
            ("its launcher does not come", late(100, run_with(LauncherState::Down)), Some(RunStep::Kill)),
            (
                "its start hangs",
                Run { busy: true, ..late(100, run_with(LauncherState::Down)) },
                Some(RunStep::Kill),
            ),
            ("its start goes on", Run { busy: true, ..late(101, guest()) }, Some(RunStep::Wait(101))),
            ("ended late", late(100, ended()), Some(RunStep::Finish(Some(exit.clone())))),
            ("cleared late", Run { over: true, ..late(100, ended()) }, Some(RunStep::Clear)),
            ("being cleared late", Run { over: true, busy: true, ..late(100, ended()) }, None),
            ("to end unseen", Run { deleting: true, ..run_with(LauncherState::Down) }, Some(RunStep::Adopt)),
            (
                "to end before",
                Run { deleting: true, ..run_with(LauncherState::Waiting) },
                Some(RunStep::Clear),
            ),
            ("ended", ended(), Some(RunStep::Finish(Some(exit.clone())))),
            ("noted", Run { over: true, ..ended() }, Some(RunStep::Clear)),
            ("over", Run { over: true, ..run_with(LauncherState::Nothing) }, None),
            (
                "gone",
                Run { over: true, deleting: true, ..run_with(LauncherState::Nothing) },
                Some(RunStep::Remove),
            ),
            (
                "gone by a boot",
                Run { over: true, deleting: true, networks: true, ..run_with(LauncherState::Nothing) },
                Some(RunStep::Clear),
            ),
        ] {
            assert_eq!(run(&found), wanted, "{name}");
        }
    }
}
