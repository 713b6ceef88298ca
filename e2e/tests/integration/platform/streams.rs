//! Tests that need the agent all the time (for a stream of a guest, or an answer at once), and tests that kill it, are kept
//! apart.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::platform::place::PLACE;

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

/// Once no test needs the agent, gives the agent `work`, kills it, and waits until another one is ready.
pub(crate) fn replace_agent_at(work: impl FnOnce()) {
    const AGENT: [&str; 5] = ["-n", "kubevirt-hyperconverged", "pod", "-l", "kubevirt.io=virt-handler"];
    let [n, namespace, pod, l, label] = AGENT;
    loop {
        let none = followed();
        if *none == 0 {
            work();
            PLACE
                .kubectl(&[
                    n,
                    namespace,
                    "delete",
                    pod,
                    l,
                    label,
                    "--grace-period=0",
                    "--force",
                    "--wait=false",
                ])
                .unwrap();
            std::thread::sleep(Duration::from_secs(1));
            PLACE
                .kubectl(&[n, namespace, "wait", pod, l, label, "--for=condition=Ready", "--timeout=120s"])
                .unwrap();
            return;
        }
        drop(none);
        std::thread::sleep(Duration::from_millis(200));
    }
}
