//! Attaches launcher pods to secondary networks and detaches them: ADD and DEL of CNI plugins on the node, each noted on
//! disk before it begins.
//!
//! One pod is worked on by one thread at a time. Every step finds what an earlier one left, so an attachment that was cut
//! short anywhere is taken back and made again.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use guest::network::cache::{self, Entry};
use guest::network::runtime::{self, Owner};
use guest::network::{Binding, CniResult, Configuration, Interface, Names, Places};
use link::{Mac, Namespace};

use super::listed::{self, Listed};
use super::node::Node;
use super::objects::{Annotated, Objects};
use super::reference::Reference;
use super::{STATUS, definition};
use crate::error::{Error, Kind, Result};

/// Most pods that are detached at a time: a plugin may hang for minutes.
const DETACHING_MAX: usize = 8;
/// Most secondary networks of a guest.
const NETWORKS_MAX: usize = 32;
/// The file, next to the records, that the agent locks which writes them.
const LOCK: &str = "lock";
/// The name in messages of a network that Multus attached.
const OF_MULTUS: &str = "multus";

/// Attachments of this node's launcher pods.
#[derive(Debug)]
pub(crate) struct Networks {
    objects: Arc<dyn Objects>,
    node: Node,
    places: Places,
    shared: Vec<String>,
    work: Mutex<Work>,
    free: Condvar,
    _lock: Option<File>,
}

/// The uids of pods that threads work on.
#[derive(Debug, Default)]
struct Work {
    /// One thread at a time.
    claimed: BTreeSet<String>,
    /// Pods that are over, with a thread for each.
    detaching: BTreeSet<String>,
}

/// A launcher pod that is attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
    /// Its annotation network-status.
    pub(crate) status: Option<&'a str>,
    /// Path of its network namespace, for the agent.
    pub(crate) network: &'a Path,
    /// The same for other processes of the node, as long as the launcher runs.
    pub(crate) network_elsewhere: &'a Path,
}

/// A network that a guest is to have.
#[derive(Clone, Debug)]
pub(crate) struct RequestedNetwork {
    /// Its name in the spec, which the interface has too.
    pub(crate) name: String,
    /// Its path in the spec, for messages.
    pub(crate) path: String,
    /// `multus.networkName`.
    pub(crate) network: String,
    pub(crate) mac: Mac,
    pub(crate) many_queues: bool,
}

/// A network that a pod has.
#[derive(Clone, Debug)]
pub(crate) struct Attached {
    pub(crate) interface: Interface,
    pub(crate) outcome: CniResult,
}

/// A network as it was found or made: its attachment by this agent, unless Multus made it.
struct One {
    attached: Attached,
    entry: Option<(Reference, Entry)>,
}

