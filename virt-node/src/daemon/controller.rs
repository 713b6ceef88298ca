//! The one owner of all state: it handles messages one after the other, reconciles after each the objects that it concerns
//! and those that depend on them, and runs slow work in jobs ([`super::jobs`]), one per object, whose ends are messages too.
//! Every minute it reconciles all objects.
//!
//! ```text
//! clients ─► Call ─┐                     ┌─► job: make or remove a volume, fill it, start or clear a run
//! jobs ──► ended ──┼─► controller ───────┤
//! launchers ► News ┘     │ store         └─► watch of each run
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use api::core::{ConfigMap, Secret};
use api::kind::Kind;
use api::kubevirt::VirtualMachineInstance;
use api::launch::Accelerator;
use api::launcher::Status;
use api::multus::NetworkAttachmentDefinition;

use super::UserSettings;
use super::addresses::Addresses;
use super::apply::{self, Started};
use super::csi_client::Driver;
use super::events::Events;
use super::jobs::Jobs;
use super::networks::{Networks, Services};
use super::state::State;
use super::store::{Key, Store, Stored};
use super::watch::{self, News};
use crate::error::Error;
use crate::network::{Attached, PodNetwork};
use crate::protocol::{Answer, Request};
use virt::machine::phase;
use virt::resolve::Objects;
use virt::run::LauncherState;
use virt::time;
use virt::validate::Checked;

/// How often it is looked whether the volumes' driver lives.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long a launcher may take to answer that its guest is asked to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Reconciliations in a row that change objects; more are a fault of the rules, and wait for the next message.
const LOOKS_MAX: usize = 100;
/// Seconds between two looks at all objects.
const LOOK_AT_ALL: u64 = 60;
/// Stack of a thread that only waits, in bytes.
const WAITING: usize = 64 << 10;

/// The answer to a client.
pub(super) enum Reply {
    Answer(Answer),
    /// This stream follows the answer.
    Stream(UnixStream),
}

/// The messages of the controller.
pub(super) enum Message {
    Call(Box<Request>, Sender<Reply>),
    /// The documents of a client are valid.
    Checked(Box<Checked>, Sender<Reply>),
    /// A job of an object is done.
    Ended(String, Work, Result<Outcome, Error>),
    /// How far a volume's job is, in per cent.
    Progress(String, f64),
    /// An intermediate event of a run's job: a reason in one CamelCase word, and a text.
    Told(String, &'static str, String),
    News(String, News),
    /// A child that is ours to reap.
    Born(Child),
    /// A child has ended.
    Gone,
    Stop,
}

/// The kinds of job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Driver,
    Make,
    Fill,
    /// A volume takes what a client sends.
    Receive,
    Remove,
    Start,
    Clear,
    Mend,
    RemoveNetworks,
    Attach,
    Detach,
    Grow,
    /// A guest that runs gets processors and memory.
    Enlarge,
}

/// The result of a job.
#[derive(Debug)]
pub(super) enum Outcome {
    Done,
    /// A volume of this size is there.
    Made(u64),
    /// The parameters of a started run.
    Started(Box<Started>),
    /// The networks that a run is attached to.
    Mended(Option<Attached>),
    /// Whether the guest has let go of a volume.
    Detached {
        gone: bool,
    },
    /// How a guest is that was given more.
    Enlarged {
        seen: Box<Status>,
        /// Bytes that it was offered.
        memory: u64,
    },
}

/// State of an object that lives as long as the daemon.
#[derive(Default)]
pub(super) struct Memory {
    /// Ends its job, while there is one.
    pub(super) job: Option<Arc<AtomicBool>>,
    /// Tries that failed in a row, and when the next one may be.
    pub(super) failures: u32,
    pub(super) retry: Option<u64>,
    /// Of a run: what was seen last.
    pub(super) seen: Option<LauncherState>,
    /// Of a run: whether its guest was asked to end.
    pub(super) asked: bool,
    /// Of a run: when its processes were killed, as its launcher did not end its guest.
    pub(super) killed: Option<u64>,
    /// Of a run: what runs its guest, and why, as it was kept.
    pub(super) accelerator: Option<(Accelerator, String)>,
    /// Of a run: its networks are to be mended.
    pub(super) mend: bool,
    /// Of a run: its agent was asked what it is.
    pub(super) known: bool,
    /// Per cent.
    pub(super) progress: Option<f64>,
}

pub(super) struct Controller {
    pub(super) state: Arc<State>,
    pub(super) store: Store,
    pub(super) addresses: Addresses,
    pub(super) driver: Driver,
    pub(super) events: Events,
    pub(super) accelerator: Option<Accelerator>,
    pub(super) services: Services,
    /// Held while documents are checked.
    pub(super) checking: Arc<Mutex<()>>,
    pod: PodNetwork,
    pub(super) host_disks: Vec<PathBuf>,
    pub(super) memory: BTreeMap<String, Memory>,
    pub(super) jobs: Jobs<Work>,
    pub(super) sender: Sender<Message>,
    receiver: Receiver<Message>,
    /// The object that is being reconciled.
    current: Option<Key>,
    /// Time of the last look at all objects.
    looked: u64,
    /// Times of the next look, by object; `None`: of no object.
    due: BTreeMap<Option<Key>, u64>,
}

