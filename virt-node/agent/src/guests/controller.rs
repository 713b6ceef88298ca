//! The reconciler: one key per VMI, one worker per key. What is known comes from three caches (VMIs, pods, followed
//! launchers); a step that fails is tried again after the key's back-off.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use api::kubevirt::{InterfaceStatus, VirtualMachineInstance, VirtualMachineInstanceStatus};
use api::launcher::{Event, State};
use cluster::event::{Events, Reference, Type};
use cluster::{Cache, Client, Key, Outcome, Queue, Resource, Scope};
use serde_json::Value;
use tokio::sync::Notify;

use super::checksums::{self, Checksums};
use super::credentials::WantedCredentials;
use super::disks::Attachments;
use super::follow::{self, Follower};
use super::growth::{self, Grown};
use super::hotplug::{self, Done};
use super::instance::{Instance, Written as WrittenInstance};
use super::interfaces;
use super::launch::{self, Site};
use super::network::Network;
use super::patch;
use super::plan::{self, End, Launcher, ObservedGuest, Phase, Step};
use super::pod::{ATTACHMENT, Pod, Written as WrittenPod};
use super::status::{self, Running, Started};
use super::talk::Talk;
use crate::error::{Error, Kind, Result};
use crate::pods::PodDirectory;

/// VMIs.
pub(crate) const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
const PODS: Resource = Resource::namespaced("", "v1", "pods");
/// Launcher pods, and those that hold volumes which come and go.
const GUEST_PODS: &str = "kubevirt.io in (virt-launcher,hotplug-disk)";
/// How soon a volume that could not be moved is tried again.
const MOVE_AGAIN: Duration = Duration::from_secs(2);
/// Guests that are worked on at once.
const WORKERS: usize = 8;
/// How often networks of pods that are over are looked for, and how soon after a pod changed or a guest ended.
const SWEEP: Duration = Duration::from_secs(30);
const SWEEP_SOON: Duration = Duration::from_millis(200);

/// The reconciler.
#[derive(Debug)]
pub(crate) struct Controller {
    client: Client,
    events: Events,
    site: Site,
    node: String,
    queue: Queue<Key>,
    instances: Cache<Instance>,
    pods: Cache<Pod>,
    by_uid: cluster::cache::Index,
    /// A pod changed or a guest ended: networks of one that is over are to be detached.
    changed: Arc<Notify>,
    guests: Mutex<HashMap<String, Guest>>,
}

/// State of a guest that lives as long as the agent, by the VMI's uid.
#[derive(Debug)]
struct Guest {
    key: Key,
    follower: Follower,
    /// The grace, in seconds, that the guest was given to end.
    asked: Option<u64>,
    /// The parameters of its start, until its status has them.
    started: Option<Started>,
    /// Its network, once this agent made it or looked after it.
    network: Option<Network>,
    /// The interfaces that it was last brought to, and their statuses, until its status has them.
    interfaces: BTreeMap<String, String>,
    attached: Option<Vec<InterfaceStatus>>,
    /// Sizes of claims that its disks were brought to.
    grown: Grown,
    /// Checksums of its files from images, once they are computed.
    checksums: Arc<OnceLock<Checksums>>,
}

impl Controller {
    /// Follows the VMIs and launcher pods of a node. Returns when both are known.
    pub(crate) async fn start(client: &Client, site: Site, node: &str) -> Arc<Self> {
        let queue: Queue<Key> = Queue::new();
        let feed = queue.clone();
        let instances = Cache::<Instance>::builder()
            .on_change(move |change| feed.add(change.key.clone()))
            .start::<WrittenInstance>(
            client,
            INSTANCES,
            &Scope::all().labels(&format!("kubevirt.io/nodeName={node}")),
        );
        let (feed, known) = (queue.clone(), instances.clone());
        let mut pods = Cache::<Pod>::builder();
        let changed = Arc::new(Notify::new());
        let tell = Arc::clone(&changed);
        let by_uid = pods.index(|_, pod: &Pod| vec![pod.uid.clone()]);
        let pods = pods
            .on_change(move |change| {
                let pod = change.after.or(change.before);
                let Some(pod) = pod else { return };
                tell.notify_one();
                for (key, instance) in known.all() {
                    let holds = instance.attachments.values().any(|uid| *uid == pod.uid);
                    if holds || instance.active_pods.contains_key(&pod.uid) {
                        feed.add(key);
                    }
                }
            })
            .start::<WrittenPod>(
                client,
                PODS,
                &Scope::all().labels(GUEST_PODS).fields(&format!("spec.nodeName={node}")),
            );
        instances.synced().await;
        pods.synced().await;
        let events = Events::start(client, "virt-handler", node);
        let (client, node) = (client.clone(), node.to_owned());
        let guests = Mutex::default();
        let controller = Self { client, events, site, node, queue, instances, pods, by_uid, changed, guests };
        for (key, _) in controller.instances.all() {
            controller.queue.add(key);
        }
        Arc::new(controller)
    }

