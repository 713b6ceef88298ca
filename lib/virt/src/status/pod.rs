//! `Ready` of an instance with a guest in a launcher pod.

use api::resource::Condition;

use super::condition;

/// The readiness gate of launcher pods: Services leave a paused guest out.
pub const UNPAUSED: &str = "kubevirt.io/virtual-machine-unpaused";
/// Reason of a pod's, and an instance's, condition Ready while the gate is closed.
pub const NOT_UNPAUSED: &str = "ReadinessGatesNotReady";

/// The kubelet's message for a closed gate.
pub fn not_unpaused() -> String {
    format!("the status of pod readiness gate \"{UNPAUSED}\" is not \"True\", but False")
}

/// The launcher pod of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// It is being deleted, or ended.
    pub terminating: bool,
    /// Its own condition Ready: status, reason, message.
    pub ready: Option<(&'a str, &'a str, &'a str)>,
}

/// Sets whether an instance is ready, by its pod and whether its guest runs, or is paused: the pod's own readiness, so that
/// readiness probes and the readiness gate show.
pub fn ready(conditions: &mut Vec<Condition>, pod: Option<Pod<'_>>, guest_runs: bool, paused: bool) {
    let mut not = |reason, text| condition(conditions, "Ready", false, reason, text);
    match pod {
        None => not("PodNotExists", "virt-launcher pod has not yet been scheduled"),
        Some(pod) if pod.terminating => not("PodTerminating", "virt-launcher pod is terminating"),
        Some(_) if !guest_runs => not("GuestNotRunning", "Guest VM is not reported as running"),
        // The kubelet shows it a moment later.
        Some(_) if paused => not(NOT_UNPAUSED, &not_unpaused()),
        Some(Pod { ready: None, .. }) => {
            not("PodConditionMissing", "virt-launcher pod is missing the Ready condition");
        }
        Some(Pod { ready: Some((status, reason, text)), .. }) => {
            condition(conditions, "Ready", status == "True", reason, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_ready_when_its_guest_runs_and_its_pod_is_ready() {
        let pod = Pod { terminating: false, ready: Some(("True", "", "")) };
        let unready = Pod { ready: Some(("False", "ProbeFailed", "")), ..pod };
        for (pod, runs, paused, status, reason) in [
            (None, false, false, "False", Some("PodNotExists")),
            (Some(Pod { terminating: true, ..pod }), true, true, "False", Some("PodTerminating")),
            (Some(pod), false, false, "False", Some("GuestNotRunning")),
            (Some(pod), true, true, "False", Some("ReadinessGatesNotReady")),
            (Some(Pod { ready: None, ..pod }), true, false, "False", Some("PodConditionMissing")),
            (Some(unready), true, false, "False", Some("ProbeFailed")),
            (Some(pod), true, false, "True", None),
        ] {
            let mut conditions = Vec::new();
            ready(&mut conditions, pod, runs, paused);
            assert_eq!((conditions[0].status.as_str(), conditions[0].reason.as_deref()), (status, reason));
        }
    }
}
