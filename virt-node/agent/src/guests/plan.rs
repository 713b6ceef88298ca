//! The next step of one guest, from what was found: pure. Any step may be interrupted anywhere; the next decision finds what
//! is left to do.
//!
//! ```text
//! Scheduled ─ launcher waits ─► Launch ─► Running ─ VMI deleted ─► Shutdown ─► launcher reports the end ─► Finish
//!                 └ VMI deleted ─► Finish(NeverStarted)            pod gone without a report ─► Finish(Lost)
//! ```

use api::launcher::{Exit, Request, State};

/// Phases of a VMI, as far as the agent acts on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before Scheduled: the operator's.
    Early,
    /// The pod is ready; the guest is to be started.
    Scheduled,
    /// The guest runs.
    Running,
    /// Succeeded or Failed.
    Final,
}

impl Phase {
    /// A phase by its word; what is not known is not acted on.
    pub(crate) fn of(word: Option<&str>) -> Self {
        match word {
            Some("Scheduled") => Self::Scheduled,
            Some("Running") => Self::Running,
            Some("Succeeded" | "Failed") => Self::Final,
            Some(_) | None => Self::Early,
        }
    }
}

/// The state of the guest's launcher pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pod {
    /// It was not seen yet: the watch of pods may be behind that of VMIs. One that never comes is the operator's matter.
    Unseen,
    /// It was seen and does not exist any more.
    Gone,
    /// Its container `compute` runs, or may.
    Alive,
    /// Its container `compute` ended with this code.
    Ended(i32),
}

/// The launcher's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Launcher {
    /// Nothing yet: it does not answer, or was not asked.
    Silent,
    /// It has no guest.
    Waiting,
    /// It has a guest.
    Guest(State),
    /// Its guest ended.
    Ended(Exit),
}

/// One guest, as it was found.
#[derive(Clone, Debug)]
pub(crate) struct ObservedGuest {
    pub(crate) phase: Phase,
    /// The VMI is being deleted.
    pub(crate) deleting: bool,
    pub(crate) pod: Pod,
    pub(crate) launcher: Launcher,
    /// The guest was asked to end.
    pub(crate) asked: bool,
}

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As the launcher reports it.
    Reported(Exit),
    /// The launcher's process ended with this code and its report was not seen.
    Code(i32),
    /// Its pod is gone without a report.
    Lost,
    /// The VMI was deleted before there was a guest.
    NeverStarted,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start the guest.
    Launch,
    /// Ask the guest to end, within the VMI's grace.
    Shutdown,
    /// Write how it ended.
    Finish(End),
    /// Write how it is.
    Report,
}

/// The request that ends a guest within a grace in seconds, and reason and text of the event about it.
pub(crate) fn ending(grace: u64) -> (Request, &'static str, &'static str) {
    match grace {
        0 => (Request::Kill, "Deleted", "Signaled Deletion"),
        grace => {
            let request = Request::Shutdown { grace_seconds: Some(grace) };
            (request, "ShuttingDown", "Signaled Graceful Shutdown")
        }
    }
}

/// The next step; `None`: something has to happen first.
pub(crate) fn step(found: &ObservedGuest) -> Option<Step> {
    match found.phase {
        Phase::Early | Phase::Final => return None,
        Phase::Scheduled | Phase::Running => {}
    }
    // The launcher's word counts more than its pod's: it is written before the process ends.
    if let Launcher::Ended(exit) = &found.launcher {
        return Some(Step::Finish(End::Reported(exit.clone())));
    }
    match found.pod {
        Pod::Unseen => return None,
        Pod::Gone => return Some(Step::Finish(End::Lost)),
        Pod::Ended(code) => return Some(Step::Finish(End::Code(code))),
        Pod::Alive => {}
    }
    match (&found.launcher, found.deleting) {
        (Launcher::Silent | Launcher::Ended(_), _) => None,
        (Launcher::Waiting, true) => Some(Step::Finish(End::NeverStarted)),
        (Launcher::Waiting, false) => match found.phase {
            Phase::Scheduled => Some(Step::Launch),
            // It ran in this pod, and a launcher forgets no guest: this cannot be its launcher.
            Phase::Running => Some(Step::Finish(End::Lost)),
            Phase::Early | Phase::Final => None,
        },
        (Launcher::Guest(_), true) if !found.asked => Some(Step::Shutdown),
        (Launcher::Guest(State::Waiting | State::Starting), _) => None,
        (Launcher::Guest(State::Running | State::Paused | State::Stopping | State::Ended), _) => {
            Some(Step::Report)
        }
    }
}