    /// Works until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: impl Future<Output = ()>) {
        let queue = self.queue.clone();
        let sweeper = tokio::spawn(Arc::clone(&self).sweep());
        let work = move |key: Key| {
            let controller = Arc::clone(&self);
            async move { controller.reconcile(key).await }
        };
        queue.run(WORKERS, stop, work).await;
        sweeper.abort();
    }

    /// Detaches pods that are over from their networks, as long as the agent runs.
    async fn sweep(self: Arc<Self>) {
        loop {
            let controller = Arc::clone(&self);
            let swept = tokio::task::spawn_blocking(move || {
                controller.site.networks.sweep(&|uid| controller.pod_lives(uid))
            });
            if let Ok(Err(error)) = swept.await {
                tracing::warn!(error = error.chain(), "cannot detach the networks of ended pods; retrying");
            }
            tokio::select! {
                () = self.changed.notified() => tokio::time::sleep(SWEEP_SOON).await,
                () = tokio::time::sleep(SWEEP) => {}
            }
        }
    }

    /// Whether a pod may still use its networks: its object decides, or, where there is none, the kubelet's directory of it,
    /// and the guest in it.
    fn pod_lives(&self, uid: &str) -> bool {
        let pods = self.pods.by(self.by_uid, uid);
        let known = pods.first().map(|(_, pod)| pod);
        let pod = match known {
            Some(pod) => pod.state(),
            None if matches!(PodDirectory::open(&self.site.kubelet, uid), Ok(None)) => plan::Pod::Gone,
            None => plan::Pod::Unseen,
        };
        let instances = self.instances.all();
        let is_its = |instance: &Instance| {
            instance.active_pods.contains_key(uid) && known.is_none_or(|pod| pod.is_of(instance))
        };
        let instance = instances.iter().find(|(_, instance)| is_its(instance));
        let phase = Phase::of(instance.and_then(|(_, instance)| instance.phase.as_deref()));
        let guests = self.guests();
        let guest = guests.values().find(|guest| guest.follower.pod == uid);
        let launcher = guest.map_or(Launcher::Silent, |guest| guest.follower.known.lock().launcher());
        plan::uses_networks(pod, phase, &launcher)
    }

    /// The pod of a VMI on this node with the kubelet's directory, for streams and commands; by namespace and name.
    ///
    /// # Errors
    /// There is no such guest here, or its pod is gone.
    pub(crate) fn pod_of(&self, key: &Key) -> Result<(Arc<Instance>, Arc<PodDirectory>)> {
        let missing = || Error::new(Kind::Content, format!("{key} does not run on this node"));
        let instance = self.instances.get(key).ok_or_else(missing)?;
        let pod = self.launcher_pod(&instance).ok_or_else(missing)?;
        let directory = PodDirectory::open(&self.site.kubelet, &pod.uid)?.ok_or_else(missing)?;
        Ok((instance, Arc::new(directory)))
    }

    /// Name of the node.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Guests that run, for metrics.
    pub(crate) fn running(&self) -> Vec<Arc<Instance>> {
        let all = self.instances.all().into_iter().map(|(_, instance)| instance);
        all.filter(|one| matches!(Phase::of(one.phase.as_deref()), Phase::Running)).collect()
    }

    /// Whether a VMI is on this node.
    pub(crate) fn is_known(&self, key: &Key) -> bool {
        self.instances.get(key).is_some()
    }

    /// Whether the agent of a guest is connected, as its launcher reported last.
    pub(crate) fn has_agent(&self, key: &Key) -> bool {
        let guests = self.guests();
        let guest = guests.values().find(|guest| guest.key == *key);
        guest.is_some_and(|guest| guest.follower.known.lock().status.as_ref().is_some_and(|one| one.agent))
    }

    fn guests(&self) -> MutexGuard<'_, HashMap<String, Guest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The launcher pod that the operator recorded in the VMI. A pod's labels are its maker's claim and are not enough.
    fn launcher_pod(&self, instance: &Instance) -> Option<Arc<Pod>> {
        let here = instance.active_pods.iter().filter(|(_, node)| **node == self.node);
        here.flat_map(|(uid, _)| self.pods.by(self.by_uid, uid))
            .map(|(_, pod)| pod)
            .find(|pod| pod.is_of(instance))
    }

    /// The running pods that hold volumes of a VMI, as the operator recorded them in it.
    fn attachments(&self, instance: &Instance) -> Attachments {
        let held = instance.attachments.iter().filter_map(|(volume, uid)| {
            let pods = self.pods.by(self.by_uid, uid);
            let (_, pod) = pods.first()?;
            let container = pod.containers.get(ATTACHMENT)?;
            let ours = pod.namespace == instance.namespace && !pod.deleting;
            ours.then(|| (volume.clone(), (uid.clone(), container.clone())))
        });
        held.collect()
    }

    /// Brings one guest a step further.
    async fn reconcile(&self, key: Key) -> Outcome {
        let Some(instance) = self.instances.get(&key) else {
            self.guests().retain(|_, guest| guest.key != key);
            return Outcome::Done;
        };
        let pod = self.launcher_pod(&instance);
        let found = self.found(&key, &instance, pod.as_deref());
        let Some(step) = plan::step(&found) else { return Outcome::Done };
        let done = match step {
            Step::Launch => self.launch(&key, &instance, pod.as_deref(), false).await,
            Step::Shutdown => self.shut_down(&instance, pod.as_deref()).await,
            Step::Finish(end) => {
                // Its networks do not wait for the API server.
                self.changed.notify_one();
                self.finish(&key, &instance, &end).await
            }
            Step::Report => match self.report(&key, &instance, pod.as_ref()).await {
                Ok(again) => {
                    let kept = self.look_after_network(&instance, pod.as_deref()).await;
                    match (kept, again) {
                        (Ok(()), true) => return Outcome::After(MOVE_AGAIN),
                        (kept, _) => kept,
                    }
                }
                Err(error) => Err(error),
            },
        };
        match done {
            Ok(()) => Outcome::Done,
            // The watch brings the newer object, and the key with it.
            Err(error) if error.kind() == Kind::Stale => Outcome::Done,
            Err(error) => self.failed(&key, &instance, &error).await,
        }
    }

    /// Facts about a guest. Its launcher is followed from now on.
    fn found(&self, key: &Key, instance: &Instance, pod: Option<&Pod>) -> ObservedGuest {
        let phase = Phase::of(instance.phase.as_deref());
        let mut launcher = Launcher::Silent;
        let mut asked = false;
        let mut gone = plan::Pod::Unseen;
        if matches!(phase, Phase::Scheduled | Phase::Running) {
            let mut guests = self.guests();
            if let Some(pod) = pod {
                let known = guests.get(&instance.uid).is_some_and(|guest| guest.follower.pod == pod.uid);
                if !known {
                    let (feed, told) = (self.queue.clone(), key.clone());
                    let tell = move || feed.add(told.clone());
                    let wanted = WantedCredentials::of(&instance.spec, pod);
                    let (kubelet, uid) = (self.site.kubelet.clone(), pod.uid.clone());
                    let follower = Follower::start(kubelet, uid, wanted, tell);
                    let guest = Guest {
                        key: key.clone(),
                        follower,
                        asked: None,
                        started: None,
                        network: None,
                        interfaces: BTreeMap::new(),
                        attached: None,
                        grown: Grown::new(),
                        checksums: Arc::default(),
                    };
                    guests.insert(instance.uid.clone(), guest);
                }
            }
            if let Some(guest) = guests.get(&instance.uid) {
                launcher = guest.follower.known.lock().launcher();
                asked = guest.asked.is_some_and(|grace| grace <= instance.grace);
                gone = plan::Pod::Gone;
            }
        } else {
            self.guests().remove(&instance.uid);
        }
        ObservedGuest {
            phase,
            deleting: instance.deleting,
            pod: pod.map_or(gone, Pod::state),
            launcher,
            asked,
        }
    }

    fn about(&self, key: &Key, instance: &Instance) -> Reference {
        Reference {
            api_version: INSTANCES.api_version(),
            kind: "VirtualMachineInstance".to_owned(),
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            uid: instance.uid.clone(),
        }
    }

    async fn launch(&self, key: &Key, instance: &Instance, pod: Option<&Pod>, adopt: bool) -> Result<()> {
        let Some(pod) = pod else { return Ok(()) };
        let object: VirtualMachineInstance =
            self.client.get(INSTANCES, key).await.map_err(|error| cluster(key, error))?;
        if object.metadata.uid.as_deref() != Some(&instance.uid) {
            return Err(Error::new(Kind::Stale, "another VMI has the name now"));
        }
        let interfaces = interfaces::wanted(&object.spec);
        let files = checksums::files(&object.spec);
        let (started, network) =
            launch::launch(&self.site, object, pod.clone(), self.attachments(instance), adopt).await?;
        if let Some(guest) = self.guests().get_mut(&instance.uid) {
            (guest.started, guest.network) = (Some(started), Some(network));
            guest.interfaces = interfaces;
            self.sum_up(key, &pod.uid, files, &guest.checksums);
        }
        if !adopt {
            let about = self.about(key, instance);
            self.events.publish(&about, Type::Normal, "Created", "VirtualMachineInstance defined.");
            self.events.publish(&about, Type::Normal, "Started", "VirtualMachineInstance started.");
        }
        // The launcher's own report of the new state brings the key back.
        Ok(())
    }

    /// Computes the checksums of a guest's files from images; its status is written again then.
    fn sum_up(&self, key: &Key, pod: &str, files: checksums::Files, sums: &Arc<OnceLock<Checksums>>) {
        if files.is_empty() {
            return;
        }
        let (kubelet, queue) = (self.site.kubelet.clone(), self.queue.clone());
        let (key, pod, sums) = (key.clone(), pod.to_owned(), Arc::downgrade(sums));
        tokio::spawn(async move {
            match checksums::compute(&kubelet, &pod, &files, &sums).await {
                Ok(Some(computed)) => {
                    if sums.upgrade().is_some_and(|sums| sums.set(computed).is_ok()) {
                        queue.add(key);
                    }
                }
                // The guest has ended.
                Ok(None) => {}
                Err(error) => {
                    tracing::info!(vmi = %key, error = error.chain(), "the status lacks checksums of images");
                }
            }
        });
    }

    /// Looks after the network of a guest: once when an earlier agent started it, and whenever its interfaces change.
    async fn look_after_network(&self, instance: &Arc<Instance>, pod: Option<&Pod>) -> Result<()> {
        let Some(pod) = pod else { return Ok(()) };
        let wanted = interfaces::wanted(&instance.spec);
        let is_current = |guest: &Guest| guest.network.is_some() && guest.interfaces == wanted;
        if instance.deleting || self.guests().get(&instance.uid).is_none_or(is_current) {
            return Ok(());
        }
        let key = Key::new(&instance.namespace, &instance.name);
        let mended = interfaces::mend(&self.site, Arc::clone(instance), pod.clone()).await;
        if mended.is_err() && self.has_ended(instance) {
            // Its networks are detached at its end: what is missing then is no failure.
            return Ok(());
        }
        if let Some((kind, reason, text)) = mended.as_ref().err().and_then(status::interfaces_event) {
            self.events.publish(&self.about(&key, instance), kind, reason, &text);
        }
        let (network, statuses) = mended?;
        if let Some(guest) = self.guests().get_mut(&instance.uid) {
            (guest.network, guest.attached) = (Some(network), Some(statuses));
            guest.interfaces = wanted;
        }
        self.queue.add(key);
        Ok(())
    }

    /// Whether the launcher of a guest reported its end.
    fn has_ended(&self, instance: &Instance) -> bool {
        let guests = self.guests();
        let guest = guests.get(&instance.uid);
        guest.is_some_and(|guest| matches!(guest.follower.known.lock().launcher(), Launcher::Ended(_)))
    }

    async fn shut_down(&self, instance: &Instance, pod: Option<&Pod>) -> Result<()> {
        let Some(pod) = pod else { return Ok(()) };
        let Some(directory) = PodDirectory::open(&self.site.kubelet, &pod.uid)? else { return Ok(()) };
        let (mut talk, _) = Talk::open(&Arc::new(directory)).await?;
        let (request, reason, text) = plan::ending(instance.grace);
        talk.call(request).await?;
        if let Some(guest) = self.guests().get_mut(&instance.uid) {
            guest.asked = Some(instance.grace);
        }
        let key = Key::new(&instance.namespace, &instance.name);
        self.events.publish(&self.about(&key, instance), Type::Normal, reason, text);
        Ok(())
    }

    async fn finish(&self, key: &Key, instance: &Instance, end: &End) -> Result<()> {
        let before = parsed(&instance.status)?;
        self.publish_events(key, instance);
        let (after, (warning, reason, text)) = status::ended(&before, end, instance.deleting);
        if self.write(key, instance, &after).await? {
            let kind = if warning { Type::Warning } else { Type::Normal };
            self.events.publish(&self.about(key, instance), kind, reason, text);
        }
        Ok(())
    }

    /// Writes how a guest is, and has its volumes come and go; whether that is to be tried again soon.
    async fn report(&self, key: &Key, instance: &Arc<Instance>, pod: Option<&Arc<Pod>>) -> Result<bool> {
        let Some(pod) = pod else { return Ok(false) };
        let fresh = Phase::of(instance.phase.as_deref()) == Phase::Scheduled;
        if fresh && self.guests().get(&instance.uid).is_some_and(|guest| guest.started.is_none()) {
            // Started by an agent that ended before it could report it.
            self.launch(key, instance, Some(pod), true).await?;
        }
        self.publish_events(key, instance);
        let Some((known, started, attached, sums)) = self.guests().get(&instance.uid).map(|guest| {
            let known = guest.follower.known.lock().clone();
            (known, guest.started.clone(), guest.attached.clone(), guest.checksums.get().cloned())
        }) else {
            return Ok(false);
        };
        let Some(seen) = known.status.as_ref() else { return Ok(false) };
        let before = parsed(&instance.status)?;
        let running = Running {
            spec: &instance.spec,
            seen,
            started: started.as_ref().filter(|_| fresh),
            attached: attached.as_deref(),
            pod,
            os: known.os.as_ref(),
            interfaces: known.interfaces.as_deref(),
            abilities: known.abilities,
            credentials: known.credentials.as_ref(),
        };
        let mut after = status::running(&before, &running);
        let ends = instance.deleting || matches!(seen.state, State::Stopping | State::Ended);
        let attachments = self.attachments(instance);
        let moved = match ends {
            true => Done::default(),
            false => hotplug::work(&self.site, instance, pod, &attachments, &mut after).await?,
        };
        if let Some(seen) = moved.seen {
            after = status::running(&after, &Running { seen: &seen, started: None, ..running });
            if let Some(guest) = self.guests().get(&instance.uid) {
                follow::note(&guest.follower.known, seen);
            }
        }
        virt::live::note_size(&mut after, &instance.spec);
        if let Some(sums) = sums {
            sums.note(&mut after);
        }
        self.write(key, instance, &after).await?;
        if let Some((kind, reason, text)) = status::credentials_event(&before, &after) {
            self.events.publish(&self.about(key, instance), kind, reason, &text);
        }
        for (kind, reason, text) in moved.events {
            self.events.publish(&self.about(key, instance), kind, reason, &text);
        }
        if !ends && !fresh {
            self.grow_disks(instance, pod, &after).await?;
        }
        Ok(moved.again)
    }

    /// Has the disks of a guest follow the sizes of their claims.
    async fn grow_disks(
        &self,
        instance: &Instance,
        pod: &Pod,
        status: &VirtualMachineInstanceStatus,
    ) -> Result<()> {
        let known = self.guests().get(&instance.uid).map(|guest| guest.grown.clone());
        let Some(known) = known else { return Ok(()) };
        let due = growth::due(&instance.spec, &status.volume_status, &known);
        if due.is_empty() {
            return Ok(());
        }
        let Some(directory) = PodDirectory::open(&self.site.kubelet, &pod.uid)? else { return Ok(()) };
        let grown = growth::grow(directory, &instance.name, due).await?;
        if let Some(guest) = self.guests().get_mut(&instance.uid) {
            guest.grown.extend(grown);
        }
        Ok(())
    }

    /// Publishes the events about the guest that its launcher reported since the last call.
    fn publish_events(&self, key: &Key, instance: &Instance) {
        let happened = self
            .guests()
            .get(&instance.uid)
            .map(|guest| std::mem::take(&mut guest.follower.known.lock().happened))
            .unwrap_or_default();
        let about = self.about(key, instance);
        for event in happened {
            match event {
                Event::Watchdog => {
                    self.events.publish(&about, Type::Warning, "Watchdog", "The guest's watchdog expired.");
                }
                Event::IoError { disk, reason } => {
                    let text = format!("VM paused due to IO error at the volume: {disk} {reason}");
                    self.events.publish(&about, Type::Warning, "IOerror", text.trim());
                }
                Event::Rebooted | Event::Status(_) | Event::Detached { .. } | Event::Agent { .. } => {}
            }
        }
    }

    /// Writes a status; whether it was not so already.
    async fn write(
        &self,
        key: &Key,
        instance: &Instance,
        after: &VirtualMachineInstanceStatus,
    ) -> Result<bool> {
        let unreadable =
            |error| Error::with(Kind::Content, format!("the status of {key} cannot be written"), error);
        let after = serde_json::to_value(after).map_err(unreadable)?;
        // Fields unknown to this release stay as they are: both sides are compared as this release reads them.
        let before = serde_json::to_value(parsed(&instance.status)?).map_err(unreadable)?;
        let before = if instance.status.is_null() { Value::Null } else { before };
        let Some(patch) = patch::status(&instance.uid, &before, &after) else { return Ok(false) };
        let answer: std::result::Result<serde::de::IgnoredAny, _> =
            self.client.json_patch(INSTANCES, key, &patch).await;
        answer.map(|_| true).map_err(|error| cluster(key, error))
    }

    /// Reports why a step failed, and whether it is retried.
    async fn failed(&self, key: &Key, instance: &Instance, error: &Error) -> Outcome {
        let text = error.chain();
        tracing::warn!(%key, error = text, "cannot reconcile the guest; retrying");
        if error.kind().is_awaited() {
            return Outcome::Retry;
        }
        self.events.publish(&self.about(key, instance), Type::Warning, "SyncFailed", &text);
        let written = match parsed(&instance.status) {
            Ok(before) => {
                let after = status::failing(&before, "Synchronizing with the Domain failed.", &text);
                self.write(key, instance, &after).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::debug!(%key, error = error.chain(), "cannot write the failure to the VMI's status");
        }
        Outcome::Retry
    }
}

/// The status as this release knows it.
fn parsed(status: &Value) -> Result<VirtualMachineInstanceStatus> {
    if status.is_null() {
        return Ok(VirtualMachineInstanceStatus::default());
    }
    serde_json::from_value(status.clone())
        .map_err(|error| Error::with(Kind::Content, "the VMI's status cannot be read", error))
}

fn cluster(key: &Key, error: cluster::Error) -> Error {
    let stale =
        matches!(error.kind(), cluster::Kind::Conflict | cluster::Kind::NotFound | cluster::Kind::Gone);
    let kind = if stale { Kind::Stale } else { Kind::Cluster };
    Error::with(kind, format!("cannot write {key}"), error)
}
