//! Follows snapshots, contents, classes and claims, and takes the step that [`super::plan`] decides.

use std::future::Future;
use std::sync::Arc;

use cluster::cache::Index;
use cluster::{Cache, Client, Events, Key, Outcome, Queue, Result, Scope};
use serde_json::Value;

use super::group::seen::{GROUP_CLASSES, GROUP_CONTENTS, GROUPS, Group, GroupContent};
use super::plan::{Around, ForContent, Step};
use super::seen::{BEING_DELETED, CLASSES, Claim, Class, Content, Object, Snapshot};
use super::{plan, seen};
use crate::storage::seen::Meta;
use crate::volumes::loss::is_lost;
use crate::volumes::seen::{CLAIMS, CONTENTS, NODE_LOST, NODES, Node, SNAPSHOTS};

/// Writes at once.
const WORKERS: usize = 8;

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Snapshot(Key),
    Content(Key),
    Group(Key),
    GroupContent(Key),
}

/// Caches, and the API server.
pub(super) struct Controller {
    pub(super) client: Client,
    pub(super) events: Events,
    pub(super) classes: Cache<Class>,
    pub(super) snapshots: Cache<Snapshot>,
    by_claim: Index,
    pub(super) by_group: Index,
    pub(super) contents: Cache<Content>,
    claims: Cache<Claim>,
    by_source: Index,
    nodes: Cache<Node>,
    pub(super) groups: Cache<Group>,
    pub(super) group_contents: Cache<GroupContent>,
    pub(super) group_classes: Cache<Class>,
}

