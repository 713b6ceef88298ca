//! `status.printableStatus`: a machine's state in one word. Several are true at once; KubeVirt's order decides
//! (virt-controller, `setPrintableStatus`).

use crate::machine::{FINAL, Strategy};

/// The instance of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Instance<'a> {
    /// Its phase.
    pub phase: &'a str,
    /// It is being deleted, or its deletion was sent and is not seen yet.
    pub deleting: bool,
    /// Its guest is paused.
    pub paused: bool,
    /// Its guest is being migrated.
    pub migrating: bool,
    /// Reason of its condition Synchronized while that is false, such as `FailedPvcNotFound` or `ErrImagePull`.
    pub problem: Option<&'a str>,
    /// Its pod cannot be scheduled.
    pub unschedulable: bool,
    /// It waits for the state of another cluster's guest.
    pub receiver: bool,
}

/// The inputs of a machine's printable status.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// It is being deleted.
    pub deleting: bool,
    /// Its instance, if there is one.
    pub instance: Option<Instance<'a>>,
    /// An instance is to be created now, or its creation was sent and is not seen yet.
    pub creating: bool,
    /// A claim that it names does not exist.
    pub missing: bool,
    /// A DataVolume that it names failed.
    pub broken: bool,
    /// A DataVolume that it names is being filled.
    pub provisioning: bool,
    /// It is to run, and a claim that exists is not bound.
    pub unbound: bool,
    /// Crashes in a row (`status.startFailure`).
    pub failures: u32,
    /// Its strategy.
    pub strategy: Strategy,
}

/// The word.
pub fn printable(facts: &Facts<'_>) -> &'static str {
    let is_final = |one: &Instance<'_>| FINAL.contains(&one.phase);
    let live = facts.instance.filter(|one| !is_final(one));
    let is = |test: &dyn Fn(&Instance<'_>) -> bool| live.as_ref().is_some_and(test);
    let problem = |word: &str| is(&|one| one.problem == Some(word));
    let starting = is(&|one| ["Pending", "Scheduling", "Scheduled"].contains(&one.phase));
    let crashed = live.is_none() && !facts.creating && facts.failures > 0 && facts.strategy.restarts();
    let order = [
        (facts.deleting, "Terminating"),
        (is(&|one| one.deleting), "Stopping"),
        (is(&|one| one.migrating), "Migrating"),
        (is(&|one| one.paused), "Paused"),
        (is(&|one| one.phase == "Running"), "Running"),
        (facts.missing || problem("FailedPvcNotFound"), "ErrorPvcNotFound"),
        (facts.broken, "DataVolumeError"),
        (is(&|one| one.unschedulable), "ErrorUnschedulable"),
        (facts.provisioning, "Provisioning"),
        (facts.unbound, "WaitingForVolumeBinding"),
        (problem("ErrImagePull"), "ErrImagePull"),
        (problem("ImagePullBackOff"), "ImagePullBackOff"),
        (starting || (facts.instance.is_none() && facts.creating), "Starting"),
        (crashed, "CrashLoopBackOff"),
        (live.is_none() && !facts.creating, "Stopped"),
        (is(&|one| one.receiver), "WaitingForReceiver"),
    ];
    order.into_iter().find(|(holds, _)| *holds).map_or("Unknown", |(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_in_upstreams_order_wins() {
        let still = Facts {
            deleting: false,
            instance: None,
            creating: false,
            missing: false,
            broken: false,
            provisioning: false,
            unbound: false,
            failures: 0,
            strategy: Strategy::Always,
        };
        let instance = |phase| Instance {
            phase,
            deleting: false,
            paused: false,
            migrating: false,
            problem: None,
            unschedulable: false,
            receiver: false,
        };
        let of = |one| Facts { instance: Some(one), ..still };
        let run = |phase| of(instance(phase));
        let halted = Strategy::Halted;
        for (facts, word) in [
            (still, "Stopped"),
            (Facts { creating: true, ..still }, "Starting"),
            (Facts { deleting: true, ..run("Running") }, "Terminating"),
            (Facts { provisioning: true, strategy: halted, ..still }, "Provisioning"),
            (Facts { provisioning: true, broken: true, ..still }, "DataVolumeError"),
            (Facts { provisioning: true, broken: true, missing: true, ..run("Pending") }, "ErrorPvcNotFound"),
            (Facts { unbound: true, ..run("Pending") }, "WaitingForVolumeBinding"),
            (Facts { failures: 1, ..still }, "CrashLoopBackOff"),
            (Facts { failures: 1, creating: true, ..still }, "Starting"),
            (Facts { failures: 1, strategy: halted, ..still }, "Stopped"),
            (Facts { failures: 1, ..run("Failed") }, "CrashLoopBackOff"),
            (run("Succeeded"), "Stopped"),
            (Facts { creating: true, ..run("Succeeded") }, "Unknown"),
            (run("Scheduling"), "Starting"),
            (of(Instance { problem: Some("ErrImagePull"), ..instance("Scheduling") }), "ErrImagePull"),
            (of(Instance { problem: Some("FailedPvcNotFound"), ..instance("Pending") }), "ErrorPvcNotFound"),
            (of(Instance { unschedulable: true, ..instance("Scheduling") }), "ErrorUnschedulable"),
            (run("Running"), "Running"),
            (Facts { provisioning: true, ..run("Running") }, "Running"),
            (of(Instance { paused: true, ..instance("Running") }), "Paused"),
            (of(Instance { migrating: true, paused: true, ..instance("Running") }), "Migrating"),
            (of(Instance { deleting: true, ..instance("Running") }), "Stopping"),
            (of(Instance { deleting: true, ..instance("Failed") }), "Stopped"),
            (of(Instance { receiver: true, ..instance("WaitingForSync") }), "WaitingForReceiver"),
            (run("Unknown"), "Unknown"),
        ] {
            assert_eq!(printable(&facts), word, "{facts:?}");
        }
    }
}
