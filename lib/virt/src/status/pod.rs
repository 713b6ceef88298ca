//! `Ready` of an instance with a guest in a launcher pod.

use api::resource::Condition;

use super::condition;

/// The launcher pod of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// It is being deleted, or ended.
    pub terminating: bool,
    /// Its own condition Ready: status, reason, message.
    pub ready: Option<(&'a str, &'a str, &'a str)>,
}

/// Sets whether an instance is ready, by its pod and whether its guest runs: the pod's own readiness, so that readiness
/// probes and the readiness gate show.
pub fn ready(conditions: &mut Vec<Condition>, pod: Option<Pod<'_>>, guest_runs: bool) {
    let mut not = |reason, text| condition(conditions, "Ready", false, reason, text);
    match pod {
        None => not("PodNotExists", "virt-launcher pod has not yet been scheduled"),
        Some(pod) if pod.terminating => not("PodTerminating", "virt-launcher pod is terminating"),
        Some(_) if !guest_runs => not("GuestNotRunning", "Guest VM is not reported as running"),
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
        for (pod, runs, status, reason) in [
            (None, false, "False", Some("PodNotExists")),
            (Some(Pod { terminating: true, ..pod }), true, "False", Some("PodTerminating")),
            (Some(pod), false, "False", Some("GuestNotRunning")),
            (Some(Pod { ready: None, ..pod }), true, "False", Some("PodConditionMissing")),
            (
                Some(Pod { ready: Some(("False", "ProbeFailed", "")), ..pod }),
                true,
                "False",
                Some("ProbeFailed"),
            ),
            (Some(pod), true, "True", None),
        ] {
            let mut conditions = Vec::new();
            ready(&mut conditions, pod, runs);
            assert_eq!((conditions[0].status.as_str(), conditions[0].reason.as_deref()), (status, reason));
        }
    }
}
