//! Follows the cluster's instance types and preferences, and carries out the plan.

use cluster::{Cache, Client, Delete, Key, Resource, Result, Scope};
use serde::de::IgnoredAny;
use serde_json::Value;
use virt::instancetype::{GROUP, Shipped, Which, shipped};

use super::plan::{Live, Step, compare, plan, written};

const INSTANCETYPES: Resource = Resource::cluster(GROUP, "v1beta1", "virtualmachineclusterinstancetypes");
const PREFERENCES: Resource = Resource::cluster(GROUP, "v1beta1", "virtualmachineclusterpreferences");

/// Objects that are written before the caller may do other work.
const BATCH: usize = 16;

impl From<&Value> for Live {
    fn from(live: &Value) -> Self {
        let name = live["metadata"]["name"].as_str().unwrap_or_default();
        // No name is one of both kinds.
        shipped().find(|one| one.name == name).map_or(Self::Foreign, |one| compare(&one, live))
    }
}

/// The cluster's instance types and preferences.
#[derive(Clone)]
pub(in crate::platform) struct Flavors {
    client: Client,
    instancetypes: Cache<Live>,
    preferences: Cache<Live>,
}

impl Flavors {
    /// Starts to follow them; `on_change` is called when one appears, differs or is gone.
    pub(in crate::platform) fn start(
        client: &Client,
        on_change: impl Fn() + Clone + Send + Sync + 'static,
    ) -> Self {
        let follow = |resource: Resource| {
            let on_change = on_change.clone();
            Cache::<Live>::builder().on_change(move |_| on_change()).start::<Value>(
                client,
                resource,
                &Scope::all(),
            )
        };
        Self {
            client: client.clone(),
            instancetypes: follow(INSTANCETYPES),
            preferences: follow(PREFERENCES),
        }
    }

    /// Waits until all are known.
    pub(in crate::platform) async fn synced(&self) {
        self.instancetypes.synced().await;
        self.preferences.synced().await;
    }

    fn of(&self, which: Which) -> (&Cache<Live>, Resource) {
        match which {
            Which::Instancetype => (&self.instancetypes, INSTANCETYPES),
            Which::Preference => (&self.preferences, PREFERENCES),
        }
    }

    fn steps(&self, present: bool) -> Vec<Step> {
        plan(shipped(), present, |one| self.of(one.which).0.get(&Key::cluster(one.name)).map(|live| *live))
    }

    /// Whether one of the platform's own is left.
    pub(in crate::platform) fn left(&self) -> bool {
        !self.steps(false).is_empty()
    }

    /// Does the next steps towards all or none; returns whether more are left.
    ///
    /// # Errors
    /// The first of the API server's; the steps after it are done, and the next call tries it again.
    pub(in crate::platform) async fn advance(&self, present: bool) -> Result<bool> {
        let steps = self.steps(present);
        let mut first = Ok(());
        for step in steps.iter().take(BATCH) {
            let done = self.act(step).await;
            first = first.and(done);
        }
        first.map(|()| steps.len() > BATCH)
    }

    async fn act(&self, step: &Step) -> Result<()> {
        match step {
            Step::Create(one) => self.write(one, None).await,
            Step::Restore(one) => self.restore(one).await,
            Step::Delete(one) => {
                let (_, resource) = self.of(one.which);
                let key = Key::cluster(one.name);
                self.client.delete(resource, &key, &Delete::default()).await.map(drop)
            }
        }
    }

    async fn restore(&self, one: &Shipped) -> Result<()> {
        let (_, resource) = self.of(one.which);
        let live = self.client.find::<Value>(resource, &Key::cluster(one.name)).await?;
        if live.is_some() {
            tracing::info!(kind = one.which.cluster_kind(), name = one.name, "a changed object is restored");
        }
        self.write(one, live.as_ref()).await
    }

    async fn write(&self, one: &Shipped, live: Option<&Value>) -> Result<()> {
        let Some(object) = written(one, live) else { return Ok(()) };
        let (_, resource) = self.of(one.which);
        let done = match live {
            Some(_) => {
                self.client.replace::<IgnoredAny>(resource, &Key::cluster(one.name), &object).await.map(drop)
            }
            None => self.client.create::<IgnoredAny>(resource, "", &object).await.map(drop),
        };
        match done {
            // The cache does not have it yet.
            Err(error) if error.is_already_exists() => Ok(()),
            done => done,
        }
    }
}
