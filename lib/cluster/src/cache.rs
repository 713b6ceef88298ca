//! A cache of projections: of each object of a followed collection, the fields that decisions need.
//!
//! `S: From<&T>` reads a projection from the object; the object itself is dropped at once. Indexes are functions of
//! the projection. Changes are reported by key: to callbacks (which feed a [`crate::Queue`]) and to [`Changes`].

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::follow::{Meta, News, follow};
use crate::key::Key;
use crate::resource::{Resource, Scope};

type IndexFn<S> = Box<dyn Fn(&Key, &S) -> Vec<String> + Send + Sync>;
type ChangeFn<S> = Box<dyn Fn(&Change<'_, S>) + Send + Sync>;

/// An index of a cache, given by [`Builder::index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index(usize);

/// A change of one object, as callbacks get it. `before` and `after` are never both empty, and never equal.
#[derive(Debug)]
pub struct Change<'a, S> {
    /// Which object.
    pub key: &'a Key,
    /// Its projection until now; empty if it is new.
    pub before: Option<&'a Arc<S>>,
    /// Its projection now; empty if it is gone.
    pub after: Option<&'a Arc<S>>,
}

/// Prepares a cache: its indexes and callbacks.
pub struct Builder<S> {
    indexes: Vec<IndexFn<S>>,
    callbacks: Vec<ChangeFn<S>>,
}

/// The projections of a followed collection. Clones share it; the collection is followed until the last is dropped.
pub struct Cache<S> {
    store: Arc<Store<S>>,
    _task: Arc<Task>,
}

impl<S> Clone for Cache<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), _task: Arc::clone(&self._task) }
    }
}

impl<S> fmt::Debug for Cache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("plural", &self.store.resource.plural).finish_non_exhaustive()
    }
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Store<S> {
    resource: Resource,
    rows: RwLock<Rows<S>>,
    indexes: Vec<IndexFn<S>>,
    callbacks: Vec<ChangeFn<S>>,
    subscribers: Mutex<Vec<Arc<Pending>>>,
    synced: watch::Sender<bool>,
    current: AtomicBool,
    unreadable: AtomicU64,
}

struct Rows<S> {
    objects: HashMap<Key, Row<S>>,
    indexes: Vec<HashMap<Box<str>, BTreeSet<Key>>>,
    /// Which list is being read: objects of an older one are gone when it ends.
    round: u32,
}

struct Row<S> {
    seen: Arc<S>,
    version: u64,
    round: u32,
}

impl<S> Default for Builder<S> {
    fn default() -> Self {
        Self { indexes: Vec::new(), callbacks: Vec::new() }
    }
}

impl<S> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("indexes", &self.indexes.len()).finish_non_exhaustive()
    }
}

impl<S: PartialEq + Send + Sync + 'static> Builder<S> {
    /// Adds an index: `values` gives the texts under which an object is found.
    pub fn index(&mut self, values: impl Fn(&Key, &S) -> Vec<String> + Send + Sync + 'static) -> Index {
        self.indexes.push(Box::new(values));
        Index(self.indexes.len() - 1)
    }

    /// Adds a callback for each change. It runs in the follower's task: it must be quick (add a key to a queue), and
    /// may read this cache.
    #[must_use]
    pub fn on_change(mut self, tell: impl Fn(&Change<'_, S>) + Send + Sync + 'static) -> Self {
        self.callbacks.push(Box::new(tell));
        self
    }

    /// Starts to follow the collection. Needs a tokio runtime.
    pub fn start<T>(self, client: &Client, resource: Resource, scope: &Scope) -> Cache<S>
    where
        T: DeserializeOwned + Send + 'static,
        S: for<'a> From<&'a T>,
    {
        let store = Arc::new(self.store(resource));
        let (client, scope, followed) = (client.clone(), scope.clone(), Arc::clone(&store));
        let task = tokio::spawn(async move {
            let never = follow::<T>(&client, resource, &scope, |news| followed.handle(news)).await;
            match never {}
        });
        Cache { store, _task: Arc::new(Task(task)) }
    }

    fn store(self, resource: Resource) -> Store<S> {
        let indexes = self.indexes.iter().map(|_| HashMap::new()).collect();
        Store {
            resource,
            rows: RwLock::new(Rows { objects: HashMap::new(), indexes, round: 0 }),
            indexes: self.indexes,
            callbacks: self.callbacks,
            subscribers: Mutex::default(),
            synced: watch::Sender::new(false),
            current: AtomicBool::new(false),
            unreadable: AtomicU64::new(0),
        }
    }
}

