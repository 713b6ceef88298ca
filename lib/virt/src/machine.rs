//! When a VirtualMachine has an instance: pure, from its strategy, requests, back-off and what was found, to the steps that
//! lead there. Each step may be interrupted anywhere; the next decision finds what is left to do.
//!
//! The single machine and the operator decide here. The operator leaves `networks` and `owns` false: a namespace and
//! garbage collection take these away in a cluster.
//!
//! Not here: the instance itself ([`crate::run`]), the execution of the steps.

use api::kubevirt::{StateChangeRequest, VirtualMachine, VirtualMachineInstance};

/// An instance that ran this many seconds did not crash at its start.
const LONG: u64 = 300;
/// Longest wait before an instance is started again, in seconds.
const WAIT_MAX: u64 = 300;

/// `spec.runStrategy`: when a machine has an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Always; one that ended is replaced.
    Always,
    /// Never.
    Halted,
    /// When a start was requested.
    Manual,
    /// Until one succeeds; one that failed is replaced.
    RerunOnFailure,
    /// Once; one that ended stays.
    Once,
}

impl Strategy {
    /// Every strategy that a machine can have here.
    pub const ALL: [Self; 5] = [Self::Always, Self::Halted, Self::Manual, Self::RerunOnFailure, Self::Once];

    /// The meaning of `running` or `runStrategy`. Neither, and values that admission refuses, mean `Halted`.
    pub fn of(running: Option<bool>, strategy: Option<&str>) -> Self {
        match (running, strategy) {
            (Some(true), _) | (None, Some("Always")) => Self::Always,
            (None, Some("Manual")) => Self::Manual,
            (None, Some("RerunOnFailure")) => Self::RerunOnFailure,
            (None, Some("Once")) => Self::Once,
            (Some(false), _) | (None, _) => Self::Halted,
        }
    }

    /// The strategy of a machine.
    pub fn of_machine(machine: &VirtualMachine) -> Self {
        Self::of(machine.spec.running, machine.spec.run_strategy.as_deref())
    }

    /// As `runStrategy` writes it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Halted => "Halted",
            Self::Manual => "Manual",
            Self::RerunOnFailure => "RerunOnFailure",
            Self::Once => "Once",
        }
    }

    /// Whether an instance of a machine with this strategy is started again after it failed, so that back-off counts.
    pub fn restarts(self) -> bool {
        matches!(self, Self::Always | Self::RerunOnFailure | Self::Once)
    }
}

/// Phases in which an instance has ended.
pub const FINAL: [&str; 2] = ["Succeeded", "Failed"];

/// The phase of an instance; `Pending` where it has none yet.
pub fn phase(instance: &VirtualMachineInstance) -> &str {
    instance.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// The instance of a machine, as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOf {
    /// It is being deleted.
    pub deleting: bool,
    /// `None`: it has not ended. Else whether it failed.
    pub failed: Option<bool>,
    /// It was started once, without regard to the strategy: a halted machine keeps it until it ends.
    pub once: bool,
}

/// A machine, as it was found.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its strategy.
    pub strategy: Strategy,
    /// The strategy that was followed last (`status.runStrategy`).
    pub followed: Option<Strategy>,
    /// It is being deleted.
    pub deleting: bool,
    /// A start is requested (`status.stateChangeRequests`).
    pub start: bool,
    /// That start is for one instance and leaves the strategy as it is.
    pub once: bool,
    /// A stop of the instance that is there is requested.
    pub stop: bool,
    /// Its instance.
    pub run: Option<RunOf>,
    /// All DataVolumes of its templates exist, filled or not.
    pub templates: bool,
    /// Some of its volumes exist, and nothing else takes them away.
    pub owns: bool,
    /// Something of its networks is left, and nothing else takes it away.
    pub networks: bool,
    /// Its volumes are filled.
    pub ready: bool,
    /// When it may be started again, in seconds since 1970.
    pub retry: Option<u64>,
    /// The time, in seconds since 1970.
    pub now: u64,
}

/// A step of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the DataVolumes of `dataVolumeTemplates`.
    MakeVolumes,
    /// Create an instance.
    MakeRun,
    /// Delete the instance.
    EndRun,
    /// Write `Always` into the strategy: a halted machine with a start request.
    SwitchOn,
    /// Remove the start request: it is fulfilled.
    DropStart,
    /// Queue a start request: the instance failed, and is to be replaced.
    QueueStart,
    /// Write the strategy into `status.runStrategy`.
    Follow,
    /// Take away what is left of its networks.
    RemoveNetworks,
    /// Take away its volumes.
    RemoveVolumes,
    /// Nothing is left of it: the object may go.
    Remove,
    /// Decide again at this time, in seconds since 1970.
    Wait(u64),
}

/// The steps for a machine, in this order.
pub fn machine(found: &Machine) -> Vec<Step> {
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
    if found.stop {
        return vec![Step::EndRun];
    }
    let fresh = found.followed != Some(found.strategy);
    match (found.strategy, run.failed) {
        (Strategy::Halted, None) if run.once && found.start => vec![Step::DropStart],
        (Strategy::Halted, None) if run.once && fresh => vec![Step::Follow],
        (Strategy::Halted, None) if run.once => Vec::new(),
        (Strategy::Halted, _) | (Strategy::Always, Some(_)) => vec![Step::EndRun],
        (Strategy::RerunOnFailure, Some(true)) if !found.start => vec![Step::QueueStart, Step::EndRun],
        (Strategy::RerunOnFailure, Some(true)) => vec![Step::EndRun],
        (Strategy::Manual | Strategy::RerunOnFailure, Some(_)) if found.start => vec![Step::EndRun],
        (_, None) if found.start => vec![Step::DropStart],
        _ if fresh => vec![Step::Follow],
        _ => Vec::new(),
    }
}

