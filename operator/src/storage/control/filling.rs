//! Claims that are filled: the next step of each, and its worker.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use api::quantity;
use api::upload::service_name;
use cluster::{Key, Outcome, Result, Scope};
use serde_json::Value;
use virt::time;

use super::warnings::{Known, PAUSE, Warnings};
use super::{CATCH_UP, Controller, Item, RETRY, cloned_for, refused};
use crate::storage::action::{About, Action, Event};
use crate::storage::apply::Done;
use crate::storage::class::Room;
use crate::storage::clone::authorize::Origin;
use crate::storage::clone::{cloned, plan as cloning};
use crate::storage::datavolume::Obstacle;
use crate::storage::datavolume::status::NOT_PROVISIONED;
use crate::storage::names;
use crate::storage::populate::mirror;
use crate::storage::populate::plan::{self as filling, Observed, Start};
use crate::storage::populate::task::{self, Named, Task};
use crate::storage::resources::{self, CAPACITIES, CONFIG_MAPS, EVENTS, SERVICES, VOLUMES};
use crate::storage::seen::claim::Phase;
use crate::storage::seen::worker::Worker;
use crate::storage::seen::{Claim, Class, DataVolume, Meta, Source, User, Volume};
use crate::storage::settings::Settings;
use crate::storage::worker::importer;
use crate::storage::worker::upload::{self, Upload};

/// Seconds after which a claim without a volume and without an event is reported.
const REPORT_AFTER_SECONDS: u64 = 6;
/// The same for a claim whose namespace's events could not be read because those of many others were.
const REPORT_UNREAD_SECONDS: u64 = 8;
/// Seconds in which a worker's pod may start before its start is reported.
const YOUNG: u64 = 5;
/// Seconds in which it may start before its obstacles are reported: scheduler and kubelet often succeed when they try again.
const HINDERED_AFTER_SECONDS: u64 = 8;
/// Seconds after which an obstacle that was met once is reported: the kubelet gives up a wait for a disk after minutes.
const ONCE_AFTER_SECONDS: u64 = 30;
/// Age up to which the room of nodes serves.
const ROOM_AGE: Duration = Duration::from_secs(1);
/// Pause before a claim that has no volume yet, or a worker that starts, is looked at again.
const SOON: Duration = Duration::from_secs(2);

/// Seconds since an object was made; none if the API server's clock is ahead.
fn age(meta: &Meta) -> Option<u64> {
    time::now().checked_sub(time::seconds(&meta.created)?)
}

/// Whether a worker's pod was made within [`YOUNG`] seconds.
fn is_young(worker: &Worker) -> bool {
    age(&worker.meta).is_some_and(|age| age <= YOUNG)
}

/// A worker as its claim reports it: a scheduler that has not seen a new volume yet finds no node for a young pod, and finds
/// one when it tries again.
fn settled(worker: Arc<Worker>) -> Arc<Worker> {
    let young = age(&worker.meta).is_some_and(|age| age < HINDERED_AFTER_SECONDS);
    match young && worker.unschedulable.is_some() {
        true => Arc::new(Worker { unschedulable: None, ..(*worker).clone() }),
        false => worker,
    }
}

/// Pause before a claim is looked at again that has waited for these seconds and is reported on after `due`, so that its
/// report is not late.
fn until_report(waited: u64, due: u64) -> Duration {
    match due.saturating_sub(waited) {
        0 => PAUSE,
        left => SOON.min(Duration::from_secs(left)),
    }
}

/// A size for people, rounded up.
fn rounded(size: u64) -> String {
    let unit = if size < 10 << 30 { 1 << 20 } else { 1 << 30 };
    quantity::text(size.checked_next_multiple_of(unit).unwrap_or(size))
}

/// Whether a populator has filled a claim, and nothing of the transfer is left but its prime claim. Of clones more may be
/// left.
fn is_over(target: &Claim) -> bool {
    target.phase == Phase::Bound
        && target.meta.says(names::POD_PHASE, "Succeeded")
        && target.meta.annotation(names::CLONE_PHASE).is_none()
}

/// Whether a clone has its content or goes: all that is left to do is to remove what helped.
fn is_ending(target: &Claim) -> bool {
    target.meta.deleting || cloning::has_content(target)
}