/// A resource version as a number: they are numbers, but for aggregated APIs.
fn number(version: &str) -> u64 {
    version.parse().unwrap_or_else(|_| {
        let mut hasher = DefaultHasher::new();
        version.hash(&mut hasher);
        hasher.finish()
    })
}

impl<S: PartialEq> Store<S> {
    fn handle<T>(&self, news: News<'_, T>)
    where
        S: for<'a> From<&'a T>,
    {
        match news {
            News::Begin => {
                let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
                rows.round = rows.round.wrapping_add(1);
            }
            News::Present(meta, object) => self.set(meta, S::from(&object)),
            News::Unreadable(meta, error) => {
                self.unreadable.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    plural = self.resource.plural, key = %meta.key, line = error.line(), column = error.column(),
                    "an object from the API server cannot be decoded; its last known state stays in use"
                );
                let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
                let round = rows.round;
                if let Some(row) = rows.objects.get_mut(&meta.key) {
                    row.round = round;
                }
            }
            News::Gone(meta, _) => self.remove(&meta.key),
            News::End => {
                self.sweep();
                self.current.store(true, Ordering::Relaxed);
                self.synced.send_replace(true);
            }
            News::Lost(_) => self.current.store(false, Ordering::Relaxed),
            News::Watching => self.current.store(true, Ordering::Relaxed),
        }
    }

    fn set(&self, meta: &Meta, seen: S) {
        let version = number(&meta.version);
        let (before, after) = {
            let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
            let round = rows.round;
            let rows = &mut *rows;
            let before = match rows.objects.get_mut(&meta.key) {
                Some(row) => {
                    row.round = round;
                    row.version = version;
                    if *row.seen == seen {
                        return;
                    }
                    Some(Arc::clone(&row.seen))
                }
                None => None,
            };
            let after = Arc::new(seen);
            // The key of the map is kept, so that all indexes share one text.
            let key = rows.objects.get_key_value(&meta.key).map_or(&meta.key, |(key, _)| key).clone();
            for (index, values) in rows.indexes.iter_mut().zip(&self.indexes) {
                reindex(
                    index,
                    &key,
                    before.as_deref().map(|seen| values(&key, seen)),
                    Some(values(&key, &after)),
                );
            }
            rows.objects.insert(key, Row { seen: Arc::clone(&after), version, round });
            (before, after)
        };
        self.notify(&Change { key: &meta.key, before: before.as_ref(), after: Some(&after) });
    }

    fn remove(&self, key: &Key) {
        let before = {
            let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
            let rows = &mut *rows;
            let Some(row) = rows.objects.remove(key) else { return };
            for (index, values) in rows.indexes.iter_mut().zip(&self.indexes) {
                reindex(index, key, Some(values(key, &row.seen)), None);
            }
            row.seen
        };
        self.notify(&Change { key, before: Some(&before), after: None });
    }

    /// Removes what the list that just ended did not have.
    fn sweep(&self) {
        let gone: Vec<Key> = {
            let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
            let old = rows.objects.iter().filter(|(_, row)| row.round != rows.round);
            old.map(|(key, _)| key.clone()).collect()
        };
        for key in gone {
            self.remove(&key);
        }
    }