fn without_run(found: &Machine) -> Vec<Step> {
    let fresh = found.followed != Some(found.strategy);
    let wanted = match found.strategy {
        Strategy::Always => true,
        Strategy::Halted if found.start && found.once => true,
        Strategy::Halted if found.start => return vec![Step::SwitchOn],
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

/// Whether requests contain a start.
pub fn wants_start(requests: &[StateChangeRequest]) -> bool {
    requests.iter().any(|request| request.action == "Start")
}

/// Whether requests contain a stop of the instance with this uid.
pub fn wants_stop(requests: &[StateChangeRequest], uid: &str) -> bool {
    requests.iter().any(|request| request.action == "Stop" && request.uid.as_deref() == Some(uid))
}

/// Queues a start, once.
pub fn request_start(requests: &mut Vec<StateChangeRequest>) {
    if !wants_start(requests) {
        requests.push(StateChangeRequest { action: "Start".to_owned(), ..StateChangeRequest::default() });
    }
}

/// Removes the requests that are fulfilled: stops of instances that are gone. `uid` is the instance's that is there.
pub fn drop_fulfilled(requests: &mut Vec<StateChangeRequest>, uid: Option<&str>) {
    requests.retain(|request| request.action != "Stop" || (uid.is_some() && request.uid.as_deref() == uid));
}

/// Seconds until a machine is started again after `failures` crashes in a row: 10·n², at most 300 (KubeVirt adds up to half
/// as much again by chance, which spreads the starts of many machines; the caller adds that with [`spread`]).
pub fn back_off(failures: u32) -> u64 {
    let failures = u64::from(failures);
    failures.saturating_mul(failures).saturating_mul(10).min(WAIT_MAX)
}

/// A back-off with a share of 0 to 65 535 of its chance part, `random(5·n²)`, at most 300 seconds in all.
pub fn spread(failures: u32, chance: u16) -> u64 {
    let part = u64::from(failures).saturating_mul(failures.into()).saturating_mul(5);
    let part = part.min(WAIT_MAX) * u64::from(chance) / u64::from(u16::MAX);
    back_off(failures).saturating_add(part).min(WAIT_MAX)
}

/// Crashes in a row after an instance that ended; one that succeeded, or ran for 300 seconds, starts the count again.
pub fn failures(before: u32, failed: bool, lasted: u64) -> u32 {
    match (failed, lasted >= LONG) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => before.saturating_add(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn still(strategy: Strategy) -> Machine {
        Machine {
            strategy,
            followed: Some(strategy),
            deleting: false,
            start: false,
            once: false,
            stop: false,
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
        Machine { run: Some(RunOf { deleting: false, failed, once: false }), ..still(strategy) }
    }

    fn once(strategy: Strategy, failed: Option<bool>) -> Machine {
        Machine { run: Some(RunOf { deleting: false, failed, once: true }), ..still(strategy) }
    }

    const MADE: [Step; 3] = [Step::MakeRun, Step::DropStart, Step::Follow];

    #[test]
    fn strategies_decide_when_there_is_a_run() {
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
            ("failed", running(RerunOnFailure, Some(true)), vec![Step::QueueStart, Step::EndRun]),
            (
                "failed, queued",
                Machine { start: true, ..running(RerunOnFailure, Some(true)) },
                vec![Step::EndRun],
            ),
            ("stopped", Machine { stop: true, ..running(Always, None) }, vec![Step::EndRun]),
            ("halted, asked for once", Machine { start: true, once: true, ..still(Halted) }, MADE.to_vec()),
            ("runs once, halted", once(Halted, None), none.clone()),
            ("runs once, asked", Machine { start: true, ..once(Halted, None) }, vec![Step::DropStart]),
            ("runs once, stopped", Machine { stop: true, ..once(Halted, None) }, vec![Step::EndRun]),
            ("ran once", once(Halted, Some(false)), vec![Step::EndRun]),
            ("halted, asked", Machine { start: true, ..still(Halted) }, vec![Step::SwitchOn]),
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

    #[test]
    fn crashes_in_a_row_wait_longer_and_longer() {
        let waits: Vec<u64> = (1..=7).map(back_off).collect();
        assert_eq!(waits, [10, 40, 90, 160, 250, 300, 300]);
        assert_eq!((spread(1, 0), spread(1, u16::MAX), spread(3, u16::MAX)), (10, 15, 135));
        assert_eq!((spread(5, u16::MAX), spread(u32::MAX, u16::MAX)), (300, 300));
        assert_eq!(failures(2, true, 3), 3);
        assert_eq!(failures(2, true, 300), 1);
        assert_eq!(failures(2, false, 3), 0);
    }

    #[test]
    fn requests_are_queued_once_and_dropped_when_fulfilled() {
        let stop = |uid: &str| StateChangeRequest {
            action: "Stop".to_owned(),
            uid: Some(uid.to_owned()),
            ..StateChangeRequest::default()
        };
        let mut requests = vec![stop("a")];
        request_start(&mut requests);
        request_start(&mut requests);
        assert!(requests.len() == 2 && wants_start(&requests));
        assert!(wants_stop(&requests, "a") && !wants_stop(&requests, "b"));
        drop_fulfilled(&mut requests, Some("a"));
        assert_eq!(requests.len(), 2, "the instance is still there");
        drop_fulfilled(&mut requests, Some("b"));
        assert!(requests.len() == 1 && wants_start(&requests), "another instance is there");
        requests.push(stop("b"));
        drop_fulfilled(&mut requests, None);
        assert!(requests.len() == 1 && wants_start(&requests), "no instance is there");
    }
}
