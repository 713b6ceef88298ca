//! Follows the launcher of one guest, in a task of its own: its reports are kept for the reconciler, which is notified of
//! every change. A launcher that does not answer is asked again until its pod is gone; its last report holds in the
//! meantime, since a guest goes on while its launcher's worker is restarted.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::kubevirt::GuestOsInfo;
use api::launcher::{Answer, EXIT_RECORD, Event, Exit, Request, State, Status};
use tokio::time::{Instant, sleep};

use super::credentials::{self, WantedCredentials};
use super::osinfo::{self, Abilities};
use super::plan::Launcher;
use super::talk::Talk;
use crate::error::Result;
use crate::pods::PodDirectory;
use crate::pods::launcher::PRIVATE;

/// How often a launcher that does not answer is asked again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);
/// How often the guest's agent is asked for addresses.
const AGENT_INTERVAL: Duration = Duration::from_secs(30);
/// How often it is looked whether Secrets changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest record of a guest's end, in bytes.
const EXIT_MAX: u64 = 64 << 10;

/// State of a guest as its launcher reports it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The last status.
    pub(crate) status: Option<Status>,
    /// How the guest ended.
    pub(crate) exit: Option<Exit>,
    /// The operating system that its agent reports.
    pub(crate) os: Option<GuestOsInfo>,
    /// The agent's answer about network interfaces.
    pub(crate) interfaces: Option<String>,
    /// Commands that its agent has.
    pub(crate) abilities: Option<Abilities>,
    /// Whether the guest has its keys and passwords, where its agent is to bring them; why not.
    pub(crate) credentials: Option<std::result::Result<(), String>>,
    /// Events that are not in the status: in order, taken by the reconciler.
    pub(crate) happened: Vec<Event>,
}

impl Known {
    /// For the plan.
    pub(crate) fn launcher(&self) -> Launcher {
        let exit = self.exit.as_ref().or(self.status.as_ref().and_then(|status| status.exit.as_ref()));
        match (exit, self.status.as_ref().map(|status| status.state)) {
            (Some(exit), _) => Launcher::Ended(exit.clone()),
            (None, None) => Launcher::Silent,
            (None, Some(State::Waiting)) => Launcher::Waiting,
            (None, Some(state)) => Launcher::Guest(state),
        }
    }
}

/// State shared by a follower and the reconciler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Known>>);

impl Shared {
    /// The present state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A follower; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) known: Shared,
    /// UID of the pod that is followed.
    pub(crate) pod: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    /// Follows the launcher of the pod `pod` below the kubelet's directory. `tell` is called after every change.
    pub(crate) fn start(
        kubelet: PathBuf,
        pod: String,
        wanted: WantedCredentials,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let known = Shared::default();
        let (shared, uid) = (known.clone(), pod.clone());
        let task = tokio::spawn(async move {
            let mut complained = false;
            loop {
                match follow(&kubelet, &uid, &wanted, &shared, &tell).await {
                    Ok(()) => return,
                    Err(error) if !complained => {
                        tracing::debug!(
                            pod = uid,
                            error = error.chain(),
                            "the launcher does not answer; retrying"
                        );
                        complained = true;
                    }
                    Err(_) => {}
                }
                sleep(RECONNECT_INTERVAL).await;
            }
        });
        Self { known, pod, task }
    }
}

/// Follows one worker of the launcher to its end. `Ok`: the guest ended, or the pod's directory is gone.
async fn follow(
    kubelet: &std::path::Path,
    uid: &str,
    wanted: &WantedCredentials,
    known: &Shared,
    tell: &impl Fn(),
) -> Result<()> {
    let Some(pod) = PodDirectory::open(kubelet, uid)? else {
        // Before the kubelet made it, or after it removed it; the pod object shows which.
        sleep(Duration::from_secs(1)).await;
        return Err(crate::error::Error::new(crate::error::Kind::Launcher, "the pod has no directory"));
    };
    if let Some(exit) = recorded(&pod)? {
        known.lock().exit = Some(exit);
        tell();
        return Ok(());
    }
    let pod = Arc::new(pod);
    let (mut talk, _) = Talk::open(&pod).await?;
    if let Answer::Status(status) = talk.call(Request::Watch).await? {
        note(known, status);
        tell();
    }
    let (mut ask_agent, mut bring) = (Instant::now(), Instant::now());
    loop {
        let agent = known.lock().status.as_ref().is_some_and(|status| status.agent);
        if agent && Instant::now() >= ask_agent {
            ask_agent = Instant::now() + AGENT_INTERVAL;
            ask(&pod, known).await;
            tell();
        }
        if !wanted.is_empty() && Instant::now() >= bring {
            let before = known.lock().credentials.clone();
            let brought = match (agent, &before) {
                (true, _) => credentials::bring(wanted, &pod).await.map_err(|error| error.chain()),
                // Brought credentials stay in the guest.
                (false, Some(Ok(()))) => Ok(()),
                (false, _) => Err(credentials::OFFLINE.to_owned()),
            };
            bring = Instant::now() + if agent && brought.is_err() { AGENT_INTERVAL } else { LOOK_INTERVAL };
            if before.as_ref() != Some(&brought) {
                known.lock().credentials = Some(brought);
                tell();
            }
        }
        match talk.event(Duration::from_secs(5)).await? {
            None => continue,
            Some(Event::Status(status)) => note(known, status),
            Some(event) => {
                let mut known = known.lock();
                if let (Event::Agent { connected }, Some(status)) = (&event, known.status.as_mut()) {
                    status.agent = *connected;
                }
                known.happened.push(event);
            }
        }
        tell();
        if matches!(known.lock().launcher(), Launcher::Ended(_)) {
            return Ok(());
        }
    }
}

/// Stores a status. A guest agent that is gone reports nothing any more.
pub(crate) fn note(known: &Shared, status: Status) {
    let mut known = known.lock();
    if !status.agent {
        (known.os, known.interfaces, known.abilities) = (None, None, None);
    }
    known.status = Some(status);
}

/// Asks the guest's agent for the operating system, its commands and the guest's addresses; what it does not know stays
/// unknown.
async fn ask(pod: &Arc<PodDirectory>, known: &Shared) {
    let Ok((mut talk, _)) = Talk::open(pod).await else { return };
    if known.lock().os.is_none() {
        let os = talk.agent(osinfo::OS_INFO).await.ok().and_then(|text| osinfo::os(&text));
        known.lock().os = os;
    }
    if known.lock().abilities.is_none() {
        let abilities = talk.agent(osinfo::VERSION).await.ok().and_then(|text| osinfo::abilities(&text));
        known.lock().abilities = abilities;
    }
    if let Ok(text) = talk.agent(osinfo::INTERFACES).await {
        known.lock().interfaces = Some(text);
    }
}

/// The record that a launcher leaves of its guest's end.
fn recorded(pod: &PodDirectory) -> Result<Option<Exit>> {
    let Some(private) = pod.empty_dir(PRIVATE)? else { return Ok(None) };
    let Some(content) = private.read(EXIT_RECORD, EXIT_MAX)? else { return Ok(None) };
    Ok(serde_json::from_slice(&content).ok())
}
