//! The storage controllers: caches, a queue of keys, and one reconcile for DataVolumes, claims and storage classes.
//!
//! - [`volumes`]: DataVolumes. [`filling`]: claims and their workers. [`clones`]: claims that are cloned.
//! - [`warnings`]: events with the reasons for which claims and workers wait.
//! - [`progress`]: how far workers are.
//! - [`polls`]: what sources of DataImportCrons have; [`poller`] asks for it.
//! - [`classes`]: storage classes, CDIConfig, DataSources. [`crons`]: DataImportCrons.
//!
//! Not here: decisions, which are in the `plan` modules.

mod classes;
mod clones;
mod crons;
mod filling;
mod poller;
mod polls;
mod progress;
mod volumes;
mod warnings;

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cluster::{Cache, Client, Events, Key, Outcome, Queue, Result, Scope};
use serde_json::Value;
use serve::metrics::Page;

use crate::health::Health;

use super::apply::Applier;
use super::class::{Classes, Room};
use super::cron::seen::{CRON, Cron};
use super::datavolume::Obstacle;
use super::profile::{self, Driver, Overrides, Profile, SnapshotClass};
use super::resources::{
    CDIS, CLAIMS, CLASSES, CONFIGS, CRONS, CSI_NODES, DATA_SOURCES, DATA_VOLUMES, DRIVERS, PODS, PROFILES,
    SNAPSHOT_CLASSES, TRANSFERS,
};
use super::seen::{Claim, Class, CsiDriver, CsiNode, DataVolume, Meta, Worker};
use super::settings::{self, Installed, Settings};
use super::signers::{self, Signers};
use super::worker::Images;
use super::written::Collection;
use super::{keys, metrics, names};

use polls::{Problems, polled_for};
use progress::Progress;

/// Workers of the queue.
const WORKERS: usize = 16;
/// Polls of cron sources at once.
const POLLS: usize = 4;
/// Pause before a cache that misses an own write is read again.
const CATCH_UP: Duration = Duration::from_millis(20);
/// Pause before a snapshot, which is not watched, is looked at again.
const AGAIN: Duration = Duration::from_millis(500);
/// Pause before a DataSource that is ready is looked at again.
const RECHECK: Duration = Duration::from_secs(60);
/// Between two looks at certificates and signing keys.
const CERTIFICATES: Duration = Duration::from_secs(10);
/// Name under which their ends are shown.
const CERTIFICATES_OF: &str = "cdi";
/// Pause before a missing prerequisite is looked for again.
const RETRY: Duration = Duration::from_secs(5);

/// The object to reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    /// A DataVolume.
    Volume(Key),
    /// A claim that may have to be filled.
    Claim(Key),
    /// A storage class's profile.
    Class(Key),
    /// The status of CDIConfig.
    Settings,
    /// A DataSource.
    Source(Key),
    /// A DataImportCron.
    Cron(Key),
    /// An ObjectTransfer.
    Transfer(Key),
}

/// The caches.
struct Caches {
    volumes: Cache<DataVolume>,
    claims: Cache<Claim>,
    workers: Cache<Worker>,
    classes: Cache<Class>,
    provisioners: Provisioners,
    profiles: Cache<Overrides>,
    settings: Cache<Settings>,
    crons: Cache<Cron>,
    /// Kept for its changes: a reconcile reads the DataSource.
    _sources: Cache<Meta>,
    cdis: Cache<Installed>,
    /// Kept for its changes, too.
    _transfers: Cache<Meta>,
}

/// Drivers, nodes and snapshot classes: facts about provisioners, for the profiles of their classes.
struct Provisioners {
    drivers: Cache<CsiDriver>,
    nodes: Cache<CsiNode>,
    snapshot_classes: Cache<SnapshotClass>,
}

struct Controller {
    client: Client,
    applier: Applier,
    caches: Caches,
    signers: Arc<Signers>,
    setup: Setup,
    progress: Progress,
    /// What claims of DataVolumes wait for until they have volumes: their DataVolumes report it, without a write to the claim.
    waits: Mutex<HashMap<Key, Obstacle>>,
    problems: Problems,
    warnings: warnings::Reads,
    /// The room of nodes, and when it was read.
    room: Mutex<Option<(Instant, Arc<Room>)>>,
    /// Whether the cluster has one node.
    single_node: AtomicBool,
    /// Whether the CDI object that was seen last was deleted with all DataVolumes.
    removed: AtomicBool,
    queue: Queue<Item>,
}

/// The configuration of the controllers.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Namespace of the installation: certificates and keys of transfers are kept there.
    pub namespace: String,
    /// Images of the workers.
    pub images: Images,
    /// Where metrics are shown.
    pub health: Health,
}