impl Controller {
    /// A claim that may have to be filled.
    pub(super) async fn claim(&self, key: &Key) -> Result<Outcome> {
        let Some(target) = self.caches.claims.get(key) else {
            self.waits().remove(key);
            return Ok(Outcome::Done);
        };
        if target.phase != Phase::Pending {
            self.waits().remove(key);
        }
        if target.meta.deleting {
            self.abandon(&target).await?;
        }
        if let Some(owner) = target.meta.controller().filter(|owner| owner.kind == "PersistentVolumeClaim") {
            // A prime claim: what happens to it is its target's business.
            self.queue.add(Item::Claim(Key::new(key.namespace(), &owner.name)));
            return Ok(Outcome::Done);
        }
        if let Some(target) = cloned_for(&target.meta) {
            self.queue.add(Item::Claim(target));
            return Ok(Outcome::Done);
        }
        if target.waits_for_reserved() {
            // It gets its content with its volume.
            return Ok(Outcome::Done);
        }
        if target.phase == Phase::Pending && target.meta.annotation(names::POPULATED_FOR).is_some() {
            // A backup tool restored it with its content: it is not filled again.
            return Ok(Outcome::Done);
        }
        let populated = filling::is_populated(&target);
        let written_name = if populated { names::prime(&target.meta.uid) } else { target.meta.name.clone() };
        let prime_key = Key::new(key.namespace(), &written_name);
        if !self.is_current(key, None) || !self.is_current(&prime_key, None) {
            return Ok(Outcome::After(CATCH_UP));
        }
        if populated && is_over(&target) && self.caches.claims.get(&prime_key).is_none() {
            return Ok(Outcome::Done);
        }
        let owner = target.meta.controller().filter(|owner| owner.kind == "DataVolume");
        let volume = owner.and_then(|owner| self.caches.volumes.get(&Key::new(key.namespace(), &owner.name)));
        let named = self.named(&target, volume.is_some()).await?;
        let volume = match volume.as_deref() {
            Some(volume) => match self.resolved(volume).await? {
                Ok(volume) => Some(volume),
                Err(trouble) => return self.sourceless(&target, &trouble, populated).await,
            },
            None => None,
        };
        let task = match task::task(&target, volume.as_ref(), &named) {
            Ok(Some(task)) => task,
            Ok(None) => return Ok(Outcome::Done),
            // Its DataVolume or VolumeCloneSource went before what helped, and before the finalizer.
            Err(trouble)
                if is_ending(&target) && filling::is_populated_by(&target, &[names::CLONE_SOURCE]) =>
            {
                return self.sourceless(&target, &trouble, populated).await;
            }
            Err(trouble) => return self.troubled(&target, &trouble).await,
        };
        let shown = || filling::progressed(&target, self.progress.of(key));
        if let Some(action) = filling::prioritize(&target, &task).or_else(shown) {
            self.applier.apply(&action).await?;
            return Ok(Outcome::After(CATCH_UP));
        }
        if let Some(origin) = Origin::of(&task.source, key.namespace()) {
            return self.clone_claim(&target, &origin, populated).await;
        }
        let upload = task.source == Source::Upload;
        let worker_name =
            if upload { service_name(&written_name) } else { names::importer_pod(&written_name) };
        let worker_key = Key::new(key.namespace(), &worker_name);
        if !self.is_current(key, Some(&worker_key)) {
            return Ok(Outcome::After(CATCH_UP));
        }
        let prime = if populated { self.caches.claims.get(&prime_key) } else { None };
        // A pod of that name that belongs to another claim is not its worker.
        let written = if populated { prime.as_deref() } else { Some(&*target) };
        let worker = self.caches.workers.get(&worker_key);
        let worker = worker
            .filter(|worker| written.is_some_and(|written| worker.meta.is_controlled_by(&written.meta.uid)));
        let worker = match worker.map(settled) {
            Some(worker) if populated && !upload && filling::shows_start(&target) => {
                self.report_hindrance(key, &worker).await?;
                Some(worker)
            }
            Some(worker) => Some(self.hindered(worker).await?),
            None => None,
        };
        let (classes, settings) = (self.classes(), self.settings());
        let needed = populated && filling::needs_volume(&target, prime.as_deref(), worker.as_deref());
        let persistent = self.persistent(prime.as_deref().filter(|_| needed)).await?;
        let observed = Observed {
            target: &target,
            prime: prime.as_deref(),
            worker: worker.as_deref(),
            volume: persistent.as_ref(),
            class: target.class.as_deref().and_then(|name| classes.named(name)),
            task: &task,
            honors_first_consumer: settings.honors_first_consumer,
            user: None,
            young: worker.as_deref().is_some_and(is_young) || (!upload && filling::shows_start(&target)),
        };
        let mut plan = if populated { filling::populator(&observed) } else { filling::direct(&observed) };
        if plan.start == Some(Start::Target) {
            let user = self.user(&target, User::uses).await?;
            plan = filling::direct(&Observed { user: user.as_deref(), ..observed });
        }
        if let Some(refusal) = self.act(&target, &plan.actions).await? {
            return self.troubled(&target, &refusal).await;
        }
        if let Some(trouble) = &plan.trouble {
            return self.troubled(&target, trouble).await;
        }
        if let Some(start) = plan.start {
            return self.start(start, &observed, &task, &settings).await;
        }
        if let Some(worker) = worker.as_deref().filter(|worker| mirror::is_starting(worker, false))
            && written.is_some_and(|written| written.phase == Phase::Bound)
        {
            if filling::shows_start(&target) {
                self.queue.add(Item::Volume(key.clone()));
            }
            let started = age(&worker.meta).unwrap_or(0);
            let pause = if started < HINDERED_AFTER_SECONDS {
                until_report(started, HINDERED_AFTER_SECONDS)
            } else {
                SOON
            };
            return Ok(Outcome::After(pause));
        }
        let scheduled = worker.as_ref().is_none_or(|worker| worker.unschedulable.is_none());
        let awaited =
            written.filter(|_| scheduled && target.phase == Phase::Pending && plan.actions.is_empty());
        self.unbound(&target, awaited, observed.class).await
    }

