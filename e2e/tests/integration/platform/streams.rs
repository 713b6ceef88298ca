//! Tests that need the agent all the time (for a stream of a guest, or an answer at once), and tests that kill it, are kept
//! apart.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::platform::place::{PLACE, PODS};

/// Namespace of the platform.
const NAMESPACE: &str = operator::defaults::NAMESPACE;

/// How many tests need the agent.
static FOLLOWED: Mutex<u32> = Mutex::new(0);

fn followed() -> MutexGuard<'static, u32> {
    FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held as long as a test needs the agent.
pub(crate) struct Streams(());

impl Streams {
    /// Waits while the agent is replaced.
    pub(crate) fn follow() -> Self {
        *followed() += 1;
        Self(())
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        *followed() -= 1;
    }
}

/// The label of the agent's pods.
const AGENT: &str = "kubevirt.io=virt-handler";

/// The agent's pod.
pub(crate) fn agent() -> Value {
    let is_agent = |pod: &Value| pod["metadata"]["labels"]["kubevirt.io"] == "virt-handler";
    PLACE.list(PODS, NAMESPACE).into_iter().find(is_agent).unwrap()
}

/// Kills the agent, which is started again. For the work of [`replace_agent_at`].
pub(crate) fn kill_agent() {
    let pods = ["-n", NAMESPACE, "delete", "pod", "-l", AGENT];
    PLACE.kubectl(&[&pods[..], &["--grace-period=0", "--force", "--wait=false"]].concat()).unwrap();
}

/// Once no test needs the agent, gives the agent `work`, kills it, and waits until another one is ready.
pub(crate) fn replace_agent_at(work: impl FnOnce()) {
    loop {
        let none = followed();
        if *none == 0 {
            work();
            kill_agent();
            std::thread::sleep(Duration::from_secs(1));
            let ready = ["--for=condition=Ready", "--timeout=120s"];
            PLACE.kubectl(&[&["-n", NAMESPACE, "wait", "pod", "-l", AGENT][..], &ready].concat()).unwrap();
            return;
        }
        drop(none);
        std::thread::sleep(Duration::from_millis(200));
    }
}