impl Controller {
    pub(super) fn new(
        state: State,
        store: Store,
        addresses: Addresses,
        events: Events,
        driver: Driver,
        given: UserSettings,
    ) -> Self {
        let (sender, receiver) = channel();
        Self {
            state: Arc::new(state),
            store,
            addresses,
            driver,
            events,
            accelerator: given.accelerator,
            services: Services::default(),
            checking: Arc::default(),
            pod: given.pod,
            host_disks: given.host_disks,
            memory: BTreeMap::new(),
            jobs: Jobs::default(),
            sender,
            receiver,
            current: None,
            looked: time::now(),
            due: BTreeMap::new(),
        }
    }

    pub(super) fn sender(&self) -> Sender<Message> {
        self.sender.clone()
    }

    /// Runs until it is asked to stop. Guests keep running.
    ///
    /// # Errors
    /// The state folder is gone.
    pub(super) fn run(mut self) -> Result<(), Error> {
        self.adopt();
        self.reconcile();
        loop {
            let due = self.due.values().min();
            let wait = due.map_or(POLL_INTERVAL, |due| {
                Duration::from_secs(due.saturating_sub(time::now())).min(POLL_INTERVAL)
            });
            let received = self.receiver.recv_timeout(wait.max(Duration::from_millis(50)));
            // Before the message is handled: that writes, too.
            self.check_folder()?;
            match received {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.leave();
                    return Ok(());
                }
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.reconcile();
        }
    }

    /// Whether the state folder is still ours: nothing is written into another daemon's.
    fn check_folder(&self) -> Result<(), Error> {
        if self.state.is_there() {
            return Ok(());
        }
        let text = format!(
            "{} was removed while it was served; its VMs keep running unmanaged and must be stopped by hand",
            self.state.path("").display()
        );
        Err(Error::new(crate::error::Kind::System, text))
    }

    /// Waits until no job is about to start the volumes' driver.
    fn leave(mut self) {
        while self.is_busy("driver") {
            match self.receiver.recv_timeout(POLL_INTERVAL) {
                Ok(message) => self.handle(message),
                Err(_) => return,
            }
        }
    }

    /// Watches the runs that there are.
    fn adopt(&mut self) {
        for instance in self.store.all::<VirtualMachineInstance>().collect::<Vec<_>>() {
            self.watch(instance.uid());
            // After a boot there is nothing to mend, and the run is gone.
            if phase(&instance) == "Running" && self.state.run(instance.uid()).exists() {
                self.memory(instance.uid()).mend = true;
            }
        }
        self.forward_names();
    }

    /// Forwards names for guests, where that is needed.
    pub(super) fn forward_names(&mut self) {
        if let Err(error) = self.services.forward_names() {
            let network = Key::new(api::kind::Kind::NetworkAttachmentDefinition, "", "pod");
            self.events.add(&network, true, "NamesNotForwarded", &error.chain());
        }
    }

    /// Networks that guests may name.
    pub(super) fn networks(&self) -> Networks {
        let all = self.store.all::<NetworkAttachmentDefinition>();
        let named = all.map(|one| (format!("{}/{}", one.key().namespace, one.key().name), (*one).clone()));
        Networks { pod: self.pod, definitions: named.collect() }
    }

    /// Finds out how a run is, and follows it from there on.
    pub(super) fn watch(&mut self, uid: &str) {
        let run = self.state.run(uid);
        if !run.exists() {
            self.memory(uid).seen = Some(LauncherState::Nothing);
            return;
        }
        let (sender, told) = (self.sender(), uid.to_owned());
        // A run that cannot be watched is looked at when it is next started.
        drop(watch::watch(run, move |news| sender.send(Message::News(told.clone(), news)).is_ok()));
    }

    pub(super) fn memory(&mut self, uid: &str) -> &mut Memory {
        self.memory.entry(uid.to_owned()).or_default()
    }

    /// Reconciles the current object again at a time.
    pub(super) fn look_at(&mut self, time: u64) {
        let due = self.due.entry(self.current.clone()).or_insert(time);
        *due = time.min(*due);
    }

