//! State shared by the controllers at run time: client, caches, queues, settings, clock, events.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use cluster::event::{self, Reference};
use cluster::{Client, Events, Key, Resource};
use serde_json::Value;

use super::caches::{Caches, Queues};
use super::event::Event;
use super::launcher::Settings;
use crate::view::Meta;

/// State shared by the controllers.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) client: Client,
    /// Namespace of the installation.
    pub(super) namespace: String,
    events: Events,
    pub(super) caches: Caches,
    pub(super) queues: Queues,
    settings: RwLock<Arc<Settings>>,
    /// By VM: generation and instance that were compared, and whether a restart is required.
    compared: Mutex<HashMap<Key, Compared>>,
    /// By pool with selectors: the VMs that they select.
    selections: Mutex<HashMap<Key, Selection>>,
}

/// A comparison of a VM's template with that of its instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) generation: u64,
    pub(super) instance: String,
    pub(super) restart_required: bool,
    /// The instance has everything of the template that it follows.
    pub(super) settled: bool,
}

/// Names of the VMs that the selectors of a pool's strategies select, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Uid and generation of the pool and of each of its VMs.
    pub(super) of: Vec<(String, u64)>,
    pub(super) scale_in: Option<BTreeSet<String>>,
    pub(super) update: Option<BTreeSet<String>>,
}

impl Context {
    pub(super) fn new(
        (client, events): (Client, Events),
        namespace: String,
        caches: Caches,
        queues: Queues,
        settings: Settings,
    ) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        let (compared, selections) = (Mutex::default(), Mutex::default());
        Self { client, namespace, events, caches, queues, settings, compared, selections }
    }

    /// Seconds since 1970.
    pub(super) fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_settings(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    pub(super) fn compared(&self, key: &Key) -> Option<Compared> {
        self.compared.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    pub(super) fn remember(&self, key: &Key, compared: Option<Compared>) {
        let mut all = self.compared.lock().unwrap_or_else(PoisonError::into_inner);
        match compared {
            Some(compared) => all.insert(key.clone(), compared),
            None => all.remove(key),
        };
    }

    pub(super) fn selection(&self, pool: &Key) -> Option<Selection> {
        self.selections.lock().unwrap_or_else(PoisonError::into_inner).get(pool).cloned()
    }

    pub(super) fn remember_selection(&self, pool: &Key, selection: Option<Selection>) {
        let mut all = self.selections.lock().unwrap_or_else(PoisonError::into_inner);
        match selection {
            Some(selection) => all.insert(pool.clone(), selection),
            None => all.remove(pool),
        };
    }

    /// Records an event on an object.
    pub(super) fn record(&self, api_version: &str, kind: &str, meta: &Meta, event: &Event) {
        let about = Reference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        };
        let class = if event.warning { event::Type::Warning } else { event::Type::Normal };
        self.events.publish(&about, class, event.reason, &event.message);
    }

    /// Reads the whole object that a decision was made on; `None` if another one has its name or it is gone.
    pub(super) async fn whole(&self, resource: Resource, meta: &Meta) -> cluster::Result<Option<Value>> {
        let key = Key::new(&meta.namespace, &meta.name);
        let read: Option<Value> = self.client.find_cached(resource, &key).await?;
        let same = |object: &Value| {
            object["metadata"]["uid"] == meta.uid.as_str()
                && object["metadata"]["generation"].as_u64().unwrap_or(0) >= meta.generation
        };
        Ok(read.filter(same))
    }
}
