//! The one owner of all state: it handles messages one after the other, reconciles every object after each, and runs slow
//! work in jobs, one per object, whose ends are messages too.
//!
//! ```text
//! clients ─► Call ─┐                     ┌─► job: make or remove a volume, fill it, start or clear a run
//! jobs ──► ended ──┼─► controller ─look──┤
//! launchers ► News ┘     │ store         └─► watch of each run
//! ```

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use api::core::{ConfigMap, Secret};
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::launch::Accelerator;
use api::launcher::Status;
use api::multus::NetworkAttachmentDefinition;

use super::Given;
use super::addresses::Addresses;
use super::apply::{self, Started};
use super::driver::Driver;
use super::events::Events;
use super::networks::{Networks, Services};
use super::state::State;
use super::store::{Key, Store, Stored};
use super::watch::{self, News};
use crate::error::Error;
use crate::network::{Attached, PodNetwork};
use crate::protocol::{Answer, Request};
use virt::machine::phase;
use virt::resolve::Objects;
use virt::run::Seen;
use virt::time;
use virt::validate::Checked;

/// How often it is looked whether the volumes' driver lives.
const TICK: Duration = Duration::from_secs(5);
/// How long a launcher may take to answer that its guest is asked to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Looks in a row that change something; more are a mistake of ours, and wait for the next message.
const LOOKS_MAX: usize = 100;
/// Longest wait before a job that failed is tried again, in seconds.
const RETRY_MAX: u64 = 300;
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
    pub(super) seen: Option<Seen>,
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
    sender: Sender<Message>,
    receiver: Receiver<Message>,
    /// When something is to be looked at again.
    due: Option<u64>,
}

impl Controller {
    pub(super) fn new(
        state: State,
        store: Store,
        addresses: Addresses,
        events: Events,
        driver: Driver,
        given: Given,
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
            sender,
            receiver,
            due: None,
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
        self.look();
        loop {
            let wait =
                self.due.map_or(TICK, |due| Duration::from_secs(due.saturating_sub(time::now())).min(TICK));
            let received = self.receiver.recv_timeout(wait.max(Duration::from_millis(50)));
            // Before the message is handled: that writes, too.
            self.check_folder()?;
            match received {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.leave();
                    return Ok(());
                }
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look();
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
            match self.receiver.recv_timeout(TICK) {
                Ok(message) => self.take(message),
                Err(_) => return,
            }
        }
    }