impl Networks {
    /// `state`: the agent's directory on the node; `plugins`: folders of CNI plugins there; `shared`: namespaces with
    /// definitions that all guests may use.
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        node: Node,
        state: &Path,
        plugins: Vec<PathBuf>,
        shared: Vec<String>,
    ) -> Self {
        let state = state.join("network");
        let places = Places { namespaces: state.clone(), state, plugins };
        Self { objects, node, places, shared, work: Mutex::default(), free: Condvar::new(), _lock: None }
    }

    /// Waits until no other agent of the node works on networks: after a pod was deleted by force, its agent may still be
    /// ending while the next one starts. Keeps others out as long as this value lives, and removes the files that an agent
    /// left which was killed while it wrote them.
    ///
    /// # Errors
    /// [`Kind::System`]: the directory of the records cannot be written.
    pub(crate) fn alone(self) -> Result<Self> {
        let folder = &self.places.state;
        let failed = |error| Error::system(format!("cannot lock {}", folder.display()), error);
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = File::create(folder.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                tracing::info!("another agent of this node is ending; waiting for it");
                lock.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        cache::remove_unfinished(folder)?;
        Ok(Self { _lock: Some(lock), ..self })
    }

    /// Attaches a pod to the networks that it lacks, in their order, detaches it from those that are not asked for any more,
    /// and writes network-status. `observed` gives what an interface of the pod has that Multus or the cluster's plugin made.
    ///
    /// # Errors
    /// [`Kind::Content`]: a definition is missing, forbidden or wrong; [`Kind::Untrusted`]: the pod's annotation or
    /// namespace is not what it claims to be; [`Kind::System`]: a plugin fails, in its words; [`Kind::Cluster`],
    /// [`Kind::Stale`].
    pub(crate) fn attach(
        &self,
        target: &Target<'_>,
        asked: &[RequestedNetwork],
        observed: &dyn Fn(&str) -> Result<CniResult>,
    ) -> Result<Vec<Attached>> {
        if asked.len() > NETWORKS_MAX {
            let text = format!("{} secondary networks; {NETWORKS_MAX} is the limit", asked.len());
            return Err(Error::new(Kind::Content, text));
        }
        let mut phases = Phases::new();
        let _claim = self.claim(target.uid);
        phases.end("claim");
        let namespace = self.namespace(target)?;
        // The node's directory of records is mounted here, too.
        let entries = cache::of(&self.places.state, target.uid)?;
        phases.end("read");
        if asked.is_empty() && entries.is_empty() {
            return Ok(Vec::new());
        }
        let untrusted = |said: String| {
            Error::new(Kind::Untrusted, format!("the annotation {STATUS} of pod {}: {said}", target.name))
        };
        let mut listed = Listed::read(target.status).map_err(untrusted)?;
        let holds = |entry: &Entry| entry.is_whole() && entry.is_in(&namespace);
        let mut found = Vec::new();
        for one in asked {
            let pod = Names::secondary(&one.name).pod;
            let entry = entries.iter().find(|entry| entry.if_name == pod && holds(entry));
            // An interface with a record in any state is this agent's.
            let of_others = listed.has(&pod) && entries.iter().all(|entry| entry.if_name != pod);
            let step = self.one(target, one, entry, of_others, observed, &mut phases);
            found.push(step.map_err(|error| error.context(format!("{}: {}", one.path, one.network)))?);
        }
        let is_asked =
            |entry: &Entry| asked.iter().any(|one| Names::secondary(&one.name).pod == entry.if_name);
        let leaving: Vec<&Entry> =
            entries.iter().rev().filter(|entry| !holds(entry) || !is_asked(entry)).collect();
        // Before DEL removes the records: an interface that is listed without one counts as attached by Multus.
        let gone: Vec<&str> = leaving.iter().map(|entry| entry.if_name.as_str()).collect();
        let withdrawn = listed.without(&gone);
        if let Some(text) = &withdrawn {
            phases.waiting(|| self.objects.annotate(&annotated(target), text))?;
            listed = Listed::read(Some(text)).map_err(untrusted)?;
        }
        let target = &Target { status: withdrawn.as_deref().or(target.status), ..*target };
        let made = found.iter().filter(|step| matches!(step, Step::Make(..))).count();
        phases.end("definitions");
        let work = || {
            let path = Node::path_of(&namespace, target.network_elsewhere.to_owned());
            for entry in &leaving {
                if let (true, Some(result)) = (entry.is_in(&namespace), &entry.result) {
                    // The guest's side of it: a tap and a bridge in the pod. DEL removes the interface below them.
                    guest::network::unwire(&path, &entry.if_name, result)?;
                }
                self.leave(entry)?;
            }
            for (one, found) in asked.iter().zip(&mut found) {
                let Step::Make(interface, reference) = found else { continue };
                let (interface, reference) = (interface.clone(), reference.clone());
                let made = self.add(target, &namespace, &path, &interface);
                let entry = made.map_err(|error| {
                    error.context(format!("{}: {reference} cannot be attached", one.path))
                })?;
                *found = Step::Is(from_entry(*interface, reference, entry));
            }
            Ok(if listed.names_a_default() { None } else { Some(self.node.pod_network()) })
        };
        let idle = made == 0 && leaving.is_empty() && listed.names_a_default();
        let pod_network = if idle { None } else { self.node.inside(work)? };
        phases.end("node");
        let found: Vec<One> = found
            .into_iter()
            .filter_map(|step| match step {
                Step::Is(one) => Some(*one),
                Step::Make(..) => None,
            })
            .collect();
        let status = status(&listed, &found, pod_network, observed);
        phases.end("status");
        if let Some(text) = status {
            phases.waiting(|| self.objects.annotate(&annotated(target), &text))?;
        }
        if let Some(made) = u32::try_from(made).ok().filter(|made| *made > 0) {
            let microseconds = (phases.own() / made).as_micros();
            let Target { name: pod, namespace, .. } = *target;
            tracing::info!(
                pod,
                namespace,
                networks = made,
                microseconds,
                "attached to networks; time for each"
            );
            tracing::debug!(pod, namespace, microseconds = ?phases.spent, "phases of the attachment");
        }
        Ok(found.into_iter().map(|one| one.attached).collect())
    }

    /// Refuses a guest with a network that should replace the pod network but was not put there: only Multus can do that,
    /// when the pod starts.
    ///
    /// # Errors
    /// [`Kind::Content`].
    pub(crate) fn has_default(&self, target: &Target<'_>, network: Option<&str>) -> Result<()> {
        let Some(network) = network else { return Ok(()) };
        let content = |said: String| Error::new(Kind::Content, said);
        let reference = Reference::read(network, target.namespace).map_err(content)?;
        let listed = Listed::read(target.status).unwrap_or_default();
        if listed.has_default(&reference.to_string()) {
            return Ok(());
        }
        Err(content(format!(
            "the annotation {STATUS} of pod {} does not list {reference} as its default network: Multus has to be installed \
             for multus.default",
            target.name
        )))
    }

    /// The steps for one network.
    fn one(
        &self,
        target: &Target<'_>,
        one: &RequestedNetwork,
        entry: Option<&Entry>,
        listed: bool,
        observed: &dyn Fn(&str) -> Result<CniResult>,
        phases: &mut Phases,
    ) -> Result<Step> {
        let content = |said: String| Error::new(Kind::Content, said);
        let reference = Reference::read(&one.network, target.namespace).map_err(content)?;
        let interface = |network: Configuration| Interface {
            name: one.name.clone(),
            names: Names::secondary(&one.name),
            network,
            binding: Binding::Bridge,
            mac: one.mac,
            many_queues: one.many_queues,
        };
        if let Some(entry) = entry {
            return Ok(Step::Is(from_entry(interface(entry.network()?), reference, entry.clone())));
        }
        if listed {
            let pod = Names::secondary(&one.name).pod;
            let outcome = observed(&pod).map_err(|error| {
                Error::with(
                    Kind::Untrusted,
                    format!("the annotation {STATUS} of pod {} lists the interface {pod}", target.name),
                    error,
                )
            })?;
            let attached = Attached { interface: interface(placeholder()?), outcome };
            return Ok(Step::Is(Box::new(One { attached, entry: None })));
        }
        reference.allowed(target.namespace, &self.shared).map_err(content)?;
        let found = phases.waiting(|| self.objects.definition(&reference))?.ok_or_else(|| {
            content(format!("the NetworkAttachmentDefinition {reference} does not exist: create it"))
        })?;
        let files = || self.node.inside(|| self.node.files());
        let network = definition::configuration(&reference, &found, files)?;
        Ok(Step::Make(Box::new(interface(network)), reference))
    }

    /// The pod's namespace: neither the agent's nor the node's.
    fn namespace(&self, target: &Target<'_>) -> Result<Namespace> {
        let gone = || Error::new(Kind::Launcher, "the launcher's process has ended");
        let namespace = Namespace::find(target.network)?.ok_or_else(gone)?;
        if namespace.is(&Namespace::ours()?) || namespace.is(&Namespace::open(&self.node.network)?) {
            let text = "the launcher is in a network namespace of the node, which is never changed";
            return Err(Error::new(Kind::Untrusted, text));
        }
        Ok(namespace)
    }

    /// ADD, noted before and after. On the node.
    fn add(
        &self,
        target: &Target<'_>,
        namespace: &Namespace,
        path: &Path,
        interface: &Interface,
    ) -> Result<Entry> {
        let Target { uid, namespace: of, name, .. } = *target;
        let owner = Owner { container: uid, namespace: of, name, uid };
        runtime::installed(&self.places, &interface.network)?;
        let mut entry = runtime::entry_in(path, owner, interface, &[]).only_in(namespace);
        cache::write(&self.places.state, &entry)?;
        runtime::add(&self.places, &mut entry)?;
        Ok(entry)
    }

    /// DEL, noted before. On the node.
    fn leave(&self, entry: &Entry) -> Result<()> {
        // On a disk that is full it goes all the same.
        drop(entry.leave(&self.places.state));
        Ok(runtime::delete(&self.places, entry)?)
    }

    /// Starts the DEL of every attachment of the pods that are over, on a thread for each pod: a plugin that hangs delays its
    /// own pod. Waits only where [`DETACHING_MAX`] pods are being detached.
    ///
    /// # Errors
    /// The records cannot be read. A DEL that fails is logged, and tried again at the next sweep.
    pub(crate) fn sweep(self: &Arc<Self>, lives: &dyn Fn(&str) -> bool) -> Result<()> {
        let all = cache::all(&self.places.state)?;
        let pods: BTreeSet<&str> = all.iter().map(|entry| entry.container_id.as_str()).collect();
        for uid in pods.into_iter().filter(|uid| !lives(uid)) {
            let Some(detaching) = self.detaching(uid) else { continue };
            let started =
                std::thread::Builder::new().name("detach".to_owned()).spawn(move || detaching.run());
            started.map_err(|error| Error::system("cannot start a thread that detaches a pod", error))?;
        }
        Ok(())
    }

    /// DEL of all attachments of a pod.
    fn detach(&self, uid: &str) -> Result<()> {
        let _claim = self.claim(uid);
        let entries = cache::of(&self.places.state, uid)?;
        self.node.inside(|| {
            let mut failed = None;
            for entry in entries.iter().rev() {
                unwire(entry);
                failed = self.leave(entry).err().or(failed);
            }
            failed.map_or(Ok(()), Err)
        })
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, work: MutexGuard<'a, Work>) -> MutexGuard<'a, Work> {
        self.free.wait(work).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread works on the pod.
    fn claim(&self, uid: &str) -> Claim<'_> {
        let mut work = self.work();
        while work.claimed.contains(uid) {
            work = self.wait(work);
        }
        work.claimed.insert(uid.to_owned());
        Claim { networks: self, uid: uid.to_owned() }
    }

    /// A place among the pods that are being detached; `None`: the pod has one.
    fn detaching(self: &Arc<Self>, uid: &str) -> Option<Detaching> {
        let mut work = self.work();
        while work.detaching.len() >= DETACHING_MAX && !work.detaching.contains(uid) {
            work = self.wait(work);
        }
        let new = work.detaching.insert(uid.to_owned());
        new.then(|| Detaching { networks: Arc::clone(self), uid: uid.to_owned() })
    }

    /// Waits until no pod is being detached.
    #[cfg(test)]
    pub(crate) fn settle(&self) {
        let mut work = self.work();
        while !work.detaching.is_empty() {
            work = self.wait(work);
        }
    }
}

/// A pod that a thread works on.
struct Claim<'a> {
    networks: &'a Networks,
    uid: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.networks.work().claimed.remove(&self.uid);
        self.networks.free.notify_all();
    }
}

