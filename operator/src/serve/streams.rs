//! Consoles, screens, USB channels and forwarded ports while they are open: how many a user, a VM and a replica may have, and
//! the end of a stream after its user lost the right to it or its VM stopped. Not here: their bytes ([`super::instance`]).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cluster::{Cache, Client, Key, Scope};
use http::StatusCode;
use serde::Deserialize;
use serve::websocket::Closure;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::access::Permission;
use super::instance::{INSTANCES, Metadata};
use super::status::Refusal;
use super::{CONNECTIONS, Site};

/// Most streams at once: half of the connections.
const MOST: usize = CONNECTIONS / 2;
/// Most streams of a user.
const MOST_OF_USER: usize = MOST / 2;
/// Most streams of a VM: fewer than the agent of a node serves (192).
const MOST_OF_MACHINE: usize = MOST / 4;
/// How often a stream's permission is asked for again.
const PERIOD: Duration = Duration::from_secs(30);

/// An instance, as far as the end of its streams depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Run {
    metadata: Metadata,
    status: Phase,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Phase {
    phase: String,
}

impl From<&Self> for Run {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// Why the streams of the run with this uid end; `now` is the instance of that name.
fn ended(now: Option<&Run>, uid: &str) -> Option<&'static str> {
    match now {
        None => Some("the VMI was deleted"),
        Some(run) if run.metadata.uid != uid => Some("the VMI was replaced by another run of the VM"),
        Some(run) if run.status.phase == "Failed" => Some("the VMI has failed"),
        Some(run) if run.status.phase == "Succeeded" => Some("the VMI has stopped"),
        Some(_) => None,
    }
}

/// Open streams, and the instances that they belong to.
pub(super) struct Streams {
    open: Arc<Mutex<Open>>,
    runs: Cache<Run>,
    changed: watch::Receiver<()>,
}

/// Numbers of open streams.
#[derive(Debug, Default)]
struct Open {
    all: usize,
    users: HashMap<String, usize>,
    machines: HashMap<Key, usize>,
}

/// The place of an open stream, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    open: Arc<Mutex<Open>>,
    user: String,
    machine: Key,
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enter(open: &Arc<Mutex<Open>>, user: &str, machine: &Key) -> Result<Place, Refusal> {
    let mut counts = lock(open);
    let of_user = counts.users.get(user).copied().unwrap_or_default();
    let of_machine = counts.machines.get(machine).copied().unwrap_or_default();
    let full = if of_machine >= MOST_OF_MACHINE {
        Some(format!("VirtualMachineInstance {machine} has {of_machine} open streams"))
    } else if of_user >= MOST_OF_USER {
        Some(format!("user {user:?} has {of_user} open streams"))
    } else if counts.all >= MOST {
        Some(format!("this replica of the operator has {} open streams", counts.all))
    } else {
        None
    };
    if let Some(full) = full {
        let text = format!("Too many requests: {full}, the most; close one and try again");
        return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, text));
    }
    counts.all += 1;
    *counts.users.entry(user.to_owned()).or_default() += 1;
    *counts.machines.entry(machine.clone()).or_default() += 1;
    Ok(Place { open: Arc::clone(open), user: user.to_owned(), machine: machine.clone() })
}

fn leave<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    let left = counts.get(key).map_or(0, |count| count.saturating_sub(1));
    match counts.get_mut(key).filter(|_| left > 0) {
        Some(count) => *count = left,
        None => drop(counts.remove(key)),
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.all = open.all.saturating_sub(1);
        leave(&mut open.users, &self.user);
        leave(&mut open.machines, &self.machine);
    }
}

impl Streams {
    /// Follows the instances from now on.
    pub(super) fn start(client: &Client) -> Self {
        let (change, changed) = watch::channel(());
        let runs = Cache::<Run>::builder();
        let runs = runs.on_change(move |_| change.send_replace(()));
        Self { open: Arc::default(), runs: runs.start::<Run>(client, INSTANCES, &Scope::all()), changed }
    }

    /// A place for a stream of a user to a VM.
    pub(super) fn enter(&self, user: &str, machine: &Key) -> Result<Place, Refusal> {
        enter(&self.open, user, machine)
    }
}

impl Site {
    /// Waits until a stream is to end: its permission does not hold any longer, or the run of the VM with this uid ended.
    pub(super) async fn over(&self, permission: &Permission, key: &Key, uid: &str) -> Closure {
        let holds = || async {
            // Without an answer of the API server the last one counts.
            let held = self.gate.holds(permission).await;
            held.inspect_err(|_| tracing::debug!(%key, "a stream's permission cannot be asked for"))
                .unwrap_or(true)
        };
        let ended = || async {
            ended(self.streams.runs.get(key).as_deref(), uid)?;
            // The cache may be older than the stream.
            let now: cluster::Result<Option<Run>> = self.client.find(INSTANCES, key).await;
            now.ok().and_then(|now| ended(now.as_ref(), uid))
        };
        over(PERIOD, self.streams.changed.clone(), holds, ended).await
    }
}