    /// Watches the runs that there are.
    fn adopt(&mut self) {
        for instance in self.store.all::<VirtualMachineInstance>() {
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
        let all = self.store.all::<NetworkAttachmentDefinition>().into_iter();
        let named = all.map(|one| (format!("{}/{}", one.key().namespace, one.key().name), one));
        Networks { pod: self.pod, definitions: named.collect() }
    }

    /// Finds out how a run is, and follows it from there on.
    pub(super) fn watch(&mut self, uid: &str) {
        let run = self.state.run(uid);
        if !run.exists() {
            self.memory(uid).seen = Some(Seen::Nothing);
            return;
        }
        let (sender, told) = (self.sender(), uid.to_owned());
        // A run that cannot be watched is looked at when it is next started.
        drop(watch::watch(run, move |news| sender.send(Message::News(told.clone(), news)).is_ok()));
    }

    pub(super) fn memory(&mut self, uid: &str) -> &mut Memory {
        self.memory.entry(uid.to_owned()).or_default()
    }

    pub(super) fn is_busy(&self, uid: &str) -> bool {
        self.memory.get(uid).is_some_and(|memory| memory.job.is_some())
    }

    /// Has something done, unless something is being done for the same object.
    pub(super) fn job(
        &mut self,
        uid: &str,
        work: Work,
        task: impl FnOnce(&Arc<AtomicBool>, &Sender<Message>) -> Result<Outcome, Error> + Send + 'static,
    ) {
        if self.is_busy(uid) {
            return;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, uid) = (self.sender(), uid.to_owned());
        self.memory(&uid).job = Some(Arc::clone(&stop));
        let (name, report) = (uid.clone(), sender.clone());
        let started = thread::Builder::new().name("job".to_owned()).spawn(move || {
            let outcome = task(&stop, &sender);
            // The receiver is gone when the daemon ends.
            drop(report.send(Message::Ended(name, work, outcome)));
        });
        if let Err(error) = started {
            let error = Error::with(crate::error::Kind::System, "a job cannot be started", error);
            drop(self.sender.send(Message::Ended(uid, work, Err(error))));
        }
    }

    /// Ends an object's job, if there is one.
    pub(super) fn cancel(&self, uid: &str) {
        if let Some(stop) = self.memory.get(uid).and_then(|memory| memory.job.as_ref()) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that a try failed.
    pub(super) fn failed(&mut self, uid: &str) {
        let memory = self.memory(uid);
        memory.failures = memory.failures.saturating_add(1);
        let wait = 2u64.saturating_pow(memory.failures.min(10)).saturating_mul(2).min(RETRY_MAX);
        memory.retry = Some(time::now() + wait);
    }

    /// Whether something may be tried now; if not, it is looked at again.
    pub(super) fn may_try(&mut self, uid: &str) -> bool {
        match self.memory.get(uid).and_then(|memory| memory.retry) {
            Some(time) if time > time::now() => {
                self.look_at(time);
                false
            }
            Some(_) | None => true,
        }
    }

    /// Looks again at a time.
    pub(super) fn look_at(&mut self, time: u64) {
        self.due = Some(self.due.map_or(time, |due| due.min(time)));
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Call(request, reply) => self.call(*request, reply),
            Message::Checked(checked, reply) => self.checked(*checked, &reply),
            Message::Ended(uid, work, outcome) => {
                self.memory(&uid).job = None;
                self.ended(&uid, work, outcome);
            }
            Message::Progress(uid, percent) => self.progress(&uid, percent),
            Message::Told(uid, reason, text) => self.told(&uid, reason, &text),
            Message::News(uid, news) => self.news(&uid, news),
            Message::Born(child) => reap(child, self.sender()),
            Message::Gone | Message::Stop => {}
        }
    }

    /// Looks at every object until nothing changes any more.
    fn look(&mut self) {
        self.due = None;
        if !self.store.catch_up() {
            let text = format!(
                "no room in {}: changes are in memory only until there is; deleting works",
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
            let before = self.store.changes();
            if let Err(error) = self.look_once() {
                // A full disk, most likely: it is tried again with the next message.
                let state = Key::daemon("state");
                self.events.add(&state, true, "StateFailed", &error.chain());
                return;
            }
            if self.store.changes() == before {
                return;
            }
        }
    }

    fn look_once(&mut self) -> Result<(), Error> {
        self.claims()?;
        self.data_volumes()?;
        for instance in self.store.all::<VirtualMachineInstance>() {
            self.instance(instance)?;
        }
        for machine in self.store.all::<VirtualMachine>() {
            self.machine(machine)?;
        }
        Ok(())
    }

    /// Secrets and ConfigMaps of a namespace.
    pub(super) fn objects(&self, namespace: &str) -> Objects {
        let of = |metadata: &api::resource::ObjectMeta| metadata.namespace.as_deref() == Some(namespace);
        let secrets = self.store.all::<Secret>().into_iter().filter(|one| of(&one.metadata));
        let maps = self.store.all::<ConfigMap>().into_iter().filter(|one| of(&one.metadata));
        Objects {
            secrets: secrets.map(|one| (one.metadata.name.clone(), one)).collect(),
            config_maps: maps.map(|one| (one.metadata.name.clone(), one)).collect(),
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

    /// Whether a run has a folder.
    pub(super) fn seen(&mut self, uid: &str) -> Seen {
        if let Some(seen) = self.memory.get(uid).and_then(|memory| memory.seen.clone()) {
            return seen;
        }
        let seen = apply::left(&self.state.run(uid));
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