/// Runs the storage controllers until `stop` is ready.
pub async fn run(client: Client, events: Events, setup: Setup, stop: impl Future<Output = ()>) {
    let signers = Arc::new(Signers::default());
    let certificates = keep(&client, &setup, &signers);
    let controllers = control(client.clone(), events, setup.clone(), Arc::clone(&signers), stop);
    tokio::select! {
        () = controllers => {}
        () = certificates => {}
    }
    // Another replica shows them.
    setup.health.set_ends(CERTIFICATES_OF, Vec::new());
}

/// Keeps certificates and signing keys of transfers good.
async fn keep(client: &Client, setup: &Setup, signers: &Signers) {
    let namespace = setup.namespace.as_str();
    loop {
        match signers.reconcile(client, namespace).await {
            Ok(()) => setup.health.set_ends(CERTIFICATES_OF, signers.ends()),
            Err(error) => tracing::warn!(
                error = error.chain(),
                "cannot write the certificates of transfers to their Secrets; retrying"
            ),
        }
        if let Err(error) = keys::keep(client, namespace, signers::now()).await {
            tracing::warn!(
                error = error.chain(),
                "cannot write the signing keys of tokens to their Secret; retrying"
            );
        }
        tokio::time::sleep(CERTIFICATES).await;
    }
}

async fn control(
    client: Client,
    events: Events,
    setup: Setup,
    signers: Arc<Signers>,
    stop: impl Future<Output = ()>,
) {
    let queue = Queue::new();
    let polled = Queue::new();
    let caches = caches(&client, &queue, &polled);
    caches.claims.synced().await;
    caches.volumes.synced().await;
    caches.workers.synced().await;
    caches.classes.synced().await;
    caches.provisioners.drivers.synced().await;
    caches.provisioners.nodes.synced().await;
    caches.provisioners.snapshot_classes.synced().await;
    caches.profiles.synced().await;
    caches.settings.synced().await;
    let applier = Applier::new(client.clone(), events);
    let controller = Arc::new(Controller {
        client,
        applier,
        caches,
        signers,
        setup,
        progress: Progress::default(),
        waits: Mutex::default(),
        problems: Problems::default(),
        warnings: warnings::Reads::default(),
        room: Mutex::default(),
        single_node: AtomicBool::new(false),
        removed: AtomicBool::new(false),
        queue: queue.clone(),
    });
    let observed = Arc::clone(&controller);
    let _exposed = controller.setup.health.expose(move |page| observed.measure(page));
    let followed = Arc::clone(&controller);
    let poller = Arc::clone(&controller);
    // Polls end where they are when the controllers end: they write one annotation.
    let polling = polled.run(POLLS, std::future::pending::<()>(), move |key: Key| {
        let controller = Arc::clone(&poller);
        async move {
            match controller.poll(&key).await {
                Ok(outcome) => outcome,
                Err(error) if error.is_conflict() => Outcome::After(CATCH_UP),
                Err(error) => {
                    tracing::warn!(cron = %key, error = error.chain(), "cannot poll the source of a DataImportCron; retrying");
                    Outcome::Retry
                }
            }
        }
    });
    let working = queue.run(WORKERS, stop, move |item| {
        let controller = Arc::clone(&controller);
        async move {
            match controller.reconcile(&item).await {
                Ok(outcome) => outcome,
                Err(error) if error.is_conflict() => Outcome::After(CATCH_UP),
                Err(error) => {
                    tracing::warn!(
                        ?item,
                        error = error.chain(),
                        "cannot reconcile a storage object; retrying"
                    );
                    Outcome::Retry
                }
            }
        }
    });
    tokio::select! {
        () = working => {}
        () = polling => {}
        () = followed.follow_progress() => {}
    }
}