/// A pod that a thread detaches.
struct Detaching {
    networks: Arc<Networks>,
    uid: String,
}

impl Detaching {
    fn run(&self) {
        let pod = &self.uid;
        match self.networks.detach(pod) {
            Ok(()) => tracing::info!(pod, "detached from its secondary networks"),
            Err(error) => {
                tracing::warn!(pod, error = error.chain(), "cannot detach a pod from a network; retrying");
            }
        }
    }
}

impl Drop for Detaching {
    fn drop(&mut self) {
        self.networks.work().detaching.remove(&self.uid);
        self.networks.free.notify_all();
    }
}

/// Removes the guest's side of an attachment, if its network namespace exists: a plugin may look for the interface by
/// name at DEL, and finds a dummy or nothing otherwise. On the node.
fn unwire(entry: &Entry) {
    let Some(result) = &entry.result else { return };
    let (path, interface) = (entry.namespace.as_path(), entry.if_name.as_str());
    let unwired = Namespace::find(path).map_err(Error::from).and_then(|namespace| {
        if namespace.is_some_and(|namespace| entry.is_in(&namespace)) {
            guest::network::unwire(path, interface, result)?;
        }
        Ok(())
    });
    if let Err(error) = unwired {
        let pod = entry.container_id.as_str();
        tracing::debug!(pod, interface, error = error.chain(), "cannot unwire an interface before DEL");
    }
}