/// Waits until `holds` gives false, asked each `period`, or `ended` gives a reason, asked after each change and each period.
async fn over<H, E>(
    period: Duration,
    mut changed: watch::Receiver<()>,
    holds: impl Fn() -> H,
    ended: impl Fn() -> E,
) -> Closure
where
    H: Future<Output = bool>,
    E: Future<Output = Option<&'static str>>,
{
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Also a change before the first wait counts.
    changed.mark_changed();
    loop {
        let due = tokio::select! {
            _ = ticks.tick() => true,
            Ok(()) = changed.changed() => false,
        };
        if let Some(reason) = ended().await {
            return Closure::normal(reason);
        }
        if due && !holds().await {
            return Closure::policy("the user's permission for this stream was revoked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_that_is_gone_replaced_or_final_ends_its_streams() {
        let run = |uid: &str, phase: &str| {
            serde_json::from_value::<Run>(json!({"metadata": {"uid": uid}, "status": {"phase": phase}}))
                .unwrap()
        };
        for (now, expected) in [
            (None, Some("the VMI was deleted")),
            (Some(run("b", "Running")), Some("the VMI was replaced by another run of the VM")),
            (Some(run("a", "Failed")), Some("the VMI has failed")),
            (Some(run("a", "Succeeded")), Some("the VMI has stopped")),
            (Some(run("a", "Running")), None),
        ] {
            assert_eq!(ended(now.as_ref(), "a"), expected, "{now:?}");
        }
    }

    #[test]
    fn streams_of_a_user_of_a_machine_and_of_all_are_limited() {
        let open = Arc::default();
        let refused = |user: &str, machine: &str| {
            enter(&open, user, &Key::new("n", machine)).map(drop).map_err(|refusal| {
                let (code, text) = refusal.code_and_message();
                (code, text.to_owned())
            })
        };
        let fill = |user: &str, machine: &str, count: usize| -> Vec<Place> {
            (0..count).map(|_| enter(&open, user, &Key::new("n", machine)).unwrap()).collect()
        };
        let first = fill("jo", "a", MOST_OF_MACHINE);
        let text = "Too many requests: VirtualMachineInstance n/a has 128 open streams, the most; close one and try again";
        assert_eq!(refused("ann", "a"), Err((429, text.to_owned())), "another user");
        assert_eq!(refused("jo", "b"), Ok(()), "another machine");
        let second = fill("jo", "b", MOST_OF_USER - MOST_OF_MACHINE);
        let (code, text) = refused("jo", "c").unwrap_err();
        assert!(code == 429 && text.contains("user \"jo\" has 256 open streams"), "{text}");
        let third = [fill("ann", "c", MOST_OF_MACHINE), fill("ann", "d", MOST_OF_MACHINE)];
        let (code, text) = refused("kim", "e").unwrap_err();
        assert!(code == 429 && text.contains("this replica of the operator has 512 open streams"), "{text}");
        drop(first);
        assert_eq!(refused("kim", "e"), Ok(()));
        drop((second, third));
        let open = lock(&open);
        assert!(open.all == 0 && open.users.is_empty() && open.machines.is_empty(), "{open:?}");
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_permission_or_its_run() {
        let period = Duration::from_millis(30);
        let limit = |over| tokio::time::timeout(Duration::from_secs(5), over);
        let asked = AtomicUsize::new(0);
        // The permission holds twice.
        let holds = || async { asked.fetch_add(1, Ordering::Relaxed) < 2 };
        let (change, changed) = watch::channel(());
        let never = || async { None };
        let closure = limit(Box::pin(over(period, changed.clone(), holds, never))).await.unwrap();
        assert_eq!(closure, Closure::policy("the user's permission for this stream was revoked"));
        assert_eq!(asked.load(Ordering::Relaxed), 3);

        let stopped = AtomicBool::new(false);
        let ended = || async { stopped.load(Ordering::Relaxed).then_some("the VMI has stopped") };
        let always = || async { true };
        let hour = Duration::from_secs(3600);
        let stopping = async {
            tokio::time::sleep(period).await;
            stopped.store(true, Ordering::Relaxed);
            change.send_replace(());
        };
        let waiting = async {
            let over = over(hour, changed, always, ended);
            tokio::time::timeout(Duration::from_secs(5), over).await
        };
        let (closure, ()) = tokio::join!(waiting, stopping);
        assert_eq!(
            closure.unwrap(),
            Closure::normal("the VMI has stopped"),
            "at the change, not at the next period"
        );
    }
}
