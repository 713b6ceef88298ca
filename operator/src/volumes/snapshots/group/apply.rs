//! Takes the steps of a group. Repeated, each changes nothing.

use cluster::{Delete, Key, Outcome, Resource, Result, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::super::apply::key;
use super::super::control::Controller;
use super::super::make::driver;
use super::super::plan::{self as single, Fail, ForContent};
use super::super::seen::Snapshot;
use super::make::{self, Source};
use super::plan::{self, Around, Step};
use super::seen::{BEING_DELETED, GROUP_CLASSES, GROUP_CONTENTS, GROUPS, Group, GroupContent, Taken};
use crate::storage::seen::Meta;
use crate::view::selector_text;
use crate::volumes::seen::{CLAIMS, CONTENTS, SNAPSHOTS, VOLUMES};

/// Claims and their PVs, or why a group of them cannot be taken yet.
type Sources = std::result::Result<Vec<(Value, Value)>, String>;

impl Controller {
    /// Takes the next step of a group.
    pub(in super::super) async fn group(&self, key: &Key) -> Result<Outcome> {
        let Some(group) = self.groups.get(key) else { return Ok(Outcome::Done) };
        if !self.group_contents.is_synced() || !self.group_classes.is_synced() {
            return Ok(Outcome::Retry);
        }
        let g = &*group;
        let content = self.content_of(&self.group_contents, g.content().as_deref(), g.is_held()).await?;
        let name = format!("{}/{}", key.namespace(), key.name());
        let mut members = self.snapshots.by(self.by_group, &name);
        members.retain(|(_, member)| member.group.as_ref().is_some_and(|owner| owner.uid == g.meta.uid));
        let restoring = members.iter().find(|(member, _)| self.is_restoring(member));
        let around = Around {
            content: content.as_ref(),
            class: g.class.as_ref().is_some_and(|name| self.group_classes.get(&Key::cluster(name)).is_some()),
            missing: content.as_ref().map(|content| self.missing(g, content)).unwrap_or_default(),
            restoring: restoring.map(|(member, _)| member.name().to_owned()),
            members: members
                .iter()
                .filter(|(_, member)| !member.meta.deleting)
                .map(|(member, _)| member.name().to_owned())
                .collect(),
        };
        match (plan::group(g, around), &content) {
            (Step::Rest, _) => Ok(Outcome::Done),
            (Step::InUse(member), _) => {
                let why = format!("Snapshot {member} of the group is being used to restore a PVC");
                self.warn(g, "SnapshotDeletePending", &why);
                // The claim's change adds the key again.
                Ok(Outcome::Done)
            }
            (Step::Fail(fail), _) => self.fail(g, &fail).await,
            (Step::Finalizers(all), _) => self.finalizers(GROUPS, &g.meta, &all).await,
            (Step::Choose, _) => self.choose_group_class(g).await,
            (Step::Create, _) => self.create_group(g).await,
            (Step::Bind(class), Some(content)) => {
                let class = class.map(|class| ("volumeGroupSnapshotClassName", class));
                self.bind(content, "volumeGroupSnapshotRef", &g.meta.uid, class).await
            }
            (Step::Members(taken), Some(content)) => self.make_members(g, content, &taken).await,
            (Step::Status(change), _) => self.status(g, change).await,
            (Step::Mark, Some(content)) => self.mark(content, BEING_DELETED).await,
            (Step::Delete, Some(content)) => self.delete(g, content).await,
            (Step::DeleteMembers(names), _) => {
                for name in names {
                    let member = Key::new(key.namespace(), &name);
                    self.client.delete(SNAPSHOTS, &member, &Delete::default()).await?;
                }
                // The members' changes add the key again.
                Ok(Outcome::Done)
            }
            (Step::Bind(_) | Step::Members(_) | Step::Mark | Step::Delete, None) => Ok(Outcome::Retry),
        }
    }

    /// Takes the next step of a group's content.
    pub(in super::super) async fn group_content(&self, key: &Key) -> Result<Outcome> {
        let Some(content) = self.group_contents.get(key) else { return Ok(Outcome::Done) };
        let of = self.groups.get(&Key::new(&content.of.0, &content.of.1));
        match plan::content(&content, of.as_deref(), self.is_lost(&content.meta)) {
            ForContent::Rest | ForContent::Invalid(_) => Ok(Outcome::Done),
            ForContent::Finalizers(all) => self.finalizers(GROUP_CONTENTS, &content.meta, &all).await,
            ForContent::Mark => self.mark(&*content, BEING_DELETED).await,
        }
    }

    /// Snapshots of a taken group whose objects are not made, or not bound to each other.
    fn missing(&self, g: &Group, content: &GroupContent) -> Vec<Taken> {
        let is_complete = |taken: &&Taken| {
            let [snapshot, content] = make::names(&g.meta.uid, taken);
            let snapshot = self.snapshots.get(&Key::new(&g.meta.namespace, &snapshot));
            let content = self.contents.get(&Key::cluster(&content));
            snapshot.zip(content).is_some_and(|(snapshot, content)| {
                snapshot.bound.is_some() && content.is_of(&snapshot, true) && content.ready.is_some()
            })
        };
        let taken = if content.handle.is_some() { content.taken.as_slice() } else { &[] };
        taken.iter().filter(|taken| !is_complete(taken)).cloned().collect()
    }

    async fn create_group(&self, g: &Group) -> Result<Outcome> {
        let class = Key::cluster(g.class.as_deref().unwrap_or_default());
        let Some(class) = self.client.find::<Value>(GROUP_CLASSES, &class).await? else {
            return Ok(Outcome::Retry);
        };
        let sources = self.sources(g).await?;
        match sources.and_then(|sources| make::content(g, &class, &sources)) {
            Ok(content) => self.add_content::<_, GroupContent>(g, &content, "a group snapshot").await,
            Err(why) => {
                let message = format!("Failed to create group snapshot content with error {why}");
                self.fail(g, &Fail::new("GroupSnapshotContentCreationFailed", message, true)).await
            }
        }
    }

    async fn choose_group_class(&self, g: &Group) -> Result<Outcome> {
        let classes = self.group_classes.all();
        let class = self.sources(g).await?.and_then(|sources| {
            let (claim, volume) = sources.first().ok_or("the group has no claims")?;
            single::default_class(driver(claim, volume)?, classes.iter().map(|(_, class)| &**class))
        });
        self.chosen(g, "volumeGroupSnapshotClassName", class).await
    }

    /// The claims that the group selects, by name, and their PVs.
    async fn sources(&self, g: &Group) -> Result<Sources> {
        let selector = g.selector.as_ref().map(selector_text).unwrap_or_default();
        let mut of = Scope::all().namespace(&g.meta.namespace);
        if !selector.is_empty() {
            of = of.labels(&selector);
        }
        let mut claims: Vec<Value> = self.client.list(CLAIMS, &of).await?;
        if claims.is_empty() {
            return Ok(Err(format!("no PVC of the namespace has the labels {selector:?}")));
        }
        claims.sort_by_cached_key(|claim| Meta::from(claim).name);
        let mut all = Vec::with_capacity(claims.len());
        for claim in claims {
            match self.volume(&claim).await? {
                Ok(volume) => all.push((claim, volume)),
                Err(why) => return Ok(Err(why)),
            }
        }
        Ok(Ok(all))
    }

    /// Makes the objects of snapshots that the driver made. Each write is found done when it is repeated.
    async fn make_members(&self, g: &Group, content: &GroupContent, all: &[Taken]) -> Result<Outcome> {
        let volumes: Vec<Source> = self.client.list(VOLUMES, &Scope::all()).await?;
        for taken in all {
            let source = volumes.iter().find(|volume| volume.is_of(content, taken));
            let member = make::member(g, content, taken, source);
            let (of_content, of_snapshot) = (Meta::from(&member.content), Meta::from(&member.snapshot));
            self.create_once(CONTENTS, "", &member.content).await?;
            self.create_once(SNAPSHOTS, &g.meta.namespace, &member.snapshot).await?;
            let (content, snapshot) = (key(&of_content), key(&of_snapshot));
            let made: Value = self.client.get(SNAPSHOTS, &snapshot).await?;
            let bound = json!({"spec": {"volumeSnapshotRef": {"uid": Snapshot::from(&made).meta.uid}}});
            self.client.merge_patch::<IgnoredAny>(CONTENTS, &content, &bound).await?;
            for (of, key, status) in [(CONTENTS, content, member.status), (SNAPSHOTS, snapshot, member.bound)]
            {
                let status = json!({"status": status});
                self.client.merge_patch::<IgnoredAny>(of.sub("status"), &key, &status).await?;
            }
        }
        tracing::info!(
            group = g.meta.name,
            namespace = g.meta.namespace,
            members = all.len(),
            "members made"
        );
        // Once the caches show them, the status follows.
        Ok(Outcome::Retry)
    }

    async fn create_once(&self, of: Resource, namespace: &str, object: &Value) -> Result<()> {
        match self.client.create::<IgnoredAny>(of, namespace, object).await {
            Err(error) if !error.is_already_exists() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