    /// Marks the object of a UID dirty; behind a slash stands a part of the object.
    pub(super) fn touch(&mut self, of: &str) {
        self.store.touch_called(of.split('/').next().unwrap_or_default());
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Call(request, reply) => self.call(*request, reply),
            Message::Checked(checked, reply) => self.checked(*checked, &reply),
            Message::Ended(uid, work, outcome) => {
                self.job_ended(&uid);
                self.ended(&uid, work, outcome);
                self.touch(&uid);
            }
            Message::Progress(uid, percent) => self.progress(&uid, percent),
            Message::Told(uid, reason, text) => self.record_event(&uid, reason, &text),
            Message::News(uid, news) => {
                self.handle_news(&uid, news);
                self.touch(&uid);
            }
            Message::Born(child) => reap(child, self.sender()),
            Message::Gone | Message::Stop => {}
        }
    }

    /// Reconciles changed and due objects until nothing changes any more.
    fn reconcile(&mut self) {
        self.current = None;
        self.due.remove(&None);
        if self.looked + LOOK_AT_ALL <= time::now() {
            self.looked = time::now();
            self.store.touch_all();
        }
        let now = time::now();
        for key in self.due.iter().filter(|(_, time)| **time <= now).filter_map(|(key, _)| key.clone()) {
            self.store.touch(&key);
        }
        if !self.store.catch_up() {
            let text = format!(
                "no space left in {}: changes are kept in memory only; free disk space or delete objects",
                self.state.path("objects").display()
            );
            self.events.add(&Key::daemon("room"), true, "NoRoom", &text);
        }
        if !self.driver.lives() && self.may_try("driver") {
            let driver = self.driver.clone();
            self.job("driver", Work::Driver, move |_, sender| {
                let born = |child| drop(sender.send(Message::Born(child)));
                driver.start()?.into_iter().for_each(born);
                Ok(Outcome::Done)
            });
        }
        for _ in 0..LOOKS_MAX {
            let dirty = self.store.take_dirty();
            if dirty.is_empty() {
                return;
            }
            let looked = self.look_once(&dirty);
            self.current = None;
            if let Err(error) = looked {
                // A full disk, most likely: it is tried again with the next message.
                for key in &dirty {
                    self.store.touch(key);
                }
                let state = Key::daemon("state");
                self.events.add(&state, true, "StateFailed", &error.chain());
                return;
            }
        }
    }

    /// Reconciles objects: volumes first, then guests.
    fn look_once(&mut self, dirty: &BTreeSet<Key>) -> Result<(), Error> {
        let order = [
            Kind::PersistentVolumeClaim,
            Kind::DataVolume,
            Kind::VirtualMachineInstance,
            Kind::VirtualMachine,
        ];
        for key in order.iter().flat_map(|kind| dirty.iter().filter(|key| key.kind == *kind)) {
            let current = Some(key.clone());
            self.due.remove(&current);
            self.current = current;
            let (namespace, name) = (&key.namespace, &key.name);
            match key.kind {
                Kind::PersistentVolumeClaim => {
                    self.store.get(namespace, name).map_or(Ok(()), |one| self.claim(&one))?;
                }
                Kind::DataVolume => {
                    self.store.get(namespace, name).map_or(Ok(()), |one| self.data_volume(&one))?;
                }
                Kind::VirtualMachineInstance => {
                    self.store.get(namespace, name).map_or(Ok(()), |one| self.instance(&one))?;
                }
                Kind::VirtualMachine => {
                    self.store.get(namespace, name).map_or(Ok(()), |one| self.machine(&one))?;
                }
                Kind::NetworkAttachmentDefinition | Kind::Secret | Kind::ConfigMap => {}
            }
        }
        Ok(())
    }

    /// Secrets and ConfigMaps of a namespace.
    pub(super) fn objects(&self, namespace: &str) -> Objects {
        let of = |metadata: &api::resource::ObjectMeta| metadata.namespace.as_deref() == Some(namespace);
        let secrets = self.store.all::<Secret>().filter(|one| of(&one.metadata));
        let maps = self.store.all::<ConfigMap>().filter(|one| of(&one.metadata));
        Objects {
            secrets: secrets.map(|one| (one.metadata.name.clone(), (*one).clone())).collect(),
            config_maps: maps.map(|one| (one.metadata.name.clone(), (*one).clone())).collect(),
            complete: true,
            ..Objects::default()
        }
    }

    /// Sends a request to a run's launcher on a thread of its own, and answers the client.
    pub(super) fn ask(
        &self,
        uid: &str,
        request: api::launcher::Request,
        reply: impl FnOnce(Result<(), guest::CallError>) + Send + 'static,
    ) {
        let run = self.state.run(uid);
        let work = move || {
            let answer = run.client().map_err(Into::into).and_then(|mut client| {
                let ending = matches!(request, api::launcher::Request::Shutdown { .. });
                if ending { client.call_within(request, SHUTDOWN_TIMEOUT) } else { client.call(request) }
            });
            reply(answer.map(drop));
        };
        // The client notices the missing answer.
        drop(thread::Builder::new().name("ask".to_owned()).spawn(work));
    }

    /// The last known state of a run's launcher; read from its folder if none is known.
    pub(super) fn launcher_state(&mut self, uid: &str) -> LauncherState {
        if let Some(seen) = self.memory.get(uid).and_then(|memory| memory.seen.clone()) {
            return seen;
        }
        let seen = apply::recorded_state(&self.state.run(uid));
        self.memory(uid).seen = Some(seen.clone());
        seen
    }
}

/// Waits for a child's end on a thread of its own, and reports it.
fn reap(mut child: Child, sender: Sender<Message>) {
    let wait = move || {
        // Without an answer the child is not ours any more. The receiver is gone when the daemon ends.
        drop(child.wait());
        drop(sender.send(Message::Gone));
    };
    // Without a thread it stays a zombie until the daemon's own end; its log records its end.
    drop(thread::Builder::new().name("reap".to_owned()).stack_size(WAITING).spawn(wait));
}