/// Does the snapshot controller's work until `stop`.
pub(super) async fn run(client: Client, events: Events, stop: impl Future<Output = ()>) {
    let queue: Queue<Work> = Queue::new();
    let all = Scope::all();
    let feed = queue.clone();
    let mut snapshots = Cache::<Snapshot>::builder();
    let by_claim = snapshots.index(|key, snapshot| indexed(key, snapshot.claim.as_deref()));
    let by_group = snapshots
        .index(|key, snapshot| indexed(key, snapshot.group.as_ref().map(|group| group.name.as_str())));
    let snapshots = snapshots
        .on_change(move |change| {
            feed.add(Work::Snapshot(change.key.clone()));
            if let Some(group) = change.after.and_then(|snapshot| snapshot.group.as_ref()) {
                feed.add(Work::Group(Key::new(change.key.namespace(), &group.name)));
            }
            if let Some(name) = change.after.and_then(|snapshot| snapshot.content()) {
                feed.add(Work::Content(Key::cluster(&name)));
            }
        })
        .start::<Value>(&client, SNAPSHOTS, &all);
    let feed = queue.clone();
    let mut contents = Cache::<Content>::builder();
    let by_node =
        contents.index(|_, content| seen::node(&content.meta).map(str::to_owned).into_iter().collect());
    let contents = contents
        .on_change(move |change| {
            feed.add(Work::Content(change.key.clone()));
            for content in [change.before, change.after].into_iter().flatten() {
                feed.add(Work::Snapshot(Key::new(&content.of.0, &content.of.1)));
            }
        })
        .start::<Value>(&client, CONTENTS, &all);
    let (feed, known) = (queue.clone(), contents.clone());
    let nodes = Cache::<Node>::builder()
        .on_change(move |change| {
            for (key, _) in known.by(by_node, change.key.name()) {
                feed.add(Work::Content(key));
            }
        })
        .start::<Value>(&client, NODES, &all);
    let (feed, known) = (queue.clone(), snapshots.clone());
    let classes = Cache::<Class>::builder()
        .on_change(move |_| {
            for (key, snapshot) in known.all() {
                if !snapshot.is_ready() {
                    feed.add(Work::Snapshot(key));
                }
            }
        })
        .start::<Value>(&client, CLASSES, &all);
    let (feed, known) = (queue.clone(), snapshots.clone());
    let mut claims = Cache::<Claim>::builder();
    let by_source = claims.index(|key, claim| indexed(key, claim.restores.as_deref()));
    let claims = claims
        .on_change(move |change| {
            let (namespace, name) = (change.key.namespace(), change.key.name());
            for (key, _) in known.by(by_claim, &format!("{namespace}/{name}")) {
                feed.add(Work::Snapshot(key));
            }
            if let Some(name) = change.before.and_then(|claim| claim.restores.as_ref()) {
                let snapshot = Key::new(namespace, name);
                if let Some(group) = known.get(&snapshot).and_then(|one| one.group.clone()) {
                    feed.add(Work::Group(Key::new(namespace, &group.name)));
                }
                feed.add(Work::Snapshot(snapshot));
            }
        })
        .start::<Value>(&client, CLAIMS, &all);
    let (feed, known) = (queue.clone(), snapshots.clone());
    let groups = Cache::<Group>::builder()
        .on_change(move |change| {
            feed.add(Work::Group(change.key.clone()));
            if let Some(name) = change.after.and_then(|group| group.content()) {
                feed.add(Work::GroupContent(Key::cluster(&name)));
            }
            // Members are deleted with their group only.
            let name = format!("{}/{}", change.key.namespace(), change.key.name());
            for (member, _) in known.by(by_group, &name) {
                feed.add(Work::Snapshot(member));
            }
        })
        .start::<Value>(&client, GROUPS, &all);
    let feed = queue.clone();
    let group_contents = Cache::<GroupContent>::builder()
        .on_change(move |change| {
            feed.add(Work::GroupContent(change.key.clone()));
            for content in [change.before, change.after].into_iter().flatten() {
                feed.add(Work::Group(Key::new(&content.of.0, &content.of.1)));
            }
        })
        .start::<Value>(&client, GROUP_CONTENTS, &all);
    let (feed, known) = (queue.clone(), groups.clone());
    // Not waited for: a cluster may have the kinds of groups in other versions, or not at all.
    let group_classes = Cache::<Class>::builder()
        .on_change(move |_| {
            for (key, group) in known.all() {
                if group.ready != Some(true) {
                    feed.add(Work::Group(key));
                }
            }
        })
        .start::<Value>(&client, GROUP_CLASSES, &all);
    snapshots.synced().await;
    contents.synced().await;
    classes.synced().await;
    claims.synced().await;
    nodes.synced().await;
    let controller = Arc::new(Controller {
        client,
        events,
        classes,
        snapshots,
        by_claim,
        by_group,
        contents,
        claims,
        by_source,
        nodes,
        groups,
        group_contents,
        group_classes,
    });
    let work = move |work: Work| {
        let controller = Arc::clone(&controller);
        async move {
            let (what, key, result) = match &work {
                Work::Snapshot(key) => ("VolumeSnapshot", key, controller.snapshot(key).await),
                Work::Content(key) => ("VolumeSnapshotContent", key, controller.content(key).await),
                Work::Group(key) => ("VolumeGroupSnapshot", key, controller.group(key).await),
                Work::GroupContent(key) => {
                    ("VolumeGroupSnapshotContent", key, controller.group_content(key).await)
                }
            };
            match result {
                Ok(outcome) => outcome,
                // The cache shows it soon, and the step is decided again.
                Err(error) if error.is_conflict() || error.is_not_found() => Outcome::Retry,
                Err(error) => {
                    tracing::warn!(what, %key, error = error.chain(), "cannot reconcile the snapshot; retrying");
                    Outcome::Retry
                }
            }
        }
    };
    queue.run(WORKERS, stop, work).await;
}

/// The entry of an index of names in a namespace.
pub(super) fn indexed(key: &Key, name: Option<&str>) -> Vec<String> {
    name.map(|name| format!("{}/{name}", key.namespace())).into_iter().collect()
}