/// Whether a pod may still use its networks. They are given up with its guest, not only with the pod itself: from then on the
/// guest's address may belong to another pod or node.
pub(crate) fn uses_networks(pod: Pod, phase: Phase, launcher: &Launcher) -> bool {
    match pod {
        Pod::Gone | Pod::Ended(_) => false,
        Pod::Unseen | Pod::Alive => phase != Phase::Final && !matches!(launcher, Launcher::Ended(_)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::launcher::Cause;

    fn found(phase: Phase, launcher: Launcher) -> ObservedGuest {
        ObservedGuest { phase, deleting: false, pod: Pod::Alive, launcher, asked: false }
    }

    #[test]
    fn a_guest_without_grace_is_killed() {
        let (request, reason, text) = ending(0);
        assert!(matches!(request, Request::Kill), "{request:?}");
        assert_eq!((reason, text), ("Deleted", "Signaled Deletion"));
        let (request, reason, text) = ending(30);
        assert!(matches!(request, Request::Shutdown { grace_seconds: Some(30) }), "{request:?}");
        assert_eq!((reason, text), ("ShuttingDown", "Signaled Graceful Shutdown"));
    }

    #[test]
    fn a_guest_goes_from_scheduled_to_its_end() {
        use Launcher::{Ended, Guest, Silent, Waiting};
        use Phase::{Early, Final, Running, Scheduled};
        let exit = Exit { uid: "a".into(), cause: Cause::Shutdown, code: 0, time: 5 };
        let ended = || Ended(exit.clone());
        let reported = || Some(Step::Finish(End::Reported(exit.clone())));
        let deleted = |found: ObservedGuest| ObservedGuest { deleting: true, ..found };
        for (name, found, wanted) in [
            ("not scheduled yet", found(Early, Waiting), None),
            ("no answer yet", found(Scheduled, Silent), None),
            ("waits for its guest", found(Scheduled, Waiting), Some(Step::Launch)),
            ("being started", found(Scheduled, Guest(State::Starting)), None),
            ("just started", found(Scheduled, Guest(State::Running)), Some(Step::Report)),
            ("runs", found(Running, Guest(State::Running)), Some(Step::Report)),
            ("another launcher", found(Running, Waiting), Some(Step::Finish(End::Lost))),
            ("to end", deleted(found(Running, Guest(State::Running))), Some(Step::Shutdown)),
            (
                "to end while it starts",
                deleted(found(Scheduled, Guest(State::Starting))),
                Some(Step::Shutdown),
            ),
            (
                "ending",
                ObservedGuest { asked: true, ..deleted(found(Running, Guest(State::Stopping))) },
                Some(Step::Report),
            ),
            (
                "deleted before it started",
                deleted(found(Scheduled, Waiting)),
                Some(Step::Finish(End::NeverStarted)),
            ),
            ("deleted, no answer", deleted(found(Running, Silent)), None),
            ("ended", found(Running, ended()), reported()),
            ("ended before it was seen to run", found(Scheduled, ended()), reported()),
            ("ended, pod too", ObservedGuest { pod: Pod::Ended(1), ..found(Running, ended()) }, reported()),
            (
                "pod ended",
                ObservedGuest { pod: Pod::Ended(1), ..found(Running, Silent) },
                Some(Step::Finish(End::Code(1))),
            ),
            ("pod not seen yet", ObservedGuest { pod: Pod::Unseen, ..found(Scheduled, Silent) }, None),
            (
                "pod gone",
                ObservedGuest { pod: Pod::Gone, ..found(Running, Silent) },
                Some(Step::Finish(End::Lost)),
            ),
            ("over", ObservedGuest { pod: Pod::Gone, ..found(Final, Silent) }, None),
        ] {
            assert_eq!(step(&found), wanted, "{name}");
        }
    }

    #[test]
    fn networks_are_given_up_with_the_guest() {
        use Launcher::{Ended, Guest, Silent, Waiting};
        let exit = Exit { uid: "a".into(), cause: Cause::Shutdown, code: 0, time: 5 };
        for (name, pod, phase, launcher, uses) in [
            ("before the guest", Pod::Alive, Phase::Scheduled, Waiting, true),
            ("runs", Pod::Alive, Phase::Running, Guest(State::Running), true),
            ("is shutting down", Pod::Alive, Phase::Running, Guest(State::Stopping), true),
            ("an agent that has just started", Pod::Alive, Phase::Running, Silent, true),
            ("the watch of pods is behind", Pod::Unseen, Phase::Early, Silent, true),
            ("ended, the pod is there", Pod::Alive, Phase::Running, Ended(exit.clone()), false),
            ("ended, and it was written", Pod::Alive, Phase::Final, Silent, false),
            ("ended, the pod's object is gone", Pod::Unseen, Phase::Final, Silent, false),
            ("the pod ended", Pod::Ended(0), Phase::Running, Guest(State::Running), false),
            ("the pod is gone", Pod::Gone, Phase::Early, Silent, false),
        ] {
            assert_eq!(uses_networks(pod, phase, &launcher), uses, "{name}");
        }
    }

    #[test]
    fn phases_that_are_not_known_are_not_acted_on() {
        for (word, phase) in [
            (None, Phase::Early),
            (Some("Pending"), Phase::Early),
            (Some("Scheduled"), Phase::Scheduled),
            (Some("Running"), Phase::Running),
            (Some("Succeeded"), Phase::Final),
            (Some("WaitingForSync"), Phase::Early),
        ] {
            assert_eq!(Phase::of(word), phase);
        }
    }
}