    fn notify(&self, change: &Change<'_, S>) {
        for callback in &self.callbacks {
            callback(change);
        }
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        // One reference means that the other end was dropped.
        subscribers.retain(|one| Arc::strong_count(one) > 1);
        for one in subscribers.iter() {
            one.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(change.key.clone());
            one.notify.notify_one();
        }
    }
}

fn reindex(
    index: &mut HashMap<Box<str>, BTreeSet<Key>>,
    key: &Key,
    before: Option<Vec<String>>,
    after: Option<Vec<String>>,
) {
    if before == after {
        return;
    }
    for value in before.unwrap_or_default() {
        if let Some(keys) = index.get_mut(value.as_str()) {
            keys.remove(key);
            if keys.is_empty() {
                index.remove(value.as_str());
            }
        }
    }
    for value in after.unwrap_or_default() {
        index.entry(value.into_boxed_str()).or_default().insert(key.clone());
    }
}

impl<S: PartialEq + Send + Sync + 'static> Cache<S> {
    /// Prepares a cache.
    pub fn builder() -> Builder<S> {
        Builder::default()
    }

    /// The projection of an object.
    pub fn get(&self, key: &Key) -> Option<Arc<S>> {
        self.rows(|rows| rows.objects.get(key).map(|row| Arc::clone(&row.seen)))
    }

    /// The objects that an index has under a value, in the order of their keys.
    pub fn by(&self, index: Index, value: &str) -> Vec<(Key, Arc<S>)> {
        self.rows(|rows| {
            let keys = rows.indexes.get(index.0).and_then(|index| index.get(value));
            let found = keys.into_iter().flatten();
            found.filter_map(|key| Some((key.clone(), Arc::clone(&rows.objects.get(key)?.seen)))).collect()
        })
    }

    /// How many objects an index has under a value.
    pub fn count(&self, index: Index, value: &str) -> usize {
        self.rows(|rows| {
            rows.indexes.get(index.0).and_then(|index| index.get(value)).map_or(0, BTreeSet::len)
        })
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<(Key, Arc<S>)> {
        self.rows(|rows| rows.objects.iter().map(|(key, row)| (key.clone(), Arc::clone(&row.seen))).collect())
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.rows(|rows| rows.objects.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The resource version of an object as a number, to see whether an own write has arrived.
    pub fn version(&self, key: &Key) -> Option<u64> {
        self.rows(|rows| rows.objects.get(key).map(|row| row.version))
    }

    fn rows<R>(&self, read: impl FnOnce(&Rows<S>) -> R) -> R {
        read(&self.store.rows.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns when the first list is complete.
    pub async fn synced(&self) {
        // The sender lives in the store that `self` holds.
        let mut synced = self.store.synced.subscribe();
        let _closed = synced.wait_for(|synced| *synced).await;
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.store.synced.borrow()
    }

    /// Whether the watch runs, as far as is known: not while the API server does not answer.
    pub fn is_current(&self) -> bool {
        self.store.current.load(Ordering::Relaxed)
    }

    /// Objects that could not be read as their type, since the start.
    pub fn unreadable(&self) -> u64 {
        self.store.unreadable.load(Ordering::Relaxed)
    }

    /// The keys that change from now on. Each waits once, however often it changes before it is taken.
    pub fn changes(&self) -> Changes {
        let pending = Arc::new(Pending::default());
        let mut subscribers = self.store.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.push(Arc::clone(&pending));
        Changes(pending)
    }
}

#[derive(Default)]
struct Pending {
    keys: Mutex<BTreeSet<Key>>,
    notify: Notify,
}

/// Keys of changed objects, each at most once.
pub struct Changes(Arc<Pending>);

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

impl Changes {
    /// The next changed key; waits for one. May be cancelled without losing a key.
    pub async fn next(&mut self) -> Key {
        loop {
            let key = self.0.keys.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
            match key {
                Some(key) => return key,
                None => self.0.notify.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Pod {
        node: String,
    }

    impl From<&Value> for Pod {
        fn from(object: &Value) -> Self {
            Self { node: object["node"].as_str().unwrap_or_default().to_owned() }
        }
    }

    fn meta(name: &str, version: u64) -> Meta {
        Meta { key: Key::new("n", name), uid: String::new(), version: version.to_string() }
    }

    fn prepared() -> (Cache<Pod>, Index, Arc<Mutex<Vec<String>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&told);
        let mut builder = Cache::<Pod>::builder().on_change(move |change| {
            let node = |seen: Option<&Arc<Pod>>| seen.map_or("-".to_owned(), |pod| pod.node.clone());
            let text = format!("{} {}>{}", change.key, node(change.before), node(change.after));
            said.lock().unwrap().push(text);
        });
        let by_node = builder.index(|_, pod| vec![pod.node.clone()]);
        let store = Arc::new(builder.store(Resource::namespaced("", "v1", "pods")));
        let task = tokio::spawn(async {});
        (Cache { store, _task: Arc::new(Task(task)) }, by_node, told)
    }

    fn present(cache: &Cache<Pod>, name: &str, version: u64, node: &str) {
        cache.store.handle(News::Present(&meta(name, version), json!({"node": node})));
    }

    #[tokio::test]
    async fn indexes_and_callbacks_follow_every_change() {
        let (cache, by_node, told) = prepared();
        cache.store.handle::<Value>(News::Begin);
        present(&cache, "a", 1, "x");
        present(&cache, "b", 2, "x");
        assert!(!cache.is_synced());
        cache.store.handle::<Value>(News::End);
        cache.synced().await;
        present(&cache, "a", 3, "x");
        present(&cache, "a", 4, "y");
        assert_eq!(cache.version(&Key::new("n", "a")), Some(4));
        let names =
            |value| cache.by(by_node, value).into_iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>();
        assert_eq!((names("x"), names("y")), (vec!["n/b".to_owned()], vec!["n/a".to_owned()]));
        cache.store.handle::<Value>(News::Gone(&meta("a", 5), None));
        assert_eq!((cache.len(), cache.count(by_node, "y")), (1, 0));
        assert_eq!(*told.lock().unwrap(), ["n/a ->x", "n/b ->x", "n/a x>y", "n/a y>-"]);
    }

    #[tokio::test]
    async fn objects_that_a_new_list_lacks_are_gone_and_unreadable_ones_stay() {
        let (cache, by_node, told) = prepared();
        cache.store.handle::<Value>(News::Begin);
        for name in ["a", "b", "c"] {
            present(&cache, name, 1, "x");
        }
        cache.store.handle::<Value>(News::End);
        cache.store.handle::<Value>(News::Begin);
        present(&cache, "a", 1, "x");
        let error = serde_json::from_str::<u8>("x").unwrap_err();
        cache.store.handle::<Value>(News::Unreadable(&meta("b", 2), error));
        assert_eq!(cache.len(), 3, "nothing is removed before the list is complete");
        cache.store.handle::<Value>(News::End);
        assert_eq!((cache.len(), cache.count(by_node, "x"), cache.unreadable()), (2, 2, 1));
        assert_eq!(told.lock().unwrap().last().unwrap(), "n/c x>-");
    }

    #[tokio::test]
    async fn changed_keys_wait_once() {
        let (cache, _, _) = prepared();
        let mut changes = cache.changes();
        for version in 1..10 {
            present(&cache, "a", version, &version.to_string());
        }
        present(&cache, "b", 10, "x");
        assert_eq!(changes.next().await, Key::new("n", "a"));
        assert_eq!(changes.next().await, Key::new("n", "b"));
        let nothing = tokio::time::timeout(std::time::Duration::from_millis(20), changes.next()).await;
        assert!(nothing.is_err());
        drop(changes);
        present(&cache, "a", 11, "z");
        assert!(cache.store.subscribers.lock().unwrap().is_empty());
    }
}