/// The time that phases of an attachment took, in microseconds, without the API server's.
struct Phases {
    begun: Instant,
    waited: Duration,
    spent: Vec<(&'static str, u128)>,
}

impl Phases {
    fn new() -> Self {
        Self { begun: Instant::now(), waited: Duration::ZERO, spent: Vec::new() }
    }

    /// The time since the first phase began.
    fn own(&self) -> Duration {
        self.begun.elapsed().saturating_sub(self.waited)
    }

    /// Ends a phase: it lasted since the one before.
    fn end(&mut self, phase: &'static str) {
        let before: u128 = self.spent.iter().map(|(_, spent)| spent).sum();
        self.spent.push((phase, self.own().as_micros().saturating_sub(before)));
    }

    /// Calls the API server.
    fn waiting<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = call();
        self.waited += begun.elapsed();
        answer
    }
}

/// A network that is there, or one to be made.
enum Step {
    Is(Box<One>),
    Make(Box<Interface>, Reference),
}

fn from_entry(interface: Interface, reference: Reference, entry: Entry) -> Box<One> {
    let result = entry.result.clone().unwrap_or_default();
    let outcome = CniResult::read(&result, &interface.names.pod);
    Box::new(One { attached: Attached { interface, outcome }, entry: Some((reference, entry)) })
}

