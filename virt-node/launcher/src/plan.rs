//! Decisions about processes and runs, without effects: pure.

use std::time::Duration;

use api::launch::Launch;
use api::launcher::{Cause, Exit};

/// How soon a worker that ended is started again: at once, then later each time it did not live long.
const DELAYS: [u64; 6] = [0, 100, 300, 1000, 3000, 5000];
/// A worker that lived so long had no trouble with its start.
const LONG: Duration = Duration::from_secs(30);

/// How long to wait before a worker is started again that lived for `lived`, and how many in a row did not live long.
pub(super) fn delay(lived: Duration, failures: usize) -> (Duration, usize) {
    let failures = if lived >= LONG { 0 } else { failures };
    let delay = DELAYS.get(failures).or(DELAYS.last()).copied().unwrap_or_default();
    (Duration::from_millis(delay), failures + 1)
}

/// The state that a worker finds when it starts.
pub(super) struct StartState {
    /// The record of the guest's end.
    pub(super) exit: Option<Exit>,
    /// The launch document.
    pub(super) launch: Option<Launch>,
    /// Whether there is a domain.
    pub(super) domain: bool,
    /// Whether the guest was there before.
    pub(super) started: bool,
}

/// The first step of a worker.
#[derive(Debug, PartialEq)]
pub(super) enum First {
    /// Nothing is left to do.
    End(Exit),
    /// The guest is looked after.
    Adopt(Launch),
    /// The guest ended unobserved: record it.
    Record(Launch, Cause),
    /// Wait for a launch document.
    Wait,
    /// A domain of which nothing is known: not ours to touch.
    Refuse,
}

/// The first step.
pub(super) fn first(found: StartState) -> First {
    match found {
        StartState { exit: Some(exit), .. } => First::End(exit),
        StartState { launch: Some(launch), domain: true, .. } => First::Adopt(launch),
        StartState { launch: Some(launch), domain: false, started: true, .. } => {
            First::Record(launch, Cause::Lost)
        }
        // An interrupted start: no client was answered, and libvirt has removed the domain.
        StartState { launch: _, domain: false, .. } => First::Wait,
        StartState { launch: None, domain: true, .. } => First::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_fail_are_started_later_and_later() {
        let mut failures = 0;
        let mut delays = Vec::new();
        for _ in 0..8 {
            let (delay, now) = delay(Duration::ZERO, failures);
            failures = now;
            delays.push(delay.as_millis());
        }
        assert_eq!(delays, [0, 100, 300, 1000, 3000, 5000, 5000, 5000]);
        assert_eq!(delay(LONG, failures), (Duration::ZERO, 1));
    }
}
