//! Follows claims, PVs, nodes, classes and capacities, and writes what [`super::plan`] decides; what [`super::loss`] decides
//! is written in [`super::release`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::cache::Index;
use cluster::{Cache, Client, Events, Key, Outcome, Queue, Resource, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::attempts::Attempts;
use super::loss::{self, Loss};
use super::plan::{self, Around, ForClaim, ForContent, ForVolume, Room};
use super::seen::{
    CAPACITIES, CLAIMS, CLASSES, CONTENTS, Capacity, Claim, Class, Content, DAEMON_SETS, DaemonSet,
    MANAGED_BY, NODE_LABEL, NODES, Node, SELECTED_NODE, SNAPSHOTS, Snapshot, UNASSIGNED, VOLUMES, Volume,
};
use super::snapshots::GROUP_CONTENTS;
use super::sources::Source;

/// Writes at once.
const WORKERS: usize = 8;
/// Time until a claim without room is looked at again.
const WAIT: Duration = Duration::from_secs(5);
/// Time until a finalizer of a VolumeSnapshot is looked at: claims are followed apart from snapshots.
const SWEEP: Duration = Duration::from_secs(60);

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Claim(Key),
    Volume(Key),
    Source(Source),
    Content(Key),
    Group(Key),
}

/// Caches, and the API server.
pub(super) struct Controller {
    pub(super) client: Client,
    pub(super) events: Events,
    pub(super) claims: Cache<Claim>,
    /// Claims without a volume, by their source.
    pub(super) by_source: Index,
    pub(super) snapshots: Cache<Snapshot>,
    contents: Cache<Content>,
    /// VolumeGroupSnapshotContents; empty while the cluster has none.
    groups: Cache<Content>,
    volumes: Cache<Volume>,
    /// The driver's PVs, by their CSI handles.
    by_handle: Index,
    nodes: Cache<Node>,
    classes: Cache<Class>,
    capacities: Cache<Capacity>,
    by_class: Index,
    daemon_sets: Cache<DaemonSet>,
    attempts: Attempts,
    /// Reports that no node has room.
    pub(super) reports: Attempts,
}

