//! The queue of the node's claims and PVs: watches feed it, plans decide, the other files do it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::event::{Events, Reference, Type};
use cluster::{Cache, Client, Key, Outcome, Queue, Scope};
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::Notify;

use super::Settings;
use super::content::{Content, MANAGED_BY, UNASSIGNED};
use super::driver::Driver;
use super::group::GroupContent;
use super::objects::{CLAIMS, CLASSES, CONTENTS, Claim, Class, GROUP_CONTENTS, NODE_LABEL, VOLUMES, Volume};
use super::plan::{self, ForClaim, ForVolume};
use super::sidecars::{Duties, Sidecars};
use super::unfinished::Unfinished;

/// Calls of the driver at once.
const WORKERS: usize = 16;
/// First and longest pause after a failed call.
const RETRY: Duration = Duration::from_secs(1);
const SLOWEST: Duration = Duration::from_secs(300);

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Claim(Key),
    Volume(Key),
    Content(Key),
    Group(Key),
    /// A content without a node.
    Unassigned(Key),
    /// A claim that may have left a volume without a PV behind, and its uid.
    Abandoned(Key, String),
}

impl Work {
    /// Whether stock sidecars with these duties do it.
    fn is_of(&self, duties: Duties) -> bool {
        match self {
            Self::Claim(_) | Self::Volume(_) => duties.volumes,
            Self::Content(_) | Self::Group(_) => duties.snapshots,
            // Stock csi-snapshotter, too, needs to know the node; no sidecar knows what the agent has begun.
            Self::Unassigned(_) | Self::Abandoned(..) => false,
        }
    }
}

/// The controller of a node's volumes.
pub(super) struct Controller {
    pub(super) client: Client,
    pub(super) driver: Driver,
    pub(super) events: Events,
    pub(super) node: String,
    /// The name of this process in its PVs.
    pub(super) identity: String,
    pub(super) claims: Cache<Claim>,
    pub(super) volumes: Cache<Volume>,
    pub(super) classes: Cache<Class>,
    /// Empty while the cluster has no VolumeSnapshotContents.
    pub(super) contents: Cache<Content>,
    /// Those without a node.
    pub(super) unassigned: Cache<Content>,
    /// Empty while the cluster has no VolumeGroupSnapshotContents.
    pub(super) groups: Cache<GroupContent>,
    /// Volumes that the driver may be making.
    pub(super) unfinished: Unfinished,
    sidecars: Sidecars,
    queue: Queue<Work>,
    /// Something changed what the pools have left.
    pub(super) changed: Arc<Notify>,
    failures: std::sync::Mutex<std::collections::HashMap<Work, u32>>,
}

impl Controller {
    /// Follows the node's claims and PVs, and the StorageClasses. Returns when they are known.
    pub(super) async fn start(
        client: &Client,
        driver: Driver,
        settings: &Settings,
        sidecars: Sidecars,
    ) -> Arc<Self> {
        let queue: Queue<Work> = Queue::new();
        let ours = Scope::all().labels(&format!("{NODE_LABEL}={}", settings.node));
        let feed = queue.clone();
        let claims = Cache::<Claim>::builder()
            .on_change(move |change| feed.add(Work::Claim(change.key.clone())))
            .start::<Claim>(client, CLAIMS, &ours);
        let feed = queue.clone();
        let volumes = Cache::<Volume>::builder()
            .on_change(move |change| {
                feed.add(Work::Volume(change.key.clone()));
                let claim = change.after.and_then(|volume| volume.spec.claim_ref.as_ref());
                if let Some(claim) = claim {
                    feed.add(Work::Claim(Key::new(&claim.namespace, &claim.name)));
                }
            })
            .start::<Volume>(client, VOLUMES, &ours);
        let (feed, known) = (queue.clone(), claims.clone());
        let changed = Arc::new(Notify::new());
        let notified = Arc::clone(&changed);
        let classes = Cache::<Class>::builder()
            .on_change(move |_| {
                for (key, _) in known.all() {
                    feed.add(Work::Claim(key));
                }
                notified.notify_one();
            })
            .start::<Class>(client, CLASSES, &Scope::all());
        let feed = queue.clone();
        let of_node = Scope::all().labels(&format!("{MANAGED_BY}={}", settings.node));
        let contents = Cache::<Content>::builder()
            .on_change(move |change| feed.add(Work::Content(change.key.clone())))
            .start::<Content>(client, CONTENTS, &of_node);
        let feed = queue.clone();
        let unassigned = Cache::<Content>::builder()
            .on_change(move |change| feed.add(Work::Unassigned(change.key.clone())))
            .start::<Content>(client, CONTENTS, &Scope::all().labels(UNASSIGNED));
        let feed = queue.clone();
        let groups = Cache::<GroupContent>::builder()
            .on_change(move |change| feed.add(Work::Group(change.key.clone())))
            .start::<GroupContent>(client, GROUP_CONTENTS, &of_node);
        claims.synced().await;
        volumes.synced().await;
        classes.synced().await;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let identity = format!(
            "{}-{}-{}-{}",
            started.as_millis(),
            started.subsec_nanos() % 10_000,
            driver.name(),
            settings.node
        );
        let events = Events::start(client, driver.name(), &settings.node);
        Arc::new(Self {
            client: client.clone(),
            driver,
            events,
            node: settings.node.clone(),
            identity,
            claims,
            volumes,
            classes,
            contents,
            unassigned,
            groups,
            unfinished: Unfinished::default(),
            sidecars,
            queue,
            changed,
            failures: std::sync::Mutex::default(),
        })
    }