    /// Takes steps towards a claim's content. `Some`: the API server refuses one, for this reason.
    pub(super) async fn act(&self, target: &Claim, actions: &[Action]) -> Result<Option<Obstacle>> {
        for action in actions {
            let error = match self.applier.apply(action).await {
                Ok(_) => {
                    if let Some(resumed) = filling::resumed(target, action) {
                        self.applier.apply(&resumed).await?;
                    }
                    continue;
                }
                Err(error) => error,
            };
            let Some(namespace) = filling::made_in(action) else { return Err(error) };
            let trouble = filling::refusal(namespace, &refused(error)?);
            if filling::report(target, Some(&trouble)).is_some() {
                let about = About::claim(&target.meta);
                self.applier.report(&Event::warning(about, filling::NOT_MADE, trouble.message.clone()));
            }
            return Ok(Some(trouble));
        }
        Ok(None)
    }

    /// Ends the work on a claim that is being deleted.
    async fn abandon(&self, claim: &Claim) -> Result<()> {
        let workers = self.caches.workers.all();
        for action in filling::abandon(claim, workers.iter().map(|(_, worker)| &**worker)) {
            self.applier.apply(&action).await?;
        }
        Ok(())
    }

    /// Reports why a claim that is waited for has no volume yet, and looks again while it has none.
    pub(super) async fn unbound(
        &self,
        target: &Claim,
        awaited: Option<&Claim>,
        class: Option<&Class>,
    ) -> Result<Outcome> {
        let Some(awaited) = awaited.filter(|awaited| awaited.phase == Phase::Pending) else {
            return Ok(Outcome::Done);
        };
        let consumed = target.meta.annotation(names::IMMEDIATE).is_some()
            || target.meta.annotation(names::SELECTED_NODE).is_some();
        let Some(class) = class.filter(|class| !class.waits_for_consumer || consumed) else {
            return Ok(Outcome::Done);
        };
        let waited = age(&awaited.meta).unwrap_or(0);
        let warnings = self.warnings_in(&awaited.meta.namespace).await?;
        if warnings.is_none() {
            // Without a read the last report stays.
            let key = Key::new(&target.meta.namespace, &target.meta.name);
            if target.meta.annotation(names::RUNNING).is_some() || self.waits().contains_key(&key) {
                return Ok(Outcome::After(SOON));
            }
            if waited < REPORT_UNREAD_SECONDS {
                return Ok(Outcome::After(until_report(waited, REPORT_AFTER_SECONDS)));
            }
        }
        let (name, driver) = (&awaited.meta.name, &class.provisioner);
        let trouble = match warnings.and_then(|warnings| warnings.about(&awaited.meta.uid)) {
            Some(said) => Obstacle {
                reason: NOT_PROVISIONED,
                message: format!(
                    "provisioner {driver} makes no volume for PVC {name} and tries again: {}",
                    said.message
                ),
            },
            None if waited >= REPORT_AFTER_SECONDS => match self.cramped(awaited, class).await? {
                Some(trouble) => trouble,
                None => Obstacle {
                    reason: "Provisioning",
                    message: format!(
                        "PVC {name} waits for a volume of provisioner {driver}: is its driver running?"
                    ),
                },
            },
            None => return Ok(Outcome::After(until_report(waited, REPORT_AFTER_SECONDS))),
        };
        self.waiting(target, trouble).await
    }