/// Labels claims and PVs, and follows what becomes of their nodes, until `stop`.
pub async fn run(client: Client, events: Events, stop: impl Future<Output = ()>) {
    let queue: Queue<Work> = Queue::new();
    let all = Scope::all();
    let feed = queue.clone();
    let mut claims = Cache::<Claim>::builder();
    let unbound = claims.index(|_, claim| match &claim.volume {
        None => claim.class.iter().cloned().collect(),
        Some(_) => Vec::new(),
    });
    let by_choice = claims.index(|_, claim| match &claim.volume {
        None => claim.selected.iter().cloned().collect(),
        Some(_) => Vec::new(),
    });
    let by_source = claims.index(|key, claim| {
        let source = Source::of(key, claim).filter(|_| claim.volume.is_none());
        source.iter().map(Source::entry).collect()
    });
    let claims = claims
        .on_change(move |change| {
            for claim in [change.before, change.after].into_iter().flatten() {
                if claim.ours {
                    feed.add(Work::Claim(change.key.clone()));
                }
                if claim.guarded {
                    feed.add(Work::Source(Source::Claim(change.key.clone())));
                }
                if let Some(source) = Source::of(change.key, claim) {
                    feed.add(Work::Source(source));
                }
            }
        })
        .start::<Value>(&client, CLAIMS, &all);
    let feed = queue.clone();
    // Not waited for: a cluster may have no VolumeSnapshots.
    let snapshots = Cache::<Snapshot>::builder()
        .on_change(move |change| {
            let is_guarded = |one: Option<&Arc<Snapshot>>| one.is_some_and(|one| one.guarded);
            let source = || Work::Source(Source::Snapshot(change.key.clone()));
            match (is_guarded(change.before), is_guarded(change.after)) {
                (_, true) => feed.add_after(source(), SWEEP),
                (true, false) => feed.add(source()),
                (false, false) => {}
            }
        })
        .start::<Value>(&client, SNAPSHOTS, &all);
    let feed = queue.clone();
    let contents = Cache::<Content>::builder()
        .on_change(move |change| feed.add(Work::Content(change.key.clone())))
        .start::<Value>(&client, CONTENTS, &all);
    let feed = queue.clone();
    let groups = Cache::<Content>::builder()
        .on_change(move |change| feed.add(Work::Group(change.key.clone())))
        .start::<Value>(&client, GROUP_CONTENTS, &all);
    let feed = queue.clone();
    let mut volumes = Cache::<Volume>::builder();
    let by_node = volumes.index(|_, volume| volume.served_by().into_iter().cloned().collect());
    let by_handle =
        volumes.index(|_, volume| volume.ours.then(|| volume.handle.clone()).into_iter().collect());
    let volumes = volumes
        .on_change(move |change| {
            feed.add(Work::Volume(change.key.clone()));
            if let Some((namespace, name)) = change.after.and_then(|volume| volume.claim.as_ref()) {
                feed.add(Work::Claim(Key::new(namespace, name)));
            }
        })
        .start::<Value>(&client, VOLUMES, &all);
    let (feed, known, waiting) = (queue.clone(), volumes.clone(), claims.clone());
    let nodes = Cache::<Node>::builder()
        .on_change(move |change| {
            for (key, _) in waiting.by(by_choice, change.key.name()) {
                feed.add(Work::Claim(key));
            }
            for (key, volume) in known.by(by_node, change.key.name()) {
                feed.add(Work::Volume(key));
                if let Some((namespace, name)) = &volume.claim {
                    feed.add(Work::Claim(Key::new(namespace, name)));
                }
            }
        })
        .start::<Value>(&client, NODES, &all);
    // Claims that another program was to serve, and now is not.
    let again = |queue: &Queue<Work>, claims: &Cache<Claim>| {
        let (feed, known) = (queue.clone(), claims.clone());
        move || {
            for (key, claim) in known.all() {
                if claim.ours && claim.volume.is_none() {
                    feed.add(Work::Claim(key));
                }
            }
        }
    };
    let look = again(&queue, &claims);
    let classes = Cache::<Class>::builder().on_change(move |_| look()).start::<Value>(&client, CLASSES, &all);
    let mut capacities = Cache::<Capacity>::builder();
    let by_class = capacities.index(|_, capacity| vec![capacity.class.clone()]);
    let (feed, known) = (queue.clone(), claims.clone());
    let capacities = capacities
        .on_change(move |change| {
            let class = change.after.map_or("", |capacity| &capacity.class);
            known.by(unbound, class).into_iter().for_each(|(key, _)| feed.add(Work::Claim(key)));
        })
        .start::<Value>(&client, CAPACITIES, &all);
    let ours = all.clone().labels("k8s-app=hostpath-provisioner");
    let look = again(&queue, &claims);
    let daemon_sets =
        Cache::<DaemonSet>::builder().on_change(move |_| look()).start::<Value>(&client, DAEMON_SETS, &ours);
    claims.synced().await;
    volumes.synced().await;
    nodes.synced().await;
    classes.synced().await;
    capacities.synced().await;
    daemon_sets.synced().await;
    let controller = Arc::new(Controller {
        client,
        events,
        claims,
        by_source,
        snapshots,
        contents,
        groups,
        volumes,
        by_handle,
        nodes,
        classes,
        capacities,
        by_class,
        daemon_sets,
        attempts: Attempts::default(),
        reports: Attempts::default(),
    });
    let work = move |work: Work| {
        let controller = Arc::clone(&controller);
        async move {
            match work {
                Work::Claim(key) => controller.claim(&key).await,
                Work::Volume(key) => controller.volume(&key).await,
                Work::Content(key) => controller.content(CONTENTS, &controller.contents, &key).await,
                Work::Group(key) => controller.content(GROUP_CONTENTS, &controller.groups, &key).await,
                Work::Source(source) => {
                    let guarded = controller.guard(&source, false).await;
                    Outcome::of(guarded.map(|()| Outcome::Done), "source of volumes", &source.entry())
                }
            }
        }
    };
    queue.run(WORKERS, stop, work).await;
}