fn annotated<'a>(target: &Target<'a>) -> Annotated<'a> {
    let Target { namespace, name, uid, status, .. } = *target;
    Annotated { namespace, name, uid, before: status }
}

/// The annotation network-status with the attachments, and with the pod network, of the name `pod_network`, where it lists no
/// default; `None`: it is as it should be.
fn status(
    listed: &Listed,
    found: &[One],
    pod_network: Option<String>,
    observed: &dyn Fn(&str) -> Result<CniResult>,
) -> Option<String> {
    let primary = Names::primary().pod;
    let default = pod_network.and_then(|name| Some((name, observed(&primary).ok()?)));
    let ours: Vec<(String, &One, Option<u64>)> = found
        .iter()
        .filter_map(|one| {
            let (reference, entry) = one.entry.as_ref()?;
            Some((reference.to_string(), one, mtu(entry)))
        })
        .collect();
    let mut entries: Vec<listed::Entry<'_>> = ours
        .iter()
        .map(|(name, one, mtu)| listed::Entry {
            name,
            interface: &one.attached.interface.names.pod,
            outcome: &one.attached.outcome,
            mtu: *mtu,
            default: false,
        })
        .collect();
    if entries.is_empty() {
        return None;
    }
    entries.extend(default.as_ref().map(|(name, outcome)| listed::Entry {
        name,
        interface: &primary,
        outcome,
        mtu: None,
        default: true,
    }));
    listed.with(&entries)
}

/// Largest packet of the pod's interface, in bytes, as plugins since version 1.1.0 answer it.
fn mtu(entry: &Entry) -> Option<u64> {
    let interfaces = entry.result.as_ref()?.get("interfaces")?.as_array()?;
    let ours =
        interfaces.iter().find(|one| one.get("name").is_some_and(|name| name == entry.if_name.as_str()));
    ours?.get("mtu")?.as_u64().filter(|mtu| *mtu > 0)
}

/// A configuration for what Multus attached: it is never given to a plugin.
fn placeholder() -> Result<Configuration> {
    let text = format!(r#"{{"cniVersion": "1.0.0", "type": "{OF_MULTUS}"}}"#);
    Configuration::read(&text, OF_MULTUS).map_err(|said| Error::new(Kind::System, said))
}
