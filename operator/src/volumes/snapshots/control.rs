//! Follows snapshots, contents, classes and claims, and takes the step that [`super::plan`] decides.

use std::future::Future;
use std::sync::Arc;

use cluster::cache::Index;
use cluster::{Cache, Client, Events, Key, Outcome, Queue, Result, Scope};
use serde_json::Value;

use super::plan::{self, Around, ForContent, Step};
use super::seen::{CLASSES, Claim, Class, Content, Snapshot};
use crate::volumes::loss::is_lost;
use crate::volumes::seen::{CLAIMS, CONTENTS, NODE_LOST, NODES, Node, SNAPSHOTS};

/// Writes at once.
const WORKERS: usize = 8;

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Snapshot(Key),
    Content(Key),
}

/// Caches, and the API server.
pub(super) struct Controller {
    pub(super) client: Client,
    pub(super) events: Events,
    pub(super) classes: Cache<Class>,
    snapshots: Cache<Snapshot>,
    by_claim: Index,
    contents: Cache<Content>,
    claims: Cache<Claim>,
    by_source: Index,
    nodes: Cache<Node>,
}

/// Does the snapshot controller's work until `stop`.
pub(super) async fn run(client: Client, events: Events, stop: impl Future<Output = ()>) {
    let queue: Queue<Work> = Queue::new();
    let all = Scope::all();
    let feed = queue.clone();
    let mut snapshots = Cache::<Snapshot>::builder();
    let by_claim = snapshots.index(|key, snapshot| indexed(key, snapshot.claim.as_deref()));
    let snapshots = snapshots
        .on_change(move |change| {
            feed.add(Work::Snapshot(change.key.clone()));
            if let Some(name) = change.after.and_then(|snapshot| snapshot.content()) {
                feed.add(Work::Content(Key::cluster(&name)));
            }
        })
        .start::<Value>(&client, SNAPSHOTS, &all);
    let feed = queue.clone();
    let mut contents = Cache::<Content>::builder();
    let by_node = contents.index(|_, content| content.node().map(str::to_owned).into_iter().collect());
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
                feed.add(Work::Snapshot(Key::new(namespace, name)));
            }
        })
        .start::<Value>(&client, CLAIMS, &all);
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
        contents,
        claims,
        by_source,
        nodes,
    });
    let work = move |work: Work| {
        let controller = Arc::clone(&controller);
        async move {
            let (what, key, result) = match &work {
                Work::Snapshot(key) => ("VolumeSnapshot", key, controller.snapshot(key).await),
                Work::Content(key) => ("VolumeSnapshotContent", key, controller.content(key).await),
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
fn indexed(key: &Key, name: Option<&str>) -> Vec<String> {
    name.map(|name| format!("{}/{name}", key.namespace())).into_iter().collect()
}

impl Controller {
    async fn snapshot(&self, key: &Key) -> Result<Outcome> {
        let Some(snapshot) = self.snapshots.get(key) else { return Ok(Outcome::Done) };
        let s = &*snapshot;
        let name = s.content();
        let mut content = name
            .as_ref()
            .and_then(|name| self.contents.get(&Key::cluster(name)))
            .map(|found| (*found).clone());
        if content.is_none()
            && s.is_held()
            && let Some(name) = &name
        {
            // It may have been made a moment ago, and must not outlive its snapshot.
            let found: Option<Value> = self.client.find(CONTENTS, &Key::cluster(name)).await?;
            content = found.as_ref().map(Content::from);
        }
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
            restoring: !self.claims.by(self.by_source, &of(key.name())).is_empty(),
        };
        match (plan::snapshot(s, around), &content) {
            (Step::Rest, _) => Ok(Outcome::Done),
            (Step::InUse, _) => {
                let why = "Snapshot is being used to restore a PVC";
                self.warn(s, "SnapshotDeletePending", why);
                // The claim's change adds the key again.
                Ok(Outcome::Done)
            }
            (Step::Fail(fail), _) => self.fail(s, &fail).await,
            (Step::Choose, _) => self.choose(s).await,
            (Step::Finalizers(all), _) => self.finalizers(SNAPSHOTS, &s.meta, &all).await,
            (Step::Free(claim), _) => self.free(&Key::new(key.namespace(), &claim)).await,
            (Step::Create, _) => self.create(s).await,
            (Step::Status(change), _) => self.status(s, change).await,
            (Step::Bind(class), Some(content)) => self.bind(s, content, class.as_deref()).await,
            (Step::Mark, Some(content)) => self.mark(content).await,
            (Step::Delete, Some(content)) => self.delete(s, content).await,
            (Step::Bind(_) | Step::Mark | Step::Delete, None) => Ok(Outcome::Retry),
        }
    }

    async fn content(&self, key: &Key) -> Result<Outcome> {
        let Some(content) = self.contents.get(key) else { return Ok(Outcome::Done) };
        let of = self.snapshots.get(&Key::new(&content.of.0, &content.of.1));
        let lost = content.node().is_some_and(|node| {
            let given_up = content.meta.says(NODE_LOST, "true");
            is_lost(self.nodes.get(&Key::cluster(node)).as_deref(), given_up)
        });
        match plan::content(&content, of.as_deref(), lost) {
            ForContent::Rest => Ok(Outcome::Done),
            ForContent::Invalid(why) => {
                self.warn_content(&content, "ContentValidationError", why);
                Ok(Outcome::Done)
            }
            ForContent::Finalizers(all) => self.finalizers(CONTENTS, &content.meta, &all).await,
            ForContent::Mark => self.mark(&content).await,
        }
    }
}