impl Controller {
    async fn claim(&self, key: &Key) -> Outcome {
        let found = self.claims.get(key);
        if found.as_ref().is_none_or(|claim| claim.volume.is_some()) {
            self.attempts.forget(key);
            self.reports.forget(key);
        }
        let Some(claim) = found else { return Outcome::Done };
        let class = claim.class.as_deref().and_then(|name| self.classes.get(&Key::cluster(name)));
        let volume = claim.volume.as_deref().and_then(|name| self.volumes.get(&Key::cluster(name)));
        let source =
            claim.source.as_deref().and_then(|name| self.claims.get(&Key::new(key.namespace(), name)));
        let mut around = Around {
            class: class.as_deref(),
            volume: volume.as_deref(),
            source: source.as_ref().and_then(|source| source.label.as_deref()),
            stock: self.is_stock(),
        };
        let content = claim.snapshot.as_deref().and_then(|name| self.content_of(key, name));
        around.source = around.source.or(content.as_ref().and_then(|content| content.node.as_deref()));
        let capacities = self.capacities.by(self.by_class, claim.class.as_deref().unwrap_or_default());
        let nodes: Vec<_> = capacities.iter().map(|(_, one)| self.node(one.node.as_deref())).collect();
        let rooms: Vec<Room<'_>> = capacities
            .iter()
            .zip(&nodes)
            .map(|((_, capacity), node)| Room { capacity, node: node.as_deref() })
            .collect();
        let step = plan::for_claim(&claim, around, &rooms);
        if matches!(step, ForClaim::Choose(_))
            && let Err(pause) = self.attempts.begin(key, &claim.uid, Instant::now())
        {
            return Outcome::After(pause);
        }
        if claim.volume.is_none()
            && matches!(step, ForClaim::Choose(_) | ForClaim::Label(Some(_)))
            && let Some(source) = Source::of(key, &claim)
            && let Err(error) = self.guard(&source, true).await
        {
            return Outcome::of(Err(error), "source of volumes", &source.entry());
        }
        let patch = match step {
            ForClaim::Nothing => return self.report_loss(key, &claim, self.loss_of(&claim).as_ref()).await,
            ForClaim::Wait => return Outcome::After(WAIT),
            ForClaim::NoRoom(why) => {
                self.report_no_room(key, &claim, &why);
                return Outcome::After(WAIT);
            }
            ForClaim::Label(node) => json!({"metadata": {"uid": claim.uid, "labels": {NODE_LABEL: node}}}),
            ForClaim::Choose(node) => json!({"metadata": {
                "uid": claim.uid,
                "annotations": {SELECTED_NODE: node},
                "labels": {NODE_LABEL: node},
            }}),
        };
        match self.client.merge_patch::<IgnoredAny>(CLAIMS, key, &patch).await {
            Ok(_) => {
                tracing::debug!(claim = %key, %patch, "claim labelled");
                Outcome::Done
            }
            Err(error) if error.is_not_found() => Outcome::Done,
            // The object changed in between; its event may have come already.
            Err(error) if error.is_conflict() => Outcome::Retry,
            Err(error) => {
                tracing::warn!(claim = %key, error = error.chain(), "cannot label a claim with the node of its volume");
                Outcome::Retry
            }
        }
    }

    /// Whether stock csi-provisioner makes the volumes.
    pub(super) fn is_stock(&self) -> bool {
        self.daemon_sets.all().iter().any(|(_, set)| set.provisions)
    }