impl Controller {
    async fn snapshot(&self, key: &Key) -> Result<Outcome> {
        let Some(snapshot) = self.snapshots.get(key) else { return Ok(Outcome::Done) };
        let s = &*snapshot;
        let name = s.content();
        let content = self.content_of(&self.contents, name.as_deref(), s.is_held()).await?;
        let claim = s.claim.as_ref().and_then(|name| self.claims.get(&Key::new(key.namespace(), name)));
        let of = |name: &str| format!("{}/{name}", key.namespace());
        let others = match &s.claim {
            Some(claim) => self.snapshots.by(self.by_claim, &of(claim)),
            None => Vec::new(),
        };
        let around = Around {
            content: content.as_ref(),
            class: s.class.as_ref().is_some_and(|name| self.classes.get(&Key::cluster(name)).is_some()),
            protected: claim.is_some_and(|claim| claim.protected),
            others: others.iter().any(|(other, one)| other != key && !one.is_ready()),
            restoring: self.is_restoring(key),
            grouped: s.group.as_ref().is_some_and(|group| {
                let found = self.groups.get(&Key::new(key.namespace(), &group.name));
                found.is_some_and(|one| one.meta.uid == group.uid && !one.meta.deleting)
            }),
        };
        match (plan::snapshot(s, around), &content) {
            (Step::Rest, _) => Ok(Outcome::Done),
            (Step::InUse, _) => {
                let why = "Snapshot is being used to restore a PVC";
                self.warn(s, "SnapshotDeletePending", why);
                // The claim's change adds the key again.
                Ok(Outcome::Done)
            }
            (Step::InGroup, _) => {
                let group = s.group.as_ref().map(|group| group.name.as_str()).unwrap_or_default();
                let why =
                    format!("Snapshot is a member of VolumeGroupSnapshot {group} and is deleted with it");
                self.warn(s, "SnapshotDeletePending", &why);
                // The group's change adds the key again.
                Ok(Outcome::Done)
            }
            (Step::Fail(fail), _) => self.fail(s, &fail).await,
            (Step::Choose, _) => self.choose(s).await,
            (Step::Finalizers(all), _) => self.finalizers(SNAPSHOTS, &s.meta, &all).await,
            (Step::Free(claim), _) => self.free(&Key::new(key.namespace(), &claim)).await,
            (Step::Create, _) => self.create(s).await,
            (Step::Status(change), _) => self.status(s, change).await,
            (Step::Bind(class), Some(content)) => {
                let class = class.map(|class| ("volumeSnapshotClassName", class));
                self.bind(content, "volumeSnapshotRef", &s.meta.uid, class).await
            }
            (Step::Mark, Some(content)) => self.mark(content, BEING_DELETED).await,
            (Step::Delete, Some(content)) => self.delete(s, content).await,
            (Step::Bind(_) | Step::Mark | Step::Delete, None) => Ok(Outcome::Retry),
        }
    }

    /// The content of a snapshot or group that, if it is `held`, is being deleted.
    pub(super) async fn content_of<C>(
        &self,
        known: &Cache<C>,
        name: Option<&str>,
        held: bool,
    ) -> Result<Option<C>>
    where
        C: Object + Clone + PartialEq + for<'a> From<&'a Value> + Send + Sync + 'static,
    {
        let Some(key) = name.map(Key::cluster) else { return Ok(None) };
        if let Some(found) = known.get(&key) {
            return Ok(Some((*found).clone()));
        }
        if !held {
            return Ok(None);
        }
        // It may have been made a moment ago, and must not outlive its snapshot.
        let found: Option<Value> = self.client.find(C::RESOURCE, &key).await?;
        Ok(found.as_ref().map(C::from))
    }

    /// Whether a claim is being restored from a snapshot.
    pub(super) fn is_restoring(&self, snapshot: &Key) -> bool {
        let of = format!("{}/{}", snapshot.namespace(), snapshot.name());
        !self.claims.by(self.by_source, &of).is_empty()
    }

    /// Whether the node that serves a content is given up.
    pub(super) fn is_lost(&self, content: &Meta) -> bool {
        seen::node(content).is_some_and(|node| {
            let given_up = content.says(NODE_LOST, "true");
            is_lost(self.nodes.get(&Key::cluster(node)).as_deref(), given_up)
        })
    }

    async fn content(&self, key: &Key) -> Result<Outcome> {
        let Some(content) = self.contents.get(key) else { return Ok(Outcome::Done) };
        let of = self.snapshots.get(&Key::new(&content.of.0, &content.of.1));
        match plan::content(&content, of.as_deref(), self.is_lost(&content.meta)) {
            ForContent::Rest => Ok(Outcome::Done),
            ForContent::Invalid(why) => {
                self.warn(&*content, "ContentValidationError", why);
                Ok(Outcome::Done)
            }
            ForContent::Finalizers(all) => self.finalizers(CONTENTS, &content.meta, &all).await,
            ForContent::Mark => self.mark(&*content, BEING_DELETED).await,
        }
    }
}