    /// Works until dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let queue = self.queue.clone();
        let work = move |work: Work| {
            let controller = Arc::clone(&self);
            async move { controller.reconcile(work).await }
        };
        queue.run(WORKERS, std::future::pending(), work).await;
    }

    /// Looks at all claims and PVs: the sidecars left them.
    pub(super) fn take_up(&self) {
        for (key, _) in self.claims.all() {
            self.queue.add(Work::Claim(key));
        }
        for (key, _) in self.volumes.all() {
            self.queue.add(Work::Volume(key));
        }
    }

    async fn reconcile(&self, work: Work) -> Outcome {
        let outcome = match &work {
            left if left.is_of(self.sidecars.duties()) => {
                if let Work::Claim(key) = left {
                    self.unfinished.end(key);
                }
                Outcome::After(SLOWEST / 10)
            }
            Work::Claim(key) => self.claim(key).await,
            Work::Volume(key) => self.volume(key).await,
            Work::Content(key) => self.content(key).await,
            Work::Group(key) => self.group(key).await,
            Work::Unassigned(key) => self.look_for(key).await,
            Work::Abandoned(key, uid) => self.abandon(key, uid).await,
        };
        let mut failures = self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match outcome {
            Outcome::Retry => {
                let count = failures.entry(work).or_default();
                let pause = RETRY.saturating_mul(1 << (*count).min(9)).min(SLOWEST);
                *count += 1;
                Outcome::After(pause)
            }
            outcome @ (Outcome::Done | Outcome::After(_)) => {
                failures.remove(&work);
                outcome
            }
        }
    }

    async fn claim(&self, key: &Key) -> Outcome {
        let found = self.claims.get(key);
        if let Some(uid) = self.unfinished.left(key, found.as_deref()) {
            self.queue.add(Work::Abandoned(key.clone(), uid));
        }
        let Some(claim) = found else { return Outcome::Done };
        let name = claim.spec.storage_class_name.as_deref().unwrap_or_default();
        let class = self.classes.get(&Key::cluster(name));
        let volume = self.volumes.get(&Key::cluster(&claim.spec.volume_name));
        let (driver, node) = (self.driver.name(), self.node.as_str());
        match plan::for_claim(&claim, class.as_deref(), volume.as_deref(), driver, node) {
            ForClaim::Nothing => Outcome::Done,
            ForClaim::LeaveToPopulator => {
                let text = "Assuming an external populator will provision the volume";
                self.report(&claim, Type::Normal, "Provisioning", text);
                Outcome::Done
            }
            ForClaim::Refuse(why) => {
                self.report(&claim, Type::Warning, "ProvisioningFailed", &why);
                Outcome::Retry
            }
            ForClaim::Provision => match class {
                Some(class) => self.provision(&claim, &class).await,
                None => Outcome::Retry,
            },
            ForClaim::Expand(bytes) => match volume {
                Some(volume) => self.expand(&claim, &volume, bytes).await,
                None => Outcome::Retry,
            },
            ForClaim::Modify(name) => match volume {
                Some(volume) => self.modify(&claim, &volume, &name).await,
                None => Outcome::Retry,
            },
            ForClaim::Cancel => self.cancel_modification(&claim).await,
        }
    }

    async fn volume(&self, key: &Key) -> Outcome {
        let Some(volume) = self.volumes.get(key) else { return Outcome::Done };
        match plan::for_volume(&volume, self.driver.name(), &self.node) {
            ForVolume::Nothing => Outcome::Done,
            ForVolume::Remove => self.remove(&volume).await,
            ForVolume::Hold => self.set_finalizer(&volume, true).await,
            ForVolume::Release => self.set_finalizer(&volume, false).await,
        }
    }

    /// Writes a part of a claim's status.
    pub(super) async fn write(&self, claim: &Claim, status: &Value) -> Result<(), Outcome> {
        let key = Key::new(&claim.metadata.namespace, &claim.metadata.name);
        let written = self.client.merge_patch::<IgnoredAny>(CLAIMS.sub("status"), &key, status).await;
        written.map(drop).map_err(|error| {
            tracing::warn!(claim = %key, error = error.chain(), "cannot write the claim's status");
            if error.is_not_found() { Outcome::Done } else { Outcome::Retry }
        })
    }

    /// Writes an event about a claim.
    pub(super) fn report(&self, claim: &Claim, kind: Type, reason: &str, message: &str) {
        let about = Reference {
            api_version: "v1".to_owned(),
            kind: "PersistentVolumeClaim".to_owned(),
            namespace: claim.metadata.namespace.clone(),
            name: claim.metadata.name.clone(),
            uid: claim.metadata.uid.clone(),
        };
        self.events.publish(&about, kind, reason, message);
    }

    /// Writes an event about a PV.
    pub(super) fn report_volume(&self, volume: &Volume, reason: &str, message: &str) {
        let about = Reference {
            api_version: "v1".to_owned(),
            kind: "PersistentVolume".to_owned(),
            namespace: String::new(),
            name: volume.metadata.name.clone(),
            uid: volume.metadata.uid.clone(),
        };
        self.events.publish(&about, Type::Warning, reason, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_served_where_only_csi_provisioner_is_stock() {
        let key = || Key::cluster("a");
        let all = [Work::Claim(key()), Work::Volume(key()), Work::Content(key()), Work::Group(key())];
        let found = Duties { volumes: true, snapshots: true };
        assert!(!Work::Unassigned(key()).is_of(found), "no sidecar looks for snapshots");
        for (volumes, snapshots, expected) in [
            (false, false, [false; 4]),
            (true, false, [true, true, false, false]),
            (true, true, [true; 4]),
            (false, true, [false, false, true, true]),
        ] {
            let duties = Duties { volumes, snapshots };
            assert_eq!(all.clone().map(|work| work.is_of(duties)), expected, "{duties:?}");
        }
    }
}