    /// The content of a claim's snapshot; `None` until it is known.
    fn content_of(&self, claim: &Key, snapshot: &str) -> Option<Arc<Content>> {
        let snapshot = self.snapshots.get(&Key::new(claim.namespace(), snapshot))?;
        self.contents.get(&Key::cluster(snapshot.content.as_deref()?))
    }

    /// Labels a content of a snapshot or of a group.
    async fn content(&self, kind: Resource, all: &Cache<Content>, key: &Key) -> Outcome {
        let Some(content) = all.get(key) else { return Outcome::Done };
        let volumes = content.volume.as_deref().map(|handle| self.volumes.by(self.by_handle, handle));
        let volume = volumes.as_ref().and_then(|found| found.first());
        let labels = match plan::for_content(&content, volume.map(|(_, volume)| volume.as_ref())) {
            ForContent::Nothing => return Outcome::Done,
            ForContent::Wait => return Outcome::After(WAIT),
            ForContent::Unassigned(set) => json!({UNASSIGNED: set.then_some("true")}),
            ForContent::Node(node) => json!({MANAGED_BY: node}),
        };
        let patch = json!({"metadata": {"uid": content.uid, "labels": labels}});
        let written = self.client.merge_patch::<IgnoredAny>(kind, key, &patch).await;
        Outcome::of(written.map(|_| Outcome::Done), kind.plural, key)
    }

    /// Why the volume of a claim cannot be reached, or made.
    fn loss_of(&self, claim: &Claim) -> Option<Loss> {
        let Some(name) = claim.volume.as_deref() else {
            let home = claim.selected.as_deref()?;
            return loss::unmade(home, self.node(Some(home)).as_deref());
        };
        let volume = self.volumes.get(&Key::cluster(name))?;
        loss::loss(name, &volume, self.node(volume.node.as_deref()).as_deref())
    }

    /// A node by its name, if the cluster has it.
    fn node(&self, name: Option<&str>) -> Option<Arc<Node>> {
        self.nodes.get(&Key::cluster(name?))
    }

    /// Nodes that are ready and have the pool of a volume of a shared pool: those with capacities of its class, or of any
    /// class where its own is gone.
    fn nodes_of(&self, volume: &Volume) -> BTreeSet<String> {
        if !volume.ours || volume.node.is_some() {
            return BTreeSet::new();
        }
        let mut capacities = self.capacities.by(self.by_class, volume.class.as_deref().unwrap_or_default());
        if capacities.is_empty() {
            capacities = self.capacities.all();
        }
        let nodes = capacities.into_iter().filter_map(|(_, capacity)| capacity.node.clone());
        nodes.filter(|name| self.node(Some(name)).is_some_and(|node| node.ready)).collect()
    }

    async fn volume(&self, key: &Key) -> Outcome {
        let Some(volume) = self.volumes.get(key) else { return Outcome::Done };
        let nodes = self.nodes_of(&volume);
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let node = match plan::for_volume(&volume, &nodes) {
            ForVolume::Label(node) => node,
            ForVolume::Wait => return Outcome::After(WAIT),
            ForVolume::Nothing => {
                let home = self.node(volume.node.as_deref());
                return match loss::loss(key.name(), &volume, home.as_deref()) {
                    Some(loss) => self.release(key, &volume, &loss).await,
                    None => Outcome::Done,
                };
            }
        };
        let patch = json!({"metadata": {"labels": {NODE_LABEL: node}}});
        let written = self.client.merge_patch::<IgnoredAny>(VOLUMES, key, &patch).await;
        match written {
            Ok(_) => Outcome::Done,
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) if error.is_conflict() => Outcome::Retry,
            Err(error) => {
                tracing::warn!(volume = %key, error = error.chain(), "cannot label a PersistentVolume with its node");
                Outcome::Retry
            }
        }
    }
}