fn caches(client: &Client, queue: &Queue<Item>, polled: &Queue<Key>) -> Caches {
    let all = Scope::all();
    let feed = |make: fn(Key) -> Vec<Item>| {
        let queue = queue.clone();
        move |key: &Key| make(key.clone()).into_iter().for_each(|item| queue.add(item))
    };
    let both = feed(|key| vec![Item::Volume(key.clone()), Item::Claim(key)]);
    let sources = feed(|key| vec![Item::Source(key)]);
    let class = feed(|key| vec![Item::Class(key), Item::Settings]);
    let config = feed(|_| vec![Item::Settings]);
    let of_cdi = config.clone();
    let of_claim = both.clone();
    let feed_imports = queue.clone();
    let volumes = Cache::<DataVolume>::builder().on_change(move |change| {
        let volume = change.after.or(change.before);
        if let Some(cron) = volume.and_then(|volume| volume.meta.labels.get(CRON)) {
            feed_imports.add(Item::Cron(Key::new(change.key.namespace(), cron)));
        }
        both(change.key);
    });
    let crons = feed(|key| vec![Item::Cron(key)]);
    let polls = polled.clone();
    let poll_pods = polled.clone();
    let transfers = feed(|key| vec![Item::Transfer(key)]);
    let feed_claims = queue.clone();
    let claims = Cache::<Claim>::builder().on_change(move |change| {
        of_claim(change.key);
        let claim = change.after.or(change.before);
        if let Some(target) = claim.and_then(|claim| cloned_for(&claim.meta)) {
            feed_claims.add(Item::Claim(target));
        }
    });
    let feed_workers = queue.clone();
    let workers = Cache::<Worker>::builder().on_change(move |change| {
        let worker = change.after.or(change.before);
        if let Some(cron) = worker.and_then(|worker| polled_for(&worker.meta)) {
            poll_pods.add(cron);
            return;
        }
        if let Some(owner) = worker.and_then(|worker| worker.meta.controller()) {
            feed_workers.add(Item::Claim(Key::new(change.key.namespace(), &owner.name)));
        }
        if let Some(target) = worker.and_then(|worker| cloned_for(&worker.meta)) {
            feed_workers.add(Item::Claim(target));
        }
    });
    let (of_class, of_profile) = (class.clone(), class);
    let classes = Cache::<Class>::builder()
        .on_change(move |change| of_class(change.key))
        .start::<Value>(client, CLASSES, &all);
    let profiles = Cache::<Overrides>::builder().on_change(move |change| of_profile(change.key));
    Caches {
        volumes: volumes.start::<Value>(client, DATA_VOLUMES, &all),
        claims: claims.start::<Value>(client, CLAIMS, &all),
        workers: workers.start::<Value>(client, PODS, &Scope::all().labels(&format!("app={}", names::APP))),
        provisioners: provisioners(client, queue, &classes),
        classes,
        profiles: profiles.start::<Value>(client, PROFILES, &all),
        crons: Cache::<Cron>::builder()
            .on_change(move |change| {
                polls.add(change.key.clone());
                crons(change.key);
            })
            .start::<Value>(client, CRONS, &all),
        cdis: Cache::<Installed>::builder()
            .on_change(move |change| of_cdi(change.key))
            .start::<Value>(client, CDIS, &all),
        _transfers: Cache::<Meta>::builder()
            .on_change(move |change| transfers(change.key))
            .start::<Value>(client, TRANSFERS, &all),
        _sources: Cache::<Meta>::builder().on_change(move |change| sources(change.key)).start::<Value>(
            client,
            DATA_SOURCES,
            &all,
        ),
        settings: Cache::<Settings>::builder()
            .on_change(move |change| config(change.key))
            .start::<Value>(client, CONFIGS, &all),
    }
}

/// Follows provisioners: their classes are looked at again.
fn provisioners(client: &Client, queue: &Queue<Item>, classes: &Cache<Class>) -> Provisioners {
    let all = Scope::all();
    let (feed, known) = (queue.clone(), classes.clone());
    let again = move |provisioner: &str, inferred: bool| {
        for (key, class) in known.all() {
            if class.provisioner == provisioner && !(inferred && profile::is_known(&class)) {
                feed.add(Item::Class(key));
            }
        }
    };
    let (of_driver, of_node, of_snapshots) = (again.clone(), again.clone(), again);
    Provisioners {
        drivers: Cache::<CsiDriver>::builder()
            .on_change(move |change| of_driver(change.key.name(), false))
            .start::<Value>(client, DRIVERS, &all),
        nodes: Cache::<CsiNode>::builder()
            .on_change(move |change| {
                // The table needs no inference.
                let [before, after] = [change.before, change.after].map(|node| node.map(|node| &**node));
                CsiNode::changed(before, after).into_iter().for_each(|driver| of_node(driver, true));
            })
            .start::<Value>(client, CSI_NODES, &all),
        snapshot_classes: Cache::<SnapshotClass>::builder()
            .on_change(move |change| {
                let classes = [change.before, change.after].into_iter().flatten();
                classes.for_each(|class| of_snapshots(&class.driver, false));
            })
            .start::<Value>(client, SNAPSHOT_CLASSES, &all),
    }
}

/// The text of a refusal by the API server: no permission, a quota, an object that is not valid. Other errors stay errors.
fn refused(error: cluster::Error) -> Result<String> {
    if !matches!(error.kind(), cluster::Kind::Forbidden | cluster::Kind::Invalid) {
        return Err(error);
    }
    Ok(error.status().map_or_else(|| error.chain(), |status| status.message.clone()))
}

