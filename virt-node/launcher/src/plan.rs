//! What is decided about processes and runs, apart from what is done: pure.

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

/// What a worker found when it started.
pub(super) struct Found {
    /// The record of the guest's end.
    pub(super) exit: Option<Exit>,
    /// What was asked for.
    pub(super) launch: Option<Launch>,
    /// Whether there is a domain.
    pub(super) domain: bool,
    /// Whether the guest was there before.
    pub(super) started: bool,
}

/// What a worker does first.
#[derive(Debug, PartialEq)]
pub(super) enum First {
    /// Nothing is left to do.
    End(Exit),
    /// The guest is looked after.
    Adopt(Launch),
    /// The guest ended, and nobody saw it: that is to be recorded.
    Record(Launch, Cause),
    /// Somebody has to say what to start.
    Wait,
    /// A domain of which nothing is known: not ours to touch.
    Refuse,
}

/// What is to be done first.
pub(super) fn first(found: Found) -> First {
    match found {
        Found { exit: Some(exit), .. } => First::End(exit),
        Found { launch: Some(launch), domain: true, .. } => First::Adopt(launch),
        Found { launch: Some(launch), domain: false, started: true, .. } => {
            First::Record(launch, Cause::Lost)
        }
        // A start that was cut short: nobody was told that there is a guest, and libvirt has cleared it away.
        Found { launch: _, domain: false, .. } => First::Wait,
        Found { launch: None, domain: true, .. } => First::Refuse,
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