    /// Reports what a claim without a volume waits for: on its DataVolume, or else on the claim.
    async fn waiting(&self, target: &Claim, trouble: Obstacle) -> Result<Outcome> {
        // A claim with a report keeps reporting on itself.
        if !target.is_of_data_volume() || target.meta.annotation(names::RUNNING).is_some() {
            return self.troubled(target, &trouble).await;
        }
        let key = Key::new(&target.meta.namespace, &target.meta.name);
        let known = self.waits().insert(key.clone(), trouble.clone());
        if known.as_ref() != Some(&trouble) {
            self.queue.add(Item::Volume(key));
        }
        Ok(Outcome::After(RETRY))
    }

    pub(super) fn waits(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Obstacle>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trouble of a claim for which no node has room, as far as its driver reports the nodes' room: provisioners then
    /// try none, and report nothing.
    async fn cramped(&self, awaited: &Claim, class: &Class) -> Result<Option<Obstacle>> {
        let (name, class) = (&awaited.meta.name, &class.meta.name);
        let Some(room) = self.room().await?.of(class).filter(|room| *room < awaited.size) else {
            return Ok(None);
        };
        // The room changes all the time, the message does not.
        let message = match room {
            0 => format!(
                "no node reports room for PVC {name} in StorageClass {class}: check its parameters, and the driver's pools"
            ),
            _ => format!(
                "no node has room for PVC {name} of {} in StorageClass {class}: free or add storage, or delete the DataVolume \
                 and ask for less",
                rounded(awaited.size),
            ),
        };
        Ok(Some(Obstacle { reason: NOT_PROVISIONED, message }))
    }

    /// The room that nodes have, at most [`ROOM_AGE`] old: many claims wait for it at once.
    async fn room(&self) -> Result<Arc<Room>> {
        let known = self.room.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, room)) = known.filter(|(read, _)| read.elapsed() < ROOM_AGE) {
            return Ok(room);
        }
        let mut room = Room::default();
        self.client.each(CAPACITIES, &Scope::all(), |capacity: Value| room.add(&capacity)).await?;
        let room = Arc::new(room);
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Arc::clone(&room)));
        Ok(room)
    }

    /// The annotations that a DataVolume takes from an importer that starts slowly. `written`: the claim that it writes to.
    pub(super) fn starting(&self, target: &Claim, written: Option<&Claim>) -> Option<Vec<(String, String)>> {
        let written =
            written.filter(|written| written.phase == Phase::Bound && filling::shows_start(target))?;
        let key = Key::new(&written.meta.namespace, &names::importer_pod(&written.meta.name));
        let worker = self.caches.workers.get(&key)?;
        let starts = worker.meta.is_controlled_by(&written.meta.uid) && mirror::is_starting(&worker, false);
        (starts && !is_young(&worker)).then(|| filling::starting(&worker, target))
    }

    /// The warnings of a namespace. `None`: those of another one were read within [`PAUSE`].
    async fn warnings_in(&self, namespace: &str) -> Result<Option<Arc<Warnings>>> {
        match self.warnings.of(namespace, Instant::now()) {
            Known::Warnings(warnings) => return Ok(Some(warnings)),
            Known::Later => return Ok(None),
            Known::Nothing => {}
        }
        let scope = Scope::all().namespace(namespace).fields("type=Warning");
        let mut warnings = Warnings::default();
        self.client.each(EVENTS, &scope, |event: Value| warnings.add(&event)).await?;
        Ok(Some(self.warnings.keep(namespace, Instant::now(), warnings)))
    }

    /// A worker, with what keeps it from starting when it should have started.
    async fn hindered(&self, worker: Arc<Worker>) -> Result<Arc<Worker>> {
        let age = age(&worker.meta).unwrap_or_default();
        if age < HINDERED_AFTER_SECONDS || !mirror::is_preparing(&worker) || worker.hindrance.is_some() {
            return Ok(worker);
        }
        let warnings = self.warnings_in(&worker.meta.namespace).await?;
        let met = |warnings: Arc<Warnings>| match age < ONCE_AFTER_SECONDS {
            true => warnings.repeated(&worker.meta.uid),
            false => warnings.about(&worker.meta.uid),
        };
        Ok(match warnings.and_then(met) {
            Some(hindrance) => Arc::new(Worker { hindrance: Some(hindrance), ..(*worker).clone() }),
            None => worker,
        })
    }

    /// Reports what keeps an importer from starting, once: on the DataVolume of the claim, as its start ([`Self::starting`]).
    async fn report_hindrance(&self, claim: &Key, worker: &Arc<Worker>) -> Result<()> {
        if worker.hindrance.is_some() || self.waits().get(claim).is_some_and(filling::is_hindrance) {
            return Ok(());
        }
        let worker = self.hindered(Arc::clone(worker)).await?;
        if let Some(hindrance) = filling::hindrance(&worker) {
            self.waits().insert(claim.clone(), hindrance);
            self.queue.add(Item::Volume(claim.clone()));
        }
        Ok(())
    }

    /// A clone without its source's description: it waits, unless it is over. Then what helped is removed.
    async fn sourceless(&self, target: &Claim, trouble: &Obstacle, populated: bool) -> Result<Outcome> {
        if !is_ending(target) {
            return self.uncloned(target, trouble).await;
        }
        let far = target.meta.annotation(names::SOURCE_NAMESPACE);
        let namespace = far.unwrap_or(&target.meta.namespace).to_owned();
        let origin = Origin { namespace, name: String::new(), snapshot: false };
        self.clone_claim(target, &origin, populated).await
    }

    /// The volume that a claim is, or was, bound to.
    pub(super) async fn persistent(&self, claim: Option<&Claim>) -> Result<Option<Volume>> {
        let Some(claim) = claim.filter(|claim| !claim.volume.is_empty() && claim.phase != Phase::Pending)
        else {
            return Ok(None);
        };
        let object = self.client.find::<Value>(VOLUMES, &Key::cluster(&claim.volume)).await?;
        Ok(object.as_ref().map(Volume::from))
    }

    /// A DataVolume with its reference to a DataSource replaced by the source itself.
    pub(super) async fn resolved(
        &self,
        volume: &DataVolume,
    ) -> Result<std::result::Result<DataVolume, Obstacle>> {
        let Source::Reference { namespace, name, .. } = &volume.source else { return Ok(Ok(volume.clone())) };
        let namespace = if namespace.is_empty() { &volume.meta.namespace } else { namespace };
        let named = Key::new(namespace, name);
        let message = match cloned::origin_of(&self.client, &named).await? {
            Ok(Some(origin)) => return Ok(Ok(DataVolume { source: origin.source(), ..volume.clone() })),
            Ok(None) => {
                format!("DataSource {named} names no claim or snapshot; its condition Ready gives the reason")
            }
            Err(missing) => format!("DataSource {missing} does not exist: the clone waits for it"),
        };
        Ok(Err(Obstacle { reason: "CloneWithoutSource", message }))
    }

    /// The source object that a user's claim names.
    async fn named(&self, target: &Claim, of_volume: bool) -> Result<Named> {
        let Some(source) = target.source.as_ref().filter(|source| source.group == names::GROUP && !of_volume)
        else {
            return Ok(Named::NotNeeded);
        };
        let Some(resource) = resources::source(&source.kind) else { return Ok(Named::NotNeeded) };
        let object = self.client.find(resource, &Key::new(&target.meta.namespace, &source.name)).await?;
        Ok(object.map_or(Named::Missing, Named::Found))
    }

    pub(super) async fn troubled(&self, target: &Claim, trouble: &Obstacle) -> Result<Outcome> {
        if let Some(action) = filling::report(target, Some(trouble)) {
            self.applier.apply(&action).await?;
        }
        Ok(Outcome::After(RETRY))
    }

    /// Makes the worker's pod.
    async fn start(
        &self,
        start: Start,
        o: &Observed<'_>,
        task: &Task,
        settings: &Settings,
    ) -> Result<Outcome> {
        let written = match start {
            Start::Prime => o.prime,
            Start::Target => Some(o.target),
        };
        let (Some(written), Some(owner)) = (written, filling::pod_owner(start, o.target, o.prime)) else {
            return Ok(Outcome::Done);
        };
        let images = &self.images();
        let started = if task.source == Source::Upload {
            let upload = Upload {
                target: o.target,
                written,
                owner: &owner,
                client: api::upload::PROXY_CLIENT,
                preallocation: task.preallocation,
                owner_uid: &task.owner_uid,
                settings,
                images,
            };
            self.start_upload(&upload).await
        } else {
            let import =
                importer::Import { target: o.target, written, owner: &owner, task, settings, images };
            let Some(pod) = importer::pod(&import) else {
                let message =
                    "spec.source.registry: pullMethod node needs a docker:// url or an imageStream, and an \
                     imageStream needs pullMethod node"
                        .to_owned();
                return self.troubled(o.target, &Obstacle { reason: "SourceNotSupported", message }).await;
            };
            self.start_importer(&import, pod).await
        };
        match started {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => self.podless(o.target, error).await,
        }
    }

    /// Makes an importer: the ConfigMap with the proxy's certificates, then the pod.
    async fn start_importer(&self, import: &importer::Import<'_>, pod: Value) -> Result<()> {
        if importer::goes_by_proxy(&import.task.source, import.settings) {
            let trusted = self.proxy_certificates(import.settings).await?;
            let (name, namespace) = (importer::proxy_map_of(import.written), &import.written.meta.namespace);
            let map = importer::proxy_certificates(&name, namespace, import.owner, &trusted);
            self.applier.apply(&Action::Create(map)).await?;
        }
        self.applier.apply(&Action::Create(pod)).await?;
        Ok(())
    }

    /// The installation's ConfigMap with the proxy's certificates.
    pub(super) async fn proxy_certificates(&self, settings: &Settings) -> Result<Value> {
        let key = Key::new(&self.setup.namespace, &settings.proxy.certificates);
        self.client.find::<Value>(CONFIG_MAPS, &key).await?.ok_or_else(|| {
            let text = format!(
                "ConfigMap {key} does not exist, which importProxy.trustedCAProxy of CDI names: create it, or remove \
                 its name"
            );
            cluster::Error::new(cluster::Kind::Invalid, text)
        })
    }

    /// Reports that the API server refuses a worker's pod.
    async fn podless(&self, target: &Claim, error: cluster::Error) -> Result<Outcome> {
        let message = refused(error)?;
        self.troubled(target, &Obstacle { reason: filling::NOT_STARTED, message }).await
    }

    /// Makes an upload server: Service, Secret, pod. Each has a derived name, so a start that was cut short continues.
    pub(super) async fn start_upload(&self, upload: &Upload<'_>) -> Result<()> {
        let written = upload.written;
        let service =
            match self.applier.apply(&Action::Create(upload::service(written, upload.owner))).await? {
                Done::Written(service) => service,
                Done::AlreadyThere => {
                    let key = Key::new(&written.meta.namespace, &service_name(&written.meta.name));
                    self.client.get::<Value>(SERVICES, &key).await?
                }
            };
        let service = Meta::from(&service);
        if !service.is_controlled_by(&written.meta.uid) {
            let text = format!(
                "Service {} exists and does not belong to PVC {}: delete it, the upload server needs this name",
                service.name, written.meta.name
            );
            return Err(cluster::Error::new(cluster::Kind::Invalid, text));
        }
        let issued = self.signers.server(&upload::host(written))?;
        self.applier.apply(&Action::Create(upload::secret(written, &service.uid, &issued))).await?;
        let deadline = time::text(time::now().saturating_add(self.signers.patience().as_secs()));
        let pod = upload::pod(upload, &service.uid, &deadline);
        self.applier.apply(&Action::Create(pod)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_node_is_reported_when_it_is_no_longer_young() {
        let worker = |seconds: u64| {
            Arc::new(Worker {
                meta: Meta { created: time::text(time::now() - seconds), ..Meta::default() },
                unschedulable: Some("0/1 nodes are available".to_owned()),
                ..Worker::default()
            })
        };
        assert_eq!(settled(worker(1)).unschedulable, None);
        assert!(settled(worker(HINDERED_AFTER_SECONDS)).unschedulable.is_some());
    }

    #[test]
    fn a_claim_is_looked_at_again_when_its_report_is_due() {
        for (waited, pause) in
            [(0, SOON), (4, SOON), (5, Duration::from_secs(1)), (REPORT_AFTER_SECONDS, PAUSE), (7, PAUSE)]
        {
            assert_eq!(until_report(waited, REPORT_AFTER_SECONDS), pause, "{waited}");
        }
    }
}