/// The claim that a helper of a clone is for.
fn cloned_for(meta: &Meta) -> Option<Key> {
    let (namespace, name) = meta.annotation(names::CLONE_FOR)?.split_once('/')?;
    Some(Key::new(namespace, name))
}

impl Controller {
    async fn reconcile(&self, item: &Item) -> Result<Outcome> {
        match item {
            Item::Volume(key) => self.volume(key).await,
            Item::Claim(key) => self.claim(key).await,
            Item::Class(key) => self.class(key).await,
            Item::Settings => self.publish_settings().await,
            Item::Source(key) => self.source(key).await,
            Item::Cron(key) => self.cron(key).await,
            Item::Transfer(key) => self.transfer(key).await,
        }
    }

    fn classes(&self) -> Classes {
        Classes {
            classes: self.caches.classes.all().into_iter().map(|(_, class)| (*class).clone()).collect(),
            drivers: self
                .caches
                .provisioners
                .drivers
                .all()
                .into_iter()
                .map(|(key, _)| key.name().to_owned())
                .collect(),
        }
    }

    /// Adds the metrics of storage to a page.
    fn measure(&self, page: &mut Page) {
        fn all<S: Clone + PartialEq + Send + Sync + 'static>(cache: &Cache<S>) -> Vec<S> {
            cache.all().into_iter().map(|(_, one)| (*one).clone()).collect()
        }
        let classes = self.classes();
        let profiles: Vec<(Class, Profile)> =
            classes.classes.iter().map(|class| (class.clone(), self.profile(class))).collect();
        metrics::write(
            page,
            &metrics::Observed {
                ready: self.installed().map(|cdi| cdi.available),
                volumes: &all(&self.caches.volumes),
                crons: &all(&self.caches.crons),
                classes: &profiles,
                single_node: self.single_node.load(Ordering::Relaxed),
            },
        );
    }

    fn settings(&self) -> Arc<Settings> {
        self.caches.settings.get(&Key::cluster("config")).unwrap_or_default()
    }

    /// The CDI object that counts.
    fn installed(&self) -> Option<Arc<Installed>> {
        settings::installed(self.caches.cdis.all().into_iter().map(|(_, cdi)| cdi))
    }

    /// Whether the CDI object is being deleted with all DataVolumes, or was, and there is none since.
    fn is_removed(&self) -> bool {
        let all: Vec<Arc<Installed>> = self.caches.cdis.all().into_iter().map(|(_, cdi)| cdi).collect();
        let exists = !all.is_empty();
        let removed = settings::is_removed(all, self.removed.load(Ordering::Relaxed));
        if exists {
            self.removed.store(removed, Ordering::Relaxed);
        }
        removed
    }

    /// Images of the workers, as the CDI object wants them pulled.
    fn images(&self) -> Images {
        let mut images = self.setup.images.clone();
        if let Some(cdi) = self.installed() {
            images.pull_policy.clone_from(&cdi.pull_policy);
        }
        images
    }

    fn profile(&self, class: &Class) -> Profile {
        let overrides = self.caches.profiles.get(&Key::cluster(&class.meta.name)).unwrap_or_default();
        self.profile_with(class, &overrides)
    }

    fn profile_with(&self, class: &Class, overrides: &Overrides) -> Profile {
        let Provisioners { drivers, nodes, snapshot_classes } = &self.caches.provisioners;
        let driver = drivers.get(&Key::cluster(&class.provisioner)).map(|driver| {
            // The table needs no inference.
            let nodes = if profile::is_known(class) { Vec::new() } else { nodes.all() };
            Driver::of(class, *driver, nodes.iter().map(|(_, node)| &**node))
        });
        let snapshots: Vec<SnapshotClass> =
            snapshot_classes.all().into_iter().map(|(_, one)| (*one).clone()).collect();
        Profile::of(class, overrides, driver, &snapshots)
    }

    /// Whether the caches show the last own writes of a claim and its worker.
    fn is_current(&self, claim: &Key, worker: Option<&Key>) -> bool {
        let written = &self.applier.written;
        let deleting = self.caches.claims.get(claim).is_some_and(|claim| claim.meta.deleting);
        let claims = written.is_seen(Collection::Claims, claim, self.caches.claims.version(claim), deleting);
        claims && worker.is_none_or(|worker| self.is_worker_current(worker))
    }

    /// Whether the cache shows the last own write of a worker.
    fn is_worker_current(&self, worker: &Key) -> bool {
        let deleting = self.caches.workers.get(worker).is_some_and(|worker| worker.meta.deleting);
        let version = self.caches.workers.version(worker);
        self.applier.written.is_seen(Collection::Workers, worker, version, deleting)
    }
}
